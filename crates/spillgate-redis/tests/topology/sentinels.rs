//! A primary that sentinels name: handed over, killed, frozen, and back again.

use spillgate_redis::{Error, ErrorKind, RedisStore, Settings};

use crate::cluster::{WITHIN, role, text};
use crate::common::limiter;
use crate::load::{Load, States, counted};
use crate::server::{Server, free_port, run};
use crate::takers::{LIMIT, Takers, passed_on};
use crate::trio::{Sentinel, Trio};
use crate::{a_day, patient, take, until};

fn store(trio: &Trio) -> RedisStore {
    RedisStore::new(&Settings { timeout: WITHIN, connections: 2, ..Settings::new(trio.url()) }).expect("valid")
}

fn is_at(store: &RedisStore, server: &Server) -> bool {
    let nodes = store.nodes();
    nodes[0].is_connected && nodes[0].address == format!("127.0.0.1:{}", server.port())
}

async fn until_more_are_decided(load: &Load) {
    let before = load.decided();
    until("the store decides", || load.decided() >= before + 500).await;
}

async fn assert_all_are_accounted_for(store: &RedisStore, load: Load, failed: u64) {
    let tally = load.end().await;
    assert_eq!((counted(store), store.in_flight()), (tally.failed + failed, 0), "{tally:?}");
    // Ten times the claim: the machine may be busy.
    assert!(tally.longest < 20 * WITHIN, "{tally:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_is_handed_over() {
    let trio = Trio::start().await;
    let store = store(&trio);
    let load = Load::start(&store, 16, WITHIN, States::MayBeLost);
    until_more_are_decided(&load).await;
    let [old, new] = &trio.servers;
    assert!(is_at(&store, old), "{:?}", store.nodes());
    run(trio.sentinels[0].port, &["SENTINEL", "FAILOVER", "main"]).expect("it begins");
    until("the store has found the new one", || is_at(&store, new)).await;
    until("the old one follows", || role(old) == "slave").await;
    let asked = old.info("cmdstat_evalsha:calls=");
    until_more_are_decided(&load).await;
    assert_eq!(old.info("cmdstat_evalsha:calls="), asked, "a replica was asked");
    assert_all_are_accounted_for(&store, load, 0).await;
}

/// The bound: the limit, and what the dead primary had admitted but not passed on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_is_killed_and_comes_back_with_nothing() {
    let mut trio = Trio::start().await;
    // It takes over when the test has seen what it knows.
    trio.servers[1].run(&["CONFIG", "SET", "replica-priority", "0"]);
    let store = store(&trio);
    let load = Load::start(&store, 16, WITHIN, States::MayBeLost);
    let takers = Takers::start(&store, 7 << 99);
    until("a third is given out", || takers.admitted() >= LIMIT / 3).await;
    trio.servers[0].kill();
    let passed_on = passed_on(&trio.servers[1], 7 << 99).await;
    let before = takers.admitted();
    assert!((1..=LIMIT).contains(&passed_on), "{passed_on} of {before}");
    trio.servers[1].run(&["CONFIG", "SET", "replica-priority", "100"]);
    until("the store has found the new one", || is_at(&store, &trio.servers[1])).await;
    // It believes itself to be a primary, until the sentinels tell it.
    trio.servers[0].start_again(&[], "ready to accept connections");
    let [admitted, failed, in_doubt] = takers.end().await;
    let lost = before.saturating_sub(passed_on);
    assert!((LIMIT.saturating_sub(in_doubt)..=LIMIT + lost).contains(&admitted), "{admitted} admitted, {lost} lost");

    let another = RedisStore::new(&patient(&trio.url())).expect("valid");
    another.wait_connected().await.expect("the sentinels know");
    assert!(is_at(&another, &trio.servers[1]));
    until("the old one follows", || role(&trio.servers[0]) == "slave").await;
    assert_eq!(trio.servers[0].info("cmdstat_evalsha:calls="), 0, "it was asked");
    until_more_are_decided(&load).await;
    assert!(is_at(&store, &trio.servers[1]));
    assert_all_are_accounted_for(&store, load, failed).await;
}

