//! Reads all files of the repository and checks the rules of this project. Examples: what each module is allowed to
//! import, the greatest length of files and functions, where the code reads time, and that paths in pages exist.
//!
//! These tests leave out the rules that the compiler, clippy.toml or deny.toml can check.

#![allow(clippy::unwrap_used, reason = "a panic makes the test fail")]

use std::collections::BTreeSet;
use std::env;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

#[path = "tidy/code_map.rs"]
mod code_map;
#[path = "tidy/dependencies.rs"]
mod dependencies;
#[path = "tidy/folders.rs"]
mod folders;
#[path = "tidy/prose.rs"]
mod prose;
#[path = "tidy/prose_text.rs"]
mod prose_text;
#[path = "tidy/public_types.rs"]
mod public_types;
#[path = "tidy/rust_source.rs"]
mod rust_source;
use rust_source::Source;

const FILE_LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 70;
/// The bounds of the page of the admin listener, which a reader should be able to understand in an hour.
const PAGE_LINES_MAX: usize = 2_000;
const PAGE_BYTES_MAX: usize = 100_000;

/// Folders with generated files. The tests never read them.
const SKIPPED: [&str; 9] =
    ["target", ".git", "corpus", "artifacts", "node_modules", "__pycache__", ".venv", ".cache", ".pytest_cache"];

/// A layer (some folders), and the Rust paths that its shipped code must not name. The tests in these folders are free
/// to name these paths. If `a::b` is forbidden, `a::b::c` is forbidden too.
struct Layer {
    folders: &'static [&'static str],
    never: &'static [&'static str],
}

const LIBRARY: &str = "crates/spillgate/src/";
const SERVER: &str = "crates/spillgate-server/src/";
const STORES: [&str; 2] = ["crates/spillgate/src/memory", "crates/spillgate-redis/src"];

const LAYERS: [Layer; 12] = [
    Layer { folders: &["crates/spillgate-core/src"], never: &["std", "tokio", "serde", "tracing", "log", "spillgate"] },
    Layer {
        folders: &STORES,
        never: &["crate::rules", "crate::headers", "crate::SystemClock", "crate::ManualClock", "serde"],
    },
    Layer { folders: &STORES, never: &["http", "hyper", "axum", "tonic"] },
    Layer { folders: &["crates/spillgate/src/memory"], never: &["redis", "spillgate_redis", "tokio"] },
    Layer {
        folders: &["crates/spillgate/src/rules"],
        never: &[
            "crate::memory",
            "crate::MemoryStore",
            "crate::Store",
            "crate::StoreError",
            "crate::limiter",
            "crate::Limiter",
            "crate::clock",
            "crate::Clock",
            "crate::SystemClock",
            "spillgate_core::Store",
            "http",
            "tokio",
            "tonic",
            "axum",
        ],
    },
    Layer {
        folders: &["crates/spillgate/src/limiter", "crates/spillgate/src/headers"],
        never: &["crate::memory", "crate::rules", "crate::tower", "tokio", "redis"],
    },
    Layer {
        folders: &["crates/spillgate-server/src/protocol"],
        never: &[
            "crate::metrics",
            "crate::admin",
            "crate::listener",
            "spillgate::MemoryStore",
            "spillgate::Limiter",
            "spillgate::Store",
            "spillgate::decide",
            "spillgate_redis",
            "redis",
        ],
    },
    Layer {
        folders: &["crates/spillgate-server/src/service"],
        never: &["crate::protocol", "tonic", "prost", "prost_types", "axum", "http", "hyper", "serde", "serde_json"],
    },
    Layer {
        folders: &["crates/spillgate-server/src/operator"],
        never: &["crate::admin", "crate::listener", "crate::protocol", "crate::service", "axum", "http", "redis"],
    },
    Layer {
        folders: &["crates/spillgate-server/src/access_log"],
        never: &[
            "std::fs",
            "std::env",
            "std::net",
            "tokio",
            "crate::admin",
            "crate::cli",
            "crate::listener",
            "crate::metrics",
            "crate::protocol",
            "crate::service",
            "crate::settings",
            "spillgate::rules",
            "spillgate::Limiter",
        ],
    },
    Layer {
        folders: &["crates/spillgate-server/src/replay"],
        never: &[
            "std::fs",
            "std::env",
            "std::io",
            "tokio",
            "axum",
            "http",
            "crate::admin",
            "crate::access_log",
            "crate::protocol",
        ],
    },
    Layer { folders: &["crates/spillgate-server/src/settings"], never: &["std::fs", "std::env", "tokio"] },
];

