//! Checks that the kernel gives the answers that the traces in `tests/traces/` expect.
//!
//! All other stores are tested with these traces too. So an expected answer must be that of the kernel.

use std::collections::BTreeSet;
use std::path::Path;

use spillgate_core::conformance::{Reference, TRACES, Trace, run};
use spillgate_core::{Decision, Hit, Time, Verdict};

fn kernel() -> impl FnMut(Time, &[Hit<'_>], &mut [Decision]) -> Verdict {
    let mut store = Reference::default();
    move |now, hits, decisions| store.decide(now, hits, decisions)
}

#[test]
fn the_kernel_answers_as_every_trace_says() {
    let failures: Vec<String> =
        TRACES.iter().filter_map(|t| run(t, kernel()).err()).map(|e| format!("{e}\n")).collect();
    assert!(failures.is_empty(), "{}", failures.concat());
}

#[test]
fn every_trace_file_is_in_the_suite() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces");
    let files: BTreeSet<String> = std::fs::read_dir(folder)
        .expect("the folder of traces can be read")
        .map(|entry| entry.expect("the entry can be read").path())
        .map(|path| path.file_stem().expect("the file has a name").to_string_lossy().into_owned())
        .collect();
    let listed: BTreeSet<String> = TRACES.iter().map(|t| t.name.to_owned()).collect();
    assert_eq!(files, listed);
}

fn outcome(text: &'static str) -> Result<usize, String> {
    run(&Trace { name: "test", text }, kernel()).map_err(|e| e.to_string())
}

#[test]
fn a_trace_that_is_wrong_fails() {
    const QUOTA: &str = "quota algorithm=token_bucket limit=10 window=1s\n";
    for (request, complaint) in [
        ("t=0ms key=a -> allow remaining=10", "test.trace:2: hit 1: remaining: expected 10, got 9"),
        ("t=0ms key=a -> refuse retry_after=1s", "allowed: expected false"),
        ("t=0ms key=a cost=11 -> refuse", "retry_after: expected After(0), got Never"),
        ("t=0ms key=a -> allow delay=1ms", "delay: expected 1000000"),
        ("t=0ms key=a -> allow soft_over", "soft_over: expected true"),
        ("t=0ms key=a peek -> allow receipt=r", "a receipt is expected"),
        ("t=0ms key=a refund receipt=r -> allow", "no take has returned r"),
        ("t=0ms key=a quota=x -> allow", "there is no quota \"x\""),
        ("t=0ms key=a coast=1 -> allow", "a hit has no (\"coast\", \"1\")"),
        ("t=0ms key=a -> allow remainder=9", "a decision has no remainder"),
        ("t=0ms key=a -> maybe", "allow or refuse"),
        ("t=0 key=a -> allow", "\"0\" is not a duration"),
        (
            "t=0ms -> allow binds=2\n  key=a -> allow\n  key=b cost=3 -> allow\n  key=c cost=9 -> allow",
            "verdict: binds",
        ),
    ] {
        let text: &'static str = format!("{QUOTA}{request}").leak();
        let error = outcome(text).expect_err(request);
        assert!(error.contains(complaint), "{request}: {error}");
    }
    let error = outcome("quota algorithm=token_bucket limit=1").expect_err("no window");
    assert!(error.contains("window has to be longer than 0"), "{error}");
}
