//! Logs whose truth is known: `spillgate replay` has to say of them what a good operator would say.
//!
//! The tests of insight have many more scenes. These show that a log gives the same verdicts as live requests do.

use std::fmt::Write as _;

use serde_json::Value;
use spillgate_testkit::Random;

use crate::cli_support::Folder;

/// 2026-03-01 12:00:00 UTC, the beginning of an hour.
const BEGIN_MS: u64 = 1_772_366_400_000;
const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
/// How many requests a minute allows to one address, and how many at once.
const PER_MINUTE: u64 = 6;
const BURST: u64 = 5;

/// The lines of a log, with their times.
struct Lines {
    random: Random,
    lines: Vec<(u64, String)>,
}

impl Lines {
    fn line(&mut self, at_ms: u64, address: &str, path: &str) {
        self.lines.push((BEGIN_MS + at_ms, format!("{address} {{}} \"GET {path} HTTP/1.1\"")));
    }

    /// Requests at about equal distances.
    fn steady(&mut self, address: &str, per_minute: f64, from_ms: u64, to_ms: u64) {
        let between_ms = (MINUTE_MS as f64 / per_minute) as u64;
        let mut at_ms = from_ms + self.random.below(between_ms);
        while at_ms < to_ms {
            let jitter_ms = self.random.below(between_ms / 2);
            self.line((at_ms + jitter_ms).min(to_ms - 1), address, "/search");
            at_ms += between_ms;
        }
    }

    fn burst(&mut self, address: &str, at_ms: u64) {
        (0..2 * BURST).for_each(|part| self.line(at_ms + part, address, &format!("/part/{part}")));
    }

    fn text(mut self) -> String {
        self.lines.sort();
        self.lines.iter().fold(String::new(), |mut text, (at_ms, line)| {
            let time = format!("{}.{:03}", at_ms / 1000, at_ms % 1000);
            writeln!(text, "{}", line.replacen("{}", &time, 1)).expect("a text can grow");
            text
        })
    }
}

fn address(number: u64) -> String {
    format!("203.0.113.{number}")
}

/// Replays the logs that `make` makes of several random numbers, and checks that each gets one of these verdicts.
fn check(right: &[(&str, &str)], make: impl Fn(&mut Lines)) {
    let rules = format!(
        "domain: web\ndescriptors:\n  - key: remote_address\n    rate_limit: {{algorithm: token_bucket, unit: minute, \
         requests_per_unit: {PER_MINUTE}, burst: {BURST}}}\n"
    );
    for seed in [7, 77_777] {
        let mut lines = Lines { random: Random(seed), lines: Vec::new() };
        make(&mut lines);
        let folder = Folder::new(&[("rules.yaml", &rules), ("access.log", &lines.text())]);
        let log = ["--log", "access.log", "--format", "$remote_addr $msec \"$request\"", "--json"];
        let descriptor = ["-e", "remote_address={remote_addr}"];
        let output = folder.run_with(&[&["replay", "rules.yaml"][..], &log, &descriptor].concat(), &[]);
        let report: Value = serde_json::from_str(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        // All requests are in one hour, or the hour with the refusals is shown.
        let said = &report["runs"][0]["limits"][0]["period"]["report"];
        let seen = (said["verdict"].as_str().unwrap_or_default(), said["who"].as_str().unwrap_or_default());
        assert!(right.contains(&seen), "seed {seed}: {seen:?} is not in {right:?}: {}", said["reason"]);
    }
}

#[test]
fn one_abuser_beside_callers_refused_once_is_seen() {
    check(&[("above_rate", "one")], |lines| {
        let honest = 4 + lines.random.below(40);
        for caller in 1..=honest {
            lines.steady(&address(caller), 2.0, 0, HOUR_MS);
            let at_ms = lines.random.below(50 * MINUTE_MS);
            lines.burst(&address(caller), at_ms);
        }
        lines.steady("192.0.2.66", 200.0, 0, HOUR_MS);
    });
}

#[test]
fn scrapers_beside_calm_users_are_many_above_the_rate() {
    check(&[("above_rate", "many")], |lines| {
        for caller in 0..50 {
            lines.steady(&address(caller), 3.0 * PER_MINUTE as f64, 0, HOUR_MS / 2);
            (0..2).for_each(|user| lines.steady(&address(100 + 2 * caller + user), 2.0, 0, HOUR_MS / 2));
        }
    });
}

#[test]
fn brute_force_on_a_login_is_one_caller_above_the_rate() {
    check(&[("above_rate", "one")], |lines| {
        for caller in 0..200 {
            let mut at_ms = lines.random.below(HOUR_MS - MINUTE_MS);
            for _ in 0..=lines.random.below(3) {
                lines.line(at_ms, &address(caller), "/login");
                at_ms += 3_000 + lines.random.below(9_000);
            }
        }
        let between_ms = 500 + lines.random.below(2_000);
        (0..40 * MINUTE_MS / between_ms).for_each(|number| lines.line(number * between_ms, "192.0.2.66", "/login"));
    });
}

#[test]
fn callers_refused_in_one_burst_each_are_bursts() {
    check(&[("bursts", "many")], |lines| {
        for caller in 0..60 {
            lines.steady(&address(caller), 1.0, 0, HOUR_MS);
            let at_ms = lines.random.below(55 * MINUTE_MS);
            lines.burst(&address(caller), at_ms);
        }
    });
}

#[test]
fn a_quiet_hour_beside_a_busy_one_does_not_hide_it() {
    // Everybody was above the rate, but only for a part of the time.
    check(&[("above_rate", "many"), ("bursts", "many")], |lines| {
        for caller in 0..30 {
            lines.steady(&address(caller), 2.5 * PER_MINUTE as f64, 0, HOUR_MS);
            lines.steady(&address(caller), 0.5, HOUR_MS, 4 * HOUR_MS);
        }
    });
}
