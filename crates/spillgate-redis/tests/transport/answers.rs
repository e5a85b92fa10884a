//! Tests error replies of Redis: their kind, their effect on the circuit breaker, and the recovery.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use redis::Value;
use spillgate_core::{Binding, Decision, Hit, Op, Quota, Store, Timing};
use spillgate_redis::{Circuit, LogForm, RedisKey, RedisStore, SCRIPT_COMMANDS, Settings, StoreErrorKind};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::support::common::limiter;
use crate::support::common::{PATIENCE, a_day, take, until, until_decided, with_long_timeouts};
use crate::support::server::Server;

async fn until_failed(store: &RedisStore, quota: &Quota, class: StoreErrorKind) {
    let deadline = Instant::now() + PATIENCE;
    while store.failures(class) == 0 {
        assert!(Instant::now() < deadline, "no request failed as {}", class.as_str());
        let _ = take(store, 1, quota, Duration::from_millis(100)).await;
        // After the failure, the function returns without a pause, so that the caller sees the store as it is just
        // after the failure.
        if store.failures(class) == 0 {
            sleep(Duration::from_millis(1)).await;
        }
    }
}

#[tokio::test]
async fn a_key_of_another_type_affects_no_other_key() {
    let server = Server::start();
    let (store, quota) = (RedisStore::new(&with_long_timeouts(&server.url())).expect("the URL is valid"), a_day(1000));
    let name = name(7, &quota);
    server.run(&["SADD", &name, "foreign"]);
    for taken in 1..100 {
        let error = take(&store, 7, &quota, PATIENCE).await.expect_err("the value of the key is a set");
        assert_eq!(error.kind(), StoreErrorKind::WrongType, "{error}");
        assert!(error.detail().ends_with(&format!("DEL {name}")) && !error.detail().contains("script"), "{error}");
        let (_, decision) = take(&store, 8, &quota, PATIENCE).await.expect("the value of the other key is a state");
        assert_eq!(decision.remaining, 1000 - taken);
    }
    assert_eq!(store.circuit(), Circuit::Closed);
    server.run(&["DEL", &name]);
    take(&store, 7, &quota, PATIENCE).await.expect("the command in the error text repairs the key");
}

/// Returns the name of the Redis key in which `quota` counts `key`.
fn name(key: u128, quota: &Quota) -> String {
    RedisKey::of(&Hit::new(key, quota, Op::Peek, Binding::Enforce)).to_string()
}

#[tokio::test]
async fn a_value_of_another_program_is_reported_with_all_keys_that_may_hold_it() {
    let server = Server::start();
    let (store, quota) = (RedisStore::new(&with_long_timeouts(&server.url())).expect("the URL is valid"), a_day(1000));
    server.run(&["SET", &name(1, &quota), "foreign"]);
    let error = take(&store, 1, &quota, PATIENCE).await.expect_err("the value of the key is no state");
    assert!(error.detail().ends_with(&format!("DEL {}", name(1, &quota))), "{error}");
    for (keys, more) in [(3, ""), (4, ", or 1 more")] {
        let hits: Vec<_> = (1..=keys).map(|key| Hit::new(key, &quota, Op::take(1), Binding::Enforce)).collect();
        let mut decisions = vec![Decision::default(); hits.len()];
        let error = store
            .decide(Timing::BY_STORE.within(PATIENCE), &hits, &mut decisions)
            .await
            .expect_err("one value is no state");
        let names: Vec<_> = (1..=3).map(|key| name(key, &quota)).collect();
        assert!(error.detail().ends_with(&format!(": {}{more}", names.join(", "))), "{error}");
    }
}

