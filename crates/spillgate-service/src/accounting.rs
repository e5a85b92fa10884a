//! Counts decisions, and logs when the memory store is full.
//!
//! The decisions of all protocols are counted here, so that no protocol can forget a counter. Only the refusals of
//! blocked requests are counted elsewhere, in `blocked.rs`.

use std::sync::atomic::{AtomicU64, Ordering};

use spillgate::rules::{Action, Request};
use spillgate::{Clock, Time};

use super::answer::AnswerView;
use super::{Loaded, Service, refusals};
use crate::metrics::{Outcome, Protocol, RuleCounters, ThreadNumber};

/// The shortest time between two warnings that the memory store is full. Without it, every request that finds the
/// store full could add a line to the log.
const FULL_LOG_EVERY_NS: u64 = 60_000_000_000;

/// What [`Service::watch_full`] has to remember, so that the log warns at most once in [`FULL_LOG_EVERY_NS`].
#[derive(Debug, Default)]
pub(super) struct FullLog {
    /// The number of requests that had found the store full at the last check.
    requests: AtomicU64,
    /// The time of the last warning. 0 before the first one.
    logged_ns: AtomicU64,
}

impl<C: Clock> Service<C> {
    /// Copies to the metrics the counts that the stores keep. A page of metrics shows old counts unless this
    /// function is called before the page is written.
    pub fn update_metrics(&self) {
        self.update_operator_metrics();
        let store = self.limiter.store().memory();
        self.metrics.store_full.raise_to(store.full_requests());
        self.metrics.store_keys_expired.raise_to(store.expired_keys());
        self.metrics.store_keys.set(i64::try_from(store.len()).unwrap_or(i64::MAX));
        if let Some(health) = self.limiter.store().health() {
            self.metrics.store.update(&health);
        }
        if let Some((peers, guaranteed)) = self.regions() {
            self.metrics.regions.update(peers, guaranteed);
        }
    }

    /// Warns that the memory store is full, at most once a minute.
    #[inline]
    pub(super) fn watch_full(&self, now: Time) {
        let requests = self.limiter.store().memory().full_requests();
        if requests != self.full.requests.load(Ordering::Relaxed) {
            self.warn_of_full(now, requests);
        }
    }

    #[cold]
    fn warn_of_full(&self, now: Time, requests: u64) {
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

    /// Counts a request and each of its descriptors. A descriptor that brings its own limit is counted as an override,
    /// and not under any rule.
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

/// Counts the hits on the limits of rules. Limits that a request brings are not counted.
///
/// Descriptors with the same counter share a hit, which must be counted only once. A plan numbers its hits in the order
/// of the descriptors. So a hit whose number is below `counted` is skipped, because an earlier descriptor shares it.
///
/// This function is not inlined. Otherwise the future of each decision would also contain the variables of this
/// function, and would be larger.
#[inline(never)]
fn count_hits(thread: ThreadNumber, counters: &[RuleCounters], answer: AnswerView<'_, '_>) {
    let is_taken = is_taken(answer);
    let (hits, decisions) = (&answer.plan.hits[..], answer.decisions);
    let mut counted = 0;
    for (at, planned) in answer.plan.descriptors.iter().enumerate() {
        let of_rule = planned.rule.and_then(|rule| counters.get(rule.index()));
        let Some(limits) = of_rule.map(RuleCounters::limits) else { continue };
        // A plan leaves out the limits that another rule replaces. If the plan leaves out no limit of this rule, its
        // hits are in the order of the rule's limits.
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

/// Continues [`count_hits`] at the descriptor with the index `first`, whose rule has limits that the plan leaves out.
/// This function is slower, because it has to search each limit in its rule.
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

/// Returns whether each hit that its limit allows was also charged. If one limit refuses the request, the
/// other limits take nothing. The exception is `compat: envoy`: it charges a descriptor even if another one refuses.
#[inline]
fn is_taken(answer: AnswerView<'_, '_>) -> bool {
    answer.verdict.allowed || answer.plan.separately
}
