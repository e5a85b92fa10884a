//! Tests of requests while a shared store fails: policies, receipts, resets, and the source of the verdict.
//!
//! A policy (`on_store_failure`) says what a limit does while the store fails. With the policy `local`, each server can
//! admit its share of the limit: the limit divided by the number of servers. In the code, a server is called a node. A
//! receipt says which store (shared or local) a take was charged to, so that a refund goes to the same store.

use std::time::Duration;

use crate::shaky::{Link, Shaky, at_once, memory, nodes, with_fallback};
use spillgate_limiter::conformance::run_all;
use spillgate_limiter::{
    Binding, Decision, Denied, FallbackStore, Hit, Limiter, ManualClock, MemoryOptions, MemoryStore, OnStoreFailure,
    Op, Quota, QuotaBuilder, Reason, Receipt, Source, Store, StoreError, StoreErrorKind, Time, Timing, Verdict, Wait,
};

const SECOND: Duration = Duration::from_secs(1);
const NOW: Time = Time::from_nanos(1_790_000_000_000_000_000);

/// Returns a quota of twelve units a minute with this policy.
fn quota(policy: OnStoreFailure) -> Quota {
    built(Quota::fixed_window(12, SECOND * 60).on_store_failure(policy))
}

fn deny_local_allow() -> (Quota, Quota, Quota) {
    (quota(OnStoreFailure::Deny), quota(OnStoreFailure::Local), quota(OnStoreFailure::Allow))
}

fn permits(policy: OnStoreFailure) -> Quota {
    built(Quota::concurrency(4).lease(SECOND * 10).on_store_failure(policy))
}

fn built(builder: QuotaBuilder) -> Quota {
    builder.build().expect("the quota is valid")
}

fn take(key: u128, quota: &Quota, cost: u64) -> Hit<'_> {
    Hit::new(key, quota, Op::take(cost), Binding::Enforce)
}

/// One of four servers that use a shared store. Each server has a local store, and a link to the shared store. This
/// link can fail.
struct Node(FallbackStore<Shaky>);

impl Node {
    fn new() -> Node {
        Node(with_fallback(Shaky::new(), 4))
    }

    fn cut_off() -> Node {
        let node = Node::new();
        node.0.shared().set(Link::Lost);
        node
    }

