//! Tests with an independent gRPC client. It is written in Python, and its gRPC code (the stubs) was published by other people.
//!
//! The Rust tests of gRPC use the same generated code as the server. If this code has a mistake, server and test make
//! the same mistake, and only an independent client notices it.

#![allow(clippy::print_stdout, reason = "`make show-python-client` shows a line for each case")]

use crate::support;
use std::process::Command;
use std::time::Duration;

use crate::support::process::Process;
use crate::support::spillgate::Spillgate;

/// The number of cases in the suite `enforcing` of `rls_client.py`. If a case does not run, fewer cases than this pass.
const ENFORCING_CASES: usize = 29;
const GUARDED_CASES: usize = 2;
/// How long the test waits for the result of one case. If the window of a limit ends during a case, the client runs the
/// case again. On a slow machine, a case can need several attempts.
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

/// Starts a server with tests/python/rules and examples/reference.yaml, and runs a suite of the client against this
/// server. Returns the names of the cases that passed.
fn cases(suite: &str, arguments: &[&str]) -> Vec<String> {
    let folder = support::root().join("crates/spillgate-server/tests/python");
    let reference = support::root().join("examples/reference.yaml");
    let mut all = vec![reference.to_str().expect("the path is UTF-8")];
    all.extend(arguments);
    let spillgate = Spillgate::serve(&folder.join("rules"), &all);
    let mut command = Command::new(support::from_environment("rls", "bin/python"));
    // The variable PYTHONPATH of the user who runs the tests is removed. The client writes no bytecode into the source
    // tree.
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
