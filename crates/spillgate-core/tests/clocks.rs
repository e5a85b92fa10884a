//! Requests whose times are out of order, and clocks that step back or jump forward.
//!
//! A server reads the clock before it decides, so two requests can be decided in the reverse order of their times. The
//! request with the earlier time is then late. An operator can also set the clock. In both cases, the bounds must hold.
//!
//! `f(s)` is the maximum number of units that an algorithm admits in an interval of length `s`. `B` is the burst of a
//! bucket, and `T` is the time between two units at the full rate.

use crate::support::{Cost, Gap, ask, ask_copy, cases, costs, gaps, plain_quotas, starts_ns, take, walk, within_bound};
use proptest::prelude::*;
use spillgate_core::{Algorithm, MAX_LATE_NS, Op, Quota, State, Wait};

/// A time in 2026, far from the earliest and the latest time.
const NOW: u64 = 1_770_000_000_123_456_789;

fn is_bucket(quota: &Quota) -> bool {
    matches!(quota.algorithm(), Algorithm::TokenBucket | Algorithm::LeakyBucket)
}

/// Returns the greatest debt of a bucket plus one second, in nanoseconds. The debt is the time until the bucket is full
/// again, and forces can raise it to 2 * hard capacity * T. The added second is for a late request: one second before
/// the newest time, the debt is one second longer.
fn greatest_debt_and_a_second_ns(quota: &Quota) -> u64 {
    2 * quota.hard_capacity() * quota.interval_ns() + MAX_LATE_NS
}

/// Returns the bound of the debt of a bucket, in nanoseconds. If a debt exceeds this bound, the clock was set back, and
/// the kernel cuts the debt to the bound.
fn most_debt_ns(quota: &Quota) -> u64 {
    greatest_debt_and_a_second_ns(quota).next_power_of_two()
}

fn share_of(span_ns: u64, thousandths: u64) -> u64 {
    (u128::from(span_ns) * u128::from(thousandths) / 1000) as u64
}

fn steps() -> impl Strategy<Value = Vec<(Gap, Cost, u64)>> {
    prop::collection::vec((gaps(), costs(), Just(u64::MAX)), 1..30)
}

/// Returns the state before the last of these steps, and the time of that step.
fn after(quota: &Quota, steps: &[(Gap, Cost, u64)]) -> (State, u64) {
    let mut last = (State::default(), NOW);
    walk(quota, NOW, steps, |before, _, now| {
        last = (before.clone(), now);
        Ok(())
    })
    .expect("nothing is checked");
    last
}

