//! Tests that the memory store decides as the kernel does.
//!
//! One test sends every trace (recorded requests with the kernel's decisions) to the memory store. The other test sends
//! the same random requests to the memory store and to the kernel. These requests have several hits, all algorithms and
//! all operations.

use std::time::Duration;

use crate::support::Requests as _;
use spillgate_limiter::conformance::{Reference, run_all};
use spillgate_limiter::{Anchor, Decision, Denied, Hit, MemoryOptions, MemoryStore, Quota, QuotaBuilder, Time};
use spillgate_testkit::Random;

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
        Ok(requests) => assert!(requests > 300, "the traces have only {requests} requests"),
        Err(error) => panic!("{error}"),
    }
}

/// Returns a pair of quotas for each algorithm. The second quota has another limit, and some second quotas also charge
/// refused requests or have a penalty. A key can get both quotas of a pair, as after a reload that changes a limit.
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
    quotas.map(|quota| quota.build().expect("the quota is valid")).collect()
}

#[test]
fn random_requests_are_decided_as_by_the_kernel() {
    let quotas = quotas();
    let (store, mut kernel) = (MemoryStore::new(MemoryOptions::default()), Reference::default());
    let (mut random, mut now_ns, mut receipts) = (Random(7), 1_790_000_000_000_000_000, Vec::new());
    let mut allowed = 0;
    for i in 0..REQUESTS {
        now_ns += random.step_ns();
        let hits = random.hits(&quotas, &receipts, |i| u128::from(i) << 64);
        let mut by_store = vec![Decision::default(); hits.len()];
        let mut by_kernel = by_store.clone();
        let now = Time::from_nanos(now_ns);
        let verdict = store.decide_now(now, &hits, &mut by_store).expect("the request is well formed");
        let expected = kernel.decide(now, &hits, &mut by_kernel);
        assert_eq!((verdict, &by_store), (expected, &by_kernel), "request {i}: {hits:?}");
        allowed += u32::from(verdict.allowed);
        receipts.extend(by_store.iter().filter_map(|decision| decision.receipt));
        receipts.drain(..receipts.len().saturating_sub(20));
    }
    assert!(
        (REQUESTS / 10..REQUESTS * 9 / 10).contains(&allowed),
        "at least a tenth of the requests must be allowed, and at least a tenth refused: {allowed} were allowed"
    );
}
