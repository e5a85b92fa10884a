//! A report for tests of its outputs. It has each part that a report can have, and hostile texts.

use spillgate::insight::{LimitInsight, Options, Suggestion, Take};
use spillgate::rules::{LimitDescription, Rules, RulesFile};
use spillgate::{Clock as _, Limiter, ManualClock, MemoryOptions, MemoryStore, Time};

use super::report::*;

/// The beginning of the log: 2026-03-01 12:00:00 UTC.
pub(crate) const BEGIN_NS: u64 = 1_772_366_400_000_000_000;
const HOUR_NS: u64 = 3_600_000_000_000;
/// A text that would be markup, or control a terminal, if an output forgot to clean it.
pub(crate) const HOSTILE: &str = "<script>alert(1)</script>\u{1b}[2J\u{202e}\"'&";

const RULES: &str = "domain: api
descriptors:
  - {key: remote_address, rate_limit: {unit: minute, requests_per_unit: 60, name: <b>per address</b>}}
  - {key: path, rate_limit: {unit: hour, requests_per_unit: 100000}}
  - {key: empty, rate_limit: {unit: second, requests_per_unit: 5, algorithm: sliding_window_log}}
";

/// Returns a report with three limits: one that refuses much, one that never refuses, and one without requests.
pub(crate) fn sample() -> ReplayReport {
    let rules =
        Rules::parse(&[RulesFile { name: "rules.yaml".into(), text: RULES.into() }]).expect("the rules are valid");
    let mut limits: Vec<_> = rules.rules().map(|rule| limit(rule, 30)).collect();
    (limits[2].period, limits[2].whole_log, limits[2].hours) = (None, None, Vec::new());
    limits[2].note = Some("No request of the log has this descriptor.".into());
    let old =
        RunReport { name: "old.yaml".into(), allowed_requests: 20_000, timeline: timeline(0), ..RunReport::default() };
    let new = RunReport {
        name: "rules.yaml".into(),
        allowed_requests: 17_000,
        refused_requests: 3_000,
        unmatched_requests: 12,
        store_full_requests: 0,
        timeline: timeline(30),
        limits,
    };
    let line = |why: &str, text: &str| SampleLine {
        file: "access.log".into(),
        line: 7,
        why: why.into(),
        text: Some(text.into()),
    };
    let samples = |why: &str| Samples { count: 2, first: vec![line(why, HOSTILE), line(why, "-")] };
    ReplayReport {
        log: LogSummary {
            files: vec!["access.log".into(), "access.log.1.gz".into()],
            format: "combined".into(),
            descriptors: vec!["remote_address={remote_addr}".into(), "path={path}".into()],
            lines: 20_016,
            bytes: 4_000_000,
            requests: 20_000,
            unreadable: samples("no time"),
            late: samples("61s late"),
            without_descriptor: 12,
            not_decided: samples("too many bytes in a key"),
            from_ns: BEGIN_NS,
            to_ns: BEGIN_NS + 2 * HOUR_NS,
            whole_seconds: true,
        },
        warnings: vec![format!("12 % of the values of `{{uri}}` are URIs with a query, such as {HOSTILE}.")],
        comparison: Some(comparison(&new)),
        suggestions: suggestions(&rules),
        suggestion_notes: vec![format!("Not tried: {HOSTILE}")],
        runs: vec![new, old],
        anonymous: false,
        notes: vec!["Refused requests were in fact served, so the log has no retries.".into()],
    }
}

/// Returns a timeline of two hours. In its middle, `refused_percent` of the requests are refused.
fn timeline(refused_percent: u64) -> Timeline {
    let point = |index: u64| {
        let requests = 100 + 80 * (index % 20);
        let refused = if (40..80).contains(&index) { requests * refused_percent / 100 } else { 0 };
        Counts { allowed: requests - refused, refused }
    };
    Timeline { begin_ns: BEGIN_NS, step_ns: 60_000_000_000, points: (0..120).map(point).collect() }
}

fn limit(rule: &spillgate::rules::Rule, refused_percent: u64) -> LimitReport {
    let limit = &rule.limits[0];
    let period = period(rule, limit);
    let refusal = |line: u64| Refusal {
        file: "access.log".into(),
        line,
        time_ns: BEGIN_NS + line * 1_000_000_000,
        text: Some(format!("203.0.113.{line} - - \"GET /{HOSTILE} HTTP/1.1\" 200")),
        caller: format!("remote_address=203.0.113.{line}{HOSTILE}"),
        wait_ns: (!line.is_multiple_of(3)).then_some(line * 1_500_000_000),
    };
    let caller = |number: u64| CallerCounts {
        caller: format!("remote_address=203.0.113.{number}{HOSTILE}"),
        counts: Counts { allowed: 100 * number, refused: 1_000 / number },
    };
    let further = Counts { allowed: 3, refused: 4 };
    let callers = LimitCallers {
        counted: 40,
        top_refused: (1..=6).map(caller).collect(),
        top_allowed: (1..=6).rev().map(caller).collect(),
        further,
    };
    LimitReport {
        callers,
        limit: LimitDescription::of(rule, limit),
        note: None,
        allowed_requests: 17_000,
        refused_requests: 3_000,
        allowed_units: 17_000,
        refused_units: 3_000,
        timeline: timeline(refused_percent),
        first_refusals: (1..=5).map(refusal).collect(),
        longest_refusals: (1..=5).rev().map(refusal).collect(),
        hours: vec![VerdictHours {
            verdict: period.report.verdict,
            who: period.report.who,
            hours: 2,
            requests: 20_000,
            refused_requests: 3_000,
            refusing_hours: 2,
        }],
        whole_log: None,
        period: Some(period),
    }
    .judged()
}

