//! Tests with an independent gRPC client. It is written in Python, and its gRPC code (the stubs) was published by other people.
//!
//! Without this client, a mistake that both our server and our own client make would not be noticed.

#![allow(clippy::print_stdout, reason = "`make show-python-client` shows a line for each case")]

mod support;

use std::process::Command;
use std::time::Duration;

use support::process::Process;
use support::spillgate::Spillgate;

/// The number of test cases in `rls_client.py`. With this number, the test notices a case that was not run.
const ENFORCING_CASES: usize = 29;
const GUARDED_CASES: usize = 2;
/// The time limit of the client. If the window of a limit ends during a case, the client runs the case again. A slow machine may
/// need several attempts.
const CASE_DEADLINE: Duration = Duration::from_secs(300);

#[test]
fn every_answer_follows_the_grpc_contract() {
    let passed = cases("enforcing", &["--allow-grpc", "override,refund"]);
    assert_eq!(passed.len(), ENFORCING_CASES, "{passed:?}");
}

#[test]
fn shadow_mode_and_missing_grants() {
    let passed = cases("guarded", &["--allow-grpc", "[]", "--shadow"]);
    assert_eq!(passed.len(), GUARDED_CASES, "{passed:?}");
}

/// Serves tests/python/rules and examples/reference.yaml, and runs the client against them. Returns the names of the cases
/// that passed.
fn cases(suite: &str, arguments: &[&str]) -> Vec<String> {
    let folder = support::root().join("crates/spillgate-server/tests/python");
    let reference = support::root().join("examples/reference.yaml");
    let mut all = vec![reference.to_str().expect("UTF-8")];
    all.extend(arguments);
    let spillgate = Spillgate::serve(&folder.join("rules"), &all);
    let mut command = Command::new(support::from_environment("rls", "bin/python"));
    // The client ignores the Python path of the caller, and writes no bytecode into the source tree.
    command.env_remove("PYTHONPATH").env("PYTHONDONTWRITEBYTECODE", "1");
    command.arg(folder.join("rls_client.py")).arg(spillgate.grpc().to_string()).arg(suite);
    let mut client = Process::start("rls_client.py", &mut command);
    let mut passed = Vec::new();
    while let Some(line) = client.line_within(CASE_DEADLINE) {
        println!("{line}");
        passed.extend(line.strip_prefix("ok ").map(str::to_owned));
    }
    assert!(client.wait().success(), "cases failed in the suite {suite}");
    passed
}
