//! Measures Redis's time for a request on a bucket that another quota has charged, for example before a limit was
//! changed.
//!
//! The store has a short script for the usual case, and a general script for all other cases. Two other times are
//! measured for comparison: the time of a request under the quota that charged the bucket, and the time of a request
//! for which only the general script is called.

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
    /// Number of rounds
    #[arg(long, default_value_t = 21)]
    repetitions: usize,
    /// Requests of each case in a round
    #[arg(long, default_value_t = 4000)]
    questions: usize,
    /// Number of keys, which are used in turns
    #[arg(long, default_value_t = 100)]
    keys: u128,
}

const DAY: Duration = Duration::from_secs(86_400);
/// The number of units that are taken from each key of the allowed requests before the measurement. Fewer units become
/// free during the measurement, so every bucket has used units all the time.
const OWED: u64 = 10_000;

/// One kind of request.
struct Case<'q> {
    name: &'static str,
    first_key: u128,
    /// The quotas of the requests. They are used in turns.
    quotas: Vec<&'q Quota>,
    allowed: bool,
    /// Whether the general script is called at once, without the short script.
    general: bool,
}

pub(crate) fn run(options: &Options) -> Result<String, String> {
    options.cores.pin_client()?;
    let mut redis = Redis::start(options.cores.server_core, kit::free_address()?, &[])?;
    for script in Script::ALL {
        redis.run::<()>(&["SCRIPT", "LOAD", script.source])?;
    }
    let day = |limit| Quota::token_bucket(limit, DAY).build().map_err(|e| e.to_string());
    // The quotas `wide` and `wider` allow every request here. The quotas `large` and `small` are used up.
    let (wide, wider, large, small) = (day(10_000_000)?, day(11_000_000)?, day(1000)?, day(10)?);
    let case = |name, first_key, quotas: &[_], allowed, general| {
        let quotas = quotas.to_vec();
        Case { name, first_key, quotas, allowed, general }
    };
    let cases = [
        case("refused, by the quota that charged the bucket", 1 << 64, &[&large], false, false),
        case("refused, by another quota", 1 << 64, &[&small], false, false),
        case("refused, by another quota, with only the general script", 1 << 64, &[&small], false, true),
        case(
            "refused, by the quota that charged the bucket, with only the general script",
            1 << 64,
            &[&large],
            false,
            true,
        ),
        case("allowed, by the quota that charged the bucket", 2 << 64, &[&wide], true, false),
        case("allowed, by two quotas in turns", 3 << 64, &[&wide, &wider], true, false),
        case(
            "allowed, by the quota that charged the bucket, with only the general script",
            4 << 64,
            &[&wide],
            true,
            true,
        ),
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
                // The requests go through all keys again and again. After each pass through the keys, the next quota of
                // the case is used.
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
        "### Redis's time for a request on a bucket that another quota has charged\n\n\
         There are {} rounds of {} requests on a token bucket. Redis itself measures the time of its scripts.\n\n\
         | request | script calls per request | time in Redis per request, us, median (min to max) |\n|---|---|---|\n",
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
    // The second and the third case have the same requests. They differ only in the script that is called first.
    let pairs = figures[1].0.iter().zip(&figures[2].0);
    let ratio = spread(pairs.map(|(asked, general)| asked / general));
    let is_met = ratio.median <= 1.0;
    let _ = writeln!(
        out,
        "| **ratio** of a refusal by another quota to the same refusal with only the general script, at most 1: \
        {} | | **{ratio:.2}** |",
        met(is_met)
    );
    if is_met {
        Ok(out)
    } else {
        Err(format!("{out}\na refusal under another quota takes longer than the general script"))
    }
}

/// Sends one request as a store does: if the short script cannot decide, the general script is called.
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
            Decoded::Verdict(_) => {
                return Err(format!("a request was not answered with allowed = {allowed}: {decisions:?}"));
            }
        }
    }
}

/// Returns the calls of scripts since the counts were reset, and the microseconds that these calls took.
fn scripts(redis: &mut Redis) -> Result<(u64, u64), String> {
    let line: String = redis.info("cmdstat_evalsha")?;
    let field = |name: &str| line.split(',').find_map(|field| field.strip_prefix(name)?.parse().ok());
    field("calls=").zip(field("usec=")).ok_or_else(|| format!("INFO commandstats says {line:?}"))
}
