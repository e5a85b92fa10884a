//! Compares a hot key that is refused with a hot key that is allowed.
//!
//! The deny cache (the refusals that the library remembers) answers requests on the refused key. Redis answers requests
//! on the allowed key. There are two comparisons. In the first, each request has one limit. In the second, each request
//! also has a limit that all requests share. In the second comparison, another request takes from the shared limit
//! before each refused request, so the state of this limit always changes.

use std::fmt::Write;
use std::time::{Duration, Instant};

use clap::Args;
use kit::{Counted, Redis, Spread, met, spread};
use spillgate_core::{Anchor, Binding, Decision, Hit, Op, Quota, Store as _, Timing};
use spillgate_redis::{RedisStore, Settings};

use crate::Cores;

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    cores: Cores,
    /// Number of rounds
    #[arg(long, default_value_t = 7)]
    repetitions: usize,
    /// Allowed requests in each round. They are sent one after the other
    #[arg(long, default_value_t = 20_000)]
    allowed: u32,
    /// Refused requests in each round
    #[arg(long, default_value_t = 400_000)]
    refused: u32,
    /// Refused requests in each round that also have the shared limit
    #[arg(long, default_value_t = 20_000)]
    busy: u32,
}

/// A refused request has to be at least this many times as fast as an allowed request.
const RATIO_MIN: f64 = 20.0;
/// How long the deny cache keeps a refusal. This time is longer than any run. By default, the cache asks Redis again
/// after a second, and the program would count this call.
const MAX_AGE: Duration = Duration::from_secs(3600);

/// One run: a task that sends one request after the other.
struct Run {
    per_second: f64,
    /// The number of scripts that Redis ran for these requests.
    scripts: u64,
    /// The bytes that Redis received and sent. `None` if other requests were sent between these requests.
    bytes: Option<[u64; 2]>,
}

/// The limits of the requests. `wide` is never used up, `narrow` is used up by one request, and all requests share
/// `all`.
struct Limits {
    wide: Quota,
    narrow: Quota,
    all: Quota,
}

/// All rounds of one kind of request.
#[derive(Default)]
struct Runs {
    name: &'static str,
    requests: u32,
    runs: Vec<Run>,
}

pub(crate) fn run(options: &Options) -> Result<String, String> {
    options.cores.pin_client()?;
    let mut redis = Redis::start(options.cores.server_core, kit::free_address()?, &[])?;
    let day = |limit| Quota::fixed_window(limit, Duration::from_secs(86_400)).anchor(Anchor::FirstHit).build();
    let quota = |limit| day(limit).map_err(|e| e.to_string());
    let limits = Limits { wide: quota(1 << 40)?, narrow: quota(1)?, all: quota(1 << 41)? };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
    let settings =
        Settings { timeout: Duration::from_secs(5), deny_cache_max_age: MAX_AGE, ..Settings::new(redis.url()) };
    let store = RedisStore::new(&settings).map_err(|e| e.to_string())?;
    let kinds = [
        ("allowed", options.allowed),
        ("refused", options.refused),
        ("allowed, two limits", options.allowed),
        ("refused, two limits", options.busy),
    ];
    let mut all = kinds.map(|(name, requests)| Runs { name, requests, runs: Vec::new() });
    for turn in 1..=options.repetitions {
        let [allowed, refused, two, busy] = &mut all;
        let Limits { wide, narrow, all: shared } = &limits;
        let (wide, narrow, shared) = (hit(8, wide), hit(7, narrow), hit(99, shared));
        allowed.runs.push(runtime.block_on(ask(&store, &mut redis, &[wide], allowed.requests, true))?);
        two.runs.push(runtime.block_on(ask(&store, &mut redis, &[wide, shared], two.requests, true))?);
        for hits in [&[narrow][..], &[narrow, shared][..]] {
            // The first request takes the only unit. The second request is refused, and the deny cache keeps this
            // refusal.
            runtime.block_on(async {
                decide(&store, hits).await?;
                decide(&store, hits).await
            })?;
        }
        refused.runs.push(runtime.block_on(ask(&store, &mut redis, &[narrow], refused.requests, false))?);
        let beside = [[narrow, shared], [wide, shared]];
        busy.runs.push(runtime.block_on(ask_busy(&store, &mut redis, beside, busy.requests))?);
        let speeds = [&allowed, &refused, &two, &busy].map(|runs| format!("{:.0}", runs.runs[turn - 1].per_second));
        eprintln!("round {turn}, decisions/s: {}", speeds.join(" / "));
    }
    report(options, &all)
}

