//! Makes decisions of one kind COUNT times, so that valgrind can count their instructions: `instructions CASE COUNT`.
//!
//! Call the program twice, first with a small COUNT and then with a larger COUNT. The difference between the two
//! numbers of instructions is what the additional decisions need. Times vary too much on a busy machine to show a small
//! regression, but the number of instructions hardly varies. Without arguments, the program prints the cases.
//!
//! `scripts/show-no-regression.sh` compares the results with those of the same program at an earlier commit. So as long
//! as a case has the same name, it must make the same decisions.

use std::error::Error;
use std::future::Future;
use std::hint::black_box;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use spillgate::rules::{Action, Request, Rules, RulesFile};
use spillgate::{
    Binding, Clock, Decision, Hit, KeyHasher, Limiter, MemoryOptions, MemoryStore, Op, Quota, QuotaBuilder, Time,
};
use spillgate_service::metrics::Metrics;
use spillgate_service::{Backend, Client, Service, ServiceOptions};
use tracing_subscriber::filter::LevelFilter;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const ALGORITHMS: [&str; 6] =
    ["token_bucket", "fixed_window", "sliding_window_log", "sliding_window_counter", "leaky_bucket", "concurrency"];
const OUTCOMES: [&str; 2] = ["allowed", "refused"];
const SERVICE: &str = "Service::decide";
const REQUESTS: [&str; 4] = ["allowed", "refused", "unmatched", "two limits"];

/// The number of keys, which are used in turns. So the result is an average over several keys.
const KEYS: usize = 64;
/// The secret of the hash. The hash decides where a state is stored, so it has to be the same in each run.
const SECRET: [u8; 16] = [7; 16];
/// The rules. The request `allowed` matches the first rule, `refused` matches the second rule, and `two limits` matches
/// the first and the third rule. No rule matches the request `unmatched`.
const RULES: &str = "
domain: bench
descriptors:
  - {key: allowed, rate_limit: {unit: hour, requests_per_unit: 1000000000}}
  - {key: refused, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: second, rate_limit: {unit: hour, requests_per_unit: 1000000000}}
";

/// A clock that advances by a microsecond at each reading.
///
/// The system's clock calibrates itself when it starts, and sometimes reads the wall clock. The number of instructions
/// for this work depends on how busy the machine is.
#[derive(Default)]
struct Ticks(AtomicU64);

impl Clock for Ticks {
    fn now(&self) -> Time {
        Time::EPOCH.after(Duration::from_secs(1_700_006_400) + Duration::from_micros(self.0.fetch_add(1, Relaxed)))
    }
}

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [case, count] = &arguments[..] else {
        for subject in ALGORITHMS {
            OUTCOMES.iter().for_each(|outcome| println!("{subject},{outcome}"));
        }
        REQUESTS.iter().for_each(|request| println!("{SERVICE},{request}"));
        return Ok(());
    };
    let (subject, what) = case.split_once(',').ok_or("a case is SUBJECT,OUTCOME or SUBJECT,REQUEST")?;
    let count = count.parse()?;
    if subject == SERVICE { of_service(what, count) } else { of_library(subject, what == OUTCOMES[0], count) }
}

fn of_library(algorithm: &str, allowed: bool, count: usize) -> Outcome {
    let store = MemoryStore::new(MemoryOptions::default());
    let hasher = KeyHasher::with_secret(SECRET);
    let limiter = Limiter::with_keys(store, Ticks::default(), hasher.clone());
    let quota = quota(algorithm, allowed)?.build()?;
    let decide = |key: &str, op: Op| {
        let key = hasher.start().part(b"bench").part(key.as_bytes()).finish();
        let mut decisions = [Decision::default()];
        let verdict = ready(limiter.decide(&[Hit::new(key, &quota, op, Binding::Enforce)], &mut decisions));
        verdict.map(|_| decisions[0])
    };
    each(allowed, count, |key| match (algorithm, allowed) {
        // Like a usual caller, this program releases a permit after it has taken the permit.
        ("concurrency", true) => {
            let taken = decide(key, Op::take(1))?;
            Ok(decide(key, Op::Refund { cost: 1, receipt: taken.receipt })?.allowed && taken.allowed)
        }
        // Like a usual caller of a queue, this program accepts any wait for its turn.
        ("leaky_bucket", true) => Ok(decide(key, Op::Take { cost: 1, max_wait_ns: u64::MAX })?.allowed),
        _ => Ok(limiter.take_now(&quota, ("bench", key), 1).allowed),
    })
}

/// Returns a quota that never refuses in this program, or a quota that refuses all requests except the first.
fn quota(algorithm: &str, allowed: bool) -> Outcome<QuotaBuilder> {
    let (limit, window) =
        if allowed { (60_000, Duration::from_secs(60_000)) } else { (1, Duration::from_secs(86_400)) };
    Ok(match algorithm {
        "token_bucket" => Quota::token_bucket(limit, window),
        "fixed_window" => Quota::fixed_window(limit, Duration::from_secs(31_536_000)),
        "sliding_window_log" => Quota::sliding_window_log(limit, window),
        "sliding_window_counter" => Quota::sliding_window_counter(limit, window),
        "leaky_bucket" => Quota::leaky_bucket(limit, window).queue(limit),
        "concurrency" => Quota::concurrency(limit),
        other => return Err(format!("there is no case {other}").into()),
    })
}

fn of_service(request: &str, count: usize) -> Outcome {
    let (key_of_entry, descriptors) = match request {
        "two limits" => ("allowed", 2),
        "allowed" | "refused" | "unmatched" => (request, 1),
        other => return Err(format!("there is no case {other}").into()),
    };
    // A decision also checks whether it has to write a log line. So the program sets the usual log level of a server.
    //
    // To log each unmatched descriptor only once, the service looks up whether the descriptor was logged before. The
    // service makes at most a thousand such lookups in each second of its clock. This clock advances by a microsecond
    // for each reading, so all decisions of a run fall into one second. With a COUNT above a thousand, a run makes
    // exactly a thousand lookups.
    tracing_subscriber::fmt().with_max_level(LevelFilter::INFO).with_writer(io::sink).init();
    let rules = Rules::parse(&[RulesFile { name: "rules.yaml".into(), text: RULES.into() }])?;
    let store = Backend::Memory(MemoryStore::new(MemoryOptions::default()));
    let limiter = Limiter::with_keys(store, Ticks::default(), KeyHasher::with_secret(SECRET));
    let service = Service::new(rules, limiter, ServiceOptions::default(), Arc::new(Metrics::new()));
    each(request != "refused", count, |key| {
        let entries = [[(key_of_entry, key)], [("second", key)]];
        let mut request = Request::new("bench");
        for entries in &entries[..descriptors] {
            request.add(entries.iter().copied(), Action::Take(1), None);
        }
        let loaded = service.rules();
        Ok(ready(service.decide(&loaded, &request, Client::default()))?.verdict.allowed)
    })
}

/// Decides once for every key, and then makes `count` decisions. All of these decisions must allow the request if
/// `allowed` is true, and refuse it if `allowed` is false.
fn each(allowed: bool, count: usize, mut decide: impl FnMut(&str) -> Outcome<bool>) -> Outcome {
    let keys: Vec<String> = (0..KEYS).map(|key| format!("user:{key}")).collect();
    for key in &keys {
        decide(key)?;
    }
    for key in keys.iter().cycle().take(count) {
        if decide(black_box(key))? != allowed {
            return Err(format!("the answer for {key} is not the answer of this case").into());
        }
    }
    Ok(())
}

/// Returns the output of a future that never waits. A memory store answers at once.
fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("memory answers at once"),
    }
}
