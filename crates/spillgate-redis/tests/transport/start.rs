//! Tests how a store starts and ends: without a Redis, with too many requests, and on one runtime after another.

use std::time::Duration;

use spillgate_core::{Binding, Decision, Hit, MAX_HITS, Op, Store as _, StoreError, Timing};
use spillgate_redis::{Circuit, RedisStore, Settings, StoreErrorKind};
use spillgate_testkit::free_port;
use tokio::runtime::Builder;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::support::common::{PATIENCE, a_day, take, until, until_decided, with_long_timeouts};
use crate::support::server::Server;

#[tokio::test]
async fn a_store_is_there_before_its_server() {
    let port = free_port();
    let settings =
        Settings { timeout: Duration::from_millis(20), ..Settings::new(format!("redis://127.0.0.1:{port}/")) };
    let (store, quota) = (RedisStore::new(&settings).expect("the URL is valid"), a_day(1000));
    assert_eq!(store.circuit(), Circuit::Closed);
    let hits = [Hit::new(1, &quota, Op::take(1), Binding::Enforce)];
    // Most requests fail at once, because the circuit is open.
    let (mut sent, deadline) = (0, Instant::now() + PATIENCE);
    while store.failures(StoreErrorKind::CircuitOpen) < 50 {
        assert!(Instant::now() < deadline, "the circuit has refused too few of {sent} requests");
        let verdict = store.decide(Timing::BY_STORE, &hits, &mut [Decision::default()]).await;
        assert!(verdict.as_ref().is_err_and(StoreError::is_transient), "{verdict:?}");
        sent += 1;
    }
    assert_ne!(store.circuit(), Circuit::Closed);
    assert_eq!(store.failures(StoreErrorKind::CircuitOpen) + store.failures(StoreErrorKind::NotSent), sent);
    let trouble = store.last_error().expect("no server listens");
    assert!(trouble.kind() == StoreErrorKind::Disconnected && trouble.detail().contains("refused"), "{trouble}");

    let _server = Server::start_at(port, &[]);
    let (_, decision) = until_decided(&store, &quota).await;
    assert_eq!(decision.remaining, 999, "a request that failed was never sent");
    assert_eq!((store.circuit(), store.last_error(), store.in_flight()), (Circuit::Closed, None, 0));
}

/// The first requests have no connection, and the others have no time. So none of them is sent.
#[tokio::test]
async fn a_request_that_comes_too_late_is_not_sent() {
    let (server, quota) = (Server::start(), a_day(1000));
    let store =
        RedisStore::new(&Settings { connections: 1, ..with_long_timeouts(&server.url()) }).expect("the URL is valid");
    server.freeze();
    for within in [Duration::ZERO, Duration::from_millis(20)] {
        let error = take(&store, 1, &quota, within).await.expect_err("the server does not reply");
        assert_eq!((error.kind(), error.kind().may_have_been_applied()), (StoreErrorKind::NotSent, false), "{error}");
    }
    server.thaw();
    store.wait_connected().await.expect("the server accepts connections");
    for taken in 1..10 {
        let error = take(&store, 1, &quota, Duration::ZERO).await.expect_err("the request has no time");
        assert_eq!((error.kind(), error.kind().may_have_been_applied()), (StoreErrorKind::NotSent, false), "{error}");
        // This take uses the same connection as the failed requests. If one of them had been sent, Redis would have
        // executed it before this take, and fewer units would be left.
        let (_, decision) = take(&store, 1, &quota, PATIENCE).await.expect("the request has enough time");
        assert_eq!(decision.remaining, 1000 - taken);
    }
    assert_eq!((store.circuit(), store.in_flight()), (Circuit::Closed, 0));
}

#[tokio::test]
async fn to_connect_in_vain_says_why() {
    let settings = Settings {
        connect_timeout: Duration::from_millis(50),
        ..Settings::new(format!("redis://127.0.0.1:{}/", free_port()))
    };
    // A busy machine can take longer than the connect timeout to refuse a connection.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let store = RedisStore::new(&settings).expect("the URL is valid");
        let error = store.wait_connected().await.expect_err("no server listens");
        if error.detail().contains("refused") {
            break;
        }
        assert!(Instant::now() < deadline, "{error}");
    }
}

#[test]
fn an_invalid_address_is_rejected_at_once() {
    for url in ["", "127.0.0.1", "http://127.0.0.1/", "redis://", "redis://127.0.0.1/x"] {
        assert!(RedisStore::new(&Settings::new(url)).is_err(), "{url:?}");
    }
}

