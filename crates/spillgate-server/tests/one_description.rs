//! Every interface that describes limits must describe the same limit in the same way, in JSON and in words.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use spillgate::rules::{LimitDescription, Rules, RulesFile};

use crate::cli_support::Folder;
use crate::support::http;
use crate::support::spillgate::Spillgate;

/// Limits with everything that a description could get wrong: a name, a window that is no named unit, no window, and
/// modes.
const RULES: &str = "domain: d
descriptors:
  - {key: user, rate_limit: {unit: minute, limit: 3000, name: per_user}}
  - {key: tenant, rate_limit: {window: 90s, limit: 10, algorithm: token_bucket, burst: 40, penalty: 5m, denied: charged}}
  - {key: job, rate_limit: {algorithm: concurrency, limit: 3, lease: 30s}}
  - {key: queue, rate_limit: {unit: second, limit: 5, algorithm: leaky_bucket, queue: 9}}
  - {key: trial, shadow_mode: true, rate_limit: {unit: day, limit: 7, algorithm: sliding_window_log, expose: false}}
  - {key: address, rate_limit: {unit: hour, limit: 60, representation: sketch, sketch_memory: 1MiB}}
";
const KEYS: [&str; 6] = ["user", "tenant", "job", "queue", "trial", "address"];

/// How one interface describes each limit. The keys are the paths of the rules.
type Said = BTreeMap<String, Map<String, Value>>;

/// Collects the objects that describe a limit from anywhere in an answer, and keeps only the members of the
/// description.
fn collect(answer: &Value, members: &Map<String, Value>, said: &mut Said) {
    match answer {
        Value::Object(object) => {
            if object.contains_key("algorithm") {
                let described = object.iter().filter(|(name, _)| members.contains_key(*name));
                let described: Map<_, _> = described.map(|(name, value)| (name.clone(), value.clone())).collect();
                let rule = described.get("rule").and_then(Value::as_str).expect("a limit names its rule").to_owned();
                let earlier = said.insert(rule, described.clone());
                assert!(earlier.is_none_or(|earlier| earlier == described), "one answer says two things: {answer}");
            }
            object.values().for_each(|value| collect(value, members, said));
        }
        Value::Array(list) => list.iter().for_each(|value| collect(value, members, said)),
        _ => {}
    }
}

#[test]
fn every_surface_says_the_same_of_a_limit() {
    let folder = Folder::new(&[("rules.yaml", RULES)]);
    let file = folder.path("rules.yaml").display().to_string();
    let rules = Rules::parse(&[RulesFile { name: file.clone(), text: RULES.to_owned() }]).expect("the rules are valid");
    let descriptions: Vec<_> =
        rules.rules().flat_map(|rule| rule.limits.iter().map(|limit| LimitDescription::of(rule, limit))).collect();
    assert_eq!(descriptions.len(), KEYS.len());
    let object = |described: &LimitDescription| match serde_json::to_value(described) {
        Ok(Value::Object(object)) => object,
        other => panic!("a description is an object: {other:?}"),
    };
    let expected: Said = descriptions.iter().map(|described| (described.rule.clone(), object(described))).collect();
    let members = &expected["user"];

    let server = Spillgate::serve(&folder.path("rules.yaml"), &[]);
    let descriptors: Vec<String> = KEYS.map(|key| format!(r#"{{"{key}":"1"}}"#)).into();
    let request = format!(r#"{{"domain":"d","descriptors":[{}]}}"#, descriptors.join(","));
    let check = http::request(server.http(), "POST", "/v1/check", &[], &request).expect("the server answers");
    assert_eq!(check.status, 200, "{}", check.body);
    let log: String = (0..9).map(|at| format!("1 17723650{at:02}.5 \"GET / HTTP/1.1\"\n")).collect();
    folder.write("a.log", &log);
    let entries: Vec<String> = KEYS.map(|key| format!("-e {key}=1")).into();
    let templates: Vec<String> = KEYS.map(|key| format!("-e {key}={{remote_addr}}")).into();
    let admin = format!("http://{}", server.admin());

    let get = |path: &str| http::get(server.admin(), path, &[]).body;
    let ask = |path| http::request(server.admin(), "POST", path, &[], &request).expect("the server answers").body;
    let run = |arguments: String| folder.run(&arguments).stdout;
    let replay = ["replay", &file, "--log", "a.log", "--json", "--format"];
    let replay: Vec<&str> = replay.into_iter().chain(["$remote_addr $msec \"$request\""]).collect();
    let replay: Vec<&str> = replay.into_iter().chain(templates.iter().flat_map(|entry| entry.split(' '))).collect();
    let answers = [
        ("/rules", get("/rules")),
        ("/overview", get("/overview")),
        ("/insight", get("/insight")),
        ("/top", get("/top")),
        ("/explain", ask("/explain")),
        ("/peek", ask("/peek")),
        ("check", run(format!("check {file} --json -d d {}", entries.join(" ")))),
        ("key", run(format!("key {file} --json -d d {}", entries.join(" ")))),
        ("insight", run(format!("insight --json --admin {admin}"))),
        ("replay", folder.run_with(&replay, &[]).stdout),
    ];
    for (surface, answer) in answers {
        let answer: Value =
            serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{surface}: {error}: {answer}"));
        let mut said = Said::new();
        collect(&answer, members, &mut said);
        // The counts of a sketch have no key in a store, so `spillgate key` does not show the limit `address`.
        for (rule, described) in expected.iter().filter(|(rule, _)| surface != "key" || *rule != "address") {
            assert_eq!(said.get(rule), Some(described), "{surface}");
        }
    }

    let texts = [
        ("check", run(format!("check {file} -d d {}", entries.join(" ")))),
        ("insight", run(format!("insight --admin {admin}"))),
    ];
    for (surface, text) in texts {
        for described in &descriptions {
            assert!(text.contains(&described.summary()), "{surface} does not say {}: {text}", described.summary());
        }
    }
    let metrics = get("/metrics");
    for described in &descriptions {
        let label = format!("rule=\"{}\",limit=\"{}\"", described.rule, described.label());
        assert!(metrics.contains(&label), "{label}: {metrics}");
    }
}
