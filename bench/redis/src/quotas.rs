//! Microseconds of Redis that a question costs on a bucket whose state another quota charged, beside one under the
//! quota that charged it, and beside the general script alone.

use std::fmt::Write;
use std::time::Duration;

use clap::Args;
use kit::{Redis, met, spread};
use spillgate_core::{Binding, Decision, Hit, Op, Quota, Time};
use spillgate_redis::{Decoded, Script, ScriptCall};

use crate::Cores;

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    cores: Cores,
    /// Measured rounds
    #[arg(long, default_value_t = 21)]
    repetitions: usize,
    /// Questions of each case in a round
    #[arg(long, default_value_t = 4000)]
    questions: usize,
    /// Keys that are asked about by turns
    #[arg(long, default_value_t = 100)]
    keys: u128,
}

const DAY: Duration = Duration::from_secs(86_400);
/// What the keys of the allowed questions owe at first: more than drains while they are asked.
const OWED: u64 = 10_000;

/// Questions of one kind.
struct Case<'q> {
    name: &'static str,
    first_key: u128,
    /// What is asked by turns.
    quotas: Vec<&'q Quota>,
    allowed: bool,
    /// Whether the general script is asked at once.
    general: bool,
}

pub(crate) fn run(options: &Options) -> Result<String, String> {
    options.cores.pin_client()?;
    let mut redis = Redis::start(options.cores.server_core, kit::free_address()?, &[])?;
    for script in Script::ALL {
        redis.run::<()>(&["SCRIPT", "LOAD", script.source])?;
    }
    let day = |limit| Quota::token_bucket(limit, DAY).build().map_err(|e| e.to_string());
    // Two that admit whatever is asked here, and two that are used up.
    let (wide, wider, large, small) = (day(10_000_000)?, day(11_000_000)?, day(1000)?, day(10)?);
    let case = |name, first_key, quotas: &[_], allowed, general| {
        let quotas = quotas.to_vec();
        Case { name, first_key, quotas, allowed, general }
    };
    let cases = [
        case("refused, the quota that charged it", 1 << 64, &[&large], false, false),
        case("refused, another quota", 1 << 64, &[&small], false, false),
        case("refused, another quota, the general script alone", 1 << 64, &[&small], false, true),
        case("refused, the quota that charged it, the general script alone", 1 << 64, &[&large], false, true),
        case("allowed, the quota that charged it", 2 << 64, &[&wide], true, false),
        case("allowed, another quota each time", 3 << 64, &[&wide, &wider], true, false),
        case("allowed, the quota that charged it, the general script alone", 4 << 64, &[&wide], true, true),
    ];
    for key in 0..options.keys {
        ask(&mut redis, key + (1 << 64), &large, 1000, true, false)?;
        for first in 2..=4 {
            ask(&mut redis, key + (first << 64), &wide, OWED, true, false)?;
        }
    }
    let mut figures = cases.each_ref().map(|_| (Vec::new(), Vec::new()));
    for round in 1..=options.repetitions {
        for (case, (micros, calls)) in cases.iter().zip(&mut figures) {
            redis.reset_counts()?;
            for i in 0..options.questions {
                // One round over all keys after the other, each under the next quota.
                let key = case.first_key + i as u128 % options.keys;
                let quota = case.quotas[(round + i / options.keys as usize) % case.quotas.len()];
                ask(&mut redis, key, quota, 1, case.allowed, case.general)?;
            }
            let (asked, spent_us) = scripts(&mut redis)?;
            micros.push(spent_us as f64 / options.questions as f64);
            calls.push(asked as f64 / options.questions as f64);
        }
    }
    report(options, &cases, &figures)
}

fn report(options: &Options, cases: &[Case<'_>], figures: &[(Vec<f64>, Vec<f64>)]) -> Result<String, String> {
    let mut out = format!(
        "### Redis's time for a request on a bucket, by the quota that charged the bucket before\n\n\
         {} rounds of {} requests on a token bucket. The time is Redis's own count for its scripts.\n\n\
         | request | calls of scripts | us of Redis, median (min to max) |\n|---|---|---|\n",
        options.repetitions, options.questions
    );
    for (case, (micros, calls)) in cases.iter().zip(figures) {
        let _ = writeln!(
            out,
            "| {} | {:.2} | {:.2} |",
            case.name,
            spread(calls.iter().copied()).median,
            spread(micros.iter().copied())
        );
    }
    // The second and the third case are the same questions.
    let pairs = figures[1].0.iter().zip(&figures[2].0);
    let ratio = spread(pairs.map(|(asked, general)| asked / general));
    let is_met = ratio.median <= 1.0;
    let _ = writeln!(
        out,
        "| **ratio**, refused by another quota: the general script alone, at most 1: {} | | **{ratio:.2}** |",
        met(is_met)
    );
    if is_met {
        Ok(out)
    } else {
        Err(format!("{out}\na refusal under another quota takes longer than the general script"))
    }
}

/// One question, as a store asks it: where the short script does not know, the general one is asked.
fn ask(redis: &mut Redis, key: u128, quota: &Quota, cost: u64, allowed: bool, general: bool) -> Result<(), String> {
    let hits = [Hit::new(key, quota, Op::take(cost), Binding::Enforce)];
    let mut request = ScriptCall::new(None, &hits).map_err(|e| e.to_string())?;
    if general {
        request.not_after(Time::MAX);
    }
    let mut decisions = [Decision::default()];
    loop {
        let count = request.keys().len().to_string();
        let mut words = vec![b"EVALSHA".as_slice(), request.script().sha().as_bytes(), count.as_bytes()];
        words.extend(request.keys().iter().map(spillgate_redis::RedisKey::as_bytes));
        words.extend(request.arguments());
        let reply: Vec<u8> = redis.run_bytes(&words)?;
        match request.decode(&reply, &mut decisions).map_err(|e| e.to_string())? {
            Decoded::CallAgain => {}
            Decoded::Verdict(verdict) if verdict.allowed == allowed => return Ok(()),
            Decoded::Verdict(_) => return Err(format!("a question was not answered {allowed}: {decisions:?}")),
        }
    }
}

/// Calls of scripts since the counts were reset, and the microseconds that they took.
fn scripts(redis: &mut Redis) -> Result<(u64, u64), String> {
    let line: String = redis.info("cmdstat_evalsha")?;
    let field = |name: &str| line.split(',').find_map(|field| field.strip_prefix(name)?.parse().ok());
    field("calls=").zip(field("usec=")).ok_or_else(|| format!("INFO commandstats says {line:?}"))
}
