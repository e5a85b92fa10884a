//! What holds for every algorithm, over random and adversarial lists of events.

mod support;

use proptest::prelude::*;
use spillgate_core::{Algorithm, Decision, Denied, Op, Quota, Reason, State, Time, Wait};
use support::within_bound;
use support::{Cost, Gap, ask, ask_copy, cases, costs, gaps, plain_quotas, quotas_with_extras, starts_ns, take};

/// What was admitted, given back, and when it leaves.
#[derive(Clone, Copy, Debug)]
struct Event {
    at: u64,
    admitted: u64,
    refunded: u64,
    leaves_at: u64,
}

/// For every pair of events: what was admitted between them, both included, is within f of their distance.
fn assert_within_bound(quota: &Quota, events: &[Event]) -> Result<(), TestCaseError> {
    for (i, first) in events.iter().enumerate() {
        let (mut admitted, mut refunded) = (0u128, 0u128);
        for last in &events[i..] {
            admitted += u128::from(last.admitted);
            refunded += u128::from(last.refunded);
            let (s, sum) = (last.at - first.at, admitted.saturating_sub(refunded));
            prop_assert!(within_bound(quota, s, sum), "{sum} units within {s} ns, from {first:?} to {last:?}");
        }
    }
    Ok(())
}

/// The queue lets out n_max + s/T in any s.
fn assert_leaving_bound(quota: &Quota, events: &[Event]) -> Result<(), TestCaseError> {
    let largest = events.iter().map(|e| e.admitted).max().unwrap_or(0);
    let leaving: Vec<&Event> = events.iter().filter(|e| e.admitted > 0).collect();
    for (i, first) in leaving.iter().enumerate() {
        let mut sum = 0u128;
        for last in &leaving[i..] {
            prop_assert!(last.leaves_at >= first.leaves_at, "first in, first out: {first:?} {last:?}");
            sum += u128::from(last.admitted);
            let over = sum.saturating_sub(largest.into()) * u128::from(quota.interval_ns());
            prop_assert!(over <= u128::from(last.leaves_at - first.leaves_at), "{sum} leave, {first:?} {last:?}");
        }
    }
    Ok(())
}

/// A refusal's wait is exact: refused until then, allowed at it, asked alone.
fn assert_exact(state: &State, quota: &Quota, op: Op, now: u64, refused: &Decision) -> Result<(), TestCaseError> {
    let Op::Take { cost, .. } = op else { return Ok(()) };
    match refused.retry_after {
        Wait::Never => prop_assert!(cost > quota.hard_capacity()),
        Wait::Unknown => prop_assert!(false, "only concurrency does not know"),
        Wait::After(wait_ns) => {
            prop_assert!(wait_ns > 0, "a refused caller is never told to come back at once");
            prop_assert!(cost <= quota.hard_capacity());
            prop_assert!(ask_copy(state, quota, op, now + wait_ns).allowed, "allowed when told");
            let before = ask_copy(state, quota, op, now + wait_ns - 1);
            prop_assert_eq!(before.retry_after, Wait::After(1), "refused just before");
            let between = ask_copy(state, quota, op, now + wait_ns / 2);
            prop_assert_eq!(between.retry_after, Wait::After(wait_ns - wait_ns / 2), "it counts down");
        }
    }
    Ok(())
}

/// A state that is past `expires_at` is as good as none, and not before.
fn assert_expiry(state: &State, quota: &Quota, now: u64) -> Result<(), TestCaseError> {
    let expires_at = state.expires_at(quota);
    let left = ask_copy(state, quota, Op::Look, now).reset_after_ns;
    prop_assert_eq!(expires_at.saturating_sub(now), left, "expires_at is reset_after");
    if left > 0 {
        prop_assert!(ask_copy(state, quota, Op::Look, expires_at - 1).reset_after_ns == 1);
    }
    let then = expires_at.max(now);
    for op in [Op::Look, take(1), take(quota.capacity()), Op::Force { cost: 3 }] {
        let (mut old, mut new) = (state.clone(), State::default());
        prop_assert_eq!(ask(&mut old, quota, op, then), ask(&mut new, quota, op, then));
        let late = then.saturating_add(quota.window_ns() / 3);
        prop_assert_eq!(ask(&mut old, quota, take(1), late), ask(&mut new, quota, take(1), late));
    }
    Ok(())
}

