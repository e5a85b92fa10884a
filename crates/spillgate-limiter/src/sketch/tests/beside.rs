//! Tests of requests that have hits on sketches and hits on a store.

use std::task::{Context, Poll, Waker};

use spillgate_core::{Binding, Decision, Hit, Op, Quota, Reason, Store, StoreError, Time, Timing, Verdict};
use spillgate_testkit::{Fault, Random, Remote};

use super::common::{SECOND, quotas};
use super::exact::operation;
use crate::sketch::Sketch;
use crate::{MemoryOptions, MemoryStore};

fn memory() -> MemoryStore {
    MemoryStore::new(MemoryOptions::default())
}

fn decide<S: Store>(
    sketches: &[Option<&Sketch>],
    store: &S,
    now: Time,
    hits: &[Hit<'_>],
) -> Result<(Verdict, Vec<Decision>), StoreError> {
    let mut decisions = vec![Decision::default(); hits.len()];
    let deciding = Sketch::decide_beside(sketches, store, Timing::at(now), now, hits, &mut decisions);
    let Poll::Ready(verdict) = Box::pin(deciding).as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
        unreachable!("all stores of these tests answer at once");
    };
    Ok((verdict?, decisions))
}

/// While each key has its cells for itself, sketches beside a store in memory decide as one store would.
#[test]
fn beside_a_store_in_memory_a_request_is_all_or_nothing() {
    let mut random = Random(91);
    let (quotas, exact_quota) = (quotas(5, SECOND), Quota::per_second(7).constant());
    let sketches: Vec<Sketch> = quotas.iter().map(|quota| Sketch::with_cells(quota, 1 << 18)).collect();
    let (store, reference, mut now) = (memory(), memory(), 1_000 * SECOND);
    for step in 0..20_000 {
        now += random.below(SECOND / 4);
        let mut beside: Vec<Option<&Sketch>> = Vec::new();
        let hits: Vec<_> = (0..1 + random.below(4))
            .map(|_| {
                let (limit, key) = (random.index(quotas.len() + 1), 1 << 100 | u128::from(random.below(2)));
                let binding = *random.pick(&[Binding::Enforce, Binding::Enforce, Binding::Shadow]);
                beside.push(sketches.get(limit));
                // Each limit gets keys of its own, because the reference would count different limits in one state if
                // they have the same algorithm and the same window.
                let key = key ^ (limit as u128) << 64;
                Hit::new(key, quotas.get(limit).unwrap_or(&exact_quota), operation(&mut random), binding)
            })
            .collect();
        let at = Time::from_nanos(now);
        let (verdict, mut decisions) = decide(&beside, &store, at, &hits).expect("the hits are supported");
        let mut expected = vec![Decision::default(); hits.len()];
        let expected_verdict = reference.decide_now(at, &hits, &mut expected).expect("the hits are valid");
        let without = |decisions: &mut [Decision]| decisions.iter_mut().for_each(|one| *one = one.without_receipt());
        without(&mut decisions);
        without(&mut expected);
        assert_eq!((verdict, decisions), (expected_verdict, expected), "step {step}: {hits:?}");
    }
}

#[test]
fn beside_a_store_that_waits_the_sketch_is_asked_first() {
    let (address, user) = (Quota::per_second(3).constant(), Quota::per_day(1).constant());
    let (sketch, store) = (Sketch::with_cells(&address, 1 << 16), Remote::new(memory()));
    let at = Time::from_nanos(SECOND);
    let hit = |key, quota, op| Hit::new(key, quota, op, Binding::Enforce);
    let request = |ops: [Op; 2]| {
        let hits = [hit(1, &address, ops[0]), hit(2, &user, ops[1])];
        decide(&[Some(&sketch), None], &store, at, &hits).expect("the hits are supported")
    };
    let left = || {
        (
            sketch.hit_now(at, &hit(1, &address, Op::Peek)).remaining,
            store.direct().hit_now(at, &hit(2, &user, Op::Peek)).remaining,
        )
    };

    assert!(request([Op::take(1), Op::take(1)]).0.allowed);
    assert_eq!(left(), (2, 0));
    let (verdict, decisions) = request([Op::take(1), Op::take(1)]);
    assert_eq!((verdict.allowed, verdict.binding), (false, Some(1)));
    assert!(decisions[0].allowed && !decisions[1].allowed);
    assert_eq!(left(), (1, 0), "the sketch keeps what it has charged");

    let (verdict, decisions) = request([Op::take(2), Op::take(1)]);
    assert_eq!((verdict.allowed, verdict.binding, decisions[1].reason), (false, Some(0), Reason::NotAsked));
    let (verdict, decisions) = request([Op::take(2), Op::Force { cost: 1 }]);
    assert!(
        !verdict.allowed && decisions[1].reason != Reason::NotAsked,
        "a force counts although the request is refused"
    );
    assert_eq!(left(), (1, 0));
    let (_, decisions) = request([Op::take(1), Op::Peek]);
    assert_eq!((decisions[1].remaining, decisions[1].allowed), (0, false), "the force has counted");
    assert_eq!(left(), (0, 0));
}

#[test]
fn requests_that_cannot_be_decided_are_errors() {
    let quota = Quota::per_second(3).constant();
    let (sketch, store) = (Sketch::with_cells(&quota, 1 << 16), memory());
    let at = Time::from_nanos(SECOND);
    let refund = [Hit::new(1, &quota, Op::Refund { cost: 1, receipt: None }, Binding::Enforce)];
    let take = [Hit::new(1, &quota, Op::take(1), Binding::Enforce)];
    for (sketches, hits) in [(&[Some(&sketch)][..], &refund), (&[], &take)] {
        let error = decide(sketches, &store, at, hits).expect_err("it cannot be decided");
        assert_eq!(error.kind(), crate::StoreErrorKind::Malformed);
    }
    let broken = Remote::new(memory()).with(Fault::Disconnected);
    let error = decide(&[None], &broken, at, &take).expect_err("the store fails");
    assert_eq!(error.kind(), crate::StoreErrorKind::Disconnected);
}
