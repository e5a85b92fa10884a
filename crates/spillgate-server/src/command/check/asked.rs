//! The questions of `spillgate check` and their answers, as plain data.
//!
//! A question is one request at one time. `mod.rs` asks the questions, and `explain.rs` prints the answers.
//! `explain.rs` needs only this data, so it does not depend on how `mod.rs` asks.

use std::time::Duration;

use spillgate::rules::Limit;
use spillgate::{Decision, Source, StoreError, StoreErrorKind, Verdict};

use crate::service::ServiceError;

/// One question and its answer.
#[derive(Debug)]
pub(super) struct Asked<'p> {
    /// The time of the question, since the start of the clock.
    pub(super) at: Duration,
    pub(super) cost: u64,
    pub(super) verdict: Verdict,
    pub(super) limits: Vec<AskedLimit<'p>>,
}

/// The decision of one limit, and the state of the limit before and after the question.
#[derive(Debug)]
pub(super) struct AskedLimit<'p> {
    /// The number of the limit's descriptor, from 0.
    pub(super) descriptor: usize,
    /// The number of the limit in the descriptor's rule, from 0.
    pub(super) number: usize,
    pub(super) limit: &'p Limit,
    pub(super) before: Decision,
    pub(super) decision: Decision,
    pub(super) after: After,
}

/// The state of a limit after a question.
#[derive(Clone, Copy, Debug)]
pub(super) struct After {
    pub(super) remaining: u64,
    /// `None` if the time is unknown, because the request would take units but the store was only read.
    pub(super) reset_after_ns: Option<u64>,
}

impl From<&Decision> for After {
    fn from(seen: &Decision) -> After {
        After { remaining: seen.remaining, reset_after_ns: Some(seen.reset_after_ns) }
    }
}

/// The descriptors of the request as pairs.
pub(super) type Pairs<'c> = Vec<Vec<(&'c str, &'c str)>>;

/// Fails if the decision came from the fallback, because this command needs the decision of the store itself.
pub(super) fn decided(source: Source) -> Result<(), ServiceError> {
    match source {
        Source::Store => Ok(()),
        _ => Err(StoreError::new(StoreErrorKind::Timeout, "it did not answer in time").into()),
    }
}
