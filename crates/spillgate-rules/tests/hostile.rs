//! Tests of hostile rules files. Every text must load as rules or give errors, in bounded time and without a panic.
//!
//! A running server reads its rules again at a reload. If a file could stop the server, all its clients would be
//! affected.
#![allow(clippy::disallowed_methods, reason = "two searches are compared by the time that they take")]

use std::time::Instant;

use proptest::prelude::*;
use spillgate_limiter::KeyHasher;
use spillgate_rules::{Action, Request, Rules, RulesFile};

/// A rules file that uses most of the grammar. The tests change it in random places.
const FULL: &str = r#"domain: d
compat: envoy
descriptors:
  - key: user
    value: "vip*"   # wildcard
    share_threshold: true
    rate_limits:
      - {unit: second, requests_per_unit: 1, name: a, replaces: [{name: b}]}
      - {window: 1m30s, limit: 150, algorithm: sliding_window_counter, segments: 9, denied: charged}
    descriptors:
      - key: 'path'
        shadow_mode: true
        rate_limit:
          algorithm: token_bucket
          unit: hour
          requests_per_unit: 100
          burst: 7
          soft: 20%
          penalty: 5m
          slot_by: user
  - key: root
    metadata:
      a: [1, ~, 0x10]
      b: >-
        folded
        text
    rate_limit: {unlimited: true}
"#;

/// Loads the text, and uses the rules or the errors.
fn exercise(text: &str) {
    match Rules::parse(&[RulesFile { name: "f.yaml".into(), text: text.to_owned() }]) {
        Ok(rules) => {
            let mut request = Request::new("d");
            request.add([("user", "vip"), ("path", "x")], Action::Take(1), None);
            request.add([("user", "vip")], Action::Refund(1), None);
            let plan = rules.plan(&KeyHasher::with_secret([1; 16]), &request, 1024);
            assert_eq!(plan.descriptors.len(), 2);
            for warning in rules.warnings() {
                assert!(!warning.to_string().is_empty());
            }
        }
        Err(errors) => {
            assert!(!errors.to_string().is_empty());
            for error in &errors {
                assert!(!error.help().is_empty());
                assert_ne!(error.message(), "the file cannot be parsed", "the parser panicked on {text:?}");
            }
        }
    }
}

#[test]
fn the_unbroken_text_loads() {
    let rules = Rules::parse(&[RulesFile { name: "f.yaml".into(), text: FULL.into() }]);
    assert_eq!(rules.unwrap_or_else(|errors| panic!("{errors}")).rules().count(), 3);
}

#[test]
fn every_cut_of_a_file_ends_well() {
    for end in (0..=FULL.len()).step_by(3) {
        exercise(&FULL[..end]);
        exercise(&FULL[end..]);
    }
}

#[test]
fn deep_and_wide_files_end_well() {
    for text in [
        "[".repeat(100_000),
        "{a: ".repeat(100_000),
        "- ".repeat(100_000),
        "? ".repeat(10_000),
        format!("domain: d\ndescriptors: {}", "[".repeat(30)),
        format!("domain: d\ndescriptors: [{}]", "~,".repeat(5_000)),
        format!("domain: d\ndescriptors: [{{key: {}}}]", "k".repeat(1 << 20)),
        format!("domain: d\ndescriptors: [{{key: k, value: '{}'}}]", "*a".repeat(10_000)),
        format!("domain: d\nmetadata: {}1{}", "[".repeat(50), "]".repeat(50)),
        "a: &a [*a]".to_owned(),
        "domain: !!binary aGk=\n".to_owned(),
        "domain: d\ndescriptors: [{key: k, metadata: {a: .nan, b: 1e999}}]".to_owned(),
        "%YAML 1.2\n---\ndomain: d\n...\n".to_owned(),
        "domain: d\0".to_owned(),
        "\u{2028}\u{85}domain: \u{202e}d".to_owned(),
    ] {
        exercise(&text);
    }
}

/// Returns a rules file with one rule for each value of the key `k`.
fn with_values(values: impl Iterator<Item = String>) -> String {
    let limit = "rate_limit: {unit: second, limit: 1}";
    let rules: String = values.map(|value| format!("  - {{key: k, value: \"{value}\", {limit}}}\n")).collect();
    format!("domain: d\ndescriptors:\n{rules}")
}

