//! Whether advice does harm, computed from what was really decided.

use std::collections::HashMap;

use serde_json::{Value, json};
use spillgate_limiter::Quota;
use spillgate_testkit::Random;

use super::super::traffic::{BEGIN_NS, unit_ns};
use super::made::{Decided, Flow, Outcome, Retry, Traffic, nanos, refused_by};

const HOUR_NS: u64 = 3_600_000_000_000;
const MINUTE_NS: u64 = 60_000_000_000;

/// The requests of the last hour.
pub(super) fn last_hour(outcome: &Outcome) -> impl Iterator<Item = &Decided> {
    outcome.decided.iter().filter(|decided| decided.at_ns + HOUR_NS >= outcome.end_ns)
}

/// Returns what is harmful about the advice, or `None`.
pub(super) fn harm(outcome: &Outcome, report: &Value) -> Option<String> {
    advice_to_block(report).or_else(|| names_without_refusals(outcome, report)).or_else(|| {
        let suggestion = report.get("suggestion").filter(|suggestion| !suggestion.is_null())?;
        let limit = suggestion["limit"].as_u64().expect("a suggestion has a limit");
        let Ok(quota) = outcome.quota.with_limit(limit, suggestion["burst"].as_u64()) else {
            return Some(format!("{suggestion} is no limit"));
        };
        let lowers = quota.limit() < outcome.quota.limit() || quota.capacity() < outcome.quota.capacity();
        let harm = if lowers { harm_of_lower(outcome, &quota) } else { harm_of_higher(outcome, &quota) };
        harm.map(|harm| format!("{suggestion}: {harm}"))
    })
}

/// Nobody may be told to block a caller without a word about the many people that it can be.
fn advice_to_block(report: &Value) -> Option<String> {
    let reason = report["reason"].as_str().expect("a report has a reason").to_lowercase();
    let blocks = reason.split(|letter: char| !letter.is_alphabetic()).any(|word| word == "block");
    (blocks && !reason.contains("many people")).then(|| "it says to block, and not that it can be many people".into())
}

/// Callers that are named as those with the refusals must have been refused.
fn names_without_refusals(outcome: &Outcome, report: &Value) -> Option<String> {
    let (reason, verdict) = (report["reason"].as_str()?, report["verdict"].as_str()?);
    if !matches!(verdict, "above_rate" | "bursts") {
        return None;
    }
    let names = reason.split("caller=").skip(1).map(|rest| rest.split(|letter: char| !letter.is_ascii_digit()).next());
    let callers: Vec<u32> = names.filter_map(|name| name?.parse().ok()).collect();
    let was_refused = |caller| outcome.decided.iter().any(|decided| decided.caller == caller && !decided.allowed);
    let wrong = callers.into_iter().find(|caller| !was_refused(*caller))?;
    Some(format!("it names caller={wrong}, which was never refused"))
}

/// A lower limit needs a whole hour without refusals, and must refuse nothing of this hour.
fn harm_of_lower(outcome: &Outcome, quota: &Quota) -> Option<String> {
    let begin_ns = outcome.end_ns.saturating_sub(HOUR_NS);
    let first_ns = last_hour(outcome).map(|decided| decided.at_ns).min()?;
    if BEGIN_NS > begin_ns + MINUTE_NS || first_ns > begin_ns + 5 * MINUTE_NS {
        return Some("a lower limit after less than an hour of requests".into());
    }
    if last_hour(outcome).any(|decided| !decided.allowed && !decided.oversized) {
        return Some("a lower limit although requests are refused".into());
    }
    // What was counted before the hour still counts in its first minute.
    let refused = refused_by(quota, outcome, begin_ns - MINUTE_NS);
    let refused = refused.iter().filter(|at_ns| **at_ns > begin_ns + MINUTE_NS).count();
    (refused > 0).then(|| format!("it would refuse {refused} requests that were not refused"))
}

/// A higher limit must not refuse a request that passed, and must not follow callers above twice the median.
fn harm_of_higher(outcome: &Outcome, quota: &Quota) -> Option<String> {
    let refused = refused_by(quota, outcome, BEGIN_NS).len();
    if refused > 0 {
        return Some(format!("it would refuse {refused} requests that were not refused"));
    }
    let mut callers: HashMap<u32, Vec<&Decided>> = HashMap::new();
    last_hour(outcome).filter(|decided| decided.first && !decided.oversized).for_each(|decided| {
        callers.entry(decided.caller).or_default().push(decided);
    });
    let begin_ns = last_hour(outcome).map(|decided| decided.at_ns).min()?;
    let span_ns = (outcome.end_ns - begin_ns) as f64;
    let needs: Vec<Need> = callers.values().map(|requests| Need::of(&outcome.quota, requests, span_ns)).collect();
    // The sample of insight and its ranges are not exact. So a number is too high only if it is so by a margin, and
    // however the need of a caller is computed.
    let is_too_high = |need: fn(&Need) -> f64, suggested: f64| {
        let mut needs: Vec<f64> = needs.iter().map(need).collect();
        needs.sort_by(f64::total_cmp);
        let (median, most) = (needs[(needs.len() - 1) / 2], needs[(needs.len() * 9).div_ceil(10) - 1]);
        most > 2.3 * median + 1.0 || suggested > 2.5 * median + 2.0
    };
    let limit = quota.limit() as f64;
    if quota.limit() > outcome.quota.limit()
        && is_too_high(|need| need.usual, limit)
        && is_too_high(|need| need.busiest, limit)
    {
        return Some("the limit follows callers above twice the median".into());
    }
    let is_burst = quota.capacity() > outcome.quota.capacity() && quota.limit() == outcome.quota.limit();
    let is_harmful = is_burst && is_too_high(|need| need.burst, quota.capacity() as f64);
    is_harmful.then(|| "the burst follows callers above twice the median, or their retries".into())
}

