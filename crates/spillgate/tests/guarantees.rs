//! Tests that every guarantee in the documentation of this crate (src/lib.rs) names a test that exists.

#[path = "../../spillgate-core/tests/support/page.rs"]
mod page;

#[test]
fn every_guarantee_names_a_test_that_exists() {
    page::assert_guarantees("src/lib.rs", 12);
}
