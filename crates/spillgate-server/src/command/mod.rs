//! The verbs of the command line: the only places that wire things together.

mod announce;
mod check;
mod doctor;
mod dry;
mod explain;
mod key;
mod load;
mod log;
mod open_files;
mod refusal_log;
mod reload;
mod rule_changes;
mod secret_file;
mod serve;
mod served;
mod show;
mod signals;
mod snapshot;
mod snapshot_file;
mod store;
mod store_changes;
mod store_watch;
mod table;
mod terminal;
mod validate;

use std::process::ExitCode;

use crate::cli::Verb;
use terminal::Terminal;

/// All is well; for `check`: every question was allowed.
pub const OK: u8 = 0;
/// The answer is no.
pub const NO: u8 = 1;
/// A wrong command line, setting or rule.
pub const WRONG: u8 = 2;
/// It was right but could not be served.
pub const UNSERVED: u8 = 3;

/// Does what was asked; returns when it is done.
pub fn run(verb: &Verb) -> ExitCode {
    let mut terminal = Terminal::new();
    let code = match verb {
        Verb::Serve(serve) => serve::run(serve, &mut terminal),
        Verb::Validate(validate) => validate::run(validate, &mut terminal),
        Verb::Check(check) => check::run(check, &mut terminal),
        Verb::Key(key) => key::run(key, &mut terminal),
        Verb::Doctor(doctor) => doctor::run(doctor, &mut terminal),
        Verb::Schema => {
            terminal.print(spillgate::rules::SCHEMA);
            OK
        }
    };
    ExitCode::from(code)
}
