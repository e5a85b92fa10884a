//! What a store's settings change, on a real Redis.

mod deny_cache;
mod native;
mod plain;
#[allow(dead_code, reason = "the scripts' tests need more of it")]
#[path = "../scripts/support.rs"]
mod support;

use spillgate_core::{Binding, Decision, Hit, Op, Quota, Store, Verdict};
use spillgate_redis::{RedisStore, Settings};
use support::RedisServer;

/// With time enough for a machine that is busy.
fn settings(server: &RedisServer) -> Settings {
    let patience = std::time::Duration::from_secs(30);
    let url = format!("redis://127.0.0.1:{}/", server.port());
    Settings { timeout: patience, connect_timeout: patience, ..Settings::new(url) }
}

/// One hit, decided by the server's clock.
async fn ask(store: &RedisStore, key: u128, quota: &Quota, op: Op) -> (Verdict, Decision) {
    let mut decisions = [Decision::default()];
    let hits = [Hit::new(key, quota, op, Binding::Enforce)];
    let verdict = store.decide(None, &hits, &mut decisions).await.expect("Redis answers");
    (verdict, decisions[0])
}
