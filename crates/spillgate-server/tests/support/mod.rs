//! What the end-to-end tests share: real processes that always end, polling with a deadline, plain HTTP.

#![allow(dead_code, reason = "each test program uses its own part")]
#![allow(clippy::print_stderr, reason = "a failed test shows what its processes said")]

pub(crate) mod http;
#[path = "../../../spillgate-redis/tests/support/port.rs"]
pub(crate) mod port;
pub(crate) mod process;
pub(crate) mod redis;
pub(crate) mod spillgate;

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Generous: a loaded machine is no failure.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// The top of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository is there")
}

/// A file of the virtual environment `name` that scripts/setup.sh makes.
pub(crate) fn from_environment(name: &str, file: &str) -> PathBuf {
    let path = root().join("target/venv").join(name).join(file);
    assert!(path.exists(), "{} is missing: run scripts/setup.sh", path.display());
    path
}

/// Asks again and again until there is an answer; fails after [`DEADLINE`].
#[allow(clippy::disallowed_methods, reason = "a deadline on real processes needs real time")]
pub(crate) fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(begun.elapsed() < DEADLINE, "gave up after {DEADLINE:?} waiting for: {what}");
        thread::park_timeout(Duration::from_millis(20));
    }
}
