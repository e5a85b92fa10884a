//! Counts decisions, and logs when the memory store is full.
//!
//! Every decision is counted here and nowhere else, so that no protocol can forget a counter.

use std::sync::atomic::{AtomicU64, Ordering};

use spillgate::rules::{Action, Request};
use spillgate::{Clock, Time};

use super::answer::AnswerView;
use super::{Loaded, Service, refusals};
use crate::metrics::{Outcome, Protocol, RuleCounters, ThreadNumber};

/// A full store would fill the log, because each request could find it full. So two lines about it are at least this
/// far apart.
const FULL_LOG_EVERY_NS: u64 = 60_000_000_000;

/// Lets the log warn once a minute that the memory store is full, however many requests find it full.
#[derive(Debug, Default)]
pub(super) struct FullLog {
    /// The number of requests that found the store full, as the store reported it at the last check.
    requests: AtomicU64,
    /// When the last warning was logged. 0 before the first one.
    logged_ns: AtomicU64,
}

impl<C: Clock> Service<C> {
    /// Copies the numbers that the stores count into the metrics. A page of metrics has old numbers without this call.
    pub fn update_metrics(&self) {
        self.update_operator_metrics();
        let store = self.limiter.store().memory();
        self.metrics.store_full.raise_to(store.full_requests());
        self.metrics.store_keys_expired.raise_to(store.expired_keys());
        self.metrics.store_keys.set(i64::try_from(store.len()).unwrap_or(i64::MAX));
        if let Some(health) = self.limiter.store().health() {
            self.metrics.store.update(&health);
        }
    }

    /// Warns that the memory store is full, at most once a minute.
    pub(super) fn watch_full(&self, now: Time) {
        let requests = self.limiter.store().memory().full_requests();
        if requests == self.full.requests.load(Ordering::Relaxed) {
            return;
        }
        self.full.requests.store(requests, Ordering::Relaxed);
        let logged_ns = self.full.logged_ns.load(Ordering::Relaxed);
        let (now_ns, order) = (now.as_nanos(), Ordering::Relaxed);
        let due = now_ns.saturating_sub(logged_ns) >= FULL_LOG_EVERY_NS;
        if due && self.full.logged_ns.compare_exchange(logged_ns, now_ns, order, order).is_ok() {
            tracing::warn!(
                requests,
                "the memory store is full: new keys are refused, not counted, or limited by a sketch, as memory.on_full says; \
                 raise memory.max_keys or memory.max_heap"
            );
        }
    }

    /// Counts a request and each of its descriptors. A descriptor that brings its own limit counts as an override and
    /// for no rule.
    pub(super) fn count(
        &self,
        now: Time,
        protocol: Protocol,
        loaded: &Loaded,
        request: &Request<'_>,
        answer: AnswerView<'_, '_>,
    ) {
        let thread = ThreadNumber::current();
        self.metrics.count_request(thread, protocol, answer.verdict);
        self.watch(now, loaded, request, answer);
        if !answer.plan.hits.is_empty() {
            count_hits(thread, &loaded.counters, answer);
        }
        for (index, (status, descriptor)) in answer.statuses.iter().zip(request.descriptors()).enumerate() {
            if matches!(descriptor.action, Action::Refund(_)) {
                self.metrics.refunds.inc();
            }
            if descriptor.limit.is_some() {
                self.metrics.overrides.inc();
                continue;
            }
            let Some((rule, counters)) = status.rule.and_then(|rule| Some((rule, loaded.counters.get(rule.index())?)))
            else {
                self.metrics.count_unmatched(thread);
                self.log.unmatched(now, loaded, request.domain, descriptor.entries);
                continue;
            };
            let outcome = match (status.over, status.enforced_over && !self.options.shadow) {
                (true, true) => Outcome::Refused,
                (true, false) => Outcome::ShadowRefused,
                (false, _) if status.decision.soft_over => Outcome::SoftOver,
                (false, _) => Outcome::Allowed,
            };
            counters.count(thread, &self.metrics, rule, descriptor.entries, outcome);
            if outcome == Outcome::Refused {
                refusals::count(counters, rule, answer.limits(index));
            }
        }
    }
}

/// Counts the hits on the limits of rules. `counters` has the counters of each rule.
///
/// Descriptors with the same counter share a hit, which must be counted once. A plan numbers its hits in the order of
/// the descriptors. So a hit below `counted` is skipped: an earlier descriptor has counted it, or an earlier descriptor
/// brought the same limit along. Limits that come with a request are not counted.
///
/// Not inlined, because the future of a decision would then keep the values of this function in memory.
#[inline(never)]
fn count_hits(thread: ThreadNumber, counters: &[RuleCounters], answer: AnswerView<'_, '_>) {
    let is_taken = is_taken(answer);
    let (hits, decisions) = (&answer.plan.hits[..], answer.decisions);
    let mut counted = 0;
    for (at, planned) in answer.plan.descriptors.iter().enumerate() {
        let of_rule = planned.rule.and_then(|rule| counters.get(rule.index()));
        let Some(limits) = of_rule.map(RuleCounters::limits) else { continue };
        // A plan leaves out limits that other rules replace. If none is left out, the hits are in the order of the
        // rule's limits.
        if planned.hits.len() != limits.len() {
            return count_rest(thread, counters, answer, (at, counted));
        }
        for ((index, _), limit) in planned.hits.iter().zip(limits) {
            if *index >= counted
                && let (Some(hit), Some(decision)) = (hits.get(*index), decisions.get(*index))
            {
                counted = index + 1;
                limit.count(thread, hit, decision, is_taken);
            }
        }
    }
}

/// Does what [`count_hits`] does, from the descriptor `first` on, for a plan that has left out limits. This is slower,
/// because each limit has to be found in its rule.
#[cold]
fn count_rest(
    thread: ThreadNumber,
    counters: &[RuleCounters],
    answer: AnswerView<'_, '_>,
    (first, mut counted): (usize, usize),
) {
    let is_taken = is_taken(answer);
    for (at, planned) in answer.plan.descriptors.iter().enumerate().skip(first) {
        let Some(rule) = planned.rule else { continue };
        for (decided, (index, _)) in answer.limits(at).zip(&planned.hits) {
            let limit = counters.get(rule.index()).and_then(|counters| counters.limit(rule, decided.limit));
            if let (Some(limit), true) = (limit, *index >= counted) {
                counted = index + 1;
                limit.count(thread, decided.hit, decided.decision, is_taken);
            }
        }
    }
}

/// Returns whether the limits that allowed the request have taken its units. If another limit refuses the request,
/// nothing is taken. The exception is `compat: envoy`, which charges each descriptor even if another one refuses.
#[inline]
fn is_taken(answer: AnswerView<'_, '_>) -> bool {
    answer.verdict.allowed || answer.plan.separately
}
