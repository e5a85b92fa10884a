//! Tests of the header fields. An independent parser of structured fields parses what the library writes.
//!
//! Client libraries parse these fields. They would ignore a field that only looks valid.

use std::time::Duration;

use proptest::prelude::*;
use sfv::{BareItem, Item, ListEntry, Parser};

use super::*;
use crate::Reason;

fn fields(style: HeaderStyle, policies: &[Policy<'_>], binding: usize, wait: Wait) -> Vec<(&'static str, String)> {
    let mut fields = Vec::new();
    let mut buffer = String::new();
    write_fields(style, policies, Some(binding), wait, &mut buffer, |name, value| {
        fields.push((name, std::mem::take(value)));
    });
    fields
}

fn items(value: &str) -> Vec<Item> {
    let list: sfv::List = Parser::new(value).parse().expect("the value is a structured-field list");
    let item = |entry| match entry {
        ListEntry::Item(item) => item,
        ListEntry::InnerList(_) => panic!("the field must not have an inner list"),
    };
    list.into_iter().map(item).collect()
}

fn param(item: &Item, key: &str) -> Option<i64> {
    item.params.get(key).and_then(BareItem::as_integer).map(i64::from)
}

fn name(item: &Item) -> String {
    item.bare_item.as_string().expect("the name is a string").as_str().to_owned()
}

fn minute() -> Quota {
    Quota::fixed_window(100, Duration::from_secs(60)).build().expect("the quota is valid")
}

fn refused(wait: Wait) -> Decision {
    Decision::refuse(100, Reason::Exceeded, wait).with_reset_after_ns(9_000_000_001)
}

#[test]
fn draft_11_lists_every_limit_and_parses_as_structured_fields() {
    let (minute, permits) = (minute(), Quota::concurrency(8).build().expect("the quota is valid"));
    let first = Decision::allow(100, 42).with_reset_after_ns(16_000_000_001);
    let second = Decision::allow(8, 8);
    let policies = [
        Policy { name: Some("per_user"), quota: &minute, decision: &first },
        Policy { name: None, quota: &permits, decision: &second },
    ];
    let fields = fields(HeaderStyle::Draft11, &policies, 0, Wait::NONE);
    assert_eq!(fields.iter().map(|f| f.0).collect::<Vec<_>>(), ["ratelimit-policy", "ratelimit"]);
    let policy = items(&fields[0].1);
    assert_eq!(
        (name(&policy[0]).as_str(), param(&policy[0], "q"), param(&policy[0], "w")),
        ("per_user", Some(100), Some(60))
    );
    assert_eq!(
        (name(&policy[1]).as_str(), param(&policy[1], "q"), param(&policy[1], "w")),
        ("8-at-once", Some(8), None)
    );
    let limit = items(&fields[1].1);
    assert_eq!(
        (param(&limit[0], "r"), param(&limit[0], "t")),
        (Some(42), Some(17)),
        "`t` is rounded up to whole seconds"
    );
    assert_eq!((param(&limit[1], "r"), param(&limit[1], "t")), (Some(8), None));
}

#[test]
fn a_bucket_says_when_its_next_unit_comes() {
    let quota = Quota::per_minute(6).build().expect("the quota is valid");
    let decision = Decision::allow(6, 3).with_reset_after_ns(25_000_000_000);
    let fields =
        fields(HeaderStyle::Draft11, &[Policy { name: None, quota: &quota, decision: &decision }], 0, Wait::NONE);
    assert_eq!(param(&items(&fields[1].1)[0], "t"), Some(5), "the three used units come back after 5 s, 15 s and 25 s");
}

#[test]
fn a_refusal_never_says_to_retry_in_0_seconds() {
    let quota = minute();
    for (wait, expected) in [(1, "1"), (1_000_000_000, "1"), (1_000_000_001, "2"), (59_000_000_000, "59")] {
        let decision = refused(Wait::After(wait));
        let policies = [Policy { name: None, quota: &quota, decision: &decision }];
        for style in HeaderStyle::ALL {
            let fields = fields(style, &policies, 0, Wait::After(wait));
            assert_eq!(fields.last(), Some(&("retry-after", expected.to_owned())), "{style:?}");
        }
        let older = fields(HeaderStyle::XRateLimit, &policies, 0, Wait::After(wait));
        assert!(older.contains(&("x-ratelimit-retry-after", expected.to_owned())));
        assert!(older.contains(&("x-ratelimit-reset", expected.to_owned())));
    }
}

#[test]
fn never_and_unknown_have_no_time() {
    let quota = minute();
    for wait in [Wait::Never, Wait::Unknown] {
        let decision = refused(wait);
        for style in HeaderStyle::ALL {
            let fields = fields(style, &[Policy { name: None, quota: &quota, decision: &decision }], 0, wait);
            assert!(fields.iter().all(|(name, _)| !name.ends_with("retry-after")), "{style:?} {wait:?}");
            assert!(fields.iter().all(|(_, value)| !value.contains(";t=")), "{style:?} {wait:?}");
        }
    }
}

#[test]
fn the_older_styles_show_the_limit_that_binds() {
    let (quota, day) =
        (minute(), Quota::fixed_window(1000, Duration::from_secs(86_400)).build().expect("the quota is valid"));
    let wide = Decision::allow(100, 50).with_reset_after_ns(1);
    let tight = Decision::allow(1000, 3).with_reset_after_ns(7_000_000_000);
    let policies =
        [Policy { name: None, quota: &quota, decision: &wide }, Policy { name: None, quota: &day, decision: &tight }];
    let draft = fields(HeaderStyle::Draft06, &policies, 1, Wait::NONE);
    let expected = [
        ("ratelimit-policy", "100;w=60, 1000;w=86400"),
        ("ratelimit-limit", "1000"),
        ("ratelimit-remaining", "3"),
        ("ratelimit-reset", "7"),
    ];
    assert_eq!(draft, expected.map(|(name, value)| (name, value.to_owned())));
    let older = fields(HeaderStyle::XRateLimit, &policies, 1, Wait::NONE);
    assert_eq!(older[1], ("x-ratelimit-remaining", "3".to_owned()));
    assert!(fields(HeaderStyle::Off, &policies, 1, Wait::NONE).is_empty());
}

#[test]
fn without_a_limit_there_are_no_fields() {
    for style in HeaderStyle::ALL {
        let mut count = 0;
        write_fields(style, &[], None, Wait::NONE, &mut String::new(), |_, _| count += 1);
        assert_eq!(count, 0);
    }
}

#[test]
fn styles_are_read_by_the_names_they_print() {
    for style in HeaderStyle::ALL {
        assert_eq!(style.as_str().parse(), Ok(style));
    }
    assert_eq!("draft-12".parse::<HeaderStyle>(), Err(UnknownStyle));
}

proptest! {
    #[test]
    fn any_name_and_any_numbers_make_valid_fields(
        policy_name in ".*", raw in "[\\x00-\\x7f]*", limit in 0..=spillgate_core::MAX_UNITS, remaining: u64, reset_after_ns: u64, wait: u64,
    ) {
        let quota = Quota::fixed_window(limit, Duration::from_secs(60)).build().expect("the quota is valid");
        for (policy_name, allowed) in [(policy_name.as_str(), true), (raw.as_str(), false)] {
            let retry_after = if allowed { Wait::NONE } else { Wait::After(wait.max(1)) };
            let mut decision = Decision::allow(limit, remaining).with_reset_after_ns(reset_after_ns);
            (decision.allowed, decision.retry_after) = (allowed, retry_after);
            let policies = [Policy { name: Some(policy_name), quota: &quota, decision: &decision }];
            let draft = fields(HeaderStyle::Draft11, &policies, 0, retry_after);
            for (_, value) in &draft {
                prop_assert!(value.bytes().all(|b| (0x20..0x7f).contains(&b)), "{value:?}");
            }
            for (_, value) in &draft[..2] {
                prop_assert_eq!(percent_decoded(&name(&items(value)[0])), policy_name.as_bytes());
            }
            items(&fields(HeaderStyle::Draft06, &policies, 0, retry_after)[0].1);
        }
    }
}

fn percent_decoded(text: &str) -> Vec<u8> {
    let mut bytes = text.bytes();
    let hex = |bytes: &mut std::str::Bytes<'_>| {
        let digits = [bytes.next().expect("a digit follows"), bytes.next().expect("a digit follows")];
        u8::from_str_radix(std::str::from_utf8(&digits).expect("the digits are ASCII"), 16)
            .expect("the digits are hexadecimal")
    };
    let mut out = Vec::new();
    while let Some(byte) = bytes.next() {
        out.push(if byte == b'%' { hex(&mut bytes) } else { byte });
    }
    out
}
