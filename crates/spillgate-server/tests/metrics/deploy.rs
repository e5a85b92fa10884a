//! The files in `deploy/prometheus` and `deploy/grafana` are valid, and a server has every metric that they name.
//!
//! An alert on a metric with a wrong name never fires, and Prometheus does not say why.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::metrics::page::Page;
use crate::metrics::traffic::{RULES, Via, serve};
use crate::support::redis::Redis;
use crate::support::spillgate::REGIONS;
use crate::support::{eventually, root};
use crate::tls::support::serve_with_client_ca;

/// Keywords of PromQL that can stand next to a list of labels in parentheses.
const GROUPINGS: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];
/// Labels that Prometheus adds to each metric, or that a recording rule keeps.
const OF_PROMETHEUS: [&str; 3] = ["job", "instance", "le"];

pub(crate) fn promtool() -> PathBuf {
    let path = root().join("target/promtool");
    assert!(path.exists(), "{} is missing: run scripts/setup.sh", path.display());
    path
}

fn folder() -> PathBuf {
    root().join("deploy/prometheus")
}

fn run(arguments: &[&str]) {
    let output = Command::new(promtool()).args(arguments).current_dir(folder()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{arguments:?}:\n{}{}", text(&output.stdout), text(&output.stderr));
}

#[test]
fn prometheus_accepts_its_files() {
    run(&["check", "config", "prometheus.yml"]);
    run(&["check", "rules", "spillgate.rules.yml"]);
    run(&["test", "rules", "spillgate.rules.test.yml"]);
}

#[test]
fn each_rule_has_a_test() {
    let tests = fs::read_to_string(folder().join("spillgate.rules.test.yml")).unwrap();
    for (name, _) in rules() {
        // An alert has cases in which it fires, and cases in which it does not.
        let cases: &[String] = match name.starts_with("Spillgate") {
            true => &[format!("        alertname: {name}"), format!(", alertname: {name}}}")],
            false => &[format!("expr: {name}")],
        };
        for case in cases {
            assert!(tests.lines().any(|line| line.ends_with(case)), "{case}");
        }
    }
}

#[test]
fn the_docs_explain_each_alert_and_no_other() {
    let page = fs::read_to_string(root().join("docs/src/operating/alerts.md")).unwrap();
    let explained: BTreeSet<_> =
        page.lines().filter_map(|line| line.strip_prefix("| `Spillgate")?.split('`').next()).collect();
    let rules = rules();
    assert_eq!(explained, rules.iter().filter_map(|(name, _)| name.strip_prefix("Spillgate")).collect());
}

#[test]
fn each_recorded_series_is_used() {
    let used: Vec<_> = rules().into_iter().map(|(_, expression)| expression).chain(expressions()).collect();
    for (name, _) in rules().iter().filter(|(name, _)| name.contains(':')) {
        assert!(used.iter().any(|expression| expression.contains(name)), "{name}");
    }
}

fn rules() -> Vec<(String, String)> {
    let text = fs::read_to_string(folder().join("spillgate.rules.yml")).unwrap();
    let mut rules: Vec<(String, String)> = Vec::new();
    let mut in_expression = false;
    for line in text.lines() {
        let trimmed = line.trim();
        let name = trimmed.strip_prefix("- record: ").or_else(|| trimmed.strip_prefix("- alert: "));
        if let Some(name) = name {
            rules.push((name.to_owned(), String::new()));
            in_expression = false;
        } else if let Some(expression) = trimmed.strip_prefix("expr: ") {
            rules.last_mut().unwrap().1 = expression.trim_start_matches("|2").to_owned();
            in_expression = true;
        } else if in_expression && line.starts_with("          ") {
            rules.last_mut().unwrap().1 += &format!("{trimmed} ");
        } else {
            in_expression = false;
        }
    }
    assert!(rules.len() > 10 && rules.iter().all(|(_, expression)| !expression.is_empty()), "{rules:?}");
    rules
}

fn dashboard() -> Value {
    serde_json::from_str(&fs::read_to_string(root().join("deploy/grafana/spillgate.json")).unwrap()).unwrap()
}

fn expressions() -> Vec<String> {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().cloned().unwrap_or_default());
    targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect()
}

/// Returns the query of each variable of the dashboard that has a query, and the label that gives the variable its
/// values.
fn variables() -> Vec<(String, String)> {
    let dashboard = dashboard();
    let list = dashboard["templating"]["list"].as_array().unwrap();
    let queries = list.iter().filter_map(|variable| variable["query"]["query"].as_str());
    let parts = |query: &str| {
        let inner = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')')).unwrap();
        let (expression, label) = inner.rsplit_once(", ").unwrap();
        (expression.to_owned(), label.to_owned())
    };
    queries.map(parts).collect()
}

/// Returns the metrics of an expression, each with the labels of its selector, and the labels by which results are grouped.
fn named(expression: &str) -> (Vec<(String, Vec<String>)>, Vec<String>) {
    let (mut metrics, mut groups, mut rest) = (Vec::new(), Vec::new(), expression);
    let is_word = |char: char| char.is_ascii_alphanumeric() || char == '_' || char == ':' || char == '$';
    while let Some(begin) = rest.find(is_word) {
        let end = rest[begin..].find(|char| !is_word(char)).map_or(rest.len(), |end| begin + end);
        let word = &rest[begin..end];
        rest = rest[end..].trim_start();
        let until = |rest: &str, close: char| rest.find(close).unwrap_or_else(|| panic!("no {close}: {expression}"));
        if GROUPINGS.contains(&word) {
            let close = until(rest, ')');
            groups.extend(rest[1..close].split(',').map(|label| label.trim().to_owned()));
            rest = &rest[close..];
        } else if word.contains("spillgate_") || word.starts_with("process_") || word == "up" {
            let mut labels = Vec::new();
            if rest.starts_with('{') {
                let close = until(rest, '}');
                let of_selector =
                    rest[1..close].split(',').map(|part| part[..part.find(['=', '!']).unwrap()].trim().to_owned());
                labels.extend(of_selector);
                rest = &rest[close..];
            }
            metrics.push((word.to_owned(), labels));
        } else if rest.starts_with('[') {
            rest = &rest[until(rest, ']')..];
        }
    }
    (metrics, groups)
}

