//! The commands of the command line.
//!
//! This is the only place that reads files and connects the parts: settings, rules, stores, service and listeners.
//! All other modules get what they need from here.

mod admin;
mod check;
mod differences;
mod doctor;
mod explained;
mod health;
mod insight;
mod key;
mod open;
mod replay;
mod schema;
mod serve;
mod shared_limits;
mod size;
mod terminal;
mod validate;

use std::io;
use std::process::ExitCode;

use crate::cli::Verb;
use terminal::Terminal;
pub use terminal::{EXIT_DENIED, EXIT_OK, EXIT_UNAVAILABLE, EXIT_USAGE};

/// Runs one command and returns its exit code.
pub fn run(verb: &Verb) -> ExitCode {
    let mut terminal = Terminal::new();
    let code = match verb {
        // If the start-up text (the banner) could not be written, the server still serves its clients. So this error
        // does not change the exit code.
        Verb::Serve(serve) if !serve.show_settings => return ExitCode::from(serve::run(serve, &mut terminal)),
        Verb::Serve(serve) => serve::run(serve, &mut terminal),
        Verb::Validate(validate) => validate::run(validate, &mut terminal),
        Verb::Check(check) => check::run(check, &mut terminal),
        Verb::Key(key) => key::run(key, &mut terminal),
        Verb::Doctor(doctor) => doctor::run(doctor, &mut terminal),
        Verb::Health(health) => health::run(health, &mut terminal),
        Verb::Insight(insight) => insight::run(insight, &mut terminal),
        Verb::Admin(admin) => admin::run(admin, &mut terminal),
        Verb::Replay(replay) => replay::run(replay, &mut terminal),
        Verb::Size(size) => size::run(size, &mut terminal),
        Verb::Schema => schema::run(&mut terminal),
    };
    terminal.exit_code(code)
}

/// Ends a program that has only printed its help or an error. `printed` is the error of standard output, if it could
/// not be written.
pub fn exit(printed: io::Result<()>, code: u8) -> ExitCode {
    let mut terminal = Terminal::new();
    terminal.note(printed);
    terminal.exit_code(code)
}
