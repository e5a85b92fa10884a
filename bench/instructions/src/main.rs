//! One kind of decision, COUNT times, for valgrind to count instructions: `instructions CASE COUNT`. What two counts
//! differ by is the decisions' own. Without arguments it names the cases. `scripts/show-no-regression.sh` builds this against
//! an earlier commit too: what that does not have may not be used here.

use std::error::Error;
use std::future::Future;
use std::hint::black_box;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use spillgate::rules::{Action, Descriptor, Request, Rules, RulesFile};
use spillgate::{
    Binding, Clock, Decision, Hit, KeyHasher, Limiter, MemoryOptions, MemoryStore, Op, Quota, QuotaBuilder, Time,
};
use spillgate_server::metrics::Metrics;
use spillgate_server::service::{Backend, Service, ServiceOptions};
use spillgate_server::settings::Grants;
use tracing_subscriber::filter::LevelFilter;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const ALGORITHMS: [&str; 6] =
    ["token_bucket", "fixed_window", "sliding_window_log", "sliding_window_counter", "leaky_bucket", "concurrency"];
const OUTCOMES: [&str; 2] = ["allowed", "refused"];
const SERVICE: &str = "Service::decide";
const REQUESTS: [&str; 4] = ["allowed", "refused", "unmatched", "two limits"];

/// Keys that take turns: more than one, so that none is at hand by chance.
const KEYS: usize = 64;
/// States lie where the hash of their key says: each run has to hash alike.
const SECRET: [u8; 16] = [7; 16];
/// For an allowed request and, of the same shape, a refused one; for one with two descriptors, each with a limit; and
/// nothing for one that is not matched.
const RULES: &str = "
domain: bench
descriptors:
  - {key: allowed, rate_limit: {unit: hour, requests_per_unit: 1000000000}}
  - {key: refused, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: second, rate_limit: {unit: hour, requests_per_unit: 1000000000}}
";

/// A microsecond later at each reading. The system's clock measures itself at its start and looks at wall time now and
/// then: what that takes hangs on how busy the machine is.
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
        let answered = ready(limiter.decide(&[Hit::new(key, &quota, op, Binding::Enforce)], &mut decisions));
        answered.map(|_| decisions[0])
    };
    each(allowed, count, |key| match (algorithm, allowed) {
        // A permit is released as a rule.
        ("concurrency", true) => {
            let taken = decide(key, Op::take(1))?;
            Ok(decide(key, Op::Refund { cost: 1, receipt: taken.receipt })?.allowed && taken.allowed)
        }
        // A caller that uses a queue waits.
        ("leaky_bucket", true) => Ok(decide(key, Op::Take { cost: 1, max_wait_ns: u64::MAX })?.allowed),
        _ => Ok(limiter.hit_now("bench", key, &quota, 1).allowed),
    })
}

/// A quota that never refuses here, or one that refuses all but the first.
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
    // The level of a server: what it checks before it logs is part of a decision. It looks up the first thousand unmatched
    // descriptors of a second, so counts above that differ by what the others cost.
    tracing_subscriber::fmt().with_max_level(LevelFilter::INFO).with_writer(io::sink).init();
    let rules = Rules::parse(&[RulesFile { name: "rules.yaml".into(), text: RULES.into() }])?;
    let store = Backend::Memory(MemoryStore::new(MemoryOptions::default()));
    let limiter = Limiter::with_keys(store, Ticks::default(), KeyHasher::with_secret(SECRET));
    let service = Service::new(rules, limiter, ServiceOptions::default(), Arc::new(Metrics::new()));
    each(request != "refused", count, |key| {
        let entries = [[(key_of_entry, key)], [("second", key)]];
        let asked = entries.each_ref().map(|entries| Descriptor { entries, action: Action::Take(1), limit: None });
        let request = Request { domain: "bench", descriptors: &asked[..descriptors], max_wait_ns: 0 };
        let loaded = service.rules();
        Ok(ready(service.decide(&loaded, &request, Grants::default()))?.verdict.allowed)
    })
}

/// Asks about every key once, and then `count` times.
fn each(allowed: bool, count: usize, mut ask: impl FnMut(&str) -> Outcome<bool>) -> Outcome {
    let keys: Vec<String> = (0..KEYS).map(|key| format!("user:{key}")).collect();
    for key in &keys {
        ask(key)?;
    }
    for key in keys.iter().cycle().take(count) {
        if ask(black_box(key))? != allowed {
            return Err(format!("{key} was not answered as this case has it").into());
        }
    }
    Ok(())
}

/// Memory answers at once.
fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("memory answers at once"),
    }
}
