//! Tests slots that move to another node under load.

use std::time::Duration;

use spillgate_core::{Binding, Decision, Hit, Op, Quota, Store as _, Timing};
use spillgate_redis::{Circuit, RedisKey, StoreErrorKind};

use crate::support::cluster::{Cluster, begin_move, finish_move, id, key_on, slot};
use crate::support::common::{PATIENCE, a_day, take, until};
use crate::support::load::{Load, States};
use crate::support::server::Server;

/// Returns the keys that [`Load`] uses.
fn keys(tasks: u64) -> impl Iterator<Item = u128> {
    (1..=u128::from(tasks)).map(|i| i << 96 | i)
}

/// Moves a slot as an operator does it, while the load goes on. No state is lost.
async fn migrate(from: &Server, to: &Server, slot: u16, load: &Load) {
    let (slot, port) = (slot.to_string(), to.port().to_string());
    begin_move(&slot, from, to);
    let names = || -> Vec<String> {
        redis::from_redis_value(from.run(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]))
            .expect("the reply is a list of names")
    };
    for name in names() {
        from.run(&["MIGRATE", "127.0.0.1", &port, &name, "0", "5000"]);
        let decided = load.decided();
        until("the store decides while the slot moves", || load.decided() > decided + 20).await;
    }
    assert_eq!(names(), Vec::<String>::new(), "the old node stores no new states of a slot that moves");
    finish_move(&slot, from, to);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_move_and_no_take_is_lost_or_charged_twice() {
    const TASKS: u64 = 48;
    let cluster = Cluster::start(false, &[]);
    let store = cluster.store().await;
    let (nodes, quota) = (&cluster.nodes, a_day(1));
    let load = Load::start(&store, TASKS, PATIENCE, States::Last);
    until("every task has sent a request", || load.decided() > 20 * TASKS).await;
    let mut slots: Vec<u16> = keys(TASKS).map(|key| slot(&nodes[0], key, &quota)).collect();
    slots.sort_unstable();
    slots.dedup();
    // All slots of the first node move, and then move back.
    let slots: Vec<u16> = slots.into_iter().filter(|slot| *slot < 5461).collect();
    assert!(slots.len() > 2, "{slots:?}");
    for slot in &slots {
        migrate(&nodes[0], &nodes[1], *slot, &load).await;
    }
    for slot in &slots {
        migrate(&nodes[1], &nodes[0], *slot, &load).await;
    }
    let tally = load.end().await;
    assert_eq!((tally.failed, store.in_flight()), (0, 0), "{tally:?}");
    let reported = ["ASK", "MOVED"]
        .map(|error| nodes.iter().map(|node| node.info(&format!("errorstat_{error}:count="))).sum::<u64>());
    assert!(reported.iter().all(|times| *times > 0), "{reported:?}");
}

/// Both states of the request are in a slot that moves. One of them is already on the new node, so the request has to
/// wait until the other one is there too.
#[tokio::test]
async fn a_request_whose_states_are_on_their_way_waits_for_them() {
    let cluster = Cluster::start(false, &[]);
    let store = cluster.store().await;
    let (from, to) = (&cluster.nodes[0], &cluster.nodes[1]);
    let quotas = [a_day(1000), Quota::per_day(1000).build().expect("the quota is valid")];
    let key = key_on(from, 0, &quotas[0], 11);
    let hits = [0, 1].map(|i| Hit::new(key, &quotas[i], Op::take(1), Binding::Enforce));
    let mut decisions = [Decision::default(); 2];
    store.decide(Timing::BY_STORE, &hits, &mut decisions).await.expect("the server decides");

    let (slot, port) = (slot(from, key, &quotas[0]).to_string(), to.port().to_string());
    let migrate =
        |hit: &Hit<'_>| from.run(&["MIGRATE", "127.0.0.1", &port, &RedisKey::of(hit).to_string(), "0", "5000"]);
    begin_move(&slot, from, to);
    migrate(&hits[0]);
    let task = tokio::spawn({
        let (store, quotas) = (store.clone(), quotas.clone());
        async move {
            let hits = [0, 1].map(|i| Hit::new(key, &quotas[i], Op::take(1), Binding::Enforce));
            let mut decisions = [Decision::default(); 2];
            store.decide(Timing::BY_STORE, &hits, &mut decisions).await.map(|_| decisions)
        }
    });
    let tried = || from.info("errorstat_TRYAGAIN:count=");
    until("the request is tried again", || tried() > 1).await;
    assert!(!task.is_finished());
    // No caller waits longer than its timeout, although the store pauses before each new attempt.
    let within = Duration::from_millis(20);
    let late =
        store.decide(Timing::BY_STORE.within(within), &hits, &mut decisions).await.expect_err("the states are apart");
    assert!(matches!(late.kind(), StoreErrorKind::Moved | StoreErrorKind::Timeout | StoreErrorKind::NotSent), "{late}");
    migrate(&hits[1]);
    let decisions = task.await.expect("no task panics").expect("both states are on the new node");
    assert_eq!(decisions.map(|decision| decision.remaining), [998; 2]);
    // While the slot moves, the old node redirects with ASK, and not with MOVED.
    assert_eq!(from.info("errorstat_MOVED:count="), 0);
    assert!(from.info("errorstat_ASK:count=") > 0);
}

