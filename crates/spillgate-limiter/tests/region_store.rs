//! The store of a region: when it asks the guaranteed share, what it tells, and what it gives back.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use spillgate_limiter::regions::{Options, Peers, RegionStore};
use spillgate_limiter::{
    AcrossRegions, Algorithm, Binding, Charge, Charged, ChargedStore, Decision, FallbackStore, Hit, MemoryOptions,
    MemoryStore, OnStoreFailure, Op, OpKind, Quota, QuotaBuilder, Reason, Receipt, Regions, Source, Store, StoreError,
    StoreErrorKind, Time, Timing, Verdict, Wait,
};

const NOW: Time = Time::from_nanos(1_790_000_000_000_000_000);
const SECOND: Duration = Duration::from_secs(1);

/// A store of another region, which adds up the units that it is told.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<(u128, u64, u64)>>>);

impl Told {
    /// Returns the units of a key, from all ids.
    fn units(&self, key: u128) -> u64 {
        let told = self.0.lock().expect("no test panics");
        let ids: std::collections::BTreeSet<u64> = told.iter().filter(|one| one.0 == key).map(|one| one.1).collect();
        let last = |id: &u64| told.iter().filter(|one| one.0 == key && one.1 == *id).map(|one| one.2).max();
        ids.iter().filter_map(last).sum()
    }
}

impl ChargedStore for Told {
    async fn charge(&self, _: Duration, charges: &[Charge<'_>], results: &mut [Charged]) -> Result<(), StoreError> {
        self.0.lock().expect("no test panics").extend(charges.iter().map(|one| (one.key, one.id, one.total)));
        results.fill(Charged::New);
        Ok(())
    }

    async fn about(&self, _: Duration) -> Result<Option<String>, StoreError> {
        Ok(None)
    }
}

/// The store of the own region: a store in memory that counts its calls, and can fail or be slow from a call on.
struct Own {
    memory: MemoryStore,
    calls: AtomicUsize,
    fails_from: AtomicUsize,
    delay: Duration,
    /// The timeout of the last call, in nanoseconds.
    within: AtomicU64,
}

impl Own {
    fn new() -> Own {
        let memory = MemoryStore::new(MemoryOptions::default());
        let fails_from = AtomicUsize::new(usize::MAX);
        Own { memory, calls: AtomicUsize::new(0), fails_from, delay: Duration::ZERO, within: AtomicU64::new(0) }
    }
}

impl Store for Own {
    fn supports(&self, quota: &Quota, op: OpKind) -> bool {
        self.memory.supports(quota, op)
    }

    async fn decide(
        &self,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        tokio::time::sleep(self.delay).await;
        self.within.store(timing.timeout.map_or(0, |within| within.as_nanos() as u64), Ordering::Relaxed);
        if self.calls.fetch_add(1, Ordering::Relaxed) >= self.fails_from.load(Ordering::Relaxed) {
            return Err(StoreError::new(StoreErrorKind::Disconnected, "the test broke the link"));
        }
        self.memory.decide(timing, hits, decisions).await
    }
}

/// A region whose store is in memory, and the one other region that it tells.
struct Region {
    store: RegionStore<Own>,
    peers: Arc<Peers>,
    told: Told,
}

impl Region {
    async fn start(own: Own) -> Region {
        let (told, nodes) = (Told::default(), NonZeroU32::MIN);
        let options =
            Options { region: "eu".into(), nodes, max_keys: 1024, sync: Duration::from_millis(10), secret: 7 };
        let peers = Arc::new(Peers::start(&options, vec![("us".into(), told.clone()), ("ap".into(), told.clone())]));
        // Until the regions are compared, nothing is sent.
        tokio::time::sleep(Duration::from_millis(1)).await;
        Region { store: RegionStore::new(own, Arc::clone(&peers), SECOND), peers, told }
    }

