//! Tests a primary behind sentinels that is replaced, killed or frozen, and comes back.

use spillgate_redis::{Cause, Error, RedisStore, Settings, StoreErrorKind};
use spillgate_testkit::free_port;

use crate::support::cluster::{WITHIN, role, text};
use crate::support::common::limiter;
use crate::support::common::{a_day, take, until, with_long_timeouts};
use crate::support::load::{Load, States, counted};
use crate::support::server::{Server, run};
use crate::topology::load_on_one_key::{KeyLoad, LIMIT, counted_by, passed_on};
use crate::topology::sentinel_setup::{Sentinel, SentinelSetup};

fn store(sentinel_setup: &SentinelSetup) -> RedisStore {
    RedisStore::new(&Settings { timeout: WITHIN, connections: 2, ..Settings::new(sentinel_setup.url()) })
        .expect("the URL is valid")
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
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_is_handed_over() {
    let sentinel_setup = SentinelSetup::start().await;
    let store = store(&sentinel_setup);
    let load = Load::start(&store, 16, WITHIN, States::MayBeLost);
    until_more_are_decided(&load).await;
    let [old, new] = &sentinel_setup.servers;
    assert!(is_at(&store, old), "{:?}", store.nodes());
    run(sentinel_setup.sentinels[0].port, &["SENTINEL", "FAILOVER", "main"]).expect("the failover begins");
    until("the store has found the new primary", || is_at(&store, new)).await;
    until("the old primary is a replica", || role(old) == "slave").await;
    let calls = old.info("cmdstat_evalsha:calls=");
    until_more_are_decided(&load).await;
    assert_eq!(old.info("cmdstat_evalsha:calls="), calls, "the replica got no request");
    assert_all_are_accounted_for(&store, load, 0).await;
}

/// At most the limit is admitted, plus the units that the dead primary had admitted but not replicated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_is_killed_and_comes_back_with_nothing() {
    let mut sentinel_setup = SentinelSetup::start().await;
    // First the test has to read the units that the replica has counted. Until then, the replica must not take over.
    sentinel_setup.servers[1].run(&["CONFIG", "SET", "replica-priority", "0"]);
    let store = store(&sentinel_setup);
    let load = Load::start(&store, 16, WITHIN, States::MayBeLost);
    let key_load = KeyLoad::start(&store, 7 << 99);
    until("a third of the limit is admitted", || key_load.admitted() >= LIMIT / 3).await;
    until("the replica has counted units", || counted_by(&sentinel_setup.servers[1], 7 << 99) > 0).await;
    sentinel_setup.servers[0].kill();
    load.until_each_task_goes_on().await;
    let passed_on = passed_on(&sentinel_setup.servers[1], 7 << 99).await;
    let before = key_load.admitted();
    assert!((1..=LIMIT).contains(&passed_on), "the replica has counted {passed_on} of {before} admitted units");
    sentinel_setup.servers[1].run(&["CONFIG", "SET", "replica-priority", "100"]);
    until("the store has found the new primary", || is_at(&store, &sentinel_setup.servers[1])).await;
    // The old primary behaves as a primary until the sentinels demote it.
    sentinel_setup.servers[0].start_again();
    let [admitted, failed, may_have_been_applied] = key_load.end().await;
    let lost = before.saturating_sub(passed_on);
    assert!(
        (LIMIT.saturating_sub(may_have_been_applied)..=LIMIT + lost).contains(&admitted),
        "{admitted} admitted, {lost} lost"
    );

    let another = RedisStore::new(&with_long_timeouts(&sentinel_setup.url())).expect("the URL is valid");
    another.wait_connected().await.expect("the sentinels report the new primary");
    assert!(is_at(&another, &sentinel_setup.servers[1]));
    until("the old primary is a replica", || role(&sentinel_setup.servers[0]) == "slave").await;
    assert_eq!(sentinel_setup.servers[0].info("cmdstat_evalsha:calls="), 0, "the old primary got no request");
    until_more_are_decided(&load).await;
    assert!(is_at(&store, &sentinel_setup.servers[1]));
    assert_all_are_accounted_for(&store, load, failed).await;
}

