//! The program `spillgate`: parse, dispatch, exit code.

use std::process::ExitCode;

use mimalloc::MiMalloc;
use spillgate_server::{cli, command};

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    if std::env::args_os().len() <= 1 {
        // Help that was not asked for is no failure either: there was nothing to do.
        return match cli::command().print_help() {
            Ok(()) => ExitCode::from(command::EXIT_OK),
            Err(_) => ExitCode::from(command::EXIT_UNAVAILABLE),
        };
    }
    match cli::parse(std::env::args_os()) {
        Ok(verb) => command::run(&verb),
        Err(error) => {
            cli::print(&error);
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(command::EXIT_USAGE))
        }
    }
}