#[tokio::test]
async fn an_error_of_many_commands_is_reported_once() {
    let server = Server::start();
    server.run(&["ACL", "SETUSER", "limiter", "on", ">secret", "~sg:*", "-@all", "+evalsha"]);
    server.run(&["CONFIG", "SET", "requirepass", "right"]);
    for (user, word) in [("", "NOAUTH"), ("limiter:secret@", "script|load")] {
        let url = format!("redis://{user}127.0.0.1:{}/", server.port());
        let settings = Settings { connect_timeout: Duration::from_secs(1), ..Settings::new(url) };
        let error = RedisStore::new(&settings)
            .expect("the URL is valid")
            .wait_connected()
            .await
            .expect_err("the user may not load scripts");
        assert_eq!((error.kind(), error.detail().matches(word).count()), (StoreErrorKind::NoPermission, 1), "{error}");
        assert!(!error.detail().contains("Pipeline"), "{error}");
    }
}

#[tokio::test]
async fn a_user_who_may_not() {
    let server = Server::start();
    server.run(&["ACL", "SETUSER", "limiter", "on", ">secret", "~sg:*", "-@all", "+evalsha", "+script|load"]);
    let url = format!("redis://limiter:secret@127.0.0.1:{}/", server.port());
    let (store, quota) = (RedisStore::new(&with_long_timeouts(&url)).expect("the URL is valid"), a_day(1000));
    let error = take(&store, 1, &quota, PATIENCE).await.expect_err("the user may not call GET");
    assert_eq!(error.kind(), StoreErrorKind::NoPermission, "{error}");
    server.run(&["ACL", "SETUSER", "limiter", "+@all"]);
    let (_, decision) =
        take(&store, 1, &quota, PATIENCE).await.expect("the user has all rights, on the same connection");
    assert_eq!(decision.remaining, 999);
}

/// Returns all keys with their values, and whether they expire.
fn held(server: &Server) -> BTreeMap<String, (Value, bool)> {
    let names: Vec<String> = redis::from_redis_value(server.run(&["KEYS", "*"])).expect("the reply is a list of names");
    let ends = |name: &str| matches!(server.run(&["PTTL", name]), Value::Int(1..));
    names.into_iter().map(|name| (name.clone(), (server.run(&["DUMP", &name]), ends(&name)))).collect()
}

/// In each turn, the user may not run one of the commands. A script that fails for this reason must have changed
/// nothing.
#[tokio::test]
async fn a_script_that_may_not_do_all_does_nothing() {
    let server = Server::start();
    server.run(&limiter(&[]));
    let url = format!("redis://limiter:secret@127.0.0.1:{}/", server.port());
    let day = Duration::from_secs(86_400);
    let builders = [
        Quota::token_bucket(10, day),
        Quota::fixed_window(10, day),
        Quota::sliding_window_log(10, day),
        Quota::concurrency(10).lease(day),
    ];
    let quotas = builders.map(|builder| builder.build().expect("the quota is valid"));
    let each =
        |first: u128, op| (first..).zip(&quotas).map(move |(key, quota)| Hit::new(key, quota, op, Binding::Enforce));
    // Single takes, forces (which only the general script can decide), and a request with several takes.
    let mut requests: Vec<Vec<_>> =
        each(1, Op::take(3)).chain(each(11, Op::Force { cost: 11 })).map(|hit| vec![hit]).collect();
    requests.push(each(21, Op::take(3)).collect());
    let mut missed = BTreeSet::new();
    for log in [LogForm::Packed, LogForm::Zset] {
        let store = RedisStore::new(&Settings { log, deny_cache_entries: 0, ..with_long_timeouts(&url) })
            .expect("the URL is valid");
        for command in SCRIPT_COMMANDS.map(str::to_lowercase) {
            server.run(&["FLUSHALL"]);
            server.run(&["ACL", "SETUSER", "limiter", &format!("-{command}")]);
            for hits in requests.iter().chain(&requests) {
                let before = held(&server);
                let mut decisions = vec![Decision::default(); hits.len()];
                let decided = store.decide(Timing::BY_STORE.within(PATIENCE), hits, &mut decisions).await;
                let after = held(&server);
                assert!(after.values().all(|(_, ends)| *ends), "without {command} a key never expires: {hits:?}");
                if let Err(error) = decided {
                    assert_eq!(
                        (error.kind(), error.kind().may_have_been_applied()),
                        (StoreErrorKind::NoPermission, false),
                        "{error}"
                    );
                    assert!(after == before, "without {command} a failed request changed a state: {hits:?}");
                    missed.insert(command.clone());
                }
            }
            server.run(&["ACL", "SETUSER", "limiter", &format!("+{command}")]);
        }
    }
    for command in ["del", "hset", "ltrim", "pexpireat", "rpush", "set", "zadd", "zremrangebyrank"] {
        assert!(missed.contains(command), "{missed:?}");
    }
}

