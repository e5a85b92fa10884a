//! What the property tests share: random quotas, the events of an attacker, and the bounds of the algorithms.
//!
//! Many events are close to an edge: a time at which a window, a segment or a wait ends, or a cost that just fits.
//! Random numbers rarely come close to such an edge. `W` is the window of a quota, `T` is the time between two units of
//! a bucket, and `w` is the length of a segment.

pub(crate) mod model;

use std::time::Duration;

use proptest::prelude::*;
use spillgate_core::{
    Algorithm, Anchor, Binding, Decision, Denied, Hit, Op, Quota, QuotaBuilder, State, Time, decide, decide_late,
};

pub(crate) const DAY_NS: u64 = 86_400_000_000_000;

/// Decides one request with one hit.
pub(crate) fn ask(state: &mut State, quota: &Quota, op: Op, now: u64) -> Decision {
    let hits = [Hit::new(1, quota, op, Binding::Enforce)];
    let mut decisions = [Decision::default()];
    let verdict = decide(std::slice::from_mut(state), &[0], &hits, Time::from_nanos(now), &mut decisions);
    assert_eq!(verdict.allowed, decisions[0].allowed);
    assert_eq!(verdict.retry_after, decisions[0].retry_after);
    decisions[0]
}

/// Decides one request with one hit on a copy of the state, so the state does not change.
pub(crate) fn ask_copy(state: &State, quota: &Quota, op: Op, now: u64) -> Decision {
    ask(&mut state.clone(), quota, op, now)
}

/// Decides one request with one hit, in a store that has already decided another request with the time `newest`.
pub(crate) fn ask_late(state: &mut State, quota: &Quota, op: Op, now: u64, newest: u64) -> Decision {
    let hits = [Hit::new(1, quota, op, Binding::Enforce)];
    let mut decisions = [Decision::default()];
    let (now, newest) = (Time::from_nanos(now), Time::from_nanos(newest));
    decide_late(std::slice::from_mut(state), &[0], &hits, now, newest, &mut decisions);
    decisions[0]
}

/// Returns a take by a caller that accepts any wait in a queue.
pub(crate) fn take(cost: u64) -> Op {
    Op::Take { cost, max_wait_ns: u64::MAX }
}

/// Returns whether `sum` is at most `f(s)`, the bound of the algorithm. `f(s)` is the maximum number of units that are
/// admitted in an interval of `s` ns that includes both its ends.
pub(crate) fn within_bound(quota: &Quota, s: u64, sum: u128) -> bool {
    let (l, w, t) = (quota.hard_capacity().into(), u128::from(quota.window_ns()), u128::from(quota.interval_ns()));
    let s = u128::from(s);
    match quota.algorithm() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket => sum.saturating_sub(l) * t <= s,
        Algorithm::FixedWindow(Anchor::Epoch) => sum <= l * (s.div_ceil(w) + 1),
        Algorithm::FixedWindow(Anchor::FirstHit) => sum <= l * (s / w + 1) + if s % w > 0 { l - 1 } else { 0 },
        Algorithm::SlidingWindowLog => sum <= l * (s / w + 1),
        Algorithm::SlidingWindowCounter { .. } => sum * t <= l * (t * (1 + s / w) + (s % w + t).saturating_sub(w)),
        Algorithm::Concurrency => sum <= l,
    }
}

/// Returns a token bucket that refills by `limit` units in `window` seconds, with the burst `burst`.
pub(crate) fn bucket(limit: u64, window: u64, burst: u64) -> Quota {
    Quota::token_bucket(limit, Duration::from_secs(window)).burst(burst).build().expect("a quota")
}

pub(crate) fn algorithms() -> impl Strategy<Value = Algorithm> {
    prop_oneof![
        Just(Algorithm::TokenBucket),
        Just(Algorithm::FixedWindow(Anchor::Epoch)),
        Just(Algorithm::FixedWindow(Anchor::FirstHit)),
        Just(Algorithm::SlidingWindowLog),
        Just(Algorithm::SlidingWindowCounter { segments: 1 }),
        prop_oneof![2..=6u8, Just(60), Just(128)].prop_map(|segments| Algorithm::SlidingWindowCounter { segments }),
        Just(Algorithm::LeakyBucket),
    ]
}

