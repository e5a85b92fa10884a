//! `spillgate schema`: prints the JSON Schema of rules files.
//!
//! With this schema, an editor can complete and check a rules file during writing.

use super::terminal::{EXIT_OK, Terminal};

pub(super) fn run(terminal: &mut Terminal) -> u8 {
    terminal.print(spillgate::rules::SCHEMA);
    EXIT_OK
}
