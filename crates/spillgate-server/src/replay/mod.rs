//! Replays the requests of a log by any rules, on a virtual clock: what the rules would have done.
//!
//! The same service decides as in the server, so that the answers are the same. This module reads no file and prints nothing.

pub mod page;
pub mod report;
#[cfg(test)]
pub(crate) mod sample;
