//! `retry_after` is exact: a caller is refused at every instant before the wait is over, and allowed when it is over.
//!
//! Clients sleep for `retry_after`. After a wait that is too short, they would be refused again.

use crate::support::{
    algorithms, ask, ask_copy, cases, costs, gaps, plain_quotas, quotas_with_extras, starts_ns, take, tiny_quotas,
};
use proptest::prelude::*;
use spillgate_core::{Algorithm, Decision, Op, Quota, Reason, State, Wait};

/// Repeats a refused operation, and checks that it is refused before the wait is over, and allowed when the wait is
/// over. `instants` gets the wait and returns when to repeat, in nanoseconds after the refusal. No other caller asks
/// meanwhile.
fn assert_exact(
    state: &State,
    quota: &Quota,
    (op, now): (Op, u64),
    refused: &Decision,
    instants: impl FnOnce(u64) -> Vec<u64>,
) -> Result<(), TestCaseError> {
    let cost = if let Op::Take { cost, .. } = op { cost } else { 0 };
    match refused.retry_after {
        Wait::Never => prop_assert!(cost > quota.hard_capacity()),
        Wait::Unknown => prop_assert_eq!(quota.algorithm(), Algorithm::Concurrency),
        Wait::After(wait_ns) => {
            prop_assert!(wait_ns > 0, "the wait of a refused caller is never 0");
            prop_assert!(cost <= quota.hard_capacity());
            prop_assert!(ask_copy(state, quota, op, now + wait_ns).allowed, "allowed {wait_ns} ns later");
            let changes_nothing = quota.refusal_is_free();
            for ns in instants(wait_ns) {
                let before = ask_copy(state, quota, op, now + ns);
                prop_assert!(
                    !before.allowed,
                    "the caller must be refused {ns} ns after the refusal, because the wait is {wait_ns} ns"
                );
                prop_assert!(
                    !changes_nothing || before.retry_after == Wait::After(wait_ns - ns),
                    "the wait gets shorter by the time that has passed"
                );
            }
        }
    }
    Ok(())
}

/// The requests of a small trace: for each, the time since the previous request, and the operation.
fn small_ops() -> impl Strategy<Value = Vec<(u64, Op)>> {
    let max_wait = prop_oneof![2 => Just(u64::MAX), 1 => 0..40u64];
    let op = prop_oneof![
        6 => (1..=8u64, max_wait).prop_map(|(cost, max_wait_ns)| Op::Take { cost, max_wait_ns }),
        1 => (1..=8u64).prop_map(|cost| Op::Force { cost }),
        1 => (1..=3u64).prop_map(|cost| Op::Refund { cost, receipt: None }),
        1 => Just(Op::Peek),
    ];
    prop::collection::vec((prop_oneof![3 => 0..3u64, 1 => 0..50u64], op), 1..40)
}

proptest! {
    #![proptest_config(cases(400))]

    /// Some of the quotas have a soft limit, charged refusals or a penalty.
    #[test]
    fn a_wait_is_exact_at_every_instant(
        quotas in prop_oneof![6 => algorithms().boxed(), 1 => Just(Algorithm::Concurrency).boxed()]
            .prop_filter("small", |a| !matches!(a, Algorithm::SlidingWindowCounter { segments: 7.. }))
            .prop_flat_map(tiny_quotas),
        start in 0..1000u64,
        ops in small_ops(),
    ) {
        let (mut state, mut now, quota) = (State::default(), start, &quotas[0]);
        for (gap_ns, op) in ops {
            now += gap_ns;
            let decision = ask(&mut state, quota, op, now);
            if !decision.allowed && decision.reason != Reason::Unsupported {
                assert_exact(&state, quota, (op, now), &decision, |wait_ns| (0..wait_ns).collect())?;
            }
        }
    }

    #[test]
    fn a_wait_is_exact_at_random_instants(
        quota in prop_oneof![plain_quotas(), quotas_with_extras()],
        start in starts_ns(),
        steps in prop::collection::vec(
            (gaps(), costs(), prop_oneof![Just(u64::MAX), 0..2_000_000_000u64], 0..8u8), 1..40),
        shares in prop::collection::vec(any::<u64>(), 12),
    ) {
        let (mut state, mut now, mut wait_ns) = (State::default(), start, 0);
        for (gap, cost, max_wait_ns, kind) in steps {
            now = gap.after(&quota, now, wait_ns);
            let cost = cost.units(&quota, ask_copy(&state, &quota, Op::Peek, now).remaining);
            let op = if kind == 0 { Op::Force { cost } } else { Op::Take { cost, max_wait_ns } };
            let decision = ask(&mut state, &quota, op, now);
            prop_assert_eq!(decision.allowed, decision.retry_after == Wait::NONE);
            if !decision.allowed {
                wait_ns = decision.retry_after.nanos().unwrap_or(0);
                let instants = |wait_ns| shares.iter().map(|n| n % wait_ns).chain([0, wait_ns - 1]).collect();
                assert_exact(&state, &quota, (op, now), &decision, instants)?;
            }
        }
    }

    /// After a take was refused, every take with the same or a larger cost is refused until the wait of the refused
    /// take is over. This is true even if other callers take or force units meanwhile. The deny cache relies on this.
    #[test]
    fn a_refusal_holds_for_all_that_cost_as_much(
        quota in plain_quotas(),
        start in starts_ns(),
        steps in prop::collection::vec((gaps(), costs(), 0..8u8), 1..60),
    ) {
        let (mut state, mut now, mut wait_ns) = (State::default(), start, 0);
        let mut refusals: Vec<(u64, u64)> = Vec::new();
        for (gap, cost, kind) in steps {
            now = gap.after(&quota, now, wait_ns);
            let cost = cost.units(&quota, ask_copy(&state, &quota, Op::Peek, now).remaining);
            let op = if kind == 0 { Op::Force { cost } } else { take(cost) };
            let decision = ask(&mut state, &quota, op, now);
            let refused = refusals.iter().any(|(least, until)| cost >= *least && now < *until);
            prop_assert!(!(refused && kind > 0 && decision.allowed), "a take of {cost} units was allowed at {now}, after the refusals {refusals:?}");
            if let Wait::After(ns @ 1..) = decision.retry_after {
                wait_ns = ns;
                refusals.push((cost, now + ns));
            }
        }
    }
}
