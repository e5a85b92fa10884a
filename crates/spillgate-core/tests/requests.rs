//! Tests whole requests: several hits, several quotas on one state, and extreme numbers in every field.
//!
//! If one limit of a request refuses, the other limits of the request must not be charged.

use std::time::Duration;

use crate::support::{Cost, Gap, ask, ask_copy, builder, cases, costs, gaps, plain_quotas, quotas_with_extras, take};
use crate::support::{windows_ns, within_bound};
use proptest::prelude::*;
use spillgate_core::conformance::Reference;
use spillgate_core::{
    Algorithm, Anchor, Binding, Decision, Denied, Hit, MAX_UNITS, Op, OpKind, Quota, QuotaBuilder, QuotaError, Reason,
    Receipt, State, Time, Verdict, Wait, decide,
};

const NOW: u64 = 1_770_000_000_123_456_789;

fn bindings() -> impl Strategy<Value = Binding> {
    prop_oneof![2 => Just(Binding::Enforce), 1 => Just(Binding::Shadow), 1 => Just(Binding::Quota)]
}

fn any_quotas() -> impl Strategy<Value = Quota> {
    let concurrency = (1..5u64).prop_map(|n| Quota::concurrency(n).build().expect("permits"));
    prop_oneof![3 => plain_quotas(), 3 => quotas_with_extras(), 1 => concurrency]
}

/// Quotas without a soft limit and with free refusals. Some have small limits, others have limits of any size.
fn free_quotas() -> impl Strategy<Value = Quota> {
    let concurrency = (1..5u64).prop_map(|n| Quota::concurrency(n).build().expect("permits"));
    let small = (crate::support::algorithms(), 1..=5u64, 1..=4u64)
        .prop_filter_map("no such quota", |(a, limit, depth)| builder(a, limit, 960_000_000, depth).build().ok());
    prop_oneof![3 => small, 1 => plain_quotas(), 1 => concurrency]
}

/// Hits with different states. Each hit has a quota, the costs of earlier takes on its state, its own cost, the kind of
/// its operation, and its binding.
fn hits_alone() -> impl Strategy<Value = Vec<(Quota, Vec<Cost>, Cost, u8, Binding)>> {
    let used = prop::collection::vec(costs(), 0..4);
    prop::collection::vec((any_quotas(), used, costs(), 0..10u8, bindings()), 1..6)
}

fn op_of(kind: u8, cost: u64) -> Op {
    match kind {
        0 => Op::Peek,
        1 => Op::Force { cost },
        2 => Op::Refund { cost, receipt: None },
        3 => Op::Reset,
        _ => take(cost),
    }
}

/// Returns the verdict on `decisions` as the documentation of `Verdict` defines it: whether the request is allowed, and
/// the wait.
fn verdict_of(decisions: &[Decision], bindings: &[Binding]) -> (bool, Wait) {
    let refusing = |binding| {
        let both = decisions.iter().zip(bindings);
        both.filter(move |(d, b)| **b == binding && !d.allowed).map(|(d, _)| d.retry_after).collect::<Vec<_>>()
    };
    let (enforcing, quota) = (refusing(Binding::Enforce), refusing(Binding::Quota));
    let quota_hits = bindings.iter().filter(|b| **b == Binding::Quota).count();
    let quota_refuses = quota_hits > 0 && quota.len() == quota_hits;
    let shortest = quota.into_iter().min().filter(|_| quota_refuses);
    let longest = enforcing.iter().copied().max();
    (enforcing.is_empty() && !quota_refuses, longest.max(shortest).unwrap_or(Wait::NONE))
}

