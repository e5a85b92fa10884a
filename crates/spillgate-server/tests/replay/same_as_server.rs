//! Sends the requests of a log to a server, at the times of the log. Its answers and its insight must be those of the
//! replay.

use std::collections::BTreeMap;
use std::fs::File;

use serde_json::{Value, json};
use spillgate::Time;
use spillgate::rules::Request;
use spillgate_replay::report::LimitReport;
use spillgate_replay::{Filled, LoggedRequest, Names, Replay, Replayed, Run, Templates};

use crate::replay::scenario::{FRACTIONS, Log, end_of_hour, log, of_text, options, read, rules, templates};
use crate::replay::server::Server;

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

/// Rules that are decided as by Envoy's reference server: each descriptor is charged alone.
const COMPAT: &str = "domain: web
compat: envoy
descriptors:
  - {key: remote_address, rate_limit: {unit: minute, requests_per_unit: 20}}
  - {key: path, rate_limit: {unit: hour, requests_per_unit: 500}}
";

fn request<'f>(templates: &'f Templates, filled: &'f Filled) -> Request<'f> {
    templates.request("web", filled).expect("the line has the fields")
}

/// Returns the body of `POST /v1/check` for this request.
fn body(templates: &Templates, filled: &Filled) -> Value {
    let request = request(templates, filled);
    let entries = |entries: &[(&str, &str)]| entries.iter().map(|(key, value)| json!([key, value])).collect::<Value>();
    let descriptors: Vec<Value> = request.descriptors().map(|descriptor| entries(descriptor.entries)).collect();
    json!({ "domain": "web", "descriptors": descriptors })
}

struct Compared {
    replayed: Replayed,
    allowed: u64,
    refused: u64,
    /// The refusals of the server, by the number of the line.
    refusals: BTreeMap<u64, Value>,
    /// What the server says of each limit. The keys are the times (in nanoseconds) of the readings that the replay
    /// shows.
    insights: BTreeMap<u64, Vec<Value>>,
}

fn start(rules_text: &str, begin: Time) -> Replay {
    let run = Run::new("rules.yaml".into(), rules(rules_text), &options(), begin);
    Replay::new(vec![run.expect("there is memory")], false)
}

