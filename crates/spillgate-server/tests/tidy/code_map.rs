//! Checks the pages for contributors: every path that they name exists, and the code map of ARCHITECTURE.md has a row for each
//! file and folder in the `src` of each crate.
//!
//! A newcomer starts from these pages. Without this test, they would still name the old path of a file that was moved.

use std::collections::BTreeSet;
use std::fs;

use super::{assert_none, files, is_shipped, root};

/// Returns the section "Code map" of ARCHITECTURE.md.
fn code_map() -> String {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let map = page.split("\n## ").find(|section| section.starts_with("Code map")).expect("the page has a code map");
    map.to_owned()
}

/// Returns the code spans of a line. A code span `a/{b,c}` is returned as `a/b` and `a/c`.
fn code_spans(line: &str) -> Vec<String> {
    let mut found = Vec::new();
    for span in line.split('`').skip(1).step_by(2) {
        match span.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?))) {
            Some((before, (choices, after))) if !choices.contains(' ') => {
                found.extend(choices.split(',').map(|choice| format!("{before}{choice}{after}")));
            }
            _ => found.push(span.to_owned()),
        }
    }
    found
}

/// Returns the paths in the first column of the code map, relative to the root of the repository. In the map, a path that begins
/// with `src/` belongs to the last crate that is named before it.
fn mapped_paths(map: &str) -> Vec<String> {
    let mut owner = String::new();
    let mut found = Vec::new();
    for row in map.lines().filter_map(|line| line.strip_prefix('|')) {
        for path in code_spans(row.split('|').next().unwrap_or_default()) {
            if path.starts_with("crates/") {
                owner = path.trim_end_matches('/').to_owned();
            }
            let of_crate = path.starts_with("src/") || root().join(&owner).join(&path).exists();
            let inside = of_crate && !owner.is_empty() && !path.starts_with("crates/");
            found.push(if inside { format!("{owner}/{path}") } else { path });
        }
    }
    found
}

#[test]
fn every_path_of_the_code_map_exists() {
    let mapped = mapped_paths(&code_map());
    assert!(mapped.len() > 20, "only {} paths were found", mapped.len());
    let missing: Vec<_> = mapped.into_iter().filter(|path| !root().join(path).exists()).collect();
    assert_none(&missing, "a path in the code map of ARCHITECTURE.md must exist");
}

/// CHANGELOG.md names the tests of each repair, so that a reader can find them.
#[test]
fn every_test_that_the_changelog_names_exists() {
    let code: String = files().into_iter().filter(|(path, _)| path.ends_with(".rs")).map(|(_, text)| text).collect();
    let page = fs::read_to_string(root().join("CHANGELOG.md")).unwrap();
    let is_name = |span: &String| {
        let words = span.split('_').count();
        words > 4 && span.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    // A name that begins with `spillgate_` is a metric. Another test checks the names of metrics.
    let named = page.lines().flat_map(code_spans).filter(|span| is_name(span) && !span.starts_with("spillgate_"));
    let named: BTreeSet<String> = named.collect();
    assert!(named.len() > 50, "only {} names of tests were found", named.len());
    let missing: Vec<_> = named.into_iter().filter(|name| !code.contains(&format!("fn {name}("))).collect();
    assert_none(&missing, "a test that CHANGELOG.md names must exist");
}

#[test]
fn every_path_in_pages_for_contributors_exists() {
    let endings = [".rs", ".lua", ".sh", ".py", ".yaml", ".json", ".md", ".toml", "/"];
    let files: Vec<String> = files().into_iter().map(|(path, _)| format!("/{path}")).collect();
    let mut problems = Vec::new();
    for page in ["ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"] {
        let text = fs::read_to_string(root().join(page)).unwrap();
        for (line, text) in (1..).zip(text.lines()) {
            // A path with `NAME` or `*` is a pattern, and `redis://` begins a URL.
            let is_path = |span: &String| {
                let is_pattern = span.contains("NAME") || span.contains("*") || span.ends_with("://");
                endings.iter().any(|ending| span.ends_with(ending)) && !is_pattern
            };
            for path in code_spans(text).into_iter().filter(is_path) {
                let suffix = format!("/{path}");
                let is_it =
                    |file: &String| if path.ends_with('/') { file.contains(&suffix) } else { file.ends_with(&suffix) };
                if !files.iter().any(is_it) {
                    problems.push(format!("{page}:{line}: {path}"));
                }
            }
        }
    }
    assert_none(&problems, "a path that a page names must exist");
}

#[test]
fn the_code_map_misses_no_part_of_a_crate() {
    let mapped = mapped_paths(&code_map());
    let mut parts = BTreeSet::new();
    for (path, _) in files().into_iter().filter(|(path, _)| is_shipped(path)) {
        let (before, inside) = path.split_once("/src/").expect("a shipped file is in src");
        let part = inside.split('/').next().unwrap_or_default();
        // `a.rs` and the folder `a/` count as one part.
        parts.insert(format!("{before}/src/{}", part.trim_end_matches(".rs")));
    }
    assert!(parts.len() > 20, "only {} parts were found", parts.len());
    let is_root = |part: &String| part.ends_with("/src/lib") || part.ends_with("/src/main");
    let is_mapped = |part: &String| {
        mapped
            .iter()
            .any(|path| path.strip_prefix(part).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '/'])))
    };
    let missing: Vec<_> = parts.into_iter().filter(|part| !is_root(part) && !is_mapped(part)).collect();
    assert_none(&missing, "the code map of ARCHITECTURE.md must have a row for each file and folder of src");
}

#[test]
fn paths_of_the_map_are_found() {
    let map = "| `crates/spillgate` | x |\n| `src/a.rs`, `src/{b,c}/` | `d.rs` |\n| `bench/` | `take(a, {b})` |\n";
    let expected = [
        "crates/spillgate",
        "crates/spillgate/src/a.rs",
        "crates/spillgate/src/b/",
        "crates/spillgate/src/c/",
        "bench/",
    ];
    assert_eq!(mapped_paths(map), expected);
}
