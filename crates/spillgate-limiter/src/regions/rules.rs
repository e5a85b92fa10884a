//! The rules of the ledger that a test can break, one at a time, to show that the invariants of the model notice it.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    RefundNotBelowSent,
    EntriesEnd,
    NotSentAfterItsEnd,
    FullKeepsWhatWaits,
    FullSendsRests,
    StepIsDivided,
    LostRegionsDoNotCount,
}

/// Outside of tests, this type is empty and all rules hold, so the compiler removes each question.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rules {
    #[cfg(test)]
    pub(super) broken: Option<Rule>,
}

impl Rules {
    #[cfg(not(test))]
    pub(super) const fn hold(self, _: Rule) -> bool {
        true
    }

    #[cfg(test)]
    pub(super) fn hold(self, rule: Rule) -> bool {
        self.broken != Some(rule)
    }
}
