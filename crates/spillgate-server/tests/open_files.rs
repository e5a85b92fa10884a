//! What happens when the process may open no more files: the admin listener still answers, and the log stays short.

#![allow(clippy::unwrap_used, reason = "a panic makes the test fail")]

use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::support::process::Process;
use crate::support::spillgate::Spillgate;
use crate::support::{eventually, http};

const RULES: &str = "domain: api\ndescriptors:\n  - key: user\n    rate_limit: {unit: hour, requests_per_unit: 5}\n";

fn rules() -> tempfile::NamedTempFile {
    let rules = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(rules.path(), RULES).unwrap();
    rules
}

fn metric(spillgate: &Spillgate, name: &str) -> u64 {
    let metrics = http::get(spillgate.admin(), "/metrics", &[]).body;
    metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().parse().unwrap()
}

#[test]
fn clients_leave_files_for_the_admin_listener() {
    let rules = rules();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 150; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_spillgate"), "serve"]);
    command.arg(rules.path()).arg("--json");
    command.args(["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--workers", "1"]);
    let process = Process::start_with("spillgate", &mut command, Stdio::piped());
    let ready = serde_json::from_str(&process.line_within(Duration::from_secs(300)).unwrap()).unwrap();
    let spillgate = Spillgate { process, ready };
    let clients: Vec<_> = (0..100)
        .flat_map(|_| [spillgate.http(), spillgate.grpc()])
        .map(|server| TcpStream::connect(server).unwrap())
        .collect();
    assert_eq!(http::get(spillgate.admin(), "/healthz", &[]).status, 200);
    let closed = eventually("connections above the bound are closed", || {
        Some(metric(&spillgate, "spillgate_connections_closed_total{reason=\"bound\"}")).filter(|closed| *closed > 100)
    });
    assert_eq!(metric(&spillgate, "spillgate_accept_errors_total"), 0, "{closed} were closed");
    spillgate.process.logged("too few open files for limits.connections");
    drop(clients);
}

#[test]
fn accept_errors_are_logged_once_and_counted_each() {
    let rules = rules();
    let spillgate = Spillgate::serve(rules.path(), &[]);
    let pid = Pid::from_raw(i32::try_from(spillgate.process.id()).unwrap());
    let before = prlimit(pid, Resource::Nofile, Rlimit { current: Some(8), maximum: Some(1024) }).unwrap();
    let client = TcpStream::connect(spillgate.http()).unwrap();
    spillgate.process.logged("cannot accept connections");
    eventually("several errors are counted", || {
        let few = Rlimit { current: Some(8), maximum: Some(1024) };
        prlimit(pid, Resource::Nofile, few).unwrap();
        // While the client waits to be accepted, the server tries again and again.
        let waiting = TcpStream::connect(spillgate.http()).unwrap();
        std::thread::park_timeout(Duration::from_millis(200));
        prlimit(pid, Resource::Nofile, Rlimit { current: Some(1024), maximum: Some(1024) }).unwrap();
        drop(waiting);
        (metric(&spillgate, "spillgate_accept_errors_total") >= 5).then_some(())
    });
    let lines = spillgate.process.stderr();
    let accepts = lines.iter().filter(|line| line.contains("cannot accept connections")).count();
    assert_eq!(accepts, 1, "the limit was {before:?}: {lines:?}");
    drop(client);
}
