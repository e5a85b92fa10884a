//! An independent gRPC client, in another language and with published stubs, gets every answer right.

#![allow(clippy::print_stdout, reason = "`make show-python-client` shows a line for each case")]

mod support;

use std::process::Command;
use std::time::Duration;

use support::process::Process;
use support::spillgate::Spillgate;

/// How many cases `rls_client.py` has, so that none is lost unseen.
const ENFORCING_CASES: usize = 29;
const GUARDED_CASES: usize = 2;
/// A case that meets the end of its window is tried again, on a slow machine more than once.
const CASE_DEADLINE: Duration = Duration::from_secs(300);

#[test]
fn every_answer_of_the_grpc_contract() {
    let passed = cases("enforcing", &["--allow-grpc", "override,refund"]);
    assert_eq!(passed.len(), ENFORCING_CASES, "{passed:?}");
}

#[test]
fn shadow_and_what_is_not_granted() {
    let passed = cases("guarded", &["--allow-grpc", "[]", "--shadow"]);
    assert_eq!(passed.len(), GUARDED_CASES, "{passed:?}");
}

/// Serves tests/python/rules beside the reference server's example and runs the client on it; the names of the cases that passed.
fn cases(suite: &str, arguments: &[&str]) -> Vec<String> {
    let folder = support::root().join("crates/spillgate-server/tests/python");
    let reference = support::root().join("examples/reference.yaml");
    let mut all = vec![reference.to_str().expect("UTF-8")];
    all.extend(arguments);
    let spillgate = Spillgate::serve(&folder.join("rules"), &all);
    let mut command = Command::new(support::from_environment("rls", "bin/python"));
    // Isolated from the caller's Python, and without bytecode in the source tree.
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
