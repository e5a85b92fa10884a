//! Checks that the documentation of each algorithm names the test of its bound. `docs/guarantees/` names the tests of
//! all guarantees.

const PAGE: &str = include_str!("../src/quota/algorithm.rs");
const BOUNDS: &str = include_str!("bounds.rs");

#[test]
fn every_algorithm_names_the_test_of_its_bound() {
    let variants = PAGE.split_once("pub enum Algorithm {").expect("the page has the enum Algorithm").1;
    let variants = variants.split_once("\n}").expect("the enum ends with a brace").0;
    assert_eq!(variants.matches("/// Checked by the test").count(), 6, "each algorithm names its test");
    let comments: Vec<&str> = variants.lines().filter(|line| line.trim_start().starts_with("//")).collect();
    // Other code spans are letters of formulas.
    for name in comments.join("\n").split('`').skip(1).step_by(2).filter(|span| span.contains('_')) {
        let is_test = BOUNDS.contains(&format!("fn {name}(")) || BOUNDS.contains(&format!("    {name}: "));
        assert!(is_test, "there is no test {name} in tests/bounds.rs");
    }
}
