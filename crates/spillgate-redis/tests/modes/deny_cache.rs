//! Tests refusals that the deny cache repeats without a call to Redis.

use std::time::Duration;

use spillgate_core::{
    AcrossRegions, Algorithm, Anchor, Binding, Decision, Hit, Op, Quota, Reason, Receipt, Regions, Source, Store, Time,
    Timing,
};
use spillgate_redis::{RedisStore, Settings};
use tokio::time::{Instant, sleep};

use crate::modes::{ask, settings};
use crate::support::client::{Client, RedisServer, bytes};

const DAY: Duration = Duration::from_secs(86_400);
/// Much longer than the default of `deny_cache_max_age`, the maximum age of an entry in the deny cache.
const PATIENCE: Duration = Duration::from_secs(60);

fn refusing() -> Vec<Quota> {
    let builders = [
        Quota::token_bucket(1, DAY).burst(3),
        Quota::leaky_bucket(1, DAY).queue(2),
        Quota::fixed_window(3, DAY * 365),
        Quota::fixed_window(3, DAY).anchor(Anchor::FirstHit),
        Quota::sliding_window_counter(3, DAY * 365),
        Quota::sliding_window_log(3, DAY),
    ];
    builders.map(|builder| builder.build().expect("the quota is valid")).into()
}

fn one() -> Op {
    Op::Take { cost: 1, max_wait_ns: u64::MAX }
}

/// Returns how often Redis has run a script.
fn scripts_run(client: &mut Client) -> u64 {
    let reply = client.ask_one(redis::cmd("INFO").arg("commandstats").clone());
    let text = String::from_utf8_lossy(bytes(&reply)).into_owned();
    let calls = text.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next());
    calls.map_or(0, |calls| calls.parse().expect("the text is a number"))
}

#[tokio::test]
async fn a_refused_key_asks_the_server_nothing() {
    let server = RedisServer::start();
    let mut client = server.connect();
    // No entry becomes too old during this test, even on a slow machine.
    let settings = Settings { deny_cache_max_age: DAY, ..settings(&server) };
    let store = RedisStore::new(&settings).expect("the URL is valid");
    for (key, quota) in (1u128..).zip(&refusing()) {
        let mut reported = Decision::default();
        for turn in 0..4 {
            let (verdict, decision) = ask(&store, key, quota, one()).await;
            assert_eq!((verdict.allowed, verdict.source), (turn < 3, Source::Store), "{quota:?}");
            reported = decision;
        }
        let (before, cached) = (scripts_run(&mut client), store.denied_by_cache());
        for _ in 0..1000 {
            let (verdict, decision) = ask(&store, key, quota, one()).await;
            assert_eq!((verdict.allowed, verdict.source), (false, Source::DenyCache), "{quota:?}");
            assert!(decision.retry_after <= reported.retry_after && verdict.retry_after == decision.retry_after);
            let mut shown = decision.with_reset_after_ns(reported.reset_after_ns);
            shown.retry_after = reported.retry_after;
            assert_eq!(shown, reported);
            reported = decision;
        }
        assert_eq!(store.denied_by_cache() - cached, 1000);
        assert_eq!(scripts_run(&mut client), before, "{quota:?}");
        // If the caller sets the time of the decision, the cache is not used, and only Redis decides.
        let hits = [Hit::new(key, quota, one(), Binding::Enforce)];
        let verdict =
            store.decide(Timing::at(Time::MAX), &hits, &mut [Decision::default()]).await.expect("Redis answers");
        assert_eq!(verdict.source, Source::Store);
    }
}

#[tokio::test]
async fn a_refusal_is_not_repeated_once_this_node_has_taken_from_its_state() {
    let server = RedisServer::start();
    let settings = Settings { deny_cache_max_age: DAY, ..settings(&server) };
    let store = RedisStore::new(&settings).expect("the URL is valid");
    let builders = [
        Quota::token_bucket(10, DAY).burst(20),
        Quota::leaky_bucket(10, DAY).queue(19),
        Quota::fixed_window(20, DAY * 365),
        Quota::sliding_window_counter(20, DAY * 365),
        Quota::sliding_window_log(20, DAY),
    ];
    let take = |cost| Op::Take { cost, max_wait_ns: u64::MAX };
    for (key, builder) in (1u128..).zip(builders) {
        let quota = builder.build().expect("the quota is valid");
        assert!(ask(&store, key, &quota, take(18)).await.0.allowed);
        let (_, first) = ask(&store, key, &quota, take(10)).await;
        let (repeated, decision) = ask(&store, key, &quota, take(10)).await;
        assert_eq!((first.remaining, repeated.source, decision.remaining), (2, Source::DenyCache, 2), "{quota:?}");
        for (changes, left) in [(take(1), 1), (Op::Force { cost: 1 }, 0)] {
            assert!(ask(&store, key, &quota, changes).await.0.allowed);
            let (verdict, decision) = ask(&store, key, &quota, take(10)).await;
            assert_eq!((verdict.source, decision.remaining), (Source::Store, left), "{quota:?} after {changes:?}");
            let has_one_end = matches!(quota.algorithm(), Algorithm::FixedWindow(_) | Algorithm::SlidingWindowLog);
            assert!(has_one_end || decision.retry_after > first.retry_after, "{quota:?}: {decision:?}, {first:?}");
        }
    }
}

