//! The kernel against models so simple that they are right by inspection, over windows of a few
//! nanoseconds, where every instant can be tried.

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use spillgate_core::{Algorithm, Anchor, Op, Quota, QuotaBuilder, Receipt, State, Wait};
use support::{ask, ask_copy, cases, take};

/// What each algorithm means, told without any of the kernel's shortcuts.
#[derive(Clone, Debug)]
enum Model {
    /// Tokens in nanoseconds of refill, and when they were counted.
    Tokens { level_ns: u64, at: u64 },
    /// Work that waits to be served, in nanoseconds, and when it was counted.
    Queue { backlog_ns: u64, at: u64 },
    /// Units by window since the epoch.
    EpochWindows(BTreeMap<u64, u64>),
    /// Start of the window, and units in it.
    FirstHit(Option<(u64, u64)>),
    /// When each unit was admitted.
    Log(Vec<u64>),
    /// When each unit was admitted.
    Segments(Vec<u64>),
    /// When each place comes back, and the id of its lease.
    Leases(Vec<(u64, u64)>),
}

impl Model {
    fn new(quota: &Quota) -> Model {
        match quota.algorithm() {
            Algorithm::TokenBucket => Model::Tokens { level_ns: quota.capacity() * quota.interval_ns(), at: 0 },
            Algorithm::LeakyBucket => Model::Queue { backlog_ns: 0, at: 0 },
            Algorithm::FixedWindow(Anchor::Epoch) => Model::EpochWindows(BTreeMap::new()),
            Algorithm::FixedWindow(Anchor::FirstHit) => Model::FirstHit(None),
            Algorithm::SlidingWindowLog => Model::Log(Vec::new()),
            Algorithm::SlidingWindowCounter { .. } => Model::Segments(Vec::new()),
            Algorithm::Concurrency => Model::Leases(Vec::new()),
        }
    }

    fn fits(&self, quota: &Quota, cost: u64, now: u64) -> bool {
        let (limit, window_ns, interval_ns) = (quota.capacity(), quota.window_ns(), quota.interval_ns());
        match self {
            Model::Tokens { level_ns, at } => cost * interval_ns <= (level_ns + (now - at)).min(limit * interval_ns),
            Model::Queue { backlog_ns, at } => {
                backlog_ns.saturating_sub(now - at) + cost * interval_ns <= limit * interval_ns
            }
            Model::EpochWindows(counts) => counts.get(&(now / window_ns)).copied().unwrap_or(0) + cost <= limit,
            Model::FirstHit(Some((start, count))) if now < start + window_ns => count + cost <= limit,
            Model::FirstHit(_) => cost <= limit,
            Model::Log(units) => units.iter().filter(|at| now - **at < window_ns).count() as u64 + cost <= limit,
            Model::Segments(units) => {
                // n segments and the share of the oldest that lies in the last W.
                let current = now / interval_ns;
                let age = |at: &u64| current - at / interval_ns;
                let segments = window_ns / interval_ns;
                let rest = units.iter().filter(|at| age(at) < segments).count() as u64;
                let oldest = units.iter().filter(|at| age(at) == segments).count() as u64;
                oldest * (interval_ns - now % interval_ns) + (rest + cost) * interval_ns <= limit * interval_ns
            }
            Model::Leases(places) => places.iter().filter(|(until, _)| *until > now).count() as u64 + cost <= limit,
        }
    }

    fn take(&mut self, quota: &Quota, cost: u64, now: u64, receipt: Option<Receipt>) {
        let cost_ns = cost * quota.interval_ns();
        match self {
            Model::Tokens { level_ns, at } => {
                let full = quota.capacity() * quota.interval_ns();
                *self = Model::Tokens { level_ns: (*level_ns + (now - *at)).min(full) - cost_ns, at: now };
            }
            Model::Queue { backlog_ns, at } => {
                *self = Model::Queue { backlog_ns: backlog_ns.saturating_sub(now - *at) + cost_ns, at: now };
            }
            Model::EpochWindows(counts) => *counts.entry(now / quota.window_ns()).or_default() += cost,
            Model::FirstHit(Some((start, count))) if now < *start + quota.window_ns() => *count += cost,
            Model::FirstHit(window) => *window = Some((now, cost)),
            Model::Log(units) | Model::Segments(units) => units.extend((0..cost).map(|_| now)),
            Model::Leases(places) => {
                let id = receipt.expect("a lease has a receipt").mark;
                places.extend((0..cost).map(|_| (now + quota.lease_ns(), id)));
            }
        }
    }

    fn remaining(&self, quota: &Quota, now: u64) -> u64 {
        (1..=quota.capacity()).take_while(|cost| self.fits(quota, *cost, now)).last().unwrap_or(0)
    }

