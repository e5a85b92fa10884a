//! Counts, for each rule, the peeks (requests of cost 0) at a limit that never refuses a peek.
//!
//! Envoy can send a peek when a stream begins, and the cost when the stream ends. If the limit never refuses a peek, it
//! never refuses such a stream. The counters show which rules have this problem.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use spillgate::rules::Rule;

use super::Counter;
use super::by_rule::labels_of;

/// One counter for each rule that has had a peek at a limit that never refuses one. The key of the map is the text of
/// the labels for the domain and the rule.
#[derive(Debug, Default)]
pub(super) struct Peeks(pub(super) Mutex<BTreeMap<Arc<str>, Counter>>);

impl Peeks {
    /// Returns the counter of `rule`, which is created if necessary. If the counter is new, also returns how many rules
    /// have a counter now.
    pub(super) fn of(&self, rule: &Rule) -> (Counter, Option<usize>) {
        let mut counters = self.0.lock();
        let before = counters.len();
        let counter = counters.entry(labels_of(&rule.domain, &rule.path)).or_default().clone();
        (counter, (counters.len() > before).then_some(counters.len()))
    }

    /// After a reload, drops the counters of removed rules: those for whose labels `is_rule` returns false.
    pub(super) fn retain(&self, is_rule: impl Fn(&str) -> bool) {
        self.0.lock().retain(|labels, _| is_rule(labels));
    }
}