/// Windows from a nanosecond to a year. Some are whole seconds, and others are not.
pub(crate) fn windows_ns() -> impl Strategy<Value = u64> {
    prop_oneof![
        1..100u64,
        Just(300_000_000),
        Just(1_000_000_000),
        Just(1_000_000_007),
        Just(DAY_NS),
        Just(365 * DAY_NS),
        1..1_000_000_000_000u64,
    ]
}

/// Returns a quota builder for `algorithm`. The window is made divisible by the number of segments. `depth` is the
/// burst or the length of the queue.
pub(crate) fn builder(algorithm: Algorithm, limit: u64, window_ns: u64, depth: u64) -> QuotaBuilder {
    let segments = if let Algorithm::SlidingWindowCounter { segments } = algorithm { segments.into() } else { 1 };
    let window_ns = (window_ns / segments).max(1) * segments;
    let limit = if algorithm == Algorithm::SlidingWindowLog { limit.min(50_000) } else { limit };
    let builder = QuotaBuilder::new(algorithm, limit, Duration::from_nanos(window_ns));
    match algorithm {
        Algorithm::TokenBucket if depth > 0 => builder.burst(depth),
        Algorithm::LeakyBucket => builder.queue(depth),
        _ => builder,
    }
}

/// Quotas of every algorithm except concurrency, from 1 unit a year to 10 million units a second. They have no soft
/// limit, no charged refusals and no penalty.
pub(crate) fn plain_quotas() -> impl Strategy<Value = Quota> {
    let limits = prop_oneof![1..=5u64, 1..=1000u64, Just(10_000_000)];
    (algorithms(), limits, windows_ns(), prop_oneof![Just(0), 1..30u64])
        .prop_filter_map("no such quota", |(a, limit, w, depth)| builder(a, limit, w, depth).build().ok())
}

/// Quotas of every algorithm except concurrency. Some have soft limits, charged refusals or penalties.
pub(crate) fn quotas_with_extras() -> impl Strategy<Value = Quota> {
    let extras = (prop_oneof![Just(0), Just(200_000), Just(1_500_000u32)], any::<bool>(), 0..3u64);
    (algorithms(), 1..=50u64, windows_ns(), 0..30u64, extras).prop_filter_map(
        "no such quota",
        |(algorithm, limit, window_ns, depth, (soft_ppm, charged, penalty))| {
            let denied = if charged { Denied::Charged } else { Denied::Free };
            let penalty = Duration::from_nanos(penalty * window_ns / 2);
            let builder = builder(algorithm, limit, window_ns, depth).soft_ppm(soft_ppm);
            builder.denied(denied).penalty(penalty).build().ok()
        },
    )
}

/// One to three quotas, for tests that use all of them on one state. Their limit, depth, lease and soft share may
/// differ.
pub(crate) fn tiny_quotas(algorithm: Algorithm) -> impl Strategy<Value = Vec<Quota>> {
    let sizes = (1..=7u64, 1..=6u64, prop_oneof![2 => Just(0u32), 1 => Just(500_000), 1 => Just(1_000_000)]);
    let penalty = prop_oneof![2 => Just(0), 1 => 1..=30u64];
    let all = (prop::collection::vec(sizes, 1..=3), 1..=40u64, penalty, any::<bool>());
    all.prop_filter_map("no such quota", move |(sizes, window, penalty, charged)| {
        let segments = if let Algorithm::SlidingWindowCounter { segments } = algorithm { segments.into() } else { 1 };
        let window = Duration::from_nanos(window.div_ceil(segments) * segments);
        let quota = |(limit, depth, soft_ppm)| {
            let builder = QuotaBuilder::new(algorithm, limit, window).soft_ppm(soft_ppm);
            let builder = match algorithm {
                Algorithm::TokenBucket => builder.burst(depth),
                Algorithm::LeakyBucket => builder.queue(depth - 1),
                Algorithm::Concurrency => builder.lease(Duration::from_nanos(10 * depth)),
                _ => builder,
            };
            let charged = charged && algorithm != Algorithm::Concurrency;
            let denied = if charged { Denied::Charged } else { Denied::Free };
            builder.penalty(Duration::from_nanos(penalty)).denied(denied).build().ok()
        };
        sizes.into_iter().map(quota).collect()
    })
}