/// What one caller asks for, without retries.
struct Need {
    /// Units in a window of the limit, on average.
    usual: f64,
    /// The same in the busiest minute, or in the busiest window if that is longer.
    busiest: f64,
    /// The smallest burst with which all of it passes at the rate of the limit.
    burst: f64,
}

impl Need {
    fn of(quota: &Quota, requests: &[&Decided], span_ns: f64) -> Need {
        let slot_ns = quota.window_ns().max(MINUTE_NS);
        let (mut slots, mut paid_ns, mut highest_ns) = (HashMap::<u64, u64>::new(), 0, 0);
        for request in requests {
            *slots.entry(request.at_ns / slot_ns).or_default() += request.cost;
            paid_ns = u64::max(paid_ns, request.at_ns) + request.cost * unit_ns(quota);
            highest_ns = highest_ns.max(paid_ns - request.at_ns);
        }
        let window_ns = quota.window_ns() as f64;
        Need {
            usual: slots.values().sum::<u64>() as f64 * window_ns / span_ns,
            busiest: slots.values().copied().max().unwrap_or(0) as f64 * window_ns / slot_ns as f64,
            burst: highest_ns.div_ceil(unit_ns(quota)) as f64,
        }
    }
}

/// The units that were refused to each caller in the last hour, without oversized requests, and how many callers asked.
pub(super) fn refused_units(outcome: &Outcome) -> (Vec<u64>, usize) {
    let mut callers: HashMap<u32, u64> = HashMap::new();
    for decided in last_hour(outcome) {
        let units = if decided.allowed || decided.oversized { 0 } else { decided.cost };
        *callers.entry(decided.caller).or_default() += units;
    }
    let mut units: Vec<u64> = callers.values().copied().collect();
    units.sort_by_key(|units| std::cmp::Reverse(*units));
    (units, callers.len())
}

#[test]
fn a_limit_that_refuses_what_passed_is_harmful() {
    let quota = Quota::per_minute(10).constant();
    let mut traffic = Traffic::new(quota, 4000.0, Random(7));
    for minute in 0..66 {
        for request in 0..6 {
            traffic.ask(request % 2, f64::from(minute) * 60.0 + 5.0, 1, Retry::Never, 0.0);
        }
    }
    let mut outcome = traffic.played();
    let suggests = |limit: u64| json!({"verdict": "never_binding", "reason": "", "suggestion": {"limit": limit}});
    assert_eq!(harm(&outcome, &suggests(3)), None);
    assert!(harm(&outcome, &suggests(2)).is_some_and(|harm| harm.contains("would refuse")));
    let blocks = json!({"verdict": "above_rate", "reason": "Block this caller.", "suggestion": null});
    assert!(harm(&outcome, &blocks).is_some());
    let named = json!({"verdict": "above_rate", "reason": "Mostly caller=1.", "suggestion": null});
    assert!(harm(&outcome, &named).is_some_and(|harm| harm.contains("caller=1")));
    outcome.end_ns -= nanos(1000.0);
    assert!(harm(&outcome, &suggests(3)).is_some_and(|harm| harm.contains("less than an hour")));
}

#[test]
fn a_limit_that_follows_a_third_of_the_callers_is_harmful() {
    // Of three callers of each ten, or of all ten, each asks for 30 units a minute.
    for (scrapers, is_harmful) in [(3, true), (10, false)] {
        let mut traffic = Traffic::new(Quota::per_minute(10).constant(), 1200.0, Random(7));
        for caller in 0..10 {
            traffic.flow(caller, &Flow::steady(if caller < scrapers { 3.0 } else { 0.3 }));
        }
        let outcome = traffic.played();
        for suggestion in [json!({"limit": 33}), json!({"limit": 33, "burst": 40}), json!({"limit": 10, "burst": 420})]
        {
            let report = json!({"verdict": "above_rate", "reason": "", "suggestion": suggestion});
            assert_eq!(harm(&outcome, &report).is_some(), is_harmful, "{suggestion}");
        }
    }
}
