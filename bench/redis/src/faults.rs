//! Measures what callers see while a Redis server fails, and how soon the store decides again after the fault.

use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use kit::{Redis, quantile, spread};
use rustix::process::{Pid, Signal, kill_process};
use spillgate_core::{Anchor, Binding, Decision, Hit, Op, Quota, Store as _, Timing};
use spillgate_redis::{RedisKey, RedisStore, Settings};

use crate::Cores;
use crate::fleet::{DOWN_AFTER_MS, FIRST_END, Fleet, NAME, until};

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    cores: Cores,
    /// Number of rounds for each fault
    #[arg(long, default_value_t = 5)]
    repetitions: usize,
    /// Number of tasks that send requests. Each task pauses for a millisecond after each answer
    #[arg(long, default_value_t = 64)]
    tasks: usize,
    /// Seconds until a killed server is started again
    #[arg(long, default_value_t = 2.0)]
    killed: f64,
    /// Seconds for which a frozen server does not answer
    #[arg(long, default_value_t = 5.0)]
    frozen: f64,
}

/// The time that a request may take beyond its deadline.
const GRACE_MS: f64 = 10.0;
/// After a server accepts writes again, the store has to decide again within this time.
const RECOVERY_MS: f64 = 1000.0;

/// How long the load runs before a fault begins.
const BEFORE: Duration = Duration::from_secs(1);
/// How long the load runs after a fault has ended.
const AFTER: Duration = Duration::from_secs(3);

#[derive(Clone, Copy)]
enum Fault {
    /// The only server is killed, and is started again after this time.
    Killed(Duration),
    /// The only server is stopped by a signal, and continues after this time. The server keeps its data and its
    /// connections.
    Frozen(Duration),
    /// The primary of a cluster is killed, and the other primaries promote its replica.
    Promoted,
    /// The primary is killed, and three sentinels promote its replica.
    FailedOver,
}

impl Fault {
    fn name(self) -> String {
        match self {
            Fault::Killed(away) => format!("server killed, started again after {} s", away.as_secs_f64()),
            Fault::Frozen(away) => format!("server frozen for {} s", away.as_secs_f64()),
            Fault::Promoted => format!(
                "primary of a cluster of six servers killed, replica promoted (cluster-node-timeout {DOWN_AFTER_MS} ms)"
            ),
            Fault::FailedOver => {
                format!("primary killed, replica promoted by three sentinels (down-after {DOWN_AFTER_MS} ms)")
            }
        }
    }

    fn fleet(self, core: u32) -> Result<Fleet, String> {
        match self {
            Fault::Killed(_) | Fault::Frozen(_) => Fleet::alone(core),
            Fault::Promoted => Fleet::cluster(core),
            Fault::FailedOver => Fleet::watched(core),
        }
    }
}

/// A request: when it was sent, how long it took, and whether the store decided it.
#[derive(Clone, Copy)]
struct Asked {
    at: Instant,
    took: Duration,
    decided: bool,
}

/// The figures of one round.
struct Round {
    /// The number of requests that were sent after the fault began and before the store decided again.
    asked: usize,
    p99_ms: f64,
    longest_ms: f64,
    /// The time during which no server accepted a write.
    away_ms: f64,
    /// The time from the first write that a server accepted again, until the store decided a request.
    recovery_ms: f64,
    /// The time from the first write that a server accepted again, until a sentinel reported that server as the
    /// primary. 0 without sentinels.
    unreported_ms: f64,
}

/// The times of one fault.
struct Times {
    /// From this time on, no server accepts a write.
    away: Instant,
    /// From this time on, a server accepts writes again.
    back: Instant,
    /// From this time on, a sentinel reports the server that accepts writes again. Without sentinels, this time equals
    /// `back`.
    reported: Instant,
}