/// Returns the names of all metrics, each with its labels. They come from a server with Redis and another region, from a
/// server with snapshots, and from one with TLS, after some requests.
fn served() -> BTreeMap<String, BTreeSet<String>> {
    let redis = Redis::start();
    let server = serve(RULES, &[&["--store", &redis.url(), "--store-expected-nodes", "1"][..], &REGIONS].concat());
    Via::Http.send(&server, &[("two", "a")], 1);
    let page = eventually("the store is up", || {
        let page = Page::of(server.admin());
        page.text.contains("spillgate_store_up 1").then_some(page)
    });
    let folder = tempfile::tempdir().unwrap();
    let snapshot = format!("--memory-snapshot-path={}", folder.path().join("state").display());
    let saving = serve(RULES, &[&snapshot, "--memory-snapshot-interval=100ms"]);
    let saved = eventually("a snapshot is written", || {
        let page = Page::of(saving.admin());
        page.text.contains("spillgate_snapshot_last_successful 1").then_some(page)
    });
    let certificates = crate::tls::support::folder().0;
    let secured = Page::of(serve_with_client_ca(&certificates, &[]).admin());
    let mut served: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, labels, _) in page.lines.into_iter().chain(saved.lines).chain(secured.lines) {
        served.entry(name).or_default().extend(labels.into_keys());
    }
    served
}

#[test]
fn a_server_has_every_metric_and_label_that_the_files_name() {
    let mut served = served();
    // Prometheus makes the series `up` itself.
    served.insert("up".to_owned(), BTreeSet::new());
    for (name, expression) in rules() {
        let kept = named(&expression).1;
        if name.contains(':') {
            served.insert(name, kept.into_iter().collect());
        }
    }
    let (mut checked, mut problems) = (0, Vec::new());
    for expression in rules().into_iter().map(|(_, expression)| expression).chain(expressions()) {
        let (metrics, groups) = named(&expression);
        assert!(!metrics.is_empty(), "no metric in {expression}");
        for (metric, labels) in metrics {
            checked += 1;
            let Some(known) = served.get(&metric) else {
                problems.push(format!("{metric} does not exist: {expression}"));
                continue;
            };
            let unknown = labels
                .iter()
                .chain(&groups)
                .filter(|label| !OF_PROMETHEUS.contains(&label.as_str()) && !known.contains(*label));
            problems.extend(unknown.map(|label| format!("{metric} has no label {label}: {expression}")));
        }
    }
    let variables = variables();
    assert_eq!(variables.len(), 3);
    for (expression, label) in variables {
        let [(metric, labels)] = &named(&expression).0[..] else { panic!("one metric: {expression}") };
        let known = served.get(metric).unwrap_or_else(|| panic!("{metric} does not exist"));
        let unknown = labels.iter().chain([&label]).filter(|label| *label != "job" && !known.contains(label.as_str()));
        problems.extend(unknown.map(|label| format!("{metric} has no label {label}: a variable")));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(checked > 50, "only {checked} names were found");
}

#[test]
fn prometheus_can_parse_each_expression_of_the_dashboard() {
    let mut text = "groups:\n  - name: dashboard\n    rules:\n".to_owned();
    for (number, expression) in expressions().iter().enumerate() {
        let expression = expression.replace("$__rate_interval", "5m").replace("$__range", "1h");
        text += &format!("      - record: panel:number:{number}\n        expr: {}\n", Value::from(expression));
    }
    let file = tempfile::NamedTempFile::with_suffix(".yml").unwrap();
    fs::write(file.path(), text).unwrap();
    run(&["check", "rules", file.path().to_str().unwrap()]);
}

#[test]
fn panels_and_variables_of_the_dashboard_fit_together() {
    let dashboard = dashboard();
    let list = dashboard["templating"]["list"].as_array().unwrap();
    let variables: BTreeSet<_> = list.iter().map(|variable| variable["name"].as_str().unwrap()).collect();
    assert_eq!(variables, BTreeSet::from(["datasource", "domain", "job", "rule"]));
    let text = dashboard.to_string();
    for (at, _) in text.match_indices('$') {
        let rest = text[at + 1..].trim_start_matches('{');
        let name = &rest[..rest.find(|char: char| !(char.is_ascii_alphanumeric() || char == '_')).unwrap()];
        assert!(variables.contains(name) || name.starts_with("__"), "${name} is no variable");
    }
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "two panels have one id");
    for panel in panels {
        let part = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        assert!(part("x") + part("w") <= 24 && part("h") > 0, "{}", panel["title"]);
    }
}

#[test]
fn the_reader_of_expressions_finds_names_and_labels() {
    let (metrics, groups) =
        named("sum by (le, rule) (rate(spillgate_x_total{job=\"$job\",outcome=~\"a|b\"}[5m])) / process_y");
    let expected = [("spillgate_x_total", vec!["job", "outcome"]), ("process_y", vec![])];
    let expected = expected.map(|(name, labels)| (name.to_owned(), labels.into_iter().map(str::to_owned).collect()));
    assert_eq!((metrics, groups), (Vec::from(expected), vec!["le".to_owned(), "rule".to_owned()]));
}
