//! Tests of the metrics of a real server: what they count over each protocol and with each store, what the linter of
//! Prometheus says of them, and whether the rules and the dashboard in `deploy/` name only metrics that exist.

#![allow(clippy::unwrap_used, reason = "a panic makes the test fail")]

mod counts;
mod deploy;
mod durations;
mod lint;
mod page;
mod traffic;
