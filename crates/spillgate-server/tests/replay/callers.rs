//! Tests of the callers that a replay lists for each limit, over the whole log.

use std::collections::BTreeMap;

use spillgate_replay::report::{CallerCounts, Counts, LimitReport};

use crate::cli_support::Folder;
use crate::replay::scenario::{log, replay, rules};

const PER_MINUTE: &str = "domain: web
descriptors:
  - {key: remote_address, rate_limit: {unit: minute, requests_per_unit: 6}}
";
const DESCRIPTOR: [&str; 1] = ["remote_address={remote_addr}"];

/// Returns the lines of a log, with the time of each in seconds.
fn lines(requests: impl IntoIterator<Item = (String, u64)>) -> String {
    requests.into_iter().map(|(caller, at)| format!("{caller} {at}.0 \"GET / HTTP/1.1\"\n")).collect()
}

/// Counts callers as a fixed window of a minute does.
fn counted(log: &str) -> Vec<CallerCounts> {
    let mut windows: BTreeMap<(&str, u64), u64> = BTreeMap::new();
    let mut callers: BTreeMap<&str, Counts> = BTreeMap::new();
    for line in log.lines() {
        let mut words = line.split(' ');
        let caller = words.next().expect("a line has a caller");
        let at: f64 = words.next().and_then(|word| word.parse().ok()).expect("a line has a time");
        let requests = windows.entry((caller, at as u64 / 60)).or_default();
        *requests += 1;
        let counts = callers.entry(caller).or_default();
        let count = if *requests <= 6 { &mut counts.allowed } else { &mut counts.refused };
        *count += 1;
    }
    let named = |(caller, counts): (&str, Counts)| CallerCounts { caller: format!("remote_address={caller}"), counts };
    callers.into_iter().map(named).collect()
}

#[test]
fn the_callers_of_a_limit_are_those_of_the_whole_log() {
    // The log covers two and a half hours, and some of its callers have equal counts.
    let log = log(6_000, 2_000, 7);
    let all = counted(&log);
    let by = |count: fn(&Counts) -> u64| {
        let mut top: Vec<_> = all.iter().filter(|caller| count(&caller.counts) > 0).cloned().collect();
        top.sort_by(|one, other| count(&other.counts).cmp(&count(&one.counts)).then(one.caller.cmp(&other.caller)));
        top.truncate(10);
        top
    };
    let found = replay(&log, vec![rules(PER_MINUTE)], false, &DESCRIPTOR);
    let LimitReport { callers, .. } = &found.runs[0].limits[0];
    assert_eq!(callers.top_refused, by(|counts| counts.refused));
    assert_eq!(callers.top_allowed, by(|counts| counts.allowed));
    assert_eq!((callers.counted, callers.further), (all.len() as u64, Counts::default()));
    assert!(callers.top_refused.len() >= 5, "{callers:?}");
}

#[test]
fn callers_beyond_the_bound_are_counted_together() {
    let callers = (0..100_003).map(|caller| (format!("{caller}"), 1_772_366_400));
    let early = (0..7).map(|_| ("0".to_owned(), 1_772_366_400));
    let found = replay(&lines(callers.chain(early)), vec![rules(PER_MINUTE)], false, &DESCRIPTOR);
    let callers = &found.runs[0].limits[0].callers;
    assert_eq!((callers.counted, callers.further), (100_000, Counts { allowed: 3, refused: 0 }));
    let first = CallerCounts { caller: "remote_address=0".into(), counts: Counts { allowed: 6, refused: 2 } };
    assert_eq!(callers.top_refused, [first]);
}

#[test]
fn callers_whose_names_begin_with_the_same_bytes_are_not_one_caller() {
    let name = |end: &str| format!("{}{end}", "k".repeat(200));
    let requests = [(name("1"), 9), (name("2"), 8)].map(|(caller, count)| vec![(caller, 1_772_366_400); count]);
    let other = PER_MINUTE.replace(": 6", ": 5");
    let rules = vec![rules(PER_MINUTE), rules(&other)];
    let found = replay(&lines(requests.into_iter().flatten()), rules, true, &DESCRIPTOR);
    let changes = found.comparison.expect("two runs are compared").callers;
    let changes: Vec<_> = changes.iter().map(|it| (it.requests, it.old_refused, it.new_refused)).collect();
    assert_eq!(changes, [(9, 4, 3), (8, 3, 2)]);
    let limit = &found.runs[0].limits[0];
    let counts: Vec<_> = limit.callers.top_refused.iter().map(|caller| caller.counts.refused).collect();
    assert_eq!((counts, limit.longest_refusals.len()), (vec![3, 2], 2));
    // All lists cut a name after the same number of bytes, so a caller has the same name everywhere.
    let names = limit.callers.top_refused.iter().map(|caller| &caller.caller);
    assert!(names.chain(limit.longest_refusals.iter().map(|refusal| &refusal.caller)).all(|name| name.len() == 64));
}

