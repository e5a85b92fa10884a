//! Tests pairs of limits. In some pairs, the strict limit makes the loose limit useless. Other pairs only look similar.
//!
//! After a wrong warning, an author could delete a limit that is needed.

use std::time::Duration;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn a_loose_minute_behind_a_strict_second() {
    let second = Quota::fixed_window(10, SECOND).build().unwrap();
    let minute = |limit| Quota::fixed_window(limit, MINUTE).build().unwrap();
    assert!(never_binds(&minute(600), &second));
    assert!(!never_binds(&minute(599), &second));
    assert!(!never_binds(&second, &minute(600)), "the limit of 600 a minute allows 600 requests in one second");
    assert!(never_binds(&second, &minute(5)), "in one second, two windows of 5 can allow at most 10 requests");
}

#[test]
fn buckets_compare_by_depth_and_rate() {
    let bucket = |limit, burst| Quota::token_bucket(limit, SECOND).burst(burst).build().unwrap();
    assert!(never_binds(&bucket(10, 10), &bucket(5, 10)));
    assert!(!never_binds(&bucket(10, 10), &bucket(5, 11)));
    assert!(!never_binds(&bucket(5, 10), &bucket(10, 10)));
}

#[test]
fn a_ban_leaves_nothing_to_bind() {
    let ban = Quota::fixed_window(0, SECOND).build().unwrap();
    assert!(never_binds(&Quota::fixed_window(1, MINUTE).build().unwrap(), &ban));
    assert!(never_binds(&Quota::token_bucket(1, MINUTE).build().unwrap(), &ban));
}
