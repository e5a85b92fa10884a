//! Helpers of the end-to-end tests: real processes that always end, polling with a deadline, and plain HTTP.
//!
//! A test that fails must not leave a process behind.

#![allow(clippy::print_stderr, reason = "a failed test shows the stderr of its processes")]

pub(crate) mod browser;
pub(crate) mod events;
pub(crate) mod http;
pub(crate) mod load;
pub(crate) mod process;
pub(crate) mod redis;
pub(crate) mod spillgate;

use std::path::{Path, PathBuf};

pub(crate) use spillgate_testkit::{DEADLINE, eventually};

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository exists")
}

/// Returns the path of a file in the Python environment `name`, which scripts/setup.sh creates. Panics if the file is missing.
pub(crate) fn from_environment(name: &str, file: &str) -> PathBuf {
    let path = root().join("target/venv").join(name).join(file);
    assert!(path.exists(), "{} is missing: run scripts/setup.sh", path.display());
    path
}