#[test]
fn a_limit_that_a_log_says_little_about_has_a_note() {
    let requests = lines((0..20).map(|_| ("a".to_owned(), 1_772_366_400)));
    for (options, allowed, note) in [
        ("post_paid: true", 20, "charged after the work"),
        ("algorithm: leaky_bucket, queue: 9", 1, "Without --wait no request waits"),
    ] {
        let text = PER_MINUTE.replace(": 6", &format!(": 6, {options}"));
        let found = replay(&requests, vec![rules(&text)], false, &DESCRIPTOR);
        let limit = &found.runs[0].limits[0];
        assert_eq!((limit.allowed_requests, limit.refused_requests), (allowed, 20 - allowed));
        assert!(limit.note.as_ref().is_some_and(|text| text.contains(note)), "{limit:?}");
    }
}

#[test]
fn requests_wait_in_a_queue_for_as_long_as_the_user_says() {
    // One request leaves the queue every 10 seconds.
    let requests = lines((0..20).map(|_| ("a".to_owned(), 1_772_366_400)));
    let folder = Folder::new(&[
        ("rules.yaml", &PER_MINUTE.replace(": 6", ": 6, algorithm: leaky_bucket, queue: 9")),
        ("a.log", &requests),
    ]);
    for (wait, expected) in [
        ("0s", "1 request allowed, 19 refused"),
        ("35s", "4 requests allowed, 16 refused"),
        ("1h", "10 requests allowed, 10 refused"),
    ] {
        let arguments = ["replay", "rules.yaml", "--log", "a.log", "-f", "$remote_addr $msec", "--wait", wait, "-e"];
        let output = folder.run_with(&[&arguments[..], &DESCRIPTOR[..]].concat(), &[]);
        assert!(output.stdout.contains(expected), "{wait}: {output:?}");
    }
}

#[test]
fn requests_that_a_full_memory_refuses_are_named() {
    let requests = lines((0..20).map(|caller| (caller.to_string(), 1_772_366_400)));
    let settings = "rules: [rules.yaml]\nmemory: {max_keys: 5}\n";
    let folder = Folder::new(&[("rules.yaml", PER_MINUTE), ("a.log", &requests), ("s.yaml", settings)]);
    let arguments = ["replay", "-c", "s.yaml", "--log", "a.log", "-f", "$remote_addr $msec", "--json", "-e"];
    let output = folder.run_with(&[&arguments[..], &DESCRIPTOR[..]].concat(), &[]);
    let report: serde_json::Value = serde_json::from_str(&output.stdout).expect("it is one line of JSON");
    let run = &report["runs"][0];
    let full = run["store_full_requests"].as_u64().expect("it is a number");
    let counted = run["limits"][0]["allowed_requests"].as_u64().expect("it is a number");
    assert!(full > 0 && full + counted == 20, "{run}");
    assert_eq!(run["refused_requests"], full);
}

#[test]
fn a_wait_of_nanoseconds_is_shown_as_less_than_a_millisecond() {
    // Seven requests in a minute keep to the limit. But the time for one unit is rounded up to nanoseconds, so the next
    // seven requests come a little too early.
    let rules = "domain: web
descriptors:
  - {key: remote_address, rate_limit: {algorithm: token_bucket, unit: minute, requests_per_unit: 7, burst: 7}}
";
    let requests = (0..14).map(|request| ("a".to_owned(), 1_772_366_400 + request / 7 * 60));
    let folder = Folder::new(&[("rules.yaml", rules), ("a.log", &lines(requests))]);
    let output = folder.run_with(
        &[&["replay", "rules.yaml", "--log", "a.log", "-f", "$remote_addr $msec", "-e"], &DESCRIPTOR[..]].concat(),
        &[],
    );
    assert!(output.stdout.contains("13 requests allowed, 1 refused"), "{output:?}");
    assert!(output.stdout.contains(", wait <1ms (a.log:14)"), "{output:?}");
}
