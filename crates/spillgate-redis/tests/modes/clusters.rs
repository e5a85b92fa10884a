//! Tests stores on a cluster: one without scripts, and one that keeps logs in sorted sets.

use std::time::Duration;

use spillgate_core::{Binding, Decision, Hit, Op, Quota, Source, Store as _, Timing};
use spillgate_redis::{LogForm, RedisKey, RedisStore, Settings, StoreErrorKind};
use tokio::time::{Instant, sleep};

use crate::support::cluster::{Cluster, key_on, slot, text};
use crate::support::common::{PATIENCE, a_day, take, until, with_long_timeouts};
use crate::support::load::{Load, States, counted};

fn store(cluster: &Cluster, scripts: bool) -> RedisStore {
    let settings = Settings { scripts, log: LogForm::Zset, ..with_long_timeouts(&cluster.url()) };
    RedisStore::new(&settings).expect("the URL is valid")
}

/// Transactions follow redirections as scripts do, and each transaction is executed once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_scripts_slots_move_and_no_take_is_lost_or_charged_twice() {
    const TASKS: u64 = 48;
    let cluster = Cluster::start(false, &[]);
    let (from, to) = (&cluster.nodes[0], &cluster.nodes[1]);
    let store = store(&cluster, false);
    let load = Load::start(&store, TASKS, PATIENCE, States::Last);
    until("every task has sent a request", || load.decided() > 20 * TASKS).await;
    let id = |node: &crate::support::server::Server| text(node.run(&["CLUSTER", "MYID"]));
    let mut slots: Vec<u16> =
        (1..=u128::from(TASKS)).map(|i| slot(from, i << 96 | i, &a_day(1))).filter(|slot| *slot < 5461).collect();
    slots.sort_unstable();
    slots.dedup();
    assert!(slots.len() > 2, "{slots:?}");
    for slot in slots.iter().map(u16::to_string) {
        to.run(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]);
        from.run(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]);
        let names: Vec<String> = redis::from_redis_value(from.run(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]))
            .expect("the reply is a list of names");
        assert!(names.iter().all(|name| name.contains("}+")), "{names:?}");
        for name in names {
            from.run(&["MIGRATE", "127.0.0.1", &to.port().to_string(), &name, "0", "5000"]);
            let decided = load.decided();
            until("the store decides while the slot moves", || load.decided() > decided + 20).await;
        }
        for node in [to, from] {
            node.run(&["CLUSTER", "SETSLOT", &slot, "NODE", &id(to)]);
        }
    }
    let tally = load.end().await;
    assert_eq!((tally.failed, counted(&store), store.in_flight()), (0, 0, 0), "{tally:?}");
    let reported = |error| from.info(&format!("errorstat_{error}:count="));
    assert!(reported("ASK") > 0 && reported("MOVED") > 0);
}

/// In a cluster, the deny cache keeps an entry for at most 100 ms, even if the settings allow a day. So a store soon
/// sees that another store has reset a key.
#[tokio::test]
async fn what_comes_back_elsewhere_in_a_cluster_is_soon_seen() {
    let cluster = Cluster::start(false, &[]);
    let settings = Settings { deny_cache_max_age: Duration::from_secs(86_400), ..with_long_timeouts(&cluster.url()) };
    let (here, there) =
        (RedisStore::new(&settings).expect("the URL is valid"), RedisStore::new(&settings).expect("the URL is valid"));
    let quota = a_day(1);
    take(&here, 1, &quota, PATIENCE).await.expect("the server decides");
    let (refused, _) = take(&here, 1, &quota, PATIENCE).await.expect("the server decides");
    assert!(!refused.allowed);
    let reset = [Hit::new(1, &quota, Op::Reset, Binding::Enforce)];
    there.decide(Timing::BY_STORE, &reset, &mut [Decision::default()]).await.expect("the server decides");
    let deadline = Instant::now() + PATIENCE;
    while !take(&here, 1, &quota, PATIENCE).await.expect("the server decides").0.allowed {
        assert!(Instant::now() < deadline, "the store must see the reset before the deadline");
        sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_request_in_several_slots_is_decided_by_each() {
    let cluster = Cluster::start(false, &[]);
    let window = Duration::from_secs(365 * 86_400);
    let log = Quota::sliding_window_log(2, window).build().expect("the quota is valid");
    let few = Quota::fixed_window(2, window).build().expect("the quota is valid");
    let many = Quota::fixed_window(9, window).build().expect("the quota is valid");
    for (seed, scripts, first) in [(1, true, &log), (2, false, &few)] {
        let store = store(&cluster, scripts);
        let keys = [0, 1].map(|nth| key_on(&cluster.nodes[0], nth, &many, seed));
        let hits = [(keys[0], first), (keys[1], &many)];
        let hits = hits.map(|(key, quota)| Hit::new(key, quota, Op::take(1), Binding::Enforce));
        let mut reported = Vec::new();
        for _ in 0..3 {
            let mut decisions = [Decision::default(); 2];
            let verdict = store.decide(Timing::BY_STORE, &hits, &mut decisions).await.expect("the server decides");
            assert_eq!(verdict.source, Source::Store);
            reported.push((verdict.allowed, decisions.map(|decision| decision.remaining)));
        }
        // The first slot refuses the third request. With scripts, the unit that the other slot took for this request is
        // refunded.
        let last = if scripts { 7 } else { 6 };
        assert_eq!(reported, [(true, [1, 8]), (true, [0, 7]), (false, [0, last])], "scripts: {scripts}");
        assert!(StoreErrorKind::ALL.iter().all(|class| store.failures(*class) == 0));
    }
    let names: Vec<String> =
        redis::from_redis_value(cluster.nodes[0].run(&["KEYS", "*"])).expect("the reply is a list of names");
    let zset = RedisKey::with(
        &Hit::new(key_on(&cluster.nodes[0], 0, &many, 1), &log, Op::Peek, Binding::Enforce),
        LogForm::Zset,
    );
    assert!(names.contains(&zset.to_string()), "{names:?}");
}