proptest! {
    #![proptest_config(cases(300))]

    /// Windows, counters and logs count a late request as if it came at the newest time that they have seen. So the
    /// bound `f(s)` must hold if the time of each late request is replaced with this newest time.
    ///
    /// A bucket does not store the newest time, so it decides a late request at the request's own time. If requests are
    /// late by at most a time `d`, the bound of a bucket is therefore `B + (s + 2 * d)/T`.
    #[test]
    fn late_requests_keep_the_bound(
        quota in plain_quotas(),
        late_most in 0..1000u64,
        steps in prop::collection::vec((gaps(), costs(), prop_oneof![Just(0), 0..=1000u64]), 1..60),
    ) {
        let (mut state, mut now, mut wait_ns, mut newest) = (State::default(), NOW, 0, 0);
        let mut events: Vec<(u64, u64)> = Vec::new();
        let reach_ns = if is_bucket(&quota) { quota.capacity() * quota.interval_ns() } else { quota.window_ns() };
        let late_most_ns = share_of(reach_ns, late_most);
        for (gap, cost, late) in steps {
            now = gap.after(&quota, now, wait_ns);
            let late = now.max(newest) - share_of(late_most_ns, late);
            let cost = cost.units(&quota, ask_copy(&state, &quota, Op::Peek, late).remaining);
            let decision = ask(&mut state, &quota, take(cost), late);
            if decision.allowed {
                newest = newest.max(late);
                events.push((newest, cost));
            } else {
                wait_ns = decision.retry_after.nanos().unwrap_or(0);
            }
        }
        let wider_ns = if is_bucket(&quota) { 2 * late_most_ns } else { 0 };
        for i in 0..events.len() {
            let mut sum = 0u128;
            for (at, cost) in &events[i..] {
                sum += u128::from(*cost);
                let s = at - events[i].0 + wider_ns;
                prop_assert!(within_bound(&quota, s, sum), "{sum} units from event {i} to the time {at}");
            }
        }
    }

    #[test]
    fn late_requests_get_exact_waits_and_true_counts(
        quota in plain_quotas(),
        steps in prop::collection::vec((gaps(), costs(), 0..1000u64), 1..25),
    ) {
        let (mut state, mut now, mut wait_ns) = (State::default(), NOW, 0);
        for (gap, cost, late) in steps {
            now = gap.after(&quota, now, wait_ns);
            let late = now - share_of(quota.window_ns(), late);
            let left = ask_copy(&state, &quota, Op::Peek, late).remaining;
            prop_assert!(left == 0 || ask_copy(&state, &quota, take(left), late).allowed);
            prop_assert!(!ask_copy(&state, &quota, take(left + 1), late).allowed);
            let op = take(cost.units(&quota, left));
            if let Wait::After(ns @ 1..) = ask(&mut state, &quota, op, late).retry_after {
                prop_assert!(ask_copy(&state, &quota, op, late + ns).allowed, "allowed {ns} ns later");
                for before in [0, ns / 3, ns / 2, ns - 1] {
                    prop_assert_eq!(ask_copy(&state, &quota, op, late + before).retry_after, Wait::After(ns - before));
                }
                wait_ns = ns;
            }
        }
    }

    /// If the clock steps back by a time `J`, a refused caller is refused for at most `J` longer.
    ///
    /// Windows, counters and logs never refuse for longer than two windows and a segment. A bucket always refuses for
    /// less than 2 * (its greatest debt + one second).
    #[test]
    fn a_clock_that_steps_back_refuses_for_no_longer_than_the_step(
        quota in plain_quotas(), steps in steps(), cost in 1..=1000u64, step_ns in 0..=3000u64,
    ) {
        let (state, now) = after(&quota, &steps);
        let step_ns = share_of(quota.window_ns(), step_ns);
        let cost = share_of(quota.capacity(), cost).max(1);
        let wait = |at| ask_copy(&state, &quota, take(cost), at).retry_after.nanos().unwrap_or(0);
        let waited = wait(now - step_ns);
        prop_assert!(waited <= wait(now) + step_ns, "{waited} ns after a step of {step_ns} ns");
        if is_bucket(&quota) {
            prop_assert!(waited < 2 * greatest_debt_and_a_second_ns(&quota));
        } else {
            prop_assert!(waited <= 2 * quota.window_ns() + quota.interval_ns());
        }
    }

    /// If the clock steps back far, the debt of a bucket is reduced to the bound of the debt. This bound is a power of
    /// two, in nanoseconds. A take is refused until enough of the debt is paid.
    #[test]
    fn a_clock_that_steps_back_blocks_a_bucket_for_less_than_twice_its_greatest_debt_and_a_second(
        quota in plain_quotas().prop_filter("bucket", |q| is_bucket(q) && most_debt_ns(q) <= NOW), cost in 1..=1000u64,
    ) {
        let mut state = State::default();
        ask(&mut state, &quota, take(1), NOW);
        let then = NOW - most_debt_ns(&quota);
        let cost = share_of(quota.capacity(), cost).max(1);
        let waited = ask_copy(&state, &quota, take(cost), then).retry_after.nanos();
        let room_ns = (quota.capacity() - cost) * quota.interval_ns();
        prop_assert_eq!(waited, Some(most_debt_ns(&quota) - room_ns));
        prop_assert!(most_debt_ns(&quota) < 2 * greatest_debt_and_a_second_ns(&quota));
    }

    /// After the clock has stepped back, the debt of a bucket is the old debt plus the length of the step, but at most
    /// the bound of the debt. If the old debt was 0, the new debt is at most the length of the step.
    #[test]
    fn a_clock_that_steps_back_adds_nothing_to_a_bucket(
        quota in plain_quotas().prop_filter("bucket", is_bucket), steps in steps(), step_ns in 0..=3000u64,
    ) {
        let (state, now) = after(&quota, &steps);
        let step_ns = share_of(quota.window_ns(), step_ns);
        let [debt, then] = [now, now - step_ns].map(|at| ask_copy(&state, &quota, Op::Peek, at).reset_after_ns);
        let most = most_debt_ns(&quota);
        prop_assert_eq!(then, if debt == 0 { then.min(step_ns) } else { (debt + step_ns).min(most) });
    }

    /// If a stored window starts more than one window length after the current time, the clock was set back after its
    /// units were counted. The same is true for the newest segment of a counter and for the newest entry of a log. All
    /// these units are dropped, so the whole capacity can be admitted again.
    #[test]
    fn a_window_is_forgotten_when_the_clock_steps_back_by_more_than_its_length(
        quota in plain_quotas().prop_filter("windows", |q| !is_bucket(q)), steps in steps(), step_ns in 1001..=9000u64,
    ) {
        let (mut state, now) = after(&quota, &steps);
        ask(&mut state, &quota, take(1), now);
        let then = now - share_of(quota.window_ns(), step_ns) - quota.window_ns() - quota.interval_ns();
        for op in [take(1), take(quota.capacity()), Op::Peek] {
            prop_assert_eq!(ask_copy(&state, &quota, op, then), ask(&mut State::default(), &quota, op, then));
        }
    }

    /// The clock jumps forward by a time `J` between two takes. The jump gives a bucket at most `min(B, J/T)` units
    /// more. All other algorithms admit at most `f(s + J)`.
    #[test]
    fn a_clock_that_jumps_forward_adds_what_would_refill_in_the_jump(
        quota in plain_quotas(),
        start in starts_ns(),
        steps in prop::collection::vec((gaps(), costs()), 1..60),
        jump_at in 0..60usize,
        jump_ns in 0..=3000u64,
    ) {
        let jump_ns = share_of(quota.window_ns(), jump_ns);
        let (mut state, mut real, mut wait_ns) = (State::default(), start, 0);
        let mut events: Vec<(u64, u64, bool)> = Vec::new();
        for (i, (gap, cost)) in steps.iter().enumerate() {
            real = gap.after(&quota, real, wait_ns);
            let now = if i < jump_at { real } else { real + jump_ns };
            let cost = cost.units(&quota, ask_copy(&state, &quota, Op::Peek, now).remaining);
            let decision = ask(&mut state, &quota, take(cost), now);
            if decision.allowed {
                events.push((real, cost, i >= jump_at));
            } else {
                wait_ns = decision.retry_after.nanos().unwrap_or(0);
            }
        }
        let (t, capacity) = (u128::from(quota.interval_ns()), u128::from(quota.capacity()));
        for (i, (first, _, jumped)) in events.iter().enumerate() {
            let mut sum = 0u128;
            for (last, cost, jumped_then) in &events[i..] {
                sum += u128::from(*cost);
                let (s, jump) = (last - first, if jumped == jumped_then { 0 } else { jump_ns });
                prop_assert!(within_bound(&quota, s + jump, sum));
                let gift_ns = u128::from(jump).min(capacity * t);
                prop_assert!(!is_bucket(&quota) || sum.saturating_sub(capacity) * t <= u128::from(s) + gift_ns);
            }
        }
    }

    /// After the clock has stepped back, a lease lasts at most for its whole duration from then on. A penalty is cut
    /// only if it would last longer than its whole duration plus one second. The added second is for late requests,
    /// which can be one second older than the start of the penalty.
    #[test]
    fn a_clock_that_steps_back_makes_no_lease_longer_and_a_penalty_by_a_second_at_most(
        span_ns in 1..1_000_000_000_000u64,
        step_ns in prop_oneof![0..2_000_000_000_000u64, 0..3_000_000_000u64, 1_000_000_000..=1_000_000_001u64],
        later_ns in prop_oneof![Just(0), 0..1_000_000_000_000u64, 0..2_000_000_000u64],
    ) {
        let span = std::time::Duration::from_nanos(span_ns);
        let now = NOW + later_ns.min(span_ns - 1);
        let then = now - step_ns;
        let left = NOW + span_ns - then;
        let until = if left <= span_ns + MAX_LATE_NS { left } else { span_ns };
        let quota = Quota::fixed_window(1, std::time::Duration::from_nanos(1)).penalty(span).build().expect("a penalty");
        let mut state = State::default();
        ask(&mut state, &quota, take(2), NOW);
        prop_assert_eq!(ask(&mut state, &quota, take(2), then).reset_after_ns, until);
        prop_assert_eq!(ask_copy(&state, &quota, take(1), then + until - 1).retry_after, Wait::After(1));
        prop_assert!(ask_copy(&state, &quota, take(1), then + until).allowed);

        let until = left.min(span_ns);
        let quota = Quota::concurrency(1).lease(span).build().expect("permits");
        let mut state = State::default();
        ask(&mut state, &quota, take(1), NOW);
        prop_assert_eq!(ask(&mut state, &quota, Op::Peek, then).reset_after_ns, until);
        prop_assert!(!ask_copy(&state, &quota, take(1), then + until - 1).allowed);
        prop_assert!(ask_copy(&state, &quota, take(1), then + until).allowed);
    }
}
