//! Tests of `spillgate replay`: a replay and a server give the same requests the same answers and the same insight.
//!
//! With `REPLAY_LOG=FILE`, `the_answers_and_the_insight_are_those_of_a_server` reads this log (format combined) instead of a made one.

mod bursts;
mod callers;
mod changes;
mod command;
mod errors;
mod memory;
mod same_as_server;
pub(crate) mod scenario;
mod scenes;
pub(crate) mod server;
mod whole_log;