/// A shadow hit never changes the verdict. `Verdict::of` has separate code for a request with one hit. So the verdict
/// on one hit must equal the verdict on the same hit beside a shadow hit.
#[test]
fn a_shadow_hit_beside_another_hit_leaves_its_verdict_as_it_is() {
    let quota = Quota::per_second(5).build().expect("a quota");
    let mut decisions = vec![Decision::allow(5, 3), Decision::allow(5, 0)];
    decisions[1].delay_ns = 70;
    decisions.push(Decision::refuse(5, Reason::Exceeded, Wait::After(9)));
    decisions.push(Decision::refuse(5, Reason::Exceeded, Wait::Never));
    for binding in [Binding::Enforce, Binding::Quota, Binding::Shadow] {
        let hits = [binding, Binding::Shadow].map(|binding| Hit::new(7, &quota, take(1), binding));
        for (one, shadow) in decisions.iter().flat_map(|one| decisions.iter().map(move |shadow| (*one, *shadow))) {
            let now = Time::from_nanos(NOW);
            let both = Verdict::of(&hits, &[one, shadow], now);
            assert_eq!(Verdict::of(&hits[..1], &[one], now), both, "{binding:?}: {one:?}");
            let (allowed, wait) = verdict_of(&[one], &[binding]);
            assert_eq!((both.allowed, both.retry_after), (allowed, wait), "{binding:?}: {one:?}");
        }
    }
}

/// Two quotas that count in the same state and have different limits.
fn quota_pairs() -> impl Strategy<Value = (Quota, Quota)> {
    let numbers = (1..=60u64, 1..=60u64, 1..=30u64, 1..=30u64);
    (crate::support::algorithms(), windows_ns(), numbers).prop_filter_map("no such pair", |(a, w, (l1, l2, d1, d2))| {
        Some((builder(a, l1, w, d1).build().ok()?, builder(a, l2, w, d2).build().ok()?))
    })
}

fn extreme_numbers() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(1),
        Just(2),
        Just(MAX_UNITS - 1),
        Just(MAX_UNITS),
        Just(MAX_UNITS + 1),
        Just(65_536),
        Just(65_537),
        Just(u64::MAX - 1),
        Just(u64::MAX),
        Just(1 << 62),
        Just((1 << 62) + 1),
        Just((1 << 63) - 1),
        Just(1 << 63),
        any::<u64>(),
        0..100u64,
    ]
}

fn extreme_quotas() -> impl Strategy<Value = Quota> {
    let algorithm = prop_oneof![
        4 => crate::support::algorithms(),
        1 => Just(Algorithm::Concurrency),
    ];
    let numbers = (extreme_numbers(), extreme_numbers(), extreme_numbers(), extreme_numbers(), extreme_numbers());
    (algorithm, numbers, any::<u32>(), any::<bool>(), 0..4u8).prop_filter_map(
        "no such quota",
        |(algorithm, (limit, window, depth, lease, penalty), soft, charged, plain)| {
            // Some options often make a quota invalid, so three of four quotas do not have these options.
            let (soft, penalty) = if plain > 0 { (0, 0) } else { (soft, penalty) };
            let window = if limit == MAX_UNITS { 1 << 62 } else { window };
            let duration = Duration::from_nanos;
            let mut builder = QuotaBuilder::new(algorithm, limit, duration(window)).soft_ppm(soft);
            builder = match algorithm {
                Algorithm::TokenBucket => builder.burst(if plain == 1 { depth } else { 1 }),
                Algorithm::LeakyBucket => builder.queue(if plain == 1 { depth } else { 1 }),
                Algorithm::Concurrency => builder.lease(duration(lease)),
                _ => builder,
            };
            let denied = if charged && algorithm != Algorithm::Concurrency { Denied::Charged } else { Denied::Free };
            builder.penalty(duration(penalty)).denied(denied).build().ok()
        },
    )
}

fn extreme_receipts() -> impl Strategy<Value = Receipt> {
    (extreme_numbers(), extreme_numbers()).prop_map(|(at, mark)| Receipt::new(Time::from_nanos(at), mark))
}

fn extreme_ops() -> impl Strategy<Value = Op> {
    let refund = (extreme_numbers(), prop::option::of(extreme_receipts()));
    let take = (extreme_numbers(), extreme_numbers()).prop_map(|(cost, max_wait_ns)| Op::Take { cost, max_wait_ns });
    prop_oneof![
        4 => take,
        1 => Just(Op::Peek),
        2 => extreme_numbers().prop_map(|cost| Op::Force { cost }),
        2 => refund.prop_map(|(cost, receipt)| Op::Refund { cost, receipt }),
        1 => extreme_receipts().prop_map(|receipt| Op::Renew { receipt }),
        2 => (extreme_numbers(), extreme_numbers(), extreme_receipts())
            .prop_map(|(taken, used, receipt)| Op::settle(taken, used, receipt)),
        1 => Just(Op::Reset),
    ]
}

