//! How many requests each limit has refused since the log last said so. Metrics count by rule, and a rule may have several
//! limits.

use std::cmp::Reverse;
use std::iter::zip;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use spillgate::Clock;
use spillgate::rules::{Limit, Rule, Rules};

use super::{Judged, Service};

/// Limits that have a line of their own, each minute; the rest has one together.
const LINES_A_MINUTE: usize = 9;

/// One number for each limit, in the order of the rules.
#[derive(Debug)]
pub(super) struct Refusals {
    counts: Box<[AtomicU64]>,
    /// Where the numbers of each rule begin.
    first: Box<[u32]>,
}

impl Refusals {
    pub(super) fn of(rules: &Rules) -> Refusals {
        let mut limits = 0;
        let mut begin = |rule: &Rule| {
            let first = u32::try_from(limits).unwrap_or(u32::MAX);
            limits += rule.limits.len();
            first
        };
        let first = rules.rules().map(&mut begin).collect();
        Refusals { first, counts: (0..limits).map(|_| AtomicU64::new(0)).collect() }
    }

    /// The limits of a rule, each with its number.
    fn of_rule<'r>(&self, rule: &'r Rule) -> impl Iterator<Item = (&'r Limit, &AtomicU64)> {
        let first = self.first.get(rule.index()).map_or(usize::MAX, |first| *first as usize);
        zip(&rule.limits, self.counts.get(first..).unwrap_or_default())
    }

    /// Counts those of the rule's limits that refused.
    #[cold]
    pub(super) fn count<'a, 'p: 'a>(&self, rule: &Rule, judged: impl Iterator<Item = Judged<'a, 'p>>) {
        for judged in judged.filter(|judged| !judged.decision.allowed) {
            if let Some((_, count)) = self.of_rule(rule).find(|(limit, _)| ptr::eq(*limit, judged.limit)) {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl<C: Clock> Service<C> {
    /// Writes to the log how many each limit has refused since this was last asked, those that refused most first: ten
    /// lines at most.
    pub fn log_refusals(&self) {
        let loaded = self.rules();
        let mut refusing: Vec<(u64, &Rule, &Limit)> = Vec::new();
        for rule in loaded.rules() {
            for (limit, count) in loaded.refusals.of_rule(rule) {
                let refused = count.load(Ordering::Relaxed);
                if refused > 0 {
                    count.fetch_sub(refused, Ordering::Relaxed);
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