/// Replays a log. `each` gets a logged request, the values of its descriptors, and the replay, which has not yet
/// decided this request.
fn replayed(
    log: Log,
    format: &str,
    (rules_text, templates): (&str, &Templates),
    mut each: impl FnMut(&LoggedRequest<'_>, &Filled, &mut Replay),
) -> Replayed {
    let mut replay = None;
    read(log, format, templates, |logged, filled| {
        each(logged, filled, replay.get_or_insert_with(|| start(rules_text, logged.time)));
    });
    replay.expect("the log has lines").finish(false, &Names::plain())
}

/// Gives each request of the log to a replay and to a server. Both must give the same answer.
fn compare(open: impl Fn() -> Log, format: &str, rules_text: &str, descriptors: &[&str]) -> Compared {
    let templates = templates(descriptors);
    let first = replayed(open(), format, (rules_text, &templates), |logged, filled, replay| {
        replay.decide(logged, &request(&templates, filled)).expect("the request is decided");
    });
    let periods = first.runs[0].limits.iter().filter_map(|limit| limit.period.as_ref());
    let mut insights: BTreeMap<u64, Vec<Value>> = periods.map(|period| (period.to_ns, Vec::new())).collect();
    let (mut server, mut last) = (None, Time::EPOCH);
    let (mut allowed, mut refused, mut refusals) = (0, 0, BTreeMap::new());
    let replayed = replayed(open(), format, (rules_text, &templates), |logged, filled, replay| {
        let server = server.get_or_insert_with(|| Server::start(rules(rules_text), &options(), logged.time));
        let end = end_of_hour(last);
        if logged.time > end
            && let Some(insight) = insights.get_mut(&end.as_nanos())
        {
            *insight = server.insight(end);
        }
        last = logged.time;
        let (status, answer) = server.check(logged.time, &body(&templates, filled));
        let decided = replay.decide(logged, &request(&templates, filled)).expect("the request is decided");
        assert_eq!(decided.allowed, status == 200, "line {}: {answer}", logged.line);
        assert_eq!(Some(decided.allowed), answer["allowed"].as_bool(), "line {}: {answer}", logged.line);
        let count = if decided.allowed { &mut allowed } else { &mut refused };
        *count += 1;
        if !decided.allowed {
            refusals.insert(logged.line, answer);
        }
    });
    // The replay makes its last readings at the end of the log or of the log's last hour, so the server is asked for
    // them here.
    let server = server.expect("the log has lines");
    for (at_ns, insight) in insights.iter_mut().filter(|(at_ns, _)| **at_ns >= last.as_nanos()) {
        *insight = server.insight(Time::from_nanos(*at_ns));
    }
    Compared { replayed, allowed, refused, refusals, insights }
}

/// Returns a report in the form of the page `/insight`.
fn as_page(limit: &LimitReport) -> Value {
    let period = limit.period.as_ref().expect("the limit has requests");
    // The numbers in the text are rounded like those of the page.
    let text = serde_json::to_string(&period.report).expect("a report becomes JSON");
    serde_json::from_str(&text).expect("it is JSON")
}

/// Asserts that the insight of each limit is what the server said at the same time. Returns the number of limits with
/// requests.
fn assert_same_insight(compared: &Compared) -> usize {
    let mut found = 0;
    for (index, limit) in compared.replayed.runs[0].limits.iter().enumerate() {
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

/// Asserts that the refusals in the report have the waits of the server's answers. Returns how many were compared.
fn assert_same_waits(compared: &Compared) -> usize {
    let mut found = 0;
    for limit in &compared.replayed.runs[0].limits {
        for refusal in limit.first_refusals.iter().chain(&limit.longest_refusals) {
            let answer = &compared.refusals[&refusal.line];
            // If several limits refuse, the answer has the wait of one of them.
            if answer["rule"] == json!(limit.limit.rule) {
                let wait_ms = refusal.wait_ns.map(|ns| ns.div_ceil(1_000_000));
                assert_eq!(answer["retry_after_ms"].as_u64(), wait_ms, "line {}: {answer}", refusal.line);
                found += 1;
            }
        }
    }
    found
}

#[test]
fn the_answers_and_the_insight_are_those_of_a_server() {
    let compared = match std::env::var_os("REPLAY_LOG") {
        Some(path) => {
            let open = || -> Log { Box::new(File::open(&path).expect("the log can be read")) };
            compare(open, "combined", RULES, &DESCRIPTORS)
        }
        // The log covers two and a half hours.
        None => {
            let text = log(4_000, 3_700, 1);
            compare(|| of_text(&text), FRACTIONS, RULES, &DESCRIPTORS)
        }
    };
    let Compared { replayed, allowed, refused, .. } = &compared;
    assert!(*allowed > 100 && *refused > 100, "{allowed} and {refused}");
    let run = &replayed.runs[0];
    assert_eq!((run.allowed_requests, run.refused_requests), (*allowed, *refused));
    let limits = assert_same_insight(&compared);
    assert_eq!(limits, 7, "each limit has requests");
    println!(
        "{allowed} requests allowed and {refused} refused, each by both; the insight of {limits} limits is the same"
    );
}

#[test]
fn the_answers_are_those_of_a_server_with_rules_for_envoy() {
    let text = log(2_000, 2_500, 2);
    let compared = compare(|| of_text(&text), FRACTIONS, COMPAT, &DESCRIPTORS[..2]);
    assert!(compared.allowed > 100 && compared.refused > 100, "{} and {}", compared.allowed, compared.refused);
    assert_eq!(assert_same_insight(&compared), 2);
    let waits = assert_same_waits(&compared);
    assert!(waits >= 10, "only {waits} waits were compared");
}

#[test]
fn the_sums_of_a_run_are_those_of_its_requests() {
    let text = log(2_000, 2_500, 3);
    let compared = compare(|| of_text(&text), FRACTIONS, RULES, &DESCRIPTORS);
    let run = &compared.replayed.runs[0];
    let sum = |points: &[spillgate_replay::report::Counts]| {
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
