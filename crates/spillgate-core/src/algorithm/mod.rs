//! The algorithms: one state machine for each. A file has the name of its algorithm in rules files, and
//! `token_bucket.rs` has the `leaky_bucket` too.
//!
//! All state machines have the same functions, so the rest of this crate can call them in the same way. The quota and
//! the time are parameters:
//!
//! * `adopt` prepares the state for a decision at this time. If the clock was set back, times that are too far in the
//!   future are reduced or dropped. It returns false if the state then equals an empty state.
//! * `refusal` returns why a cost does not fit, or `None` if the cost fits. A cost of 0 is a peek, which only asks and
//!   takes nothing.
//! * `charge` takes units that fit. `force` counts units even if they do not fit.
//! * `refund` gives units back. It returns false if the state then equals an empty state.
//! * `usage` returns what is left, and how long until nothing counts any more.
//! * `expires_at` returns the time from which the state equals an empty state.
//! * `encode` writes the state as words (64-bit integers). `decode` reads the words, or returns `None` if no state has
//!   these words.
//!
//! These functions are never called for a quota with a limit of 0. `refusal` and `charge` are never called with a cost
//! above the hard capacity.

mod concurrency;
mod fixed_window;
mod sliding_window_counter;
mod sliding_window_log;
mod token_bucket;
mod types;

pub(crate) use concurrency::Leases;
pub(crate) use fixed_window::Window;
pub(crate) use sliding_window_counter::Segments;
pub(crate) use sliding_window_log::Log;
pub(crate) use token_bucket::Bucket;
pub(crate) use types::{LATEST_NS, Refusal, Usage};