/// Only files whose paths begin with one of these texts are allowed to name serde. These files convert bytes to data,
/// or data to bytes.
const SERDE: [&str; 10] = [
    "crates/spillgate/src/insight",
    "crates/spillgate/src/text/yaml",
    "crates/spillgate-server/src/access_log/json",
    "crates/spillgate-server/src/limit_name",
    "crates/spillgate-server/src/operator/stored",
    "crates/spillgate-server/src/replay/report",
    "crates/spillgate-server/src/settings",
    "crates/spillgate-server/src/protocol/http",
    "crates/spillgate-server/src/admin",
    "crates/spillgate-server/src/command",
];

/// Only this folder is allowed to read time.
const CLOCKS: [&str; 1] = ["crates/spillgate/src/clock/"];

/// Returns the root of the workspace to check. `scripts/show_house.py` sets TIDY_ROOT to check an older version.
fn root() -> PathBuf {
    let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let root = env::var_os("TIDY_ROOT").map_or_else(own, PathBuf::from);
    root.canonicalize().expect("the workspace's root exists")
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

fn sources() -> Vec<Source> {
    let rust = files().into_iter().filter(|(path, _)| path.ends_with(".rs"));
    rust.map(|(path, text)| Source::new(path, text)).collect()
}

fn starts_with_any(path: &str, prefixes: &[&str]) -> bool {
    prefixes.iter().any(|prefix| path.starts_with(prefix))
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

#[test]
fn files_are_short() {
    let code = [".rs", ".lua", ".py", ".sh"];
    let mut problems = Vec::new();
    for (path, text) in files() {
        let lines = text.lines().count();
        if code.iter().any(|ending| path.ends_with(ending)) && lines >= FILE_LINES_MAX {
            problems.push(format!("{path} has {lines} lines"));
        }
    }
    assert_none(&problems, "a file must have less than 500 lines: split it into files with one idea each");
}

#[test]
fn functions_are_short() {
    let mut problems = Vec::new();
    let mut seen = 0;
    for source in sources() {
        for function in source.functions() {
            seen += 1;
            if function.lines >= FUNCTION_LINES_MAX {
                let (path, line, name) = (&source.path, function.line, function.name);
                problems.push(format!("{path}:{line} {name} has {} lines", function.lines));
            }
        }
    }
    assert!(seen > 100, "only {seen} functions were found");
    assert_none(&problems, "a function must have less than 70 lines");
}

#[test]
fn the_page_is_small() {
    let page: Vec<_> =
        files().into_iter().filter(|(path, _)| path.starts_with("crates/spillgate-server/src/admin/ui/")).collect();
    let lines: usize = page.iter().map(|(_, text)| text.lines().count()).sum();
    let bytes: usize = page.iter().map(|(_, text)| text.len()).sum();
    assert!((1..PAGE_LINES_MAX).contains(&lines) && bytes < PAGE_BYTES_MAX, "{lines} lines, {bytes} bytes");
    for (path, text) in page {
        assert!(text.lines().count() < FILE_LINES_MAX, "{path} is too long");
    }
}

#[test]
fn layers_import_only_what_they_may() {
    let mut problems = Vec::new();
    let mut checked = BTreeSet::new();
    for source in sources().iter().filter(|source| is_shipped(&source.path)) {
        for layer in LAYERS.iter().filter(|layer| starts_with_any(&source.path, layer.folders)) {
            checked.insert(layer.folders[0]);
            for (line, path) in source.paths() {
                if layer.never.iter().any(|never| names(&path, never)) {
                    problems.push(format!("{}:{line} names {path}", source.path));
                }
            }
        }
        let sibling = source.path.strip_prefix("crates/spillgate-server/src/protocol/").and_then(|p| p.split_once('/'));
        let commands = !source.path.contains("/command/") && !source.path.ends_with("src/main.rs");
        for (line, path) in source.paths() {
            let protocol = path.strip_prefix("crate::protocol::").and_then(|rest| rest.split("::").next());
            if sibling.is_some_and(|(own, _)| protocol.is_some_and(|other| other != own)) {
                problems.push(format!("{}:{line} names another protocol, {path}", source.path));
            }
            if source.path.starts_with(SERVER) && commands && names(&path, "crate::command") {
                problems.push(format!("{}:{line} names {path}, but only main.rs is allowed to", source.path));
            }
        }
    }
    let layers: BTreeSet<_> = LAYERS.iter().map(|layer| layer.folders[0]).collect();
    assert_eq!(checked, layers, "each layer must have shipped code in its folders");
    assert_none(&problems, "the code of a layer must not name the paths that LAYERS forbids");
}

/// Returns whether `path` names `item` or something inside `item`.
fn names(path: &str, item: &str) -> bool {
    path.strip_prefix(item).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

#[test]
fn the_kernel_is_no_std_and_depends_on_nothing() {
    let text = fs::read_to_string(root().join("crates/spillgate-core/src/lib.rs")).unwrap();
    assert!(text.contains("#![no_std]"), "spillgate-core must be `no_std`");
    let manifest = fs::read_to_string(root().join("crates/spillgate-core/Cargo.toml")).unwrap();
    let dependencies = section(&manifest, "[dependencies]");
    assert!(dependencies.is_empty(), "spillgate-core must have no dependencies: {dependencies:?}");
}

/// Returns the entries of a section of a Cargo.toml.
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
            let own = entries.filter(|entry| !entry.contains("workspace = true") && !entry.contains("path = "));
            problems.extend(own.map(|entry| format!("{path}: {entry}")));
        }
    }
    assert_none(&problems, "versions of dependencies must be only in [workspace.dependencies] of the root Cargo.toml");
}

