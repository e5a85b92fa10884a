//! States as words (64-bit integers). A state that was written as words and read again decides as before. No words make
//! the kernel panic.
//!
//! The words come from a snapshot file. A snapshot can be old, damaged or forged, and the server has to start
//! nevertheless.

use std::time::Duration;

use crate::support::{ask, cases, quotas_with_extras, tiny_quotas};
use proptest::prelude::*;
use spillgate_core::{Algorithm, Op, Packed, Quota, Receipt, State, Time};

/// A time in 2026, far from the earliest and the latest time.
const NOW: u64 = 1_770_000_000_123_456_789;

fn all_quotas() -> impl Strategy<Value = Quota> {
    prop_oneof![
        6 => quotas_with_extras(),
        2 => tiny_quotas(Algorithm::Concurrency).prop_map(|quotas| quotas[0].clone()),
    ]
}

/// The start of a sequence of hits: a time in 2026, or 20 ns before the latest time that `Time` can represent. Every
/// later time is cut to the latest time, so after these 20 ns the clock stops.
fn starts() -> impl Strategy<Value = u64> {
    prop_oneof![3 => Just(NOW), 1 => Just(Time::MAX.as_nanos() - 20)]
}

/// One hit: the time since the previous hit, the kind of operation, the units, and which receipt it uses (0 means the
/// newest one).
type Step = (u64, u8, u64, u8);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let gaps = prop_oneof![Just(0), 1..20u64, 1..2_000_000_000u64];
    prop::collection::vec((gaps, 0..14u8, 0..4u64, 0..4u8), 1..40)
}

fn op_of((_, kind, cost, which): Step, receipts: &[Receipt]) -> Op {
    let receipt = receipts.iter().rev().nth(which.into()).copied();
    match (kind, receipt) {
        (0, _) => Op::Peek,
        (1 | 2, _) => Op::Force { cost },
        (3, _) => Op::Refund { cost, receipt: None },
        (4, _) => Op::Refund { cost, receipt },
        (5, Some(receipt)) => Op::Renew { receipt },
        (6, Some(receipt)) => Op::settle(2, cost, receipt),
        _ => Op::Take { cost, max_wait_ns: u64::MAX },
    }
}

fn encoded(state: &State) -> Vec<u64> {
    let mut words = Vec::new();
    state.encode(&mut words);
    words
}

/// Mostly numbers at which arithmetic can go wrong, and the numbers next to them.
fn edges() -> impl Strategy<Value = u64> {
    let near = |n: u64| [n.saturating_sub(1), n, n.saturating_add(1)];
    let all: Vec<u64> = [0, 1, 5, 65_536, 1 << 53, 1 << 61, 1 << 62, 1 << 63, (1 << 63) + (1 << 62), NOW, u64::MAX]
        .into_iter()
        .flat_map(near)
        .collect();
    prop_oneof![4 => prop::sample::select(all), 2 => 0..20u64, 1 => NOW - 1000..NOW + 1000, 1 => any::<u64>()]
}

