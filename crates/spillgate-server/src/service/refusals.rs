//! How many requests each limit has refused since the log last said so. Metrics count by rule, and a rule may have several
//! limits.

use std::cmp::Reverse;
use std::iter::zip;
use std::ptr;
use std::sync::atomic::Ordering;

use spillgate::rules::{Limit, Rule};

use crate::metrics::RuleCounters;

use super::{Judged, Loaded};

/// Limits that have a line of their own, each minute; the rest has one together.
const LINES_A_MINUTE: usize = 9;

/// Counts those of the rule's limits that refused.
#[cold]
pub(super) fn count<'a, 'p: 'a>(counters: &RuleCounters, rule: &Rule, judged: impl Iterator<Item = Judged<'a, 'p>>) {
    for judged in judged.filter(|judged| !judged.decision.allowed) {
        if let Some((_, count)) = counters.refused(rule).find(|(limit, _)| ptr::eq(*limit, judged.limit)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A reload does not lose what the rules before it refused: that is written when the last request by them is over.
impl Drop for Loaded {
    fn drop(&mut self) {
        self.log_refusals();
    }
}

impl Loaded {
    /// Writes to the log how many each limit has refused since this was last asked, those that refused most first: ten
    /// lines at most.
    pub fn log_refusals(&self) {
        // At the end of the process: what another thread is about to write is written first.
        let _writing = self.writing.lock();
        let mut refusing: Vec<(u64, &Rule, &Limit)> = Vec::new();
        for (rule, counters) in zip(self.rules.rules(), &self.counters) {
            for (limit, count) in counters.refused(rule) {
                let refused = count.swap(0, Ordering::Relaxed);
                if refused > 0 {
                    refusing.push((refused, rule, limit));
                }
            }
        }
        refusing.sort_by_key(|(refused, ..)| Reverse(*refused));
        let (named, rest) = refusing.split_at(refusing.len().min(LINES_A_MINUTE));
        for (refused, rule, limit) in named {
            let at = limit.origin.as_ref().unwrap_or(&rule.origin);
            let (domain, rule, name) = (&*rule.domain, &*rule.path, limit.name.as_deref());
            tracing::info!(refused, domain, rule, name, %at, "refused by this limit since the last such line");
        }
        if !rest.is_empty() {
            let refused: u64 = rest.iter().map(|(refused, ..)| refused).sum();
            tracing::info!(refused, limits = rest.len(), "refused by other limits since the last such line");
        }
    }
}
