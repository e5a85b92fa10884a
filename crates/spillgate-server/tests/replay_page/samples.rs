//! The report that most tests of the HTML page use: a day of a shop.
//!
//! The verdicts come from real insight on an hour of simulated traffic.

use std::cmp::Reverse;
use std::time::Duration;

use spillgate::insight::{CallerName, LimitInsight, Options, Reading, Take};
use spillgate::rules::LimitDescription;
use spillgate::rules::{Limit, Rule, Rules, RulesFile};
use spillgate::{Clock as _, Limiter, ManualClock, MemoryOptions, MemoryStore, Time};
use spillgate_replay::report::*;

/// 2026-03-01 00:00:00 UTC.
pub(crate) const BEGIN_NS: u64 = 1_772_323_200_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;
const HOUR_NS: u64 = 3_600 * SECOND_NS;
/// The beginning of the hour whose traffic insight judges.
const JUDGED_NS: u64 = BEGIN_NS + 18 * HOUR_NS;

const SHOP: &str = "domain: shop
descriptors:
  - {key: path, value: /search, rate_limit: {name: search, unit: minute, requests_per_unit: 10, algorithm: token_bucket, burst: 5}}
  - {key: remote_address, rate_limit: {name: per_address, unit: minute, requests_per_unit: 60, algorithm: token_bucket, burst: 10}}
  - {key: path, value: /login, rate_limit: {name: login, unit: minute, requests_per_unit: 5}}
  - {key: api_key, rate_limit: {unit: hour, requests_per_unit: 100k}}
  - {key: path, value: /checkout, rate_limit: {unit: minute, requests_per_unit: 20, algorithm: sliding_window_log}}
  - {key: path, value: /admin, rate_limit: {unit: second, requests_per_unit: 2}}
";

/// How many requests a caller sends in a second.
type Traffic = fn(second: u64, caller: u64) -> u64;

/// The traffic of each limit of `SHOP`, and the number of its callers.
const TRAFFIC: [(Traffic, u64); 6] = [
    (|second, caller| u64::from(caller % 3 == 0 && (second + caller) % 3 == 0 || (second + 7 * caller) % 300 == 0), 60),
    (|second, caller| if (second + 37 * caller) % (400 + caller) == 0 { 1 + caller % 4 * 8 } else { 0 }, 180),
    (
        |second, caller| {
            if caller == 7 { 1 } else { u64::from((second + 61 * caller) % 900 == 0) }
        },
        90,
    ),
    (|second, caller| u64::from((second + caller) % (5 + caller) == 0), 40),
    (
        |second, caller| {
            if caller == 3 { u64::from(second % 2 == 0) } else { u64::from((second + 9 * caller) % 45 == 0) }
        },
        60,
    ),
    (|second, caller| u64::from(second % 1_800 == 13 * caller), 2),
];