pub(crate) fn run(options: &Options) -> Result<String, String> {
    options.cores.pin_client()?;
    let deadline_ms = Settings::new("").timeout.as_secs_f64() * 1000.0;
    let p99_max_ms = deadline_ms + GRACE_MS;
    let mut out = format!(
        "### What callers see while a Redis server fails\n\n{} tasks use keys of the server that fails. The store has its \
         default settings, with a deadline of {deadline_ms:.0} ms. There are {} rounds. The table has the median of all rounds \
         (min to max), and the number of rounds that met each target.\n\n\
         | fault | no server accepts writes, ms | requests until the store decides again | longest of these requests, ms \
         | p99 of these requests, ms | rounds with a p99 of at most {p99_max_ms:.0} ms \
         | first accepted write until the store decides again, ms \
         | rounds with at most {RECOVERY_MS:.0} ms \
         | first accepted write until a sentinel reports the new primary, ms |\n|---|---|---|---|---|---|---|---|---|\n",
        options.tasks, options.repetitions,
    );
    let faults = [
        Fault::Killed(Duration::from_secs_f64(options.killed)),
        Fault::Frozen(Duration::from_secs_f64(options.frozen)),
        Fault::Promoted,
        Fault::FailedOver,
    ];
    for fault in faults {
        let mut rounds = Vec::new();
        for turn in 1..=options.repetitions {
            let round = round(options, fault)?;
            eprintln!("{}, round {turn}: p99 {:.2} ms", fault.name(), round.p99_ms);
            eprintln!("the store decides again {:.0} ms after the first accepted write", round.recovery_ms);
            rounds.push(round);
        }
        let of = |figure: fn(&Round) -> f64| spread(rounds.iter().map(figure));
        let met = |figure: fn(&Round) -> f64, most: f64| {
            format!("{} of {}", rounds.iter().filter(|round| figure(round) <= most).count(), rounds.len())
        };
        let _ = writeln!(
            out,
            "| {} | {} | {} | {:.1} | {:.2} | {} | {:.0} | {} | {:.0} |",
            fault.name(),
            of(|round| round.away_ms),
            of(|round| round.asked as f64),
            of(|round| round.longest_ms),
            of(|round| round.p99_ms),
            met(|round| round.p99_ms, p99_max_ms),
            of(|round| round.recovery_ms),
            met(|round| round.recovery_ms, RECOVERY_MS),
            of(|round| round.unreported_ms),
        );
    }
    Ok(out)
}

fn round(options: &Options, fault: Fault) -> Result<Round, String> {
    let core = options.cores.server_core;
    let mut fleet = fault.fleet(core)?;
    let day = Duration::from_secs(86_400);
    let quota = Quota::fixed_window(1 << 40, day).anchor(Anchor::FirstHit).build().map_err(|e| e.to_string())?;
    let mut keys = keys_of_the_first(&quota);
    let probe = keys.next().map(|key| name(key, &quota).to_string()).ok_or("no key")?;
    let keys: Vec<u128> = keys.take(options.tasks).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
    let store = RedisStore::new(&Settings::new(&fleet.url)).map_err(|e| e.to_string())?;
    runtime.block_on(store.wait_connected()).map_err(|e| e.to_string())?;
    let stop = Arc::new(AtomicBool::new(false));
    // The thread that causes the fault is joined even after an error, because it uses the servers of the fleet.
    let (times, asked) = thread::scope(|scope| {
        let faulty = scope.spawn(|| {
            let times = happen(&mut fleet, fault, core, &probe);
            stop.store(true, Ordering::Relaxed);
            times
        });
        let asked = runtime.block_on(ask_all(&store, &keys, &quota, &stop));
        (faulty.join(), asked)
    });
    let Times { away, back, reported } = times.map_err(|_| "the thread that causes the fault panicked")??;
    let asked = asked?;
    let again = asked.iter().filter(|asked| asked.decided).map(|asked| asked.at + asked.took);
    let again = again.filter(|end| *end >= back).min().ok_or("the store never decided again")?;
    let in_it = asked.iter().filter(|asked| (away..again).contains(&asked.at));
    let mut took_ms: Vec<f64> = in_it.map(|asked| asked.took.as_secs_f64() * 1000.0).collect();
    took_ms.sort_by(f64::total_cmp);
    Ok(Round {
        asked: took_ms.len(),
        p99_ms: quantile(&took_ms, 0.99),
        longest_ms: took_ms.last().copied().unwrap_or(f64::NAN),
        away_ms: back.duration_since(away).as_secs_f64() * 1000.0,
        recovery_ms: again.duration_since(back).as_secs_f64() * 1000.0,
        unreported_ms: reported.duration_since(back).as_secs_f64() * 1000.0,
    })
}

