//! What a fault costs those who ask meanwhile, and how soon the store decides again after it.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use kit::{quantile, spread};
use rustix::process::{Pid, Signal, kill_process};
use spillgate_core::{Anchor, Binding, Decision, Hit, Op, Quota, Store as _};
use spillgate_redis::{RedisStore, Settings};

use crate::Cores;
use crate::server::Redis;

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    cores: Cores,
    /// Rounds of each fault
    #[arg(long, default_value_t = 5)]
    repetitions: usize,
    /// Tasks that ask all the time, with a pause of a millisecond after each answer
    #[arg(long, default_value_t = 64)]
    tasks: u64,
    /// Seconds that a killed server is away
    #[arg(long, default_value_t = 2.0)]
    killed: f64,
    /// Seconds that a frozen server is silent
    #[arg(long, default_value_t = 5.0)]
    frozen: f64,
}

/// What a request may take beyond its deadline.
const GRACE_MS: f64 = 10.0;
/// The time within which the store decides again once its server is back.
const RECOVERY_MS: f64 = 1000.0;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    Killed,
    Frozen,
}

/// A request: when it was asked, how long it took, and whether the store decided.
#[derive(Clone, Copy)]
struct Asked {
    at: Instant,
    took: Duration,
    decided: bool,
}

/// What one fault came to.
struct Round {
    /// Requests that were asked while the server was away.
    asked: usize,
    p99_ms: f64,
    longest_ms: f64,
    /// From the server's return to the end of the first request that it decided.
    recovery_ms: f64,
}

pub(crate) fn run(options: &Options) -> Result<String, String> {
    options.cores.pin_client()?;
    let deadline_ms = Settings::new("").timeout.as_secs_f64() * 1000.0;
    let mut out = format!(
        "{} tasks, the store's usual settings (a deadline of {deadline_ms:.0} ms), {} rounds; median (min to max).\n\n\
         | fault | requests in it | p99 ms (at most {:.0}) | longest ms | decides again after ms (at most {RECOVERY_MS:.0}) |\n\
         |---|---|---|---|---|\n",
        options.tasks,
        options.repetitions,
        deadline_ms + GRACE_MS
    );
    let faults = [
        (Fault::Killed, format!("killed, back after {} s", options.killed)),
        (Fault::Frozen, format!("frozen for {} s", options.frozen)),
    ];
    for (fault, name) in faults {
        let mut rounds = Vec::new();
        for turn in 1..=options.repetitions {
            let round = round(options, fault)?;
            eprintln!("{name} {turn}: p99 {:.2} ms, back after {:.0} ms", round.p99_ms, round.recovery_ms);
            rounds.push(round);
        }
        let of = |figure: fn(&Round) -> f64| spread(rounds.iter().map(figure));
        let _ = writeln!(
            out,
            "| {name} | {} | {:.2} | {:.1} | {:.0} |",
            of(|round| round.asked as f64),
            of(|round| round.p99_ms),
            of(|round| round.longest_ms),
            of(|round| round.recovery_ms),
        );
    }
    Ok(out)
}

fn round(options: &Options, fault: Fault) -> Result<Round, String> {
    let mut redis = Redis::start(options.cores.server_core, kit::free_address()?)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
    let store = RedisStore::new(&Settings::new(redis.url())).map_err(|e| e.to_string())?;
    runtime.block_on(store.connected()).map_err(|e| e.to_string())?;
    let stop = Arc::new(AtomicBool::new(false));
    let faulty = {
        let (stop, options) = (Arc::clone(&stop), (options.killed, options.frozen, options.cores.server_core));
        thread::spawn(move || {
            let happened = happen(&mut redis, fault, options);
            stop.store(true, Ordering::Relaxed);
            happened.map(|times| (times, redis))
        })
    };
    let asked = runtime.block_on(ask_all(&store, options.tasks, &stop))?;
    let ((away, back), _redis) = faulty.join().map_err(|_| "the fault panicked")??;
    let mut took_ms: Vec<f64> = asked
        .iter()
        .filter(|asked| (away..back).contains(&asked.at))
        .map(|asked| asked.took.as_secs_f64() * 1000.0)
        .collect();
    took_ms.sort_by(f64::total_cmp);
    let again = asked.iter().filter(|asked| asked.decided && asked.at + asked.took >= back);
    let first = again.map(|asked| asked.at + asked.took).min().ok_or("the store never decided again")?;
    Ok(Round {
        asked: took_ms.len(),
        p99_ms: quantile(&took_ms, 0.99),
        longest_ms: took_ms.last().copied().unwrap_or(f64::NAN),
        recovery_ms: first.duration_since(back).as_secs_f64() * 1000.0,
    })
}

/// Has the server be away after a second of load, and load go on for some seconds after its return; says from when until
/// when it was away.
fn happen(
    redis: &mut Redis,
    fault: Fault,
    (killed, frozen, core): (f64, f64, u32),
) -> Result<(Instant, Instant), String> {
    let signal = |redis: &Redis, signal| {
        let id = i32::try_from(redis.process.id()).ok().and_then(Pid::from_raw).ok_or("no process id")?;
        kill_process(id, signal).map_err(|e| e.to_string())
    };
    thread::sleep(Duration::from_secs(1));
    let away = Instant::now();
    match fault {
        Fault::Killed => {
            redis.process.kill().map_err(|e| e.to_string())?;
            thread::sleep(Duration::from_secs_f64(killed));
            *redis = Redis::start(core, redis.process.address)?;
        }
        Fault::Frozen => {
            signal(redis, Signal::STOP)?;
            thread::sleep(Duration::from_secs_f64(frozen));
            signal(redis, Signal::CONT)?;
        }
    }
    let back = Instant::now();
    thread::sleep(Duration::from_secs(3));
    Ok((away, back))
}

async fn ask_all(store: &RedisStore, tasks: u64, stop: &Arc<AtomicBool>) -> Result<Vec<Asked>, String> {
    let day = Duration::from_secs(86_400);
    let quota = Quota::fixed_window(1 << 40, day).anchor(Anchor::FirstHit).build().map_err(|e| e.to_string())?;
    let task = |i: u64| {
        let (store, quota, stop) = (store.clone(), quota.clone(), Arc::clone(stop));
        tokio::spawn(async move { ask(&store, u128::from(i) << 98, &quota, &stop).await })
    };
    let asking: Vec<_> = (0..tasks).map(task).collect();
    let mut all = Vec::new();
    for asking in asking {
        all.extend(asking.await.map_err(|e| e.to_string())?);
    }
    Ok(all)
}

async fn ask(store: &RedisStore, key: u128, quota: &Quota, stop: &AtomicBool) -> Vec<Asked> {
    let mut all = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let hits = [Hit::new(key, quota, Op::take(1), Binding::Enforce)];
        let at = Instant::now();
        let decided = store.decide(None, &hits, &mut [Decision::default()]).await.is_ok();
        all.push(Asked { at, took: at.elapsed(), decided });
        // As often whether it is served or not, so that nobody's share of the figures is larger for being quick.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    all
}