/// The time since the previous event. Most of these times end close to an edge of a window or segment, or close to the
/// end of a wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Gap {
    Ns(u64),
    /// An interval, plus this many nanoseconds. The interval is `T` of a bucket, `w` of a counter, or `W` of other
    /// quotas.
    Interval(i64),
    /// `W`, plus this many nanoseconds.
    Window(i64),
    /// The time until the next multiple of the interval (`T`, `w` or `W`) since the epoch, plus this many nanoseconds.
    Edge(i64),
    /// This many thousandths of `W`.
    Share(u64),
    /// The wait of the last refusal, plus this many nanoseconds.
    Retry(i64),
}

impl Gap {
    pub(crate) fn after(self, quota: &Quota, now: u64, last_wait_ns: u64) -> u64 {
        let edge_ns = quota.interval_ns().max(1);
        let (span, extra) = match self {
            Gap::Ns(ns) => (ns, 0),
            Gap::Interval(extra) => (quota.interval_ns(), extra),
            Gap::Window(extra) => (quota.window_ns(), extra),
            Gap::Edge(extra) => (edge_ns - now % edge_ns, extra),
            Gap::Share(share) => ((u128::from(quota.window_ns()) * u128::from(share) / 1000) as u64, 0),
            Gap::Retry(extra) => (last_wait_ns, extra),
        };
        now.saturating_add(span.saturating_add_signed(extra))
    }
}

pub(crate) fn gaps() -> impl Strategy<Value = Gap> {
    prop_oneof![
        3 => Just(Gap::Ns(0)),
        1 => (1..5u64).prop_map(Gap::Ns),
        2 => (-1..=1i64).prop_map(Gap::Interval),
        1 => (-1..=1i64).prop_map(Gap::Window),
        2 => (-1..=1i64).prop_map(Gap::Edge),
        2 => (1..1000u64).prop_map(Gap::Share),
        1 => (1000..5000u64).prop_map(Gap::Share),
        3 => (-1..=1i64).prop_map(Gap::Retry),
    ]
}

/// How the cost of a take is chosen. It often depends on what is left.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cost {
    One,
    Remaining,
    RemainingAndOne,
    /// This many thousandths of the capacity, at least 1.
    Share(u64),
}

impl Cost {
    pub(crate) fn units(self, quota: &Quota, remaining: u64) -> u64 {
        match self {
            Cost::One => 1,
            Cost::Remaining => remaining.max(1),
            Cost::RemainingAndOne => remaining + 1,
            Cost::Share(share) => ((u128::from(quota.capacity()) * u128::from(share) / 1000) as u64).max(1),
        }
    }
}

pub(crate) fn costs() -> impl Strategy<Value = Cost> {
    prop_oneof![
        2 => Just(Cost::One),
        3 => Just(Cost::Remaining),
        1 => Just(Cost::RemainingAndOne),
        2 => (1..=1000u64).prop_map(Cost::Share),
    ]
}

/// Makes a take at each step. Before each take, this function calls `check` with the state.
pub(crate) fn walk(
    quota: &Quota,
    start: u64,
    steps: &[(Gap, Cost, u64)],
    mut check: impl FnMut(&State, &Quota, u64) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let (mut state, mut now, mut wait_ns) = (State::default(), start, 0);
    for (gap, cost, max_wait_ns) in steps {
        now = gap.after(quota, now, wait_ns);
        check(&state, quota, now)?;
        let cost = cost.units(quota, ask_copy(&state, quota, Op::Peek, now).remaining);
        let decision = ask(&mut state, quota, Op::Take { cost, max_wait_ns: *max_wait_ns }, now);
        wait_ns = decision.retry_after.nanos().unwrap_or(wait_ns);
    }
    Ok(())
}

/// The time of the first event: the epoch, a time in 2026, or close to the latest time.
pub(crate) fn starts_ns() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(1_770_000_000_000_000_000),
        0..1_000_000_000_000u64,
        Just((1 << 63) - 1 - 200 * 365 * DAY_NS)
    ]
}

pub(crate) fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, max_local_rejects: 1_000_000, ..ProptestConfig::default() }
}
