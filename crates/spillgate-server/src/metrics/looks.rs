//! Looks at limits that never refuse one, by rule.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use spillgate::rules::Rule;

use super::Counter;
use super::by_rule::labels_of;

/// By the labels of domain and rule.
#[derive(Debug, Default)]
pub(super) struct Looks(pub(super) Mutex<BTreeMap<Arc<str>, Counter>>);

impl Looks {
    /// The counter of `rule`, and how many rules have one if this one is new.
    pub(super) fn at(&self, rule: &Rule) -> (Counter, Option<usize>) {
        let mut counters = self.0.lock();
        let before = counters.len();
        let counter = counters.entry(labels_of(&rule.domain, &rule.path)).or_default().clone();
        (counter, (counters.len() > before).then_some(counters.len()))
    }

    /// Drops the counters of rules that are gone.
    pub(super) fn retain(&self, is_rule: impl Fn(&str) -> bool) {
        self.0.lock().retain(|labels, _| is_rule(labels));
    }
}
