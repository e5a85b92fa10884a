//! The bound `f(s)` of each algorithm: the maximum number of units that the algorithm admits in an interval of length
//! `s`.
//!
//! Some tests send random requests, or the requests of an attacker, and check that at most `f(s)` units are admitted.
//! Other tests send the worst case, and check that exactly `f(s)` units (rounded down) are admitted. So a smaller bound
//! would be wrong.
//!
//! `Algorithm` explains the other letters, such as `T` (the time between two units) and `Q` (the length of a queue).

use std::num::NonZeroU32;
use std::time::Duration;

use crate::support::{
    Cost, DAY_NS, Gap, ask, ask_copy, builder, cases, costs, gaps, starts_ns, take, walk, windows_ns, within_bound,
};
use proptest::prelude::*;
use spillgate_core::{Algorithm, Anchor, Decision, Op, Quota, QuotaBuilder, Receipt, State};

/// An admitted take: its time, its units, and the time at which its caller may go on. In a queue, the caller first
/// waits for its turn.
#[derive(Clone, Copy, Debug)]
struct Event {
    at: u64,
    admitted: u64,
    leaves_at: u64,
}

/// Quotas of one algorithm, from 1 unit a year to 10 million units a second. Some of them are shares: the part of a
/// quota that one of several servers admits by itself.
fn quotas(algorithm: Algorithm) -> impl Strategy<Value = Quota> {
    let limits = prop_oneof![1..=5u64, 1..=1000u64, Just(10_000_000)];
    let nodes =
        prop_oneof![2 => Just(NonZeroU32::MIN), 1 => (1..=20u32).prop_filter_map("zero nodes", NonZeroU32::new)];
    let numbers = (limits, windows_ns(), prop_oneof![Just(0), 1..30u64], nodes);
    numbers.prop_filter_map("no such quota", move |(limit, window, depth, nodes)| {
        let quota = builder(algorithm, limit, window, depth).build().ok()?;
        // A trace lasts for dozens of windows. With windows of more than a year, a trace could go beyond the latest
        // time that `Time` can represent, which is in 2262.
        Some(quota.share(nodes)).filter(|share| share.window_ns() <= 365 * DAY_NS)
    })
}

/// The steps are random, or those of an attacker. An attacker mostly asks for all units that are left, at most 1 ns
/// before or after a time at which units can become free:
///
/// * the end of the last refusal's wait
/// * the next edge of a window or a segment
/// * one window after the last request
/// * one interval after the last request (the time between two units, or the length of a segment)
fn steps() -> impl Strategy<Value = Vec<(Gap, Cost)>> {
    let attack = prop_oneof![
        2 => (0..=1i64).prop_map(Gap::Retry),
        2 => (-1..=0i64).prop_map(Gap::Edge),
        1 => (-1..=0i64).prop_map(Gap::Window),
        1 => (-1..=0i64).prop_map(Gap::Interval),
    ];
    let greed = prop_oneof![4 => Just(Cost::Remaining), 1 => Just(Cost::One), 1 => Just(Cost::RemainingAndOne)];
    prop_oneof![prop::collection::vec((gaps(), costs()), 1..60), prop::collection::vec((attack, greed), 1..80)]
}

fn admitted(quota: &Quota, start: u64, steps: &[(Gap, Cost)]) -> Vec<Event> {
    let (mut state, mut now, mut wait_ns) = (State::default(), start, 0);
    let mut events = Vec::new();
    for (gap, cost) in steps {
        now = gap.after(quota, now, wait_ns);
        let cost = cost.units(quota, ask_copy(&state, quota, Op::Peek, now).remaining);
        let decision = ask(&mut state, quota, take(cost), now);
        if decision.allowed {
            events.push(Event { at: now, admitted: cost, leaves_at: now + decision.delay_ns });
        } else {
            wait_ns = decision.retry_after.nanos().unwrap_or(0);
        }
    }
    events
}

/// Checks every pair of events. From the first event to the second event, including both, at most `f(s)` units may be
/// admitted, where `s` is the time between them.
fn assert_bound(quota: &Quota, events: &[Event]) -> Result<(), TestCaseError> {
    for (i, first) in events.iter().enumerate() {
        let mut sum = 0u128;
        for last in &events[i..] {
            sum += u128::from(last.admitted);
            let s = last.at - first.at;
            prop_assert!(within_bound(quota, s, sum), "{sum} units within {s} ns, from {first:?} to {last:?}");
        }
    }
    Ok(())
}

macro_rules! admits_at_most_its_bound {
    ($($name:ident: $algorithm:expr;)*) => {
        proptest! {
            #![proptest_config(cases(250))]
            $(
                #[test]
                fn $name(quota in $algorithm.prop_flat_map(quotas), start in starts_ns(), steps in steps()) {
                    assert_bound(&quota, &admitted(&quota, start, &steps))?;
                }
            )*
        }
    };
}

