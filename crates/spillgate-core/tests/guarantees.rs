//! The guarantees that the crate's pages state name tests that exist.

use std::path::Path;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What stands between backquotes in the comments of a page.
fn quoted(page: &str) -> Vec<String> {
    let comments: Vec<&str> = page.lines().filter(|line| line.trim_start().starts_with("//")).collect();
    comments.join("\n").split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn has_test(file: &str, name: &str) -> bool {
    let text = read(file);
    text.contains(&format!("fn {name}(")) || text.contains(&format!("    {name}: "))
}

#[test]
fn every_guarantee_names_a_test_that_exists() {
    let page = read("src/lib.rs");
    let list = page.split_once("# Guarantees").expect("a list of guarantees").1;
    let guarantees: Vec<&str> = list.split("\n//! * ").skip(1).collect();
    assert!(guarantees.len() >= 20, "{} guarantees", guarantees.len());
    for guarantee in guarantees {
        let (mut file, mut named) = (None, 0);
        for word in quoted(&format!("//! {guarantee}")) {
            if word.starts_with("tests/") {
                file = Some(word);
            } else if let Some(file) = &file {
                assert!(has_test(file, &word), "there is no {word} in {file}");
                named += 1;
            }
        }
        assert!(named > 0, "no test holds: {guarantee}");
    }
}

#[test]
fn every_algorithm_names_the_test_of_its_bound() {
    let page = read("src/quota/mod.rs");
    let variants = page.split_once("pub enum Algorithm {").expect("the algorithms").1;
    let variants = variants.split_once("\n}").expect("their end").0;
    assert_eq!(variants.matches("/// Held by").count(), 6, "one for each algorithm");
    for name in quoted(variants) {
        assert!(has_test("tests/bounds.rs", &name), "there is no {name} in tests/bounds.rs");
    }
}
