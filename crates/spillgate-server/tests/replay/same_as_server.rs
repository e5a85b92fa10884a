//! The same requests at the same times get the same answers and the same insight from a server.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use spillgate::Time;
use spillgate_server::replay::report::LimitReport;
use spillgate_server::replay::{Filled, Names, Record, Replay, Replayed, Run, Templates};

use crate::scenario::{FRACTIONS, end_of_hour, log, options, read, rules, templates};
use crate::server::Server;

/// Limits of each algorithm, and of each kind of rule.
const RULES: &str = "domain: web
descriptors:
  - key: remote_address
    rate_limits:
      - {name: bucket, algorithm: token_bucket, unit: minute, requests_per_unit: 30, burst: 10}
      - {name: day, algorithm: sliding_window_counter, unit: day, requests_per_unit: 500, segments: 24}
    descriptors:
      - key: path
        rate_limit: {algorithm: leaky_bucket, unit: minute, requests_per_unit: 20, queue: 3}
  - key: path
    value: /login
    rate_limit: {algorithm: sliding_window_log, unit: minute, requests_per_unit: 20, penalty: 90s}
  - key: path
    rate_limit: {name: shadowed, algorithm: fixed_window, unit: second, requests_per_unit: 2}
    shadow_mode: true
  - key: kind
    value: sketched
    rate_limit: {algorithm: token_bucket, unit: second, limit: 5, representation: sketch, sketch_memory: 1MiB}
  - key: kind
    rate_limit: {algorithm: concurrency, requests_per_unit: 20, lease: 30s}
";

const DESCRIPTORS: [&str; 5] = [
    "remote_address={remote_addr}",
    "path={path}",
    "remote_address={remote_addr},path={path}",
    "kind=sketched",
    "kind={method}",
];

/// Rules as the reference server has them: each descriptor is charged alone.
const COMPAT: &str = "domain: web
compat: envoy
descriptors:
  - {key: remote_address, rate_limit: {unit: minute, requests_per_unit: 20}}
  - {key: path, rate_limit: {unit: hour, requests_per_unit: 500}}
";

/// Returns the body of `POST /v1/check` for this request.
fn body(templates: &Templates, filled: &Filled) -> Value {
    let request = templates.request("web", filled).expect("the line has the fields");
    let entries = |entries: &[(&str, &str)]| entries.iter().map(|(key, value)| json!([key, value])).collect::<Value>();
    let descriptors: Vec<Value> = request.descriptors().map(|descriptor| entries(descriptor.entries)).collect();
    json!({ "domain": "web", "descriptors": descriptors })
}

/// What was compared.
#[derive(Default)]
struct Compared {
    allowed: u64,
    refused: u64,
    /// The insights of the server at each time when the replay reads its own.
    insights: BTreeMap<u64, Vec<Value>>,
}

/// Asks a replay and a server each request of the log. Each answer must be the same.
fn compare(log: &str, format: &str, rules_text: &str, descriptors: &[&str]) -> (Compared, Replayed) {
    let templates = templates(descriptors);
    let (mut compared, mut both, mut last) = (Compared::default(), None, Time::EPOCH);
    read(log, format, &templates, |record: &Record<'_>, filled| {
        let options = options();
        let (server, replay) = both.get_or_insert_with(|| {
            let run = Run::new("rules.yaml".into(), rules(rules_text), &options, record.time);
            (Server::start(rules(rules_text), &options, record.time), Replay::new(vec![run], false))
        });
        let end = end_of_hour(last);
        if last > Time::EPOCH && record.time > end {
            compared.insights.insert(end.as_nanos(), server.insight(end));
        }
        last = record.time;
        let (status, answer) = server.check(record.time, &body(&templates, filled));
        let request = templates.request("web", filled).expect("the line has the fields");
        let decided = replay.decide(record, &request).expect("the request is decided");
        assert_eq!(decided.allowed, status == 200, "line {}: {answer}", record.line);
        assert_eq!(Some(decided.allowed), answer["allowed"].as_bool(), "line {}: {answer}", record.line);
        let count = if decided.allowed { &mut compared.allowed } else { &mut compared.refused };
        *count += 1;
    });
    let (server, replay) = both.expect("the log has lines");
    compared.insights.insert(last.as_nanos(), server.insight(last));
    (compared, replay.finish(false, &Names::plain()))
}

