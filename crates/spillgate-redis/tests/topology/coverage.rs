//! Tests a cluster in which some nodes are missing or cannot be used.

use std::time::Duration;

use spillgate_redis::{Cause, Circuit, RedisStore, Settings, StoreErrorKind};
use spillgate_testkit::free_port;
use tokio::time::{Instant, sleep};

use crate::support::cluster::{Cluster, WITHIN, key_on, slot, text};
use crate::support::common::{PATIENCE, a_day, take, until, until_decided, with_long_timeouts};
use crate::support::load::{Load, States, counted};
use crate::support::server::Server;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_lacks_slots_serves_no_request_until_it_is_complete() {
    let mut cluster = Cluster::start(false, &["--cluster-require-full-coverage", "yes"]);
    let store =
        RedisStore::new(&Settings { timeout: WITHIN, ..Settings::new(cluster.url()) }).expect("the URL is valid");
    let load = Load::start(&store, 16, WITHIN, States::MayBeLost);
    until("the store decides", || load.decided() > 100).await;
    cluster.nodes[2].kill();
    until("the other nodes reply that the cluster is down", || store.failures(StoreErrorKind::ClusterDown) > 10).await;
    assert_ne!(store.circuit(), Circuit::Closed);
    load.until_each_task_goes_on().await;
    cluster.nodes[2].start_again();
    let mut failed = 0;
    for node in 0..3 {
        failed += until_decided_on(&store, key_on(&cluster.nodes[0], node, &a_day(1), 9)).await;
    }
    let before = load.decided();
    until("the store decides", || load.decided() > before + 100).await;
    let tally = load.end().await;
    assert_eq!((counted(&store), store.in_flight()), (tally.failed + failed, 0));
}

#[tokio::test]
async fn a_circuit_is_half_open_while_some_nodes_serve_and_open_when_none_does() {
    let cluster = Cluster::start(false, &["--cluster-require-full-coverage", "no"]);
    let store =
        RedisStore::new(&Settings { timeout: WITHIN, ..with_long_timeouts(&cluster.url()) }).expect("the URL is valid");
    store.wait_connected().await.expect("the cluster serves");
    let keys = [0, 1, 2].map(|nth| key_on(&cluster.nodes[0], nth, &a_day(1), 15));
    assert_eq!(store.circuit(), Circuit::Closed);
    for (node, expected) in [(1, Circuit::HalfOpen), (0, Circuit::HalfOpen), (2, Circuit::Open)] {
        cluster.nodes[node].freeze();
        let before = store.failures(StoreErrorKind::CircuitOpen);
        while store.failures(StoreErrorKind::CircuitOpen) == before {
            take(&store, keys[node], &a_day(1), WITHIN).await.expect_err("a frozen node does not reply");
        }
        assert_eq!(store.circuit(), expected, "without node {node}");
    }
    cluster.nodes.iter().for_each(|node| node.thaw());
    for key in keys {
        until_decided_on(&store, key).await;
    }
    assert_eq!(store.circuit(), Circuit::Closed);
}

/// Sends takes until the store decides one. Returns how many failed before it.
async fn until_decided_on(store: &RedisStore, key: u128) -> u64 {
    let (deadline, mut failures) = (Instant::now() + PATIENCE, 0);
    while let Err(error) = take(store, key, &a_day(1000), WITHIN).await {
        assert!(Instant::now() < deadline, "the store does not decide: {error}");
        failures += 1;
        sleep(Duration::from_millis(1)).await;
    }
    failures
}

#[tokio::test]
async fn a_store_is_there_before_its_cluster() {
    let store = RedisStore::new(&Settings {
        timeout: WITHIN,
        ..Settings::new(format!("redis-cluster://127.0.0.1:{}", free_port()))
    });
    let (store, quota) = (store.expect("the URL is valid"), a_day(1000));
    assert_eq!((store.circuit(), store.last_error()), (Circuit::Closed, None));
    // Most requests fail at once, because the circuit is open.
    let deadline = Instant::now() + PATIENCE;
    while store.failures(StoreErrorKind::CircuitOpen) < 50 {
        assert!(Instant::now() < deadline, "the circuit refuses too few requests");
        take(&store, 1, &quota, WITHIN).await.expect_err("no server listens");
    }
    assert_eq!(store.circuit(), Circuit::Open);
    let trouble = store.last_error().expect("no server listens");
    assert!(trouble.kind() == StoreErrorKind::Disconnected && trouble.detail().contains("refused"), "{trouble}");
    assert!(store.wait_connected().await.expect_err("no server listens").detail().contains("refused"));
}

#[tokio::test]
async fn any_node_tells_of_all() {
    let cluster = Cluster::start(true, &["--cluster-node-timeout", "60000"]);
    // The first node does not reply, the second address has no server, and the third node is a replica.
    cluster.nodes[0].freeze();
    let port = |i: usize| cluster.nodes[i].port();
    let url = format!("redis-cluster://127.0.0.1:{},127.0.0.1:{},127.0.0.1:{}", port(0), free_port(), port(4));
    let store = RedisStore::new(&Settings::new(url)).expect("the URL is valid");
    let quota = a_day(1000);
    let key = key_on(&cluster.nodes[1], 1, &quota, 3);
    let deadline = Instant::now() + PATIENCE;
    while store.nodes().is_empty() {
        let _ = take(&store, key, &quota, WITHIN).await;
        assert!(Instant::now() < deadline, "{:?}", store.last_error());
    }
    let addresses: Vec<String> = store.nodes().into_iter().map(|node| node.address).collect();
    let primaries: Vec<String> = (0..3).map(|i| format!("127.0.0.1:{}", port(i))).collect();
    assert!(primaries.iter().all(|primary| addresses.contains(primary)), "{addresses:?}");
    cluster.nodes[0].thaw();
    until_decided(&store, &quota).await;
}

