//! Counters of peeks at limits that never refuse a peek, by rule.
//!
//! Such a limit allows everything when Envoy charges at the end of a stream. The counter shows which rules are affected.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use spillgate::rules::Rule;

use super::Counter;
use super::by_rule::labels_of;

/// The counters, by the labels of domain and rule.
#[derive(Debug, Default)]
pub(super) struct Peeks(pub(super) Mutex<BTreeMap<Arc<str>, Counter>>);

impl Peeks {
    /// The counter of `rule`. If the counter is new, also the number of rules that have a counter now.
    pub(super) fn of(&self, rule: &Rule) -> (Counter, Option<usize>) {
        let mut counters = self.0.lock();
        let before = counters.len();
        let counter = counters.entry(labels_of(&rule.domain, &rule.path)).or_default().clone();
        (counter, (counters.len() > before).then_some(counters.len()))
    }

    /// Drops the counters of rules that were removed.
    pub(super) fn retain(&self, is_rule: impl Fn(&str) -> bool) {
        self.0.lock().retain(|labels, _| is_rule(labels));
    }
}
