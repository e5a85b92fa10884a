//! The program `spillgate`: it parses the command line, runs the command and returns its exit code.
//!
//! All other code is in the library, so that tests can call it.

use std::process::ExitCode;

use mimalloc::MiMalloc;
use spillgate_server::{cli, command};

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    if std::env::args_os().len() <= 1 {
        // Without arguments the program prints its help, which is not an error.
        return command::exit(cli::command().print_help(), command::EXIT_OK);
    }
    match cli::parse(std::env::args_os()) {
        Ok(verb) => command::run(&verb),
        Err(error) => command::exit(cli::print(&error), u8::try_from(error.exit_code()).unwrap_or(command::EXIT_USAGE)),
    }
}
