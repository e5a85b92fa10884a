//! Checks that the tests which are named in the guarantees of the crate exist.
//!
//! Without this check, a test could be renamed, and a guarantee would name a test that does not exist.

#[path = "support/page.rs"]
mod page;

use page::{assert_guarantees, has_test, quoted, read};

#[test]
fn every_guarantee_names_a_test_that_exists() {
    assert_guarantees("src/lib.rs", 21);
}

#[test]
fn every_algorithm_names_the_test_of_its_bound() {
    let page = read("src/quota/algorithm.rs");
    let variants = page.split_once("pub enum Algorithm {").expect("the page has the enum Algorithm").1;
    let variants = variants.split_once("\n}").expect("the enum ends with a brace").0;
    assert_eq!(variants.matches("/// Checked by the test").count(), 6, "each algorithm names its test");
    for name in quoted(variants) {
        assert!(has_test("tests/bounds.rs", &name), "there is no test {name} in tests/bounds.rs");
    }
}