    /// The first instant at which `cost` fits, found by trying them all.
    fn wait(&self, quota: &Quota, cost: u64, now: u64) -> Wait {
        if cost > quota.capacity() {
            return Wait::Never;
        }
        if quota.algorithm() == Algorithm::Concurrency {
            return Wait::Unknown;
        }
        Wait::After((0..).find(|ns| self.fits(quota, cost, now + ns)).expect("a wait"))
    }
}

fn tiny_quotas() -> impl Strategy<Value = Quota> {
    let algorithm = prop_oneof![
        Just(Algorithm::TokenBucket),
        Just(Algorithm::LeakyBucket),
        Just(Algorithm::FixedWindow(Anchor::Epoch)),
        Just(Algorithm::FixedWindow(Anchor::FirstHit)),
        Just(Algorithm::SlidingWindowLog),
        (1..=5u8).prop_map(|segments| Algorithm::SlidingWindowCounter { segments }),
        Just(Algorithm::Concurrency),
    ];
    (algorithm, 1..=7u64, 1..=40u64, 1..=6u64).prop_filter_map("no such quota", |(algorithm, limit, window, depth)| {
        let builder = QuotaBuilder::new(algorithm, limit, Duration::from_nanos(window));
        match algorithm {
            Algorithm::TokenBucket => builder.burst(depth),
            Algorithm::LeakyBucket => builder.queue(depth - 1),
            Algorithm::Concurrency => builder.lease(Duration::from_nanos(window)),
            _ => builder,
        }
        .build()
        .ok()
    })
}

proptest! {
    #![proptest_config(cases(3000))]

    #[test]
    fn the_kernel_decides_as_the_model(
        quota in tiny_quotas(),
        start in prop_oneof![Just(0), 0..1000u64],
        steps in prop::collection::vec((prop_oneof![2 => 0..4u64, 1 => 0..50u64], 1..=8u64), 1..60),
    ) {
        let (mut state, mut model, mut now) = (State::default(), Model::new(&quota), start);
        for (gap, cost) in steps {
            now += gap;
            let look = ask_copy(&state, &quota, Op::Look, now);
            prop_assert_eq!(look.remaining, model.remaining(&quota, now));
            let delay_ns = match &model {
                Model::Queue { backlog_ns, at } => backlog_ns.saturating_sub(now - at),
                _ => 0,
            };
            let decision = ask(&mut state, &quota, take(cost), now);
            prop_assert_eq!(decision.allowed, model.fits(&quota, cost, now));
            if decision.allowed {
                prop_assert_eq!(decision.delay_ns, delay_ns);
                model.take(&quota, cost, now, decision.receipt);
            } else {
                prop_assert_eq!(decision.retry_after, model.wait(&quota, cost, now));
            }
            prop_assert_eq!(decision.remaining, model.remaining(&quota, now));
        }
    }

    /// Given back with its receipt, a take leaves the state as if it had never been (`token_bucket`: as long as the
    /// bucket was not full in between; a queue: as long as it is the last).
    #[test]
    fn a_take_that_is_given_back_never_was(
        // A first_hit window that the take itself has opened stays open for those that came after it.
        quota in tiny_quotas().prop_filter("anchor", |q| q.algorithm() != Algorithm::FixedWindow(Anchor::FirstHit)),
        before in prop::collection::vec((0..6u64, 1..=3u64), 0..8),
        after in prop::collection::vec((0..6u64, 1..=3u64), 0..6),
        cost in 1..=3u64,
    ) {
        let (mut state, mut now) = (State::default(), 1000);
        for (gap, cost) in before {
            now += gap;
            ask(&mut state, &quota, take(cost), now);
        }
        let mut without = state.clone();
        let Some(receipt) = ask(&mut state, &quota, take(cost), now).receipt else { return Ok(()) };
        let mut busy_until = without.expires_at(&quota);
        let bucket = matches!(quota.algorithm(), Algorithm::TokenBucket | Algorithm::LeakyBucket);
        for (gap, cost) in after {
            now += gap;
            if quota.algorithm() == Algorithm::LeakyBucket || (bucket && busy_until < now) {
                break;
            }
            if ask_copy(&state, &quota, take(cost), now).allowed {
                let (with, alone) = (ask(&mut state, &quota, take(cost), now), ask(&mut without, &quota, take(cost), now));
                prop_assert!(with.allowed && alone.allowed);
                busy_until = without.expires_at(&quota);
            }
        }
        if bucket && busy_until < now {
            return Ok(());
        }
        ask(&mut state, &quota, Op::Refund { cost, receipt: Some(receipt) }, now);
        for later in 0..100 {
            let (with, alone) = (
                ask_copy(&state, &quota, Op::Look, now + later),
                ask_copy(&without, &quota, Op::Look, now + later),
            );
            prop_assert_eq!(with.remaining, alone.remaining, "{} ns later", later);
        }
    }
}
