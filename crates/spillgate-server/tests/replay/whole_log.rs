//! Tests of what a replay says about a whole log, and of logs whose callers or order are not those that a server sees.

use std::io::Write as _;
use std::process::Stdio;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::cli_support::{Folder, command};

const RULES: &str = "domain: web
descriptors:
  - key: remote_address
    rate_limit: {algorithm: token_bucket, unit: minute, requests_per_unit: 30, burst: 2}
";
const REPLAY: [&str; 4] = ["replay", "rules.yaml", "--format", "$remote_addr $msec"];
const ADDRESS: [&str; 2] = ["-e", "remote_address={remote_addr}"];
/// 2026-03-01 12:00:00 UTC.
const BEGIN_S: u64 = 1_772_366_400;

fn folder(log: &str) -> Folder {
    Folder::new(&[("rules.yaml", RULES), ("a.log", log)])
}

fn replay(log: &str, arguments: &[&str]) -> String {
    let output = folder(log).run_with(&[&REPLAY[..], &["--log", "a.log"], arguments].concat(), &[]);
    assert_eq!((output.code, &*output.stderr), (0, ""), "{}", output.stdout);
    output.stdout
}

/// Returns 600 lines, one each second, of ten callers. No caller is too fast.
fn newest_first() -> String {
    (0..600).rev().map(|at| format!("203.0.113.{} {}\n", at % 10, BEGIN_S + at)).collect()
}

#[test]
fn a_quiet_hour_does_not_hide_an_hour_with_refusals() {
    // Five callers ask once a second for an hour, and then once in ten seconds.
    let hour = |begin: u64, step: usize| {
        let line = |second: u64| (0..5).map(move |user| format!("u{user} {}\n", BEGIN_S + second)).collect::<String>();
        (begin..begin + 3_600).step_by(step).map(line).collect::<String>()
    };
    let text = replay(&(hour(0, 1) + &hour(3_600, 10)), &[&ADDRESS[..], &["--suggest"]].concat());
    let verdict =
        "  the whole log: above the rate (many callers). The limit refuses 45.4 % of its requests, in 1 of 2 hours.";
    assert!(text.contains(verdict), "{text}");
    assert!(text.contains("  the hour with the most refusals, up to 2026-03-01 12:59:59 UTC:\n"), "{text}");
    assert!(!text.contains("never binding") && text.contains("  suggested: 61 per minute, burst 2\n"), "{text}");
}

#[test]
fn a_request_counts_in_one_hour_although_the_last_reading_has_it_too() {
    // Seven callers ask slowly for 70 minutes, and another one asks 30 times in three seconds of the first hour.
    let slow = |at: u64| format!("u{} {}\n", at % 7, BEGIN_S + 10 * at);
    let burst: String = (0..30).map(|at| format!("x {}\n", BEGIN_S + 1_800 + at % 3)).collect();
    let log = (0..180).map(slow).collect::<String>() + &burst + &(180..420).map(slow).collect::<String>();
    let text = replay(&log, &ADDRESS);
    assert!(text.contains(" of its requests, in 1 of 2 hours. "), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&replay(&log, &[&ADDRESS[..], &["--json"]].concat())).expect("it is JSON");
    let limit = &json["runs"][0]["limits"][0];
    let sum = |member: &str| -> u64 {
        limit["hours"].as_array().into_iter().flatten().filter_map(|hours| hours[member].as_u64()).sum()
    };
    assert_eq!((sum("requests"), sum("hours"), sum("refusing_hours")), (450, 2, 1), "{limit}");
    assert!(sum("refused_requests") > 0, "{limit}");
    assert_eq!(limit["refused_requests"], sum("refused_requests"));
}

#[test]
fn a_scraper_with_nearly_all_refusals_is_named() {
    let lines = |second: u64| {
        let scraper = format!("203.0.113.9 {}\n", BEGIN_S + second).repeat(3);
        let others = format!("198.51.100.{} {}\n", second % 40, BEGIN_S + second);
        scraper + &others
    };
    let log: String = (0..3_600).map(lines).collect();
    let text = replay(&log, &ADDRESS);
    assert!(text.contains("  the whole log: above the rate (one caller). "), "{text}");
    assert!(text.contains("\"remote_address=203.0.113.9\" has 100.0 % of the refusals."), "{text}");
    assert!(
        text.contains("Before you block it, make sure that it is not many people behind one address or key."),
        "{text}"
    );
}

#[test]
fn callers_are_those_of_a_server() {
    let networks: String = (0..40).map(|at| format!("2001:db8:1:2::{at:x} {}\n", BEGIN_S + at)).collect();
    let ports: String = (0..40).map(|at| format!("203.0.113.7:{} {}\n", 40_000 + at, BEGIN_S + at)).collect();
    for (log, what) in [
        (networks, "IPv6 addresses, such as 2001:db8:1:2::0"),
        (ports, "addresses with a port, such as 203.0.113.7:40000"),
    ] {
        let text = replay(&log, &ADDRESS);
        assert!(text.contains(&format!("warning: 100 % of the values of `{{remote_addr}}` are {what}.")), "{text}");
        assert!(text.contains("Write `{remote_addr|network}`.") && text.contains(" 0 refused"), "{text}");
        let anonymous = replay(&log, &[&ADDRESS[..], &["--anonymous"]].concat());
        assert!(anonymous.contains("warning: 100 %") && !anonymous.contains("such as"), "{anonymous}");
        let text = replay(&log, &["-e", "remote_address={remote_addr|network}"]);
        assert!(text.contains("21 requests allowed, 19 refused") && !text.contains("warning"), "{text}");
    }
}

