//! Tests of `spillgate replay`: the same requests get the same answers and the same insight from a server.
//!
//! With `REPLAY_LOG=FILE`, `the_answers_and_the_insight_are_those_of_a_server` reads this log (format combined) instead of a made one.

#[path = "replay/bursts.rs"]
mod bursts;
#[path = "replay/callers.rs"]
mod callers;
#[path = "replay/changes.rs"]
mod changes;
mod cli_support;
#[path = "replay/command.rs"]
mod command;
#[path = "replay/errors.rs"]
mod errors;
#[path = "replay/memory.rs"]
mod memory;
#[path = "replay/same_as_server.rs"]
mod same_as_server;
#[path = "replay/scenario.rs"]
mod scenario;
#[path = "replay/server.rs"]
mod server;
mod support;