fn report(options: &Options, all: &[Runs; 4]) -> Result<String, String> {
    let mut out = format!(
        "### A hot key that is refused by the deny cache, against a hot key that is allowed\n\n\
         One task sends one request after the other, in {} rounds. The refused key has a limit of its own. In the rows \
         with two limits, the request also has a limit that \
         all requests share. Another request takes from the shared limit before each refused request.\n\n\
         | hot key | requests in a round | decisions/s, median (min to max) | script calls of Redis in all rounds \
         | bytes to Redis per \
         decision | bytes from Redis per decision |\n|---|---|---|---|---|---|\n",
        options.repetitions
    );
    for Runs { name, requests, runs } in all {
        let (speed, scripts) = (spread(runs.iter().map(|run| run.per_second)), scripts(runs));
        let each = |i: usize| {
            let sum: Option<u64> = runs.iter().map(|run| run.bytes.map(|bytes| bytes[i])).sum();
            sum.map_or_else(String::new, |sum| {
                format!("{:.1}", sum as f64 / (f64::from(*requests) * runs.len() as f64))
            })
        };
        let _ = writeln!(out, "| {name} | {requests} | {speed} | {scripts} | {} | {} |", each(0), each(1));
    }
    let [allowed, refused, two, busy] = all;
    let mut missed = Vec::new();
    for (refused, allowed) in [(refused, allowed), (busy, two)] {
        let ratio = ratio(refused, allowed);
        let _ = writeln!(
            out,
            "| **ratio** of \"{}\" to \"{}\", at least {RATIO_MIN}: {} | | **{ratio:.1}** | | | |",
            refused.name,
            allowed.name,
            met(ratio.median >= RATIO_MIN)
        );
        if ratio.median < RATIO_MIN {
            missed.push(format!("\"{}\" is less than {RATIO_MIN} times as fast as \"{}\"", refused.name, allowed.name));
        }
        if scripts(&refused.runs) > 0 {
            missed.push(format!("Redis was called for \"{}\"", refused.name));
        }
    }
    if missed.is_empty() { Ok(out) } else { Err(format!("{out}\n{}", missed.join("; "))) }
}

fn scripts(runs: &[Run]) -> u64 {
    runs.iter().map(|run| run.scripts).sum()
}

fn ratio(refused: &Runs, allowed: &Runs) -> Spread {
    let pairs = refused.runs.iter().zip(&allowed.runs);
    spread(pairs.map(|(refused, allowed)| refused.per_second / allowed.per_second))
}

fn hit(key: u128, quota: &Quota) -> Hit<'_> {
    Hit::new(key, quota, Op::take(1), Binding::Enforce)
}

async fn decide(store: &RedisStore, hits: &[Hit<'_>]) -> Result<bool, String> {
    let mut decisions = [Decision::default(); 2];
    let verdict =
        store.decide(Timing::BY_STORE, hits, &mut decisions[..hits.len()]).await.map_err(|e| e.to_string())?;
    Ok(verdict.allowed)
}

fn expect(allowed: bool, expected: bool) -> Result<(), String> {
    if allowed == expected {
        Ok(())
    } else {
        Err(format!("a request was answered with allowed = {allowed}, but {expected} was expected"))
    }
}

/// Sends one request after the other. All of them must be allowed, or all must be refused.
async fn ask(
    store: &RedisStore,
    redis: &mut Redis,
    hits: &[Hit<'_>],
    times: u32,
    allowed: bool,
) -> Result<Run, String> {
    redis.reset_counts()?;
    let start = Instant::now();
    for _ in 0..times {
        expect(decide(store, hits).await?, allowed)?;
    }
    let per_second = f64::from(times) / start.elapsed().as_secs_f64();
    let Counted { scripts, bytes_in, bytes_out, .. } = redis.counted()?;
    Ok(Run { per_second, scripts, bytes: Some([bytes_in, bytes_out]) })
}

/// Measures the time of refused requests. Before each of them, an allowed request takes from the limit that both
/// requests share. The time of the allowed requests is not counted.
async fn ask_busy(
    store: &RedisStore,
    redis: &mut Redis,
    [refused, allowed]: [[Hit<'_>; 2]; 2],
    times: u32,
) -> Result<Run, String> {
    redis.reset_counts()?;
    let mut passed = Duration::ZERO;
    for _ in 0..times {
        expect(decide(store, &allowed).await?, true)?;
        let start = Instant::now();
        expect(decide(store, &refused).await?, false)?;
        passed += start.elapsed();
    }
    let scripts = redis.counted()?.scripts.saturating_sub(u64::from(times));
    Ok(Run { per_second: f64::from(times) / passed.as_secs_f64(), scripts, bytes: None })
}