/// Returns a number that looks random, but is always the same for the same input.
fn mixed(number: u64) -> u64 {
    let mixed = (number ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 32
}

/// Returns a day in steps of ten minutes, with most requests in the evening. `refused` is the percentage of refused
/// requests around the judged hour.
fn day(requests: u64, refused: u64) -> Timeline {
    let point = |step: u64| {
        let evening = 110.0 + 90.0 * ((step as f64 / 144.0 - 0.8) * std::f64::consts::TAU).cos();
        let all = (requests as f64 / 144.0 * evening / 110.0) as u64;
        let all = all + mixed(step + requests) % (all / 8 + 1);
        let near = 12_u64.saturating_sub(step.abs_diff(111));
        let part = all * refused * near / 1_200;
        Counts { allowed: all - part, refused: part }
    };
    Timeline { begin_ns: BEGIN_NS, step_ns: 600 * SECOND_NS, points: (0..144).map(point).collect() }
}

fn sum(timeline: &Timeline) -> Counts {
    let sum = |part: fn(&Counts) -> u64| timeline.points.iter().map(part).sum();
    Counts { allowed: sum(|point| point.allowed), refused: sum(|point| point.refused) }
}

/// Runs an hour of traffic, and returns its insight and its refusals.
fn judged(rule: &Rule, limit: &Limit, (traffic, callers): (Traffic, u64)) -> (Period, Vec<Refusal>) {
    let clock = ManualClock::at(Time::from_nanos(JUDGED_NS));
    let limiter = Limiter::with_clock(MemoryStore::new(MemoryOptions::default()), clock.clone());
    let insight =
        LimitInsight::new(&limit.quota, Options { callers: 4096, names: true, ..Options::default() }, clock.now());
    let mut refusals = Vec::new();
    let mut line = 0;
    for second in 0..3_600 {
        for caller in 0..callers {
            for _ in 0..traffic(second, caller) {
                line += 1;
                let decision = limiter.take_now(&limit.quota, caller, 1);
                let key = limiter.hit(&limit.quota, caller, 1).key;
                let name = format!("remote_address=198.51.100.{caller}");
                insight.count_named(clock.now(), key, &Take::of(1, &decision), || CallerName::of([&*name]));
                if !decision.allowed && refusals.len() < 2_000 {
                    refusals.push(refusal(line, second, name, caller));
                }
            }
        }
        clock.advance(Duration::from_secs(1));
    }
    let reading = insight.read(clock.now());
    let (burst_needed, used) = bars(&reading);
    let report = reading.report();
    let period = Period {
        from_ns: JUDGED_NS,
        to_ns: JUDGED_NS + HOUR_NS,
        suggested_rules: report.suggestion.map(|suggestion| suggestion.to_yaml(rule, limit)),
        report,
        burst_needed,
        used,
        burst_error_units: Some(limit.quota.limit() as f64 * 1e9 / limit.quota.window_ns() as f64),
    };
    (period, refusals)
}

fn refusal(line: u64, second: u64, caller: String, number: u64) -> Refusal {
    Refusal {
        file: "access.log.1.gz".into(),
        line: 1_200_000 + line,
        time_ns: JUDGED_NS + second * SECOND_NS,
        text: Some(format!(
            "198.51.100.{number} - - [01/Mar/2026:18:{:02}:{:02} +0000] \"GET /search?q=shoes&page={} HTTP/1.1\" 200 5316 \
             \"https://shop.example/\" \"Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0\"",
            second / 60,
            second % 60,
            line % 17
        )),
        caller,
        wait_ns: Some(SECOND_NS + mixed(line) % 5 * 700_000_000),
    }
}

fn bars(reading: &Reading) -> (Vec<Bar>, Vec<Bar>) {
    let callers = &reading.spans[2].sampled.callers;
    let power = |units: u64| units.max(1).next_power_of_two().ilog2();
    let bursts: Vec<u32> = callers.iter().filter_map(|caller| caller.burst.1).map(power).collect();
    let highest = bursts.iter().copied().max().unwrap_or(0);
    let burst = |at: u32| bursts.iter().filter(|burst| **burst == at).count() as u64;
    let used = |step: u64| {
        let step_of = |permille: u16| u64::from(permille).div_ceil(50).clamp(1, 20);
        callers.iter().filter(|caller| step_of(caller.used_permille) == step).count() as u64
    };
    let bar = |at_most: f64, callers| Bar { at_most: Some(at_most), callers };
    let burst_needed = (0..=highest).map(|at| bar(f64::from(at).exp2(), burst(at))).collect();
    (burst_needed, (1..=20).map(|step| bar(step as f64 * 5.0, used(step))).collect())
}

fn limit(rule: &Rule, traffic: (Traffic, u64), requests: u64, refused: u64) -> LimitReport {
    let limit = &rule.limits[0];
    let (period, refusals) = judged(rule, limit, traffic);
    let timeline = day(requests, if refusals.is_empty() { 0 } else { refused });
    let Counts { allowed, refused } = sum(&timeline);
    let mut longest = refusals.clone();
    longest.sort_by_key(|refusal| std::cmp::Reverse(refusal.wait_ns));
    longest.truncate(5);
    let caller = |number: u64| CallerCounts {
        caller: format!("remote_address=198.51.100.{}", number * 11),
        counts: Counts { allowed: allowed / 40 * number / 10, refused: refused / (number + 2) },
    };
    let mut top_refused: Vec<_> = (1..=10).map(caller).collect();
    top_refused.retain(|caller| caller.counts.refused > 0);
    LimitReport {
        callers: LimitCallers {
            counted: traffic.1,
            top_refused,
            top_allowed: (1..=10).rev().map(caller).collect(),
            further: Counts::default(),
        },
        limit: LimitDescription::of(rule, limit),
        note: None,
        allowed_requests: allowed,
        refused_requests: refused,
        allowed_units: allowed,
        refused_units: refused,
        timeline,
        first_refusals: refusals.into_iter().take(5).collect(),
        longest_refusals: longest,
        hours: vec![
            VerdictHours {
                verdict: period.report.verdict,
                who: period.report.who,
                hours: 3,
                requests: allowed,
                refused_requests: refused,
                refusing_hours: if refused > 0 { 3 } else { 0 },
            },
            VerdictHours {
                verdict: spillgate::insight::Verdict::NeverBinding,
                who: spillgate::insight::Who::Nobody,
                hours: 21,
                requests: allowed / 4,
                refused_requests: 0,
                refusing_hours: 0,
            },
        ],
        whole_log: None,
        period: Some(period),
    }
    .judged()
}

fn line(number: u64, why: &str, text: &str) -> SampleLine {
    SampleLine { file: "access.log".into(), line: number, why: why.into(), text: Some(text.into()) }
}

/// Returns the report of a shop's log, with rules that need changes, and with all parts that a report can have.
pub(crate) fn shop() -> ReplayReport {
    let rules =
        Rules::parse(&[RulesFile { name: "shop.yaml".into(), text: SHOP.into() }]).expect("the rules are valid");
    let numbers = [(310_000, 31), (1_240_000, 9), (42_000, 24), (880_000, 0), (95_000, 3), (120, 0)];
    let limits = rules.rules().zip(TRAFFIC).zip(numbers);
    let mut limits: Vec<_> =
        limits.map(|((rule, traffic), (all, refused))| limit(rule, traffic, all, refused)).collect();
    limits.sort_by_key(|limit| Reverse(attention(limit)));
    let timeline = day(1_250_000, 8);
    let Counts { allowed, refused } = sum(&timeline);
    let run = RunReport {
        name: "shop.yaml".into(),
        allowed_requests: allowed,
        refused_requests: refused,
        unmatched_requests: 1_204,
        store_full_requests: 0,
        limits,
        timeline,
    };
    let old = RunReport { name: "old.yaml".into(), timeline: day(1_250_000, 21), ..RunReport::default() };
    ReplayReport {
        log: LogSummary {
            files: ["access.log", "access.log.1.gz", "access.log.2.gz", "access.log.3.gz"].map(String::from).to_vec(),
            format: "combined".into(),
            descriptors: ["remote_address={remote_addr}", "path={path}", "api_key={http_x_api_key}"]
                .map(String::from)
                .to_vec(),
            lines: allowed + refused + 2_041,
            bytes: 240_000_000,
            requests: allowed + refused,
            unreadable: Samples {
                count: 37,
                first: vec![
                    line(7_001, "no time", "198.51.100.9 - - [] \"GET / HTTP/1.1\" 200 12"),
                    line(
                        90_412,
                        "longer than 64 KiB",
                        "198.51.100.77 - - [01/Mar/2026:02:11:09 +0000] \"GET /?q=aaaaaaaaaa",
                    ),
                ],
            },
            late: Samples {
                count: 4,
                first: vec![line(55, "92s late", "198.51.100.9 - - [01/Mar/2026:00:00:01 +0000]")],
            },
            without_descriptor: 2_000,
            not_decided: Samples::default(),
            from_ns: BEGIN_NS,
            to_ns: BEGIN_NS + 24 * HOUR_NS - SECOND_NS,
            whole_seconds: true,
        },
        warnings: vec!["12 % of the values of `{remote_addr}` are IPv6 addresses, such as 2001:db8::7.".into()],
        comparison: Some(comparison(&run)),
        suggestions: suggestions(&run),
        suggestion_notes: vec!["A request passes only if each limit allows it.".into()],
        runs: vec![run, old],
        anonymous: false,
        notes: vec!["The requests that are refused here were in fact served, so the log has no retries.".into()],
    }
}

/// Returns how much a limit needs attention. Lists show the highest number first.
pub(crate) fn attention(limit: &LimitReport) -> u8 {
    limit.whole_log.as_ref().map_or(0, |whole_log| whole_log.verdict.attention(whole_log.who))
}

fn comparison(run: &RunReport) -> Comparison {
    let change = |limit: &LimitReport| LimitChange {
        domain: limit.limit.domain.clone(),
        rule: limit.limit.rule.clone(),
        name: limit.limit.name.clone(),
        old: Some(Counts { allowed: limit.allowed_requests, refused: limit.refused_requests * 2 }),
        new: Some(Counts { allowed: limit.allowed_requests, refused: limit.refused_requests }),
    };
    let mut limits: Vec<_> = run.limits.iter().map(change).collect();
    (limits[3].old, limits[4].new) = (None, None);
    let caller = |number: u64| CallerChange {
        caller: format!("remote_address=198.51.100.{}", number * 11),
        requests: 90_000 / number,
        old_refused: 4_000 / number,
        new_refused: if number == 4 { 2_000 } else { 300 / number },
    };
    Comparison {
        old: "old.yaml".into(),
        new: "shop.yaml".into(),
        requests: Agreement {
            both_allow: 1_180_310,
            both_refuse: 21_400,
            only_old_refuses: 52_700,
            only_new_refuses: 4_020,
        },
        limits,
        callers: (1..=8).map(caller).collect(),
        further_callers: 1_204,
        callers_incomplete: false,
    }
}

fn suggestions(run: &RunReport) -> Vec<SuggestionResult> {
    let suggestion = |limit: &LimitReport| {
        let whole_log = limit.whole_log.as_ref()?;
        let suggestion = whole_log.suggestion?;
        let (today, part) =
            (Counts { allowed: limit.allowed_requests, refused: limit.refused_requests }, limit.refused_requests / 12);
        Some(SuggestionResult {
            limit: limit.limit.clone(),
            suggested_limit: suggestion.limit,
            suggested_burst: suggestion.burst,
            suggested_rules: whole_log.suggested_rules.clone()?,
            today,
            then: Counts { allowed: today.allowed + today.refused - part, refused: part },
            requests: Agreement {
                both_allow: today.allowed,
                both_refuse: part,
                only_old_refuses: today.refused - part,
                only_new_refuses: 0,
            },
            verdict_today: whole_log.verdict,
            who_today: whole_log.who,
            verdict_then: Some(spillgate::insight::Verdict::Effective),
            who_then: Some(spillgate::insight::Who::Nobody),
        })
    };
    run.limits.iter().filter_map(suggestion).collect()
}