/// A refusal from the cache also reports the second limit of the request, as long as the cache has the state of this
/// limit. After another take by this store on the second limit, refusals report this limit as not asked.
#[tokio::test]
async fn a_busy_limit_beside_a_refused_key_has_the_server_asked_nothing() {
    let server = RedisServer::start();
    let mut client = server.connect();
    let settings = Settings { deny_cache_max_age: DAY, ..settings(&server) };
    let store = RedisStore::new(&settings).expect("the URL is valid");
    let all = Quota::token_bucket(1000, DAY).build().expect("the quota is valid");
    for (key, quota) in (1u128..).zip(&refusing()) {
        let both = |key| [(key, quota), (99, &all)].map(|(key, quota)| Hit::new(key, quota, one(), Binding::Enforce));
        let mut decisions = [Decision::default(); 2];
        for turn in 0..4 {
            let verdict = store.decide(Timing::BY_STORE, &both(key), &mut decisions).await.expect("Redis answers");
            assert_eq!((verdict.allowed, verdict.source), (turn < 3, Source::Store), "{quota:?}");
        }
        let left = decisions[1].remaining;
        let verdict = store.decide(Timing::BY_STORE, &both(key), &mut decisions).await.expect("Redis answers");
        assert_eq!((verdict.source, verdict.binding, decisions[1].limit), (Source::DenyCache, Some(0), 1000));
        assert_eq!(decisions[1].remaining, left, "{quota:?}");
        for other in 0..20 {
            let taken =
                store.decide(Timing::BY_STORE, &both(key << 64 | other), &mut decisions).await.expect("Redis answers");
            let before = scripts_run(&mut client);
            let verdict = store.decide(Timing::BY_STORE, &both(key), &mut decisions).await.expect("Redis answers");
            assert_eq!((taken.source, verdict.source, verdict.binding), (Source::Store, Source::DenyCache, Some(0)));
            let not_asked = Decision::default().with_reason(Reason::NotAsked);
            assert_eq!((decisions[1], scripts_run(&mut client)), (not_asked, before), "{quota:?}");
        }
    }
}

#[tokio::test]
async fn what_comes_back_through_the_store_is_admitted_at_once() {
    let server = RedisServer::start();
    let settings = Settings { deny_cache_max_age: DAY, ..settings(&server) };
    let store = RedisStore::new(&settings).expect("the URL is valid");
    for (key, quota) in (1u128..).zip(&refusing()) {
        let mut receipt = None;
        for turn in 0..40 {
            while let (verdict, Decision { receipt: Some(taken), .. }) = ask(&store, key, quota, one()).await {
                assert!(verdict.allowed);
                receipt = Some(taken);
            }
            assert_eq!(ask(&store, key, quota, one()).await.0.source, Source::DenyCache);
            let undo = if turn % 2 == 0 { Op::Reset } else { Op::Refund { cost: 1, receipt } };
            ask(&store, key, quota, undo).await;
            let (verdict, _) = ask(&store, key, quota, one()).await;
            assert_eq!((verdict.allowed, verdict.source), (true, Source::Store), "{turn}: {quota:?} after {undo:?}");
        }
    }
}

#[tokio::test]
async fn what_comes_back_elsewhere_is_seen_once_the_entry_is_too_old() {
    let server = RedisServer::start();
    let (here, there) = (RedisStore::new(&settings(&server)), RedisStore::new(&settings(&server)));
    let (here, there) = (here.expect("the URL is valid"), there.expect("the URL is valid"));
    for (key, quota) in (1u128..).zip(&refusing()) {
        while ask(&here, key, quota, one()).await.0.allowed {}
        ask(&there, key, quota, Op::Reset).await;
        let deadline = Instant::now() + PATIENCE;
        while !ask(&here, key, quota, one()).await.0.allowed {
            assert!(Instant::now() < deadline, "the server is not asked again about {quota:?}");
            sleep(Duration::from_millis(1)).await;
        }
    }
}