    async fn ask(&self, hits: &[Hit<'_>]) -> (Verdict, Vec<Decision>) {
        let mut decisions = vec![Decision::default(); hits.len()];
        let verdict = self.store.decide(Timing::at(NOW), hits, &mut decisions).await.expect("the store answers");
        (verdict, decisions)
    }

    fn calls(&self) -> usize {
        self.store.inner().calls.load(Ordering::Relaxed)
    }
}

fn shared(builder: QuotaBuilder) -> Quota {
    let three = Regions::new(3).expect("2 to 8");
    builder.build().expect("valid").across(AcrossRegions::Shared(three)).expect("it can be shared")
}

fn bucket(burst: u64) -> Quota {
    shared(Quota::token_bucket(10, SECOND).burst(burst))
}

fn take(key: u128, quota: &Quota, cost: u64) -> Hit<'_> {
    Hit::new(key, quota, Op::take(cost), Binding::Enforce)
}

#[tokio::test(start_paused = true)]
async fn the_share_is_asked_when_the_bucket_is_full_and_all_units_are_told() {
    let (region, quota) = (Region::start(Own::new()).await, bucket(30));
    let mut receipts = Vec::new();
    for number in 0..38 {
        let (verdict, decisions) = region.ask(&[take(7, &quota, 1)]).await;
        assert!(verdict.allowed && verdict.source == Source::Store, "request {number}");
        assert_eq!(decisions[0].remaining, 29_u64.saturating_sub(number), "what the bucket has left");
        assert_eq!((decisions[0].reason, decisions[0].retry_after), (Reason::Fits, Wait::NONE));
        receipts.push(decisions[0].receipt.expect("a take has a receipt"));
    }
    assert_eq!((region.store.guaranteed(), region.calls()), (8, 46), "the share has a burst of eight");
    let (verdict, decisions) = region.ask(&[take(7, &quota, 1)]).await;
    assert!(!verdict.allowed && decisions[0].receipt.is_none());
    // The bucket owes 38 units, so one fits after 0.9 s. The share has a place after 0.3 s.
    assert_eq!(verdict.retry_after, Wait::After(300_000_000), "the shorter of the two waits");
    assert_eq!(verdict.retry_after, decisions[0].retry_after);
    region.peers.drain().await;
    assert_eq!(region.told.units(7), 38);
    // A refund of a take by the share lowers the share and the bucket.
    let refund = |receipt| Op::Refund { cost: 1, receipt: Some(receipt) };
    let (_, decisions) = region.ask(&[take(7, &quota, 1).with_op(refund(receipts[37]))]).await;
    assert_eq!(decisions[0].remaining, 0);
    let (verdict, _) = region.ask(&[take(7, &quota, 1)]).await;
    assert!(verdict.allowed && region.store.guaranteed() == 9, "the place in the share is free again");
    for receipt in &receipts[..9] {
        region.ask(&[take(7, &quota, 1).with_op(refund(*receipt))]).await;
    }
    let (verdict, decisions) = region.ask(&[take(7, &quota, 1)]).await;
    assert_eq!((verdict.allowed, decisions[0].remaining), (true, 0), "38 less nine leaves one place in the bucket");
    assert_eq!(region.store.guaranteed(), 9, "which is used first");
    // A reset clears both.
    region.ask(&[take(7, &quota, 1).with_op(Op::Reset)]).await;
    for number in 0..38 {
        assert!(region.ask(&[take(7, &quota, 1)]).await.0.allowed, "request {number} after the reset");
    }
    assert_eq!(region.store.guaranteed(), 17);
}

#[tokio::test(start_paused = true)]
async fn the_share_is_asked_for_nothing_else() {
    let region = Region::start(Own::new()).await;
    let (quota, window) = (bucket(5), shared(Quota::fixed_window(5, SECOND * 60)));
    let plain = Quota::fixed_window(100, SECOND * 60).build().expect("valid");
    let full = Quota::fixed_window(1, SECOND * 60).build().expect("valid");
    for key in [1, 2] {
        for _ in 0..5 {
            assert!(region.ask(&[take(key, &quota, 1), take(key, &window, 1)]).await.0.allowed);
        }
    }
    assert!(region.ask(&[take(9, &full, 1)]).await.0.allowed);
    let shadow = take(1, &quota, 1).with_binding(Binding::Shadow);
    let peek = take(1, &quota, 1).with_op(Op::Peek);
    for (hits, what) in [
        (vec![take(3, &window, 6)], "a window has no share"),
        (vec![take(1, &window, 1)], "a full window has no share"),
        (vec![take(1, &quota, 6)], "a cost above the capacity"),
        (vec![take(1, &quota, 0)], "a cost of 0"),
        (vec![take(1, &quota, 1), take(9, &full, 1)], "another limit refuses"),
        (vec![take(1, &quota, 1), peek], "a peek"),
        (vec![take(1, &quota, 1), take(1, &window, 1)], "a shared window refuses too"),
        (vec![shadow, take(9, &full, 1)], "a shadow hit"),
        (vec![take(1, &quota, 1), take(4, &plain, 1).with_op(Op::Force { cost: 1 })], "a force on another limit"),
    ] {
        let calls = region.calls();
        region.ask(&hits).await;
        assert_eq!((region.calls() - calls, region.store.guaranteed()), (1, 0), "{what}");
    }
    assert!(region.ask(&[shadow]).await.0.allowed && region.store.guaranteed() == 0, "shadow refuses nothing");
    // Two shared buckets that refuse are both asked, in one call. Another limit is charged once.
    let hits = [take(1, &quota, 1), take(4, &plain, 1), take(2, &quota, 1)];
    let calls = region.calls();
    let (verdict, decisions) = region.ask(&hits).await;
    assert!(verdict.allowed && region.calls() - calls == 2 && region.store.guaranteed() == 1);
    let (_, left) = region.ask(&[take(4, &plain, 1).with_op(Op::Peek)]).await;
    assert_eq!((decisions[1].remaining, left[0].remaining), (98, 98), "the force took one unit, and this request one");
    // The share of the first has no place any more, so nothing is taken of the others.
    let third = take(5, &quota, 1);
    let (verdict, decisions) = region.ask(&[take(1, &quota, 1), third, take(4, &plain, 1)]).await;
    assert!(!verdict.allowed && decisions.iter().all(|decision| decision.receipt.is_none()));
    let (_, left) = region.ask(&[third.with_op(Op::Peek), take(4, &plain, 1).with_op(Op::Peek)]).await;
    assert_eq!((left[0].remaining, left[1].remaining), (5, 98));
}

#[tokio::test(start_paused = true)]
async fn what_a_shared_limit_does_not_support_charges_nothing() {
    let (region, quota) = (Region::start(Own::new()).await, bucket(5));
    let receipt = Receipt::new(NOW, 0);
    for op in [
        Op::Force { cost: 1 },
        Op::Settle { change: 1, receipt },
        Op::Renew { receipt },
        Op::Refund { cost: 1, receipt: None },
    ] {
        let hits = [take(1, &quota, 1).with_op(op)];
        let told = region.store.decide(Timing::at(NOW), &hits, &mut [Decision::default()]).await;
        assert_eq!(told.expect_err("it is not supported").kind(), StoreErrorKind::Malformed, "{op:?}");
    }
    assert_eq!(region.calls(), 0);
    let supported = [OpKind::Take, OpKind::Peek, OpKind::Refund, OpKind::Reset];
    assert!(supported.iter().all(|op| region.store.supports(&quota, *op)));
    assert!([OpKind::Force, OpKind::Settle].iter().all(|op| !region.store.supports(&quota, *op)));
    let plain = Quota::per_second(5).build().expect("valid");
    assert!(region.store.supports(&plain, OpKind::Force), "a limit of one region supports what the store does");
    let alone = RegionStore::alone(MemoryStore::new(MemoryOptions::default()));
    assert!(!alone.supports(&quota, OpKind::Take), "without other regions, nothing is shared");
}

/// The second call fails, or has no time: the first refusal stays, also behind a fallback.
#[tokio::test(start_paused = true)]
async fn a_second_call_that_fails_leaves_the_refusal() {
    for policy in [OnStoreFailure::Allow, OnStoreFailure::Local] {
        let quota = bucket(5).with_on_store_failure(policy);
        let region = Region::start(Own::new()).await;
        for _ in 0..5 {
            assert!(region.ask(&[take(1, &quota, 1)]).await.0.allowed);
        }
        region.store.inner().fails_from.store(6, Ordering::Relaxed);
        let local = MemoryStore::new(MemoryOptions::default());
        let store = FallbackStore::new(region.store, local, NonZeroU32::MIN);
        let mut decisions = [Decision::default()];
        let verdict = store.decide(Timing::at(NOW), &[take(1, &quota, 1)], &mut decisions).await.expect("it answers");
        assert_eq!((verdict.allowed, verdict.source), (false, Source::Store), "{policy:?}");
        assert_eq!(store.shared().inner().calls.load(Ordering::Relaxed), 7);
        // If already the first call fails, the policy answers, and nothing is told.
        let verdict = store.decide(Timing::at(NOW), &[take(2, &quota, 1)], &mut decisions).await.expect("it answers");
        assert!(verdict.allowed && verdict.source != Source::Store);
        region.peers.drain().await;
        assert_eq!((region.told.units(1), region.told.units(2)), (5, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn both_calls_have_one_deadline() {
    let (quota, within) = (bucket(1), Duration::from_millis(100));
    for (delay, expected_ms) in [(30, 70), (80, 20), (100, 0), (150, 0)] {
        let region = Region::start(Own { delay: Duration::from_millis(delay), ..Own::new() }).await;
        assert!(region.ask(&[take(1, &quota, 1)]).await.0.allowed);
        let calls = region.calls();
        let mut decisions = [Decision::default()];
        let timing = Timing::at(NOW).within(within);
        let verdict = region.store.decide(timing, &[take(1, &quota, 1)], &mut decisions).await.expect("it answers");
        let asked = if expected_ms > 0 { 2 } else { 1 };
        assert_eq!((region.calls() - calls, verdict.allowed), (asked, asked == 2), "a delay of {delay} ms");
        if asked == 2 {
            let left = Duration::from_nanos(region.store.inner().within.load(Ordering::Relaxed));
            assert_eq!(left.as_millis(), expected_ms, "a delay of {delay} ms");
        }
    }
}

/// Limits of one region are decided as without this store, and nothing of them is told.
#[tokio::test(start_paused = true)]
async fn other_limits_are_not_told() {
    let region = Region::start(Own::new()).await;
    let plain = Quota::token_bucket(10, SECOND).build().expect("valid");
    let split = plain.across(AcrossRegions::Split(Regions::new(3).expect("2 to 8"))).expect("it can be split");
    assert_eq!((split.capacity(), split.algorithm()), (3, Algorithm::TokenBucket));
    for quota in [&plain, &split] {
        for number in 0..quota.capacity() + 1 {
            assert!(region.ask(&[take(number.into(), quota, 1)]).await.0.allowed);
            assert_eq!(region.ask(&[take(99, quota, 1)]).await.0.allowed, number < quota.capacity());
        }
        region.ask(&[take(99, quota, 1).with_op(Op::Reset)]).await;
    }
    region.peers.drain().await;
    assert_eq!((region.peers.keys(), region.told.units(99), region.store.guaranteed()), (0, 0, 0));
}
