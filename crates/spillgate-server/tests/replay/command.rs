//! Tests of the outputs of the command line, with shown and with hidden callers.

use serde_json::Value;

use crate::cli_support::{Folder, Output};
use crate::replay::scenario::log;

pub(crate) const RULES: &str = "domain: web
descriptors:
  - {key: remote_address, rate_limit: {unit: minute, requests_per_unit: 6}}
  - {key: path, rate_limit: {unit: second, requests_per_unit: 2}}
";

pub(crate) fn folder() -> Folder {
    let lines = log(2_000, 1_000, 5);
    // The second file has other lines, among them hostile ones.
    let hostile =
        "203.0.113.7 1772365000.5 \"GET /<script>alert(1)</script>\u{1b}[2J HTTP/1.1\"\nsecret.example broken\n";
    let old = RULES.replace("requests_per_unit: 6", "requests_per_unit: 9");
    Folder::new(&[("rules.yaml", RULES), ("old.yaml", &old), ("a.log", &lines), ("b.log", hostile)])
}

pub(crate) fn run(folder: &Folder, arguments: &[&str]) -> Output {
    let begin = ["replay", "rules.yaml", "--format", "$remote_addr $msec \"$request\""];
    folder.run_with(&[&begin[..], arguments].concat(), &[])
}

pub(crate) const DESCRIPTORS: [&str; 4] = ["-e", "remote_address={remote_addr}", "-e", "path={path}"];
const ALL: [&str; 9] =
    ["--log", "a.log", "b.log", "--compare", "old.yaml", "--suggest", "--html", "report.html", "--out-of-order=1s"];

#[test]
fn the_text_has_everything_that_was_found() {
    let folder = folder();
    let Output { code, stdout, stderr } = run(&folder, &[&ALL[..], &DESCRIPTORS].concat());
    assert_eq!((code, &*stderr), (0, ""), "{stdout}");
    for part in [
        "2 files: 2,001 requests, 2026-03-01 ",
        "1 line cannot be read:\n  b.log:2: ",
        "web: remote_address (rules.yaml:3, ",
        "first refusals:",
        "longest waits, each of another caller:",
        "burst needed",
        "most refused requests in the log, of 59 callers: \"remote_address=203.0.113.",
        "most allowed requests in the log, of 5 callers: \"path=/",
        "\ncompared with old.yaml\n",
        "\nsuggestions, each with all other limits as they are today\n",
        "note: The requests that are refused here were in fact served, so the log has no retries.",
    ] {
        assert!(stdout.contains(part), "{part} is missing in {stdout}");
    }
    assert!(!stdout.contains('\u{1b}'), "the terminal obeys no client: {stdout}");
    let page = std::fs::read_to_string(folder.path("report.html")).expect("the report was written");
    assert!(page.contains("203.0.113.") && !page.contains("<script>alert"), "{page}");
}

#[test]
fn json_has_the_whole_report() {
    let folder = folder();
    let Output { code, stdout, .. } = run(&folder, &[&ALL[..], &DESCRIPTORS, &["--json"]].concat());
    let report: Value = serde_json::from_str(&stdout).expect("it is JSON");
    assert_eq!((code, &report["ok"], &report["log"]["requests"]), (0, &true.into(), &2001.into()));
    assert_eq!(report["log"]["whole_seconds"], false);
    assert_eq!(report["runs"].as_array().map(Vec::len), Some(2));
    for path in ["/runs/0/limits/0/period/report/verdict", "/comparison/callers/0/caller", "/notes/0"] {
        assert!(report.pointer(path).is_some(), "{path}: {report}");
    }
}