fn load(text: String) -> Result<Rules, Vec<String>> {
    let parsed = Rules::parse(&[RulesFile { name: "f.yaml".into(), text }]);
    parsed.map_err(|errors| errors.iter().map(|error| error.message().to_owned()).collect())
}

#[test]
fn a_wildcard_costs_its_own_length_and_not_the_values() {
    let ends = (0..10_000).flat_map(|n| [format!("*.{n}.example.com"), format!("/{n}/*")]);
    let rules = load(with_values(ends)).expect("20,000 wildcards on one key can be loaded");
    let took = |bytes: usize, end: &str| {
        let value = format!("{}{end}", "a".repeat(bytes));
        let begun = Instant::now();
        assert_eq!(rules.find("d", &[("k", &value)]).is_some(), end.starts_with(".9"), "{end}");
        begun.elapsed()
    };
    for end in [".9999.example.com", ".example.com"] {
        let mut searches: Vec<_> = (0..9).map(|_| [took(64, end), took(256 << 10, end)]).collect();
        let [short, long] = [0, 1].map(|at| {
            searches.sort_unstable_by_key(|took| took[at]);
            searches[searches.len() / 2][at]
        });
        // The long value has 4,096 times as many bytes as the short value. If the search read the whole value for each
        // wildcard, the long value would take hundreds of times as long.
        assert!(
            long < short * 32,
            "values end in {end}: the search took {long:?} for a long value and {short:?} for a short value"
        );
    }
}

#[test]
fn rules_that_could_read_a_value_without_end_do_not_load() {
    let within = |count: u32| with_values((0..count).map(|n| format!("*/{n}/*")));
    assert!(load(within(256)).is_ok());
    assert_eq!(load(within(257)).unwrap_err(), ["for one descriptor, whole values may be read 257 times"]);
    // If one value can match several wildcards, the costs of their searches are added. If each wildcard begins with
    // another text, a value can match only one wildcard, so the costs are not added.
    let nested = |first: fn(u32) -> String| {
        let below = "descriptors: [{key: b, value: '*x*'}]";
        let rules: String = (0..300).map(|n| format!("  - {{key: a, value: '{}', {below}}}\n", first(n))).collect();
        load(format!("domain: d\ndescriptors:\n{rules}"))
    };
    let together = nested(|n| format!("*{n}"));
    assert_eq!(together.unwrap_err(), ["for one descriptor, whole values may be read 300 times"]);
    assert!(nested(|n| format!("{n}/*")).is_ok());
}

#[test]
fn rules_that_could_compare_without_end_do_not_load() {
    let wildcards = |count: u32| with_values((0..count).map(|n| format!("{n}{}*", "x".repeat(3_960))));
    assert!(load(wildcards(500)).is_ok());
    let messages = load(wildcards(550)).unwrap_err();
    assert!(messages.len() == 1 && messages[0].starts_with("a value here may be compared with "), "{messages:?}");
    // If nothing matches below a wildcard, the search tries the next wildcard. So the work below all wildcards is
    // added.
    let long = format!("descriptors: [{{key: b, value: {}}}]", "v".repeat(4_000));
    let rules: String = (0..1_000).map(|n| format!("  - {{key: a, value: '*{n}', {long}}}\n")).collect();
    let deep = |compat: &str| load(format!("domain: d\n{compat}descriptors:\n{rules}"));
    assert_eq!(deep("").unwrap_err().len(), 1);
    assert!(deep("compat: envoy\n").is_ok(), "with `compat: envoy` only the first wildcard is tried");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn random_bytes_end_well(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        exercise(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn random_yaml_signs_end_well(text in "[-:,\\[\\]{}#&*!|>'\"%@`?~ \n\tadk0_.é<]{0,80}") {
        exercise(&text);
        exercise(&format!("domain: d\ndescriptors:\n  - {text}"));
    }

    #[test]
    fn broken_files_end_well(edits in prop::collection::vec((0..FULL.len(), 0u8..4, any::<char>()), 1..6)) {
        let mut chars: Vec<char> = FULL.chars().collect();
        for (at, edit, c) in edits {
            let at = at.min(chars.len() - 1);
            match edit {
                0 => drop(chars.remove(at)),
                1 => chars.insert(at, c),
                2 => chars[at] = c,
                _ => {
                    let other = (at * 7) % chars.len();
                    chars.swap(at, other);
                }
            }
        }
        exercise(&chars.into_iter().collect::<String>());
    }
}
