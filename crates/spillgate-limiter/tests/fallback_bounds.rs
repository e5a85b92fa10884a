//! Tests how much a fleet (servers that share a store) admits while the servers lose their links to the store and get
//! them back.
//!
//! The fleet must keep its bounds, a refused request must charge nothing, and each admitted unit must be counted. In
//! the code, a server is called a node. In the comments, `m` is the number of servers. A share is the part of a limit
//! that one server can admit without the store.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::shaky::{Link, Shaky, at_once, nodes, with_fallback};
use crate::support::Requests as _;
use proptest::prelude::*;
use spillgate_limiter::conformance::Reference;
use spillgate_limiter::{
    Algorithm, Anchor, Binding, Decision, FallbackStore, Hit, OnStoreFailure, Op, OpKind, Quota, QuotaBuilder, Reason,
    Receipt, Source, Store, StoreError, StoreErrorKind, Time, Timing, Verdict, Wait,
};
use spillgate_testkit::Random;

const START_NS: u64 = 1_790_000_000_000_000_000;
const SECOND: Duration = Duration::from_secs(1);
const LOCAL: u64 = 1 << 63;

/// Some servers that share a store. Each server has its own link to the store.
struct Fleet(Vec<FallbackStore<Shaky>>);

impl Fleet {
    fn new(size: u32) -> Fleet {
        let first = Shaky::new();
        Fleet((0..size).map(|_| with_fallback(first.other_node(), size)).collect())
    }

