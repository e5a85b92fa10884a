//! Reads the documentation of a crate and finds the tests that it names.
//!
//! Paths start at the folder of the crate that is tested.

use std::path::Path;

pub(crate) fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns every text between backquotes in the comments of a page.
pub(crate) fn quoted(page: &str) -> Vec<String> {
    let comments: Vec<&str> = page.lines().filter(|line| line.trim_start().starts_with("//")).collect();
    comments.join("\n").split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

pub(crate) fn has_test(file: &str, name: &str) -> bool {
    let text = read(file);
    text.contains(&format!("fn {name}(")) || text.contains(&format!("    {name}: "))
}

/// Checks that each guarantee of the list in `page` names at least one test, and that these tests exist. Also checks
/// that the list has at least `least` guarantees.
pub(crate) fn assert_guarantees(page: &str, least: usize) {
    let page = read(page);
    let (_, list) = page.split_once("# Guarantees").expect("the page has a list of guarantees");
    let guarantees: Vec<&str> = list.split("\n//! * ").skip(1).collect();
    assert!(guarantees.len() >= least, "{} guarantees", guarantees.len());
    for guarantee in guarantees {
        let (mut file, mut named) = (None, 0);
        for word in quoted(&format!("//! {guarantee}")) {
            if word.ends_with(".rs") {
                file = Some(word);
            } else if let Some(file) = &file {
                assert!(has_test(file, &word), "there is no test {word} in {file}");
                named += 1;
            }
        }
        assert!(named > 0, "no test is named for this guarantee: {guarantee}");
    }
}
