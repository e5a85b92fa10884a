//! Tests several connections to one Redis server. Some of the connections are missing or slow.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::Value;
use spillgate_redis::{Circuit, RedisStore, Settings, StoreErrorKind, stand_aside};
use tokio::time::timeout;

use crate::support::common::{PATIENCE, a_day, take, until, until_decided, with_long_timeouts};
use crate::support::server::Server;
use crate::transport::proxy::{Delay, delayed};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_connection_that_cannot_be_made_again_blocks_no_caller() {
    for (user, more) in [("", vec![]), (":secret@", vec!["--requirepass", "secret"])] {
        let server = Server::start_with(&more);
        let url = format!("redis://{user}127.0.0.1:{}/", server.port());
        let store =
            RedisStore::new(&Settings { connections: 4, ..with_long_timeouts(&url) }).expect("the URL is valid");
        store.wait_connected().await.expect("the server is there");
        // All commands of the test go over this connection, because Redis will accept no new connections later.
        let mut last = redis::Client::open(url)
            .and_then(|client| client.get_connection())
            .expect("the server accepts the connection");
        let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut last).expect("the reply is text");
        let ours = list.lines().filter(|line| line.contains("cmd=script"));
        let ids: Vec<&str> = ours.filter_map(|line| line.split([' ', '=']).nth(1)).collect();
        assert_eq!(ids.len(), 4, "wait_connected waits for all four connections: {list}");
        redis::cmd("CONFIG").arg("SET").arg("maxclients").arg(4).exec(&mut last).expect("the user has the right");
        for id in &ids[1..] {
            redis::cmd("CLIENT").arg("KILL").arg("ID").arg(id).exec(&mut last).expect("the client exists");
        }
        redis::cmd("CONFIG").arg("SET").arg("maxclients").arg(1).exec(&mut last).expect("the user has the right");
        // Now the store has one of its four connections, and cannot make the other three.
        let is_said = || store.last_error().is_some_and(|error| error.detail().contains("max number of clients"));
        until("the store has the error that the server sends when it refuses a connection", is_said).await;
        let takes = (0..64).map(|i| {
            let store = store.clone();
            tokio::spawn(async move { take(&store, i, &a_day(1000), PATIENCE).await.map(drop) })
        });
        for take in takes.collect::<Vec<_>>() {
            let taken = take.await.expect("no task panics");
            assert_eq!(taken, Ok(()), "{:?}", store.last_error());
        }
        assert_eq!((store.circuit(), store.failures(StoreErrorKind::CircuitOpen)), (Circuit::Closed, 0));
        assert!(is_said(), "the store still has the error: {:?}", store.last_error());
    }
}

/// Each thread of the program sends its requests on two connections, in turn. While Redis works on one connection, the
/// thread can write requests to the other one.
#[tokio::test]
async fn a_thread_asks_by_two_connections_in_turn() {
    let server = Server::start();
    let store =
        RedisStore::new(&Settings { connections: 8, ..with_long_timeouts(&server.url()) }).expect("the URL is valid");
    let calls = || calls(&server);
    let two = async {
        while calls() < 2 {
            take(&store, 1, &a_day(1_000_000), PATIENCE).await.expect("the server is there");
        }
    };
    // Until the second connection is ready, all takes use the first connection.
    timeout(PATIENCE, two).await.expect("the store also uses the second connection");
    for _ in 0..100 {
        take(&store, 1, &a_day(1_000_000), PATIENCE).await.expect("the server is there");
    }
    assert_eq!(calls(), 2);
}

/// Returns how many connections of a store have sent a call as their last command.
fn calls(server: &Server) -> usize {
    let Value::BulkString(list) = server.run(&["CLIENT", "LIST"]) else { panic!("no list") };
    let list = String::from_utf8(list).expect("the reply is text");
    list.lines().filter(|line| line.contains("cmd=evalsha")).count()
}