#[tokio::test]
async fn a_full_memory_refuses_what_would_be_written() {
    let server = Server::start();
    let (store, quota) = (RedisStore::new(&with_long_timeouts(&server.url())).expect("the URL is valid"), a_day(1000));
    take(&store, 1, &quota, PATIENCE).await.expect("the server has memory");
    server.run(&["CONFIG", "SET", "maxmemory", "1"]);
    for _ in 0..100 {
        let error = take(&store, 1, &quota, PATIENCE).await.expect_err("the server has no memory");
        assert_eq!(error.kind(), StoreErrorKind::OutOfMemory, "{error}");
    }
    assert_eq!(store.circuit(), Circuit::Closed);
    server.run(&["CONFIG", "SET", "maxmemory", "0"]);
    let (_, decision) = take(&store, 1, &quota, PATIENCE).await.expect("the server has memory");
    assert_eq!(decision.remaining, 998, "the requests that failed were not charged");
}

/// Returns the connections that have sent scripts.
fn ours(server: &Server) -> Vec<String> {
    let list: String = redis::from_redis_value(server.run(&["CLIENT", "LIST"])).expect("the reply is text");
    let clients = list.lines().filter(|line| line.contains("cmd=evalsha") || line.contains("cmd=script"));
    clients.filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
}

