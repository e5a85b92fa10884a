//! Tests requests whose shared store takes no new keys: the local store decides the newcomers, and the shared store
//! decides the others.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::shaky::{at_once, memory, nodes, with_fallback};
use spillgate_limiter::{
    Binding, Decision, FallbackStore, Hit, MemoryOptions, MemoryStore, OnStoreFailure, Op, OpKind, Quota, Reason,
    Source, Store, StoreError, StoreErrorKind, Time, Timing, Verdict, Wait,
};

const NOW: Time = Time::from_nanos(1_790_000_000_000_000_000);

/// What happens to the second half of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SecondHalf {
    Decided,
    Fails,
    NeverEnds,
}

/// A shared store that makes no key.
struct NoNewKeys {
    states: MemoryStore,
    second_half: SecondHalf,
    was_asked_again: Arc<AtomicBool>,
}

impl Store for NoNewKeys {
    fn supports(&self, quota: &Quota, op: OpKind) -> bool {
        self.states.supports(quota, op)
    }

    async fn decide(
        &self,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        let now = timing.now.expect("the store has no clock");
        let is_new = |hit: &Hit<'_>| {
            let peek = hit.with_op(Op::Peek).with_binding(Binding::Shadow);
            hit.op.kind() == OpKind::Take && self.states.hit_now(now, &peek).reset_after_ns == 0
        };
        decisions.fill(Decision::default());
        for (hit, decision) in hits.iter().zip(&mut *decisions).filter(|(hit, _)| is_new(hit)) {
            *decision = Decision::refuse(hit.quota.capacity(), Reason::NotAsked, Wait::Unknown);
        }
        if decisions.iter().any(|decision| decision.reason == Reason::NotAsked) {
            return Err(StoreError::new(StoreErrorKind::NewKeys, "no new keys"));
        }
        self.states.decide_now(now, hits, decisions)
    }

    async fn decide_known_keys(
        &self,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        self.was_asked_again.store(true, Ordering::Relaxed);
        match self.second_half {
            SecondHalf::Decided => {}
            SecondHalf::Fails => return Err(StoreError::new(StoreErrorKind::NotSent, "lost")),
            SecondHalf::NeverEnds => std::future::pending().await,
        }
        self.states.decide_now(timing.now.expect("the store has no clock"), hits, decisions)
    }
}

/// Key 1 is in the shared store, with 2 of 12 units used. The limit has this policy.
fn four_nodes(second_half: SecondHalf, policy: OnStoreFailure) -> (FallbackStore<NoNewKeys>, Quota) {
    let quota = Quota::fixed_window(12, Duration::from_secs(60)).on_store_failure(policy).build();
    let quota = quota.expect("the quota is valid");
    let shared = NoNewKeys { states: memory(), second_half, was_asked_again: Arc::default() };
    assert!(shared.states.hit_now(NOW, &take(1, &quota, 2)).allowed);
    (with_fallback(shared, 4), quota)
}

fn take(key: u128, quota: &Quota, cost: u64) -> Hit<'_> {
    Hit::new(key, quota, Op::take(cost), Binding::Enforce)
}

fn ask(store: &FallbackStore<NoNewKeys>, hits: &[Hit<'_>]) -> Result<(Verdict, Vec<Decision>), StoreErrorKind> {
    let mut decisions = vec![Decision::default(); hits.len()];
    let verdict = at_once(store.decide(Timing::at(NOW), hits, &mut decisions)).map_err(|error| error.kind())?;
    Ok((verdict, decisions))
}

/// Returns what is left of a key in the shared store, and in the local store.
fn left(store: &FallbackStore<NoNewKeys>, key: u128, quota: &Quota) -> (u64, u64) {
    let peek =
        |store: &MemoryStore, quota: &Quota| store.hit_now(NOW, &take(key, quota, 1).with_op(Op::Peek)).remaining;
    (peek(&store.shared().states, quota), peek(store.local(), &quota.share(nodes(4))))
}

#[test]
fn a_newcomer_gets_the_share_of_this_server_whatever_the_policy_says() {
    for policy in [OnStoreFailure::Allow, OnStoreFailure::Deny, OnStoreFailure::Error, OnStoreFailure::Local] {
        let (store, quota) = four_nodes(SecondHalf::Decided, policy);
        for used in 1..=4 {
            let (verdict, decisions) = ask(&store, &[take(2, &quota, 1)]).expect("the request is decided");
            assert_eq!((verdict.allowed, verdict.source), (used <= 3, Source::Local), "{policy:?}");
            assert_eq!(decisions[0].limit, 3);
        }
        assert!(!store.shared().was_asked_again.load(Ordering::Relaxed));
        let (verdict, _) = ask(&store, &[take(1, &quota, 1)]).expect("the request is decided");
        assert_eq!((verdict.allowed, verdict.source), (true, Source::Store));
        assert_eq!((left(&store, 1, &quota), left(&store, 2, &quota)), ((9, 3), (12, 0)));
    }
}

#[test]
fn a_caller_who_leaves_in_the_second_half_takes_nothing_locally() {
    let (store, quota) = four_nodes(SecondHalf::NeverEnds, OnStoreFailure::Local);
    {
        let (hits, mut decisions) = ([take(1, &quota, 1), take(2, &quota, 2)], [Decision::default(); 2]);
        let mut waiting = pin!(store.decide(Timing::at(NOW), &hits, &mut decisions));
        assert!(matches!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Pending));
        assert_eq!(left(&store, 2, &quota), (12, 1));
    }
    assert_eq!(left(&store, 2, &quota), (12, 3));
}

