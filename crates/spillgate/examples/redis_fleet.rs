//! Several programs share one limit in Redis.
//!
//! Start Redis, then run this program twice at the same time: `cargo run -p spillgate --features tokio --example
//! redis_fleet -- redis://127.0.0.1/`. Both programs together are allowed ten jobs a minute.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use spillgate::{FallbackStore, KeyHasher, Limiter, MemoryOptions, MemoryStore, Quota, SystemClock};
use spillgate_redis::{RedisStore, Settings};

/// Ten jobs a minute, for all programs together.
const JOBS: Quota = Quota::per_minute(10).constant();
/// At most one clean-up at a time, in all programs together.
const CLEAN_UP: Quota = Quota::concurrency(1).constant();

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1/".into());
    // The default timeout, 10 ms, suits requests of users. A job can wait longer for the answer of Redis.
    let redis = RedisStore::new(&Settings { timeout: Duration::from_secs(5), ..Settings::new(url) })?;
    // While Redis fails, each of the two programs admits half of a limit.
    let programs = NonZeroU32::new(2).ok_or("at least one program")?;
    let store = FallbackStore::new(redis, MemoryStore::new(MemoryOptions::default()), programs);
    // All programs need the same secret. Read yours from a file that only they can read.
    let secret = KeyHasher::with_secret(*b"sixteen bytes!!!");
    let limiter = Arc::new(Limiter::with_keys(store, SystemClock::start(), secret));

    let mut done = 0;
    while limiter.take(&JOBS, "jobs", 1).await?.allowed {
        done += 1;
    }
    println!("this program did {done} jobs");

    // The permit is renewed while this program holds it. If the program crashes, the permit is free after 30 s.
    let (_, permit) = limiter.hold(&CLEAN_UP, "clean-up").await?;
    match permit {
        Some(permit) => {
            println!("this program cleans up");
            permit.release().await?;
        }
        None => println!("another program cleans up"),
    }
    Ok(())
}