proptest! {
    #![proptest_config(cases(400))]

    /// Hits with different states are decided as if each hit was alone. They are charged as the documentation of
    /// `decide` says.
    #[test]
    fn hits_are_judged_alone_and_charged_together(hits in hits_alone()) {
        let mut states = vec![State::default(); hits.len()];
        let mut asked = Vec::new();
        for (state, (quota, used, cost, kind, binding)) in states.iter_mut().zip(&hits) {
            for cost in used {
                let remaining = ask_copy(state, quota, Op::Peek, NOW).remaining;
                ask(state, quota, take(cost.units(quota, remaining)), NOW);
            }
            let remaining = ask_copy(state, quota, Op::Peek, NOW).remaining;
            asked.push(Hit::new(1, quota, op_of(*kind, cost.units(quota, remaining)), *binding));
            ask(state, quota, Op::Peek, NOW);
        }
        let untouched = states.clone();
        let state_of: Vec<usize> = (0..hits.len()).collect();
        let mut decisions = vec![Decision::default(); hits.len()];
        let verdict = decide(&mut states, &state_of, &asked, Time::from_nanos(NOW), &mut decisions);

        let bindings: Vec<Binding> = asked.iter().map(|h| h.binding).collect();
        let (allowed, wait) = verdict_of(&decisions, &bindings);
        prop_assert_eq!((verdict.allowed, verdict.retry_after), (allowed, wait));
        if let Some(binding) = verdict.binding {
            prop_assert_eq!(verdict.allowed || verdict.retry_after == decisions[binding].retry_after, true);
        }
        for (i, hit) in asked.iter().enumerate() {
            let mut alone = untouched[i].clone();
            let expected = ask(&mut alone, hit.quota, hit.op, NOW);
            prop_assert_eq!(decisions[i].allowed, expected.allowed);
            prop_assert_eq!(decisions[i].retry_after, expected.retry_after);
            if hit.op.kind() == OpKind::Take && expected.allowed && !verdict.allowed {
                prop_assert_eq!(&states[i], &untouched[i], "a refused request charges no limit");
                prop_assert_eq!((decisions[i].receipt, decisions[i].delay_ns), (None, 0));
            } else {
                prop_assert_eq!(&states[i], &alone);
                prop_assert_eq!(decisions[i], expected);
            }
        }
    }

    /// Several takes of one request count in one state. The sum of their units is within the bound, whatever their
    /// bindings are. When the wait of a refused take is over, this take alone is allowed.
    #[test]
    fn hits_on_one_state_keep_the_bound(
        quota in plain_quotas(),
        requests in prop::collection::vec((gaps(), prop::collection::vec((costs(), bindings()), 1..4)), 1..20),
    ) {
        let (mut state, mut now, mut wait_ns) = (State::default(), NOW, 0);
        let mut admitted: Vec<(u64, u64)> = Vec::new();
        for (gap, takes) in requests {
            now = Gap::after(gap, &quota, now, wait_ns);
            let remaining = ask_copy(&state, &quota, Op::Peek, now).remaining;
            let op = |cost: Cost| take(cost.units(&quota, remaining));
            let hits: Vec<Hit<'_>> = takes.iter().map(|(cost, b)| Hit::new(1, &quota, op(*cost), *b)).collect();
            let mut decisions = vec![Decision::default(); hits.len()];
            let state_of = vec![0; hits.len()];
            let now = Time::from_nanos(now);
            decide(std::slice::from_mut(&mut state), &state_of, &hits, now, &mut decisions);
            for (hit, decision) in hits.iter().zip(&decisions) {
                let Op::Take { cost, .. } = hit.op else { continue };
                if decision.receipt.is_some() {
                    admitted.push((now.as_nanos(), cost));
                } else if let Wait::After(ns @ 1..) = decision.retry_after {
                    wait_ns = ns;
                    prop_assert!(ask_copy(&state, &quota, hit.op, now.as_nanos() + ns).allowed, "after its wait, the hit alone is allowed");
                }
            }
        }
        for i in 0..admitted.len() {
            let mut sum = 0;
            for (at, cost) in &admitted[i..] {
                sum += u128::from(*cost);
                prop_assert!(within_bound(&quota, at - admitted[i].0, sum), "{sum} units from event {i} to the time {at}");
            }
        }
    }

    /// The limits of a request have different algorithms. An allowed request takes from all of them. A refused request
    /// leaves every state as a peek would leave it.
    #[test]
    fn a_request_takes_from_all_its_limits_or_from_none(
        quotas in prop::collection::vec(free_quotas(), 2..5),
        requests in prop::collection::vec((0..400_000_000u64, prop::collection::vec(costs(), 4)), 1..20),
    ) {
        let mut states = vec![State::default(); quotas.len()];
        let state_of: Vec<usize> = (0..quotas.len()).collect();
        let mut now = NOW;
        for (gap_ns, costs) in requests {
            now += gap_ns;
            let peeks: Vec<Hit<'_>> = quotas.iter().map(|q| Hit::new(1, q, Op::Peek, Binding::Enforce)).collect();
            let mut before = vec![Decision::default(); quotas.len()];
            let mut peeked = states.clone();
            decide(&mut peeked, &state_of, &peeks, Time::from_nanos(now), &mut before);

            let left = |i: usize| costs[i].units(&quotas[i], before[i].remaining);
            let take_from = |i: usize| Hit::new(1, &quotas[i], take(left(i)), Binding::Enforce);
            let hits: Vec<Hit<'_>> = (0..quotas.len()).map(take_from).collect();
            let mut after = before.clone();
            let verdict = decide(&mut states, &state_of, &hits, Time::from_nanos(now), &mut after);

            prop_assert_eq!(verdict.allowed, (0..quotas.len()).all(|i| left(i) <= before[i].remaining));
            for i in 0..quotas.len() {
                prop_assert_eq!(after[i].receipt.is_some(), verdict.allowed);
                if verdict.allowed {
                    prop_assert_eq!(after[i].remaining, before[i].remaining - left(i));
                } else {
                    prop_assert_eq!(&states[i], &peeked[i]);
                    prop_assert_eq!(after[i].remaining, before[i].remaining);
                }
            }
        }
    }

    /// If the limit or the burst changes, the units that were used still count. They also count when the change is
    /// undone.
    #[test]
    fn a_quota_change_neither_forgives_nor_multiplies(
        (old, new) in quota_pairs(),
        steps in prop::collection::vec((gaps(), costs(), Just(u64::MAX)), 1..20),
        cost in costs(),
    ) {
        let mut last = (State::default(), NOW);
        crate::support::walk(&old, NOW, &steps, |state, _, now| {
            last = (state.clone(), now);
            Ok(())
        })?;
        let (mut state, now) = last;
        let left = ask_copy(&state, &old, Op::Peek, now).remaining;
        let more = cost.units(&old, left).min(left);
        prop_assert!(ask(&mut state, &old, take(more), now).allowed);
        let left = left - more;
        let used = old.capacity() - left;

        // A peek converts no debt, so exactly the same number of units is used under both quotas.
        let peek = ask(&mut state, &new, Op::Peek, now);
        prop_assert_eq!(peek.remaining, new.capacity().saturating_sub(used));
        prop_assert_eq!(ask(&mut state, &old, Op::Peek, now).remaining, old.capacity() - used);
        // A take converts the debt of a bucket to the time between two units of the new quota, rounded up to
        // nanoseconds.
        let rounding = u64::from(matches!(old.algorithm(), Algorithm::TokenBucket | Algorithm::LeakyBucket));
        let took = u64::from(ask(&mut state, &new, take(1), now).allowed);
        let expected = old.capacity().saturating_sub(used + took);
        let back = ask(&mut state, &old, Op::Peek, now).remaining;
        prop_assert!((expected.saturating_sub(rounding)..=expected).contains(&back), "{back} units are left, and {expected} were expected");
    }

    /// A quota with another window counts from zero in a state of its own. So right after a change of the window, takes
    /// get at most the capacity of the new quota.
    #[test]
    fn a_changed_window_counts_from_zero((old, new) in quota_pairs(), longer in 1..4u64) {
        let segments = if let Algorithm::SlidingWindowCounter { segments } = new.algorithm() { segments.into() } else { 1 };
        let window = new.window_ns() + longer * segments;
        let Ok(new) = builder(new.algorithm(), new.limit(), window, new.capacity().min(20)).build() else { return Ok(()) };
        let mut store = Reference::default();
        let mut ask = |quota: &Quota, op| {
            let mut decisions = [Decision::default()];
            store.decide(Time::from_nanos(NOW), &[Hit::new(1, quota, op, Binding::Enforce)], &mut decisions);
            decisions[0]
        };
        prop_assert!(ask(&old, take(old.capacity())).allowed);
        prop_assert_eq!(ask(&new, Op::Peek).remaining, new.capacity());
        prop_assert!(ask(&new, take(new.capacity())).allowed);
        prop_assert_eq!((ask(&old, Op::Peek).remaining, ask(&new, Op::Peek).remaining), (0, 0));
    }

    /// The requests have any integers in any field, any operation, any quota and any time. Each request gets an answer,
    /// and nothing panics.
    #[test]
    fn extremes_are_answered(
        quotas in prop::collection::vec(extreme_quotas(), 1..4),
        requests in prop::collection::vec((extreme_numbers(), prop::collection::vec(
            (0..4usize, extreme_ops(), bindings()), 1..5)), 1..12),
    ) {
        let mut store = Reference::default();
        let mut receipt = None;
        for (at, hits) in requests {
            let now = Time::from_nanos(at);
            let hits: Vec<Hit<'_>> = hits.iter().map(|(quota, op, binding)| {
                let op = match (*op, receipt) {
                    (Op::Refund { cost, receipt: Some(_) }, Some(last)) => Op::Refund { cost, receipt: Some(last) },
                    (Op::Renew { .. }, Some(last)) => Op::Renew { receipt: last },
                    (Op::Settle { change, .. }, Some(last)) => Op::Settle { change, receipt: last },
                    (op, _) => op,
                };
                Hit::new(1, &quotas[quota % quotas.len()], op, *binding)
            }).collect();
            let mut decisions = vec![Decision::default(); hits.len()];
            let verdict = store.decide(now, &hits, &mut decisions);
            prop_assert!(verdict.binding.is_some() || hits.iter().all(|h| h.binding == Binding::Shadow));
            for (hit, decision) in hits.iter().zip(&decisions) {
                prop_assert_eq!(decision.limit, hit.quota.capacity());
                prop_assert!(decision.remaining <= decision.limit);
                prop_assert_eq!(decision.allowed, decision.retry_after == Wait::NONE);
                receipt = decision.receipt.or(receipt);
            }
        }
    }

    /// A limit is inexact if rounding the time between two units up to whole nanoseconds would lower its rate by more
    /// than 0.1 %. The error for such a limit names the nearest exact limit below it and the nearest exact limit above
    /// it.
    #[test]
    fn an_inexact_limit_names_its_exact_neighbours(limit in 1..100_000_000u64, window in windows_ns()) {
        let quota = |limit| Quota::token_bucket(limit, Duration::from_nanos(window)).burst(1).build();
        if let Err(QuotaError::Inexact { below, above, .. }) = quota(limit) {
            prop_assert!(below < limit && quota(below).is_ok(), "{below} in {window} ns must be exact and below {limit}");
            for between in (below + 1..limit).rev().take(50).chain((below + 1..limit).take(50)) {
                prop_assert!(quota(between).is_err(), "{between} in {window} ns is exact, and nearer to {limit} than {below}");
            }
            if let Some(above) = above {
                prop_assert!(limit < above && quota(above).is_ok(), "{above} in {window} ns must be exact and above {limit}");
                for between in (limit..above).take(50).chain((limit..above).rev().take(50)) {
                    prop_assert!(quota(between).is_err(), "{between} in {window} ns is exact, and nearer to {limit} than {above}");
                }
            }
        }
    }
}

