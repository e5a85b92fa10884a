//! Tests the effects of a store's settings on a real Redis.

mod clusters;
mod deny_cache;
mod new_keys;
mod transaction;

use crate::support::client::RedisServer;
use crate::support::common::with_long_timeouts;
use spillgate_core::{Binding, Decision, Hit, Op, Quota, Store, Timing, Verdict};
use spillgate_redis::{RedisStore, Settings};

/// Returns settings with timeouts so long that even a busy machine does not reach them.
fn settings(server: &RedisServer) -> Settings {
    with_long_timeouts(&format!("redis://127.0.0.1:{}/", server.port()))
}

/// Sends a request with one hit. The clock of Redis sets the time of the decision.
async fn ask(store: &RedisStore, key: u128, quota: &Quota, op: Op) -> (Verdict, Decision) {
    let mut decisions = [Decision::default()];
    let hits = [Hit::new(key, quota, op, Binding::Enforce)];
    let verdict = store.decide(Timing::BY_STORE, &hits, &mut decisions).await.expect("Redis answers");
    (verdict, decisions[0])
}
