//! The kernel of spillgate: the pure code that decides whether a request may pass.
//!
//! A decision depends only on the operations of the request, on the limits (quotas), on what was used before (states),
//! and on the time. The kernel reads no clock, opens no socket and writes no log. So its tests need neither a server
//! nor a clock, and every store gets the same answers.
//!
//! All arithmetic is on integers. A result that is too large saturates, or the operation is refused. No number causes a
//! panic, in debug builds or in release builds. Most states own no memory on the heap. The exceptions are the states of
//! logs, of counters with several segments, and of concurrency limits.
//!
//! # The types of a decision
//!
//! | type | meaning |
//! |---|---|
//! | [`Quota`] | a limit with its [algorithm](Algorithm); all numbers are checked once, when the quota is built |
//! | [`Hit`] | a key, a quota and one [operation](Op); a request is a list of hits |
//! | [`Decision`] | the answer to one hit: whether it is allowed, what is left, and how long to wait |
//! | [`Verdict`] | whether the whole request may pass, and which of its hits determines that |
//! | [`Receipt`] | what a take returns, so that a later refund gives back exactly the units of this take |
//! | [`Store`] | the interface of a store, which keeps the states and makes each decision atomic |
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
//!
//! # Which types can grow
//!
//! A later version may add fields or variants to the types that a caller reads in an answer, such as [`Decision`],
//! [`Verdict`], [`Receipt`], [`Reason`] and the errors. So these types are `#[non_exhaustive]`, and so is [`Hit`].
//!
//! Other enums must be handled completely, by every store, every metric or every caller. So they are exhaustive, for
//! example [`Algorithm`], [`Op`], [`Binding`], [`Denied`], [`OnStoreFailure`], [`Source`] and [`Wait`]. If a variant is
//! added, the compiler shows each place that has to change.
//!
//! # Guarantees
//!
//! [A page for contributors](https://github.com/spillgate/spillgate/blob/main/docs/guarantees/core.md) has all
//! guarantees, each with the tests that check it. [`decide`] says what is charged, and [`Algorithm`] has the bound of
//! each algorithm.
#![no_std]
#![warn(missing_docs)]

extern crate alloc;

mod algorithm;
#[cfg(feature = "conformance")]
pub mod conformance;
mod decide;
mod decision;
mod fast_path;
mod hit;
mod op;
mod packed;
mod quota;
mod state;
mod store;
mod time;
mod verdict;

pub use decide::{decide, decide_late};
pub use decision::{Decision, Reason, Receipt, Wait};
pub use hit::{Binding, Hit, MAX_HITS};
pub use op::{Op, OpKind};
pub use packed::Packed;
pub use quota::{
    AcrossRegions, Algorithm, Anchor, Denied, MAX_LATE_NS, MAX_UNITS, OnStoreFailure, Quota, QuotaBuilder, QuotaError,
    Regions, Span,
};
pub use state::State;
pub use store::{
    Charge, Charged, ChargedStore, Circuit, MAX_CHARGES, NodeMemory, Store, StoreCalls, StoreError, StoreErrorKind,
    StoreHealth, Timing, UnclaimedCharge,
};
pub use time::Time;
pub use verdict::{Source, Verdict};