#[test]
fn policies_decide_the_others_if_the_second_half_fails() {
    for (policy, allowed) in
        [(OnStoreFailure::Allow, true), (OnStoreFailure::Deny, false), (OnStoreFailure::Local, true)]
    {
        let (store, quota) = four_nodes(SecondHalf::Fails, policy);
        let (verdict, decisions) = ask(&store, &[take(1, &quota, 1), take(2, &quota, 2)]).expect("a policy decides");
        assert_eq!((verdict.allowed, verdict.source), (allowed, Source::Local), "{policy:?}");
        assert_eq!(left(&store, 2, &quota), (12, if allowed { 1 } else { 3 }), "{policy:?}");
        assert_eq!(decisions[1].remaining, if allowed { 1 } else { 3 });
    }
    let (store, quota) = four_nodes(SecondHalf::Fails, OnStoreFailure::Error);
    let failed = ask(&store, &[take(1, &quota, 1), take(2, &quota, 2)]);
    assert_eq!((failed.err(), left(&store, 2, &quota)), (Some(StoreErrorKind::NotSent), (12, 3)));
}

#[test]
fn a_full_local_store_charges_nothing_in_the_shared_store() {
    let (_, quota) = four_nodes(SecondHalf::Decided, OnStoreFailure::Local);
    let local = MemoryStore::new(MemoryOptions { max_keys: 1, ..MemoryOptions::default() });
    let shared = NoNewKeys { states: memory(), second_half: SecondHalf::Decided, was_asked_again: Arc::default() };
    assert!(shared.states.hit_now(NOW, &take(1, &quota, 2)).allowed);
    let store = FallbackStore::new(shared, local, nodes(4));
    assert!(ask(&store, &[take(2, &quota, 1)]).is_ok_and(|(verdict, _)| verdict.allowed));
    // One allowed hit of this binding is enough, but the full store refuses the whole request.
    for binding in [Binding::Enforce, Binding::Quota] {
        let hits = [1, 2, 3].map(|key| take(key, &quota, 1).with_binding(binding));
        let (verdict, decisions) = ask(&store, &hits).expect("the request is decided");
        assert_eq!((verdict.allowed, decisions[2].reason), (false, Reason::StoreFull), "{binding:?}");
        assert_eq!((left(&store, 1, &quota).0, left(&store, 2, &quota).1), (10, 2), "{binding:?}");
    }
}

/// A request can release a local permit and take a new one.
#[test]
fn units_of_newcomers_are_refunded_and_reset_locally() {
    let (store, _) = four_nodes(SecondHalf::Decided, OnStoreFailure::Local);
    let permits = Quota::concurrency(8).lease(Duration::from_secs(60)).build().expect("the quota is valid");
    let first = ask(&store, &[take(5, &permits, 2)]).expect("the request is decided").1[0];
    assert!(!ask(&store, &[take(5, &permits, 1)]).expect("the request is decided").0.allowed);
    let release = take(5, &permits, 1).with_op(Op::Refund { cost: 2, receipt: first.receipt });
    let (verdict, decisions) = ask(&store, &[release, take(6, &permits, 1)]).expect("the request is decided");
    assert!(verdict.allowed && decisions[1].receipt.is_some_and(|receipt| receipt.mark >> 63 == 1));
    assert_eq!((left(&store, 5, &permits), left(&store, 6, &permits)), ((8, 2), (8, 1)));
    let reset = take(6, &permits, 1).with_op(Op::Reset);
    assert!(ask(&store, &[reset, take(7, &permits, 1)]).expect("the request is decided").0.allowed);
    assert_eq!((left(&store, 6, &permits), left(&store, 7, &permits)), ((8, 2), (8, 1)));
}
