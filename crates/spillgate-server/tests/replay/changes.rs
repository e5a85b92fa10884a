//! Tests of comparisons of two rules files, and of suggestions that a replay tries on the same log.

use spillgate_replay::report::{Agreement, CallerChange, Counts};
use spillgate_replay::{results, suggested};

use crate::replay::scenario::{replay, rules};

fn per_minute(limit: u64) -> String {
    format!(
        "domain: web\ndescriptors:\n  - {{key: remote_address, rate_limit: {{unit: minute, requests_per_unit: {limit}}}}}\n"
    )
}

/// Returns a log with this many requests of each caller, all in one second.
fn requests(callers: &[(&str, u64)]) -> String {
    let of = |(caller, count): &(&str, u64)| {
        format!("{caller} 1772366400.5 \"GET / HTTP/1.1\"\n").repeat(usize::try_from(*count).expect("it is small"))
    };
    callers.iter().map(of).collect()
}

#[test]
fn a_comparison_says_what_changes_for_whom() {
    let log = requests(&[("a", 10), ("b", 4), ("c", 1)]);
    let found =
        replay(&log, vec![rules(&per_minute(3)), rules(&per_minute(5))], true, &["remote_address={remote_addr}"]);
    let comparison = found.comparison.expect("two runs are compared");
    let agreement = Agreement { both_allow: 7, both_refuse: 5, only_old_refuses: 0, only_new_refuses: 3 };
    assert_eq!(comparison.requests, agreement);
    let [limit] = &comparison.limits[..] else { panic!("{:?}", comparison.limits) };
    let counts = |allowed, refused| Some(Counts { allowed, refused });
    assert_eq!((limit.old, limit.new), (counts(10, 5), counts(7, 8)));
    let caller = |name: &str, requests, old_refused, new_refused| CallerChange {
        caller: format!("remote_address={name}"),
        requests,
        old_refused,
        new_refused,
    };
    assert_eq!(comparison.callers, [caller("a", 10, 5, 7), caller("b", 4, 0, 1)]);
    assert_eq!((comparison.further_callers, comparison.callers_incomplete), (0, false));
}

#[test]
fn limits_of_one_file_only_are_in_a_comparison() {
    let other = per_minute(3).replace("remote_address,", "path,");
    let descriptors = ["remote_address={remote_addr}", "path={path}"];
    let found = replay(&requests(&[("a", 5)]), vec![rules(&per_minute(3)), rules(&other)], true, &descriptors);
    let limits = found.comparison.expect("two runs are compared").limits;
    let counts = Some(Counts { allowed: 3, refused: 2 });
    let found: Vec<_> = limits.iter().map(|limit| (&*limit.rule, limit.old, limit.new)).collect();
    assert_eq!(found, [("remote_address", None, counts), ("path", counts, None)]);
}

#[test]
fn callers_beyond_the_bound_are_only_in_the_sums() {
    let log: String = (0..100_002).map(|caller| format!("{caller} 1772366400.5 \"GET / HTTP/1.1\"\n")).collect();
    let found =
        replay(&log, vec![rules(&per_minute(0)), rules(&per_minute(1))], true, &["remote_address={remote_addr}"]);
    let comparison = found.comparison.expect("two runs are compared");
    assert_eq!((comparison.requests.only_new_refuses, comparison.callers_incomplete), (100_002, true));
    assert_eq!(comparison.callers.len() as u64 + comparison.further_callers, 100_000);
}

/// Returns a log of two hours in which each of 20 callers sends six requests at once, every two minutes.
fn bursts() -> String {
    let burst = |at: u64| {
        format!("203.0.113.{} {}.5 \"GET /{} HTTP/1.1\"\n", at % 20, 1_772_366_400 + at * 6, at % 7).repeat(6)
    };
    (0..1_200).map(burst).collect()
}

#[test]
fn a_suggestion_does_what_a_file_with_its_numbers_does() {
    let text = "domain: web
descriptors:
  - {key: remote_address, rate_limit: {algorithm: token_bucket, unit: minute, requests_per_unit: 30, burst: 4, penalty: 1s}}
  - {key: path, rate_limit: {algorithm: fixed_window, unit: hour, requests_per_unit: 1000000}}
";
    let descriptors = ["remote_address={remote_addr}", "path={path}"];
    let log = bursts();
    let today = replay(&log, vec![rules(text)], false, &descriptors);
    let suggestions = suggested(&today.runs[0]);
    assert_eq!(suggestions.len(), 2, "one limit is too small for bursts, and the other never binds");
    let runs = suggestions.iter().map(|it| it.apply(&rules(text)).expect("it is possible"));
    let passed = replay(&log, std::iter::once(rules(text)).chain(runs).collect(), false, &descriptors);
    for (index, result) in results(&suggestions, &passed).iter().enumerate() {
        let line = text.lines().nth(index + 2).expect("there is a line");
        let mut changed =
            line.replace("requests_per_unit: 1000000", &format!("requests_per_unit: {}", result.suggested_limit));
        if let Some(burst) = result.suggested_burst {
            changed = changed.replace("burst: 4", &format!("burst: {burst}"));
        }
        assert_ne!(changed, line);
        let by_file = replay(&log, vec![rules(text), rules(&text.replace(line, &changed))], false, &descriptors);
        let of_file = &by_file.runs[1].limits[index];
        assert_eq!(result.then, Counts { allowed: of_file.allowed_requests, refused: of_file.refused_requests });
        assert_eq!(result.requests, by_file.agreements[0]);
        let then = of_file.whole_log.as_ref().map(|whole_log| (whole_log.verdict, whole_log.who));
        assert_eq!(result.verdict_then.zip(result.who_then), then);
        let limit = &today.runs[0].limits[index];
        assert_eq!(result.today, Counts { allowed: limit.allowed_requests, refused: limit.refused_requests });
    }
}

#[test]
fn each_run_has_sketches_of_its_own() {
    let text = "domain: web
descriptors:
  - key: remote_address
    rate_limit: {algorithm: token_bucket, unit: minute, limit: 3, representation: sketch, sketch_memory: 1MiB}
";
    let (rules, log) = (rules(text), requests(&[("a", 10), ("b", 4)]));
    for runs in [1, 2] {
        let found = replay(&log, vec![rules.clone(); runs], false, &["remote_address={remote_addr}"]);
        for run in &found.runs {
            assert_eq!((run.allowed_requests, run.refused_requests), (6, 8));
        }
    }
}
