//! Rebuilds a limiter for a fleet of servers from an article, the "write-up" below: a log for each user, in a store
//! that all servers share.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::*;
use spillgate::{FallbackStore, OnStoreFailure, Reason};
use spillgate_redis::{LogForm, RedisKey};

/// Returns the quota of the write-up's example.
fn hundred_in_ten_seconds() -> Quota {
    build(Quota::sliding_window_log(100, SECOND * 10))
}

/// Returns a store that keeps logs in sorted sets, as in the write-up.
fn sorted_sets(server: &Server) -> RedisStore {
    RedisStore::new(&Settings { log: LogForm::Zset, ..settings(server) }).expect("the URL is valid")
}

async fn below_at_and_above(store: &impl Store) {
    let quota = hundred_in_ten_seconds();
    // One request every 100 ms never exceeds the limit.
    for i in 0..300 {
        assert!(take(store, at(i * 100), 1, &quota, 1).await.1.allowed, "request {i}");
    }
    assert_eq!(take(store, at(29_999), 1, &quota, 0).await.1.remaining, 0, "the requests use exactly the limit");
    // One request every 50 ms for a minute: any ten seconds have 200 requests, of which 100 are allowed.
    let mut admitted = Vec::new();
    for t_ms in (0..60_000).step_by(50) {
        admitted.extend(take(store, at(t_ms), 2, &quota, 1).await.1.allowed.then_some(t_ms));
    }
    assert_eq!(admitted.len(), 600);
    assert!(admitted.windows(101).all(|some| some[100] - some[0] >= 10_000), "{admitted:?}");
}

#[tokio::test]
async fn a_hundred_in_any_ten_seconds_pass_below_at_and_above_the_limit() {
    let server = Server::start();
    below_at_and_above(&redis(&server)).await;
    below_at_and_above(&sorted_sets(&server)).await;
    below_at_and_above(&memory()).await;
}

/// The write-up first counts the units, and adds a unit in a second step. Two requests can both count before either of
/// them adds its unit. Then both are admitted, even if only one unit was left.
async fn no_race(stores: [Arc<impl Store + 'static>; 2], now: Option<Time>) {
    let quota = hundred_in_ten_seconds();
    for user in 1..=5 {
        let task = |store: Arc<_>, quota: Quota| async move {
            let mut admitted = 0;
            for _ in 0..5 {
                admitted += u32::from(take(&*store, now, user, &quota, 1).await.1.allowed);
            }
            admitted
        };
        let tasks: Vec<_> = (0..64).map(|i| tokio::spawn(task(Arc::clone(&stores[i % 2]), quota.clone()))).collect();
        let mut admitted = 0;
        for task in tasks {
            admitted += task.await.expect("no task panics");
        }
        assert_eq!(admitted, 100, "the requests that were admitted, of 320 requests of user {user}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counting_and_adding_are_one_step() {
    let server = Server::start();
    no_race([Arc::new(redis(&server)), Arc::new(redis(&server))], at(0)).await;
    no_race([Arc::new(sorted_sets(&server)), Arc::new(sorted_sets(&server))], at(0)).await;
    let shared = Arc::new(memory());
    no_race([Arc::clone(&shared), shared], at(0)).await;
}

/// Scores in whole seconds of the caller's clock would not show the order of the requests within a second.
#[tokio::test]
async fn a_log_is_a_sorted_set_of_the_servers_microseconds() {
    let server = Server::start();
    // The window is longer than in the write-up, so that a slow machine sends all requests in it.
    let (store, quota) = (sorted_sets(&server), build(Quota::sliding_window_log(100, SECOND * 3600)));
    let name = RedisKey::with(&Hit::new(7, &quota, Op::Peek, Binding::Enforce), LogForm::Zset).to_string();
    let mut times_us = Vec::new();
    for _ in 0..100 {
        times_us.push(take(&store, None, 7, &quota, 1).await.0.now.as_nanos() / 1000);
    }
    assert!(!take(&store, None, 7, &quota, 1).await.0.allowed);
    assert_eq!(reply_to::<String>(&server, &["TYPE", &name]), "zset");
    let (from, to) = (times_us[20].to_string(), times_us[40].to_string());
    let within = times_us.iter().filter(|time| (times_us[20]..=times_us[40]).contains(time)).count();
    assert_eq!(reply_to::<usize>(&server, &["ZCOUNT", &name, &from, &to]), within);
    let members: Vec<(String, f64)> = reply_to(&server, &["ZRANGE", &name, "0", "-1", "WITHSCORES"]);
    assert_eq!(
        members.iter().map(|(_, score)| *score as u64).collect::<Vec<_>>(),
        times_us,
        "each request has one member, in order"
    );
    let left: i64 = reply_to(&server, &["PTTL", &name]);
    assert!((1..=3_600_001).contains(&left), "the key expires in {left} ms");
}

#[tokio::test]
async fn keys_of_users_who_are_gone_expire_by_themselves() {
    let server = Server::start();
    let quota = build(Quota::sliding_window_log(100, Duration::from_millis(200)));
    for store in [redis(&server), sorted_sets(&server)] {
        for user in 1..=100u128 {
            take(&store, None, user << 100, &quota, 1).await;
        }
    }
    until_empty(&server).await;
}

/// Tests the two policies that the write-up names for a store that fails: allow all requests, or deny all. Redis
/// is killed in the middle of the test.
#[tokio::test]
async fn when_the_store_fails_the_policy_allows_or_denies() {
    let mut server = Server::start();
    let nodes = NonZeroU32::new(2).expect("2 is not zero");
    let impatient = Settings { timeout: Duration::from_millis(100), ..Settings::new(server.url()) };
    let shared = RedisStore::new(&impatient).expect("the URL is valid");
    let store = FallbackStore::new(shared, memory(), nodes);
    let policies = [OnStoreFailure::Allow, OnStoreFailure::Deny];
    let quotas = policies.map(|policy| build(Quota::sliding_window_log(2, SECOND * 3600).on_store_failure(policy)));
    let decided = async |quota: &Quota| take(&store, at(0), 7, quota, 1).await;
    let until_from = async |source: Source| {
        let deadline = Instant::now() + PATIENCE;
        while decided(&quotas[0]).await.0.source != source {
            assert!(Instant::now() < deadline, "no decision has the source {source:?}");
            sleep(Duration::from_millis(1)).await;
        }
    };
    until_from(Source::Store).await;
    server.kill();
    until_from(Source::Policy).await;
    for (quota, allowed) in quotas.iter().zip([true, false]) {
        for _ in 0..5 {
            let (verdict, decision) = decided(quota).await;
            assert_eq!((verdict.allowed, verdict.source), (allowed, Source::Policy));
            assert_eq!(decision.reason, Reason::StoreFailed);
        }
    }
    server.start_again();
    until_from(Source::Store).await;
}