/// A primary that was frozen believes itself to be one when it goes on: no connection to it is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_freezes_and_goes_on_too_late() {
    let trio = Trio::start().await;
    let store = store(&trio);
    let load = Load::start(&store, 16, WITHIN, States::MayBeLost);
    until_more_are_decided(&load).await;
    trio.servers[0].freeze();
    until("the store has found the new one", || is_at(&store, &trio.servers[1])).await;
    trio.servers[0].thaw();
    let clients = || text(trio.servers[0].run(&["CLIENT", "LIST"]));
    until("nobody asks the old one", || !clients().contains("cmd=evalsha")).await;
    let asked = trio.servers[0].info("cmdstat_evalsha:calls=");
    until("the old one follows", || role(&trio.servers[0]) == "slave").await;
    until_more_are_decided(&load).await;
    assert_eq!(trio.servers[0].info("cmdstat_evalsha:calls="), asked, "it was asked");
    assert_all_are_accounted_for(&store, load, 0).await;
}

/// Sentinels that are gone, none, or know something else; and a primary that is none any more.
#[tokio::test]
async fn one_sentinel_that_knows_is_enough() {
    let (trio, stranger) = (Trio::start().await, Server::start());
    let sentinel = |port: u16| format!("127.0.0.1:{port}");
    let hosts = [free_port(), stranger.port(), trio.sentinels[1].port].map(sentinel).join(",");
    let url = |name: &str| format!("redis-sentinel://limiter:secret@{hosts}/{name}");
    trio.servers[0].run(&limiter(&["+role"]));
    let store = RedisStore::new(&patient(&url("main"))).expect("valid");
    assert_eq!(store.nodes()[0].address, "main");
    let (_, decision) = take(&store, 1, &a_day(1000), crate::PATIENCE).await.expect("one of them knows");
    assert_eq!(decision.remaining, 999);
    assert!(is_at(&store, &trio.servers[0]));

    let unknown = RedisStore::new(&Settings::new(url("other"))).expect("valid").wait_connected().await;
    assert!(unknown.expect_err("no such name").detail.contains("No such master"));

    // A sentinel that has not heard yet.
    let sentinel = trio.sentinels[1].port;
    trio.servers[0].run(&["REPLICAOF", "127.0.0.1", &stranger.port().to_string()]);
    let settings = Settings::new(format!("redis-sentinel://limiter:secret@127.0.0.1:{sentinel}/main"));
    let demoted = RedisStore::new(&settings).expect("valid").wait_connected().await;
    let failed = demoted.expect_err("it is a replica");
    assert!(failed.kind == ErrorKind::ReadOnly && failed.detail.contains("is no primary"), "{failed}");
}

#[tokio::test]
async fn sentinels_that_want_a_password_get_their_own() {
    const RIGHTS: &str = "+sentinel|master +sentinel|get-master-addr-by-name";
    let server = Server::start_with(free_port(), &["--requirepass", "secret"]);
    let auth = "sentinel auth-pass main secret\n";
    let user = format!("user default off\nuser limiter on >hush -@all {RIGHTS}\n");
    let sentinels = [auth.to_owned() + "requirepass hush\n", user + auth].map(|it| Sentinel::start(server.port(), &it));
    for (sentinel, user) in sentinels.iter().zip([None, Some("limiter")]) {
        let url = format!("redis-sentinel://:secret@127.0.0.1:{}/main", sentinel.port);
        let store = |password: Option<&str>| {
            let [sentinel_user, sentinel_password] = [user, password].map(|it| it.map(str::to_owned));
            RedisStore::new(&Settings { sentinel_user, sentinel_password, ..patient(&url) }).expect("valid")
        };
        take(&store(Some("hush")), 1, &a_day(1000), crate::PATIENCE).await.expect("it logs in at both");
        for password in [None, Some("hash")] {
            let store = store(password);
            take(&store, 1, &a_day(1000), WITHIN).await.expect_err("nobody says where the primary is");
            let is_refused = |failed: Error| failed.kind == ErrorKind::NoPermission;
            until("it is not let in", || store.last_error().is_some_and(is_refused)).await;
        }
    }
}
