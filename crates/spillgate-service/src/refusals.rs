//! Logs how many requests each limit has refused.
//!
//! A rule can have several limits. The log says which of them refused, and at which line of a rules file that limit is.

use std::cmp::Reverse;
use std::iter::zip;
use std::ptr;
use std::sync::atomic::Ordering;

use spillgate::rules::{Limit, Rule};

use crate::metrics::RuleCounters;

use super::{LimitDecision, Loaded};

/// Each call of `log_refusals` writes at most this many lines that name a limit, and one more line with the sum of all
/// other limits.
const LINES_A_MINUTE: usize = 9;

#[cold]
#[inline]
pub(super) fn count<'a, 'p: 'a>(
    counters: &RuleCounters,
    rule: &Rule,
    limits: impl Iterator<Item = LimitDecision<'a, 'p>>,
) {
    for decided in limits.filter(|decided| !decided.decision.allowed) {
        if let Some((_, count)) = counters.refused(rule).find(|(limit, _)| ptr::eq(*limit, decided.limit)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// After a reload, some requests still use the old rules. When the last of them has ended, this code logs the refusals
/// by the old rules that are not in the log yet.
impl Drop for Loaded {
    fn drop(&mut self) {
        self.log_refusals();
    }
}

impl Loaded {
    /// Logs how many requests each limit has refused since the last call. The limits with the most refusals come
    /// first. There are at most ten lines.
    pub fn log_refusals(&self) {
        // The server calls this function a last time before the process ends. This lock then waits until another thread
        // that is in this function has written its lines. Otherwise these lines could be lost.
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
            // The commands and the page name the same place.
            let at = &rule.origin;
            let (domain, rule, name) = (&*rule.domain, &*rule.path, limit.name.as_deref());
            tracing::info!(refused, domain, rule, name, %at, "this limit has refused requests");
        }
        if !rest.is_empty() {
            let refused: u64 = rest.iter().map(|(refused, ..)| refused).sum();
            tracing::info!(refused, limits = rest.len(), "other limits have refused requests");
        }
    }
}