/// Runs an hour of requests. Most callers send many requests at once, some keep to the limit, and one sends requests
/// all the time.
fn period(rule: &spillgate::rules::Rule, limit: &spillgate::rules::Limit) -> Period {
    let clock = ManualClock::at(Time::from_nanos(BEGIN_NS));
    let limiter = Limiter::with_clock(MemoryStore::new(MemoryOptions::default()), clock.clone());
    let insight =
        LimitInsight::new(&limit.quota, Options { callers: 4096, names: true, ..Options::default() }, clock.now());
    for second in 0..3_600_u64 {
        for user in 0..40_u64 {
            let requests = match user {
                0 => 1,
                1..30 => {
                    if second % 600 == user {
                        90
                    } else {
                        0
                    }
                }
                _ => u64::from(second % (user + 4) == 0),
            };
            for _ in 0..requests {
                let decision = limiter.take_now(&limit.quota, user, 1);
                let key = limiter.hit(&limit.quota, user, 1).key;
                let name = format!("remote_address=203.0.113.{user}{HOSTILE}");
                let name = || spillgate::insight::CallerName::of([&*name]);
                insight.count_named(clock.now(), key, &Take::of(1, &decision), name);
            }
        }
        clock.advance(std::time::Duration::from_secs(1));
    }
    let report = insight.read(clock.now()).report();
    let bar = |at_most: f64, callers| Bar { at_most: Some(at_most), callers };
    Period {
        from_ns: BEGIN_NS,
        to_ns: BEGIN_NS + HOUR_NS,
        suggested_rules: report.suggestion.map(|suggestion| suggestion.to_yaml(rule, limit)),
        report,
        burst_needed: vec![bar(1.0, 10), bar(2.0, 12), bar(4.0, 8), bar(64.0, 0), bar(128.0, 9)],
        used: (1..=20).map(|step| bar(f64::from(step) * 5.0, 40 / u64::from(step as u32))).collect(),
        burst_error_units: Some(1.0),
    }
}

fn comparison(new: &RunReport) -> Comparison {
    let counts = Counts { allowed: 17_000, refused: 3_000 };
    let change = |limit: &LimitReport| LimitChange {
        domain: limit.limit.domain.clone(),
        rule: limit.limit.rule.clone(),
        name: limit.limit.name.clone(),
        old: Some(Counts { allowed: 20_000, refused: 0 }),
        new: Some(counts),
    };
    let mut limits: Vec<_> = new.limits.iter().map(change).collect();
    (limits[1].old, limits[2].new) = (None, None);
    let caller = |number: u64| CallerChange {
        caller: format!("remote_address=203.0.113.{number}{HOSTILE}"),
        requests: 1_000 / number,
        old_refused: number,
        new_refused: 500 / number,
    };
    Comparison {
        old: "old.yaml".into(),
        new: "rules.yaml".into(),
        requests: Agreement { both_allow: 17_000, both_refuse: 0, only_old_refuses: 100, only_new_refuses: 2_900 },
        limits,
        callers: (1..=10).map(caller).collect(),
        further_callers: 17,
        callers_incomplete: false,
    }
}

fn suggestions(rules: &Rules) -> Vec<SuggestionResult> {
    let suggestion = |rule: &spillgate::rules::Rule| SuggestionResult {
        limit: LimitDescription::of(rule, &rule.limits[0]),
        suggested_limit: 60,
        suggested_burst: Some(180),
        suggested_rules: Suggestion::new(60, Some(180)).to_yaml(rule, &rule.limits[0]),
        today: Counts { allowed: 17_000, refused: 3_000 },
        then: Counts { allowed: 19_500, refused: 500 },
        requests: Agreement { both_allow: 17_000, both_refuse: 500, only_old_refuses: 2_500, only_new_refuses: 0 },
        verdict_today: spillgate::insight::Verdict::Bursts,
        who_today: spillgate::insight::Who::Many,
        verdict_then: Some(spillgate::insight::Verdict::Effective),
        who_then: Some(spillgate::insight::Who::Many),
    };
    rules.rules().take(1).map(suggestion).collect()
}

#[test]
fn the_sample_has_every_part() {
    let report = sample();
    let limits = &report.runs[0].limits;
    assert!(limits[0].period.as_ref().is_some_and(|period| period.suggested_rules.is_some()));
    assert!(limits[1].period.is_some() && limits[2].period.is_none());
    assert!(report.comparison.is_some() && !report.suggestions.is_empty() && !report.notes.is_empty());
}
