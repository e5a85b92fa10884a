//! Tests the arithmetic with every combination of extreme numbers. The expected results are computed with 128 bits.
//!
//! Overflow and wrong rounding happen at the ends of a range, and random numbers rarely come close to these ends.
//!
//! `L` is the limit, `W` is the window, `T` is the time between two units at the full rate, `B` is the burst, and `w`
//! is the length of a segment.

use std::time::Duration;

use crate::support::{ask, ask_copy, take};
use spillgate_core::{MAX_UNITS, Op, Quota, QuotaBuilder, QuotaError, State, Wait};

const MAX_SPAN_NS: u64 = 1 << 62;
const MAX_TIME_NS: u64 = (1 << 63) - 1;

/// Numbers at which arithmetic can go wrong, and the numbers next to them.
fn extremes() -> Vec<u64> {
    let pivots = [1, 1_000, 65_536, 1_000_000_000, 1 << 32, MAX_UNITS, 1 << 61, MAX_SPAN_NS, MAX_TIME_NS];
    let mut numbers: Vec<u64> = pivots.into_iter().flat_map(|n| [n - 1, n, n + 1]).collect();
    numbers.extend([3, 7, 1_000_000_007, u64::MAX - 1, u64::MAX]);
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

fn spans() -> Vec<u64> {
    extremes().into_iter().filter(|ns| (1..=MAX_SPAN_NS).contains(ns)).collect()
}

fn units() -> Vec<u64> {
    extremes().into_iter().filter(|n| *n <= MAX_UNITS).collect()
}

fn times() -> Vec<u64> {
    extremes().into_iter().filter(|ns| *ns <= MAX_TIME_NS).collect()
}

/// Returns a token bucket with `T` = `interval_ns` and `B` = `burst`, or `None` if there is no such quota.
fn bucket(interval_ns: u64, burst: u64) -> Option<Quota> {
    Quota::token_bucket(1, Duration::from_nanos(interval_ns)).burst(burst).build().ok()
}

#[test]
fn t_is_the_least_that_admits_no_more_than_the_limit() {
    let mut built = 0;
    for (limit, window) in extremes().into_iter().flat_map(|l| extremes().into_iter().map(move |w| (l, w))) {
        let quota = Quota::token_bucket(limit, Duration::from_nanos(window)).burst(1).build();
        let Ok(quota) = quota else {
            let (l, w) = (u128::from(limit.max(1)), u128::from(window));
            let t = w.div_ceil(l);
            let inexact = (t * l - w) * 1_000 > w;
            let too_deep = 2 * t > u128::from(MAX_SPAN_NS);
            assert!(
                limit > MAX_UNITS || window == 0 || window > MAX_SPAN_NS || inexact || too_deep,
                "{limit} in {window} ns is a valid quota, but it was refused"
            );
            continue;
        };
        built += 1;
        let (t, l, w) = (u128::from(quota.interval_ns()), u128::from(limit), u128::from(window));
        assert!(limit == 0 || (t * l >= w && (t - 1) * l < w), "T = {t} for {limit} in {window} ns");
        assert!(
            (t * l).saturating_sub(w) * 1_000 <= w,
            "rounding lowers the rate by more than 0.1 %: {limit} in {window} ns"
        );
    }
    assert_eq!(built, 285);
}

#[test]
fn capacities_are_rounded_down_and_never_too_large() {
    for (limit, soft_ppm) in extremes().into_iter().flat_map(|l| [0, 1, 999_999, 1_000_000, u32::MAX].map(|s| (l, s))) {
        let quota = Quota::fixed_window(limit, Duration::from_secs(1)).soft_ppm(soft_ppm).build();
        let hard = u128::from(limit) * (1_000_000 + u128::from(soft_ppm)) / 1_000_000;
        match quota {
            Ok(quota) => assert_eq!((quota.capacity(), u128::from(quota.hard_capacity())), (limit, hard)),
            Err(error) => {
                assert!(
                    hard > u128::from(MAX_UNITS),
                    "a limit of {limit} with a soft share of {soft_ppm} ppm is not too large"
                );
                assert!(matches!(error, QuotaError::TooLarge { max: MAX_UNITS, .. }), "{error}");
            }
        }
    }
}

#[test]
fn twice_the_depth_of_a_bucket_fits_the_longest_span() {
    for (interval_ns, burst) in spans().into_iter().flat_map(|t| extremes().into_iter().map(move |b| (t, b))) {
        let depth = 2 * u128::from(interval_ns) * u128::from(burst);
        let fits = (1..=MAX_UNITS).contains(&burst) && depth <= u128::from(MAX_SPAN_NS);
        assert_eq!(bucket(interval_ns, burst).is_some(), fits, "a burst of {burst} with T = {interval_ns} ns");
    }
}

/// Returns a bucket whose debt is paid at `paid_at`. The debt is a time: `interval_ns` for each unit that is not
/// refilled yet. The bound of this debt is the largest possible bound.
fn owing(paid_at: u64, interval_ns: u64) -> State {
    State::decode(&[1, 0, 0, paid_at, interval_ns, 63]).expect("a bucket")
}

/// A state has the debt `T` for each unit that is not refilled yet. A take under another quota, with the burst `B` and
/// the time `T'` between two units, is allowed if `debt <= (B - cost) * T`.
///
/// A kernel that converted the debt first would allow the take if `D <= (B - cost) * T'`, where `D = ceil(debt * T'/T)`
/// is the converted debt. Both ways give the same answer for every debt in nanoseconds.
#[test]
fn another_t_decides_as_by_converted_debt_rounded_up_at_all_extremes() {
    let mut allowed = 0;
    let quotas: Vec<Quota> =
        spans().into_iter().flat_map(|t| [1, 3, MAX_UNITS].map(|b| bucket(t, b))).flatten().collect();
    for (now, paid_at) in times().into_iter().flat_map(|now| times().into_iter().map(move |paid_at| (now, paid_at))) {
        for (old_ns, new) in spans().into_iter().flat_map(|old| quotas.iter().map(move |new| (old, new))) {
            let (old, t, depth) = (u128::from(old_ns), u128::from(new.interval_ns()), u128::from(new.capacity()));
            let debt = u128::from(paid_at.saturating_sub(now));
            let converted = (debt * t).div_ceil(old);
            let state = owing(paid_at, old_ns);
            for cost in [1, new.capacity()] {
                let answer = ask_copy(&state, new, take(cost), now);
                assert_eq!(
                    answer.allowed,
                    converted + u128::from(cost) * t <= depth * t,
                    "a debt of {debt} ns with T = {old_ns} ns, under {new:?}"
                );
                let over = debt.saturating_sub((depth - u128::from(cost)) * old);
                assert_eq!(answer.retry_after, Wait::After(over as u64));
                let after = converted + u128::from(cost) * t;
                assert!(
                    !answer.allowed || u128::from(answer.reset_after_ns) == after,
                    "after an allowed take, the debt is counted in T'"
                );
                allowed += u64::from(answer.allowed);
            }
        }
    }
    assert_eq!(allowed, 1_117_200);
}

#[test]
fn a_bucket_admits_by_the_formula_at_all_extremes() {
    let mut allowed = 0;
    for quota in spans().into_iter().flat_map(|t| units().into_iter().map(move |b| bucket(t, b))).flatten() {
        let (t, depth) = (quota.interval_ns(), quota.capacity() * quota.interval_ns());
        for now in [0, 1, MAX_SPAN_NS, MAX_TIME_NS - 1, MAX_TIME_NS] {
            for debt in times().into_iter().filter(|debt| *debt <= 2 * depth && now + debt <= MAX_TIME_NS) {
                let state = owing(now + debt, t);
                for cost in extremes() {
                    let answer = ask_copy(&state, &quota, take(cost), now);
                    let over = (u128::from(debt) + u128::from(cost) * u128::from(t)).saturating_sub(u128::from(depth));
                    let wait = match (cost > quota.capacity(), over) {
                        (true, _) => Wait::Never,
                        (false, over) => Wait::After(over as u64),
                    };
                    assert_eq!(
                        (answer.allowed, answer.retry_after),
                        (wait == Wait::NONE, wait),
                        "a take of {cost} units under {quota:?}"
                    );
                    allowed += u64::from(answer.allowed);
                }
            }
        }
    }
    assert_eq!(allowed, 115_744);
}

/// Returns whether a take of `cost` units fits at the instant `at`, after two takes. `first` and `second` are the time
/// and the units of these takes.
///
/// The take fits if `oldest * (w - e) + (rest + cost) * w <= L * w`. `oldest` is the number of units in the oldest
/// segment, and `rest` is the number of units in all other segments. `e` is the time since the start of the segment
/// that contains `at`.
fn segments_fit(quota: &Quota, first: (u64, u64), second: (u64, u64), cost: u64, at: u64) -> bool {
    let (w, segments) = (u128::from(quota.interval_ns()), quota.window_ns() / quota.interval_ns());
    let (segment, elapsed) = (at / quota.interval_ns(), u128::from(at) % w);
    let weight = |(taken_at, units): (u64, u64)| match segment - taken_at / quota.interval_ns() {
        age if age < segments => u128::from(units) * w,
        age if age == segments => u128::from(units) * (w - elapsed),
        _ => 0,
    };
    weight(first) + weight(second) + u128::from(cost) * w <= u128::from(quota.hard_capacity()) * w
}

#[test]
fn segments_are_weighted_exactly_at_all_extremes() {
    let mut refused = 0;
    for (segments, limit) in [1, 2].into_iter().flat_map(|n| units().into_iter().skip(1).map(move |l| (n, l))) {
        for window in spans().into_iter().filter(|ns| ns.is_multiple_of(u64::from(segments))) {
            let counter = Quota::sliding_window_counter(limit, Duration::from_nanos(window)).segments(segments);
            let (quota, w) = (counter.build().expect("a counter"), window / u64::from(segments));
            let starts = [0, MAX_TIME_NS - 2 * window.min(MAX_SPAN_NS - 1)];
            for (start, units) in starts.into_iter().flat_map(|at| [1, limit / 2 + 1, limit].map(|n| (at, n))) {
                let mut state = State::default();
                let (first, second) = ((start, units), (start + w - 1, limit - units));
                ask(&mut state, &quota, take(first.1), first.0);
                ask(&mut state, &quota, take(second.1), second.0);
                let next = (start / w + u64::from(segments)) * w;
                for now in [second.0, next - 1, next, next + w / 3, next + w - 1] {
                    let now = now.clamp(second.0, MAX_TIME_NS);
                    for cost in [1, 2, limit / 2, limit] {
                        let answer = ask_copy(&state, &quota, take(cost), now);
                        let fits = |at| cost <= limit && segments_fit(&quota, first, second, cost, at);
                        assert_eq!(
                            answer.allowed,
                            fits(now),
                            "a take of {cost} at {now} under {quota:?} after {first:?} and {second:?}"
                        );
                        if let Wait::After(wait @ 1..) = answer.retry_after {
                            assert!(
                                fits(now + wait) && !fits(now + wait - 1),
                                "a wait of {wait} ns for a take of {cost} at {now} under {quota:?}"
                            );
                            refused += 1;
                        }
                    }
                }
            }
        }
    }
    assert_eq!(refused, 57_853);
}

#[test]
fn windows_end_on_time_at_all_extremes() {
    for (window, now) in spans().into_iter().flat_map(|w| times().into_iter().map(move |now| (w, now))) {
        let span = Duration::from_nanos(window);
        let wait_of = |builder: QuotaBuilder| {
            let (quota, mut state) = (builder.build().expect("a quota"), State::default());
            assert!(ask(&mut state, &quota, take(1), now).allowed);
            assert_eq!(state.expires_at(&quota) - now, ask_copy(&state, &quota, Op::Peek, now).reset_after_ns);
            ask(&mut state, &quota, take(1), now).retry_after
        };
        let fixed = || Quota::fixed_window(1, span);
        assert_eq!(wait_of(fixed()), Wait::After(window - now % window));
        assert_eq!(wait_of(fixed().anchor(spillgate_core::Anchor::FirstHit)), Wait::After(window));
        assert_eq!(wait_of(Quota::sliding_window_log(1, span)), Wait::After(window));
        let concurrency = Quota::concurrency(1).lease(span).build().expect("permits");
        let mut state = State::default();
        assert_eq!(ask(&mut state, &concurrency, take(1), now).reset_after_ns, window);
    }
}

#[test]
fn counters_saturate_at_the_largest_exact_double() {
    let window = Duration::from_secs(1);
    for quota in [Quota::fixed_window(MAX_UNITS, window), Quota::sliding_window_counter(MAX_UNITS, window)] {
        let quota = quota.build().expect("a counter");
        for (a, b) in extremes().into_iter().flat_map(|a| extremes().into_iter().map(move |b| (a, b))) {
            let mut state = State::default();
            ask(&mut state, &quota, Op::Force { cost: a }, 0);
            let left = ask(&mut state, &quota, Op::Force { cost: b }, 0).remaining;
            assert_eq!(left, MAX_UNITS - a.saturating_add(b).min(MAX_UNITS));
        }
    }
}
