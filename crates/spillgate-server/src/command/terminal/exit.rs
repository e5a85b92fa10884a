//! The exit codes of the program.
//!
//! Scripts and service managers react to these codes, so the codes do not change. "Exit codes" in `--help` lists them.

/// Success. For `check`: every request was allowed. For `doctor`: nothing to fix.
pub const EXIT_OK: u8 = 0;
/// The command ran, and its answer is no. For example, `check` refused a request.
pub const EXIT_DENIED: u8 = 1;
/// The command line, a setting or a rule is wrong.
pub const EXIT_USAGE: u8 = 2;
/// The command line was valid, but the command failed: the server could not start or did not end well, the store cannot
/// be used, or the output cannot be written.
pub const EXIT_UNAVAILABLE: u8 = 3;
