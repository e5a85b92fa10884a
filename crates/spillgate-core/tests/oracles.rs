//! Compares the kernel with a model that is simple enough to be checked by reading it.
//!
//! Windows are a few nanoseconds long, so that every instant can be tried. Every field of every answer has to equal the
//! same field in the answer of the model. A request can have the same time as the request before, an earlier time, or a
//! later time. All operations except resets occur, and limits change from one request to the next.

use std::time::Duration;

use crate::support::model::Model;
use crate::support::{algorithms, ask, ask_copy, cases, take, tiny_quotas};
use proptest::prelude::*;
use spillgate_core::{Algorithm, Anchor, Decision, Op, OpKind, Quota, Receipt, State, Wait};

/// A request: the index of its quota, the time since the previous request, and the operation.
#[derive(Clone, Copy, Debug)]
struct Step {
    quota: usize,
    gap_ns: i64,
    kind: OpKind,
    cost: u64,
    max_wait_ns: u64,
    /// Which receipt is used, counted back from the newest receipt.
    receipt: Option<usize>,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let gap = prop_oneof![4 => Just(0), 8 => 0..6i64, 2 => -3..=3i64, 1 => -60..0i64, 1 => 0..120i64];
    let kind = prop_oneof![
        16 => Just(OpKind::Take),
        4 => Just(OpKind::Refund),
        3 => Just(OpKind::Renew),
        2 => Just(OpKind::Peek),
        2 => Just(OpKind::Force),
        2 => Just(OpKind::Settle),
    ];
    let cost = prop_oneof![6 => 1..=3u64, 1 => 0..=12u64];
    let max_wait = prop_oneof![3 => Just(u64::MAX), 1 => 0..20u64];
    let receipt = prop::option::weighted(0.9, 0..8usize);
    let step = (0..3usize, gap, kind, cost, max_wait, receipt).prop_map(
        |(quota, gap_ns, kind, cost, max_wait_ns, receipt)| Step { quota, gap_ns, kind, cost, max_wait_ns, receipt },
    );
    prop::collection::vec(step, 1..100)
}

fn assert_as_the_model(quotas: &[Quota], start: u64, steps: &[Step]) -> Result<(), TestCaseError> {
    let (mut state, mut model, mut now) = (State::default(), Model::default(), start);
    let mut receipts: Vec<Receipt> = Vec::new();
    for step in steps {
        now = now.saturating_add_signed(step.gap_ns);
        let receipt = step.receipt.and_then(|back| receipts.iter().rev().nth(back).copied());
        let quota = &quotas[step.quota % quotas.len()];
        let op = match (step.kind, receipt) {
            (OpKind::Refund, receipt) => Op::Refund { cost: step.cost, receipt },
            (OpKind::Renew, Some(receipt)) => Op::Renew { receipt },
            (OpKind::Settle, Some(receipt)) => Op::settle(2, step.cost, receipt),
            (OpKind::Force, _) => Op::Force { cost: step.cost },
            (OpKind::Peek, _) => Op::Peek,
            _ => Op::Take { cost: step.cost, max_wait_ns: step.max_wait_ns },
        };
        let answer = ask(&mut state, quota, op, now);
        prop_assert_eq!(answer, model.ask(quota, op, now), "{:?} at {} of {:?}", op, now, quota);
        receipts.extend(answer.receipt);
    }
    Ok(())
}

macro_rules! decides_as_the_model {
    ($($name:ident: $algorithm:expr;)*) => {
        proptest! {
            #![proptest_config(cases(150))]
            $(
                #[test]
                fn $name(
                    quotas in $algorithm.prop_flat_map(tiny_quotas),
                    start in prop_oneof![Just(0), 0..1000u64],
                    steps in steps(),
                ) {
                    assert_as_the_model(&quotas, start, &steps)?;
                }
            )*
        }
    };
}

decides_as_the_model! {
    token_bucket_decides_as_the_model: Just(Algorithm::TokenBucket);
    leaky_bucket_decides_as_the_model: Just(Algorithm::LeakyBucket);
    fixed_window_decides_as_the_model: Just(Algorithm::FixedWindow(Anchor::Epoch));
    first_hit_window_decides_as_the_model: Just(Algorithm::FixedWindow(Anchor::FirstHit));
    log_decides_as_the_model: Just(Algorithm::SlidingWindowLog);
    counter_decides_as_the_model: (1..=5u8).prop_map(|segments| Algorithm::SlidingWindowCounter { segments });
    leases_decide_as_the_model: Just(Algorithm::Concurrency);
}