    fn ask(&self, node: usize, now: Time, hits: &[Hit<'_>]) -> Result<(Verdict, Vec<Decision>), StoreError> {
        let mut decisions = vec![Decision::default(); hits.len()];
        let verdict = at_once(self.0[node].decide(Timing::at(now), hits, &mut decisions))?;
        Ok((verdict, decisions))
    }

    /// Takes one unit again and again, until a take is refused or `most` takes are admitted. Returns the number of
    /// admitted takes.
    fn drain(&self, node: usize, now: Time, quota: &Quota, most: u32) -> u32 {
        let take = Op::Take { cost: 1, max_wait_ns: u64::MAX };
        let hits = [Hit::new(1, quota, take, Binding::Enforce)];
        (0..most).take_while(|_| self.ask(node, now, &hits).expect("a policy decides").0.allowed).count() as u32
    }
}

fn built(builder: QuotaBuilder) -> Quota {
    builder.build().expect("the quota is valid")
}

fn algorithms() -> [Algorithm; 7] {
    [
        Algorithm::TokenBucket,
        Algorithm::FixedWindow(Anchor::Epoch),
        Algorithm::FixedWindow(Anchor::FirstHit),
        Algorithm::SlidingWindowLog,
        Algorithm::SlidingWindowCounter { segments: 1 },
        Algorithm::SlidingWindowCounter { segments: 5 },
        Algorithm::LeakyBucket,
    ]
}

/// Returns `f(s)`, the maximum number of units that `quota` can admit in an interval of `s` ns, including both ends of
/// the interval.
fn bound(quota: &Quota, s: u64) -> u128 {
    let (l, w, t) = (u128::from(quota.hard_capacity()), u128::from(quota.window_ns()), u128::from(quota.interval_ns()));
    let s = u128::from(s);
    match quota.algorithm() {
        _ if l == 0 => 0,
        Algorithm::TokenBucket | Algorithm::LeakyBucket => l + s / t,
        Algorithm::FixedWindow(Anchor::Epoch) => l * (s.div_ceil(w) + 1),
        Algorithm::FixedWindow(Anchor::FirstHit) => l * (s / w + 1) + if s % w > 0 { l - 1 } else { 0 },
        Algorithm::SlidingWindowLog => l * (s / w + 1),
        Algorithm::SlidingWindowCounter { .. } => l * (t * (1 + s / w) + (s % w + t).saturating_sub(w)) / t,
        Algorithm::Concurrency => l,
    }
}

#[derive(Clone, Debug)]
struct Step {
    gap_ns: u64,
    node: usize,
    link: Link,
    most: u32,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let second = 1_000_000_000u64;
    let gaps = prop_oneof![
        4 => Just(0),
        2 => 1..second,
        1 => Just(second - 1), 1 => Just(second), 1 => Just(2 * second - 1), 1 => Just(2 * second),
        1 => second..5 * second,
    ];
    let links = prop_oneof![1 => Just(Link::Works), 2 => Just(Link::Lost), 1 => Just(Link::AnswerLost)];
    let most = prop_oneof![3 => Just(40u32), 1 => 1..3u32];
    let step = (gaps, 0..5usize, links, most);
    prop::collection::vec(step.prop_map(|(gap_ns, node, link, most)| Step { gap_ns, node, link, most }), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// In any interval of `s` ns, the fleet admits at most `f(s) + m * f'(s)` units. Here `f` is the bound of the
    /// limit, and `f'` is the bound of a share.
    #[test]
    fn nodes_admit_no_more_than_the_limit_and_their_shares(
        algorithm in prop::sample::select(algorithms().to_vec()), limit in 1..=9u64, size in 1..=5u32, steps in steps(),
    ) {
        let quota = built(QuotaBuilder::new(algorithm, limit, SECOND));
        let share = quota.share(nodes(size));
        let fleet = Fleet::new(size);
        let (mut now_ns, mut events) = (START_NS, Vec::new());
        for Step { gap_ns, node, link, most } in steps {
            now_ns += gap_ns;
            let node = node % fleet.0.len();
            fleet.0[node].shared().set(link);
            events.push((now_ns, fleet.drain(node, Time::from_nanos(now_ns), &quota, most)));
        }
        for (i, (first_ns, _)) in events.iter().enumerate() {
            let mut sum = 0u128;
            for (last_ns, admitted) in &events[i..] {
                sum += u128::from(*admitted);
                let s = last_ns - first_ns;
                let most = bound(&quota, s) + u128::from(size) * bound(&share, s);
                prop_assert!(sum <= most, "{sum} units were admitted within {s} ns, but at most {most} are allowed");
            }
        }
    }

    /// Clients hold at most `N + m * N'` permits at the same time. The limit has `N` permits, and a share has `N'`
    /// permits.
    #[test]
    fn nodes_hold_no_more_permits_than_the_limit_and_their_shares(
        permits in 1..=9u64, size in 1..=5u32, steps in steps(), releases in prop::collection::vec(any::<bool>(), 60),
    ) {
        let quota = built(Quota::concurrency(permits).lease(SECOND * 3));
        let fleet = Fleet::new(size);
        let most = permits + u64::from(size) * quota.share(nodes(size)).capacity();
        let (mut now_ns, mut held): (u64, Vec<(u64, Receipt)>) = (START_NS, Vec::new());
        for (Step { gap_ns, node, link, most: takes }, release) in steps.into_iter().zip(releases) {
            now_ns += gap_ns;
            let (now, node) = (Time::from_nanos(now_ns), node % fleet.0.len());
            fleet.0[node].shared().set(link);
            let hit = |op| [Hit::new(1, &quota, op, Binding::Enforce)];
            for _ in 0..takes {
                let (verdict, decisions) = fleet.ask(node, now, &hit(Op::take(1))).expect("a policy decides");
                let Some(receipt) = decisions[0].receipt else { break };
                prop_assert!(verdict.allowed);
                held.push((now_ns + quota.lease_ns(), receipt));
            }
            held.retain(|(ends_ns, _)| *ends_ns > now_ns);
            prop_assert!(held.len() as u64 <= most, "{} permits are held, but at most {most} are allowed", held.len());
            if release && !held.is_empty() {
                // The server of this step gets the release, even if another server gave the permit. Its answer does not
                // matter, because the client no longer uses the permit.
                let (_, receipt) = held.remove(0);
                drop(fleet.ask(node, now, &hit(Op::Refund { cost: 1, receipt: Some(receipt) })));
            }
        }
    }
}

#[test]
fn the_bound_at_once_is_reached_and_no_more() {
    for (algorithm, limit, size) in algorithms().into_iter().flat_map(|a| [(a, 9, 1), (a, 9, 4), (a, 3, 4)]) {
        let quota = built(QuotaBuilder::new(algorithm, limit, SECOND * 3600));
        let (fleet, now) = (Fleet::new(size), Time::from_nanos(START_NS));
        let drain = |link| {
            fleet.0.iter().for_each(|store| store.shared().set(link));
            (0..fleet.0.len()).map(|node| fleet.drain(node, now, &quota, 1000)).sum::<u32>()
        };
        let share = quota.share(nodes(size)).capacity();
        assert_eq!(u64::from(drain(Link::Works)), quota.capacity(), "{algorithm:?}");
        assert_eq!(u64::from(drain(Link::Lost)), u64::from(size) * share, "{algorithm:?}");
        assert_eq!(
            [drain(Link::Works), drain(Link::Lost), drain(Link::Works)],
            [0; 3],
            "the limit and all shares are used up, so a second outage admits no more units"
        );
    }
}

/// Returns a quota for every algorithm. All quotas have the policy `local`.
fn local_quotas() -> Vec<Quota> {
    let mut quotas: Vec<Quota> =
        algorithms().into_iter().map(|algorithm| built(QuotaBuilder::new(algorithm, 7, SECOND))).collect();
    quotas.push(built(Quota::fixed_window(2, SECOND).penalty(SECOND / 2)));
    quotas.push(built(Quota::concurrency(5).lease(SECOND)));
    quotas
}

#[test]
fn each_request_is_decided_as_by_the_kernel_locally_or_in_the_store() {
    let quotas = local_quotas();
    let shares: Vec<Quota> = quotas.iter().map(|quota| quota.share(nodes(3))).collect();
    let store = with_fallback(Shaky::new(), 3);
    let (mut there, mut here) = (Reference::default(), Reference::default());
    let (mut random, mut now_ns, mut receipts) = (Random(11), START_NS, Vec::new());
    let (mut errors, mut local, mut back) = (0, 0, 0);
    for i in 0..50_000 {
        now_ns += random.step_ns();
        let (now, works) = (Time::from_nanos(now_ns), random.below(3) > 0);
        store.shared().set(if works { Link::Works } else { Link::Lost });
        let mut hits = random.hits(&quotas, &receipts, |i| u128::from(i) << 64);
        let was_taken_locally = |hit: &Hit<'_>| matches!(hit.op, Op::Refund { receipt: Some(r), .. } | Op::Renew { receipt: r } | Op::Settle { receipt: r, .. } if r.mark & LOCAL > 0);
        // Other tests check resets, and requests with hits for both stores. So resets are removed here, and if a
        // request also has hits for the shared store, its hits for the local store are removed.
        hits.retain(|hit| !matches!(hit.op, Op::Reset));
        let all_local = hits.iter().all(was_taken_locally);
        hits.retain(|hit| all_local || !was_taken_locally(hit));
        if hits.is_empty() {
            continue;
        }
        let mut answers = vec![Decision::default(); hits.len()];
        let answer = at_once(store.decide(Timing::at(now), &hits, &mut answers));
        let mut expected = vec![Decision::default(); hits.len()];
        let refunds = hits.iter().any(|hit| matches!(hit.op.kind(), OpKind::Refund | OpKind::Renew | OpKind::Settle));
        let verdict = if all_local || !works && !refunds {
            let share_of =
                |quota: &Quota| &shares[quotas.iter().position(|q| q == quota).expect("the quota is in the list")];
            let shared: Vec<Hit<'_>> =
                hits.iter().map(|hit| hit.with_quota(share_of(hit.quota)).with_op(without_mark(hit.op))).collect();
            let verdict = here.decide(now, &shared, &mut expected);
            local += 1;
            back += u32::from(all_local);
            verdict.with_source(Source::Local)
        } else if works {
            there.decide(now, &hits, &mut expected)
        } else {
            let kind = answer.err().map(|error| error.kind());
            assert_eq!(kind, Some(StoreErrorKind::Disconnected), "request {i}: {hits:?}");
            errors += 1;
            continue;
        };
        for (expected, hit) in expected.iter_mut().zip(&hits).filter(|_| verdict.source == Source::Local) {
            expected.receipt = expected.receipt.map(|receipt| receipt.with_mark(receipt.mark | LOCAL));
            let fits_there = matches!(hit.op, Op::Take { cost, .. } if cost <= hit.quota.hard_capacity());
            if expected.reason == Reason::CostAboveCapacity && fits_there {
                (expected.reason, expected.retry_after) = (Reason::StoreFailed, Wait::Unknown);
            }
        }
        let verdict = Verdict::of(&hits, &expected, now).with_source(verdict.source);
        assert_eq!((answer, &answers), (Ok(verdict), &expected), "request {i}: {hits:?}");
        receipts.extend(answers.iter().filter_map(|decision| decision.receipt));
        receipts.drain(..receipts.len().saturating_sub(20));
    }
    assert!(
        errors > 1000 && local > 5000 && back > 200,
        "too few requests of a kind: {errors} errors, {local} local decisions, {back} with local receipts"
    );
}

fn without_mark(op: Op) -> Op {
    let plain = |receipt: Receipt| receipt.with_mark(receipt.mark & !LOCAL);
    match op {
        Op::Refund { cost, receipt } => Op::Refund { cost, receipt: receipt.map(plain) },
        Op::Renew { receipt } => Op::Renew { receipt: plain(receipt) },
        Op::Settle { change, receipt } => Op::Settle { change, receipt: plain(receipt) },
        other => other,
    }
}

#[test]
fn a_request_takes_from_all_its_local_limits_or_from_none_whatever_the_policies() {
    let policies = [OnStoreFailure::Allow, OnStoreFailure::Deny, OnStoreFailure::Local, OnStoreFailure::Local];
    let quotas: Vec<Quota> = (0..40u32)
        .map(|i| {
            let quota = QuotaBuilder::new(algorithms()[i as usize % 7], 6, SECOND + SECOND * (i / 7));
            built(quota.on_store_failure(policies[i as usize % 4]))
        })
        .collect();
    let store = with_fallback(Shaky::new(), 2);
    store.shared().set(Link::Lost);
    let peek = |now, hit: &Hit<'_>| {
        let share = hit.quota.share(nodes(2));
        store.local().hit_now(now, &Hit::new(hit.key, &share, Op::Peek, Binding::Enforce)).remaining
    };
    let (mut random, mut now_ns) = (Random(5), START_NS);
    let mut seen = [[0; 2]; 2];
    for _ in 0..20_000 {
        now_ns += random.step_ns();
        let now = Time::from_nanos(now_ns);
        let bindings = [Binding::Enforce, Binding::Enforce, Binding::Shadow, Binding::Quota];
        let hits: Vec<Hit<'_>> = (0..=random.below(4))
            .map(|i| {
                let quota = &quotas[random.below(40) as usize];
                let op = Op::Take { cost: 1 + random.below(3), max_wait_ns: u64::MAX };
                Hit::new(u128::from(i), quota, op, random.one_of(&bindings))
            })
            .collect();
        let before: Vec<u64> = hits.iter().map(|hit| peek(now, hit)).collect();
        let mut decisions = vec![Decision::default(); hits.len()];
        let verdict = at_once(store.decide(Timing::at(now), &hits, &mut decisions)).expect("a policy decides");
        let refuses = |binding| hits.iter().zip(&decisions).any(|(h, d)| h.binding == binding && !d.allowed);
        let passes = hits.iter().zip(&decisions).any(|(h, d)| h.binding == Binding::Quota && d.allowed);
        assert_eq!(verdict.allowed, !refuses(Binding::Enforce) && (passes || !refuses(Binding::Quota)));
        let any_local = hits.iter().any(|hit| hit.quota.on_store_failure() == OnStoreFailure::Local);
        assert_eq!(verdict.source, if any_local { Source::Local } else { Source::Policy });
        for (i, (hit, decision)) in hits.iter().zip(&decisions).enumerate() {
            let Op::Take { cost, .. } = hit.op else { panic!("takes only") };
            let local = hit.quota.on_store_failure() == OnStoreFailure::Local;
            let charged = local && verdict.allowed && decision.allowed;
            assert_eq!(decision.receipt.is_some_and(|receipt| receipt.mark & LOCAL > 0), charged, "{hit:?}");
            assert_eq!(peek(now, hit), before[i] - if charged { cost } else { 0 }, "{hit:?}");
            seen[usize::from(local)][usize::from(decision.allowed)] += 1;
        }
    }
    assert!(seen.as_flattened().iter().all(|count| *count > 1000), "a kind of decision is too rare: {seen:?}");
}

#[test]
fn no_decision_is_lost_while_the_store_comes_and_goes() {
    const TAKES: usize = 20_000;
    let quota = built(Quota::sliding_window_log(4000, SECOND * 3600));
    let store = with_fallback(Shaky::new(), 2);
    let (by_store, by_share) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|threads| {
        let takers: Vec<_> = (0..4)
            .map(|_| {
                threads.spawn(|| {
                    for _ in 0..TAKES / 4 {
                        let hits = [Hit::new(1, &quota, Op::take(1), Binding::Enforce)];
                        let (now, mut decisions) = (Time::from_nanos(START_NS), [Decision::default()]);
                        let asked = store.decide(Timing::at(now), &hits, &mut decisions);
                        let verdict = at_once(asked).expect("the request is decided");
                        let admitted = if verdict.source == Source::Store { &by_store } else { &by_share };
                        admitted.fetch_add(usize::from(verdict.allowed), Ordering::Relaxed);
                    }
                })
            })
            .collect();
        while takers.iter().any(|taker| !taker.is_finished()) {
            for link in [Link::Lost, Link::Works] {
                store.shared().set(link);
                std::thread::yield_now();
            }
        }
        for taker in takers {
            taker.join().expect("no thread panics");
        }
    });
    // Each of the two stores must have charged exactly the units that it admitted.
    let left = |store: &spillgate::MemoryStore, quota: &Quota| {
        let peek = Hit::new(1, quota, Op::Peek, Binding::Enforce);
        store.hit_now(Time::from_nanos(START_NS), &peek).remaining
    };
    let (by_store, by_share) = (by_store.into_inner() as u64, by_share.into_inner() as u64);
    assert_eq!(by_store, 4000 - left(&store.shared().shared, &quota));
    assert_eq!(by_share, 2000 - left(store.local(), &quota.share(nodes(2))));
    assert!(by_store <= 4000 && by_share <= 2000 && by_store + by_share > 0);
}