/// Each algorithm, window, anchor and number of segments has an identity of its own. Quotas that differ only in the
/// limit or the burst have the same identity. Queues are the exception, because their identity contains the time
/// between two units, which depends on the limit.
#[test]
fn identity_is_the_algorithm_and_the_window_and_t_of_a_queue() {
    let window = Duration::from_secs(3600);
    let mut seen = std::collections::BTreeMap::new();
    let mut algorithms = vec![
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
        Algorithm::SlidingWindowLog,
        Algorithm::Concurrency,
        Algorithm::FixedWindow(Anchor::Epoch),
        Algorithm::FixedWindow(Anchor::FirstHit),
    ];
    let divides = |n: &u8| window.as_nanos().is_multiple_of(u128::from(*n));
    algorithms.extend((1..=128).filter(divides).map(|segments| Algorithm::SlidingWindowCounter { segments }));
    for algorithm in algorithms {
        for window in [window, window * 2] {
            let quota = |limit| QuotaBuilder::new(algorithm, limit, window).build().expect("a quota");
            let is_one = quota(5).identity() == quota(50).identity();
            assert_eq!(is_one, algorithm != Algorithm::LeakyBucket, "{algorithm:?}");
            let other = seen.insert(quota(5).identity(), (algorithm, window));
            assert!(
                other.is_none() || algorithm == Algorithm::Concurrency,
                "{algorithm:?} and {other:?} have the same identity"
            );
        }
    }
}

