//! Tests takes that are sent together, in one call of a script.

use std::time::Duration;

use futures_util::future::join_all;
use spillgate::{MemoryOptions, MemoryStore};
use spillgate_core::{Anchor, Binding, Decision, Hit, Op, Quota, Store, Time, Timing};
use spillgate_redis::{RedisKey, RedisStore, Settings, StoreErrorKind};

use crate::support::common::{PATIENCE, a_day, with_long_timeouts};
use crate::support::server::Server;
use crate::transport::start::until_serves;

/// Returns a store with one connection, so that all takes arrive in order. The deny cache is off, so every take is
/// sent.
fn one_connection(url: &str) -> RedisStore {
    let settings = Settings { connections: 1, deny_cache_entries: 0, ..with_long_timeouts(url) };
    RedisStore::new(&settings).expect("the URL is valid")
}

async fn decide(store: &RedisStore, now: Option<Time>, hit: Hit<'_>) -> Result<Decision, StoreErrorKind> {
    let mut decisions = [Decision::default()];
    let verdict = store
        .decide(now.map_or(Timing::BY_STORE, Timing::at).within(PATIENCE), &[hit], &mut decisions)
        .await
        .map_err(|error| error.kind())?;
    assert_eq!(verdict.allowed, decisions[0].allowed);
    Ok(decisions[0])
}

fn calls(server: &Server) -> u64 {
    server.info("cmdstat_evalsha:calls=")
}

#[tokio::test]
async fn each_is_decided_as_by_the_kernel_after_those_before_it() {
    let server = Server::start();
    let (store, memory) = (one_connection(&server.url()), MemoryStore::new(MemoryOptions::default()));
    store.wait_connected().await.expect("the server accepts connections");
    let second = Duration::from_secs(1);
    let quotas = [
        Quota::token_bucket(70, second).burst(40),
        Quota::leaky_bucket(50, second).queue(30),
        Quota::fixed_window(60, second),
        Quota::fixed_window(60, second).anchor(Anchor::FirstHit),
        Quota::sliding_window_counter(80, second),
    ]
    .map(|builder| builder.build().expect("the quota is valid"));
    let (mut state, mut refused, before) = (9_u64, 0, calls(&server));
    let mut below = |bound: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    let (rounds, takes) = (40, 250);
    for round in 0..rounds {
        let now = Time::from_nanos(1_000_000_000_000 + round * 130_000_123);
        let hits: Vec<Hit<'_>> = (0..takes)
            .map(|_| {
                let (quota, key) = (&quotas[below(5) as usize], u128::from(below(4)) << 120);
                Hit::new(key, quota, Op::Take { cost: 1 + below(3), max_wait_ns: below(2) << 29 }, Binding::Enforce)
            })
            .collect();
        let decided = join_all(hits.iter().map(|hit| decide(&store, Some(now), *hit))).await;
        for (hit, decided) in hits.iter().zip(decided) {
            let mut expected = [Decision::default()];
            memory.decide_now(now, &[*hit], &mut expected).expect("the store has capacity");
            assert_eq!(decided, Ok(expected[0]), "{hit:?}");
            refused += u64::from(!expected[0].allowed);
        }
    }
    assert!(refused > 1000 && refused < rounds * takes - 1000, "{refused} takes were refused");
    let called = calls(&server) - before;
    assert!(called < rounds * takes / 10, "{called} calls for {} takes", rounds * takes);
}

#[tokio::test]
async fn one_that_fails_concerns_no_other() {
    let server = Server::start();
    let (store, quota) = (one_connection(&server.url()), a_day(1000));
    store.wait_connected().await.expect("the server accepts connections");
    let hits: Vec<Hit<'_>> = (0..20).map(|key| Hit::new(key, &quota, Op::take(1), Binding::Enforce)).collect();
    server.run(&["SADD", &RedisKey::of(&hits[7]).to_string(), "foreign"]);
    let before = calls(&server);
    let decided = join_all(hits.iter().map(|hit| decide(&store, None, *hit))).await;
    for (key, decided) in decided.into_iter().enumerate() {
        match key {
            7 => assert_eq!(decided, Err(StoreErrorKind::WrongType)),
            key => assert_eq!(decided.map(|decision| decision.remaining), Ok(999), "key {key}"),
        }
    }
    assert_eq!(calls(&server) - before, 1);
}

#[tokio::test]
async fn without_memory_none_is_charged_and_each_says_so() {
    let server = Server::start();
    let (store, quota) = (one_connection(&server.url()), a_day(1000));
    store.wait_connected().await.expect("the server accepts connections");
    let hits: Vec<Hit<'_>> = (0..20).map(|key| Hit::new(key, &quota, Op::take(1), Binding::Enforce)).collect();
    for (most, expected) in [("1", Err(StoreErrorKind::OutOfMemory)), ("0", Ok(999))] {
        server.run(&["CONFIG", "SET", "maxmemory", most]);
        let decided = join_all(hits.iter().map(|hit| decide(&store, None, *hit))).await;
        assert!(decided.into_iter().all(|decided| decided.map(|it| it.remaining) == expected), "maxmemory {most}");
    }
}

#[tokio::test]
async fn where_the_script_is_gone_each_is_decided_and_charged_once() {
    let server = Server::start();
    let (store, quota) = (one_connection(&server.url()), a_day(1000));
    store.wait_connected().await.expect("the server accepts connections");
    let hit = Hit::new(1, &quota, Op::take(1), Binding::Enforce);
    for round in 1..=5 {
        server.run(&["SCRIPT", "FLUSH"]);
        let decided = join_all([(); 20].map(|()| decide(&store, None, hit))).await;
        let mut left: Vec<u64> =
            decided.into_iter().map(|decided| decided.expect("the server decides").remaining).collect();
        left.sort_unstable();
        let last = 1000 - 20 * round;
        assert!(left.into_iter().eq(last..last + 20), "round {round}");
    }
}

/// The URL names a single Redis server. But this server can be a proxy in front of a cluster, or a cluster node that
/// owns all slots. Neither accepts a call with keys of several slots.
#[tokio::test]
async fn an_address_of_several_nodes_gets_each_take_by_itself() {
    let (server, _) = Server::start_node(&[]);
    server.run(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    until_serves(&server).await;
    let (store, quota) = (one_connection(&server.url()), a_day(1000));
    store.wait_connected().await.expect("the server accepts connections");
    // The highest bits of a key determine its slot.
    let hits: Vec<Hit<'_>> =
        (0..20_u128).map(|key| Hit::new(key << 114, &quota, Op::take(1), Binding::Enforce)).collect();
    let before = calls(&server);
    for left in [999, 998, 997] {
        let decided = join_all(hits.iter().map(|hit| decide(&store, None, *hit))).await;
        assert!(
            decided.into_iter().all(|decided| decided.map(|it| it.remaining) == Ok(left)),
            "each key has {left} units left"
        );
    }
    assert_eq!(
        calls(&server) - before,
        60,
        "each of 3 * 20 takes has a call of its own; a call with several takes fails, and INFO does not count it"
    );
    assert_eq!(store.failures(StoreErrorKind::Moved), 0);
}