/// Twenty callers that each ask for six at once in each minute, for two hours.
#[test]
fn a_suggestion_says_what_it_would_change() {
    let rules = "domain: web\ndescriptors:\n  - key: remote_address\n    rate_limit: {unit: minute, requests_per_unit: 30, \
                 algorithm: token_bucket, burst: 4}\n";
    let mut log = String::new();
    for burst in 0..2_400 {
        let line = format!("192.0.2.{} {}.000 \"GET / HTTP/1.1\"\n", burst % 20, 1_772_366_400 + burst * 3);
        log.push_str(&line.repeat(6));
    }
    let folder = Folder::new(&[("rules.yaml", rules), ("a.log", &log)]);
    let arguments = ["--log", "a.log", "--suggest", "-e", "remote_address={remote_addr}"];
    let text = run(&folder, &arguments).stdout;
    assert!(text.contains("\n  A request passes only if each limit allows it,"), "{text}");
    let report: Value =
        serde_json::from_str(&run(&folder, &[&arguments[..], &["--json"]].concat()).stdout).expect("JSON");
    let burst = report.pointer("/runs/0/limits/0/period/report/suggestion/burst");
    assert_eq!(burst, Some(&6.into()));
    assert!(report.pointer("/suggestions/0/then").is_some(), "{report}");
}

#[test]
fn a_log_of_whole_seconds_is_said_to_be_one() {
    let folder = Folder::new(&[("rules.yaml", RULES), ("a.log", "a 1772365000 \"GET / HTTP/1.1\"\n")]);
    let text = run(&folder, &[&["--log", "a.log"], &DESCRIPTORS[..]].concat()).stdout;
    assert!(
        text.contains("note: The times of this log are whole seconds.") && text.contains("± 1 (whole seconds)"),
        "{text}"
    );
    let text = run(&self::folder(), &[&["--log", "a.log"], &DESCRIPTORS[..]].concat()).stdout;
    assert!(!text.contains("whole seconds"), "{text}");
}

#[test]
fn hidden_callers_are_in_no_output() {
    let folder = folder();
    let arguments = [&ALL[..], &DESCRIPTORS, &["--anonymous"]].concat();
    let text = run(&folder, &arguments).stdout;
    let page = std::fs::read_to_string(folder.path("report.html")).expect("the report was written");
    let json = run(&folder, &[&arguments[..], &["--json"]].concat()).stdout;
    for (name, output) in [("text", &text), ("page", &page), ("JSON", &json)] {
        for hidden in ["203.0.113", "/login", "/search", "q=1", "HTTP/1.1", "secret.example"] {
            assert!(!output.contains(hidden), "the {name} has {hidden}: {output}");
        }
        assert!(output.contains("caller "), "the {name} has callers: {output}");
    }
    // One caller has one name in all lists.
    let report: Value = serde_json::from_str(&json).expect("it is JSON");
    let mut limits = report["runs"][0]["limits"].as_array().expect("it is a list").iter();
    let limit = limits.find(|limit| limit["limit"]["rule"] == "remote_address").expect("there is a limit");
    let top = &limit["period"]["report"]["top_refused"]["callers"];
    let refused: Vec<_> = limit["longest_refusals"].as_array().expect("it is a list").iter().collect();
    let names: Vec<_> = top.as_array().expect("it is a list").iter().map(|caller| &caller["name"]).collect();
    assert!(names.contains(&&limit["callers"]["top_refused"][0]["caller"]), "{limit}");
    assert!(refused.iter().any(|refusal| names.contains(&&refusal["caller"])), "{limit}");
}

#[test]
fn a_replay_enforces_rules_although_the_server_is_in_shadow_mode() {
    let folder = folder();
    folder.write("settings.yaml", "shadow: true\nrules: [rules.yaml]\n");
    let refused = |arguments: &[&str]| {
        let output = run(&folder, &[&["--log", "a.log", "--json"], &DESCRIPTORS[..], arguments].concat());
        let report: Value = serde_json::from_str(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        report["runs"][0]["refused_requests"].as_u64().expect("it is a number")
    };
    let enforced = refused(&[]);
    assert!(enforced > 0);
    assert_eq!(refused(&["--config", "settings.yaml"]), enforced);
}

#[test]
fn a_run_without_suggestions_says_so() {
    let folder = Folder::new(&[("rules.yaml", RULES), ("a.log", "a 1772365000 \"GET / HTTP/1.1\"\n")]);
    let text = run(&folder, &[&["--log", "a.log", "--suggest", "--html", "a.html"], &DESCRIPTORS[..]].concat()).stdout;
    let page = std::fs::read_to_string(folder.path("a.html")).expect("the report was written");
    for output in [text, page] {
        assert!(output.contains("Insight suggests nothing for these rules."), "{output}");
    }
}
