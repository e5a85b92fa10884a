//! The linter of Prometheus finds nothing to criticize on the page of a real server.

use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::metrics::deploy::promtool;
use crate::metrics::page::Page;
use crate::metrics::traffic::{RULES, Via, serve};
use crate::support::eventually;
use crate::support::redis::Redis;
use crate::support::spillgate::REGIONS;

/// Returns whether the linter accepts a page, and what it says about the page.
fn lint(page: &str) -> (bool, String) {
    let mut command = Command::new(promtool());
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut linter = command.spawn().unwrap();
    linter.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = linter.wait_with_output().unwrap();
    (output.status.success(), [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat())
}

#[test]
fn the_linter_has_no_complaint() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state").display().to_string();
    let snapshot = ["--memory-snapshot-path", &path, "--memory-snapshot-interval", "100ms"];
    let redis = Redis::start();
    let url = redis.url();
    let store = [&["--store", &*url, "--store-expected-nodes", "1"][..], &REGIONS].concat();
    for (arguments, shown) in [(&snapshot[..], "snapshot_timestamp"), (&store, "store_up 1")] {
        let server = serve(RULES, arguments);
        eventually("all gauges are set", || Page::of(server.admin()).text.contains(shown).then_some(()));
        for via in [Via::Grpc, Via::Http] {
            via.send(&server, &[("two", "a"), ("unknown", "b")], 1);
        }
        assert_eq!(lint(&Page::of(server.admin()).text), (true, String::new()));
    }
}

#[test]
fn the_linter_finds_a_wrong_page() {
    let (is_right, said) = lint("# HELP a A counter.\n# TYPE a counter\na 1\n");
    assert!(!is_right && said.contains("_total"), "{said}");
}
