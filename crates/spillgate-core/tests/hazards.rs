//! Mistakes that rate limiters are known to make. The name of each test says the correct behaviour.
//!
//! The first tests are about arithmetic. The later tests repeat mistakes that were seen in other limiters.

use std::time::Duration;

use crate::support::{DAY_NS, ask, ask_copy, take};
use spillgate_core::{
    Algorithm, Anchor, Binding, Decision, Denied, Hit, MAX_UNITS, Op, Quota, QuotaBuilder, QuotaError, State, Time,
    Verdict, Wait, decide,
};

const SECOND_NS: u64 = 1_000_000_000;

fn every_algorithm() -> Vec<Algorithm> {
    vec![
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
        Algorithm::FixedWindow(Anchor::Epoch),
        Algorithm::FixedWindow(Anchor::FirstHit),
        Algorithm::SlidingWindowLog,
        Algorithm::SlidingWindowCounter { segments: 1 },
        Algorithm::SlidingWindowCounter { segments: 10 },
    ]
}

fn quota(algorithm: Algorithm, limit: u64, window: Duration) -> Quota {
    QuotaBuilder::new(algorithm, limit, window).build().expect("a quota")
}

fn per_second(limit: u64) -> QuotaBuilder {
    Quota::per_second(limit)
}

fn decide_on(states: &mut [State], hits: &[Hit<'_>], now: u64) -> (Verdict, Vec<Decision>) {
    let state_of: Vec<usize> = (0..hits.len()).collect();
    let mut decisions = vec![Decision::default(); hits.len()];
    let verdict = decide(states, &state_of, hits, Time::from_nanos(now), &mut decisions);
    (verdict, decisions)
}

// ---- arithmetic ----

#[test]
fn t_is_rounded_up_and_never_zero() {
    assert_eq!(per_second(3).build().expect("3/s").interval_ns(), 333_333_334);
    let too_fast = per_second(2_000_000_000).build().expect_err("T would be less than a nanosecond");
    assert_eq!(too_fast, QuotaError::Inexact { limit: 2_000_000_000, below: 1_001_000_000, above: None });
    assert_eq!(per_second(1_001_000_000).build().expect("one unit each nanosecond").interval_ns(), 1);
}

#[test]
fn rounding_costs_a_thousandth_at_most() {
    assert!(per_second(1_000_000).build().is_ok());
    // The time between two units would be 334 ns. With this time, 2,994,011 units are admitted in a second.
    let error = per_second(3_000_000).build().expect_err("rounding would cost two thousandths");
    assert_eq!(error, QuotaError::Inexact { limit: 3_000_000, below: 2_997_005, above: Some(3_003_004) });
    assert!(per_second(2_997_005).build().is_ok() && per_second(3_003_004).build().is_ok());
}

#[test]
fn extremes_are_refused_at_build_or_saturate() {
    for algorithm in every_algorithm() {
        let build = |limit, window| QuotaBuilder::new(algorithm, limit, Duration::from_nanos(window)).build();
        assert!(build(u64::MAX, SECOND_NS).is_err() && build(MAX_UNITS + 1, SECOND_NS).is_err());
        assert_eq!(build(1, 0), Err(QuotaError::Span { field: "window" }), "a window of 0 is an error");
        assert_eq!(build(1, u64::MAX), Err(QuotaError::Span { field: "window" }));
        let longest = build(1, (1 << 60) / 30 * 30).expect("1 in 36 years");
        let mut state = State::default();
        assert!(ask(&mut state, &longest, take(1), u64::MAX).allowed);
        assert!(!ask(&mut state, &longest, take(longest.capacity()), u64::MAX).allowed);
        ask(&mut state, &longest, Op::Force { cost: u64::MAX }, u64::MAX);
        ask(&mut state, &longest, Op::Force { cost: u64::MAX }, u64::MAX);
        assert_eq!(ask(&mut state, &longest, take(u64::MAX), u64::MAX).retry_after, Wait::Never);
        ask(&mut state, &longest, Op::Refund { cost: u64::MAX, receipt: None }, u64::MAX);
    }
    let deep = per_second(1).burst(MAX_UNITS).build().expect_err("the bucket would refill in 285 million years");
    assert!(matches!(deep, QuotaError::TooDeep { .. }), "{deep}");
}

#[test]
fn counters_count_exactly_up_to_the_limit_of_doubles() {
    // The limit is 2^53 - 1. A Redis script counts with doubles, and up to this limit doubles count exactly.
    let quota = quota(Algorithm::FixedWindow(Anchor::Epoch), MAX_UNITS, Duration::from_secs(1));
    let mut state = State::default();
    assert_eq!(ask(&mut state, &quota, take(MAX_UNITS - 1), 0).remaining, 1);
    assert_eq!(ask(&mut state, &quota, Op::Force { cost: u64::MAX }, 0).remaining, 0);
    assert_eq!(ask(&mut state, &quota, Op::Refund { cost: 5, receipt: None }, 0).remaining, 5);
}

#[test]
fn a_bucket_that_is_polled_fast_does_not_starve() {
    // A limit of 1 in 10 ms is polled every microsecond. At each poll, a naive limiter adds `floor(elapsed * rate)`
    // units, where `elapsed` is the time since the poll before. At this rate `floor` always gives 0, so such a limiter never refills.
    let quota = per_second(100).burst(1).build().expect("100/s");
    let mut state = State::default();
    let admitted = (0..50_000u64).filter(|us| ask(&mut state, &quota, take(1), us * 1_000).allowed).count();
    assert_eq!(admitted, 5);
}

#[test]
fn waits_are_rounded_up_and_remaining_is_rounded_down() {
    let quota = per_second(3).build().expect("3/s");
    let mut state = State::default();
    ask(&mut state, &quota, take(3), 0);
    let refused = ask(&mut state, &quota, take(1), SECOND_NS / 3 - 1);
    assert_eq!(refused.retry_after, Wait::After(2));
    assert_eq!((refused.retry_after.millis_ceil(), refused.retry_after.secs_ceil()), (Some(1), Some(1)));
    assert_eq!(ask(&mut state, &quota, Op::Peek, 666_666_667).remaining, 1, "1.99 units count as 1");
    // The last nanosecond of a window belongs to this window, and not to the next one.
    let fixed = Quota::fixed_window(1, Duration::from_millis(300)).build().expect("fixed");
    let mut state = State::default();
    assert_eq!(ask(&mut state, &fixed, take(1), 899_999_999).reset_after_ns, 1);
    assert_eq!(ask(&mut state, &fixed, take(1), 900_000_000).reset_after_ns, 300_000_000);
}

#[test]
fn a_state_counts_until_its_last_nanosecond() {
    // A limiter forgets units too early if it rounds the time to live of a state down, or stores it in whole seconds.
    for algorithm in every_algorithm() {
        let quota = quota(algorithm, 1, Duration::from_nanos(700_000_010));
        let (mut state, now) = (State::default(), 1_770_000_000 * SECOND_NS + 3);
        while ask(&mut state, &quota, take(1), now).allowed {}
        let end = state.expires_at(&quota);
        assert_eq!(ask_copy(&state, &quota, Op::Peek, end - 1).reset_after_ns, 1, "{algorithm:?}");
        assert_eq!(ask_copy(&state, &quota, Op::Peek, end).reset_after_ns, 0, "{algorithm:?}");
        assert_eq!(ask_copy(&state, &quota, Op::Peek, end).remaining, quota.capacity());
    }
}

#[test]
fn months_are_thirty_days_and_years_365_from_the_epoch() {
    // Envoy's reference service also uses 30 days for a month and 365 days for a year. Day 20,778 is 2026-11-21. A
    // window of 30 days began 18 days before, and a window of 365 days began 338 days before.
    for (days, left) in [(30, 12), (365, 27)] {
        let quota = quota(Algorithm::FixedWindow(Anchor::Epoch), 1, Duration::from_nanos(days * DAY_NS));
        let decision = ask(&mut State::default(), &quota, take(1), 20_778 * DAY_NS);
        assert_eq!(decision.reset_after_ns, left * DAY_NS, "a window of {days} days");
    }
}

#[test]
fn after_any_idle_time_the_burst_is_b_and_never_b_plus_one() {
    for idle_ns in [0, 1, 99, 100, 101, SECOND_NS, 365 * DAY_NS] {
        for algorithm in every_algorithm() {
            let quota = quota(algorithm, 10, Duration::from_micros(1));
            let (mut state, now) = (State::default(), 1_770_000_000 * SECOND_NS + idle_ns + 2_000);
            ask(&mut state, &quota, take(1), now - idle_ns - 2_000);
            let peek = ask(&mut state, &quota, Op::Peek, now);
            assert_eq!((peek.remaining, peek.limit), (quota.capacity(), quota.capacity()), "{algorithm:?}");
            let admitted = (0..20).filter(|_| ask(&mut state, &quota, take(1), now).allowed).count() as u64;
            assert_eq!(admitted, quota.capacity(), "{algorithm:?} after {idle_ns} ns");
        }
    }
}

#[test]
fn the_first_of_two_limits_is_not_charged_when_the_second_refuses() {
    let [wide, narrow] = [100, 1].map(|limit| per_second(limit).build().expect("a quota"));
    let mut states = [State::default(), State::default()];
    let hits = [Hit::new(1, &wide, take(1), Binding::Enforce), Hit::new(1, &narrow, take(1), Binding::Enforce)];
    assert!(decide_on(&mut states, &hits, 0).0.allowed);
    for _ in 0..50 {
        let (verdict, decisions) = decide_on(&mut states, &hits, 0);
        assert_eq!((verdict.allowed, verdict.binding), (false, Some(1)));
        assert_eq!(decisions[0].remaining, 99);
    }
}

#[test]
fn two_hits_on_one_state_cannot_pass_where_their_sum_does_not() {
    let quota = per_second(10).build().expect("10/s");
    let hit = |cost, binding| Hit::new(1, &quota, take(cost), binding);
    let merged = hit(6, Binding::Enforce).merged(&hit(5, Binding::Enforce)).expect("only their costs differ");
    assert_eq!(merged.op, take(11));
    assert_eq!(
        hit(u64::MAX, Binding::Enforce).merged(&hit(5, Binding::Enforce)).expect("the sum saturates").op,
        take(u64::MAX)
    );
    assert!(hit(6, Binding::Enforce).merged(&hit(5, Binding::Quota)).is_none());

    // These hits are not merged, because their bindings differ. Both take from the first state. Their sum, 11 units, is
    // above the limit of 10, so both are refused. The other states have no hit, and do not change the answer.
    let hits = [hit(6, Binding::Enforce), hit(5, Binding::Quota)];
    for states in 1..4 {
        let mut states = vec![State::default(); states];
        let mut decisions = [Decision::default(); 2];
        let verdict = decide(&mut states, &[0, 0], &hits, Time::EPOCH, &mut decisions);
        assert!(!verdict.allowed && decisions.iter().all(|d| !d.allowed && d.remaining == 10));
    }
}

#[test]
fn a_quota_change_neither_forgives_nor_multiplies_debt() {
    let [slow, fast] = [10, 1_000].map(|limit| per_second(limit).build().expect("a quota"));
    let mut state = State::default();
    ask(&mut state, &slow, take(10), 0);
    assert_eq!(ask(&mut state, &fast, Op::Peek, 0).remaining, 990, "ten units are used under this quota too");
    assert_eq!(ask(&mut state, &slow, take(1), 0).retry_after, Wait::After(100_000_000));
    // A hundred times, a caller peeks under the fast quota and then under the slow quota. The debt (the time until the
    // bucket is full again) must not shrink or grow.
    for _ in 0..100 {
        ask(&mut state, &fast, Op::Peek, 0);
        ask(&mut state, &slow, Op::Peek, 0);
    }
    assert_eq!(ask(&mut state, &slow, take(1), 0).retry_after, Wait::After(100_000_000));
}

// ---- seen in other limiters ----

#[test]
fn sixty_per_second_is_not_one_per_sixty_seconds() {
    let quota = per_second(60).build().expect("60/s");
    assert_eq!((quota.limit(), quota.window_ns(), quota.capacity()), (60, SECOND_NS, 60));
    let mut state = State::default();
    let admitted = (0..1_000).filter(|ms| ask(&mut state, &quota, take(1), ms * 1_000_000).allowed).count();
    assert_eq!(admitted, 60 + 59);
}

#[test]
fn a_burst_of_ten_admits_ten_at_once_and_not_seventeen() {
    let quota = per_second(17).burst(10).build().expect("17/s");
    let mut state = State::default();
    assert_eq!((0..30).filter(|_| ask(&mut state, &quota, take(1), SECOND_NS).allowed).count(), 10);
}

#[test]
fn retry_after_is_never_zero_seconds() {
    for algorithm in every_algorithm() {
        let quota = quota(algorithm, 1, Duration::from_nanos(10));
        let (mut state, now) = (State::default(), 1_770_000_000 * SECOND_NS);
        while ask(&mut state, &quota, take(1), now).allowed {}
        for later in 0..10 {
            let decision = ask_copy(&state, &quota, take(1), now + later);
            if !decision.allowed {
                assert!(decision.retry_after.secs_ceil() >= Some(1) && decision.retry_after.millis_ceil() >= Some(1));
            }
        }
    }
}

#[test]
fn refusals_are_free_unless_they_are_charged() {
    for algorithm in every_algorithm() {
        let quota = quota(algorithm, 5, Duration::from_secs(1));
        let (mut state, now) = (State::default(), 1_770_000_000 * SECOND_NS);
        while ask(&mut state, &quota, take(1), now).allowed {}
        let before = state.clone();
        for cost in [1, 2, u64::MAX] {
            assert!(!ask(&mut state, &quota, take(cost), now).allowed);
        }
        assert_eq!(before, state, "{algorithm:?}");
    }
}

#[test]
fn quotas_of_different_windows_and_algorithms_share_no_counter() {
    let quotas: Vec<Quota> = every_algorithm()
        .into_iter()
        .flat_map(|a| [1, 60, 3600].map(|seconds| quota(a, 5, Duration::from_secs(seconds))))
        .collect();
    let keys: std::collections::BTreeSet<u128> =
        quotas.iter().map(|q| Hit::new(7, q, Op::Peek, Binding::Enforce).state_key()).collect();
    assert_eq!(keys.len(), quotas.len());
}

#[test]
fn one_per_minute_polled_every_119_microseconds_admits_one_per_minute() {
    // Another limiter dropped the fraction of a unit at each poll. So it admitted only half of the limit.
    let quota = Quota::per_minute(1).build().expect("1/min");
    let mut state = State::default();
    let polls_a_minute = (60 * SECOND_NS).div_ceil(119_000);
    let granted: Vec<u64> =
        (0..=3 * polls_a_minute).filter(|poll| ask(&mut state, &quota, take(1), poll * 119_000).allowed).collect();
    assert_eq!(granted, [0, 1, 2, 3].map(|minute| minute * polls_a_minute));
}

#[test]
fn a_refusal_ends_when_the_limit_is_raised_or_units_are_given_back() {
    for algorithm in every_algorithm() {
        let [old, raised] = [5, 50].map(|limit| quota(algorithm, limit, Duration::from_secs(1)));
        let (mut state, now, mut receipt) = (State::default(), 1_770_000_000 * SECOND_NS, None);
        loop {
            let decision = ask(&mut state, &old, take(1), now);
            receipt = decision.receipt.or(receipt);
            if !decision.allowed {
                break;
            }
        }
        assert!(ask_copy(&state, &raised, take(1), now).allowed, "{algorithm:?}");
        ask(&mut state, &old, Op::Refund { cost: 1, receipt }, now);
        assert!(ask(&mut state, &old, take(1), now).allowed, "{algorithm:?}");
        assert!(!ask(&mut state, &old, take(1), now).allowed, "{algorithm:?}");
        ask(&mut state, &old, Op::Reset, now);
        assert!(ask(&mut state, &old, take(old.capacity()), now).allowed, "{algorithm:?}");
    }
}

#[test]
fn refused_requests_charge_no_other_limit() {
    // Each request has two limits. The first limit must stay uncharged. The second is used up, and it charges refusals.
    for algorithm in every_algorithm() {
        let sibling = quota(algorithm, 5, Duration::from_secs(1));
        let empty = per_second(1).denied(Denied::Charged).build().expect("1/s");
        let (mut states, now) = ([State::default(), State::default()], 1_770_000_000 * SECOND_NS);
        ask(&mut states[1], &empty, take(1), now);
        let hits = [&sibling, &empty].map(|quota| Hit::new(1, quota, take(1), Binding::Enforce));
        for _ in 0..20 {
            let (verdict, decisions) = decide_on(&mut states, &hits, now);
            assert_eq!((verdict.allowed, decisions[0].remaining), (false, sibling.capacity()), "{algorithm:?}");
        }
        assert_eq!(states[0], State::default());
    }
}

#[test]
fn a_thousand_tokens_are_a_thousand_in_each_of_a_thousand_runs() {
    let quota = per_second(1_000).build().expect("1000/s");
    for run in 0..1_000u64 {
        let (mut state, now) = (State::default(), 1_770_000_000 * SECOND_NS + run * 1_234_567);
        assert_eq!(ask(&mut state, &quota, take(1_000), now).remaining, 0);
        assert!(!ask(&mut state, &quota, take(1), now).allowed);
        assert_eq!(ask(&mut state, &quota, take(1_000), now + SECOND_NS).remaining, 0);
    }
}

#[test]
fn a_window_has_its_exact_length_and_is_not_rounded_to_seconds() {
    // Another limiter stored times in whole seconds. With a limit of 5, its log admitted ten units in 44 ms, across the
    // edge of a second.
    let quota = Quota::sliding_window_log(5, Duration::from_millis(1_000)).build().expect("a log");
    let mut state = State::default();
    let start = 1_770_000_000 * SECOND_NS - 22_000_000;
    assert_eq!((0..44).filter(|ms| ask(&mut state, &quota, take(1), start + ms * 1_000_000).allowed).count(), 5);
}

#[test]
fn two_requests_at_one_instant_count_twice() {
    for algorithm in every_algorithm() {
        let quota = quota(algorithm, 5, Duration::from_secs(1));
        let mut state = State::default();
        let left: Vec<u64> = (0..3).map(|_| ask(&mut state, &quota, take(1), SECOND_NS).remaining).collect();
        assert_eq!(left, [1, 2, 3].map(|taken| quota.capacity() - taken), "{algorithm:?}");
    }
}

#[test]
fn a_mismatched_window_index_does_not_reset_the_count() {
    // The clocks of two servers differ by a nanosecond, and the edge of a window lies between them. In this case,
    // another limiter admitted 200 of 200 requests at a limit of 5.
    for algorithm in every_algorithm() {
        let quota = quota(algorithm, 5, Duration::from_secs(1));
        let mut state = State::default();
        let late = |i: u64| 1_770_000_000 * SECOND_NS - i % 2;
        let admitted = (0..200).filter(|i| ask(&mut state, &quota, take(1), late(*i)).allowed).count() as u64;
        assert_eq!(admitted, quota.capacity(), "{algorithm:?}");
    }
}

#[test]
fn a_state_is_bounded_and_expires() {
    for algorithm in every_algorithm() {
        let quota = quota(algorithm, 50, Duration::from_secs(1));
        let (mut state, start) = (State::default(), 1_770_000_000 * SECOND_NS);
        for i in 0..5_000 {
            ask(&mut state, &quota, Op::Force { cost: 1 + i % 3 }, start + i * 100_000);
            ask(&mut state, &quota, take(1), start + i * 100_000);
        }
        assert!(state.heap_bytes() <= 128 * 16 + 64, "{algorithm:?}: {} bytes", state.heap_bytes());
        let end = start + 4_999 * 100_000;
        assert!(state.expires_at(&quota) <= end + 3 * SECOND_NS, "{algorithm:?}");
    }
}

#[test]
fn a_lease_id_is_never_given_twice() {
    let quota = Quota::concurrency(3).lease(Duration::from_secs(5)).build().expect("permits");
    let (mut state, mut ids) = (State::default(), std::collections::BTreeSet::new());
    let mut holders = std::collections::VecDeque::new();
    // The clock stops, steps back and runs on. When no permit is free, the oldest holder releases its permit.
    for at in [10, 10, 10, 9, 9, 3, 3, 3, 11, 11, 30, 30] {
        if let Some(receipt) = ask(&mut state, &quota, take(1), at * SECOND_NS).receipt {
            assert!(ids.insert(receipt.mark), "{receipt:?}");
            holders.push_back(receipt);
        } else if let Some(receipt) = holders.pop_front() {
            ask(&mut state, &quota, Op::Refund { cost: 1, receipt: Some(receipt) }, at * SECOND_NS);
        }
    }
    assert!(ids.len() >= 6);
}
