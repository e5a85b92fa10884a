//! Tests which values fit a pattern, and whether all values of one pattern also fit another pattern.
//!
//! If a pattern matched a wrong value, a request would get the wrong rule.

use super::*;

fn fits(pattern: &str, value: &str) -> bool {
    Pattern::new(pattern).is_some_and(|p| p.fits(value))
}

#[test]
fn stars_take_any_run_of_characters() {
    assert!(fits("*", "") && fits("*", "x") && fits("vip*", "vip") && fits("vip*", "vip-7"));
    assert!(fits("*.example.com", "a.example.com") && !fits("*.example.com", "example.com"));
    assert!(fits("a*b*c", "abc") && fits("a*b*c", "a-b-b-c") && !fits("a*b*c", "acb"));
    assert!(fits("a**b", "ab") && !fits("a*", "ba") && fits("*ä*", "xäy"));
    assert!(!fits("a*a", "a") && !fits("ab*bc", "abc") && !fits("a*b*b", "ab") && fits("*ab*ab*", "abab"));
}

#[test]
fn a_value_without_a_star_is_not_a_pattern() {
    assert_eq!(Pattern::new("vip"), None);
    assert_eq!(Pattern::new("a**").map(|p| p.as_str().to_owned()).as_deref(), Some("a*"));
}

#[test]
fn covering_is_for_all_values() {
    let pattern = |text| Pattern::new(text).expect("the pattern has a star");
    assert!(pattern("vip*").covers(&pattern("vip1*")));
    assert!(!pattern("vip1*").covers(&pattern("vip*")));
    assert!(!pattern("a*b").covers(&pattern("a*")));
    assert!(pattern("*").covers(&pattern("a*b")));
}
