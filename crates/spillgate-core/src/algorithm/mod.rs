//! One state machine for each algorithm, in a file that has its name in rules files.
//!
//! A state has the same operations in every algorithm, so the rest of the kernel needs to know no algorithm. The quota
//! and the time are parameters:
//!
//! * `adopt` makes the state fit the quota and the clock. It returns false if the state equals an empty one.
//! * `refusal` returns why a cost does not fit, or `None` if it fits. A cost of 0 is a peek.
//! * `charge` takes units that fit. `force` takes units in any case.
//! * `refund` gives units back. It returns false if nothing is left in the state.
//! * `usage` returns what is left, and when nothing counts any more.
//! * `expires_at` returns when the state equals an empty one.
//! * `encode` writes the state as words. `decode` reads it back, or returns `None` if no state has these words.
//!
//! The caller has already refused costs above the hard capacity and quotas with a limit of 0.

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
