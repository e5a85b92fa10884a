//! Rebuilds with spillgate the rate limiters that people build on Redis by hand, and shows that the known faults of the
//! originals are gone. The tests run on a real Redis, and most of them also in memory.

mod bucket_and_key;
mod fleet;
mod is_allowed;
mod outbound;
mod permits;
mod reservations;

use std::time::Duration;

use crate::support::server::Server;
use redis::FromRedisValue;
use spillgate::{
    Binding, Decision, Hit, MemoryOptions, MemoryStore, Op, Quota, QuotaBuilder, Source, Store, Time, Verdict,
};
use spillgate_core::Timing;
use spillgate_redis::{RedisStore, Settings};
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);
/// A timeout that is longer than any test here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns settings with timeouts so long that even a busy machine does not reach them.
fn settings(server: &Server) -> Settings {
    Settings { timeout: PATIENCE, connect_timeout: PATIENCE, ..Settings::new(server.url()) }
}

fn redis(server: &Server) -> RedisStore {
    RedisStore::new(&settings(server)).expect("the URL is valid")
}

fn memory() -> MemoryStore {
    MemoryStore::new(MemoryOptions::default())
}

fn build(builder: QuotaBuilder) -> Quota {
    builder.build().expect("the quota is valid")
}

/// Returns a time in the year 2026: a fixed whole second plus this many milliseconds.
fn at(ms: u64) -> Option<Time> {
    Some(Time::from_nanos(1_790_000_000_000_000_000 + ms * 1_000_000))
}

/// Sends a request with one take. If `now` is `None`, the clock of Redis sets the time.
async fn take(store: &impl Store, now: Option<Time>, key: u128, quota: &Quota, cost: u64) -> (Verdict, Decision) {
    let hits = [Hit::new(key, quota, Op::take(cost), Binding::Enforce)];
    let mut decisions = [Decision::default()];
    let verdict =
        store.decide(now.map_or(Timing::BY_STORE, Timing::at), &hits, &mut decisions).await.expect("the store answers");
    assert_eq!(verdict.allowed, decisions[0].allowed);
    (verdict, decisions[0])
}

fn reply_to<T: FromRedisValue>(server: &Server, words: &[&str]) -> T {
    redis::from_redis_value(server.run(words)).expect("the reply has the expected type")
}

fn keys(server: &Server) -> Vec<String> {
    reply_to(server, &["KEYS", "*"])
}

/// Polls until Redis has no keys.
async fn until_empty(server: &Server) {
    let deadline = Instant::now() + PATIENCE;
    while !keys(server).is_empty() {
        assert!(Instant::now() < deadline, "these keys do not expire: {:?}", keys(server));
        sleep(Duration::from_millis(1)).await;
    }
}