#[test]
fn a_modifier_that_needs_proxies_says_so() {
    let folder = folder("203.0.113.7 1772366400\n");
    for (template, expected) in [
        ("a={remote_addr|client}", "--trusted-proxies, such as 10.0.0.0/8"),
        (
            "a={remote_addr|net}",
            "there is no modifier `net`. The modifiers are ip, network, client, first, last, normal",
        ),
    ] {
        let output = folder.run_with(&[&REPLAY[..], &["--log", "a.log", "-e", template]].concat(), &[]);
        assert!(output.code == 2 && output.stderr.contains(expected), "{output:?}");
    }
}

#[test]
fn the_settings_file_says_which_proxies_are_trusted() {
    let folder = folder("10.0.0.1|198.51.100.1,2001:db8::7 1772366400\n10.0.0.2|2001:db8::8 1772366400\n");
    folder.write("s.yaml", "rules: [rules.yaml]\ntrusted_proxies: [10.0.0.0/8]\nforward_auth: {ipv6_prefix: 48}\n");
    let arguments = ["replay", "-c", "s.yaml", "--log", "a.log", "-f", "$remote_addr|$list $msec", "--json"];
    let output = folder.run_with(&[&arguments[..], &["-e", "remote_address={list|client}"]].concat(), &[]);
    assert!(output.stdout.contains("\"caller\":\"remote_address=2001:db8::/48\""), "{output:?}");
    let output = folder.run_with(
        &[&arguments[..], &["-e", "remote_address={list|client}", "--forward-auth-ipv6-prefix", "64"]].concat(),
        &[],
    );
    assert!(output.stdout.contains("\"caller\":\"remote_address=2001:db8::/64\""), "{output:?}");
}

#[test]
fn a_log_with_its_newest_line_first_is_decided_in_its_order() {
    let text = replay(&newest_first(), &ADDRESS);
    assert!(text.contains("a.log: 600 requests, 2026-03-01 12:00:00 to 2026-03-01 12:09:59 UTC\n"), "{text}");
    assert!(text.contains("600 requests allowed, 0 refused"), "{text}");
}

#[test]
fn a_newest_line_first_that_cannot_be_turned_around_is_an_error() {
    let folder = folder("");
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(newest_first().as_bytes()).expect("memory can be written");
    std::fs::write(folder.path("a.log.gz"), gzip.finish().expect("memory can be written"))
        .expect("the file is written");
    let arguments = [&REPLAY[..], &ADDRESS, &["--log", "a.log.gz"]].concat();
    let output = folder.run_with(&arguments, &[]);
    assert_eq!((output.code, &*output.stdout), (2, ""));
    for part in ["a.log.gz has its newest line first", "tac", "--out-of-order"] {
        assert!(output.stderr.contains(part), "{part}: {}", output.stderr);
    }
    let output = folder.run_with(&[&arguments[..], &["--out-of-order", "1h"]].concat(), &[]);
    assert!(output.stdout.contains("600 requests allowed, 0 refused"), "{output:?}");
    let mut child = command(&folder.path("."))
        .args(REPLAY)
        .args(ADDRESS)
        .args(["--log", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("spillgate runs");
    // The command may end before it has read all.
    _ = child.stdin.take().expect("stdin is piped").write_all(newest_first().as_bytes());
    let output = child.wait_with_output().expect("the command ends");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && error.contains("the log - has its newest line first"), "{error}");
}

#[test]
fn a_log_whose_older_half_follows_the_newer_one_is_an_error_that_names_the_line() {
    let day = |begin_s: u64| -> String {
        (0..600).map(|at| format!("203.0.113.{} {}\n", at % 10, begin_s + 60 * at)).collect()
    };
    let (older, newer) = (day(BEGIN_S), day(BEGIN_S + 86_400));
    let folder = folder(&format!("{newer}{older}"));
    let arguments = [&REPLAY[..], &ADDRESS, &["--log", "a.log"]].concat();
    let output = folder.run_with(&arguments, &[]);
    assert_eq!((output.code, &*output.stdout), (2, ""), "{}", output.stderr);
    let says =
        "the times go back at a.log:601, by up to 122280 s, and 600 lines from there on are older than lines before";
    assert!(output.stderr.contains(says) && output.stderr.contains("with the oldest first"), "{}", output.stderr);
    folder.write("newer.log", &newer);
    folder.write("older.log", &older);
    let output = folder.run_with(&[&REPLAY[..], &ADDRESS, &["--log", "newer.log", "--log", "older.log"]].concat(), &[]);
    assert!(output.stdout.contains("1,200 requests allowed, 0 refused"), "{output:?}");
    let output = folder.run_with(&[&arguments[..], &["--out-of-order", "2d"]].concat(), &[]);
    assert!(output.stdout.contains("1,200 requests allowed, 0 refused"), "{output:?}");
    // Single late lines are named, and the others are still decided at their times.
    let few = newer.lines().chain(older.lines().take(5)).map(|line| format!("{line}\n")).collect::<String>();
    folder.write("few.log", &few);
    let output = folder.run_with(&[&REPLAY[..], &ADDRESS, &["--log", "few.log"]].concat(), &[]);
    assert!(output.code == 0 && output.stdout.contains("5 lines came later than allowed"), "{output:?}");
}