/// Identities are a part of the keys in a store. If an upgrade changed them, all counts would be forgotten, and two
/// versions that run together would count separately.
#[test]
fn identities_are_those_of_all_earlier_versions() {
    let minute = Duration::from_secs(60);
    let known: [(_, u128); 7] = [
        (Quota::token_bucket(5, minute), 0x291f_2784_5e6d_9949_f50e_a17d_8d7a_b02f),
        (Quota::fixed_window(5, minute), 0x827f_5de7_c41b_ac7f_c61b_2990_8538_ce8a),
        (Quota::fixed_window(5, minute).anchor(Anchor::FirstHit), 0x8437_5c0f_7478_aca2_830e_cd25_7266_0abf),
        (Quota::sliding_window_log(5, minute), 0xb4a5_c8a9_7799_9264_dca5_156a_7242_86eb),
        (Quota::sliding_window_counter(5, minute), 0xd92d_9aeb_38a9_cb19_6ca9_e211_93a1_4b3e),
        (Quota::sliding_window_counter(5, minute).segments(4), 0xc8fe_c788_270b_7dc2_aef2_fec4_d4be_c2eb),
        (Quota::concurrency(5), 0xf52a_5d1b_4ccf_9d83_eb99_1909_3e73_3b76),
    ];
    for (builder, identity) in known {
        let quota = builder.build().expect("valid");
        assert_eq!(quota.identity(), identity, "{quota:?}");
    }
}