/// `remaining` fits, and one more does not.
fn assert_truthful(state: &State, quota: &Quota, now: u64) -> Result<u64, TestCaseError> {
    let look = ask_copy(state, quota, Op::Look, now);
    prop_assert!(look.remaining <= look.limit && look.limit == quota.capacity());
    if look.remaining > 0 {
        prop_assert!(ask_copy(state, quota, take(look.remaining), now).allowed, "remaining fits: {look:?}");
    }
    if quota.hard_capacity() == quota.capacity() {
        prop_assert!(!ask_copy(state, quota, take(look.remaining + 1), now).allowed, "one more does not: {look:?}");
    }
    Ok(look.remaining)
}

fn steps() -> impl Strategy<Value = Vec<(Gap, Cost, u64)>> {
    let max_wait = prop_oneof![3 => Just(u64::MAX), 1 => Just(0), 1 => 0..2_000_000_000u64];
    prop::collection::vec((gaps(), costs(), max_wait), 1..40)
}

/// What happens to a key: mostly takes, some forced, some given back.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Take,
    Force,
    RefundLast,
    RefundAny,
}

fn mixed_steps() -> impl Strategy<Value = Vec<(Gap, Cost, Kind)>> {
    let kind = prop_oneof![
        6 => Just(Kind::Take),
        1 => Just(Kind::Force),
        1 => Just(Kind::RefundLast),
        1 => Just(Kind::RefundAny)
    ];
    prop::collection::vec((gaps(), costs(), kind), 1..50)
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn every_decision_is_exact_and_truthful(quota in plain_quotas(), start in starts_ns(), steps in steps()) {
        let (mut state, mut now, mut wait_ns) = (State::default(), start, 0);
        let mut events = Vec::new();
        for (gap, cost, max_wait_ns) in steps {
            now = gap.after(&quota, now, wait_ns);
            ask(&mut state, &quota, Op::Look, now);
            let remaining = assert_truthful(&state, &quota, now)?;
            let cost = cost.units(&quota, remaining);
            let (before, op) = (state.clone(), Op::Take { cost, max_wait_ns });
            let decision = ask(&mut state, &quota, op, now);
            prop_assert!(decision.delay_ns <= max_wait_ns);
            prop_assert!(!decision.soft_over);
            if decision.allowed {
                prop_assert_eq!((decision.retry_after, decision.reason), (Wait::NONE, Reason::Fits));
                prop_assert!(decision.remaining <= remaining - cost);
                prop_assert!(decision.receipt.is_some());
                let leaves_at = now + decision.delay_ns;
                events.push(Event { at: now, admitted: cost, refunded: 0, leaves_at });
            } else {
                prop_assert_eq!(&before, &state, "a refusal that is free changes nothing");
                assert_exact(&state, &quota, op, now, &decision)?;
                wait_ns = decision.retry_after.nanos().unwrap_or(0);
            }
            assert_expiry(&state, &quota, now)?;
        }
        assert_within_bound(&quota, &events)?;
        if quota.algorithm() == Algorithm::LeakyBucket {
            assert_leaving_bound(&quota, &events)?;
        }
    }

    /// Late requests too are told exact waits and truthful counts.
    #[test]
    fn late_requests_are_told_the_truth(
        quota in plain_quotas(),
        start in 1_000_000_000_000_000_000..1_700_000_000_000_000_000u64,
        steps in prop::collection::vec((gaps(), costs(), 0..1000u64), 1..25),
    ) {
        let (mut state, mut now, mut wait_ns) = (State::default(), start, 0);
        for (gap, cost, late_share) in steps {
            now = gap.after(&quota, now, wait_ns);
            let late = now - (u128::from(quota.window_ns()) * u128::from(late_share) / 1000) as u64;
            let remaining = assert_truthful(&state, &quota, late)?;
            let op = take(cost.units(&quota, remaining));
            let decision = ask(&mut state, &quota, op, late);
            if !decision.allowed {
                assert_exact(&state, &quota, op, late, &decision)?;
                wait_ns = decision.retry_after.nanos().unwrap_or(0);
            }
            assert_expiry(&state, &quota, late)?;
        }
    }

    /// Forces and charged refusals are outside the bound, soft limits have that of their hard capacity, and what
    /// is given back may be admitted once more.
    #[test]
    fn the_bound_holds_among_forces_refunds_penalties_and_soft_limits(
        quota in quotas_with_extras(), start in starts_ns(), steps in mixed_steps(),
    ) {
        let (mut state, mut now, mut wait_ns) = (State::default(), start, 0);
        let (mut events, mut receipt) = (Vec::new(), None);
        for (gap, cost, kind) in steps {
            now = gap.after(&quota, now, wait_ns);
            let look = ask_copy(&state, &quota, Op::Look, now);
            let cost = cost.units(&quota, look.remaining);
            let op = match kind {
                Kind::Take => take(cost),
                Kind::Force => Op::Force { cost },
                Kind::RefundLast => Op::Refund { cost, receipt },
                Kind::RefundAny => Op::Refund { cost, receipt: None },
            };
            let decision = ask(&mut state, &quota, op, now);
            prop_assert!(decision.remaining <= quota.capacity());
            let mut event = Event { at: now, admitted: 0, refunded: 0, leaves_at: 0 };
            match op {
                Op::Take { .. } if decision.allowed => {
                    event.admitted = cost;
                    receipt = decision.receipt;
                    prop_assert!(!decision.soft_over || decision.remaining == 0);
                    prop_assert_eq!(decision.soft_over, look.remaining < cost, "above the soft limit, and flagged");
                }
                Op::Take { .. } => {
                    wait_ns = decision.retry_after.nanos().unwrap_or(0);
                    prop_assert!(decision.retry_after > Wait::NONE);
                    if quota.denied() == Denied::Free || quota.penalty_ns() > 0 {
                        let then = now + wait_ns;
                        prop_assert!(wait_ns == 0 || ask_copy(&state, &quota, op, then).allowed, "allowed when told");
                    }
                }
                Op::Refund { .. } => event.refunded = cost,
                _ => prop_assert!(decision.allowed),
            }
            if matches!(quota.algorithm(), Algorithm::TokenBucket | Algorithm::LeakyBucket) {
                let depth_ns = quota.hard_capacity() * quota.interval_ns();
                let most_ns = (2 * depth_ns).max(quota.penalty_ns());
                prop_assert!(decision.reset_after_ns <= most_ns, "debt is at most twice the depth");
            }
            events.push(event);
        }
        assert_within_bound(&quota, &events)?;
    }

    /// From its first refusal on a key is shut out for the penalty, and no longer unless refusals are charged.
    #[test]
    fn a_penalty_lasts_as_long_as_it_says(
        quota in quotas_with_extras().prop_filter("penalty", |q| q.penalty_ns() > 0),
        steps in steps(),
    ) {
        let (mut state, mut now, mut wait_ns) = (State::default(), 1_770_000_000_000_000_000, 0);
        let mut until = 0;
        for (gap, cost, max_wait_ns) in steps {
            now = gap.after(&quota, now, wait_ns);
            let remaining = ask_copy(&state, &quota, Op::Look, now).remaining;
            let op = Op::Take { cost: cost.units(&quota, remaining), max_wait_ns };
            let decision = ask(&mut state, &quota, op, now);
            prop_assert!(!(decision.allowed && now < until), "shut out until {until}");
            if decision.allowed {
                continue;
            }
            if quota.denied() == Denied::Charged || now >= until {
                until = now + quota.penalty_ns();
            }
            prop_assert!(decision.retry_after >= Wait::After(until - now));
            let look = ask_copy(&state, &quota, Op::Look, until);
            prop_assert!(look.reason != Reason::Penalty, "no longer than {until}");
            let look = ask_copy(&state, &quota, Op::Look, until - 1);
            prop_assert!(!look.allowed && look.remaining == 0);
            wait_ns = decision.retry_after.nanos().unwrap_or(0);
        }
    }

    /// Polled at any pace, a bucket gives exactly one unit every T: no drift, no starvation.
    #[test]
    fn refill_does_not_drift_however_often_it_is_polled(
        (limit, window_ns) in prop_oneof![
            Just((1, 86_400_000_000_000u64)), Just((10_000_000, 1_000_000_000)), Just((3, 1_000_000_000)),
            Just((1, 60_000_000_000)), Just((7, 3_600_000_000_000)),
        ],
        poll_ns in prop_oneof![1_000..=1_000_000_000u64, Just(119_000_000_000u64)],
        start in starts_ns(),
    ) {
        let window = std::time::Duration::from_nanos(window_ns);
        let quota = Quota::token_bucket(limit, window).burst(1).build().expect("a quota");
        let (mut state, mut admitted, mut due) = (State::default(), 0u64, start);
        for poll in 0..300 {
            let now = start + poll * poll_ns;
            let allowed = ask(&mut state, &quota, take(1), now).allowed;
            prop_assert_eq!(allowed, now >= due, "poll {} at {} ns", poll, now);
            if allowed {
                admitted += 1;
                due = now + quota.interval_ns();
            }
        }
        prop_assert!(admitted > 0 && Time::from_nanos(due).as_nanos() > start);
    }
}
