//! Prints the result of a program at its end.
//!
//! All programs print markdown to standard output and errors to standard error, so that a report can be saved to a file.

use std::process::ExitCode;

/// Prints the markdown, or the error.
pub fn print(program: &str, outcome: Result<String, String>) -> ExitCode {
    match outcome {
        Ok(report) => {
            print!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{program}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the word that says whether a speed meets its target. A missed target is not an error, because a slow or busy
/// machine may miss it.
pub fn met(is_met: bool) -> &'static str {
    if is_met { "met" } else { "missed" }
}
