//! Polling with a deadline.
//!
//! A fixed sleep is too short on a busy machine and too long on an idle one.

use std::thread;
use std::time::{Duration, Instant};

/// How long [`eventually`] polls. It is long, because a busy machine is not a failure.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Calls `ask` until it returns a value, and returns that value.
///
/// # Panics
/// If it returns no value within [`DEADLINE`]. `what` names what was expected.
pub fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(begun.elapsed() < DEADLINE, "gave up after {DEADLINE:?} waiting for: {what}");
        thread::park_timeout(Duration::from_millis(20));
    }
}