/// With any settings, nothing panics and no caller waits forever. A request that cannot succeed fails with the right
/// kind of error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_at_their_extremes() {
    let (server, (cluster, _)) = (Server::start(), Server::start_node(&[]));
    cluster.run(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    until_serves(&cluster).await;
    let urls = [server.url(), format!("redis-cluster://127.0.0.1:{}", cluster.port())];
    let (zero, max) = (Duration::ZERO, Duration::MAX);
    type Change = Box<dyn Fn(&mut Settings)>;
    let works: Vec<Change> = vec![
        Box::new(|_| ()),
        Box::new(move |it| it.timeout = zero),
        Box::new(move |it| it.timeout = max),
        Box::new(move |it| it.connect_timeout = max),
        Box::new(move |it| it.probe_every = zero),
        Box::new(move |it| it.probe_every = max),
        Box::new(move |it| it.deny_cache_max_age = zero),
        Box::new(move |it| it.deny_cache_max_age = max),
        Box::new(|it| it.deny_cache_entries = 0),
        Box::new(|it| it.deny_cache_entries = usize::MAX),
        Box::new(|it| it.connections = 0),
        Box::new(|it| it.connections = usize::MAX),
        Box::new(|it| it.max_in_flight = 1),
        Box::new(|it| it.max_in_flight = usize::MAX),
        Box::new(|it| it.max_failures = 0),
        Box::new(|it| it.max_failures = u32::MAX),
    ];
    for url in &urls {
        for (i, change) in works.iter().enumerate() {
            let mut settings = with_long_timeouts(url);
            change(&mut settings);
            let store = RedisStore::new(&settings).expect("the URL is valid");
            let (key, quota) = (i as u128, a_day(1));
            for passes in [true, false] {
                let taken = timeout(PATIENCE, take(&store, key, &quota, max))
                    .await
                    .expect("the request ends before the deadline");
                assert_eq!(taken.map(|(verdict, _)| verdict.allowed), Ok(passes), "setting {i} at {url}");
            }
            // With `usize::MAX`, the store makes 1024 connections, which is more than some systems allow a process.
            if settings.connections < 100 {
                timeout(PATIENCE, store.wait_connected())
                    .await
                    .expect("the store connects before the deadline")
                    .expect("the server decides");
            }
        }
        // Without time to connect, or without time for the request, a request can fail. But it must end.
        for (connect_timeout, time) in [(zero, Duration::from_millis(100)), (PATIENCE, zero)] {
            let store =
                RedisStore::new(&Settings { connect_timeout, ..with_long_timeouts(url) }).expect("the URL is valid");
            let _ = timeout(PATIENCE, take(&store, 99, &a_day(1000), time))
                .await
                .expect("the request ends before the deadline");
        }
        let store =
            RedisStore::new(&Settings { max_in_flight: 0, ..with_long_timeouts(url) }).expect("the URL is valid");
        let refused =
            take(&store, 99, &a_day(1000), max).await.expect_err("the maximum number of requests in flight is zero");
        assert_eq!((refused.kind(), store.failures(StoreErrorKind::Overloaded)), (StoreErrorKind::Overloaded, 1));
    }
}

/// Polls until a node of a cluster serves.
pub(crate) async fn until_serves(node: &Server) {
    let info = || redis::from_redis_value::<String>(node.run(&["CLUSTER", "INFO"])).expect("the reply is text");
    until("the cluster serves", || info().contains("cluster_state:ok")).await;
}

