//! Beginnings and ends: without a server, with too many requests, on one runtime after the other.

use std::time::Duration;

use spillgate_core::{Binding, Decision, Hit, Op, Store as _, StoreError};
use spillgate_redis::{Circuit, Failure, RedisStore, Settings};
use tokio::runtime::Builder;
use tokio::task::JoinHandle;

use crate::server::{Server, free_port};
use crate::{PATIENCE, a_day, patient, take, until, until_decided};

#[tokio::test]
async fn a_store_is_there_before_its_server() {
    let port = free_port();
    let settings =
        Settings { timeout: Duration::from_millis(20), ..Settings::new(format!("redis://127.0.0.1:{port}/")) };
    let (store, quota) = (RedisStore::new(&settings).expect("valid"), a_day(1000));
    assert_eq!(store.circuit(), Circuit::Closed);
    let hits = [Hit::new(1, &quota, Op::take(1), Binding::Enforce)];
    for _ in 0..100 {
        let answer = store.decide(None, &hits, &mut [Decision::default()]).await;
        assert!(matches!(&answer, Err(StoreError::Unavailable(_))), "{answer:?}");
    }
    assert_ne!(store.circuit(), Circuit::Closed);
    assert_eq!(store.failures(Failure::Open) + store.failures(Failure::Disconnected), 100);
    assert!(store.failures(Failure::Open) > 50, "most are answered at once");
    let trouble = store.trouble().expect("nobody listens");
    assert!(trouble.class == Failure::Disconnected && trouble.detail.contains("refused"), "{trouble}");

    let _server = Server::start_with(port, &[]);
    let (_, decision) = until_decided(&store, &quota).await;
    assert_eq!(decision.remaining, 999, "what failed was never asked");
    assert_eq!((store.circuit(), store.trouble(), store.in_flight()), (Circuit::Closed, None, 0));
}

#[tokio::test]
async fn to_connect_in_vain_says_why() {
    let settings = Settings {
        connect_timeout: Duration::from_millis(50),
        ..Settings::new(format!("redis://127.0.0.1:{}/", free_port()))
    };
    let failed = RedisStore::new(&settings).expect("valid").connected().await.expect_err("nobody listens");
    assert!(failed.detail.contains("refused"), "{failed}");
}

#[test]
fn an_address_that_is_none_is_told_at_once() {
    for url in ["", "127.0.0.1", "http://127.0.0.1/", "redis://", "redis://127.0.0.1/x"] {
        assert!(RedisStore::new(&Settings::new(url)).is_err(), "{url:?}");
    }
}

type Takes = Vec<JoinHandle<Option<Failure>>>;

fn spawn_takes(store: &RedisStore, count: usize) -> Takes {
    let one = |store: RedisStore| async move {
        take(&store, 1, &a_day(1000), PATIENCE).await.err().map(|failed| failed.class)
    };
    (0..count).map(|_| tokio::spawn(one(store.clone()))).collect()
}

#[tokio::test]
async fn beyond_the_bound_requests_fail_at_once() {
    let server = Server::start();
    let store = RedisStore::new(&Settings { max_in_flight: 4, ..patient(&server.url()) }).expect("valid");
    take(&store, 1, &a_day(1000), PATIENCE).await.expect("connected");
    server.freeze();
    let takes = spawn_takes(&store, 10);
    until("the others fail", || store.failures(Failure::Overloaded) == 6).await;
    assert_eq!((store.in_flight(), store.circuit()), (4, Circuit::Closed));
    server.thaw();
    let mut failed = Vec::new();
    for take in takes {
        failed.extend(take.await.expect("no task panics"));
    }
    assert_eq!(failed, [Failure::Overloaded; 6]);
    assert_eq!(store.in_flight(), 0);
    // They were not charged.
    let (_, decision) = take(&store, 1, &a_day(1000), PATIENCE).await.expect("not overloaded");
    assert_eq!(decision.remaining, 1000 - 6);
}

#[tokio::test]
async fn requests_that_nobody_waits_for_leave_their_places_and_their_answers_mislead_nobody() {
    let server = Server::start();
    let store = RedisStore::new(&Settings { max_in_flight: 4, ..patient(&server.url()) }).expect("valid");
    take(&store, 1, &a_day(1000), PATIENCE).await.expect("connected");
    for turn in 1..=20 {
        server.freeze();
        let takes = spawn_takes(&store, 4);
        until("all are in flight", || store.in_flight() == 4).await;
        takes.iter().for_each(JoinHandle::abort);
        until("their places are free", || store.in_flight() == 0).await;
        server.thaw();
        // The answers to the others are 1000 less a few; these come after them on the same connection.
        let (_, decision) = take(&store, 2, &a_day(1_000_000), PATIENCE).await.expect("there is a place");
        assert_eq!(decision.remaining, 1_000_000 - turn);
    }
}

#[test]
fn a_store_outlives_the_runtime_that_it_connected_on() {
    let server = Server::start();
    let store = RedisStore::new(&patient(&server.url())).expect("valid");
    for turn in 1..=3 {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let taken = runtime.block_on(take(&store, 1, &a_day(1000), PATIENCE));
        let (_, decision) = taken.expect("a connection is made");
        assert_eq!(decision.remaining, 1000 - turn);
    }
}

#[tokio::test]
async fn a_connection_that_died_while_nobody_asked_is_given_up() {
    let server = Server::start();
    let settings = Settings { connect_timeout: Duration::from_millis(200), ..patient(&server.url()) };
    let store = RedisStore::new(&settings).expect("valid");
    take(&store, 1, &a_day(1000), PATIENCE).await.expect("connected");
    let is_connected = || store.nodes()[0].is_connected;
    assert!(is_connected());
    server.freeze();
    until("it is given up", || !is_connected()).await;
    server.thaw();
    let (_, decision) = take(&store, 1, &a_day(1000), PATIENCE).await.expect("connected anew");
    assert_eq!(decision.remaining, 998);
}

#[tokio::test]
async fn a_store_that_is_dropped_hangs_up() {
    let server = Server::start();
    let store = RedisStore::new(&patient(&server.url())).expect("valid");
    take(&store, 1, &a_day(1000), PATIENCE).await.expect("connected");
    // One of them asks.
    assert_eq!(server.info("connected_clients:"), 2);
    drop(store);
    until("it hangs up", || server.info("connected_clients:") == 1).await;
}