admits_at_most_its_bound! {
    token_bucket_admits_b_and_s_over_t: Just(Algorithm::TokenBucket);
    fixed_window_admits_l_a_window_and_twice_across_an_edge: Just(Algorithm::FixedWindow(Anchor::Epoch));
    first_hit_window_admits_l_a_window_and_nearly_twice_across_an_edge: Just(Algorithm::FixedWindow(Anchor::FirstHit));
    log_admits_l_in_every_window: Just(Algorithm::SlidingWindowLog);
    counter_admits_l_and_l_s_over_w: Just(Algorithm::SlidingWindowCounter { segments: 1 });
    segments_admit_l_and_a_segments_share: prop_oneof![2..=6u8, Just(60), Just(128)]
        .prop_map(|segments| Algorithm::SlidingWindowCounter { segments });
    queue_admits_q_and_one_and_s_over_t: Just(Algorithm::LeakyBucket);
}

proptest! {
    #![proptest_config(cases(250))]

    /// Callers leave the queue in the order in which they entered. In any interval of length `s`, the number of units
    /// that leave is at most `s/T` plus the largest cost of a take. `T` is the time between two units.
    #[test]
    fn queue_lets_out_one_every_t_in_order(
        quota in quotas(Algorithm::LeakyBucket), start in starts_ns(), steps in steps(),
    ) {
        let events = admitted(&quota, start, &steps);
        let largest = events.iter().map(|e| e.admitted).max().unwrap_or(0);
        for (i, first) in events.iter().enumerate() {
            let mut sum = 0u128;
            for last in &events[i..] {
                prop_assert!(last.leaves_at >= first.leaves_at, "{last:?} must not leave before {first:?}");
                sum += u128::from(last.admitted);
                let over = sum.saturating_sub(largest.into()) * u128::from(quota.interval_ns());
                prop_assert!(over <= u128::from(last.leaves_at - first.leaves_at), "{sum} units leave from {first:?} to {last:?}");
            }
        }
    }

    /// No delay is longer than `Q * T`, and no delay is longer than the caller accepts. `Q` is the number of units that
    /// can wait in the queue, and `T` is the time between two units.
    #[test]
    fn queue_delays_by_what_is_ahead_and_at_most_what_callers_accept(
        quota in quotas(Algorithm::LeakyBucket), start in starts_ns(), steps in steps(),
        max_wait_ns in prop_oneof![Just(u64::MAX), Just(0), 0..2_000_000_000u64],
    ) {
        for event in admitted(&quota, start, &steps) {
            prop_assert!(event.leaves_at - event.at <= (quota.capacity() - 1) * quota.interval_ns());
        }
        let steps: Vec<(Gap, Cost, u64)> = steps.into_iter().map(|(gap, cost)| (gap, cost, max_wait_ns)).collect();
        walk(&quota, start, &steps, |state, quota, now| {
            let decision = ask_copy(state, quota, Op::Take { cost: 1, max_wait_ns }, now);
            prop_assert!(decision.delay_ns <= max_wait_ns);
            Ok(())
        })?;
    }

    /// The test keeps its own list of the leases that are neither released nor expired. Together, these leases must
    /// hold at most as many permits as the limit.
    #[test]
    fn at_most_n_permits_are_held(
        permits in 1..=20u64,
        lease_ns in 1..=50u64,
        steps in prop::collection::vec((0..20u64, 0..6u8, 1..=4u64, 0..10usize), 1..80),
    ) {
        let quota = Quota::concurrency(permits).lease(Duration::from_nanos(lease_ns)).build().expect("permits");
        let (mut state, mut now) = (State::default(), 1_000);
        let mut held: Vec<(Receipt, u64, u64)> = Vec::new();
        for (gap_ns, kind, cost, which) in steps {
            now += gap_ns;
            held.retain(|(_, _, until)| *until > now);
            let holder = held.get(which).copied();
            match (kind, holder) {
                (0, Some((receipt, cost, _))) => {
                    ask(&mut state, &quota, Op::Refund { cost, receipt: Some(receipt) }, now);
                    held.remove(which);
                }
                (1, Some((receipt, ..))) => {
                    prop_assert!(ask(&mut state, &quota, Op::Renew { receipt }, now).allowed, "the lease has not expired");
                    held[which].2 = now + lease_ns;
                }
                _ => {
                    let decision = ask(&mut state, &quota, take(cost), now);
                    held.extend(decision.receipt.map(|receipt| (receipt, cost, now + lease_ns)));
                }
            }
            let sum: u64 = held.iter().map(|(_, cost, _)| cost).sum();
            prop_assert!(sum <= permits);
            prop_assert_eq!(ask_copy(&state, &quota, Op::Peek, now).remaining, permits - sum, "no permit is lost");
        }
    }
}

const WINDOW_NS: u64 = 120;
const LIMIT: u64 = 12;
/// A multiple of the window. At this time a new window and a new segment start, if windows are aligned to the epoch.
const EDGE_NS: u64 = 1_000 * WINDOW_NS;

fn quota(algorithm: Algorithm) -> Quota {
    QuotaBuilder::new(algorithm, LIMIT, Duration::from_nanos(WINDOW_NS)).build().expect("a quota")
}