/// A node of this cluster reports its host name instead of its address. If the node has no host name, it reports `?`.
#[tokio::test]
async fn nodes_without_their_host_names_are_found_by_their_addresses() {
    let cluster = Cluster::start(false, &["--cluster-preferred-endpoint-type", "hostname"]);
    let settings = with_long_timeouts(&format!("redis-cluster://localhost:{}", cluster.nodes[0].port()));
    let store = RedisStore::new(&settings).expect("the URL is valid");
    store.wait_connected().await.expect("the cluster serves");
    let mut addresses: Vec<String> = store.nodes().into_iter().map(|node| node.address).collect();
    let mut reported: Vec<String> = cluster.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    addresses.sort();
    reported.sort();
    assert_eq!(addresses, reported);
    // The address in the MOVED error has no host. So the store has to read the slot map to find the slot's new node.
    let (from, to, quota) = (&cluster.nodes[0], &cluster.nodes[1], a_day(1000));
    let key = key_on(from, 0, &quota, 13);
    let slot = slot(from, key, &quota).to_string();
    let id = text(to.run(&["CLUSTER", "MYID"]));
    for node in [to, from] {
        node.run(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]);
    }
    let (_, decision) = take(&store, key, &quota, PATIENCE).await.expect("the slot map is read again");
    assert_eq!(decision.remaining, 999);
    assert!(from.info("errorstat_MOVED:count=") > 0);
}

#[tokio::test]
async fn a_server_in_the_url_of_a_cluster_is_an_error_and_the_reverse_too() {
    let (server, mut cluster) = (Server::start(), Cluster::start(false, &[]));
    let settings = Settings::new(format!("redis-cluster://127.0.0.1:{}", server.port()));
    let error = RedisStore::new(&settings)
        .expect("the URL is valid")
        .wait_connected()
        .await
        .expect_err("the server is not a node of a cluster");
    assert!(error.cause() == Cause::NotACluster, "{error}");

    let quota = a_day(1000);
    let store = RedisStore::new(&with_long_timeouts(&cluster.nodes[0].url())).expect("the URL is valid");
    let here = key_on(&cluster.nodes[0], 0, &quota, 1);
    take(&store, here, &quota, PATIENCE).await.expect("the server owns the slot");
    let elsewhere = key_on(&cluster.nodes[0], 1, &quota, 1);
    let error = take(&store, elsewhere, &quota, PATIENCE).await.expect_err("another node owns the slot");
    assert_eq!(error.kind(), StoreErrorKind::Moved, "{error}");
    assert_eq!(store.circuit(), Circuit::Closed);
    let error = store.wait_connected().await.expect_err("the server has just replied as a node of a cluster");
    assert!(error.detail().contains("redis-cluster://"), "{error}");

    // From now on the first node is the only node of its cluster, and owns all slots.
    cluster.nodes.truncate(1);
    for words in [&["FLUSHALL"][..], &["CLUSTER", "RESET"], &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]] {
        cluster.nodes[0].run(words);
    }
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = store.wait_connected().await {
        assert!(Instant::now() < deadline, "the store still treats the server as one node of several: {error}");
        sleep(Duration::from_millis(10)).await;
    }
    until_decided_on(&store, elsewhere).await;
    store.wait_connected().await.expect("the server no longer redirects requests");
}

/// A new node has no slots. While a slot moves to it, the node already stores some states of the slot, but does not own
/// the slot yet. If the node is down, only requests for these states fail, and `wait_connected` does not wait for the
/// node.
#[tokio::test]
async fn a_node_without_slots_is_not_waited_for() {
    let mut cluster = Cluster::start(false, &[]);
    cluster.join().await;
    let settings = Settings { connect_timeout: PATIENCE / 10, ..with_long_timeouts(&cluster.url()) };
    let store = RedisStore::new(&settings).expect("the URL is valid");
    store.wait_connected().await.expect("the cluster serves");
    let (from, to, quota) = (&cluster.nodes[0], &cluster.nodes[3], a_day(1000));
    let key = key_on(from, 0, &quota, 17);
    let slot = slot(from, key, &quota).to_string();
    let id = |node: &Server| text(node.run(&["CLUSTER", "MYID"]));
    to.run(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]);
    from.run(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]);
    take(&store, key, &quota, PATIENCE).await.expect("the node that gets the slot stores the new state");
    let connected = || store.nodes().iter().filter(|node| node.is_connected).count();
    assert_eq!((store.nodes().len(), connected()), (4, 4));
    cluster.nodes[3].kill();
    until("the connection to the killed node ends", || connected() == 3).await;
    store.wait_connected().await.expect("all nodes that own slots serve");
    assert_eq!(store.nodes().len(), 4);
}
