//! What each operation does, tested with random requests that often come at an edge of a window or of a wait.
//!
//! Each property tests a sentence of the documentation, for all algorithms to which the sentence applies.

use crate::support::{
    Cost, Gap, ask, ask_copy, cases, costs, gaps, plain_quotas, quotas_with_extras, starts_ns, take, walk, within_bound,
};
use proptest::prelude::*;
use spillgate_core::{Algorithm, Denied, Op, Quota, Reason, Receipt, State, Time, Wait};

/// Checks that a state equals an empty state from `expires_at` on, and not before.
fn assert_expiry(state: &State, quota: &Quota, now: u64) -> Result<(), TestCaseError> {
    let expires_at = state.expires_at(quota);
    let left = ask_copy(state, quota, Op::Peek, now).reset_after_ns;
    prop_assert_eq!(expires_at.saturating_sub(now), left, "the state expires when reset_after is over");
    if left > 0 {
        prop_assert!(ask_copy(state, quota, Op::Peek, expires_at - 1).reset_after_ns == 1);
    }
    let then = expires_at.max(now);
    for op in [Op::Peek, take(1), take(quota.capacity()), Op::Force { cost: 3 }] {
        let (mut old, mut new) = (state.clone(), State::default());
        prop_assert_eq!(ask(&mut old, quota, op, then), ask(&mut new, quota, op, then));
        let late = then.saturating_add(quota.window_ns() / 3);
        prop_assert_eq!(ask(&mut old, quota, take(1), late), ask(&mut new, quota, take(1), late));
    }
    Ok(())
}

/// Checks that a take of `remaining` units fits and, if the quota has no soft limit, that a take of one unit more does
/// not fit. Returns `remaining`.
fn assert_truthful(state: &State, quota: &Quota, now: u64) -> Result<u64, TestCaseError> {
    let peek = ask_copy(state, quota, Op::Peek, now);
    prop_assert!(peek.remaining <= peek.limit && peek.limit == quota.capacity());
    if peek.remaining > 0 {
        prop_assert!(
            ask_copy(state, quota, take(peek.remaining), now).allowed,
            "a take of `remaining` units must fit: {peek:?}"
        );
    }
    if quota.hard_capacity() == quota.capacity() {
        prop_assert!(
            !ask_copy(state, quota, take(peek.remaining + 1), now).allowed,
            "a take of one unit more must not fit: {peek:?}"
        );
    }
    Ok(peek.remaining)
}

fn steps() -> impl Strategy<Value = Vec<(Gap, Cost, u64)>> {
    let max_wait = prop_oneof![3 => Just(u64::MAX), 1 => Just(0), 1 => 0..2_000_000_000u64];
    prop::collection::vec((gaps(), costs(), max_wait), 1..40)
}

/// What happens to a key in one step. The steps are mostly takes.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Take,
    Force,
    RefundLast,
    RefundAny,
}

fn steps_of(other: impl Strategy<Value = Kind>) -> impl Strategy<Value = Vec<(Gap, Cost, Kind)>> {
    prop::collection::vec((gaps(), costs(), prop_oneof![2 => Just(Kind::Take), 1 => other]), 1..50)
}

/// Makes all steps, and checks the bound `f(s)` from any event to any later event. `f(s)` is the maximum number of
/// units that may be admitted in the time `s` between them. Units that were given back between these events do not
/// count.
fn assert_bound(quota: &Quota, start: u64, steps: &[(Gap, Cost, Kind)]) -> Result<(), TestCaseError> {
    let (mut state, mut now, mut wait_ns) = (State::default(), start, 0);
    let mut receipt: Option<Receipt> = None;
    // For each event: the time, the units that were admitted, and the units that were given back.
    let mut events: Vec<(u64, u64, u64)> = Vec::new();
    for (gap, cost, kind) in steps {
        now = gap.after(quota, now, wait_ns);
        let cost = cost.units(quota, ask_copy(&state, quota, Op::Peek, now).remaining);
        let op = match kind {
            Kind::Take => take(cost),
            Kind::Force => Op::Force { cost },
            Kind::RefundLast => Op::Refund { cost, receipt },
            Kind::RefundAny => Op::Refund { cost, receipt: None },
        };
        let decision = ask(&mut state, quota, op, now);
        match op {
            Op::Take { .. } if decision.allowed => {
                receipt = decision.receipt;
                events.push((now, cost, 0));
            }
            Op::Take { .. } => wait_ns = decision.retry_after.nanos().unwrap_or(0),
            Op::Refund { .. } => events.push((now, 0, cost)),
            _ => prop_assert!(decision.allowed),
        }
    }
    for i in 0..events.len() {
        let (mut admitted, mut refunded) = (0u128, 0u128);
        for (at, taken, given_back) in &events[i..] {
            admitted += u128::from(*taken);
            refunded += u128::from(*given_back);
            let (s, sum) = (at - events[i].0, admitted.saturating_sub(refunded));
            prop_assert!(within_bound(quota, s, sum), "{sum} units within {s} ns");
        }
    }
    Ok(())
}

