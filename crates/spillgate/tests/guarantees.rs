//! The guarantees that the crate's page states name tests that exist.

#[path = "../../spillgate-core/tests/support/page.rs"]
mod page;

#[test]
fn every_guarantee_names_a_test_that_exists() {
    page::assert_guarantees("src/lib.rs", 12);
}