#[tokio::test]
async fn many_tasks_that_take_and_give_back_are_admitted_all_that_there_is() {
    let server = RedisServer::start();
    let settings = Settings { deny_cache_max_age: DAY, ..settings(&server) };
    let store = RedisStore::new(&settings).expect("the URL is valid");
    for (key, quota) in (1u128..).zip(refusing()) {
        // A refunded unit can be taken by the same task or by another one. An old refusal in the cache must not prevent
        // that.
        let tasks: Vec<_> = (0..6)
            .map(|_| {
                let (store, quota) = (store.clone(), quota.clone());
                tokio::spawn(async move {
                    let mut taken = 0;
                    while taken < 20 {
                        let (verdict, decision) = ask(&store, key, &quota, one()).await;
                        if verdict.allowed {
                            taken += 1;
                            tokio::task::yield_now().await;
                            ask(&store, key, &quota, Op::Refund { cost: 1, receipt: decision.receipt }).await;
                        } else {
                            tokio::task::yield_now().await;
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            let ended = tokio::time::timeout(PATIENCE * 6, task).await;
            ended.unwrap_or_else(|_| panic!("a task is refused for too long by {quota:?}")).expect("no task panics");
        }
    }
}

#[tokio::test]
async fn a_cache_without_places_keeps_nothing() {
    let server = RedisServer::start();
    let store = RedisStore::new(&Settings { deny_cache_entries: 0, ..settings(&server) }).expect("the URL is valid");
    for (key, quota) in (1u128..).zip(&refusing()) {
        for _ in 0..20 {
            assert_eq!(ask(&store, key, quota, one()).await.0.source, Source::Store);
        }
    }
    assert_eq!(store.denied_by_cache(), 0);
}

/// A region whose shared bucket refuses asks its guaranteed share: it takes from the share, and settles the bucket. A flood of
/// such requests costs two calls, and a request that passes does not end the refusals of the bucket.
#[tokio::test]
async fn a_flood_on_a_share_asks_the_server_twice() {
    let server = RedisServer::start();
    let mut client = server.connect();
    let settings = Settings { deny_cache_max_age: DAY, ..settings(&server) };
    let store = RedisStore::new(&settings).expect("the URL is valid");
    let bucket = Quota::token_bucket(30, DAY).build().expect("the quota is valid");
    let bucket = bucket.across(AcrossRegions::Shared(Regions::new(3).expect("2 to 8"))).expect("it can be shared");
    let share = bucket.guaranteed(1).expect("a bucket has a share");
    assert_eq!(share.capacity(), 8);
    let (mut by_bucket, mut by_share, mut calls) = (0, 0, 0);
    for request in 0..150 {
        let before = scripts_run(&mut client);
        let (verdict, _) = ask(&store, 7, &bucket, one()).await;
        if verdict.allowed {
            by_bucket += 1;
            continue;
        }
        let settle = Op::settle(0, 1, Receipt::new(Time::EPOCH, 0));
        let both = [(&share, one()), (&bucket, settle)].map(|(quota, op)| Hit::new(7, quota, op, Binding::Enforce));
        let mut decisions = [Decision::default(); 2];
        let verdict =
            store.decide(Timing::BY_STORE.within(PATIENCE), &both, &mut decisions).await.expect("Redis answers");
        by_share += u32::from(verdict.allowed);
        let asked = scripts_run(&mut client) - before;
        calls += asked;
        // The first refusal of the bucket is by Redis, and all others by the cache, also after a settlement.
        let expected = if request == 30 { 2 } else { u64::from(request <= 38) };
        assert_eq!(asked, expected, "request {request}");
    }
    assert_eq!((by_bucket, by_share, calls), (30, 8, 10));
    // A settlement on a limit that does not refuse leaves nothing in the cache that is too old.
    let full = Quota::fixed_window(1, DAY * 365).build().expect("the quota is valid");
    let other = Quota::fixed_window(100, DAY * 365).build().expect("the quota is valid");
    let two = [(8, &full), (9, &other)].map(|(key, quota)| Hit::new(key, quota, one(), Binding::Enforce));
    let left = async |hits: &[Hit<'_>]| {
        let mut decisions = [Decision::default(); 2];
        store.decide(Timing::BY_STORE.within(PATIENCE), hits, &mut decisions).await.expect("Redis answers");
        decisions[1].remaining
    };
    assert_eq!([left(&two).await, left(&two).await, left(&two).await], [99, 99, 99]);
    let settle = [Hit::new(9, &other, Op::settle(0, 5, Receipt::new(Time::EPOCH, 0)), Binding::Enforce)];
    store.decide(Timing::BY_STORE.within(PATIENCE), &settle, &mut [Decision::default()]).await.expect("Redis answers");
    let shown = {
        let mut decisions = [Decision::default(); 2];
        store.decide(Timing::BY_STORE.within(PATIENCE), &two, &mut decisions).await.expect("Redis answers");
        decisions[1]
    };
    assert!(shown.reason == Reason::NotAsked || shown.remaining == 94, "{shown:?}");
}
