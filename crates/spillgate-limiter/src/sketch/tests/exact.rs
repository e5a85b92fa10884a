//! While a key has its cells for itself, a sketch decides exactly as the kernel does.

use spillgate_core::{Binding, Decision, Hit, Op, Store, Time};
use spillgate_testkit::Random;

use super::common::{Exact, SECOND, quotas};
use crate::sketch::Sketch;

/// Returns a random operation that a sketch supports.
pub(super) fn operation(random: &mut Random) -> Op {
    match random.below(10) {
        0 => Op::Peek,
        1 => Op::take(0),
        2 => Op::Force { cost: random.below(6) },
        3 => Op::Take { cost: 1 + random.below(3), max_wait_ns: random.below(SECOND) },
        _ => Op::take(1 + random.below(3)),
    }
}

#[test]
fn a_key_with_cells_of_its_own_is_decided_as_by_the_kernel() {
    let mut random = Random(71);
    for quota in quotas(5, SECOND) {
        let sketch = Sketch::with_cells(&quota, 1 << 20);
        let (mut exact, mut now) = (Exact::default(), 1_000 * SECOND);
        for step in 0..20_000 {
            let pause = if random.one_in(50) { 3 * SECOND } else { SECOND / 4 };
            now += random.below(pause);
            let (op, at) = (operation(&mut random), Time::from_nanos(now));
            let decision = sketch.hit_now(at, &Hit::new(1 << 100 | 7, &quota, op, Binding::Enforce));
            let expected = exact.decide(&quota, op, at).without_receipt();
            assert_eq!(decision, expected, "step {step}, {op:?}, {quota:?}");
        }
    }
}

#[test]
fn a_request_of_several_hits_is_decided_as_by_the_kernel() {
    let mut random = Random(72);
    for quota in quotas(5, SECOND) {
        let sketch = Sketch::with_cells(&quota, 1 << 20);
        let memory = crate::MemoryStore::new(crate::MemoryOptions::default());
        let mut now = 1_000 * SECOND;
        for step in 0..5_000 {
            now += random.below(SECOND / 3);
            let bindings = [Binding::Enforce, Binding::Shadow, Binding::Quota];
            let hits: Vec<_> = (0..1 + random.below(4))
                .map(|_| {
                    Hit::new(
                        1 << 100 | u128::from(random.below(3)),
                        &quota,
                        operation(&mut random),
                        *random.pick(&bindings),
                    )
                })
                .collect();
            let (mut decisions, mut expected) =
                (vec![Decision::default(); hits.len()], vec![Decision::default(); hits.len()]);
            let at = Time::from_nanos(now);
            let verdict = sketch.decide_now(at, &hits, &mut decisions).expect("the hits are supported");
            let expected_verdict = memory.decide_now(at, &hits, &mut expected).expect("the hits are valid");
            expected.iter_mut().for_each(|decision| *decision = decision.without_receipt());
            assert_eq!((verdict, decisions), (expected_verdict, expected), "step {step}: {hits:?}");
        }
    }
}

#[test]
fn a_late_request_is_decided_in_the_newest_window() {
    for quota in quotas(3, SECOND).into_iter().skip(3).take(2) {
        let sketch = Sketch::with_cells(&quota, 1 << 20);
        let take = |ns| sketch.take_now(Time::from_nanos(ns), &quota, 7, 1);
        assert!(take(10 * SECOND).allowed);
        // Another key begins the window 12, whose cells are those of the window 10.
        assert!(sketch.take_now(Time::from_nanos(12 * SECOND), &quota, 8, 1).allowed);
        let late: Vec<_> = (0..5).map(|_| take(10 * SECOND).allowed).collect();
        assert_eq!(late, [true, true, true, false, false]);
        assert!(!take(12 * SECOND).allowed, "the late takes count in the window 12");
    }
}

#[test]
fn what_a_sketch_cannot_do_is_refused() {
    let quota = &quotas(5, SECOND)[0];
    let other = crate::Quota::fixed_window(5, std::time::Duration::from_secs(1)).build().expect("the quota is valid");
    let sketch = Sketch::new(quota, 0).expect("a bucket can have a sketch");
    let faster = crate::Quota::per_second(quota.limit() * 10).burst(quota.capacity()).constant();
    let refused = [
        (quota, Op::Refund { cost: 1, receipt: None }),
        (quota, Op::Reset),
        (&other, Op::take(1)),
        // At this rate, the debt for the same units is shorter. But the debt in a cell cannot be made shorter.
        (&faster, Op::take(1)),
    ];
    for (quota, op) in refused {
        let hit = Hit::new(7, quota, op, Binding::Enforce);
        assert!(!sketch.supports(quota, op.kind()));
        assert_eq!(sketch.hit_now(Time::EPOCH, &hit).reason, crate::Reason::Unsupported);
        let error =
            sketch.decide_now(Time::EPOCH, &[hit], &mut [Decision::default()]).expect_err("it is not supported");
        assert_eq!(error.kind(), crate::StoreErrorKind::Malformed);
    }
    assert_eq!(sketch.bytes(), 128 << 10, "the smallest sketch has 128 KiB");
}