#[test]
fn the_limit_under_which_the_fewest_further_requests_fit_determines_the_answer() {
    const HOUR: Duration = Duration::from_secs(3_600);
    // 49 of 1,000 requests are left, which is 5 %, and 5 of 10 others.
    let (many, few) = (Quota::fixed_window(1_000, HOUR), Quota::fixed_window(10, HOUR));
    let (many, few) = (many.build().expect("a limit"), few.build().expect("a limit"));
    let binding = |costs: [u64; 2], used: [u64; 2]| {
        let take = |costs: [u64; 2]| {
            let hit = |key, quota, cost| Hit::new(key, quota, Op::take(cost), Binding::Enforce);
            [hit(1, &many, costs[0]), hit(2, &few, costs[1])]
        };
        let (mut states, mut decisions) = ([State::default(), State::default()], [Decision::default(); 2]);
        let _ = decide(&mut states, &[0, 1], &take(used), Time::EPOCH, &mut decisions);
        decide(&mut states, &[0, 1], &take(costs), Time::EPOCH, &mut decisions).binding
    };
    assert_eq!(binding([1, 1], [950, 4]), Some(1));
    // With 20 units each, two further requests fit the first limit.
    assert_eq!(binding([20, 1], [931, 4]), Some(0));
    // If as many fit, the smaller share of the limit is shown.
    assert_eq!(binding([1, 1], [994, 4]), Some(0));
}
