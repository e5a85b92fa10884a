//! Checks that the pages in `docs/guarantees/` name only tests that exist. A test can be renamed or deleted after a
//! page has named it.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Checks that each guarantee of a page names a test, after the file that contains it. Folders of further tests exist.
fn assert_guarantees(page: &str, least: usize) {
    let text = read(&format!("docs/guarantees/{page}"));
    let guarantees: Vec<&str> = text.split("\n* ").skip(1).collect();
    assert!(guarantees.len() >= least, "{page} has {} guarantees", guarantees.len());
    for guarantee in guarantees {
        let mut file: Option<(&str, String)> = None;
        let mut named = 0;
        for word in guarantee.split('`').skip(1).step_by(2) {
            if word.starts_with("crates/") && word.ends_with(".rs") {
                file = Some((word, read(word)));
            } else if word.starts_with("crates/") {
                assert!(root().join(word).is_dir(), "there is no folder {word}");
            } else if let Some((path, text)) = &file {
                let is_test = text.contains(&format!("fn {word}(")) || text.contains(&format!("    {word}: "));
                assert!(is_test, "there is no test {word} in {path}");
                named += 1;
            }
        }
        assert!(named > 0, "no test is named for this guarantee: {guarantee}");
    }
}

#[test]
fn every_guarantee_names_tests_that_exist() {
    assert_guarantees("core.md", 21);
    assert_guarantees("library.md", 12);
    assert_guarantees("redis.md", 8);
}