#[test]
fn serde_stays_at_the_edge() {
    let mut problems = Vec::new();
    for source in sources().iter().filter(|s| is_shipped(&s.path) && !starts_with_any(&s.path, &SERDE)) {
        let serde = source.paths().into_iter().filter(|(_, path)| path.starts_with("serde"));
        problems.extend(serde.map(|(line, path)| format!("{}:{line} names {path}", source.path)));
    }
    assert_none(&problems, "only the files of the list SERDE are allowed to name serde");
}

#[test]
fn time_is_read_by_the_clock_alone() {
    // The timers of tokio are allowed, because no decision gets its time from them.
    let clocks = ["std::time::Instant", "std::time::SystemTime", "std::thread::sleep", "thread::sleep", "quanta"];
    let mut problems = Vec::new();
    for source in sources().iter().filter(|s| is_shipped(&s.path) && !starts_with_any(&s.path, &CLOCKS)) {
        for (line, path) in source.paths() {
            if clocks.iter().any(|clock| names(&path, clock)) {
                problems.push(format!("{}:{line} names {path}", source.path));
            }
        }
        if source.shipped_code.contains("clippy::disallowed_methods") {
            problems.push(format!("{} allows the lint clippy::disallowed_methods", source.path));
        }
    }
    assert_none(&problems, "only the folder clock is allowed to read time, and no code is allowed to sleep");
}

#[test]
fn nothing_is_left_undone() {
    let mut problems = Vec::new();
    let marks = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
    for source in sources() {
        for (line, text) in (1..).zip(source.code.lines()) {
            let undone = ["todo!", "unimplemented!", "dbg!", "#[ignore"];
            if undone.iter().any(|mark| text.contains(mark)) {
                problems.push(format!("{}:{line} {}", source.path, text.trim()));
            }
        }
    }
    for (path, text) in files() {
        for (line, text) in (1..).zip(text.lines()) {
            let mut words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            if words.any(|word| marks.contains(&word)) {
                problems.push(format!("{path}:{line} {}", text.trim()));
            }
        }
    }
    assert_none(&problems, "merged code must have no marks of unfinished work");
}

#[test]
fn every_module_says_what_it_is() {
    let mut problems = Vec::new();
    for (path, text) in files() {
        // In a test program of several files, only the root file needs documentation of its module.
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

#[test]
fn layers_name_folders_that_are_planned() {
    // If a folder of LAYERS were renamed, its rule would no longer be checked.
    for layer in &LAYERS {
        let known = [LIBRARY, SERVER, "crates/spillgate-core/src", "crates/spillgate-redis/src"];
        assert!(layer.folders.iter().all(|folder| starts_with_any(folder, &known)), "{:?}", layer.folders);
    }
    for folder in ["crates/spillgate/src/memory", "crates/spillgate/src/rules", "crates/spillgate/src/limiter"] {
        assert!(root().join(folder).exists(), "{folder} moved: change LAYERS too");
    }
    for module in ["protocol/grpc", "protocol/http", "settings", "command"] {
        assert!(root().join(SERVER).join(module).exists(), "{module} moved: change LAYERS too");
    }
}