fn name(key: u128, quota: &Quota) -> RedisKey {
    RedisKey::of(&Hit::new(key, quota, Op::Peek, Binding::Enforce))
}

/// Returns keys that belong to the first primary of a cluster.
fn keys_of_the_first(quota: &Quota) -> impl Iterator<Item = u128> {
    (1..)
        .map(|i: u128| i.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
        .filter(|key| name(*key, quota).slot() < FIRST_END)
}

/// Causes the fault while the load runs, and returns the times of the fault. A server counts as accepting writes when
/// it accepts a write of the key `probe`.
fn happen(fleet: &mut Fleet, fault: Fault, core: u32, probe: &str) -> Result<Times, String> {
    thread::sleep(BEFORE);
    let away = Instant::now();
    let first = &mut fleet.servers[0];
    match fault {
        Fault::Killed(time) => {
            first.process.kill().map_err(|e| e.to_string())?;
            thread::sleep(time);
            *first = Redis::start(core, first.process.address, &[])?;
        }
        Fault::Frozen(time) => {
            signal(first, Signal::STOP)?;
            thread::sleep(time);
            signal(first, Signal::CONT)?;
        }
        Fault::Promoted | Fault::FailedOver => first.process.kill().map_err(|e| e.to_string())?,
    }
    let heir = &mut fleet.servers[fleet.heir];
    until("a server accepts a write", || {
        let written = heir.run::<()>(&["SET", probe, "", "PX", "1"]).is_ok();
        // A server that becomes a primary may close its connections.
        if !written && !heir.is_connected() {
            heir.reconnect()?;
        }
        Ok(written)
    })?;
    let (back, address) = (Instant::now(), heir.process.address);
    let reported = match &mut fleet.sentinels[..] {
        [] => back,
        sentinels => {
            until("a sentinel reports the new primary", || is_reported(sentinels, address))?;
            Instant::now()
        }
    };
    thread::sleep(AFTER);
    Ok(Times { away, back, reported })
}

/// Returns whether any sentinel reports the primary at this address.
fn is_reported(sentinels: &mut [Redis], address: SocketAddr) -> Result<bool, String> {
    let expected = (address.ip().to_string(), address.port());
    for sentinel in sentinels {
        if sentinel.run::<(String, u16)>(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME])? == expected {
            return Ok(true);
        }
    }
    Ok(false)
}

fn signal(server: &Redis, signal: Signal) -> Result<(), String> {
    let id = i32::try_from(server.process.id()).ok().and_then(Pid::from_raw).ok_or("no process id")?;
    kill_process(id, signal).map_err(|e| e.to_string())
}

async fn ask_all(
    store: &RedisStore,
    keys: &[u128],
    quota: &Quota,
    stop: &Arc<AtomicBool>,
) -> Result<Vec<Asked>, String> {
    let task = |key: &u128| {
        let (store, key, quota, stop) = (store.clone(), *key, quota.clone(), Arc::clone(stop));
        tokio::spawn(async move { ask(&store, key, &quota, &stop).await })
    };
    let asking: Vec<_> = keys.iter().map(task).collect();
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
        let decided = store.decide(Timing::BY_STORE, &hits, &mut [Decision::default()]).await.is_ok();
        all.push(Asked { at, took: at.elapsed(), decided });
        // A task pauses after a failed request as after a successful one. Without the pause, requests that fail at once
        // would be sent more often, and would have more weight in the figures.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    all
}