/// Asks for every operation at each of the `times`. Checks only that nothing panics, and that at most the limit
/// remains.
fn exercise(state: &State, quota: &Quota, times: &[u64]) {
    for kind in 0..14u8 {
        for cost in [0, 1, 3, u64::MAX] {
            let mut state = state.clone();
            for &now in times {
                let receipt = Receipt::new(Time::from_nanos(now), now);
                let decision = ask(&mut state, quota, op_of((0, kind, cost, 0), &[receipt]), now);
                assert!(decision.remaining <= decision.limit);
                let _ = (state.expires_at(quota), state.heap_bytes(), state.pack(quota));
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn a_state_that_was_written_down_decides_as_before(
        quota in all_quotas(), start in starts(), steps in steps(), cut in 0..40usize, later in any::<bool>(),
    ) {
        let (mut state, mut receipts, mut now) = (State::default(), Vec::new(), start);
        let mut twin = None;
        for (i, &step) in steps.iter().enumerate() {
            now += step.0;
            if i == cut.min(steps.len() - 1) {
                let words = encoded(&state);
                let decoded = State::decode(&words).expect("the words encode a state");
                prop_assert_eq!(decoded.expires_at(&quota), state.expires_at(&quota));
                prop_assert_eq!(encoded(&decoded), words);
                twin = Some(decoded);
                now += if later { quota.interval_ns() / 2 } else { 0 };
            }
            let op = op_of(step, &receipts);
            let decision = ask(&mut state, &quota, op, now);
            if let Some(twin) = &mut twin {
                prop_assert_eq!(ask(twin, &quota, op, now), decision, "step {}", i);
            }
            receipts.extend(decision.receipt);
        }
    }

    #[test]
    fn no_words_make_the_kernel_panic(
        tag in 0..8u64, penalty in edges(), words in prop::collection::vec(edges(), 0..12),
        quota in all_quotas(), now in edges(), later in edges(),
    ) {
        let words: Vec<u64> = [tag, penalty].into_iter().chain(words).collect();
        if let Some(state) = State::decode(&words) {
            exercise(&state, &quota, &[now, now.saturating_add(1), later, 0]);
        }
    }

    #[test]
    fn no_changed_word_makes_the_kernel_panic(
        quota in all_quotas(), steps in steps(), at in any::<prop::sample::Index>(), word in edges(), later in edges(),
    ) {
        let (mut state, mut receipts, mut now) = (State::default(), Vec::new(), NOW);
        for &step in &steps {
            now += step.0;
            receipts.extend(ask(&mut state, &quota, op_of(step, &receipts), now).receipt);
        }
        let mut words = encoded(&state);
        let at = at.index(words.len());
        words[at] = word;
        if let Some(state) = State::decode(&words) {
            exercise(&state, &quota, &[now, later, 0]);
        }
    }

    #[test]
    fn no_sound_integers_make_the_kernel_panic(
        expires_at in edges(), first in edges(), second in edges(), quota in all_quotas(), now in edges(), later in edges(),
    ) {
        let packed = Packed { expires_at, first, second };
        if packed.is_sound() {
            exercise(&State::unpack(packed, &quota), &quota, &[now, later, 0]);
        }
    }
}

#[test]
fn words_that_no_request_can_make_are_rejected() {
    let (empty, bucket, window, segments, log, leases) = (0, 1, 2, 3, 4, 5);
    let wrong: &[&[u64]] = &[
        &[],
        &[empty],
        &[empty, 0],
        &[empty, 0, 0, 0],
        &[empty, u64::MAX, 0],
        &[empty, 1, u64::MAX],
        &[bucket, 0, 0, 1, 1],
        &[bucket, 0, 0, u64::MAX, 1, 63],
        &[bucket, 0, 0, 1, u64::MAX, 63],
        &[bucket, 0, 0, 1, 0, 63],
        &[bucket, 0, 0, 1, 1, 64],
        &[window, 0, 0, 1 << 63, 1],
        &[window, 0, 0, 1, 1 << 53],
        &[segments, 0, 0, 1],
        &[segments, 0, 0, 1, 1],
        &[segments, 0, 0, 1, 1, 1 << 53],
        &[log, 0, 0],
        &[log, 0, 0, 1],
        &[log, 0, 0, 5, 1, 5, 1],
        &[log, 0, 0, 5, 0],
        &[log, 0, 0, 5, 1, 6, 65_537],
        &[leases, 0, 0],
        &[leases, 0, 0, u64::MAX],
        &[leases, 0, 0, 9, 10, 1, 1, 1],
        &[leases, 0, 0, 9, 7, 0, 1, 1],
        &[leases, 0, 0, 9, 7, 1, 1, 0],
        &[leases, 0, 0, 9, 7, 1, 1, 1, 7, 1, 2, 1],
        &[leases, 0, 0, 9, 7, 1, 1, 65_537],
        &[leases, 0, 0, 9, 7, 1],
        &[6, 0, 0],
    ];
    for words in wrong {
        assert_eq!(State::decode(words), None, "{words:?}");
    }
    assert_eq!(State::decode(&[segments, 0, 0].iter().chain(&vec![1; 131]).copied().collect::<Vec<_>>()), None);
    assert_eq!(State::decode(&[empty, 0, 0]), Some(State::default()));
}

#[test]
fn the_largest_log_and_the_most_leases_can_be_read() {
    let quotas = [
        Quota::sliding_window_log(65_536, Duration::from_secs(1)).build().expect("valid"),
        Quota::concurrency(65_536).build().expect("valid"),
    ];
    for quota in &quotas {
        let mut state = State::default();
        for i in 0..65_536 {
            assert!(ask(&mut state, quota, Op::take(1), NOW + i).allowed);
        }
        ask(&mut state, quota, Op::Force { cost: 9 }, NOW + 65_536);
        let decoded = State::decode(&encoded(&state)).expect("the words encode a state");
        assert_eq!(encoded(&decoded), encoded(&state));
        assert!(!ask(&mut decoded.clone(), quota, Op::take(1), NOW + 65_536).allowed);
    }
}
