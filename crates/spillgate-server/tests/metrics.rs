//! Tests of the metrics of a real server: what they count over each protocol and with each store, whether the linter of
//! Prometheus accepts them, and whether the rules and the dashboard in `deploy/` name only metrics that exist.

#![allow(clippy::unwrap_used, reason = "a panic makes the test fail")]

mod counts;
mod deploy;
mod durations;
mod lint;
pub(crate) mod page;
mod traffic;