/// `max_in_flight` bounds the number of requests, not the number of their calls. Here one request makes a call for each
/// of its 256 slots, and these calls wait in the queue of the connection.
#[tokio::test]
async fn a_request_to_many_slots_counts_once_in_max_in_flight() {
    let (server, _) = Server::start_node(&[]);
    server.run(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    until_serves(&server).await;
    let url = format!("redis-cluster://127.0.0.1:{}", server.port());
    let store = RedisStore::new(&Settings { max_in_flight: 1, ..with_long_timeouts(&url) }).expect("the URL is valid");
    store.wait_connected().await.expect("the server accepts connections");
    let quota = a_day(2);
    // The highest bits of a key determine its slot.
    let hits: Vec<_> =
        (0..MAX_HITS as u128).map(|i| Hit::new(i << 114 | i, &quota, Op::take(1), Binding::Enforce)).collect();
    let before = server.info("cmdstat_evalsha:calls=");
    for left in [1, 0] {
        let mut decisions = vec![Decision::default(); hits.len()];
        let verdict = store
            .decide(Timing::BY_STORE.within(PATIENCE), &hits, &mut decisions)
            .await
            .expect("one request in flight is allowed");
        assert!(verdict.allowed && decisions.iter().all(|decision| decision.remaining == left));
    }
    assert_eq!(
        server.info("cmdstat_evalsha:calls=") - before,
        2 * MAX_HITS as u64,
        "each hit has a call of its own, because it has a slot of its own"
    );
    assert_eq!((store.in_flight(), store.failures(StoreErrorKind::Overloaded)), (0, 0));
}

#[tokio::test]
async fn a_malformed_request_is_rejected_and_counted() {
    let settings = Settings::new("redis://127.0.0.1:1/");
    let (store, quota) = (RedisStore::new(&settings).expect("the URL is valid"), a_day(1));
    let hits = [Hit::new(1, &quota, Op::take(1), Binding::Enforce)];
    let error = store
        .decide(Timing::BY_STORE.within(PATIENCE), &hits, &mut [])
        .await
        .expect_err("there is one hit, but no decision");
    assert_eq!((error.kind(), store.failures(StoreErrorKind::Malformed)), (StoreErrorKind::Malformed, 1));
    let (many, mut decisions) = ([hits[0]; MAX_HITS + 1], [Decision::default(); MAX_HITS + 1]);
    for scripts in [true, false] {
        let store = RedisStore::new(&Settings { scripts, ..settings.clone() }).expect("the URL is valid");
        let decided = store.decide(Timing::BY_STORE, &many, &mut decisions).await;
        assert_eq!(decided.err(), Some(StoreError::malformed("too many hits")));
        assert_eq!(store.failures(StoreErrorKind::Malformed), 1);
    }
}

type Takes = Vec<JoinHandle<Option<StoreErrorKind>>>;

fn spawn_takes(store: &RedisStore, count: usize) -> Takes {
    let one = |store: RedisStore| async move {
        take(&store, 1, &a_day(1000), PATIENCE).await.err().map(|error| error.kind())
    };
    (0..count).map(|_| tokio::spawn(one(store.clone()))).collect()
}

#[tokio::test]
async fn beyond_the_bound_requests_fail_at_once() {
    let server = Server::start();
    let store =
        RedisStore::new(&Settings { max_in_flight: 4, ..with_long_timeouts(&server.url()) }).expect("the URL is valid");
    take(&store, 1, &a_day(1000), PATIENCE).await.expect("the server decides");
    server.freeze();
    let takes = spawn_takes(&store, 10);
    until("six of ten requests fail", || store.failures(StoreErrorKind::Overloaded) == 6).await;
    assert_eq!((store.in_flight(), store.circuit()), (4, Circuit::Closed));
    server.thaw();
    let mut errors = Vec::new();
    for take in takes {
        errors.extend(take.await.expect("no task panics"));
    }
    assert_eq!(errors, [StoreErrorKind::Overloaded; 6]);
    assert_eq!(store.in_flight(), 0);
    // The requests that failed as overloaded were not charged.
    let (_, decision) = take(&store, 1, &a_day(1000), PATIENCE).await.expect("the store is not overloaded");
    assert_eq!(decision.remaining, 1000 - 6);
}

#[tokio::test]
async fn requests_that_no_caller_waits_for_are_no_longer_in_flight_and_their_replies_reach_no_other_caller() {
    let server = Server::start();
    let store =
        RedisStore::new(&Settings { max_in_flight: 4, ..with_long_timeouts(&server.url()) }).expect("the URL is valid");
    take(&store, 1, &a_day(1000), PATIENCE).await.expect("the server decides");
    for turn in 1..=20 {
        server.freeze();
        let takes = spawn_takes(&store, 4);
        until("all are in flight", || store.in_flight() == 4).await;
        takes.iter().for_each(JoinHandle::abort);
        until("no request is in flight", || store.in_flight() == 0).await;
        server.thaw();
        // The replies to the aborted takes come first, on the same connection. They show at most 1000 units left, so
        // the test would notice if this take got one of them.
        let (_, decision) = take(&store, 2, &a_day(1_000_000), PATIENCE).await.expect("a request is admitted again");
        assert_eq!(decision.remaining, 1_000_000 - turn);
    }
}

#[test]
fn a_store_outlives_the_runtime_that_it_connected_on() {
    let server = Server::start();
    let store = RedisStore::new(&with_long_timeouts(&server.url())).expect("the URL is valid");
    for turn in 1..=3 {
        let runtime = Builder::new_current_thread().enable_all().build().expect("the runtime starts");
        let taken = runtime.block_on(take(&store, 1, &a_day(1000), PATIENCE));
        let (_, decision) = taken.expect("the store makes a connection");
        assert_eq!(decision.remaining, 1000 - turn);
    }
}

#[tokio::test]
async fn a_connection_that_died_while_idle_is_given_up() {
    let server = Server::start();
    let settings = Settings { connect_timeout: Duration::from_millis(200), ..with_long_timeouts(&server.url()) };
    let store = RedisStore::new(&settings).expect("the URL is valid");
    take(&store, 1, &a_day(1000), PATIENCE).await.expect("the server decides");
    let is_connected = || store.nodes()[0].is_connected;
    assert!(is_connected());
    server.freeze();
    until("the store gives up the connection", || !is_connected()).await;
    server.thaw();
    let (_, decision) = take(&store, 1, &a_day(1000), PATIENCE).await.expect("the store connects again");
    assert_eq!(decision.remaining, 998);
}

#[tokio::test]
async fn a_store_that_is_dropped_hangs_up() {
    let server = Server::start();
    let store = RedisStore::new(&with_long_timeouts(&server.url())).expect("the URL is valid");
    take(&store, 1, &a_day(1000), PATIENCE).await.expect("the server decides");
    // One of the connections belongs to the test.
    assert_eq!(server.info("connected_clients:"), 2);
    drop(store);
    until("the store closes its connection", || server.info("connected_clients:") == 1).await;
}
