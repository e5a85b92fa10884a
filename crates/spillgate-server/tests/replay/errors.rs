//! Errors of the command line: wrong arguments, logs that cannot be used, and reports that cannot be written.

use crate::cli_support::Folder;
use crate::replay::command::{DESCRIPTORS, RULES, folder, run};

#[test]
fn a_log_that_cannot_be_read_is_an_error_that_shows_its_lines() {
    let folder = folder();
    let output = folder.run_with(&[&["replay", "rules.yaml", "--log", "a.log"], &DESCRIPTORS[..]].concat(), &[]);
    assert_eq!((output.code, &*output.stdout), (2, ""));
    for part in [
        "no line of the log can be read with the format `combined`",
        "a.log:1: ",
        "203.0.113.",
        "caddy",
        "$remote_addr",
    ] {
        assert!(output.stderr.contains(part), "{part}: {}", output.stderr);
    }
    let hidden = [&["replay", "rules.yaml", "--anonymous", "--log", "a.log"], &DESCRIPTORS[..]].concat();
    let output = folder.run_with(&hidden, &[]);
    assert!(output.code == 2 && !output.stderr.contains("203.0.113."), "{}", output.stderr);
}

#[test]
fn wrong_arguments_are_errors_that_say_what_is_right() {
    let folder = folder();
    folder.write("empty.log", "");
    folder.write("two.yaml", "domain: other\n");
    let log = ["--log", "a.log"];
    for (arguments, expected) in [
        ([&log[..], &["-e", "a={remote_adr}"]].concat(), "remote_addr"),
        ([&log[..], &["-e", "a={remote_addr"]].concat(), "a brace is not closed"),
        ([&["--log", "none.log"], &DESCRIPTORS[..]].concat(), "none.log cannot be read"),
        ([&["--log", "."], &DESCRIPTORS[..]].concat(), "cannot be read"),
        ([&["--log", "empty.log"], &DESCRIPTORS[..]].concat(), "the log has no lines"),
        ([&["--log", "-", "-"], &DESCRIPTORS[..]].concat(), "standard input is given twice"),
        ([&["--log", "a.log", "./a.log"], &DESCRIPTORS[..]].concat(), "a.log is given twice"),
        ([&log[..], &["-e", "a={remote_addr}", "-e", "a={remote_addr}"]].concat(), "it is given twice"),
        ([&["--log", "-", "--suggest"], &DESCRIPTORS[..]].concat(), "--suggest cannot read standard input"),
        ([&log[..], &DESCRIPTORS, &["--domain", "none"]].concat(), "write one of web"),
        ([&log[..], &DESCRIPTORS, &["--compare", "two.yaml"]].concat(), "have no domain `web`"),
        ([&["two.yaml"], &log[..], &DESCRIPTORS].concat(), "--domain: web, other"),
    ] {
        let output = run(&folder, &arguments);
        assert!(output.code == 2 && output.stderr.contains(expected), "{arguments:?}: {output:?}");
        assert_eq!(output.stdout, "");
    }
}

#[test]
fn a_field_that_no_line_has_is_an_error() {
    let json = "{\"ts\": 1772365000, \"request\": {\"host\": \"a.example\", \"tries\": [1]}}\n";
    let csv = "time,host\n2026-03-01T12:00:00Z,a.example\n";
    let folder = Folder::new(&[("rules.yaml", RULES), ("a.json", json), ("a.csv", csv)]);
    for (log, format, help) in [
        ("a.json", "json", "the first lines have these members: request.host, ts"),
        ("a.csv", "csv", "leave out its descriptor"),
    ] {
        let descriptors = ["-e", "remote_address={host}", "-e", "path={hots}"];
        let arguments = [&["replay", "rules.yaml", "--format", format, "--log", log], &descriptors[..]].concat();
        let output = folder.run_with(&arguments, &[]);
        assert!(output.code == 2 && output.stderr.contains("`{hots}`"), "{output:?}");
        assert!(output.stderr.contains(help) && output.stdout.is_empty(), "{output:?}");
    }
}

#[test]
fn a_log_without_a_request_that_a_rule_matches_is_an_error() {
    let folder = folder();
    let output = run(&folder, &["--log", "a.log", "-e", "remote_adress={remote_addr}", "--html", "a.html"]);
    assert_eq!((output.code, &*output.stdout), (2, ""));
    assert!(output.stderr.contains("no rule of the domain `web` matches a request of the log"), "{output:?}");
    assert!(output.stderr.contains("the keys of a rule, in the same order: remote_address; path"), "{output:?}");
    assert!(!folder.path("a.html").exists(), "an empty report would look like a finished one");
}

#[test]
fn a_report_that_cannot_be_written_is_an_error_before_the_log_is_read() {
    let folder = folder();
    // The log cannot be read either, but the report is checked first.
    for (path, expected) in [
        ("no/such/folder", "cannot be written"),
        (".", "cannot be written"),
        ("none.log", "would overwrite"),
        ("./rules.yaml", "would overwrite"),
        ("a.log", "would overwrite"),
    ] {
        let output = run(&folder, &[&["--log", "none.log", "a.log"], &DESCRIPTORS[..], &["--html", path]].concat());
        assert!(output.code == 3 && output.stderr.contains(expected), "{path}: {output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
    }
    let rules = std::fs::read_to_string(folder.path("rules.yaml")).expect("the rules are still there");
    assert!(rules == RULES && !folder.path("none.log").exists());
}

#[test]
fn the_rest_is_printed_although_the_report_cannot_be_written() {
    let folder = folder();
    let arguments = [&["--log", "a.log", "--html", "/dev/full"], &DESCRIPTORS[..]].concat();
    let output = run(&folder, &arguments);
    assert!(output.code == 3 && output.stderr.contains("/dev/full cannot be written"), "{output:?}");
    assert!(output.stdout.contains("a.log: 2,000 requests"), "{output:?}");
    let output = run(&folder, &[&arguments[..], &["--json"]].concat());
    assert!(output.code == 3 && output.stderr.contains("/dev/full cannot be written"), "{output:?}");
    let report: serde_json::Value = serde_json::from_str(&output.stdout).expect("it is one line of JSON");
    assert_eq!((&report["ok"], &report["log"]["requests"]), (&false.into(), &2_000.into()));
}
