//! The exit codes of the program.
//!
//! Scripts and service managers react to these codes, so the codes do not change. "Exit codes" in `--help` lists them.

/// Success. For `check`: every request was allowed. For `doctor`: nothing to fix.
pub const EXIT_OK: u8 = 0;
/// The command ran and its answer is no.
pub const EXIT_DENIED: u8 = 1;
/// The command line, a setting or a rule is wrong.
pub const EXIT_USAGE: u8 = 2;
/// The request was valid, but the server or the store is not available.
pub const EXIT_UNAVAILABLE: u8 = 3;
