//! The commands of the command line.
//!
//! This is the only place that reads files and connects the parts: settings, rules, stores, service and listeners.
//! All other modules get what they need from here.

mod check;
mod doctor;
mod key;
mod open;
mod schema;
mod serve;
mod terminal;
mod validate;

use std::process::ExitCode;

use crate::cli::Verb;
use terminal::Terminal;
pub use terminal::{EXIT_DENIED, EXIT_OK, EXIT_UNAVAILABLE, EXIT_USAGE};

/// Runs one command and returns its exit code.
pub fn run(verb: &Verb) -> ExitCode {
    let mut terminal = Terminal::new();
    let code = match verb {
        Verb::Serve(serve) => serve::run(serve, &mut terminal),
        Verb::Validate(validate) => validate::run(validate, &mut terminal),
        Verb::Check(check) => check::run(check, &mut terminal),
        Verb::Key(key) => key::run(key, &mut terminal),
        Verb::Doctor(doctor) => doctor::run(doctor, &mut terminal),
        Verb::Schema => schema::run(&mut terminal),
    };
    ExitCode::from(code)
}