/// Returns a report in the form of the page `/insight`.
fn as_page(limit: &LimitReport) -> Value {
    let period = limit.period.as_ref().expect("the limit has requests");
    // As a text, the numbers are rounded as those of the page.
    let text = serde_json::to_string(&period.report).expect("a report becomes JSON");
    serde_json::from_str(&text).expect("it is JSON")
}

/// The insight of each limit must be what the server has said at the same time. Returns the number of limits with requests.
fn assert_same_insight(compared: &Compared, replayed: &Replayed) -> usize {
    let mut found = 0;
    for (index, limit) in replayed.runs[0].limits.iter().enumerate() {
        let Some(period) = &limit.period else { continue };
        let page = &compared.insights[&period.to_ns][index];
        for (member, value) in as_page(limit).as_object().expect("it is an object") {
            assert_eq!(&page[member], value, "{member} of {} at {}", limit.limit.rule, period.to_ns);
        }
        assert_eq!(page["suggested_rules"], json!(period.suggested_rules));
        assert_eq!((&page["rule"], &page["line"]), (&json!(limit.limit.rule), &json!(limit.limit.line)));
        found += 1;
    }
    found
}

#[test]
fn the_answers_and_the_insight_are_those_of_a_server() {
    let (text, format) = match std::env::var_os("REPLAY_LOG") {
        Some(path) => (std::fs::read_to_string(path).expect("the log can be read"), "combined"),
        // The log has two hours and a half.
        None => (log(6_000, 2_500, 1), FRACTIONS),
    };
    let (compared, replayed) = compare(&text, format, RULES, &DESCRIPTORS);
    assert!(compared.allowed > 100 && compared.refused > 100, "{} and {}", compared.allowed, compared.refused);
    let run = &replayed.runs[0];
    assert_eq!((run.allowed_requests, run.refused_requests), (compared.allowed, compared.refused));
    assert_eq!(assert_same_insight(&compared, &replayed), 7, "each limit has requests");
    assert!(compared.insights.len() > 2);
    println!(
        "{} requests: {} allowed and {} refused by the server and by the replay; {} readings of insight",
        replayed.records,
        compared.allowed,
        compared.refused,
        compared.insights.len()
    );
}

#[test]
fn the_answers_are_those_of_a_server_with_rules_for_envoy() {
    let (compared, replayed) = compare(&log(2_000, 2_500, 2), FRACTIONS, COMPAT, &DESCRIPTORS[..2]);
    assert!(compared.allowed > 100 && compared.refused > 100, "{} and {}", compared.allowed, compared.refused);
    assert_eq!(assert_same_insight(&compared, &replayed), 2);
}

#[test]
fn the_sums_of_a_run_are_those_of_its_requests() {
    let (compared, replayed) = compare(&log(2_000, 2_500, 3), FRACTIONS, RULES, &DESCRIPTORS);
    let run = &replayed.runs[0];
    let sum = |points: &[spillgate_server::replay::report::Counts]| {
        points.iter().fold((0, 0), |sum, point| (sum.0 + point.allowed, sum.1 + point.refused))
    };
    assert_eq!(sum(&run.timeline.points), (compared.allowed, compared.refused));
    for limit in &run.limits {
        let counts = (limit.allowed_requests, limit.refused_requests);
        assert_eq!((limit.allowed_units, limit.refused_units), counts, "each request costs one unit");
        assert_eq!(sum(&limit.timeline.points), counts);
        assert_eq!(limit.first_refusals.len() as u64, counts.1.min(5));
        assert!(limit.first_refusals.is_sorted_by_key(|refusal| refusal.time_ns));
        assert!(limit.longest_refusals.is_sorted_by(|one, next| one.wait_ns >= next.wait_ns));
        let period = limit.period.as_ref().expect("each limit has requests");
        assert!(period.to_ns - period.from_ns < 3_600_000_000_000);
        let bars: u64 = period.used.iter().map(|bar| bar.callers).sum();
        assert_eq!(bars as f64, period.report.spans[2].callers.asked.value);
    }
}
