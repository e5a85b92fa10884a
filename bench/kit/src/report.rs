//! What a program prints at its end.

use std::process::ExitCode;

/// Markdown, or why there is none.
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

/// Whether a speed is what it should be. Another machine, or a busy one, may miss it: that ends no program.
pub fn met(is_met: bool) -> &'static str {
    if is_met { "met" } else { "missed" }
}
