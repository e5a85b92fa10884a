//! One file for each algorithm, named as in rules files.
//!
//! Each state has the same operations, and its quota and the time are passed in:
//!
//! * `adopt`: make the state fit the quota and the clock; false = it equals no state;
//! * `refusal`: why a cost does not fit (`None` = it fits; a cost of 0 is a look);
//! * `charge`: take what fits; `force`: take in any case; `refund`: give back (false = nothing left);
//! * `usage`: what is left and when it is all back; `expires_at`: from when on it equals no state;
//! * `encode`: the state as words; `decode`: the state of words, if they are some state's.
//!
//! The caller has refused costs above the hard capacity and quotas of limit 0 already.

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
