//! Compares the memory store with the reference: the kernel with a map that never drops a state.

use proptest::prelude::*;
use spillgate_core::Anchor;
use spillgate_core::conformance::Reference;

use super::*;
use spillgate_testkit::Random;

struct Pair {
    store: MemoryStore,
    reference: Reference,
}

impl Pair {
    fn new(max_keys: usize) -> Pair {
        Pair { store: store(max_keys, OnFull::Deny), reference: Reference::default() }
    }

    fn decide(&mut self, now: Time, hits: &[Hit<'_>]) -> bool {
        let (mut stored, mut expected) = (vec![Decision::default(); hits.len()], vec![Decision::default(); hits.len()]);
        let verdict = self.store.decide_now(now, hits, &mut stored).expect("the request is well formed");
        assert_eq!(verdict, self.reference.decide(now, hits, &mut expected), "{hits:?} at {now:?}");
        assert_eq!(stored, expected, "{hits:?} at {now:?}");
        verdict.allowed
    }
}

fn brief_quotas() -> [Quota; 5] {
    let window = Duration::from_micros(300);
    [
        Quota::token_bucket(3, window).build().expect("the quota is valid"),
        Quota::fixed_window(2, window).anchor(Anchor::FirstHit).build().expect("the quota is valid"),
        Quota::sliding_window_counter(4, window).build().expect("the quota is valid"),
        Quota::sliding_window_log(2, window).build().expect("the quota is valid"),
        Quota::token_bucket(1, window).penalty(window).build().expect("the quota is valid"),
    ]
}

#[test]
fn a_store_that_grows_sweeps_and_shrinks_decides_as_the_reference() {
    let quotas = brief_quotas();
    let (mut pair, mut random, mut now) = (Pair::new(1_000_000), Random(1), at(1).as_nanos());
    let (mut most, mut least_after) = (0, usize::MAX);
    for step in 0..60_000u64 {
        // In the busy steps, many keys are live. In the other steps, new keys come slowly while the old keys expire.
        let busy = step / 15_000 % 2 == 0;
        now += if busy { random.below(20) } else { random.below(2_000) };
        let mut any_hit = || {
            let (key, quota) = (random.below(if busy { 20_000 } else { 1 << 30 }), random.below(5) as usize);
            Hit::new(u128::from(key), &quotas[quota], Op::take(1 + random.below(2)), Binding::Enforce)
        };
        let hits = [any_hit(), any_hit()];
        let hits = if hits[0].state_key() == hits[1].state_key() || step % 2 == 0 { &hits[..1] } else { &hits[..] };
        pair.decide(Time::from_nanos(now), hits);
        if busy {
            (most, least_after) = (most.max(pair.store.len()), usize::MAX);
        } else {
            least_after = least_after.min(pair.store.len());
        }
    }
    assert!(most > 5_000, "the store never had more than {most} states");
    assert!(least_after < most / 10, "of {most} states, {least_after} were left after a slow phase");
}

#[test]
fn counts_that_fit_no_slot_are_exact() {
    let most = (1 << 53) - 1;
    let quotas = [
        // The time between two tokens of this quota is 12,342,857,142,858 ns. This number fits no slot, because it is
        // above 2^38 and not a multiple of a thousand. So the slot stores the limit of 7 instead, and the time is
        // computed from the limit.
        Quota::per_day(7).build().expect("the quota is valid"),
        Quota::fixed_window(most, SECOND).build().expect("the quota is valid"),
        Quota::sliding_window_counter(most, SECOND).build().expect("the quota is valid"),
    ];
    let mut random = Random(2);
    for quota in &quotas {
        let (mut pair, mut now) = (Pair::new(1_000), at(86_400).as_nanos());
        for _ in 0..5_000 {
            now += random.below(2 * quota.window_ns() / quota.capacity().min(9));
            // Costs have all sizes, so that the states move between the slots and the slab (the list of states that do
            // not fit a slot).
            let cost = 1 + ((quota.capacity() - 1) >> random.below(54)).saturating_sub(random.below(3));
            let op = if random.below(9) == 0 { Op::Refund { cost, receipt: None } } else { Op::take(cost) };
            pair.decide(Time::from_nanos(now), &[Hit::new(u128::from(random.below(20)), quota, op, Binding::Enforce)]);
        }
        pair.decide(Time::from_nanos(now), &[Hit::new(99, quota, Op::take(quota.capacity()), Binding::Enforce)]);
        pair.decide(Time::from_nanos(now), &[Hit::new(99, quota, Op::take(1), Binding::Enforce)]);
    }
}

/// Returns a share (the part of a limit for one server) whose state does not fit a slot. The time between two of its
/// tokens is longer than two seconds. Instead of such a time, a slot stores the limit that has this time in the same
/// window. But no limit has the time of this share.
pub(super) fn unpacked() -> Quota {
    let nodes = std::num::NonZeroU32::new(3).expect("3 is not zero");
    let share = Quota::per_minute(7).build().expect("the quota is valid").share(nodes);
    assert!(!share.packs());
    share
}

#[test]
fn removed_states_free_their_bytes_in_the_slab() {
    let quotas = [
        unpacked(),
        Quota::fixed_window((1 << 53) - 1, SECOND).build().expect("the quota is valid"),
        Quota::token_bucket(1, SECOND).penalty(SECOND).build().expect("the quota is valid"),
        Quota::sliding_window_log(9, SECOND).build().expect("the quota is valid"),
        Quota::sliding_window_counter(9, SECOND).segments(10).build().expect("the quota is valid"),
        Quota::concurrency(9).lease(SECOND).build().expect("the quota is valid"),
    ];
    let costs = [1, 1 << 52 | 1, 1, 2, 2, 1];
    let brief = Quota::token_bucket(1, Duration::from_nanos(1)).build().expect("the quota is valid");
    for (quota, cost) in quotas.iter().zip(costs) {
        let mut pair = Pair::new(1_000);
        for key in 0..100 {
            for _ in 0..2 {
                pair.decide(at(86_400), &[Hit::new(key, quota, Op::take(cost), Binding::Enforce)]);
            }
        }
        assert!(pair.store.budget.heap_bytes() >= 100 * 32, "{:?} has states in the slab", quota.algorithm());
        // Now all states have expired. The states of half of the keys are read once more. The states of the other keys
        // are swept while new keys come.
        for key in 0..50 {
            pair.decide(at(4 * 86_400), &[Hit::new(key, quota, Op::Peek, Binding::Enforce)]);
        }
        for key in 1_000..3_000 {
            let now = Time::from_nanos(at(4 * 86_400).as_nanos() + key * 1_000);
            let _ = hit(&pair.store, key, &brief, now);
        }
        assert_eq!(pair.store.budget.heap_bytes(), 0, "{:?}", quota.algorithm());
        assert!(pair.store.len() < 100, "there are {} states", pair.store.len());
    }
}

#[test]
fn a_state_moves_to_the_slab_with_a_large_count_and_back_to_its_slot() {
    let quota = Quota::fixed_window(1 << 52, SECOND).build().expect("the quota is valid");
    let mut pair = Pair::new(100);
    for window in 1..10 {
        for cost in [1, (1 << 40) + 1, 1 << 51] {
            pair.decide(at(window), &[Hit::new(1, &quota, Op::take(cost), Binding::Enforce)]);
            assert_eq!(pair.store.budget.heap_bytes() > 0, cost > 1, "window {window}, cost {cost}");
        }
    }
}

#[test]
fn at_the_end_of_time_no_state_expires() {
    let quota = Quota::token_bucket(2, SECOND).build().expect("the quota is valid");
    let mut pair = Pair::new(1_000);
    for key in (0..200).chain(0..200) {
        assert!(pair.decide(Time::MAX, &[Hit::new(key, &quota, Op::take(1), Binding::Enforce)]));
    }
    assert!((0..200).all(|key| !pair.decide(Time::MAX, &[Hit::new(key, &quota, Op::take(1), Binding::Enforce)])));
}

#[test]
fn a_batch_sees_a_table_that_its_first_hit_replaced() {
    let quota = Quota::fixed_window(2, SECOND).build().expect("the quota is valid");
    let store = store(1_000, OnFull::Deny);
    let ops = [Op::take(2), Op::Peek, Op::Refund { cost: 1, receipt: None }, Op::take(2), Op::Reset, Op::take(2)];
    let hits = ops.map(|op| Hit::new(1, &quota, op, Binding::Enforce));
    let mut decisions = [Decision::default(); 6];
    store.hit_batch_now(at(1), &hits, &mut decisions).expect("as many decisions as hits");
    assert_eq!(decisions.map(|decision| decision.remaining), [0, 0, 1, 1, 2, 0]);
}

proptest! {
    #[test]
    fn a_batch_decides_as_single_calls_do(
        trace in prop::collection::vec((0u64..300, 0usize..5, 0u64..4), 1..400),
        batch in 1usize..40, step_ns in 0u64..100_000, max_keys in 20usize..400,
    ) {
        let quotas = brief_quotas();
        let (single, batched) = (store(max_keys, OnFull::Deny), store(max_keys, OnFull::Deny));
        let hits: Vec<Hit<'_>> = trace
            .iter()
            .map(|&(key, quota, cost)| Hit::new(u128::from(key), &quotas[quota], Op::take(cost), Binding::Enforce))
            .collect();
        for (i, hits) in hits.chunks(batch).enumerate() {
            let now = Time::from_nanos(at(1).as_nanos() + step_ns * i as u64);
            let mut decisions = vec![Decision::default(); hits.len()];
            batched.hit_batch_now(now, hits, &mut decisions).expect("as many decisions as hits");
            let expected: Vec<Decision> = hits.iter().map(|hit| single.hit_now(now, hit)).collect();
            prop_assert_eq!(decisions, expected);
        }
        prop_assert_eq!((single.len(), single.full_requests()), (batched.len(), batched.full_requests()));
    }
}
