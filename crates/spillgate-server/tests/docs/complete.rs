//! Checks pages that are written by hand. The pages must name every algorithm, every route and every member of an
//! answer. Each log line on the pages must exist in the code.
//!
//! No generator adds a new algorithm or route to these pages. These tests find a name that the code has and a page
//! lacks.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::page::read;
use crate::support::spillgate::Spillgate;
use crate::support::{http, root};

/// Returns the code spans in the first column of all tables of a section.
fn first_column(page: &str, heading: &str) -> BTreeSet<String> {
    let text = read(page);
    let section = text.split(&format!("\n## {heading}\n")).nth(1).unwrap_or_else(|| panic!("{page} has no {heading}"));
    let section = section.split("\n## ").next().unwrap_or_default();
    // The line above the dashes is the header of the table, so it is left out.
    let lines =
        section.lines().zip(section.lines().skip(1).chain([""])).filter(|(_, below)| !below.starts_with("|---"));
    let rows = lines.filter_map(|(line, _)| line.strip_prefix("| ")?.split(" | ").next());
    let spans = rows.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    spans.map(str::to_owned).collect()
}

#[test]
fn every_algorithm_is_explained_and_has_its_bound() {
    let schema: Value = serde_json::from_str(spillgate::rules::SCHEMA).expect("the schema is JSON");
    let names = schema
        .pointer("/$defs/limit/properties/algorithm/enum")
        .and_then(Value::as_array)
        .expect("the schema lists the algorithms");
    // `gcra` is left out, because it is another name for the token bucket.
    let names: BTreeSet<_> = names.iter().filter_map(Value::as_str).filter(|name| *name != "gcra").collect();
    let sections = [
        ("docs/src/reference/rules.md", "Algorithms"),
        ("docs/src/guarantees/bounds.md", "What each algorithm admits"),
    ];
    for (page, heading) in sections {
        let column = first_column(page, heading);
        assert_eq!(column.iter().map(String::as_str).collect::<BTreeSet<_>>(), names, "{page}");
    }
}

#[test]
fn every_route_is_in_the_tables() {
    let server = Spillgate::serve(&root().join("examples/quickstart.yaml"), &[]);
    let pages = [(server.http(), "docs/src/reference/http.md"), (server.admin(), "docs/src/reference/admin.md")];
    for (address, page) in pages {
        // If the path of a request is unknown, the answer of the server lists the paths that exist.
        let answer = http::get(address, "/no-such-path", &[]).body;
        let problem: Value = serde_json::from_str(&answer).expect("the answer is JSON");
        let help = problem["help"].as_str().expect("the answer has a help text");
        let words = help.split([' ', ',']).filter(|word| word.starts_with('/'));
        let routes: BTreeSet<_> = words.map(str::to_owned).collect();
        let column = first_column(page, "Routes");
        let column: BTreeSet<_> = column.iter().filter_map(|route| Some(route.split_once(' ')?.1.to_owned())).collect();
        assert_eq!(column, routes, "the table of routes of {page} has all routes and no others");
    }
}

#[test]
fn every_member_of_an_answer_is_explained() {
    let server = Spillgate::serve(&root().join("examples/quickstart.yaml"), &[]);
    let body = r#"{"domain": "api", "descriptors": [{"user_id": "7"}]}"#;
    let answer = http::request(server.http(), "POST", "/v1/check", &[], body).expect("the server answers");
    let members: serde_json::Map<String, Value> =
        serde_json::from_str(&answer.body).expect("the answer is a JSON object");
    let members: BTreeSet<_> = members.keys().cloned().collect();
    assert_eq!(first_column("docs/src/reference/http.md", "`POST /v1/check`"), members);
}

/// Adds the Rust sources of a folder to `text`. A string literal that is written on several lines becomes one line.
fn sources(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).expect("the folder can be read") {
        let path = entry.expect("the entry of the folder can be read").path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let source = fs::read_to_string(path).expect("the source can be read");
            for line in source.lines() {
                text.push_str(line.trim_start().trim_end_matches('\\'));
                if !line.ends_with('\\') {
                    text.push('\n');
                }
            }
        }
    }
}

#[test]
fn the_lines_of_the_log_that_are_explained_are_written() {
    let mut code = String::new();
    for krate in fs::read_dir(root().join("crates")).expect("the folder can be read") {
        sources(&krate.expect("the crate can be read").path().join("src"), &mut code);
    }
    let lines = first_column("docs/src/reference/logs.md", "Lines that need an action");
    assert!(lines.len() >= 10, "the page lists at least ten lines: {lines:?}");
    for line in lines {
        let is_written = line.split("...").map(str::trim).all(|part| code.contains(part));
        assert!(is_written, "no source writes `{line}`: change docs/src/reference/logs.md");
    }
}
