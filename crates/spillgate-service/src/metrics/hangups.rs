//! Counts what becomes of charges whose clients hung up before their answer.

use super::registry::{Counter, Registry};

/// Why a charge of a client that hung up was not given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LostCharge {
    /// The server, or one of its runtimes, ended.
    Ended,
    /// Too many charges waited, or too many turns were remembered.
    Full,
    /// Other clients waited behind the turn until its time was over.
    Passed,
    /// The store failed.
    Store,
}

impl LostCharge {
    const ALL: [LostCharge; 4] = [LostCharge::Ended, LostCharge::Full, LostCharge::Passed, LostCharge::Store];

    const fn as_str(self) -> &'static str {
        match self {
            LostCharge::Ended => "ended",
            LostCharge::Full => "full",
            LostCharge::Passed => "passed",
            LostCharge::Store => "store",
        }
    }
}

#[derive(Debug)]
pub struct HangupMetrics {
    /// Charges that were given back.
    pub given_back: Counter,
    lost: [Counter; LostCharge::ALL.len()],
}

impl HangupMetrics {
    pub(super) fn new(registry: &mut Registry) -> HangupMetrics {
        let given_back = "Charges that were given back because an HTTP client hung up before its answer";
        let lost = "Charges that were not given back although an HTTP client hung up before its answer, by reason";
        HangupMetrics {
            given_back: registry.counter("hangup_given_back", given_back),
            lost: registry.counters("hangup_lost", lost, "reason", LostCharge::ALL.map(LostCharge::as_str)),
        }
    }

    /// Returns the counter of charges that were not given back because of `reason`.
    #[must_use]
    pub const fn lost(&self, reason: LostCharge) -> &Counter {
        &self.lost[reason as usize]
    }
}