#[tokio::test]
async fn a_primary_that_was_demoted_loses_its_connections() {
    let (server, primary) = (Server::start(), Server::start());
    let (store, quota) = (RedisStore::new(&with_long_timeouts(&server.url())).expect("the URL is valid"), a_day(1000));
    take(&store, 1, &quota, PATIENCE).await.expect("the server is a primary");
    let before = ours(&server);
    assert_eq!(before.len(), 1, "{before:?}");
    server.run(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    until_failed(&store, &quota, StoreErrorKind::ReadOnly).await;
    assert_ne!(store.circuit(), Circuit::Closed);
    until("the connection is dropped", || !ours(&server).contains(&before[0])).await;
    server.run(&["REPLICAOF", "NO", "ONE"]);
    until_decided(&store, &quota).await;
    assert_eq!(store.in_flight(), 0);
}

/// Redis refuses writes, because it has lost its replicas or cannot save to disk. Then the store closes its connections
/// and opens the circuit. The store uses Redis again as soon as writes are accepted.
#[tokio::test]
async fn a_primary_that_refuses_writes_loses_its_connections() {
    let folder = TempDir::new().expect("the folder can be made");
    let server = Server::start_with(&["--dir", folder.path().to_str().expect("the path is UTF-8")]);
    let quota = a_day(1000);
    let in_the_way = folder.path().join("dump.rdb");
    let refuses = |word: &str, refuses: bool| match (word, refuses) {
        ("NOREPLICAS", _) => {
            drop(server.run(&["CONFIG", "SET", "min-replicas-to-write", if refuses { "1" } else { "0" }]))
        }
        (_, true) => {
            std::fs::create_dir_all(in_the_way.join("x")).expect("the folder can be made");
            server.run(&["CONFIG", "SET", "save", "3600 1"]);
            server.run(&["BGSAVE"]);
        }
        (_, false) => drop(server.run(&["CONFIG", "SET", "save", ""])),
    };
    for word in ["NOREPLICAS", "MISCONF"] {
        let store = RedisStore::new(&with_long_timeouts(&server.url())).expect("the URL is valid");
        take(&store, 1, &quota, PATIENCE).await.expect("the server accepts writes");
        let before = ours(&server);
        refuses(word, true);
        let deadline = Instant::now() + PATIENCE;
        let error = loop {
            assert!(Instant::now() < deadline, "the server does not refuse writes");
            match take(&store, 1, &quota, PATIENCE).await {
                Ok(_) => sleep(Duration::from_millis(1)).await,
                Err(error) => break error,
            }
        };
        assert!(error.kind() == StoreErrorKind::ReadOnly && error.detail().contains(word), "{error}");
        assert!(!error.detail().contains("DEL"), "{error}");
        assert_ne!(store.circuit(), Circuit::Closed);
        until("the connection is dropped", || ours(&server).iter().all(|it| !before.contains(it))).await;
        refuses(word, false);
        until_decided(&store, &quota).await;
    }
}

#[tokio::test]
async fn a_slow_script_of_another_client() {
    let server = Server::start_with(&["--busy-reply-threshold", "20"]);
    let (store, quota) = (RedisStore::new(&with_long_timeouts(&server.url())).expect("the URL is valid"), a_day(1000));
    take(&store, 1, &quota, PATIENCE).await.expect("the server is not busy");
    let url = server.url();
    let slow = std::thread::spawn(move || {
        let mut connection = redis::Client::open(url)?.get_connection()?;
        redis::cmd("EVAL").arg("while true do end").arg(0).query::<()>(&mut connection)
    });
    until_failed(&store, &quota, StoreErrorKind::Busy).await;
    assert_ne!(store.circuit(), Circuit::Closed);
    let why = store.last_error().expect("the circuit is open");
    assert!(why.kind() == StoreErrorKind::Busy && why.detail().contains("SCRIPT KILL"), "{why}");
    server.run(&["SCRIPT", "KILL"]);
    assert!(slow.join().expect("the thread does not panic").is_err(), "the slow script was killed");
    until_decided(&store, &quota).await;
    assert_eq!((store.circuit(), store.last_error()), (Circuit::Closed, None));
}

#[tokio::test]
async fn a_server_that_loads_its_data() {
    let mut server = Server::start_with(&["--rdbcompression", "no"]);
    server.run(&["DEBUG", "POPULATE", "200", "filler", "2000"]);
    server.run(&["SAVE"]);
    let (store, quota) = (RedisStore::new(&with_long_timeouts(&server.url())).expect("the URL is valid"), a_day(1000));
    take(&store, 1, &quota, PATIENCE).await.expect("the server has loaded its data");
    server.kill();
    // Loading takes ten milliseconds for each key. Between keys, Redis answers its connections.
    let slowly = ["--key-load-delay", "10000", "--loading-process-events-interval-bytes", "1024"];
    server.start_again_until(&slowly, "server initialized");
    until("the server replies LOADING", || {
        store.last_error().is_some_and(|error| error.kind() == StoreErrorKind::Loading)
    })
    .await;
    // A busy machine can stand still for so long that the data is loaded meanwhile.
    let early = take(&store, 1, &quota, Duration::from_millis(10)).await;
    assert!(early.is_err() || server.info("loading:") == 0, "{early:?}");
    let (_, decision) = until_decided(&store, &quota).await;
    assert!(decision.remaining >= 998, "{decision:?}");
}

#[tokio::test]
async fn a_cluster_without_slots_serves_no_request() {
    let (server, _) = Server::start_node(&[]);
    let (store, quota) = (RedisStore::new(&with_long_timeouts(&server.url())).expect("the URL is valid"), a_day(1000));
    until_failed(&store, &quota, StoreErrorKind::ClusterDown).await;
    assert_ne!(store.circuit(), Circuit::Closed);
    server.run(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    until_decided(&store, &quota).await;
}

#[tokio::test]
async fn a_wrong_password_is_reported() {
    let server = Server::start_with(&["--requirepass", "right"]);
    let url = format!("redis://:wrong@127.0.0.1:{}/", server.port());
    let settings = Settings { connect_timeout: Duration::from_secs(1), ..Settings::new(url) };
    let store = RedisStore::new(&settings).expect("the URL is valid");
    let error = store.wait_connected().await.expect_err("the password is wrong");
    assert_eq!(error.kind(), StoreErrorKind::NoPermission, "{error}");
}
