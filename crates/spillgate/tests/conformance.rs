//! The memory store decides as the kernel does: on every trace, and on random requests of several
//! hits over all algorithms and operations.

use std::time::Duration;

use spillgate::conformance::{Reference, run_all};
use spillgate::{
    Anchor, Binding, Decision, Denied, Hit, MemoryOptions, MemoryStore, Op, Quota, QuotaBuilder, Receipt, Time,
};

const REQUESTS: u32 = 50_000;

#[test]
fn the_memory_store_passes_every_trace() {
    let requests = run_all(|| {
        let store = MemoryStore::new(MemoryOptions::default());
        move |now, hits: &[Hit<'_>], decisions: &mut [Decision]| {
            store.decide_now(now, hits, decisions).expect("traces are well formed")
        }
    });
    match requests {
        Ok(requests) => assert!(requests > 300, "{requests} requests"),
        Err(error) => panic!("{error}"),
    }
}

/// xorshift64* (Vigna, 2014): the same requests in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }
}

/// Every algorithm twice: the second has another limit on the same state, charged refusals or a penalty.
fn quotas() -> Vec<Quota> {
    let second = Duration::from_secs(1);
    let builders: [(QuotaBuilder, QuotaBuilder); 7] = [
        (Quota::token_bucket(5, second), Quota::token_bucket(8, second).burst(3).denied(Denied::Charged)),
        (Quota::fixed_window(5, second), Quota::fixed_window(3, second).penalty(Duration::from_millis(700))),
        (
            Quota::fixed_window(5, second).anchor(Anchor::FirstHit),
            Quota::fixed_window(7, second).anchor(Anchor::FirstHit).soft_ppm(500_000),
        ),
        (Quota::sliding_window_log(5, second), Quota::sliding_window_log(2, second).denied(Denied::Charged)),
        (Quota::sliding_window_counter(5, second).segments(10), Quota::sliding_window_counter(9, second).segments(10)),
        (Quota::leaky_bucket(5, second).queue(3), Quota::leaky_bucket(10, second).queue(6)),
        (Quota::concurrency(3).lease(second), Quota::concurrency(5).lease(second).penalty(second)),
    ];
    let quotas = builders.into_iter().flat_map(|(one, other)| [one, other]);
    quotas.map(|quota| quota.build().expect("valid")).collect()
}

fn op(random: &mut Random, receipts: &[Receipt]) -> Op {
    let cost = random.below(4);
    let receipt = match receipts.len() as u64 {
        0 => None,
        known => Some(receipts[random.below(known) as usize]),
    };
    match (random.below(20), receipt) {
        (0, _) => Op::Look,
        (1, _) => Op::Force { cost },
        (2, _) => Op::Refund { cost, receipt: None },
        (3 | 4, Some(_)) => Op::Refund { cost, receipt },
        (5, Some(receipt)) => Op::Renew { receipt },
        (6, _) if cost == 0 => Op::Reset,
        _ => Op::Take { cost, max_wait_ns: random.below(3) * 200_000_000 },
    }
}

#[test]
fn random_requests_are_decided_as_by_the_kernel() {
    let quotas = quotas();
    let (store, mut kernel) = (MemoryStore::new(MemoryOptions::default()), Reference::default());
    let (mut random, mut now_ns, mut receipts) = (Random(7), 1_790_000_000_000_000_000, Vec::new());
    let mut allowed = 0;
    for i in 0..REQUESTS {
        now_ns += [0, 1, 50_000_000, 400_000_000][random.below(4) as usize] * random.below(3);
        let hits: Vec<Hit<'_>> = (0..=random.below(4))
            .map(|_| {
                let quota = &quotas[random.below(quotas.len() as u64) as usize];
                let binding = [Binding::Enforce, Binding::Enforce, Binding::Shadow, Binding::Quota];
                let (key, op) = (u128::from(random.below(5)) << 64, op(&mut random, &receipts));
                Hit::new(key, quota, op, binding[random.below(4) as usize])
            })
            .collect();
        let mut by_store = vec![Decision::default(); hits.len()];
        let mut by_kernel = by_store.clone();
        let now = Time::from_nanos(now_ns);
        let verdict = store.decide_now(now, &hits, &mut by_store).expect("well formed");
        let expected = kernel.decide(now, &hits, &mut by_kernel);
        assert_eq!((verdict, &by_store), (expected, &by_kernel), "request {i}: {hits:?}");
        allowed += u32::from(verdict.allowed);
        receipts.extend(by_store.iter().filter_map(|decision| decision.receipt));
        receipts.drain(..receipts.len().saturating_sub(20));
    }
    assert!((REQUESTS / 10..REQUESTS * 9 / 10).contains(&allowed), "both answers are common: {allowed} allowed");
}
