//! What answers while a shared store fails: policies, receipts, resets, and who is told to have decided.

#[path = "support/shaky.rs"]
mod shaky;

use std::time::Duration;

use shaky::{Link, Shaky, at_once, fallback, memory, nodes};
use spillgate::conformance::run_all;
use spillgate::{
    Binding, Decision, Denied, Fallback, FallbackStore, Hit, Limiter, ManualClock, MemoryOptions, MemoryStore,
    OnStoreFailure, Op, Quota, QuotaBuilder, Reason, Receipt, Source, Store, StoreError, Time, Verdict, Wait,
};

const SECOND: Duration = Duration::from_secs(1);
const NOW: Time = Time::from_nanos(1_790_000_000_000_000_000);

/// Twelve a minute, and a policy.
fn quota(policy: OnStoreFailure) -> Quota {
    built(Quota::fixed_window(12, SECOND * 60).on_store_failure(policy))
}

fn deny_local_allow() -> (Quota, Quota, Quota) {
    (quota(OnStoreFailure::Deny), quota(OnStoreFailure::Local), quota(OnStoreFailure::Allow))
}

fn places(policy: OnStoreFailure) -> Quota {
    built(Quota::concurrency(4).lease(SECOND * 10).on_store_failure(policy))
}

fn built(builder: QuotaBuilder) -> Quota {
    builder.build().expect("valid")
}

fn take(key: u128, quota: &Quota, cost: u64) -> Hit<'_> {
    Hit::new(key, quota, Op::take(cost), Binding::Enforce)
}

/// One node of four: its way to the store, and what answers while that fails.
struct Node {
    store: Shaky,
    fallback: Fallback,
}

impl Node {
    fn new() -> Node {
        Node { store: Shaky::new(), fallback: fallback(4) }
    }

    fn cut_off() -> Node {
        let node = Node::new();
        node.store.set(Link::Lost);
        node
    }