    fn ask_at(&self, now: Time, hits: &[Hit<'_>]) -> Result<(Verdict, Vec<Decision>), StoreError> {
        let mut decisions = vec![Decision::default(); hits.len()];
        let verdict = at_once(self.0.decide(Timing::at(now), hits, &mut decisions))?;
        Ok((verdict, decisions))
    }

    fn ask(&self, hits: &[Hit<'_>]) -> (Verdict, Vec<Decision>) {
        self.ask_at(NOW, hits).expect("the request is decided")
    }

    fn fails(&self, hits: &[Hit<'_>]) -> bool {
        matches!(self.ask_at(NOW, hits), Err(error) if error.detail() == "Lost")
    }

    /// Returns the units that are left of this server's share.
    fn left_locally(&self, key: u128, quota: &Quota) -> u64 {
        let share = quota.share(nodes(4));
        self.0.local().hit_now(NOW, &Hit::new(key, &share, Op::Peek, Binding::Enforce)).remaining
    }

    /// Returns the units that are left in the shared store.
    fn left_in_store(&self, key: u128, quota: &Quota) -> u64 {
        self.0.shared().shared.hit_now(NOW, &Hit::new(key, quota, Op::Peek, Binding::Enforce)).remaining
    }
}

fn receipt(decision: &Decision) -> Receipt {
    decision.receipt.expect("a take that was charged has a receipt")
}

#[test]
fn a_store_that_answers_decides_alone() {
    let requests = run_all(|| {
        let store = with_fallback(memory(), 3);
        move |now, hits: &[Hit<'_>], decisions: &mut [Decision]| {
            at_once(store.decide(Timing::at(now), hits, decisions)).expect("traces are well formed")
        }
    });
    match requests {
        Ok(requests) => assert!(requests > 300, "the traces have only {requests} requests"),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn allow_allows_and_deny_refuses_every_request() {
    let node = Node::cut_off();
    let (allow, deny) = (quota(OnStoreFailure::Allow), quota(OnStoreFailure::Deny));
    for op in [Op::take(1), Op::take(12), Op::Peek, Op::Force { cost: 13 }] {
        let (verdict, decisions) = node.ask(&[Hit::new(1, &allow, op, Binding::Enforce)]);
        assert_eq!((verdict.allowed, verdict.source, verdict.now), (true, Source::Policy, NOW), "{op:?}");
        assert_eq!((verdict.binding, verdict.retry_after, verdict.delay_ns), (Some(0), Wait::NONE, 0));
        let expected = Decision::allow(12, 12).with_reason(Reason::StoreFailed);
        assert_eq!(decisions, [expected]);
        let (verdict, decisions) = node.ask(&[Hit::new(1, &deny, op, Binding::Enforce)]);
        assert_eq!((verdict.allowed, verdict.source), (false, Source::Policy), "{op:?}");
        assert_eq!((verdict.binding, verdict.retry_after), (Some(0), Wait::Unknown));
        let expected = Decision::refuse(12, Reason::StoreFailed, Wait::Unknown);
        assert_eq!(decisions, [expected]);
    }
    assert!(node.0.local().is_empty(), "the policies `allow` and `deny` count nothing");
}

#[test]
fn a_cost_above_the_capacity_is_refused_by_allow_too() {
    let node = Node::cut_off();
    let nothing = |builder: QuotaBuilder| built(builder.on_store_failure(OnStoreFailure::Allow));
    let banned = nothing(Quota::fixed_window(0, SECOND * 60));
    let charged = nothing(Quota::fixed_window(12, SECOND * 60).denied(Denied::Charged));
    let punished = nothing(Quota::token_bucket(12, SECOND * 60).penalty(SECOND));
    let local = quota(OnStoreFailure::Local);
    for (hit, limit) in [(take(1, &banned, 1), 0), (take(1, &charged, 13), 12), (take(1, &punished, 13), 12)] {
        let (verdict, decisions) = node.ask(&[hit]);
        let expected = (false, Source::Policy, Some(0), Wait::Never);
        assert_eq!((verdict.allowed, verdict.source, verdict.binding, verdict.retry_after), expected, "{hit:?}");
        let decision = &decisions[0];
        assert_eq!((decision.allowed, decision.limit, decision.receipt), (false, limit, None), "{hit:?}");
        // This request has a hit on a limit with the policy `local`, and also the hit that was refused above. So the
        // request takes nothing from the local limit.
        let (verdict, decisions) = node.ask(&[take(2, &local, 1), hit]);
        assert_eq!((verdict.allowed, verdict.source, verdict.binding), (false, Source::Local, Some(1)), "{hit:?}");
        assert_eq!(
            (decisions[0].allowed, decisions[0].receipt, node.left_locally(2, &local)),
            (true, None, 3),
            "{hit:?}"
        );
        let (verdict, _) = node.ask(&[take(3, &local, 0), hit.with_binding(Binding::Shadow)]);
        assert!(verdict.allowed, "a limit in shadow mode refuses nothing");
    }
    assert!(node.ask(&[Hit::new(1, &banned, Op::Peek, Binding::Enforce)]).0.allowed, "a peek fits a limit of 0");
}

#[test]
fn error_returns_the_error_of_the_store_unless_its_hit_is_a_shadow() {
    let node = Node::cut_off();
    let (error, local) = (quota(OnStoreFailure::Error), quota(OnStoreFailure::Local));
    for binding in [Binding::Enforce, Binding::Quota] {
        assert!(node.fails(&[take(1, &local, 1), Hit::new(2, &error, Op::take(1), binding)]), "{binding:?}");
    }
    assert_eq!(node.left_locally(1, &local), 3, "a request that fails takes nothing");
    let shadow = Hit::new(2, &error, Op::take(1), Binding::Shadow);
    let (verdict, decisions) = node.ask(&[take(1, &local, 1), shadow]);
    assert_eq!((verdict.allowed, verdict.source, verdict.binding), (true, Source::Local, Some(0)));
    assert_eq!((decisions[1].allowed, decisions[1].reason), (true, Reason::StoreFailed));
    assert_eq!(node.left_locally(1, &local), 2);
}

#[test]
fn local_decides_by_the_share_of_this_node() {
    let node = Node::cut_off();
    let local = quota(OnStoreFailure::Local);
    for left in [2, 1, 0] {
        let (verdict, decisions) = node.ask(&[take(1, &local, 1)]);
        assert_eq!((verdict.allowed, verdict.source), (true, Source::Local));
        assert_eq!((decisions[0].reason, decisions[0].limit, decisions[0].remaining), (Reason::Fits, 3, left));
    }
    let (verdict, decisions) = node.ask(&[take(1, &local, 1)]);
    assert_eq!((verdict.allowed, decisions[0].reason), (false, Reason::Exceeded));
    let wait_ns = 60_000_000_000 - NOW.as_nanos() % 60_000_000_000;
    assert_eq!(verdict.retry_after, Wait::After(wait_ns), "the local store computes the wait");
    let later = Time::from_nanos(NOW.as_nanos() + wait_ns);
    assert!(node.ask_at(later, &[take(1, &local, 1)]).expect("the request is decided").0.allowed);
}

#[test]
fn a_cost_above_the_share_alone_may_fit_later() {
    let node = Node::cut_off();
    let local = quota(OnStoreFailure::Local);
    let (verdict, decisions) = node.ask(&[take(1, &local, 4)]);
    assert_eq!((decisions[0].reason, verdict.retry_after), (Reason::StoreFailed, Wait::Unknown));
    let (verdict, decisions) = node.ask(&[take(1, &local, 13)]);
    assert_eq!((decisions[0].reason, verdict.retry_after), (Reason::CostAboveCapacity, Wait::Never));
    let few = built(Quota::concurrency(3));
    let (verdict, decisions) = node.ask(&[take(1, &few, 1)]);
    assert_eq!(
        (verdict.allowed, decisions[0].limit, verdict.retry_after),
        (false, 0, Wait::Unknown),
        "the limit of 3 permits is divided by 4 nodes and rounded down, so the share is 0 permits"
    );
}

#[test]
fn forces_are_charged_to_the_share() {
    let node = Node::cut_off();
    let local = quota(OnStoreFailure::Local);
    let (verdict, _) = node.ask(&[Hit::new(1, &local, Op::Force { cost: 5 }, Binding::Enforce)]);
    assert!(verdict.allowed);
    assert!(
        !node.ask(&[Hit::new(1, &local, Op::Peek, Binding::Enforce)]).0.allowed,
        "the force has counted 5 units without a check, and the share is only 3 units"
    );
}

#[test]
fn a_refusal_by_deny_charges_no_local_limit() {
    let node = Node::cut_off();
    let (deny, local, allow) = deny_local_allow();
    let (verdict, decisions) = node.ask(&[take(1, &local, 1), take(2, &deny, 1), take(3, &allow, 1)]);
    assert_eq!((verdict.allowed, verdict.source, verdict.binding), (false, Source::Local, Some(1)));
    assert_eq!((decisions[0].allowed, decisions[0].receipt, decisions[0].remaining), (true, None, 3));
    assert_eq!(decisions.iter().map(|d| d.allowed).collect::<Vec<_>>(), [true, false, true]);
    let shadow = Hit::new(2, &deny, Op::take(1), Binding::Shadow);
    let (verdict, decisions) = node.ask(&[take(1, &local, 1), shadow]);
    assert_eq!((verdict.allowed, decisions[1].allowed), (true, false), "a limit in shadow mode never refuses");
    assert_eq!(node.left_locally(1, &local), 2);
    // In the local store too, penalties and forces take effect even if the request is refused.
    let charged = built(Quota::fixed_window(12, SECOND * 60).penalty(SECOND * 300));
    node.ask(&[take(4, &charged, 3)]);
    node.ask(&[take(4, &charged, 1), take(2, &deny, 1), Hit::new(5, &local, Op::Force { cost: 2 }, Binding::Enforce)]);
    assert_eq!(node.left_locally(5, &local), 1);
    assert_eq!(node.ask(&[take(4, &charged, 1)]).1[0].reason, Reason::Penalty);
}

#[test]
fn quota_mode_hits_refuse_only_together_whatever_decides_them() {
    let (deny, local, allow) = deny_local_allow();
    let any = |key, quota, cost| Hit::new(key, quota, Op::take(cost), Binding::Quota);
    let node = Node::cut_off();
    let (verdict, decisions) = node.ask(&[any(1, &local, 4), any(2, &allow, 1)]);
    assert_eq!(
        (verdict.allowed, decisions[0].allowed),
        (true, false),
        "the policy `allow` allows the second hit, and hits in quota mode refuse a request only if all of them refuse"
    );
    let (verdict, _) = node.ask(&[any(1, &local, 3), any(2, &deny, 1)]);
    assert!(verdict.allowed, "the share allows the first hit, so the refusal of the second hit does not count");
    assert_eq!(node.left_locally(1, &local), 0, "the share is charged");
    let (verdict, _) = node.ask(&[any(1, &local, 1), any(2, &deny, 1)]);
    assert!(
        !verdict.allowed && verdict.binding == Some(0),
        "both limits refuse, and the verdict names the limit of hit 0, because its wait is shorter"
    );
    assert!(!node.ask(&[any(2, &deny, 1)]).0.allowed);
    let (verdict, _) = node.ask(&[any(3, &local, 1), take(2, &deny, 1)]);
    assert!(!verdict.allowed && node.left_locally(3, &local) == 3);
}

#[test]
fn the_store_keeps_its_counts_and_the_local_store_keeps_its_own() {
    let node = Node::new();
    let local = quota(OnStoreFailure::Local);
    let source = |link| {
        node.0.shared().set(link);
        let (verdict, _) = node.ask(&[take(1, &local, 1)]);
        (verdict.allowed, verdict.source)
    };
    assert_eq!(source(Link::Works), (true, Source::Store));
    assert_eq!([Link::Lost, Link::Lost].map(source), [(true, Source::Local); 2]);
    assert_eq!(source(Link::Works), (true, Source::Store));
    assert_eq!([Link::Lost, Link::Lost].map(source), [(true, Source::Local), (false, Source::Local)]);
    assert_eq!((node.left_in_store(1, &local), node.left_locally(1, &local)), (10, 0));
    assert_eq!(source(Link::AnswerLost), (false, Source::Local));
    assert_eq!(node.left_in_store(1, &local), 9, "the store charged the request, but its answer was lost");
}

#[test]
fn a_local_take_is_refunded_locally() {
    let node = Node::cut_off();
    let local = quota(OnStoreFailure::Local);
    let bucket = built(Quota::per_minute(12));
    let queue = built(Quota::leaky_bucket(60, SECOND * 60).queue(12));
    let log = built(Quota::sliding_window_log(12, SECOND * 60));
    for quota in [&local, &bucket, &queue, &log] {
        let (_, decisions) = node.ask(&[take(1, quota, 1)]);
        let before = node.left_locally(1, quota);
        let back = Op::Refund { cost: 1, receipt: Some(receipt(&decisions[0])) };
        for link in [Link::Works, Link::Lost] {
            node.0.shared().set(link);
            let (verdict, _) = node.ask(&[Hit::new(1, quota, back, Binding::Enforce)]);
            assert_eq!((verdict.allowed, verdict.source), (true, Source::Local), "{link:?}");
        }
        assert!(node.left_locally(1, quota) > before, "{quota:?}");
        assert!(node.0.shared().shared.is_empty(), "the shared store got no request");
    }
}

#[test]
fn no_receipt_of_a_shared_store_looks_local_before_2189() {
    let node = Node::new();
    let deepest = built(Quota::token_bucket(1, Duration::from_nanos(1 << 61)));
    let back = |at: u64| {
        let (now, key) = (Time::from_nanos(at), u128::from(at));
        let (_, decisions) = node.ask_at(now, &[take(key, &deepest, 1)]).expect("the request is decided");
        let receipt = Some(receipt(&decisions[0]));
        let refund = Hit::new(key, &deepest, Op::Refund { cost: 1, receipt }, Binding::Enforce);
        node.ask_at(now, &[refund]).expect("the request is decided").0.source
    };
    let first_nanosecond_after = (1 << 63) - (1 << 61);
    assert_eq!(back(first_nanosecond_after - 1), Source::Store);
    assert_eq!(
        back(first_nanosecond_after),
        Source::Local,
        "the receipt of this take looks like a local receipt, so the local store gets the refund"
    );
}

#[test]
fn local_leases_are_renewed_and_released_locally() {
    let node = Node::cut_off();
    let permits = permits(OnStoreFailure::Local);
    let (_, decisions) = node.ask(&[take(1, &permits, 1)]);
    let lease = receipt(&decisions[0]);
    assert!(!node.ask(&[take(1, &permits, 1)]).0.allowed, "the share has only one permit, and it is taken");
    node.0.shared().set(Link::Works);
    let renew = Hit::new(1, &permits, Op::Renew { receipt: lease }, Binding::Enforce);
    let at = |seconds: u64| NOW.after(SECOND * u32::try_from(seconds).expect("the number is small"));
    assert!(node.ask_at(at(9), &[renew]).expect("the request is decided").0.allowed);
    assert!(node.ask_at(at(18), &[renew]).expect("the request is decided").0.allowed, "the lease was renewed at 9 s");
    let release = Hit::new(1, &permits, Op::Refund { cost: 1, receipt: Some(lease) }, Binding::Shadow);
    let shadow = renew.with_binding(Binding::Shadow);
    let (verdict, decisions) = node.ask_at(at(19), &[shadow, release]).expect("the request is decided");
    assert_eq!(
        (verdict.source, decisions[0].allowed),
        (Source::Local, true),
        "the local lease has not expired yet, so it can be renewed"
    );
    let (verdict, decisions) = node.ask_at(at(19), &[renew]).expect("the request is decided");
    assert_eq!((verdict.allowed, decisions[0].reason), (false, Reason::LeaseExpired));
    let other = Node(with_fallback(node.0.shared().other_node(), 4));
    assert!(!other.ask(&[renew]).0.allowed, "another node does not know the lease");
    assert_eq!(node.left_in_store(1, &permits), 4);
}

#[test]
fn no_policy_refunds_renews_or_resets_takes_of_the_store() {
    for policy in OnStoreFailure::ALL {
        let node = Node::new();
        let (quota, permits, local) = (quota(policy), permits(policy), quota(OnStoreFailure::Local));
        let (_, decisions) = node.ask(&[take(1, &quota, 3), take(1, &permits, 1)]);
        let (units, lease) = (receipt(&decisions[0]), receipt(&decisions[1]));
        node.0.shared().set(Link::Lost);
        let ops = [
            (&quota, Op::Refund { cost: 1, receipt: None }),
            (&quota, Op::Refund { cost: 1, receipt: Some(units) }),
            (&permits, Op::Renew { receipt: lease }),
            (&permits, Op::Refund { cost: 1, receipt: Some(lease) }),
            (&quota, Op::Reset),
        ];
        for (quota, op) in ops {
            for binding in [Binding::Enforce, Binding::Shadow, Binding::Quota] {
                assert!(node.fails(&[take(7, &local, 1), Hit::new(1, quota, op, binding)]), "{policy:?} {op:?}");
            }
        }
        assert_eq!(node.left_locally(7, &local), 3, "nothing was taken from the other limit");
        node.0.shared().set(Link::Works);
        assert!(ops.iter().all(|(quota, op)| node.ask(&[Hit::new(1, quota, *op, Binding::Enforce)]).0.allowed));
    }
}

#[test]
fn a_reset_applies_to_both_stores() {
    let node = Node::new();
    let local = quota(OnStoreFailure::Local);
    let reset = [Hit::new(1, &local, Op::Reset, Binding::Enforce)];
    let left = || (node.left_locally(1, &local), node.left_in_store(1, &local));
    node.ask(&[take(1, &local, 5)]);
    node.0.shared().set(Link::Lost);
    node.ask(&[take(1, &local, 2)]);
    assert_eq!(left(), (1, 7));
    node.0.shared().set(Link::Works);
    let (verdict, decisions) = node.ask(&reset);
    assert_eq!((verdict.source, decisions[0].remaining), (Source::Store, 12));
    assert_eq!(left(), (3, 12));
    node.0.shared().set(Link::Lost);
    node.ask(&[take(1, &local, 2)]);
    assert!(node.fails(&reset), "the caller gets an error, because the shared store was not reset");
    assert_eq!(node.left_locally(1, &local), 3);
}

#[test]
fn one_request_can_renew_local_and_shared_leases() {
    let node = Node::new();
    let (permits, local) = (permits(OnStoreFailure::Local), quota(OnStoreFailure::Local));
    let shared = receipt(&node.ask(&[take(1, &permits, 1)]).1[0]);
    node.0.shared().set(Link::Lost);
    let here = receipt(&node.ask(&[take(2, &permits, 1)]).1[0]);
    let renew = |key, receipt| Hit::new(key, &permits, Op::Renew { receipt }, Binding::Enforce);
    let both = [renew(1, shared), renew(2, here), take(3, &local, 1)];
    assert!(node.fails(&both), "a lease of the shared store cannot be renewed while this store fails");
    node.0.shared().set(Link::Works);
    let (verdict, decisions) = node.ask(&both);
    assert_eq!((verdict.allowed, verdict.source), (true, Source::Store));
    assert!(decisions.iter().all(|decision| decision.allowed));
    assert_eq!((decisions[1].limit, node.left_in_store(3, &local)), (1, 11));
    // After the lease in the local store has expired, the request has no effect in either of the two stores.
    let late = NOW.after(SECOND * 20);
    let (verdict, decisions) =
        node.ask_at(late, &[renew(2, here), take(3, &local, 1)]).expect("the request is decided");
    assert_eq!((verdict.allowed, verdict.binding, verdict.retry_after), (false, Some(0), Wait::Never));
    assert_eq!((decisions[0].reason, decisions[1].allowed), (Reason::LeaseExpired, true));
    assert_eq!((decisions[1].receipt, node.left_in_store(3, &local)), (None, 11));
    node.0.shared().set(Link::Lost);
    let (verdict, decisions) =
        node.ask_at(late, &[renew(2, here), take(3, &local, 1)]).expect("the request is decided");
    assert_eq!((verdict.allowed, verdict.source, decisions[1].receipt), (false, Source::Local, None));
    assert_eq!(node.left_locally(3, &local), 3);
}

#[test]
fn a_refund_to_both_stores_that_fails_is_refunded_once() {
    let node = Node::new();
    let local = quota(OnStoreFailure::Local);
    let shared = receipt(&node.ask(&[take(1, &local, 1)]).1[0]);
    node.0.shared().set(Link::Lost);
    let here = [1, 1].map(|cost| receipt(&node.ask(&[take(2, &local, cost)]).1[0]));
    let refund = |key, receipt| Hit::new(key, &local, Op::Refund { cost: 1, receipt: Some(receipt) }, Binding::Enforce);
    let both = [refund(2, here[0]), refund(1, shared)];
    let left_in_store = node.left_in_store(1, &local);
    for _ in 0..3 {
        assert!(node.fails(&both));
        assert_eq!(node.left_locally(2, &local), 1, "the failed request refunded nothing");
    }
    node.0.shared().set(Link::Works);
    let (verdict, decisions) = node.ask(&both);
    assert!(verdict.allowed && decisions.iter().all(|decision| decision.allowed));
    assert_eq!(decisions[0].remaining, 2);
    assert_eq!((node.left_locally(2, &local), node.left_in_store(1, &local)), (2, left_in_store + 1));
}

#[test]
fn a_full_local_store_refuses_new_keys() {
    let node = Node(FallbackStore::new(Shaky::new(), one_key(), nodes(4)));
    node.0.shared().set(Link::Lost);
    let local = quota(OnStoreFailure::Local);
    assert!(node.ask(&[take(1, &local, 1)]).0.allowed);
    let (verdict, decisions) = node.ask(&[take(2, &local, 1)]);
    assert_eq!((verdict.allowed, decisions[0].reason), (false, Reason::StoreFull));
    let any = |key| Hit::new(key, &local, Op::take(1), Binding::Quota);
    let (verdict, decisions) = node.ask(&[any(1), any(2)]);
    assert_eq!(
        (verdict.allowed, verdict.binding),
        (false, Some(1)),
        "the local store is full and cannot count the second hit, so it refuses the request"
    );
    assert_eq!((decisions[1].reason, node.left_locally(1, &local)), (Reason::StoreFull, 2));
}

fn one_key() -> MemoryStore {
    MemoryStore::new(MemoryOptions { max_keys: 1, ..MemoryOptions::default() })
}

#[test]
fn a_malformed_request_is_not_answered_by_policies() {
    let node = Node::cut_off();
    let local = quota(OnStoreFailure::Local);
    let hits = [take(1, &local, 1); 257];
    let mut decisions = [Decision::default(); 257];
    let malformed =
        |result: Result<Verdict, StoreError>| result.is_err_and(|error| error.kind() == StoreErrorKind::Malformed);
    for (asked, answered) in [(1, 0), (0, 1), (2, 3), (257, 257)] {
        let decisions = &mut decisions[..answered];
        assert!(malformed(at_once(node.0.decide(Timing::at(NOW), &hits[..asked], decisions))));
    }
    node.0.shared().set(Link::Works);
    assert!(malformed(at_once(node.0.decide(Timing::at(NOW), &hits, &mut decisions))));
    let store = with_fallback(Shaky::new(), 4);
    assert!(
        malformed(at_once(store.decide(Timing::BY_STORE, &hits[..1], &mut decisions[..1]))),
        "the local store needs a time, because it has no clock"
    );
    assert!(node.0.local().is_empty());
    assert_eq!(node.ask(&[]).0.binding, None);
}

#[test]
fn a_store_with_a_clock_uses_it_and_the_local_store_uses_the_callers() {
    let mut store = Shaky::new();
    store.clock = Some(Time::from_nanos(77));
    let limiter = Limiter::with_clock(with_fallback(store, 4), ManualClock::at(NOW));
    let local = quota(OnStoreFailure::Local);
    let ask = || {
        let mut decisions = [Decision::default()];
        let verdict = at_once(limiter.decide(&[take(1, &local, 1)], &mut decisions)).expect("the request is decided");
        (verdict.now, verdict.source)
    };
    assert_eq!(ask(), (Time::from_nanos(77), Source::Store));
    limiter.store().shared().set(Link::Lost);
    assert_eq!(ask(), (NOW, Source::Local));
    assert_eq!(limiter.store().local().len(), 1);
}