fn concurrency() -> impl Strategy<Value = Quota> {
    (1..5u64).prop_map(|n| Quota::concurrency(n).build().expect("permits"))
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn what_remains_fits_and_one_more_does_not(
        quota in prop_oneof![5 => plain_quotas().boxed(), 1 => concurrency().boxed()],
        start in starts_ns(),
        steps in steps(),
    ) {
        walk(&quota, start, &steps, |state, quota, now| assert_truthful(state, quota, now).map(|_| ()))?;
    }

    #[test]
    fn a_state_equals_an_empty_one_from_its_expiry_on(
        quota in plain_quotas(), start in starts_ns(), steps in steps(),
    ) {
        walk(&quota, start, &steps, assert_expiry)?;
    }

    #[test]
    fn a_refusal_that_is_free_changes_nothing(
        quota in prop_oneof![
            5 => plain_quotas().boxed(),
            5 => quotas_with_extras().prop_filter("free", Quota::refusal_is_free).boxed(),
            1 => concurrency().boxed(),
        ],
        start in starts_ns(),
        steps in steps(),
    ) {
        walk(&quota, start, &steps, |state, quota, now| {
            let mut peeked = state.clone();
            let peek = ask(&mut peeked, quota, Op::Peek, now);
            for cost in [peek.remaining + 1, quota.hard_capacity(), quota.hard_capacity() + 1, u64::MAX] {
                let mut asked = peeked.clone();
                if cost > 0 && !ask(&mut asked, quota, take(cost), now).allowed {
                    prop_assert_eq!(&asked, &peeked, "the refused take of {} units changed the state", cost);
                }
            }
            Ok(())
        })?;
    }

    /// A force counts its units even if they do not fit. If more than the capacity is used after the force, a peek is
    /// refused. The time until the state expires has a bound, even after many forces.
    #[test]
    fn a_force_counts_whatever_is_left(
        quota in plain_quotas(), start in starts_ns(), steps in steps(), cost in costs(), more in 0..3u64,
    ) {
        walk(&quota, start, &steps, |state, quota, now| {
            let left = ask_copy(state, quota, Op::Peek, now).remaining;
            let cost = cost.units(quota, left).saturating_add(more);
            let mut forced = state.clone();
            let decision = ask(&mut forced, quota, Op::Force { cost }, now);
            prop_assert!(decision.allowed && decision.receipt.is_none());
            prop_assert_eq!(decision.remaining, left.saturating_sub(cost));
            prop_assert_eq!(ask_copy(&forced, quota, Op::Peek, now).allowed, cost <= left);
            // However many forces follow each other, the key is not refused for ever.
            for _ in 0..5 {
                ask(&mut forced, quota, Op::Force { cost: quota.capacity() }, now);
            }
            let longest_ns = match quota.algorithm() {
                Algorithm::TokenBucket | Algorithm::LeakyBucket => 2 * quota.hard_capacity() * quota.interval_ns(),
                _ => quota.window_ns() + quota.interval_ns(),
            };
            prop_assert!(forced.expires_at(quota) <= now + longest_ns);
            Ok(())
        })?;
    }

    #[test]
    fn forces_do_not_widen_the_bound(
        quota in plain_quotas(), start in starts_ns(), steps in steps_of(Just(Kind::Force)),
    ) {
        assert_bound(&quota, start, &steps)?;
    }

    #[test]
    fn what_is_given_back_is_admitted_once_more_at_most(
        quota in plain_quotas(), start in starts_ns(),
        steps in steps_of(prop_oneof![Just(Kind::RefundLast), Just(Kind::RefundAny)]),
    ) {
        assert_bound(&quota, start, &steps)?;
    }

    /// Without a receipt, a counter gives back at most the units in its current segment, and a queue gives back
    /// nothing.
    #[test]
    fn a_refund_gives_back_its_cost_and_never_more(
        quota in plain_quotas(), start in starts_ns(), steps in steps(), cost in costs(), more in 0..3u64,
    ) {
        walk(&quota, start, &steps, |state, quota, now| {
            let left = ask_copy(state, quota, Op::Peek, now).remaining;
            let cost = cost.units(quota, left).saturating_add(more);
            let after = ask_copy(state, quota, Op::Refund { cost, receipt: None }, now).remaining;
            let full = (left + cost).min(quota.capacity());
            match quota.algorithm() {
                Algorithm::SlidingWindowCounter { .. } => prop_assert!((left..=full).contains(&after)),
                Algorithm::LeakyBucket => prop_assert_eq!(after, left),
                _ => prop_assert_eq!(after, full),
            }
            // A refund with the receipt of the newest take leaves the state as if the take had not happened.
            let mut given_back = state.clone();
            if let Some(receipt) = ask(&mut given_back, quota, take(1), now).receipt {
                ask(&mut given_back, quota, Op::Refund { cost: 1, receipt: Some(receipt) }, now);
                let peeks = [&given_back, state].map(|state| ask_copy(state, quota, Op::Peek, now));
                prop_assert_eq!(peeks[0].remaining, peeks[1].remaining);
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_refund_of_expired_units_changes_nothing(
        quota in prop_oneof![5 => plain_quotas().boxed(), 1 => concurrency().boxed()]
            .prop_filter("windows", |q| !matches!(q.algorithm(), Algorithm::TokenBucket | Algorithm::LeakyBucket)),
        start in starts_ns(),
        late_ns in prop_oneof![Just(0), 0..1_000u64],
    ) {
        let mut state = State::default();
        let receipt = ask(&mut state, &quota, take(1), start).receipt;
        let end = state.expires_at(&quota).max(start + quota.lease_ns()) + late_ns;
        let before = ask(&mut state, &quota, take(1), end).remaining;
        let after = ask(&mut state, &quota, Op::Refund { cost: 1, receipt }, end).remaining;
        prop_assert_eq!((before, after), (quota.capacity() - 1, quota.capacity() - 1));
    }

    /// The soft limit is the capacity, and the hard limit is the hard capacity. If more than the soft limit is used
    /// after a take, the take is flagged (`soft_over`). If more than the hard limit would be used, the take is refused.
    /// `remaining` is the number of units that can be taken until the soft limit is reached.
    #[test]
    fn a_soft_limit_flags_and_the_hard_one_refuses(
        quota in quotas_with_extras().prop_filter("soft", |q| {
            q.hard_capacity() > q.capacity() && q.refusal_is_free()
        }),
        start in starts_ns(),
        steps in steps(),
        plain_steps in steps_of(Just(Kind::Take)),
    ) {
        walk(&quota, start, &steps, |state, quota, now| {
            let left = ask_copy(state, quota, Op::Peek, now).remaining;
            prop_assert!(left <= quota.capacity());
            let fits = (1..=quota.hard_capacity()).take_while(|cost| ask_copy(state, quota, take(*cost), now).allowed);
            let hard_left = fits.last().unwrap_or(0);
            let over = quota.hard_capacity() - quota.capacity();
            prop_assert!(hard_left <= left + over && (left == 0 || hard_left == left + over));
            for cost in 1..=hard_left {
                let decision = ask_copy(state, quota, take(cost), now);
                prop_assert_eq!(decision.soft_over, cost > left);
                prop_assert_eq!(decision.remaining, left.saturating_sub(cost));
            }
            Ok(())
        })?;
        assert_bound(&quota, start, &plain_steps)?;
    }

    /// A charged refusal counts like a force. The cost of this force is the cost of the take, but at most the capacity.
    #[test]
    fn a_charged_refusal_costs_its_units_up_to_the_capacity(
        quota in quotas_with_extras()
            .prop_filter("charged", |q| q.denied() == Denied::Charged && q.penalty_ns() == 0),
        start in starts_ns(),
        steps in steps(),
        plain_steps in steps_of(Just(Kind::Take)),
    ) {
        walk(&quota, start, &steps, |state, quota, now| {
            for cost in [1, quota.capacity(), quota.hard_capacity() + 1, u64::MAX] {
                let (mut refused, mut forced) = (state.clone(), state.clone());
                let decision = ask(&mut refused, quota, take(cost), now);
                if !decision.allowed {
                    let expected = ask(&mut forced, quota, Op::Force { cost: cost.min(quota.capacity()) }, now);
                    prop_assert_eq!(&refused, &forced);
                    prop_assert_eq!(decision.remaining, expected.remaining);
                    prop_assert_eq!(decision.reset_after_ns, expected.reset_after_ns);
                }
            }
            Ok(())
        })?;
        assert_bound(&quota, start, &plain_steps)?;
    }

    /// A penalty begins at the first refusal and lasts for its duration. If refusals are charged, each refusal starts
    /// the penalty again.
    #[test]
    fn a_penalty_lasts_as_long_as_it_says(
        quota in quotas_with_extras().prop_filter("penalty", |q| q.penalty_ns() > 0),
        steps in steps(),
    ) {
        let (mut state, mut now, mut wait_ns) = (State::default(), 1_770_000_000_000_000_000, 0);
        let mut until = 0;
        for (gap, cost, max_wait_ns) in steps {
            now = gap.after(&quota, now, wait_ns);
            let remaining = ask_copy(&state, &quota, Op::Peek, now).remaining;
            let op = Op::Take { cost: cost.units(&quota, remaining), max_wait_ns };
            let decision = ask(&mut state, &quota, op, now);
            prop_assert!(!(decision.allowed && now < until), "the penalty lasts until {until}");
            if decision.allowed {
                continue;
            }
            if quota.denied() == Denied::Charged || now >= until {
                until = now + quota.penalty_ns();
            }
            prop_assert!(decision.retry_after >= Wait::After(until - now));
            let peek = ask_copy(&state, &quota, Op::Peek, until);
            prop_assert!(peek.reason != Reason::Penalty, "the penalty has ended at {until}");
            let peek = ask_copy(&state, &quota, Op::Peek, until - 1);
            prop_assert!(!peek.allowed && peek.remaining == 0);
            wait_ns = decision.retry_after.nanos().unwrap_or(0);
        }
    }

    /// A poll is a take of one unit. The bucket holds one unit, so it admits a poll exactly if at least `T` (the time
    /// between two units) has passed since the last admitted poll. Refused polls make the refill neither faster nor
    /// slower.
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
