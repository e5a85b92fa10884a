//! Compares the decisions per second of the library with redis-benchmark, which runs the same script in pipelines.

use std::fmt::Write;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use kit::{Counted, Redis, met, spread};
use spillgate_core::{Binding, Decision, Hit, Op, Quota, Store as _, Timing};
use spillgate_redis::{RedisStore, ScriptCall, Settings};
use tokio::runtime::Runtime;

use crate::Cores;

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    cores: Cores,
    /// Number of rounds. There are many short rounds, because the speed of a machine changes from second to second
    #[arg(long, default_value_t = 21)]
    repetitions: usize,
    /// Measured seconds in each run of the library
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Requests in each run of redis-benchmark
    #[arg(long, default_value_t = 102_400)]
    requests: u64,
    /// Number of keys, drawn uniformly
    #[arg(long, default_value_t = 10_000)]
    keys: u32,
}

/// The library has to reach this share of redis-benchmark's speed.
const RATIO_MIN: f64 = 0.8;

const HOUR: Duration = Duration::from_secs(3600);

/// Returns quotas that are too large to refuse a request.
fn quotas() -> Result<[Quota; 2], String> {
    let build = |builder: spillgate_core::QuotaBuilder| builder.build().map_err(|e| e.to_string());
    Ok([build(Quota::token_bucket(1_000_000, HOUR))?, build(Quota::fixed_window(1_000_000_000, HOUR))?])
}

/// The figures of one round.
struct Round {
    /// The decisions per second of the library.
    ours: f64,
    /// The requests per second of redis-benchmark.
    its: f64,
    /// The commands that the library sends for each decision.
    commands: f64,
    bytes_in: f64,
    bytes_out: f64,
}

pub(crate) fn run(options: &Options) -> Result<String, String> {
    options.cores.pin_client()?;
    let mut redis = Redis::start(options.cores.server_core, kit::free_address()?, &[])?;
    let keys: Arc<[u32]> = kit::draw(options.keys, 0.0, 42, 1 << 20).into();
    let mut out = format!(
        "### Decisions per second on Redis: the library against redis-benchmark with the same script\n\n\
         There are {} rounds. In each round, the library decides for {} s, and `redis-benchmark -c 1` sends {} requests. \
         There are {} keys.\n\n\
         | algorithm | requests in flight | decisions/s of the library, median (min to max) | requests/s of redis-benchmark | \
         **library / redis-benchmark** | at least \
         {RATIO_MIN} | commands per decision | \
         bytes to Redis per decision | bytes from Redis per decision |\n|---|---|---|---|---|---|---|---|---|\n",
        options.repetitions, options.seconds, options.requests, options.keys
    );
    for quota in &quotas()? {
        for tasks in [64, 256] {
            let mut rounds = Vec::new();
            for turn in 0..=options.repetitions {
                let round = round(options, &mut redis, quota, &keys, tasks, turn % 2 == 1)?;
                // The first round creates the keys, so it is not counted.
                if turn > 0 {
                    eprintln!(
                        "{}, {tasks} in flight, round {turn}: library {:.0}/s, redis-benchmark {:.0}/s",
                        quota.algorithm().as_str(),
                        round.ours,
                        round.its
                    );
                    rounds.push(round);
                }
            }
            let of = |figure: fn(&Round) -> f64| spread(rounds.iter().map(figure));
            let ratio = of(|round| round.ours / round.its);
            let _ = writeln!(
                out,
                "| {} | {tasks} | {} | {} | **{ratio:.3}** | {} | {:.4} | {:.1} | {:.1} |",
                quota.algorithm().as_str(),
                of(|round| round.ours),
                of(|round| round.its),
                met(ratio.median >= RATIO_MIN),
                of(|round| round.commands).median,
                of(|round| round.bytes_in).median,
                of(|round| round.bytes_out).median,
            );
        }
    }
    Ok(out)
}

/// Runs the library and redis-benchmark once. The order changes from round to round.
fn round(
    options: &Options,
    redis: &mut Redis,
    quota: &Quota,
    keys: &Arc<[u32]>,
    tasks: usize,
    library_first: bool,
) -> Result<Round, String> {
    let early = if library_first { None } else { Some(benchmark(options, redis, quota, tasks)?) };
    redis.reset_counts()?;
    let (decisions, seconds) = library(options, redis, quota, keys, tasks)?;
    let Counted { scripts, bytes_in, bytes_out, .. } = redis.counted()?;
    let its = early.map_or_else(|| benchmark(options, redis, quota, tasks), Ok)?;
    let each = |count: u64| count as f64 / decisions as f64;
    Ok(Round {
        ours: decisions as f64 / seconds,
        its,
        commands: each(scripts),
        bytes_in: each(bytes_in),
        bytes_out: each(bytes_out),
    })
}