/// The old node of the slot redirects requests for states that it does not have. The new node answers such a request
/// with TRYAGAIN if it is for several new states, but decides a request for a single new state.
#[tokio::test]
async fn a_request_of_several_new_states_fails_until_their_slot_has_moved() {
    let cluster = Cluster::start(false, &[]);
    let store = cluster.store().await;
    let (from, to) = (&cluster.nodes[0], &cluster.nodes[1]);
    let quotas = [a_day(1000), Quota::per_day(1000).build().expect("the quota is valid")];
    let key = key_on(from, 0, &quotas[0], 14);
    let slot = slot(from, key, &quotas[0]).to_string();
    begin_move(&slot, from, to);
    let hits = [0, 1].map(|i| Hit::new(key, &quotas[i], Op::take(1), Binding::Enforce));
    let mut decisions = [Decision::default(); 2];
    // The request fails, however often the store sends it again.
    let within = Duration::from_secs(5);
    let error =
        store.decide(Timing::BY_STORE.within(within), &hits, &mut decisions).await.expect_err("the slot still moves");
    assert!(
        matches!(error.kind(), StoreErrorKind::Moved | StoreErrorKind::Timeout | StoreErrorKind::NotSent),
        "{error}"
    );
    assert!(to.info("errorstat_TRYAGAIN:count=") > 1);
    // A request with only one new state is decided.
    store.decide(Timing::BY_STORE, &hits[..1], &mut decisions[..1]).await.expect("the new node decides");
    assert_eq!(decisions[0].remaining, 999, "the failed request charged nothing");
    finish_move(&slot, from, to);
    store.decide(Timing::BY_STORE, &hits, &mut decisions).await.expect("the slot has moved");
    assert_eq!(decisions.map(|decision| decision.remaining), [998, 999]);
    assert_eq!(store.circuit(), Circuit::Closed);
}

/// Each of two nodes says that the other one owns the slot.
#[tokio::test]
async fn a_request_is_not_sent_on_for_ever() {
    let cluster = Cluster::start(false, &[]);
    let store = cluster.store().await;
    let (one, other) = (&cluster.nodes[0], &cluster.nodes[1]);
    let quota = a_day(1000);
    let key = key_on(one, 0, &quota, 12);
    let slot = slot(one, key, &quota).to_string();
    one.run(&["CLUSTER", "SETSLOT", &slot, "NODE", &id(other)]);
    other.run(&["CLUSTER", "SETSLOT", &slot, "NODE", &id(one)]);
    for requests in 1..=10 {
        let error = take(&store, key, &quota, PATIENCE).await.expect_err("no node owns the slot");
        assert_eq!(error.kind(), StoreErrorKind::Moved, "{error}");
        let sent_on = [one, other].map(|node| node.info("errorstat_MOVED:count=")).iter().sum::<u64>();
        assert!(
            (5 * requests..=6 * requests).contains(&sent_on),
            "{requests} requests were redirected {sent_on} times"
        );
    }
    one.run(&["CLUSTER", "SETSLOT", &slot, "NODE", &id(one)]);
    let (_, decision) = take(&store, key, &quota, PATIENCE).await.expect("the first node owns the slot again");
    assert_eq!((decision.remaining, store.circuit()), (999, Circuit::Closed));
}
