//! Tests faults under load. Every request is answered, no caller waits until the fault is over, no request is charged
//! twice, and the store recovers by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use spillgate_redis::{Circuit, RedisStore, Settings, StoreErrorKind};
use tokio::time::{sleep, timeout};

use crate::support::common::{a_day, take, until, with_long_timeouts};
use crate::support::load::{Load, States, Tally, counted};
use crate::support::server::Server;
use crate::transport::proxy::Proxy;

const WITHIN: Duration = Duration::from_millis(50);

/// Returns a store that soon gives up an attempt to connect, so that a test can wait for the next attempt.
fn impatient(server: &Server) -> RedisStore {
    let connect_timeout = Duration::from_millis(500);
    RedisStore::new(&Settings { timeout: WITHIN, connect_timeout, ..Settings::new(server.url()) })
        .expect("the URL is valid")
}

async fn until_more_are_decided(load: &Load) {
    let before = load.decided();
    until("the store decides", || load.decided() >= before + 500).await;
}

fn assert_all_are_accounted_for(store: &RedisStore, tally: &Tally) {
    assert_eq!(store.in_flight(), 0, "{tally:?}");
    assert_eq!(counted(store), tally.failed, "{tally:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_killed_and_comes_back() {
    let mut server = Server::start();
    let store = impatient(&server);
    let load = Load::start(&store, 32, WITHIN, States::MayBeLost);
    for _ in 0..3 {
        until_more_are_decided(&load).await;
        let open = store.failures(StoreErrorKind::CircuitOpen);
        server.kill();
        until("the server is not asked any more", || store.failures(StoreErrorKind::CircuitOpen) > open).await;
        assert_ne!(store.circuit(), Circuit::Closed);
        load.until_each_task_goes_on().await;
        server.start_again();
    }
    until_more_are_decided(&load).await;
    let tally = load.end().await;
    assert_all_are_accounted_for(&store, &tally);
}

/// Redis keeps nothing on disk, so it can admit the limit once after each start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_is_given_out_at_most_once_in_each_life_of_the_server() {
    const LIMIT: u64 = 400;
    let mut server = Server::start();
    let store = RedisStore::new(&Settings::new(server.url())).expect("the URL is valid");
    let (admitted, refused) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let task = || {
        let (store, admitted, refused) = (store.clone(), Arc::clone(&admitted), Arc::clone(&refused));
        tokio::spawn(async move {
            let quota = a_day(LIMIT);
            while refused.load(Ordering::Relaxed) < 100 {
                match take(&store, 1, &quota, WITHIN).await {
                    Ok((verdict, _)) if verdict.allowed => admitted.fetch_add(1, Ordering::Relaxed),
                    Ok(_) => refused.fetch_add(1, Ordering::Relaxed),
                    Err(_) => 0,
                };
                sleep(Duration::from_millis(1)).await;
            }
        })
    };
    let tasks: Vec<_> = (0..16).map(|_| task()).collect();
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    until("half of the limit is admitted", || count(&admitted) >= LIMIT / 2).await;
    server.kill();
    server.start_again();
    for task in tasks {
        timeout(crate::support::common::PATIENCE, task)
            .await
            .expect("every request is answered")
            .expect("no task panics");
    }
    let admitted = count(&admitted);
    assert!((LIMIT / 2 + 1..=2 * LIMIT).contains(&admitted), "{admitted} admitted");
}

/// Redis charges at most the takes that were admitted, and those that failed without a reply.
#[tokio::test]
async fn a_server_freezes() {
    let server = Server::start();
    let store = impatient(&server);
    let load = Load::start(&store, 64, WITHIN, States::Last);
    // Redis freezes for a short time. Its late replies come on the same connection, which the store keeps.
    for _ in 0..5 {
        until_more_are_decided(&load).await;
        let late = store.failures(StoreErrorKind::Timeout);
        server.freeze();
        until("requests are late", || store.failures(StoreErrorKind::Timeout) > late).await;
        load.until_each_task_goes_on().await;
        server.thaw();
    }
    until_more_are_decided(&load).await;
    // Redis freezes for a long time. The store gives up the connection.
    server.freeze();
    let says = |words: &str| store.last_error().is_some_and(|error| error.detail().contains(words));
    until("the circuit is open because of missing replies", || says("no answer before the deadline")).await;
    until("an attempt to connect has failed", || says("not connected in time")).await;
    assert_ne!(store.circuit(), Circuit::Closed);
    load.until_each_task_goes_on().await;
    server.thaw();
    until_more_are_decided(&load).await;
    until("the store has no last error", || store.last_error().is_none()).await;
    let tally = load.end().await;
    assert_all_are_accounted_for(&store, &tally);
    assert!(store.failures(StoreErrorKind::CircuitOpen) > 0, "{tally:?}");
}

#[tokio::test]
async fn connections_are_reset_in_the_middle_of_an_answer() {
    let server = Server::start();
    let proxy = Proxy::start(server.port(), 5000).await;
    let store = RedisStore::new(&with_long_timeouts(&proxy.url())).expect("the URL is valid");
    let load = Load::start(&store, 64, crate::support::common::PATIENCE, States::Last);
    until("connections are reset", || proxy.resets() >= 8).await;
    until_more_are_decided(&load).await;
    let tally = load.end().await;
    assert_eq!(store.in_flight(), 0);
    // Only requests that are in flight during the fault fail. Other requests wait for the next connection.
    assert!(tally.failed > 0 && store.failures(StoreErrorKind::Disconnected) == tally.failed, "{tally:?}");
    assert_eq!(counted(&store), tally.failed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_are_flushed_all_the_time() {
    let server = Server::start();
    let store = RedisStore::new(&with_long_timeouts(&server.url())).expect("the URL is valid");
    let load = Load::start(&store, 32, crate::support::common::PATIENCE, States::Last);
    for _ in 0..50 {
        server.run(&["SCRIPT", "FLUSH"]);
        let before = load.decided();
        until("the store decides", || load.decided() > before).await;
    }
    let tally = load.end().await;
    assert_eq!((tally.failed, counted(&store), store.in_flight()), (0, 0, 0), "{tally:?}");
}