/// Takes all that is left at each instant of `times`. Returns the time from the first take to the last take, and the
/// number of units.
fn take_all(quota: &Quota, state: &mut State, times: impl IntoIterator<Item = u64>) -> (u64, u128) {
    let (mut first, mut last, mut sum) = (None, 0, 0);
    for at in times {
        let Decision { remaining, .. } = ask_copy(state, quota, Op::Peek, at);
        if remaining > 0 {
            assert!(ask(state, quota, take(remaining), at).allowed);
            sum += u128::from(remaining);
            (first, last) = (first.or(Some(at)), at);
        }
    }
    (last - first.expect("at least one take was admitted"), sum)
}

/// Checks that exactly `f(s)` units (rounded down) were admitted: `sum` is within the bound, and `sum + 1` is not.
fn assert_reached(quota: &Quota, (s, sum): (u64, u128)) {
    assert!(within_bound(quota, s, sum) && !within_bound(quota, s, sum + 1), "{sum} units within {s} ns");
}

#[test]
fn a_worst_case_reaches_the_bound_of_token_bucket() {
    let quota = quota(Algorithm::TokenBucket);
    let all = take_all(&quota, &mut State::default(), EDGE_NS..=EDGE_NS + 10 * WINDOW_NS);
    assert_eq!(all, (10 * WINDOW_NS, 12 + 120));
    assert_reached(&quota, all);
}

#[test]
fn a_worst_case_reaches_the_bound_of_fixed_window() {
    let quota = quota(Algorithm::FixedWindow(Anchor::Epoch));
    let all = take_all(&quota, &mut State::default(), EDGE_NS - 1..=EDGE_NS + 3 * WINDOW_NS);
    assert_eq!(all, (3 * WINDOW_NS + 1, 5 * 12));
    assert_reached(&quota, all);
}

#[test]
fn a_worst_case_reaches_the_bound_of_first_hit_window() {
    let (quota, mut state) = (quota(Algorithm::FixedWindow(Anchor::FirstHit)), State::default());
    assert!(ask(&mut state, &quota, take(1), EDGE_NS).allowed);
    let all = take_all(&quota, &mut state, EDGE_NS + WINDOW_NS - 1..=EDGE_NS + 4 * WINDOW_NS);
    assert_eq!(all, (3 * WINDOW_NS + 1, 11 + 4 * 12));
    assert_reached(&quota, all);
}

#[test]
fn a_worst_case_reaches_the_bound_of_sliding_window_log() {
    let quota = quota(Algorithm::SlidingWindowLog);
    let all = take_all(&quota, &mut State::default(), EDGE_NS + 7..=EDGE_NS + 7 + 3 * WINDOW_NS);
    assert_eq!(all, (3 * WINDOW_NS, 4 * 12));
    assert_reached(&quota, all);
}

#[test]
fn a_worst_case_reaches_the_bound_of_sliding_window_counter() {
    let quota = quota(Algorithm::SlidingWindowCounter { segments: 1 });
    let all = take_all(&quota, &mut State::default(), EDGE_NS - 1..EDGE_NS + WINDOW_NS);
    assert_eq!(all, (111, 12 + 11));
    assert_reached(&quota, all);
}

#[test]
fn a_worst_case_reaches_the_bound_of_segments() {
    let quota = quota(Algorithm::SlidingWindowCounter { segments: 4 });
    let all = take_all(&quota, &mut State::default(), EDGE_NS - 1..EDGE_NS + WINDOW_NS - 1);
    assert_eq!(all, (WINDOW_NS - 1, 12 + 11));
    assert_reached(&quota, all);
}

#[test]
fn a_worst_case_reaches_the_bound_of_leaky_bucket() {
    let quota = Quota::leaky_bucket(LIMIT, Duration::from_nanos(WINDOW_NS)).queue(3).build().expect("a queue");
    let all = take_all(&quota, &mut State::default(), EDGE_NS..=EDGE_NS + 2 * WINDOW_NS);
    assert_eq!(all, (2 * WINDOW_NS, 4 + 24));
    assert_reached(&quota, all);
    // In an empty queue, a take of the largest possible cost (4 units) has no delay. Each further take of 4 units is
    // made when the queue is empty again, so it leaves `4 * T` after the take before it.
    let mut state = State::default();
    let leaves_at = [4, 4, 4].map(|cost| {
        let at = EDGE_NS + state.expires_at(&quota).saturating_sub(EDGE_NS);
        at + ask(&mut state, &quota, take(cost), at).delay_ns
    });
    assert_eq!(leaves_at, [0, 4, 8].map(|intervals| EDGE_NS + intervals * quota.interval_ns()));
}

#[test]
fn a_worst_case_reaches_the_bound_of_concurrency() {
    let quota = Quota::concurrency(LIMIT).lease(Duration::from_nanos(WINDOW_NS)).build().expect("permits");
    let mut state = State::default();
    let taken: Vec<u64> =
        (EDGE_NS..EDGE_NS + 3 * WINDOW_NS).filter(|at| ask(&mut state, &quota, take(LIMIT), *at).allowed).collect();
    assert_eq!(
        taken,
        [0, 1, 2].map(|lives| EDGE_NS + lives * WINDOW_NS),
        "all N permits are taken again as soon as the leases expire"
    );
}
