//! Reads all files of the repository and checks what no compiler can: that only the clocks read time, that paths,
//! targets and links in pages exist, that licences are allowed, and that sentences can be read.
//!
//! Which part may use which other part is not checked here: each part is a crate, so the compiler checks it.

#![allow(clippy::unwrap_used, reason = "a panic makes the test fail")]

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

mod dependencies;
mod prose;
mod prose_text;
mod public_types;
mod rust_source;

/// Folders with generated files. The tests never read them.
const SKIPPED: [&str; 9] =
    ["target", ".git", "corpus", "artifacts", "node_modules", "__pycache__", ".venv", ".cache", ".pytest_cache"];

/// Only the clocks of the library read time. clippy.toml forbids the functions that read time, and only files in this
/// folder may allow them.
const CLOCK: &str = "/src/clock/";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace's root exists")
}

/// Returns the path (relative to the root) and the text of each file of the repository. Files that are not text are left out.
fn files() -> Vec<(String, String)> {
    fn walk(folder: &Path, root: &Path, found: &mut Vec<(String, String)>) {
        let mut entries: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        for path in entries {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if SKIPPED.contains(&name.as_str()) {
                continue;
            }
            if path.is_dir() {
                walk(&path, root, found);
            } else if let Ok(text) = fs::read_to_string(&path) {
                found.push((path.strip_prefix(root).unwrap().to_string_lossy().into_owned(), text));
            }
        }
    }
    let mut found = Vec::new();
    let root = root();
    walk(&root, &root, &mut found);
    assert!(found.len() > 50, "only {} files were found below {}", found.len(), root.display());
    found
}

/// Returns whether the file is part of a shipped program or library. Tests and spillgate-testkit are not shipped.
fn is_shipped(path: &str) -> bool {
    let of_tests =
        path.ends_with("/tests.rs") || path.contains("/tests/") || path.starts_with("crates/spillgate-testkit/");
    path.starts_with("crates/") && path.contains("/src/") && !of_tests
}

fn assert_none(problems: &[String], rule: &str) {
    let list = problems.iter().fold(String::new(), |mut list, problem| {
        let _ = write!(list, "\n  {problem}");
        list
    });
    assert!(problems.is_empty(), "{rule}:{list}");
}

/// Returns the lines of the section `head` of a Cargo.toml, such as `[dependencies]`.
fn section<'t>(manifest: &'t str, head: &str) -> Vec<&'t str> {
    let lines = manifest.lines().skip_while(|line| line.trim() != head).skip(1);
    lines.take_while(|line| !line.starts_with('[')).filter(|l| !l.trim().is_empty() && !l.starts_with('#')).collect()
}

#[test]
fn dependency_versions_live_in_the_root_manifest() {
    let mut problems = Vec::new();
    for (path, text) in files() {
        if !path.starts_with("crates/") || !path.ends_with("Cargo.toml") {
            continue;
        }
        for head in ["[dependencies]", "[dev-dependencies]", "[build-dependencies]"] {
            let entries = section(&text, head).into_iter();
            // A list of features can go over several lines, which have no equals sign.
            let own = entries.filter(|entry| {
                entry.contains(" = ") && !entry.contains("workspace = true") && !entry.contains("path = ")
            });
            problems.extend(own.map(|entry| format!("{path}: {entry}")));
        }
    }
    assert_none(&problems, "versions of dependencies must be only in [workspace.dependencies] of the root Cargo.toml");
}

#[test]
fn time_is_read_by_the_clock_alone() {
    let lint = concat!("clippy::", "disallowed_methods");
    let shipped = files().into_iter().filter(|(path, _)| is_shipped(path) && path.ends_with(".rs"));
    let (clocks, others): (Vec<_>, Vec<_>) =
        shipped.filter(|(_, text)| text.contains(lint)).map(|(path, _)| path).partition(|path| path.contains(CLOCK));
    assert!(!clocks.is_empty(), "the clocks read time");
    assert_none(&others, "a shipped file outside the folder clock must not allow the lint disallowed_methods");
    let rules = fs::read_to_string(root().join("clippy.toml")).unwrap();
    for method in ["std::time::Instant::now", "std::time::SystemTime::now", "std::thread::sleep"] {
        assert!(rules.contains(method), "clippy.toml must forbid {method}");
    }
}

#[test]
fn nothing_is_left_undone() {
    let marks = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
    let mut problems = Vec::new();
    for (path, text) in files() {
        for (line, text) in (1..).zip(text.lines()) {
            let mut words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let ignored = path.ends_with(".rs") && text.trim_start().starts_with(concat!("#[ig", "nore"));
            if ignored || words.any(|word| marks.contains(&word)) {
                problems.push(format!("{path}:{line} {}", text.trim()));
            }
        }
    }
    assert_none(&problems, "merged code must have no marks of unfinished work, and no test that is left out");
}

#[test]
fn every_module_says_what_it_is() {
    let mut problems = Vec::new();
    for (path, text) in files() {
        // In a test program of several files, only the root file needs this documentation.
        let root = !path.contains("/tests/") || path.ends_with("/main.rs") || path.matches('/').count() == 3;
        let rust = path.ends_with(".rs") && !path.ends_with("/tests.rs");
        if rust && root && !text.trim_start_matches("#![no_main]").trim_start().starts_with("//!") {
            problems.push(path);
        }
    }
    assert_none(&problems, "a file must begin with the documentation of its module (`//!`)");
}

