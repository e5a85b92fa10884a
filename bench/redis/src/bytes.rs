//! Measures how many bytes a key needs in Redis, in two ways: by the growth of the server's memory, and by the command
//! MEMORY USAGE for each key.

use std::fmt::Write;
use std::time::Duration;

use clap::Args;
use kit::Redis;
use spillgate_core::{Algorithm, Anchor, Binding, Decision, Hit, Op, Quota, Store as _, Timing};
use spillgate_redis::{RedisKey, RedisStore, Settings};
use tokio::runtime::Runtime;

use crate::Cores;

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    cores: Cores,
    /// Number of keys of each kind
    #[arg(long, default_value_t = 10_000)]
    keys: u32,
}

const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// The number of requests in flight.
const TASKS: u32 = 64;

/// The maximum memory in bytes that Redis may use for a key whose state is not a log. Only a sliding window log has a
/// log as its state.
const SMALL_MAX: u64 = 180;
/// The length in bytes of each key's name in Redis.
const NAME: usize = 29;
/// The greatest length in bytes of a state that is not a log.
const STATE_MAX: u64 = 20;
/// The maximum memory in bytes that Redis may use for a key whose state is a log with one entry.
const LOG_FIRST_MAX: u64 = 600;
/// The additional bytes that Redis may use for each further entry of a log.
const LOG_FURTHER_MAX: u64 = 12;

/// One kind of key: a quota, the number of hits (takes of one unit) on each key, and the bound in bytes for each key.
struct Kind {
    name: String,
    quota: Quota,
    hits: u32,
    most: u64,
}

impl Kind {
    fn is_log(&self) -> bool {
        self.quota.algorithm() == Algorithm::SlidingWindowLog
    }
}

fn kinds() -> Result<Vec<Kind>, String> {
    let small = [
        ("token bucket", Quota::token_bucket(1000, YEAR)),
        ("queue", Quota::leaky_bucket(1000, YEAR)),
        ("fixed window", Quota::fixed_window(1000, YEAR)),
        ("fixed window from the first hit", Quota::fixed_window(1000, YEAR).anchor(Anchor::FirstHit)),
        ("sliding counter", Quota::sliding_window_counter(1000, YEAR)),
    ];
    let mut kinds = Vec::new();
    for (name, builder) in small {
        let quota = builder.build().map_err(|e| e.to_string())?;
        kinds.push(Kind { name: name.to_owned(), quota, hits: 1, most: SMALL_MAX });
    }
    for hits in [1, 2, 10, 100] {
        let quota = Quota::sliding_window_log(1000, YEAR).build().map_err(|e| e.to_string())?;
        let most = LOG_FIRST_MAX + LOG_FURTHER_MAX * u64::from(hits - 1);
        kinds.push(Kind { name: format!("log of {hits}"), quota, hits, most });
    }
    Ok(kinds)
}

pub(crate) fn run(options: &Options) -> Result<String, String> {
    let mut redis = Redis::start(options.cores.server_core, kit::free_address()?, &[])?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
    let settings = Settings { timeout: Duration::from_secs(60), ..Settings::new(redis.url()) };
    let store = RedisStore::new(&settings).map_err(|e| e.to_string())?;
    runtime.block_on(store.wait_connected()).map_err(|e| e.to_string())?;
    let mut out = format!(
        "### Bytes per key in Redis\n\nThere are {} keys of each kind, and each key has a time of expiry. The \
        name of a key must have \
         {NAME} bytes. A state that is \
         not a log may have at most {STATE_MAX} bytes.\n\n| kind of key | name, bytes | longest state | largest \
         MEMORY USAGE, bytes \
         | growth of used_memory per key, bytes | bound, bytes |\n\
         |---|---|---|---|---|---|\n",
        options.keys
    );
    let (kinds, mut above) = (kinds()?, Vec::new());
    for kind in kinds {
        let figures = measure(&mut redis, &runtime, &store, &kind, options.keys)?;
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {:.1} | {} |",
            kind.name,
            figures.name,
            figures.state(&kind),
            figures.usage,
            figures.growth,
            kind.most
        );
        if figures.growth > kind.most as f64
            || figures.usage > kind.most
            || figures.name != NAME
            || (!kind.is_log() && figures.length > STATE_MAX)
        {
            above.push(kind.name);
        }
    }
    if above.is_empty() { Ok(out) } else { Err(format!("{out}\nabove the bound: {}", above.join(", "))) }
}

struct Figures {
    name: usize,
    /// The length of the longest state. For a log, this is the number of entries. For any other state, it is the number
    /// of bytes.
    length: u64,
    usage: u64,
    growth: f64,
}

impl Figures {
    fn state(&self, kind: &Kind) -> String {
        let unit = if kind.is_log() { "entries" } else { "bytes" };
        format!("{} {unit}", self.length)
    }
}

fn measure(
    redis: &mut Redis,
    runtime: &Runtime,
    store: &RedisStore,
    kind: &Kind,
    keys: u32,
) -> Result<Figures, String> {
    // Before the measurement, the keys are written and deleted once. So Redis already has the memory for connections
    // and scripts, and this memory is not counted as the memory of keys.
    runtime.block_on(fill(store, kind, keys))?;
    redis.run::<()>(&["FLUSHALL", "SYNC"])?;
    let before = redis.info::<u64>("used_memory")?;
    runtime.block_on(fill(store, kind, keys))?;
    let growth = redis.info::<u64>("used_memory")?.saturating_sub(before) as f64 / f64::from(keys);
    let (mut usage, mut length, mut name_length) = (0, 0, 0);
    for number in 0..keys {
        let name = RedisKey::of(&hit(&kind.quota, number)).to_string();
        name_length = name_length.max(name.len());
        usage = usage.max(redis.run::<u64>(&["MEMORY", "USAGE", &name, "SAMPLES", "0"])?);
        let count = if kind.is_log() { "LLEN" } else { "STRLEN" };
        length = length.max(redis.run::<u64>(&[count, &name])?);
    }
    Ok(Figures { name: name_length, length, usage, growth })
}

/// Sends the hits of every key. Many tasks do this at the same time.
async fn fill(store: &RedisStore, kind: &Kind, keys: u32) -> Result<(), String> {
    let task = |first: u32| {
        let (store, quota, hits) = (store.clone(), kind.quota.clone(), kind.hits);
        tokio::spawn(async move {
            for number in (first..keys).step_by(TASKS as usize) {
                for _ in 0..hits {
                    let hits = [hit(&quota, number)];
                    let verdict = store.decide(Timing::BY_STORE, &hits, &mut [Decision::default()]).await;
                    if !verdict.map_err(|e| e.to_string())?.allowed {
                        return Err(format!("{} refused a hit", quota.algorithm().as_str()));
                    }
                }
            }
            Ok(())
        })
    };
    let filling: Vec<_> = (0..TASKS).map(task).collect();
    for filling in filling {
        filling.await.map_err(|e| e.to_string())??;
    }
    Ok(())
}

/// Returns a hit that takes one unit of the key with this number.
fn hit(quota: &Quota, number: u32) -> Hit<'_> {
    // The number is spread over all bits of the key, because real keys are hashes.
    let key = u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    Hit::new(key, quota, Op::take(1), Binding::Enforce)
}
