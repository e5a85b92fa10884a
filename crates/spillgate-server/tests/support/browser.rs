//! Opens pages in headless Chromium, and returns what `tests/browser/open.mjs` found there.
//!
//! A page is for people, so only a browser can say whether it works: whether its texts run as scripts, whether it loads
//! anything, and whether people with poor eyesight or without a mouse can use it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;

use super::process::Process;
use super::root;

/// The maximum time for one page. A page normally needs a few seconds.
const DEADLINE: Duration = Duration::from_secs(120);

/// The findings about a page that was opened light and dark, on a large screen and on phones, and without its security
/// policy.
#[derive(Debug, Deserialize)]
pub(crate) struct Found {
    /// The file of the page, without its folder.
    pub(crate) page: String,
    /// The title, once for each time that the page was opened.
    pub(crate) titles: Vec<String>,
    /// Signs that a script has run.
    pub(crate) scripts: Vec<String>,
    /// Elements and attributes that can run scripts or load files.
    pub(crate) active: Vec<String>,
    /// The addresses that the page or the browser asked for.
    pub(crate) requests: Vec<String>,
    /// Barriers for people with disabilities, as axe-core found them.
    pub(crate) violations: Vec<String>,
    /// The height of the page on a phone, in pixels.
    pub(crate) phone_height: u64,
    /// On which screens a reader has to scroll to the side.
    pub(crate) too_wide: Vec<String>,
}

/// Opens pages one after the other. Writes screenshots and PDF files into the folder `pictures`, if it is given.
pub(crate) fn open(pages: &[PathBuf], pictures: Option<&Path>) -> Vec<Found> {
    let script = root().join("crates/spillgate-server/tests/browser/open.mjs");
    let mut command = Command::new(program("node"));
    command.arg(script).arg(tools()).arg(program("chromium"));
    if let Some(folder) = pictures {
        command.arg("--pictures").arg(folder);
    }
    let mut process = Process::start("open.mjs", command.args(pages));
    let mut found: Vec<Found> = Vec::new();
    while let Some(line) = process.line_within(DEADLINE) {
        found.push(serde_json::from_str(&line).expect("open.mjs prints JSON"));
    }
    let success = process.wait().success();
    assert!(success && found.len() == pages.len(), "the browser failed:\n{}", process.stderr().join("\n"));
    found
}

/// Returns the folder with puppeteer-core and axe-core.
pub(crate) fn tools() -> PathBuf {
    let tools = root().join("target/browser");
    assert!(tools.join(".complete").exists(), "{} is missing: run scripts/setup.sh", tools.display());
    tools
}

/// Returns the path of a program. If the program is missing, the panic says how to install it.
pub(crate) fn program(name: &str) -> PathBuf {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file());
    found.unwrap_or_else(|| {
        panic!("{name} is missing: run scripts/setup.sh, which installs it from Debian (the package of Chromium is chromium)")
    })
}
