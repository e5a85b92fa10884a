//! Sends random requests to the deny cache. The tests compare each refusal of the cache with the kernel's decision on
//! the current states of the model, which simulates Redis.

use std::rc::Rc;

use spillgate_core::{Binding, Decision, Denied, Hit, Op, OpKind, Quota, Reason, Source, Verdict};

use spillgate_testkit::Random;

use super::model::{Fixture, LONG, SECOND, build, is_log, timed};
use crate::deny_cache::{ObservedStates, RequestGuard};

/// A request whose reply has not come yet.
struct InFlight<'w> {
    guard: RequestGuard<'w, 'w, 'w>,
    decided: Option<(Verdict, Vec<Decision>, Option<ObservedStates>)>,
    /// Whether the request is a refund or a reset that the model has decided.
    is_undone: bool,
}

/// Returns quotas of all kinds. Several of them share a state.
fn all_quotas() -> Vec<Quota> {
    let all = timed(5).into_iter().chain(timed(3)).chain(timed(8));
    let odd = [
        Quota::token_bucket(3, SECOND).burst(7),
        Quota::sliding_window_log(4, SECOND).denied(Denied::Charged),
        Quota::token_bucket(4, SECOND).penalty(SECOND / 3),
        Quota::fixed_window(4, SECOND).soft_ppm(500_000),
        Quota::concurrency(3).lease(SECOND),
        Quota::token_bucket(0, SECOND),
    ];
    all.chain(odd).map(build).collect()
}

fn random_hit<'q>(random: &mut Random, quota: &'q Quota) -> Hit<'q> {
    let cost = *random.pick(&[1, 1, 1, 1, 2, 3, 4]);
    let op = match random.below(40) {
        0 => Op::Peek,
        1 => Op::Force { cost },
        2 => Op::Refund { cost, receipt: None },
        3 => Op::Reset,
        4 => Op::take(0),
        5 => Op::take(9),
        _ => Op::Take { cost, max_wait_ns: *random.pick(&[u64::MAX, u64::MAX, 100_000_000]) },
    };
    let bindings = [Binding::Enforce, Binding::Enforce, Binding::Enforce, Binding::Shadow, Binding::Quota];
    Hit::new(u128::from(random.below(2)), quota, op, *random.pick(&bindings))
}

