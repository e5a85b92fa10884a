//! Tests requests with one hit on a live node and one hit on a node that is down. Such a request fails, and the store
//! refunds the unit that the live node took. If this refund fails too, the unit is lost. The tests count the lost
//! units.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use spillgate_core::{Binding, Decision, Hit, Op, Quota, Store, Timing};
use spillgate_redis::{RedisStore, Settings};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::support::cluster::{Cluster, WITHIN, key_on};
use crate::support::common::{PATIENCE, a_day, until, with_long_timeouts};

const TASKS: u64 = 16;
const PARTIAL: [&str; 2] = ["--cluster-require-full-coverage", "no"];

/// Returns a connected store that soon tries again to reach a node that was down.
async fn store(cluster: &Cluster, timeout: Duration) -> RedisStore {
    let probe_every = Duration::from_millis(20);
    let settings = Settings { timeout, probe_every, deny_cache_entries: 0, ..with_long_timeouts(&cluster.url()) };
    let store = RedisStore::new(&settings).expect("the URL is valid");
    store.wait_connected().await.expect("the cluster serves");
    store
}

/// Returns the units that are left of a limit on a live node. A live node does not serve while it sees only few of the
/// other nodes, for example shortly after it was frozen. So the limit is read again until the node serves.
async fn left(store: &RedisStore, key: u128, quota: &Quota) -> u64 {
    let hits = [Hit::new(key, quota, Op::Peek, Binding::Enforce)];
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut decisions = [Decision::default()];
        match store.decide(Timing::BY_STORE.within(PATIENCE), &hits, &mut decisions).await {
            Ok(_) => return decisions[0].remaining,
            Err(error) => assert!(Instant::now() < deadline, "the node of the key does not serve: {error}"),
        }
        sleep(Duration::from_millis(20)).await;
    }
}

fn take(key: u128, quota: &Quota) -> Hit<'_> {
    Hit::new(key, quota, Op::take(1), Binding::Enforce)
}

/// All requests fail. Units can be lost only by requests that were sent before the store knew of the outage. There are
/// at most `TASKS` + `max_failures` of them: those in flight at the same time, and those whose failures opened the
/// circuit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_node_is_down_limits_on_live_nodes_are_not_drained() {
    let mut cluster = Cluster::start(false, &PARTIAL);
    let store = store(&cluster, WITHIN).await;
    for down in [1, 2] {
        let (live, dead) = (a_day(1000), a_day(1_000_000));
        let keys = [key_on(&cluster.nodes[0], 0, &live, 7 + down as u128), key_on(&cluster.nodes[0], down, &dead, 7)];
        let kept_before = store.refunds_lost();
        if down == 1 {
            cluster.nodes[1].freeze()
        } else {
            cluster.nodes[2].kill()
        }
        let mut tasks = JoinSet::new();
        for _ in 0..TASKS {
            let (store, live, dead) = (store.clone(), live.clone(), dead.clone());
            tasks.spawn(async move {
                for _ in 0..250 {
                    let hits = [take(keys[0], &live), take(keys[1], &dead)];
                    let decided =
                        store.decide(Timing::BY_STORE.within(WITHIN), &hits, &mut [Decision::default(); 2]).await;
                    decided.expect_err("one of the two nodes is down");
                }
            });
        }
        tasks.join_all().await;
        until("all refunds have ended", || store.in_flight() == 0).await;
        let (lost, counted) = (1000 - left(&store, keys[0], &live).await, store.refunds_lost() - kept_before);
        let under_way = TASKS + u64::from(Settings::new(cluster.url()).max_failures);
        // Usually all units are refunded. A unit is lost only if the live node also replies too late.
        assert!(
            lost <= counted.min(under_way),
            "{lost} units are lost, but the store counted {counted} lost refunds, and the maximum is {under_way}"
        );
        if down == 1 {
            cluster.nodes[1].thaw();
        }
    }
}

/// Each request takes a permit on a live node, and a unit on a node that fails during the test. If the request is
/// admitted, the task releases the permit. If the request fails, the store itself refunds the permit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_permits_come_back_after_a_node_was_down() {
    const PERMITS: u64 = 40;
    let mut cluster = Cluster::start(false, &PARTIAL);
    // The timeout is so long that the live node is never late.
    let store = store(&cluster, Duration::from_secs(2)).await;
    let permits = Quota::concurrency(PERMITS).lease(Duration::from_secs(86_400)).build().expect("the quota is valid");
    let (key, beside) = (key_on(&cluster.nodes[0], 0, &permits, 3), key_on(&cluster.nodes[0], 1, &a_day(1), 3));
    let (is_over, admitted, failures) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (store, permits) = (store.clone(), permits.clone());
        let (is_over, admitted, failures) = (Arc::clone(&is_over), Arc::clone(&admitted), Arc::clone(&failures));
        tasks.spawn(async move {
            let wide = a_day(1 << 40);
            while !is_over.load(Ordering::Relaxed) {
                let (hits, mut decisions) = ([take(key, &permits), take(beside, &wide)], [Decision::default(); 2]);
                let timeout = Duration::from_secs(2);
                let Ok(verdict) = store.decide(Timing::BY_STORE.within(timeout), &hits, &mut decisions).await else {
                    failures.fetch_add(1, Ordering::Relaxed);
                    continue;
                };
                assert!(verdict.allowed, "{TASKS} tasks use at most 2 * {TASKS} of {PERMITS} permits: one each, and one each that is being refunded");
                admitted.fetch_add(1, Ordering::Relaxed);
                let release = hits[0].with_op(Op::Refund { cost: 1, receipt: decisions[0].receipt });
                store
                    .decide(Timing::BY_STORE.within(PATIENCE), &[release], &mut decisions[..1])
                    .await
                    .expect("the node of the key serves");
            }
        });
    }
    for is_killed in [false, true] {
        let before = admitted.load(Ordering::Relaxed);
        until("requests are admitted", || admitted.load(Ordering::Relaxed) > before + 100).await;
        let before = failures.load(Ordering::Relaxed);
        if is_killed {
            cluster.nodes[1].kill()
        } else {
            cluster.nodes[1].freeze()
        }
        until("requests fail", || failures.load(Ordering::Relaxed) > before + 500).await;
        if is_killed { cluster.nodes[1].start_again() } else { cluster.nodes[1].thaw() }
    }
    let before = admitted.load(Ordering::Relaxed);
    until("requests are admitted again", || admitted.load(Ordering::Relaxed) > before + 100).await;
    is_over.store(true, Ordering::Relaxed);
    tasks.join_all().await;
    until("all refunds have ended", || store.in_flight() == 0).await;
    assert_eq!(left(&store, key, &permits).await, PERMITS);
}
