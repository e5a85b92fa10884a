//! The memory of a replay does not grow with the log.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::Stdio;

use crate::cli_support::{Folder, command};

const RULES: &str =
    "domain: web\ndescriptors:\n  - {key: remote_address, rate_limit: {unit: minute, requests_per_unit: 6}}\n";

/// Replays a log of 1,000 callers from standard input. Returns the highest memory of the process in bytes.
fn highest_memory_bytes(folder: &Folder, lines: u64) -> u64 {
    let mut child = command(&folder.path("."))
        .args(["replay", "rules.yaml", "--log", "-", "--format", "$remote_addr $msec $http_user_agent", "--json"])
        .args(["--descriptor", "remote_address={remote_addr}"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("spillgate runs");
    let mut input = child.stdin.take().expect("stdin is piped");
    let mut text = String::new();
    for line in 0..lines {
        writeln!(text, "203.0.{}.{} {} {:200}", line % 1_000 / 256, line % 256, 1_772_366_400 + line / 100, "curl")
            .expect("a text can grow");
        if text.len() > 1 << 16 || line + 1 == lines {
            input.write_all(text.as_bytes()).expect("the command reads");
            text.clear();
        }
    }
    // The command has read all lines but a few, and waits for the end of its input.
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).expect("the process runs");
    drop(input);
    let output = child.wait_with_output().expect("the command ends");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    assert_eq!(report["log"]["requests"], lines);
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a running process has memory");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("the size is a whole number") * 1024
}

#[test]
fn a_log_that_is_ten_times_longer_needs_no_more_memory() {
    let folder = Folder::new(&[("rules.yaml", RULES)]);
    let [short, long] = [10_000, 100_000].map(|lines| highest_memory_bytes(&folder, lines));
    // The long log has 20 MB more text. The highest memory differs by a few MB from run to run.
    assert!(long < short + (10 << 20), "{short} and {long} bytes");
}