/// Compares the cache's refusal with the kernel's decision about the same request: once at the current time of the
/// model, and once at `verdict.now`, which is the cache's estimate of this time. `is_exact` says that no request has
/// changed the states since the model showed them.
fn check(fixture: &Fixture, hits: &[Hit<'_>], verdict: &Verdict, decisions: &[Decision], is_exact: bool) {
    let (kernels, exact) = fixture.model.clone().decide(fixture.now(), hits);
    assert!(!kernels.allowed && !verdict.allowed, "{hits:?}: {decisions:?} where the kernel says {exact:?}");
    let (kernels, exact) = fixture.model.clone().decide(verdict.now, hits);
    assert!(!kernels.allowed && verdict.retry_after <= kernels.retry_after, "{hits:?}: {decisions:?}, {exact:?}");
    let binding = verdict.binding.expect("a refusal has a binding limit");
    assert_eq!((verdict.source, verdict.retry_after), (Source::DenyCache, decisions[binding].retry_after));
    assert!(hits[binding].binding != Binding::Shadow && !exact[binding].allowed);
    let mut is_whole = is_exact;
    for ((hit, decision), exact) in hits.iter().zip(decisions).zip(&exact) {
        if decision.reason == Reason::NotAsked {
            assert_eq!(*decision, Decision::default().with_reason(Reason::NotAsked));
            is_whole = false;
            // The model shows only a part of a log. From this part the cache can decide only a take that needs as many
            // free units as the take for which the part was shown.
            assert!(!is_exact || !fixture.unchanged.contains(&hit.state_key()) || is_log(hit), "{hit:?} was known");
        } else if is_exact {
            let remaining = if is_log(hit) { decision.remaining } else { exact.remaining };
            assert_eq!(*decision, exact.with_remaining(remaining), "{hit:?}");
            assert!(remaining <= exact.remaining, "{hit:?}: {remaining} of {exact:?}");
        }
    }
    assert!(!is_whole || *verdict == kernels.with_source(Source::DenyCache), "{verdict:?}, {kernels:?}");
}

/// Sends one request after the other. Some quotas share a state, and some requests have several hits.
#[test]
fn nothing_is_refused_that_the_kernel_would_allow() {
    let (quotas, mut random) = (all_quotas(), Random(3));
    let (mut from_cache, mut sent, mut reported, mut not_asked) = (0, 0, 0, 0);
    for i in 0..400 {
        let is_short = i % 4 == 0;
        let mut fixture = Fixture::new(if is_short { SECOND / 4 } else { LONG });
        fixture.drift_ppm = [0, 900, -900][i % 3];
        // In most requests the first hit uses the quota `focus`, and each further hit uses `focus` or one of two other
        // quotas. In about one request of 30, all hits use quotas on the same states as `focus`.
        let focus = &quotas[i % quotas.len()];
        let on_same_states: Vec<&Quota> = quotas.iter().filter(|quota| quota.identity() == focus.identity()).collect();
        let others = [&quotas[(i + 3) % 7], &quotas[(i + 5) % 7]];
        for _ in 0..500 {
            let several = if random.below(3) > 0 { 1 } else { 1 + random.below(3) };
            let all_on_same_states = random.below(30) == 0;
            let hits: Vec<Hit<'_>> = (0..several)
                .map(|i| {
                    let other = if all_on_same_states { *random.pick(&on_same_states) } else { *random.pick(&others) };
                    let quota = if all_on_same_states || i > 0 && random.below(2) == 0 { other } else { focus };
                    random_hit(&mut random, quota)
                })
                .collect();
            match fixture.known(&hits) {
                Some((verdict, decisions)) => {
                    from_cache += 1;
                    let is_reported = |decision: &&Decision| decision.reason != Reason::NotAsked;
                    reported += decisions.iter().filter(is_reported).count() - 1;
                    not_asked += decisions.iter().filter(|decision| !is_reported(decision)).count();
                    if is_short {
                        // Some entries may be too old by now, and the cache does not use such entries.
                        fixture.unchanged.clear();
                    }
                    check(&fixture, &hits, &verdict, &decisions, true);
                }
                None => {
                    sent += 1;
                    fixture.request(&hits);
                }
            }
            fixture.at_ns += *random.pick(&[0, 1, 1_000, 1_000_000, 30_000_000, 200_000_000]);
        }
    }
    assert!(from_cache > 10_000 && sent > 10_000, "{from_cache} from the cache, {sent} sent");
    assert!(reported > 1_000 && not_asked > 1_000, "{reported} other hits were decided, {not_asked} were not");
}

/// Many requests are in flight at the same time, and their replies come in any order. The model can have decided a
/// refund or a reset whose reply has not come yet. Until this reply comes, the cache may refuse a take that the model
/// would allow. After this reply, the cache must not do so.
#[test]
fn nothing_is_refused_that_the_kernel_would_allow_whatever_the_order_of_replies() {
    let (quotas, mut random) = (timed(4).map(build), Random(4));
    let (mut from_cache, mut exactly, mut overtaken) = (0, 0, 0);
    for i in 0..300 {
        let quota = &quotas[i % quotas.len()];
        let hits: Vec<[Hit<'_>; 1]> = (0..500).map(|_| [random_hit(&mut random, quota)]).collect();
        let mut fixture = Fixture::new(LONG);
        let cache = Rc::clone(&fixture.cache);
        let mut under_way: Vec<InFlight<'_>> = Vec::new();
        for hits in &hits {
            let mut decisions = [Decision::default()];
            if let Some(verdict) = cache.refuse(hits, &mut decisions, fixture.at()) {
                let beside = || under_way.iter().filter(|other| other.guard.hits[0].key == hits[0].key);
                if beside().any(|other| other.is_undone) {
                    overtaken += 1;
                } else {
                    // If the model has decided another request whose reply has not come yet, the state has changed. The
                    // comparison is then not exact.
                    let is_exact = beside().all(|other| other.decided.is_none());
                    from_cache += 1;
                    exactly += usize::from(is_exact);
                    check(&fixture, hits, &verdict, &decisions, is_exact);
                }
            } else {
                let guard = cache.guard(hits, fixture.at());
                under_way.push(InFlight { guard, decided: None, is_undone: false });
            }
            // In each step the model decides some requests, and some replies arrive.
            for _ in 0..random.below(5) {
                if under_way.is_empty() {
                    break;
                }
                let position = random.below(under_way.len() as u64) as usize;
                fixture.at_ns += random.below(3_000_000);
                let one = &mut under_way[position];
                if one.decided.is_none() {
                    let (verdict, decisions) = fixture.model.decide(fixture.now(), one.guard.hits);
                    let seen = fixture.seen(one.guard.hits, &verdict, fixture.at());
                    one.decided = Some((verdict, decisions, seen));
                    one.is_undone = matches!(one.guard.hits[0].op.kind(), OpKind::Refund | OpKind::Reset);
                } else {
                    let mut one = under_way.swap_remove(position);
                    let (_, decisions, seen) = one.decided.expect("the model has decided the request");
                    let seen = seen.map(|seen| ObservedStates { replied_at: fixture.at(), ..seen });
                    one.guard.learn(&decisions, seen.into_iter().collect());
                }
            }
            fixture.at_ns += *random.pick(&[0, 1_000, 1_000_000, 20_000_000]);
        }
    }
    assert!(
        from_cache > 5_000 && overtaken > 100,
        "{from_cache} refusals compared, {overtaken} not compared, because a refund or reset was under way"
    );
    assert!(exactly > 2_000, "{exactly} of {from_cache} refusals were compared exactly");
}