/// Runs tasks on one thread. Each task sends one request after the other. Returns the number of decisions, and the
/// seconds that they took.
fn library(
    options: &Options,
    redis: &Redis,
    quota: &Quota,
    keys: &Arc<[u32]>,
    tasks: usize,
) -> Result<(u64, f64), String> {
    let runtime: Runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
    let settings = Settings { timeout: Duration::from_secs(5), ..Settings::new(redis.url()) };
    let store = RedisStore::new(&settings).map_err(|e| e.to_string())?;
    runtime.block_on(async {
        store.wait_connected().await.map_err(|e| e.to_string())?;
        let stop = Arc::new(AtomicBool::new(false));
        let start = Instant::now();
        let task = |i: usize| {
            let (store, quota, keys, stop) = (store.clone(), quota.clone(), Arc::clone(keys), Arc::clone(&stop));
            tokio::spawn(async move { ask(&store, &quota, &keys[i * keys.len() / tasks..], &keys, &stop).await })
        };
        let asking: Vec<_> = (0..tasks).map(task).collect();
        tokio::time::sleep(Duration::from_secs_f64(options.seconds)).await;
        stop.store(true, Ordering::Relaxed);
        let mut sum = 0;
        for asking in asking {
            sum += asking.await.map_err(|e| e.to_string())??;
        }
        Ok((sum, start.elapsed().as_secs_f64()))
    })
}

/// Takes one unit of one key after the other until `stop` is set. Returns the number of units.
async fn ask(store: &RedisStore, quota: &Quota, first: &[u32], keys: &[u32], stop: &AtomicBool) -> Result<u64, String> {
    let mut asked = 0;
    for number in first.iter().chain(keys.iter().cycle()) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let key = u128::from(*number) << 98 | u128::from(*number);
        let hits = [Hit::new(key, quota, Op::take(1), Binding::Enforce)];
        let verdict =
            store.decide(Timing::BY_STORE, &hits, &mut [Decision::default()]).await.map_err(|e| e.to_string())?;
        if !verdict.allowed {
            return Err("a limit that is too large to refuse has refused a request".to_owned());
        }
        asked += 1;
    }
    Ok(asked)
}

/// Returns the requests per second of redis-benchmark with this many requests in one pipeline.
///
/// redis-benchmark cannot pass an argument that contains a byte with the value 0. So redis-benchmark runs a copy of the
/// script, and the first line of this copy sets the argument.
fn benchmark(options: &Options, redis: &mut Redis, quota: &Quota, pipeline: usize) -> Result<f64, String> {
    let hits = [Hit::new(7, quota, Op::take(1), Binding::Enforce)];
    let request = ScriptCall::new(None, &hits).map_err(|e| e.to_string())?;
    let argument =
        request.arguments().nth(1).expect("argument 2 exists").iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "\\{byte:03}");
            text
        });
    let source = format!("ARGV[2] = \"{argument}\"\n{}", request.script().source);
    let sha: String = redis.run(&["SCRIPT", "LOAD", &source])?;
    let address = redis.process.address;
    // redis-benchmark may abort at its end unless the last pipeline is complete. So the number of requests is a
    // multiple of the pipeline.
    let requests = options.requests - options.requests % pipeline as u64;
    // The names of keys have the same length as in the library. redis-benchmark replaces `__rand_int__` by twelve
    // digits, which are a random number below the value of `-r`.
    let output = Command::new("redis-benchmark")
        .args(["-h", &address.ip().to_string(), "-p", &address.port().to_string(), "-c", "1", "--csv"])
        .args(["-P", &pipeline.to_string(), "-n", &requests.to_string(), "-r", &options.keys.to_string()])
        .args(["evalsha", &sha, "1", "sg:{AAAAA}:AAAAAA__rand_int__", ""])
        .output()
        .map_err(|e| format!("redis-benchmark: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let figure = text.lines().last().and_then(|line| line.split("\",\"").nth(1)?.trim_matches('"').parse().ok());
    figure.ok_or_else(|| format!("redis-benchmark said {text:?} {:?}", String::from_utf8_lossy(&output.stderr)))
}
