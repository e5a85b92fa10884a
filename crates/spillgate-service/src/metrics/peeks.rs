//! Counts, for each rule, the peeks (requests of cost 0) at a limit that never refuses a peek.
//!
//! Envoy can send a peek when a stream begins, and send the cost when the stream ends. A limit that never refuses a
//! peek then never refuses a stream. The counters show which rules have this problem.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use spillgate::rules::Rule;

use super::Counter;
use super::by_rule::labels_of;

/// One counter for each rule that has had such a peek. The key of the map is the text of the labels for the domain and
/// the rule.
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

    /// Drops the counters of rules for which `is_rule` returns false. Its argument is the text of the labels.
    pub(super) fn retain(&self, is_rule: impl Fn(&str) -> bool) {
        self.0.lock().retain(|labels, _| is_rule(labels));
    }
}
