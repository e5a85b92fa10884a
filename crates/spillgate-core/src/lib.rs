//! The decision itself: given what was used, a quota and a time, may this request pass?
//!
//! Nothing here reads a clock, opens a socket, logs or allocates on its own account (the log,
//! segment and lease states own their entries). Everything is integer arithmetic that saturates
//! or refuses; nothing wraps and nothing panics, in debug and in release alike.
//!
//! The words, one for each idea:
//!
//! | word | type | meaning |
//! |---|---|---|
//! | quota | [`Quota`] | how much in how long, and by which algorithm |
//! | hit | [`Hit`] | one question (key, quota, operation) to one limit |
//! | decision | [`Decision`] | the answer to one hit |
//! | verdict | [`Verdict`] | the answer to all hits of one request, all or nothing |
//! | receipt | [`Receipt`] | what a take returns so that it can be given back exactly |
//! | store | [`Store`] | where state lives and decisions are atomic |
//!
//! ```
//! use core::time::Duration;
//! use spillgate_core::{decide, Binding, Decision, Hit, Op, Quota, State, Time};
//!
//! let quota = Quota::token_bucket(10, Duration::from_secs(1)).build()?;
//! let hits = [Hit::new(7, &quota, Op::take(4), Binding::Enforce)];
//! let (mut states, mut decisions) = ([State::default()], [Decision::default()]);
//! let verdict = decide(&mut states, &[0], &hits, Time::from_nanos(0), &mut decisions);
//! assert!(verdict.allowed);
//! assert_eq!(decisions[0].remaining, 6);
//! # Ok::<(), spillgate_core::QuotaError>(())
//! ```
#![no_std]

extern crate alloc;

mod algorithm;
#[cfg(feature = "conformance")]
pub mod conformance;
mod decision;
mod quota;
mod request;
mod state;
mod store;
mod time;
mod verdict;

pub use decision::{Decision, Reason, Receipt, Source, Verdict, Wait};
pub use quota::{Algorithm, Anchor, Denied, MAX_UNITS, Quota, QuotaBuilder, QuotaError};
pub use request::{Binding, Hit, MAX_HITS, Op, OpKind, decide};
pub use state::{Packed, State};
pub use store::{Store, StoreError};
pub use time::Time;
