//! A primary of a cluster dies, and its replica takes over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use spillgate_core::{Binding, Hit, Op, Quota, Time, decide};
use spillgate_redis::{Name, RedisStore, Settings};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::cluster::{Cluster, WITHIN, key_on, role, text};
use crate::load::{Load, States, counted};
use crate::server::Server;
use crate::{PATIENCE, a_day, take, until};

const LIMIT: u64 = 3000;

/// Tasks that take from one key until it is used up.
struct Takers {
    tasks: Vec<JoinHandle<()>>,
    admitted: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
    in_doubt: Arc<AtomicU64>,
    is_used_up: Arc<AtomicBool>,
}

impl Takers {
    fn start(store: &RedisStore, key: u128) -> Takers {
        let [admitted, failed, in_doubt] = [0; 3].map(|_| Arc::new(AtomicU64::new(0)));
        let is_used_up = Arc::new(AtomicBool::new(false));
        let task = || {
            let (store, admitted, failed) = (store.clone(), Arc::clone(&admitted), Arc::clone(&failed));
            let (in_doubt, is_used_up) = (Arc::clone(&in_doubt), Arc::clone(&is_used_up));
            tokio::spawn(async move {
                while !is_used_up.load(Ordering::Relaxed) {
                    match take(&store, key, &a_day(LIMIT), WITHIN).await {
                        Ok((verdict, _)) if verdict.allowed => admitted.fetch_add(1, Ordering::Relaxed),
                        Ok(_) => u64::from(is_used_up.swap(true, Ordering::Relaxed)),
                        Err(failure) => {
                            in_doubt.fetch_add(u64::from(failure.class.is_in_doubt()), Ordering::Relaxed);
                            failed.fetch_add(1, Ordering::Relaxed)
                        }
                    };
                    sleep(Duration::from_millis(1)).await;
                }
            })
        };
        let tasks = (0..8).map(|_| task()).collect();
        Takers { tasks, admitted, failed, in_doubt, is_used_up }
    }

    fn admitted(&self) -> u64 {
        self.admitted.load(Ordering::Relaxed)
    }

    /// How many were admitted, failed, and failed in doubt, when all is used up.
    async fn end(self) -> [u64; 3] {
        for task in self.tasks {
            timeout(PATIENCE, task).await.expect("every request is answered").expect("no task panics");
        }
        assert!(self.is_used_up.load(Ordering::Relaxed));
        [self.admitted, self.failed, self.in_doubt].map(|count| count.load(Ordering::Relaxed))
    }
}

/// Units of `key` that a replica has counted.
fn counted_by(replica: &Server, key: u128, quota: &Quota) -> u64 {
    let client = redis::Client::open(("127.0.0.1", replica.port())).expect("an address");
    let mut connection = client.get_connection().expect("it runs");
    redis::cmd("READONLY").exec(&mut connection).expect("a replica of a cluster");
    let hit = [Hit::new(key, quota, Op::Look, Binding::Enforce)];
    let raw: Vec<u8> = redis::cmd("GET").arg(Name::of(&hit[0]).as_bytes()).query(&mut connection).expect("a string");
    let (seconds, _): (u64, u64) = redis::cmd("TIME").query(&mut connection).expect("a time");
    let mut states = [spillgate_redis::state(&raw, quota).unwrap_or_default()];
    let mut decisions = [Default::default()];
    decide(&mut states, &[0], &hit, Time::from_nanos(seconds * 1_000_000_000), &mut decisions);
    quota.limit() - decisions[0].remaining
}

/// The bound: the limit, and what the dead primary had admitted but not passed on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_dies_and_its_replica_takes_over() {
    let mut cluster = Cluster::start(true, &["--cluster-require-full-coverage", "no"]).await;
    // It takes over when the test has seen what it knows.
    cluster.nodes[3].run(&["CONFIG", "SET", "cluster-replica-no-failover", "yes"]);
    let store = RedisStore::new(&Settings { timeout: WITHIN, ..Settings::new(cluster.url()) }).expect("valid");
    store.connected().await.expect("the cluster serves");
    let load = Load::start(&store, 16, WITHIN, States::MayBeLost);
    let key = key_on(&cluster.nodes[1], 0, &a_day(LIMIT), 5);
    let takers = Takers::start(&store, key);
    until("a third is given out", || takers.admitted() >= LIMIT / 3).await;

    cluster.nodes[0].kill();
    let replication = || text(cluster.nodes[3].run(&["INFO", "REPLICATION"]));
    until("the replica has all that was passed on", || replication().contains("master_link_status:down")).await;
    let passed_on = counted_by(&cluster.nodes[3], key, &a_day(LIMIT));
    let before = takers.admitted();
    assert!((1..=LIMIT).contains(&passed_on), "{passed_on} of {before}");
    cluster.nodes[3].run(&["CONFIG", "SET", "cluster-replica-no-failover", "no"]);
    until("it takes over", || role(&cluster.nodes[3]) == "master").await;

    let [admitted, failed, in_doubt] = takers.end().await;
    let lost = before.saturating_sub(passed_on);
    assert!((LIMIT.saturating_sub(in_doubt)..=LIMIT + lost).contains(&admitted), "{admitted} admitted, {lost} lost");

    // It comes back, and is a replica: nobody asks it.
    cluster.nodes[0].start_again(&[], "ready to accept connections");
    until("it is a replica", || role(&cluster.nodes[0]) == "slave").await;
    let decided = load.decided();
    until("the store decides", || load.decided() > decided + 1000).await;
    let old = format!("127.0.0.1:{}", cluster.nodes[0].port());
    assert!(store.nodes().iter().all(|node| node.address != old), "{:?}", store.nodes());
    let tally = load.end().await;
    assert_eq!((counted(&store), store.in_flight()), (tally.failed + failed, 0), "{tally:?}");
    assert!(tally.longest < 10 * WITHIN, "{tally:?}");
}