/// A primary that was frozen still acts as a primary when it goes on. But by then the store uses the new primary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_freezes_and_goes_on_too_late() {
    let sentinel_setup = SentinelSetup::start().await;
    let store = store(&sentinel_setup);
    let load = Load::start(&store, 16, WITHIN, States::MayBeLost);
    until_more_are_decided(&load).await;
    sentinel_setup.servers[0].freeze();
    load.until_each_task_goes_on().await;
    until("the store has found the new primary", || is_at(&store, &sentinel_setup.servers[1])).await;
    sentinel_setup.servers[0].thaw();
    let clients = || text(sentinel_setup.servers[0].run(&["CLIENT", "LIST"]));
    until("the old primary gets no requests", || !clients().contains("cmd=evalsha")).await;
    let calls = sentinel_setup.servers[0].info("cmdstat_evalsha:calls=");
    until("the old primary is a replica", || role(&sentinel_setup.servers[0]) == "slave").await;
    until_more_are_decided(&load).await;
    assert_eq!(sentinel_setup.servers[0].info("cmdstat_evalsha:calls="), calls, "the old primary got no request");
    assert_all_are_accounted_for(&store, load, 0).await;
}

/// Of the three addresses in the URL, one has no server, one has a server that is no sentinel, and one has a sentinel.
/// Then the test asks the sentinel for a name that it does not know. At the end, the server that the sentinel names is
/// a replica.
#[tokio::test]
async fn one_sentinel_that_knows_is_enough() {
    let (sentinel_setup, stranger) = (SentinelSetup::start().await, Server::start());
    let sentinel = |port: u16| format!("127.0.0.1:{port}");
    let hosts = [free_port(), stranger.port(), sentinel_setup.sentinels[1].port].map(sentinel).join(",");
    let url = |name: &str| format!("redis-sentinel://limiter:secret@{hosts}/{name}");
    sentinel_setup.servers[0].run(&limiter(&["+role"]));
    let store = RedisStore::new(&with_long_timeouts(&url("main"))).expect("the URL is valid");
    assert_eq!(store.nodes()[0].address, "main");
    let (_, decision) = take(&store, 1, &a_day(1000), crate::support::common::PATIENCE)
        .await
        .expect("the sentinel reports the primary");
    assert_eq!(decision.remaining, 999);
    assert!(is_at(&store, &sentinel_setup.servers[0]));

    let unknown = RedisStore::new(&Settings::new(url("other"))).expect("the URL is valid").wait_connected().await;
    assert_eq!(unknown.expect_err("the sentinel does not know this name").cause(), Cause::UnknownPrimary);

    // The test makes the primary a replica. The sentinel does not know this yet.
    let sentinel = sentinel_setup.sentinels[1].port;
    sentinel_setup.servers[0].run(&["REPLICAOF", "127.0.0.1", &stranger.port().to_string()]);
    let settings = Settings::new(format!("redis-sentinel://limiter:secret@127.0.0.1:{sentinel}/main"));
    let demoted = RedisStore::new(&settings).expect("the URL is valid").wait_connected().await;
    let error = demoted.expect_err("the server is a replica");
    assert!(error.kind() == StoreErrorKind::ReadOnly && error.detail().contains("is no primary"), "{error}");
}

#[tokio::test]
async fn sentinels_that_want_a_password_get_their_own() {
    const RIGHTS: &str = "+sentinel|master +sentinel|get-master-addr-by-name";
    let server = Server::start_with(&["--requirepass", "secret"]);
    let auth = "sentinel auth-pass main secret\n";
    let user = format!("user default off\nuser limiter on >hush -@all {RIGHTS}\n");
    let sentinels = [auth.to_owned() + "requirepass hush\n", user + auth].map(|it| Sentinel::start(server.port(), &it));
    for (sentinel, user) in sentinels.iter().zip([None, Some("limiter")]) {
        let url = format!("redis-sentinel://:secret@127.0.0.1:{}/main", sentinel.port);
        let store = |password: Option<&str>| {
            let [sentinel_user, sentinel_password] = [user, password].map(|it| it.map(str::to_owned));
            RedisStore::new(&Settings { sentinel_user, sentinel_password, ..with_long_timeouts(&url) })
                .expect("the URL is valid")
        };
        take(&store(Some("hush")), 1, &a_day(1000), crate::support::common::PATIENCE)
            .await
            .expect("the store logs in to the sentinel and to the server");
        for password in [None, Some("hash")] {
            let store = store(password);
            take(&store, 1, &a_day(1000), WITHIN).await.expect_err("no sentinel reports the primary");
            let is_refused = |error: Error| error.cause() == Cause::SentinelPermission;
            until("the sentinel refuses the login", || store.last_error().is_some_and(is_refused)).await;
        }
    }
}