    fn ask_at(&self, now: Time, hits: &[Hit<'_>]) -> Result<(Verdict, Vec<Decision>), StoreError> {
        let mut decisions = vec![Decision::default(); hits.len()];
        let verdict = at_once(self.fallback.decide(&self.store, now, hits, &mut decisions))?;
        Ok((verdict, decisions))
    }

    fn ask(&self, hits: &[Hit<'_>]) -> (Verdict, Vec<Decision>) {
        self.ask_at(NOW, hits).expect("decided")
    }

    fn fails(&self, hits: &[Hit<'_>]) -> bool {
        matches!(self.ask_at(NOW, hits), Err(StoreError::Unavailable(why)) if why == "Lost")
    }

    /// Units left by this node's share of the limit.
    fn left_here(&self, key: u128, quota: &Quota) -> u64 {
        let share = quota.share(nodes(4));
        self.fallback.local().hit_now(NOW, &Hit::new(key, &share, Op::Peek, Binding::Enforce)).remaining
    }

    /// Units left in the store that all share.
    fn left_there(&self, key: u128, quota: &Quota) -> u64 {
        self.store.shared.hit_now(NOW, &Hit::new(key, quota, Op::Peek, Binding::Enforce)).remaining
    }
}

fn receipt(decision: &Decision) -> Receipt {
    decision.receipt.expect("a take was charged")
}

#[test]
fn a_store_that_answers_decides_alone() {
    let requests = run_all(|| {
        let store = FallbackStore::new(memory(), fallback(3));
        move |now, hits: &[Hit<'_>], decisions: &mut [Decision]| {
            at_once(store.decide(Some(now), hits, decisions)).expect("traces are well formed")
        }
    });
    match requests {
        Ok(requests) => assert!(requests > 300, "{requests} requests"),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn allow_lets_pass_and_deny_refuses_whatever_is_asked() {
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
    assert!(node.fallback.local().is_empty(), "neither counts");
}

#[test]
fn what_no_state_has_room_for_is_refused_by_allow_too() {
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
        // Beside a limit that is counted here, of which nothing is taken then.
        let (verdict, decisions) = node.ask(&[take(2, &local, 1), hit]);
        assert_eq!((verdict.allowed, verdict.source, verdict.binding), (false, Source::Local, Some(1)), "{hit:?}");
        assert_eq!((decisions[0].allowed, decisions[0].receipt, node.left_here(2, &local)), (true, None, 3), "{hit:?}");
        let (verdict, _) = node.ask(&[take(3, &local, 0), hit.with_binding(Binding::Shadow)]);
        assert!(verdict.allowed, "a shadow refuses nothing");
    }
    assert!(node.ask(&[Hit::new(1, &banned, Op::Peek, Binding::Enforce)]).0.allowed, "as by the store");
}

#[test]
fn error_hands_on_what_the_store_said_unless_its_hit_is_a_shadow() {
    let node = Node::cut_off();
    let (error, local) = (quota(OnStoreFailure::Error), quota(OnStoreFailure::Local));
    for binding in [Binding::Enforce, Binding::Quota] {
        assert!(node.fails(&[take(1, &local, 1), Hit::new(2, &error, Op::take(1), binding)]), "{binding:?}");
    }
    assert_eq!(node.left_here(1, &local), 3, "nothing was taken");
    let shadow = Hit::new(2, &error, Op::take(1), Binding::Shadow);
    let (verdict, decisions) = node.ask(&[take(1, &local, 1), shadow]);
    assert_eq!((verdict.allowed, verdict.source, verdict.binding), (true, Source::Local, Some(0)));
    assert_eq!((decisions[1].allowed, decisions[1].reason), (true, Reason::StoreFailed));
    assert_eq!(node.left_here(1, &local), 2);
}

#[test]
fn local_decides_by_this_nodes_share() {
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
    assert_eq!(verdict.retry_after, Wait::After(wait_ns), "the wait is that of the local state, and holds");
    let later = Time::from_nanos(NOW.as_nanos() + wait_ns);
    assert!(node.ask_at(later, &[take(1, &local, 1)]).expect("decided").0.allowed);
}

#[test]
fn a_cost_that_only_the_share_has_no_room_for_may_fit_later() {
    let node = Node::cut_off();
    let local = quota(OnStoreFailure::Local);
    let (verdict, decisions) = node.ask(&[take(1, &local, 4)]);
    assert_eq!((decisions[0].reason, verdict.retry_after), (Reason::StoreFailed, Wait::Unknown));
    let (verdict, decisions) = node.ask(&[take(1, &local, 13)]);
    assert_eq!((decisions[0].reason, verdict.retry_after), (Reason::CostAboveCapacity, Wait::Never));
    let few = built(Quota::concurrency(3));
    let (verdict, decisions) = node.ask(&[take(1, &few, 1)]);
    assert_eq!((verdict.allowed, decisions[0].limit, verdict.retry_after), (false, 0, Wait::Unknown), "no place each");
}

#[test]
fn forces_are_charged_to_the_share() {
    let node = Node::cut_off();
    let local = quota(OnStoreFailure::Local);
    let (verdict, _) = node.ask(&[Hit::new(1, &local, Op::Force { cost: 5 }, Binding::Enforce)]);
    assert!(verdict.allowed);
    assert!(!node.ask(&[Hit::new(1, &local, Op::Peek, Binding::Enforce)]).0.allowed, "more than its share is used");
}

#[test]
fn a_deny_that_counts_keeps_local_takes_free_of_charge() {
    let node = Node::cut_off();
    let (deny, local, allow) = deny_local_allow();
    let (verdict, decisions) = node.ask(&[take(1, &local, 1), take(2, &deny, 1), take(3, &allow, 1)]);
    assert_eq!((verdict.allowed, verdict.source, verdict.binding), (false, Source::Local, Some(1)));
    assert_eq!((decisions[0].allowed, decisions[0].receipt, decisions[0].remaining), (true, None, 3));
    assert_eq!(decisions.iter().map(|d| d.allowed).collect::<Vec<_>>(), [true, false, true]);
    let shadow = Hit::new(2, &deny, Op::take(1), Binding::Shadow);
    let (verdict, decisions) = node.ask(&[take(1, &local, 1), shadow]);
    assert_eq!((verdict.allowed, decisions[1].allowed), (true, false), "a shadow never refuses");
    assert_eq!(node.left_here(1, &local), 2);
    // What takes effect whatever the verdict does so here too.
    let charged = built(Quota::fixed_window(12, SECOND * 60).penalty(SECOND * 300));
    node.ask(&[take(4, &charged, 3)]);
    node.ask(&[take(4, &charged, 1), take(2, &deny, 1), Hit::new(5, &local, Op::Force { cost: 2 }, Binding::Enforce)]);
    assert_eq!(node.left_here(5, &local), 1);
    assert_eq!(node.ask(&[take(4, &charged, 1)]).1[0].reason, Reason::Penalty);
}

#[test]
fn quota_mode_hits_refuse_only_together_whoever_decides_them() {
    let (deny, local, allow) = deny_local_allow();
    let any = |key, quota, cost| Hit::new(key, quota, Op::take(cost), Binding::Quota);
    let node = Node::cut_off();
    let (verdict, decisions) = node.ask(&[any(1, &local, 4), any(2, &allow, 1)]);
    assert_eq!((verdict.allowed, decisions[0].allowed), (true, false), "the policy lets pass");
    let (verdict, _) = node.ask(&[any(1, &local, 3), any(2, &deny, 1)]);
    assert!(verdict.allowed, "the share lets pass");
    assert_eq!(node.left_here(1, &local), 0, "and is charged");
    let (verdict, _) = node.ask(&[any(1, &local, 1), any(2, &deny, 1)]);
    assert!(!verdict.allowed && verdict.binding == Some(0), "the shorter wait of those binds");
    assert!(!node.ask(&[any(2, &deny, 1)]).0.allowed);
    let (verdict, _) = node.ask(&[any(3, &local, 1), take(2, &deny, 1)]);
    assert!(!verdict.allowed && node.left_here(3, &local) == 3);
}

#[test]
fn what_a_store_counts_is_left_alone_and_what_was_used_here_is_kept() {
    let node = Node::new();
    let local = quota(OnStoreFailure::Local);
    let source = |link| {
        node.store.set(link);
        let (verdict, _) = node.ask(&[take(1, &local, 1)]);
        (verdict.allowed, verdict.source)
    };
    assert_eq!(source(Link::Works), (true, Source::Store));
    assert_eq!([Link::Lost, Link::Lost].map(source), [(true, Source::Local); 2]);
    assert_eq!(source(Link::Works), (true, Source::Store));
    assert_eq!([Link::Lost, Link::Lost].map(source), [(true, Source::Local), (false, Source::Local)]);
    assert_eq!((node.left_there(1, &local), node.left_here(1, &local)), (10, 0));
    assert_eq!(source(Link::AnswerLost), (false, Source::Local));
    assert_eq!(node.left_there(1, &local), 9, "it was charged there, as nobody can know");
}

#[test]
fn what_was_taken_here_is_given_back_here() {
    let node = Node::cut_off();
    let local = quota(OnStoreFailure::Local);
    let bucket = built(Quota::per_minute(12));
    let queue = built(Quota::leaky_bucket(60, SECOND * 60).queue(12));
    let log = built(Quota::sliding_window_log(12, SECOND * 60));
    for quota in [&local, &bucket, &queue, &log] {
        let (_, decisions) = node.ask(&[take(1, quota, 1)]);
        let before = node.left_here(1, quota);
        let back = Op::Refund { cost: 1, receipt: Some(receipt(&decisions[0])) };
        for link in [Link::Works, Link::Lost] {
            node.store.set(link);
            let (verdict, _) = node.ask(&[Hit::new(1, quota, back, Binding::Enforce)]);
            assert_eq!((verdict.allowed, verdict.source), (true, Source::Local), "{link:?}");
        }
        assert!(node.left_here(1, quota) > before, "{quota:?}");
        assert!(node.store.shared.is_empty(), "the store was not asked");
    }
}

#[test]
fn no_receipt_of_a_store_is_taken_for_one_of_local_state_before_2189() {
    let node = Node::new();
    let deepest = built(Quota::token_bucket(1, Duration::from_nanos(1 << 61)));
    let back = |at: u64| {
        let (now, key) = (Time::from_nanos(at), u128::from(at));
        let (_, decisions) = node.ask_at(now, &[take(key, &deepest, 1)]).expect("decided");
        let receipt = Some(receipt(&decisions[0]));
        let refund = Hit::new(key, &deepest, Op::Refund { cost: 1, receipt }, Binding::Enforce);
        node.ask_at(now, &[refund]).expect("decided").0.source
    };
    let first_nanosecond_after = (1 << 63) - (1 << 61);
    assert_eq!(back(first_nanosecond_after - 1), Source::Store);
    assert_eq!(back(first_nanosecond_after), Source::Local, "this one is not given back");
}

#[test]
fn leases_that_were_taken_here_are_renewed_and_released_here() {
    let node = Node::cut_off();
    let places = places(OnStoreFailure::Local);
    let (_, decisions) = node.ask(&[take(1, &places, 1)]);
    let lease = receipt(&decisions[0]);
    assert!(!node.ask(&[take(1, &places, 1)]).0.allowed, "one place each");
    node.store.set(Link::Works);
    let renew = Hit::new(1, &places, Op::Renew { receipt: lease }, Binding::Enforce);
    let at = |seconds: u64| NOW.after(SECOND * u32::try_from(seconds).expect("a few"));
    assert!(node.ask_at(at(9), &[renew]).expect("decided").0.allowed);
    assert!(node.ask_at(at(18), &[renew]).expect("decided").0.allowed, "it lives on");
    let release = Hit::new(1, &places, Op::Refund { cost: 1, receipt: Some(lease) }, Binding::Shadow);
    let shadow = renew.with_binding(Binding::Shadow);
    let (verdict, decisions) = node.ask_at(at(19), &[shadow, release]).expect("decided");
    assert_eq!((verdict.source, decisions[0].allowed), (Source::Local, true), "it lived until then");
    let (verdict, decisions) = node.ask_at(at(19), &[renew]).expect("decided");
    assert_eq!((verdict.allowed, decisions[0].reason), (false, Reason::LeaseExpired));
    let other = Node { store: node.store.other_node(), fallback: fallback(4) };
    assert!(!other.ask(&[renew]).0.allowed, "another node knows nothing of it");
    assert_eq!(node.left_there(1, &places), 4);
}

#[test]
fn no_policy_gives_back_renews_or_resets_what_the_store_has() {
    for policy in OnStoreFailure::ALL {
        let node = Node::new();
        let (quota, places, local) = (quota(policy), places(policy), quota(OnStoreFailure::Local));
        let (_, decisions) = node.ask(&[take(1, &quota, 3), take(1, &places, 1)]);
        let (units, lease) = (receipt(&decisions[0]), receipt(&decisions[1]));
        node.store.set(Link::Lost);
        let ops = [
            (&quota, Op::Refund { cost: 1, receipt: None }),
            (&quota, Op::Refund { cost: 1, receipt: Some(units) }),
            (&places, Op::Renew { receipt: lease }),
            (&places, Op::Refund { cost: 1, receipt: Some(lease) }),
            (&quota, Op::Reset),
        ];
        for (quota, op) in ops {
            for binding in [Binding::Enforce, Binding::Shadow, Binding::Quota] {
                assert!(node.fails(&[take(7, &local, 1), Hit::new(1, quota, op, binding)]), "{policy:?} {op:?}");
            }
        }
        assert_eq!(node.left_here(7, &local), 3, "nothing was taken beside it");
        node.store.set(Link::Works);
        assert!(ops.iter().all(|(quota, op)| node.ask(&[Hit::new(1, quota, *op, Binding::Enforce)]).0.allowed));
    }
}

#[test]
fn a_reset_is_for_both() {
    let node = Node::new();
    let local = quota(OnStoreFailure::Local);
    let reset = [Hit::new(1, &local, Op::Reset, Binding::Enforce)];
    let left = || (node.left_here(1, &local), node.left_there(1, &local));
    node.ask(&[take(1, &local, 5)]);
    node.store.set(Link::Lost);
    node.ask(&[take(1, &local, 2)]);
    assert_eq!(left(), (1, 7));
    node.store.set(Link::Works);
    let (verdict, decisions) = node.ask(&reset);
    assert_eq!((verdict.source, decisions[0].remaining), (Source::Store, 12));
    assert_eq!(left(), (3, 12));
    node.store.set(Link::Lost);
    node.ask(&[take(1, &local, 2)]);
    assert!(node.fails(&reset), "who resets is told that the store was not");
    assert_eq!(node.left_here(1, &local), 3);
}

#[test]
fn leases_from_here_and_from_the_store_in_one_request() {
    let node = Node::new();
    let (places, local) = (places(OnStoreFailure::Local), quota(OnStoreFailure::Local));
    let there = receipt(&node.ask(&[take(1, &places, 1)]).1[0]);
    node.store.set(Link::Lost);
    let here = receipt(&node.ask(&[take(2, &places, 1)]).1[0]);
    let renew = |key, receipt| Hit::new(key, &places, Op::Renew { receipt }, Binding::Enforce);
    let both = [renew(1, there), renew(2, here), take(3, &local, 1)];
    assert!(node.fails(&both), "the store's lease cannot be renewed now");
    node.store.set(Link::Works);
    let (verdict, decisions) = node.ask(&both);
    assert_eq!((verdict.allowed, verdict.source), (true, Source::Store));
    assert!(decisions.iter().all(|decision| decision.allowed));
    assert_eq!((decisions[1].limit, node.left_there(3, &local)), (1, 11));
    // Once the lease from here has ended, nothing of the request takes effect, in the store or by the policies.
    let late = NOW.after(SECOND * 20);
    let (verdict, decisions) = node.ask_at(late, &[renew(2, here), take(3, &local, 1)]).expect("decided");
    assert_eq!((verdict.allowed, verdict.binding, verdict.retry_after), (false, Some(0), Wait::Never));
    assert_eq!((decisions[0].reason, decisions[1].allowed), (Reason::LeaseExpired, true));
    assert_eq!((decisions[1].receipt, node.left_there(3, &local)), (None, 11));
    node.store.set(Link::Lost);
    let (verdict, decisions) = node.ask_at(late, &[renew(2, here), take(3, &local, 1)]).expect("decided");
    assert_eq!((verdict.allowed, verdict.source, decisions[1].receipt), (false, Source::Local, None));
    assert_eq!(node.left_here(3, &local), 3);
}

#[test]
fn what_is_given_back_here_and_to_a_store_that_fails_is_given_back_once() {
    let node = Node::new();
    let local = quota(OnStoreFailure::Local);
    let there = receipt(&node.ask(&[take(1, &local, 1)]).1[0]);
    node.store.set(Link::Lost);
    let here = [1, 1].map(|cost| receipt(&node.ask(&[take(2, &local, cost)]).1[0]));
    let refund = |key, receipt| Hit::new(key, &local, Op::Refund { cost: 1, receipt: Some(receipt) }, Binding::Enforce);
    let both = [refund(2, here[0]), refund(1, there)];
    let left_there = node.left_there(1, &local);
    for _ in 0..3 {
        assert!(node.fails(&both));
        assert_eq!(node.left_here(2, &local), 1, "nothing is given back yet");
    }
    node.store.set(Link::Works);
    let (verdict, decisions) = node.ask(&both);
    assert!(verdict.allowed && decisions.iter().all(|decision| decision.allowed));
    assert_eq!(decisions[0].remaining, 2);
    assert_eq!((node.left_here(2, &local), node.left_there(1, &local)), (2, left_there + 1));
}

#[test]
fn a_full_local_store_refuses_new_keys() {
    let node = Node { store: Shaky::new(), fallback: Fallback::new(one_key(), nodes(4)) };
    node.store.set(Link::Lost);
    let local = quota(OnStoreFailure::Local);
    assert!(node.ask(&[take(1, &local, 1)]).0.allowed);
    let (verdict, decisions) = node.ask(&[take(2, &local, 1)]);
    assert_eq!((verdict.allowed, decisions[0].reason), (false, Reason::StoreFull));
    let any = |key| Hit::new(key, &local, Op::take(1), Binding::Quota);
    let (verdict, decisions) = node.ask(&[any(1), any(2)]);
    assert_eq!((verdict.allowed, verdict.binding), (false, Some(1)), "nothing passes uncounted");
    assert_eq!((decisions[1].reason, node.left_here(1, &local)), (Reason::StoreFull, 2));
}

fn one_key() -> MemoryStore {
    MemoryStore::new(MemoryOptions { max_keys: 1, ..MemoryOptions::default() })
}

#[test]
fn what_is_malformed_is_no_failure() {
    let node = Node::cut_off();
    let local = quota(OnStoreFailure::Local);
    let hits = [take(1, &local, 1); 257];
    let mut decisions = [Decision::default(); 257];
    let malformed = |result| matches!(result, Err(StoreError::Malformed(_)));
    for (asked, answered) in [(1, 0), (0, 1), (2, 3), (257, 257)] {
        let decisions = &mut decisions[..answered];
        assert!(malformed(at_once(node.fallback.decide(&node.store, NOW, &hits[..asked], decisions))));
    }
    node.store.set(Link::Works);
    assert!(malformed(at_once(node.fallback.decide(&node.store, NOW, &hits, &mut decisions))));
    let store = FallbackStore::new(Shaky::new(), fallback(4));
    assert!(malformed(at_once(store.decide(None, &hits[..1], &mut decisions[..1]))), "local state needs the time");
    assert!(node.fallback.local().is_empty());
    assert_eq!(node.ask(&[]).0.binding, None);
}

#[test]
fn a_store_with_a_clock_is_asked_by_it_and_local_state_by_the_callers() {
    let mut store = Shaky::new();
    store.clock = Some(Time::from_nanos(77));
    let limiter = Limiter::with_clock(FallbackStore::new(store, fallback(4)), ManualClock::at(NOW));
    let local = quota(OnStoreFailure::Local);
    let ask = || {
        let mut decisions = [Decision::default()];
        let verdict = at_once(limiter.decide(&[take(1, &local, 1)], &mut decisions)).expect("decided");
        (verdict.now, verdict.source)
    };
    assert_eq!(ask(), (Time::from_nanos(77), Source::Store));
    limiter.store().store().set(Link::Lost);
    assert_eq!(ask(), (NOW, Source::Local));
    assert_eq!(limiter.store().fallback().local().len(), 1);
}
