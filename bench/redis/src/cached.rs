//! A hot key that is refused, which the deny cache answers, beside one that is allowed, which the server answers.

use std::fmt::Write;
use std::time::{Duration, Instant};

use clap::Args;
use kit::{Counted, Redis, met, spread};
use spillgate_core::{Anchor, Binding, Decision, Hit, Op, Quota, Store as _};
use spillgate_redis::{RedisStore, Settings};

use crate::Cores;

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    cores: Cores,
    /// Measured rounds
    #[arg(long, default_value_t = 7)]
    repetitions: usize,
    /// Allowed requests of each round, one after the other
    #[arg(long, default_value_t = 20_000)]
    allowed: u32,
    /// Refused requests of each round
    #[arg(long, default_value_t = 400_000)]
    refused: u32,
}

/// So many times faster than an allowed request a refused one has to be.
const RATIO_MIN: f64 = 20.0;
/// Longer than any run: usually the cache asks again after a second, which belongs to no request.
const MAX_AGE: Duration = Duration::from_secs(3600);

/// A run of one task.
struct Run {
    per_second: f64,
    counted: Counted,
}

pub(crate) fn run(options: &Options) -> Result<String, String> {
    options.cores.pin_client()?;
    let mut redis = Redis::start(options.cores.server_core, kit::free_address()?, &[])?;
    let day = |limit| Quota::fixed_window(limit, Duration::from_secs(86_400)).anchor(Anchor::FirstHit).build();
    let (wide, narrow) = (day(1 << 40).map_err(|e| e.to_string())?, day(1).map_err(|e| e.to_string())?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
    let settings =
        Settings { timeout: Duration::from_secs(5), deny_cache_max_age: MAX_AGE, ..Settings::new(redis.url()) };
    let store = RedisStore::new(&settings).map_err(|e| e.to_string())?;
    let (mut allowed, mut refused) = (Vec::new(), Vec::new());
    for turn in 1..=options.repetitions {
        allowed.push(runtime.block_on(ask(&store, &mut redis, &wide, options.allowed, true))?);
        // What fills the window, and the first refusal, which is kept from then on.
        runtime.block_on(async {
            let hits = [Hit::new(7, &narrow, Op::take(1), Binding::Enforce)];
            for _ in 0..2 {
                store.decide(None, &hits, &mut [Decision::default()]).await.map_err(|e| e.to_string())?;
            }
            Ok::<(), String>(())
        })?;
        refused.push(runtime.block_on(ask(&store, &mut redis, &narrow, options.refused, false))?);
        eprintln!("{turn}: {:.0} / {:.0}", allowed[turn - 1].per_second, refused[turn - 1].per_second);
    }
    let mut out = format!(
        "One task, one request after the other; {} rounds of {} allowed and {} refused requests.\n\n\
         | hot key | decisions/s, median (min to max) | Redis commands, all rounds | bytes in a decision | bytes out |\n\
         |---|---|---|---|---|\n",
        options.repetitions, options.allowed, options.refused
    );
    for (name, runs, asked) in [("allowed", &allowed, options.allowed), ("refused", &refused, options.refused)] {
        let sum = |figure: fn(&Counted) -> u64| runs.iter().map(|run| figure(&run.counted)).sum::<u64>();
        let each = |figure| sum(figure) as f64 / (f64::from(asked) * runs.len() as f64);
        let (speed, scripts) = (spread(runs.iter().map(|run| run.per_second)), sum(|counted| counted.scripts));
        let _ = writeln!(
            out,
            "| {name} | {speed} | {scripts} | {:.1} | {:.1} |",
            each(|counted| counted.bytes_in),
            each(|counted| counted.bytes_out)
        );
    }
    let ratio = spread(refused.iter().zip(&allowed).map(|(refused, allowed)| refused.per_second / allowed.per_second));
    let _ =
        writeln!(out, "| **ratio**, at least {RATIO_MIN}: {} | **{ratio:.1}** | | | |", met(ratio.median >= RATIO_MIN));
    let commands: u64 = refused.iter().map(|run| run.counted.commands).sum();
    match commands {
        0 => Ok(out),
        commands => Err(format!("{out}\nRedis was sent {commands} commands while the key was refused")),
    }
}

/// One request after the other, all of which end as `allowed` says.
async fn ask(store: &RedisStore, redis: &mut Redis, quota: &Quota, times: u32, allowed: bool) -> Result<Run, String> {
    redis.forget()?;
    let start = Instant::now();
    for _ in 0..times {
        let hits = [Hit::new(7, quota, Op::take(1), Binding::Enforce)];
        let verdict = store.decide(None, &hits, &mut [Decision::default()]).await.map_err(|e| e.to_string())?;
        if verdict.allowed != allowed {
            return Err(format!("{verdict:?} where allowed should be {allowed}"));
        }
    }
    let per_second = f64::from(times) / start.elapsed().as_secs_f64();
    Ok(Run { per_second, counted: redis.counted()? })
}
