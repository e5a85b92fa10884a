//! Waits for an event by polling, up to a deadline.
//!
//! A fixed sleep would be too short on a busy machine and too long on an idle machine.

use std::thread;
use std::time::{Duration, Instant};

/// How long [`eventually`] waits. This is long, because a test must not fail only because the machine is busy.
pub const DEADLINE: Duration = Duration::from_secs(180);

/// Calls `ask` until it returns a value, and returns that value.
///
/// # Panics
/// Panics if `ask` returns no value within [`DEADLINE`]. The message contains `what`, which names the expected event.
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
