//! The algorithms. Each algorithm has a state machine, in a file that is named after the algorithm: `fixed_window.rs`
//! for `fixed_window`. The file `token_bucket.rs` also has the state machine of `leaky_bucket`.
//!
//! All state machines have the same functions, so the rest of this crate can call them in the same way. These are the
//! functions:
//!
//! * `adopt` prepares the state for a decision at a given time. If the clock was set back, `adopt` reduces or drops
//!   times that are too far in the future. It returns false if the caller has to replace the state with an empty state.
//! * `refusal` returns why a cost does not fit, or `None` if the cost fits. A cost of 0 is a peek.
//! * `charge` takes units that fit. `force` counts units even if they do not fit.
//! * `refund` gives units back. `refund` returns false if the state then equals an empty state.
//! * `usage` returns how many units are left, and after how long the state equals an empty state.
//! * `expires_at` returns the time from which the state equals an empty state.
//! * `encode` writes the state as words (64-bit integers). `decode` reads the words, or returns `None` if no state has
//!   these words.
//!
//! Except `expires_at`, `encode` and `decode`, these functions are never called for a quota with a limit of 0.
//! `refusal` and `charge` are never called with a cost above the hard capacity
//! ([`Quota::hard_capacity`](crate::Quota::hard_capacity)).

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
