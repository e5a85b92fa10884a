//! The program `spillgate replay` with hostile logs: what it writes, and how much memory it needs.

#![allow(clippy::print_stdout, reason = "`make show-hostile-logs` shows the figures")]

use std::io::Write;
use std::process::Stdio;
use std::{env, fs};

use flate2::Compression;
use flate2::write::GzEncoder;
use spillgate_replay::access_log::FILES_MAX;

use super::line;
use crate::cli_support::{Folder, command};

const RULES: &str = "domain: web
descriptors:
  - {key: remote_address, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: path, rate_limit: {unit: hour, requests_per_unit: 1}}
";
const REPLAY: [&str; 8] =
    ["replay", "rules.yaml", "--format", "common", "-e", "remote_address={remote_addr}", "-e", "path={path}"];
const MIB: usize = 1024 * 1024;
/// The default of the variable BOMB_MIB: the MiB of text in each log whose memory is measured.
const BOMB_MIB: usize = 192;
/// How much more memory than for one request the program may need: for the lines of one file that wait to be sorted (64
/// MiB), for the memory of lines that waits to be reused (32 MiB), and for buffers.
const GROWTH_MIB_MAX: usize = 128;
/// More bytes than fit into the pipe and the buffers of the program.
const UNREAD_BYTES_MAX: usize = 256 * 1024;

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(text).expect("memory can be written");
    encoder.finish().expect("memory can be written")
}

/// Returns whether a terminal or a browser may obey this character instead of showing it.
fn is_dangerous(c: char) -> bool {
    c.is_control() && c != '\n' || ('\u{202a}'..='\u{202e}').contains(&c) || ('\u{2066}'..='\u{2069}').contains(&c)
}

#[test]
fn a_report_of_a_hostile_log_has_no_markup_of_it() {
    let values = ["<b/id=x>", "\"'><b/id=x>", "\u{1b}[2J\u{7}\u{0}", "\u{202e}\u{2066}abc", "</style><b/id=x>"];
    let mut log = String::new();
    for (second, value) in (0..).zip(values) {
        // Each address and each path is refused once, so all of them are in the report.
        log.push_str(&line(value, second).replace("GET /", &format!("GET /{value}")).repeat(2));
        log.push_str(&format!("{value} is no line\n"));
    }
    for year in ["0000", "9999"] {
        log.push_str(&line("203.0.113.7", 10).replace("2020", year));
    }
    log.push_str(&format!("{}\n", "<b/id=x>".repeat(MIB / 8)));
    let folder = Folder::new(&[("rules.yaml", RULES), ("hostile.log", &log)]);
    let broken = gzip(line("203.0.113.8", 20).repeat(5000).as_bytes());
    fs::write(folder.path("broken.gz"), &broken[..broken.len() / 2]).expect("the file can be written");
    for extra in [&["--html", "report.html"][..], &["--json"], &["--anonymous", "--html", "anonymous.html"]] {
        let output = folder.run_with(&[&REPLAY, &["--log", "hostile.log", "broken.gz"][..], extra].concat(), &[]);
        assert_eq!((output.code, &*output.stderr), (0, ""), "{extra:?}: {}", output.stdout);
        assert!(!output.stdout.contains(is_dangerous), "{extra:?}: {:?}", output.stdout);
    }
    let page = |name: &str| fs::read_to_string(folder.path(name)).expect("the report was written");
    let (open, hidden) = (page("report.html"), page("anonymous.html"));
    assert!(open.contains("&lt;b") && !hidden.contains("id=x"), "only the open report has text of the log");
    for page in [open, hidden] {
        // The unreadable lines: 5 in no known form, 2 with an impossible year, 1 too long, and the rest of the broken
        // file.
        assert!(page.contains("9\u{a0}lines"), "{page}");
        assert!(!page.contains("<b/id"), "{page}");
        assert_eq!(page.chars().find(|c| is_dangerous(*c)), None, "{page}");
        assert_eq!(page.matches("</style>").count(), page.matches("<style").count());
    }
}

/// Replays a gzip file that repeats `text`, from standard input. Returns the highest memory of the program in MiB.
fn peak_mib(folder: &Folder, text: &[u8], times: usize) -> usize {
    let mut child = command(&folder.path("."))
        .args(REPLAY)
        .args(["--log", "-", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("spillgate runs");
    let mut input = child.stdin.take().expect("stdin is piped");
    let (member, empty) = (gzip(text), gzip(b""));
    for _ in 0..times {
        input.write_all(&member).expect("the program reads");
    }
    // These bytes fit into the pipe and the buffers only after the program has read the text before them.
    input.write_all(&empty.repeat(UNREAD_BYTES_MAX / empty.len())).expect("the program reads");
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).expect("the program runs");
    drop(input);
    child.wait_with_output().expect("the program ends");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a program has memory");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("the size is a whole number") / 1024
}

#[test]
fn a_hostile_log_does_not_need_much_memory() {
    let mib = env::var("BOMB_MIB").map_or(BOMB_MIB, |mib| mib.parse().expect("BOMB_MIB is a whole number"));
    let folder = Folder::new(&[("rules.yaml", RULES)]);
    let request = line("203.0.113.7", 1).replace("GET /", &format!("GET /{}", "a".repeat(60_000)));
    let requests = request.repeat(MIB / request.len());
    let small_mib = peak_mib(&folder, request.as_bytes(), 1);
    for (name, text) in [("zeros", &[0; MIB][..]), ("long requests of one second", requests.as_bytes())] {
        let grown_mib = peak_mib(&folder, text, mib).saturating_sub(small_mib);
        println!(
            "{name}: the program needs {grown_mib} MiB more for {mib} MiB of text than for one request ({small_mib} MiB)"
        );
        assert!(grown_mib < GROWTH_MIB_MAX, "{name}: {grown_mib} MiB");
    }
}

#[test]
fn more_files_than_the_maximum_are_refused() {
    let folder = Folder::new(&[("rules.yaml", RULES)]);
    let logs: Vec<String> = (0..=FILES_MAX).map(|index| format!("{index}.log")).collect();
    let logs: Vec<&str> = logs.iter().map(String::as_str).collect();
    let output = folder.run_with(&[&REPLAY[..], &["--log"], &logs].concat(), &[]);
    assert_eq!(output.code, 2, "{}", output.stdout);
    assert!(output.stderr.contains("257 logs are given, but 256 is the most"), "{}", output.stderr);
}
