//! The store as a program uses it: many tasks, several connections, one state.

use std::time::Duration;

use spillgate_core::{Anchor, Binding, Decision, Hit, Op, Quota, Store, StoreError};
use spillgate_redis::RedisStore;

use crate::support::RedisServer;

const TASKS: usize = 64;
const TAKES: usize = 40;

/// A thousand units, that come back long after the test.
fn quotas() -> Vec<Quota> {
    let day = Duration::from_secs(86_400);
    let builders = [
        Quota::token_bucket(1, day).burst(1000),
        Quota::leaky_bucket(1, day).queue(999),
        Quota::fixed_window(1000, day * 365),
        Quota::fixed_window(1000, day).anchor(Anchor::FirstHit),
        Quota::sliding_window_log(1000, day),
        Quota::sliding_window_counter(1000, day * 365),
        Quota::sliding_window_counter(1000, day * 360).segments(10),
        Quota::concurrency(1000).lease(day),
    ];
    builders.map(|builder| builder.build().expect("valid")).into()
}

async fn admitted(store: &RedisStore, quota: &Quota, key: u128) -> usize {
    let mut admitted = 0;
    for _ in 0..TAKES {
        let hits = [Hit::new(key, quota, Op::Take { cost: 1, max_wait_ns: u64::MAX }, Binding::Enforce)];
        let verdict = store.decide(None, &hits, &mut [Decision::default()]).await.expect("Redis answers");
        admitted += usize::from(verdict.allowed);
    }
    admitted
}

#[tokio::test]
async fn many_tasks_on_one_key_are_admitted_exactly_the_limit() {
    let server = RedisServer::start();
    let url = format!("redis://127.0.0.1:{}/", server.port());
    let stores = [RedisStore::connect(&url).await.expect("up"), RedisStore::connect(&url).await.expect("up")];
    for (key, quota) in (1u128..).zip(quotas()) {
        let tasks: Vec<_> = (0..TASKS)
            .map(|i| {
                let (store, quota) = (stores[i % 2].clone(), quota.clone());
                tokio::spawn(async move { admitted(&store, &quota, key).await })
            })
            .collect();
        let mut sum = 0;
        for task in tasks {
            sum += task.await.expect("no task panics");
        }
        assert_eq!(sum, 1000, "of {} takes by {quota:?}", TASKS * TAKES);
    }
}

#[tokio::test]
async fn a_server_that_lost_its_scripts_gets_them_again() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&format!("redis://127.0.0.1:{}/", server.port())).await.expect("up");
    let quota = Quota::per_day(10).build().expect("valid");
    let hits = [Hit::new(1, &quota, Op::take(1), Binding::Enforce)];
    for left in (0..10).rev() {
        server.connect().ask_one(redis::cmd("SCRIPT").arg("FLUSH").clone());
        let mut decisions = [Decision::default()];
        let verdict = store.decide(None, &hits, &mut decisions).await.expect("Redis answers");
        assert_eq!((verdict.allowed, decisions[0].remaining), (true, left));
    }
}

#[tokio::test]
async fn a_key_of_another_type_is_an_error() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&format!("redis://127.0.0.1:{}/", server.port())).await.expect("up");
    let quota = Quota::per_day(10).build().expect("valid");
    let hits = [Hit::new(1, &quota, Op::take(1), Binding::Enforce)];
    let name = spillgate_redis::Name::of(&hits[0]);
    server.connect().ask_one(redis::cmd("SADD").arg(name.as_bytes()).arg("foreign").clone());
    let answer = store.decide(None, &hits, &mut [Decision::default()]).await;
    assert!(matches!(&answer, Err(StoreError::Unavailable(why)) if why.contains("WRONGTYPE")), "{answer:?}");
}