#[test]
fn no_path_of_some_machine() {
    let homes = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/Us", "ers/")];
    let mut problems = Vec::new();
    for (path, text) in files() {
        for (line, text) in (1..).zip(text.lines()) {
            if homes.iter().any(|home| text.contains(home)) {
                problems.push(format!("{path}:{line} {}", text.trim()));
            }
        }
    }
    assert_none(&problems, "files must not contain paths of one machine");
}

#[test]
fn the_makefile_has_what_the_pages_name() {
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    let targets: BTreeSet<&str> = makefile
        .lines()
        .filter(|l| !l.starts_with(['\t', '#', '.', ' ']))
        .filter_map(|l| l.split_once(':'))
        .map(|(name, _)| name.trim())
        .collect();
    let mut problems = Vec::new();
    let mut seen = 0;
    for (path, text) in files().iter().filter(|(path, _)| path.ends_with(".md") || path.starts_with(".ci/")) {
        for (at, _) in text.match_indices("make ") {
            // `make NAME` is a command only if it begins a code span or a line.
            if !(text[..at].ends_with(['`', '\n']) || text[..at].ends_with("$ ") || text[..at].ends_with("exec ")) {
                continue;
            }
            let name = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
            let rest = &text[at + 5..];
            let target = rest[..rest.find(|c| !name(c)).unwrap_or(rest.len())].trim_end_matches('.');
            seen += 1;
            let pattern = target.contains('N') || target.is_empty();
            if !pattern && !targets.contains(target) {
                problems.push(format!("{path}: make {target}"));
            }
        }
    }
    assert!(seen > 0, "the test found no page that names a make target");
    for (path, text) in files() {
        for (at, _) in text.match_indices("scripts/") {
            let rest = &text[at..];
            let name =
                &rest[..rest.find(|c: char| !(c.is_ascii_alphanumeric() || "-_./".contains(c))).unwrap_or(rest.len())];
            let is_script = [".sh", ".py"].iter().any(|ending| name.ends_with(ending));
            if is_script && !root().join(name).is_file() {
                problems.push(format!("{path}: {name} is missing"));
            }
        }
    }
    assert_none(&problems, "a make target or a script that a page names must exist");
}

#[test]
fn the_changelog_is_kept() {
    let text = fs::read_to_string(root().join("CHANGELOG.md")).unwrap();
    let unreleased = text.lines().position(|line| line.starts_with("## ") && line.contains("Unreleased"));
    let at = unreleased.expect("CHANGELOG.md has a section Unreleased");
    let listed =
        text.lines().skip(at + 1).take_while(|line| !line.starts_with("## ")).any(|line| line.starts_with("- "));
    assert!(
        listed || text.lines().skip(at + 1).any(|line| line.starts_with("## ")),
        "CHANGELOG.md must list a change in Unreleased, or have a section of a version"
    );
}

/// Returns the texts between backticks in a line.
fn code_spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

#[test]
fn paths_in_pages_for_contributors_exist() {
    let endings = [".rs", ".lua", ".sh", ".py", ".yaml", ".json", ".md", ".toml", "/"];
    let files = files();
    let paths: Vec<String> = files.iter().map(|(path, _)| format!("/{path}")).collect();
    let pages = |path: &str| {
        ["ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"].contains(&path)
            || path.starts_with("docs/design/")
            || path.starts_with("docs/contributing/")
    };
    let mut problems = Vec::new();
    for (page, text) in files.iter().filter(|(path, _)| pages(path)) {
        for (line, text) in (1..).zip(text.lines()) {
            // A path with `NAME` or `*` is a pattern, and `redis://` begins a URL.
            let is_pattern =
                |span: &str| span.contains("NAME") || span.contains(['*', '{', ' ']) || span.contains("://");
            let is_path = |span: &&str| endings.iter().any(|ending| span.ends_with(ending)) && !is_pattern(span);
            for path in code_spans(text).filter(is_path) {
                let suffix = format!("/{}", path.trim_start_matches('/'));
                let is_it =
                    |file: &String| if path.ends_with('/') { file.contains(&suffix) } else { file.ends_with(&suffix) };
                if !paths.iter().any(is_it) {
                    problems.push(format!("{page}:{line}: {path}"));
                }
            }
        }
    }
    assert_none(&problems, "a path that a page for contributors names must exist");
}

#[test]
fn links_lead_somewhere() {
    let mut problems = Vec::new();
    for (path, text) in files().iter().filter(|(path, _)| path.ends_with(".md")) {
        for (line, target) in rust_source::markdown_links(text) {
            let target = target.split('#').next().unwrap_or_default();
            let external = target.contains("://") || target.starts_with("mailto:");
            let file = root().join(path).parent().unwrap().join(target);
            if !target.is_empty() && !external && !file.exists() {
                problems.push(format!("{path}:{line} {target}"));
            }
        }
    }
    assert_none(&problems, "a relative link must lead to a file of the repository");
}
