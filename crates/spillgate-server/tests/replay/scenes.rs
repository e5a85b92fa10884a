//! Logs whose truth is known: `spillgate replay` has to say of them what a good operator would say.
//!
//! The tests of insight have many more scenes. These show that a log gives the same verdicts as live requests do. With the
//! environment variable INSIGHT, as in `make show-insight`, each scene is 500 logs, some of them with many callers.

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

    /// A number of callers. Small numbers are as frequent as large ones.
    fn callers(&mut self, low: u64, high: u64) -> u64 {
        let share = self.random.below(1 << 32) as f64 / f64::from(u32::MAX);
        (low as f64 * (high as f64 / low as f64).powf(share)) as u64
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
    format!("10.{}.{}.{}", number >> 16, number >> 8 & 255, number & 255)
}

/// Replays the logs that `make` makes of different random numbers, and checks that they get one of these verdicts.
#[allow(clippy::print_stdout, reason = "`make show-insight` shows the numbers")]
fn check(right: &[(&str, &str)], make: impl Fn(&mut Lines)) {
    let runs = if std::env::var_os("INSIGHT").is_some() { 500 } else { 2 };
    let (mut given, mut wrong) = (0, Vec::new());
    for run in 0..runs {
        let mut lines =
            Lines { random: Random((run + 1_u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1), lines: Vec::new() };
        make(&mut lines);
        let said = replayed(&lines.text());
        let seen = (said["verdict"].as_str().unwrap_or_default(), said["who"].as_str().unwrap_or_default());
        if matches!(seen.0, "too_early" | "unclear") {
            continue;
        }
        given += 1;
        if !right.contains(&seen) {
            wrong.push(format!("run {run}: {seen:?}: {}", said["reason"]));
        }
    }
    println!("| logs, verdicts given, acceptable of them | {runs}, {given}, {} |", given - wrong.len());
    assert!(wrong.len() * 20 <= given, "of {given} verdicts, these are not in {right:?}: {wrong:#?}");
    assert!(given * 10 >= runs as usize * 7, "{given} of {runs} logs are given a verdict");
}

/// Returns what a replay of this log says about a limit for each address.
fn replayed(log: &str) -> Value {
    let rules = format!(
        "domain: web\ndescriptors:\n  - key: remote_address\n    rate_limit: {{algorithm: token_bucket, unit: minute, \
         requests_per_unit: {PER_MINUTE}, burst: {BURST}}}\n"
    );
    let folder = Folder::new(&[("rules.yaml", &rules), ("access.log", log)]);
    let log = ["--log", "access.log", "--format", "$remote_addr $msec \"$request\"", "--json"];
    let descriptor = ["-e", "remote_address={remote_addr}"];
    let output = folder.run_with(&[&["replay", "rules.yaml"][..], &log, &descriptor].concat(), &[]);
    let mut report: Value = serde_json::from_str(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    report["runs"][0]["limits"][0]["whole_log"].take()
}

#[test]
fn one_abuser_beside_callers_refused_once_is_seen() {
    check(&[("above_rate", "one")], |lines| {
        let honest = lines.callers(4, 400);
        for caller in 0..honest {
            lines.steady(&address(caller), 2.0, 0, HOUR_MS);
        }
        for caller in 0..honest.min(40) {
            let at_ms = lines.random.below(50 * MINUTE_MS);
            lines.burst(&address(caller), at_ms);
        }
        lines.steady("192.0.2.66", 200.0, 0, HOUR_MS);
    });
}

#[test]
fn scrapers_beside_calm_users_are_many_above_the_rate() {
    check(&[("above_rate", "many")], |lines| {
        for caller in 0..lines.callers(20, 60) {
            lines.steady(&address(caller), 3.0 * PER_MINUTE as f64, 0, HOUR_MS / 2);
            (0..2).for_each(|user| lines.steady(&address(100 + 2 * caller + user), 2.0, 0, HOUR_MS / 2));
        }
    });
}

#[test]
fn brute_force_on_a_login_is_one_caller_above_the_rate() {
    check(&[("above_rate", "one")], |lines| {
        // A large site has many users, but they take time to replay.
        let most = if lines.random.one_in(50) { 5_000 } else { 300 };
        for caller in 0..lines.callers(20, most) {
            let mut at_ms = lines.random.below(HOUR_MS - MINUTE_MS);
            for _ in 0..=lines.random.below(3) {
                lines.line(at_ms, &address(caller), "/login");
                at_ms += 3_000 + lines.random.below(9_000);
            }
        }
        let between_ms = 200 + lines.random.below(400);
        (0..40 * MINUTE_MS / between_ms).for_each(|number| lines.line(number * between_ms, "192.0.2.66", "/login"));
    });
}

#[test]
fn callers_refused_in_one_burst_each_are_bursts() {
    check(&[("bursts", "many")], |lines| {
        for caller in 0..lines.callers(5, 300) {
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
        for caller in 0..lines.callers(9, 40) {
            lines.steady(&address(caller), 2.5 * PER_MINUTE as f64, 0, HOUR_MS);
            lines.steady(&address(caller), 0.5, HOUR_MS, 4 * HOUR_MS);
        }
    });
}
