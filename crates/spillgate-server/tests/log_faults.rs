//! A server whose standard error or standard output takes nothing: a full disk, a reader that is gone, stuck or slow.
//!
//! No request may wait for the log or fail because of it, and the server must still end when it is told to.

use std::fs::File;
use std::io::{PipeReader, Read, Write, pipe};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use spillgate_testkit::start_bound;

use crate::cli_support::{Folder, command, signal};
use crate::support::spillgate::Spillgate;
use crate::support::{DEADLINE, eventually, http};

const RULES: &str = "domain: api\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1000000}}]\n";

/// The header field that a write needs if no token is set.
const WRITE: (&str, &str) = ("x-spillgate-admin", "1");

/// The number of bytes that a pipe of Linux takes when nobody reads it.
const PIPE_BYTES: usize = 64 << 10;

/// How many clients ask at the same time, and how often each of them asks.
const CLIENTS: usize = 4;
const REQUESTS: usize = 50;

fn full_disk() -> Stdio {
    File::options().write(true).open("/dev/full").expect("Linux has /dev/full").into()
}

fn closed() -> Stdio {
    let (reader, writer) = pipe().expect("a pipe can be made");
    drop(reader);
    writer.into()
}

/// A pipe that takes no byte until something is read.
fn stalled() -> (PipeReader, Stdio) {
    let (reader, mut writer) = pipe().expect("a pipe can be made");
    writer.write_all(&[b'-'; PIPE_BYTES]).expect("an empty pipe takes as many bytes");
    (reader, writer.into())
}

/// A pipe from which a thread reads a kilobyte each second, until the process has ended.
fn slow() -> Stdio {
    let (mut reader, writer) = stalled();
    thread::spawn(move || {
        let mut bytes = [0; 100];
        while reader.read(&mut bytes).is_ok_and(|count| count > 0) {
            thread::park_timeout(Duration::from_millis(100));
        }
    });
    writer
}

/// Sends requests that have lines in the log: of the only domain, and of unknown ones.
fn ask(server: &Spillgate) {
    let address = server.http();
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                for request in 0..REQUESTS {
                    let domain = if request % 2 == 0 { "api".to_owned() } else { format!("unknown{client}-{request}") };
                    let body = format!(r#"{{"domain":"{domain}","descriptors":[{{"user":"{request}"}}]}}"#);
                    let answer = http::request(address, "POST", "/v1/check", &[], &body);
                    assert_eq!(answer.expect("the server answers").status, 200);
                }
            });
        }
    });
    assert_eq!(http::get(server.admin(), "/healthz", &[]).status, 200);
}

#[test]
fn no_fault_of_standard_error_stops_a_request_a_write_or_the_end() {
    let folder = Folder::new(&[("rules.yaml", RULES)]);
    for format in ["text", "json"] {
        for level in ["info", "debug"] {
            let (open, stuck) = stalled();
            for (fault, stderr) in [("full", full_disk()), ("closed", closed()), ("stuck", stuck), ("slow", slow())] {
                let arguments = ["--log-format", format, "--log-level", level];
                let mut server = Spillgate::serve_with(&folder.path("rules.yaml"), &arguments, stderr);
                ask(&server);
                let body = r#"{"domain":"api","descriptors":[{"user":"0"}]}"#;
                let write =
                    http::request(server.admin(), "POST", "/reset", &[WRITE], body).expect("the server answers");
                assert!(write.status == 200 && write.body.starts_with(r#"{"reset":1,"#), "{fault}: {}", write.body);
                signal(server.process.id(), "HUP");
                eventually("the rules are reloaded", || {
                    let page = http::get(server.admin(), "/metrics", &[]).body;
                    page.contains("\nspillgate_rules_reloads_total 1\n").then_some(())
                });
                ask(&server);
                server.process.terminate();
                assert_eq!(server.process.wait().code(), Some(0), "{fault}, {format}, {level}");
            }
            drop(open);
        }
    }
}

#[test]
fn lost_lines_are_counted_and_the_log_goes_on() {
    let folder = Folder::new(&[("rules.yaml", RULES)]);
    let (mut reader, stuck) = stalled();
    let server = Spillgate::serve_with(&folder.path("rules.yaml"), &["--log-level", "info,h2=trace"], stuck);
    let lost = || {
        let page = http::get(server.admin(), "/metrics", &[]).body;
        page.lines().find_map(|line| line.strip_prefix("spillgate_log_lines_lost_total ")?.parse::<u64>().ok())
    };
    eventually("lines are lost", || {
        // The HTTP/2 library writes some lines for each frame.
        let mut client = TcpStream::connect_timeout(&server.grpc(), DEADLINE).expect("the server listens");
        let ping = [&[0, 0, 8, 6, 0, 0, 0, 0, 0], &[0; 8][..]].concat();
        let start = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &[0, 0, 0, 4, 0, 0, 0, 0, 0][..]].concat();
        client.write_all(&[start, ping.repeat(50)].concat()).expect("the server reads");
        client.shutdown(std::net::Shutdown::Write).expect("the connection is open");
        client.set_read_timeout(Some(DEADLINE)).expect("the timeout is valid");
        drop(client.read_to_end(&mut Vec::new()));
        lost().filter(|lost| *lost > 0)
    });
    let body = r#"{"domain":"api","descriptors":[{"user":"0"}]}"#;
    let write = || http::request(server.admin(), "POST", "/reset", &[WRITE], body).expect("the server answers").body;
    assert!(!write().contains("logged"), "lines about writes have places of their own");
    // The admin listener limits its callers too.
    let unlogged = eventually("no place is left", || Some(write()).filter(|body| body.contains("logged")));
    assert!(unlogged.starts_with(r#"{"reset":1,"#) && unlogged.ends_with(r#","logged":false}"#), "{unlogged}");
    let (send, bytes) = channel();
    thread::spawn(move || {
        let mut part = [0; PIPE_BYTES];
        while let Ok(count @ 1..) = reader.read(&mut part) {
            drop(send.send(part[..count].to_vec()));
        }
    });
    let mut log = String::new();
    let mut reported = || -> u64 {
        while let Ok(part) = bytes.try_recv() {
            log += &String::from_utf8_lossy(&part);
        }
        let lines = log
            .split_inclusive('\n')
            .filter(|line| line.contains("lines of the log were lost") && line.ends_with('\n'));
        lines.filter_map(|line| line.trim_end().rsplit_once("lines=")?.1.parse::<u64>().ok()).sum()
    };
    eventually("every lost line is in a report", || (Some(reported()) == lost()).then_some(()));
    assert!(log.contains("a write on the admin listener"), "{}", &log[..log.len().min(1000)]);
    drop(server);
}

#[test]
fn a_server_whose_standard_output_is_stuck_serves_and_ends() {
    let folder = Folder::new(&[("rules.yaml", RULES)]);
    let (_open, stuck) = stalled();
    let mut command = command(&folder.path(""));
    command.args(["serve", "rules.yaml", "--http", "unix:http", "--grpc", "off", "--admin", "off"]);
    let mut server = start_bound(&command, [Stdio::null(), stuck, Stdio::null()]).expect("spillgate starts");
    eventually("the server answers", || {
        let mut stream = UnixStream::connect(folder.path("http")).ok()?;
        stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.starts_with("HTTP/1.1 200 ").then_some(())
    });
    signal(server.id(), "TERM");
    let ended = eventually("the server ends", || server.try_wait().expect("a child can be waited for"));
    assert_eq!(ended.code(), Some(0));
}