fn one_plain_quota() -> impl Strategy<Value = Quota> {
    // Windows that start at the first hit are left out. If the take that opened such a window is given back, later
    // takes keep the window open, and the window still starts at the time of the first take. So a take that is given
    // back can leave a trace in this algorithm.
    let algorithm = prop_oneof![algorithms(), Just(Algorithm::Concurrency)]
        .prop_filter("anchor", |a| *a != Algorithm::FixedWindow(Anchor::FirstHit));
    let first = algorithm.prop_flat_map(tiny_quotas).prop_map(|quotas| quotas[0].clone());
    first.prop_filter("extras", |q| q.refusal_is_free())
}

proptest! {
    #![proptest_config(cases(2000))]

    /// If a take is given back with its receipt, the state is as if the take had never happened. There are two
    /// exceptions:
    ///
    /// * A bucket, if time has given back a part of the take's debt before the refund. Such a bucket then counts as
    ///   much as without the take, or more, but never less.
    /// * A queue that admitted another take before the refund. The test does not try this.
    #[test]
    fn a_take_that_is_given_back_leaves_no_trace(
        quota in one_plain_quota(),
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
        for (gap, cost) in after {
            now += gap;
            let is_queue = quota.algorithm() == Algorithm::LeakyBucket;
            if !is_queue && ask_copy(&state, &quota, take(cost), now).allowed {
                let (with, alone) = (ask(&mut state, &quota, take(cost), now), ask(&mut without, &quota, take(cost), now));
                prop_assert!(with.allowed && alone.allowed);
            }
        }
        let is_bucket = matches!(quota.algorithm(), Algorithm::TokenBucket | Algorithm::LeakyBucket);
        let is_partly_back = is_bucket && receipt.mark < now + cost * quota.interval_ns();
        ask(&mut state, &quota, Op::Refund { cost, receipt: Some(receipt) }, now);
        for later in 0..100 {
            let (with, alone) = (
                ask_copy(&state, &quota, Op::Peek, now + later),
                ask_copy(&without, &quota, Op::Peek, now + later),
            );
            if is_partly_back {
                prop_assert!(with.remaining <= alone.remaining, "{later} ns later");
            } else {
                prop_assert_eq!(with.remaining, alone.remaining, "{} ns later", later);
            }
        }
    }
}

/// Tests the largest log: the waits for several costs, and a refund of an entry in the middle.
#[test]
fn a_full_log_frees_its_entries_one_by_one() {
    const LIMIT: u64 = 65_536;
    let quota = Quota::sliding_window_log(LIMIT, Duration::from_secs(1)).build().expect("a log");
    let (mut state, window_ns) = (State::default(), quota.window_ns());
    let mut receipts = Vec::new();
    for at in 0..LIMIT {
        receipts.extend(ask(&mut state, &quota, Op::take(1), at * 10).receipt);
    }
    let now = LIMIT * 10;
    for cost in [1, 2, 77, LIMIT - 1, LIMIT] {
        let wait_ns = (cost - 1) * 10 + window_ns - now;
        assert_eq!(ask(&mut state, &quota, Op::take(cost), now).retry_after, Wait::After(wait_ns));
    }
    let refund = Op::Refund { cost: 1, receipt: Some(receipts[30_000]) };
    assert_eq!(ask(&mut state, &quota, refund, now).remaining, 1);
    assert_eq!(ask(&mut state, &quota, Op::take(30_002), now).retry_after, Wait::After(30_001 * 10 + window_ns - now));
    assert!(state.heap_bytes() <= 2 * 16 * LIMIT as usize);
}

/// Tests the largest number of leases: they are granted, renewed, released and expired.
#[test]
fn a_full_set_of_leases_is_counted_right() {
    const PERMITS: u64 = 65_536;
    let quota = Quota::concurrency(PERMITS).lease(Duration::from_secs(1)).build().expect("permits");
    let mut state = State::default();
    let receipts: Vec<Receipt> =
        (0..PERMITS).filter_map(|at| ask(&mut state, &quota, Op::take(1), at * 10).receipt).collect();
    let now = PERMITS * 10;
    assert_eq!(receipts.len() as u64, PERMITS);
    assert_eq!(ask(&mut state, &quota, Op::take(1), now).retry_after, Wait::Unknown);
    assert!(ask(&mut state, &quota, Op::Renew { receipt: receipts[0] }, now).allowed);
    let refund = Op::Refund { cost: 1, receipt: Some(receipts[9]) };
    assert_eq!(ask(&mut state, &quota, refund, now).remaining, 1);
    // Among the first 100 leases, one was renewed and one was released. The other 98 have expired. Together with the
    // released permit, 99 permits are free.
    assert_eq!(ask(&mut state, &quota, Op::Peek, quota.lease_ns() + 990).remaining, 99);
    assert_eq!(ask(&mut state, &quota, Op::Peek, quota.lease_ns() + now - 1).remaining, PERMITS - 1);
    assert_eq!(ask(&mut state, &quota, Op::Peek, quota.lease_ns() + now), Decision::allow(PERMITS, PERMITS));
}