/// The threads that probe a store ask it before all others. The connections of the others must not live on the runtimes
/// of these threads.
#[tokio::test]
async fn threads_that_stand_aside_keep_no_connection_of_others() {
    let server = Server::start();
    let settings = Settings { connections: 2, ..with_long_timeouts(&server.url()) };
    let store = RedisStore::new(&settings).expect("the URL is valid");
    let (end, ended) = tokio::sync::watch::channel(());
    let aside = [1, 2].map(|number| {
        let (store, mut ended) = (store.clone(), ended.clone());
        std::thread::spawn(move || {
            stand_aside();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("the runtime starts").block_on(async {
                store.wait_connected().await.expect("the server is there");
                for _ in 0..8 {
                    store.probe(number, PATIENCE).await.expect("the server is there");
                }
                let _ = ended.changed().await;
            });
        })
    });
    until("both threads share one connection", || calls(&server) == 1).await;
    let three = async {
        while calls(&server) < 3 {
            take(&store, 1, &a_day(1_000_000), PATIENCE).await.expect("the server is there");
        }
    };
    timeout(PATIENCE, three).await.expect("this thread has two connections of its own");
    end.send_replace(());
    for thread in aside {
        tokio::task::spawn_blocking(|| thread.join()).await.expect("no task panics").expect("no thread panics");
    }
    until("these two connections stay", || server.info("connected_clients:") == 3).await;
    assert_eq!(calls(&server), 2);
}

/// If a caller's timeout is shorter than the round trip, its requests fail. Such a failure says nothing about Redis.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_without_time_affect_no_other_caller() {
    let server = Server::start();
    let url = format!("redis://127.0.0.1:{}/", delayed(server.port(), Delay::of(Duration::from_millis(20)), 1).await);
    let store = RedisStore::new(&Settings { max_failures: 2, connections: 1, ..with_long_timeouts(&url) })
        .expect("the URL is valid");
    store.wait_connected().await.expect("the server is there");
    let connections = server.info("total_connections_received:");
    let stop = Arc::new(AtomicBool::new(false));
    let hurried = |i| {
        let (store, stop) = (store.clone(), Arc::clone(&stop));
        tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                // On a busy machine, the reply can come before the task looks at its timeout, or the deadline can pass
                // before the request is sent.
                if let Err(error) = take(&store, i, &a_day(1_000_000), Duration::from_millis(1)).await {
                    assert!(matches!(error.kind(), StoreErrorKind::Timeout | StoreErrorKind::NotSent), "{error}");
                }
            }
        })
    };
    let hurried: Vec<_> = (1..=8).map(hurried).collect();
    until("many requests have timed out", || store.failures(StoreErrorKind::Timeout) > 1000).await;
    for left in (0..100).rev() {
        let (_, decision) = take(&store, 0, &a_day(100), PATIENCE).await.expect("the timeout is long");
        assert_eq!((decision.remaining, store.circuit()), (left, Circuit::Closed));
    }
    stop.store(true, Ordering::Relaxed);
    for task in hurried {
        task.await.expect("requests fail only because of their short timeouts");
    }
    // The test itself made one new connection, to ask for this number.
    assert_eq!(server.info("total_connections_received:"), connections + 1, "the store has not made a new connection");
}

/// A request counts as a failure of Redis if it had the whole timeout of the settings and still got no reply. After
/// `max_failures` such requests, the circuit is open.
#[tokio::test]
async fn requests_that_had_their_time_open_the_breaker() {
    let server = Server::start();
    let settings = Settings {
        timeout: Duration::from_millis(20),
        max_failures: 4,
        connections: 1,
        ..with_long_timeouts(&server.url())
    };
    let store = RedisStore::new(&settings).expect("the URL is valid");
    take(&store, 1, &a_day(1000), PATIENCE).await.expect("the server decides");
    server.freeze();
    // If a busy machine does not send a request in time, this says nothing about Redis.
    let late = || store.failures(StoreErrorKind::Timeout);
    while late() < 4 {
        assert_eq!(store.circuit(), Circuit::Closed, "after {} requests without a reply", late());
        take(&store, 1, &a_day(1000), settings.timeout).await.expect_err("the server is frozen");
    }
    assert_ne!(store.circuit(), Circuit::Closed);
    server.thaw();
    until_decided(&store, &a_day(1000)).await;
    assert_eq!(store.circuit(), Circuit::Closed);
}
