//! Tests of the metrics of a real server: what they count over each protocol and with each store, what the linter of
//! Prometheus says of them, and whether the rules and the dashboard in `deploy/` name only metrics that exist.

#![allow(clippy::unwrap_used, reason = "a panic makes the test fail")]

mod support;

#[path = "metrics/counts.rs"]
mod counts;
#[path = "metrics/deploy.rs"]
mod deploy;
#[path = "metrics/durations.rs"]
mod durations;
#[path = "metrics/lint.rs"]
mod lint;
#[path = "metrics/page.rs"]
mod page;
#[path = "metrics/traffic.rs"]
mod traffic;
