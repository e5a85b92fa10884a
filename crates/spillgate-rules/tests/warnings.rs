//! Tests of warnings and notes: which rules get a warning or a note, and which rules do not.
//!
//! If too many rules had a warning, users would not read it. So the tests also check rules that must have no warning.

use spillgate_limiter::{Hit, MemoryOptions, MemoryStore, Op, Quota, Time};
use spillgate_rules::{Rules, RulesFile, Severity, Unreleased};

fn rules(text: &str) -> Rules {
    Rules::parse(&[RulesFile { name: "d.yaml".into(), text: text.into() }]).unwrap_or_else(|errors| panic!("{errors}"))
}

/// Returns the line and the message of each warning. Notes are left out.
fn warnings(text: &str) -> Vec<(u32, String)> {
    let rules = rules(text);
    let real = rules.warnings().iter().filter(|warning| warning.severity() != Severity::Note);
    real.map(|warning| (warning.line(), warning.message().to_owned())).collect()
}

fn lines(text: &str) -> Vec<u32> {
    warnings(text).into_iter().map(|(line, _)| line).collect()
}

#[test]
fn a_key_alone_behind_a_star_is_never_reached() {
    let text = "domain: d
descriptors:
  - {key: user, rate_limit: {unit: second, limit: 1}}
  - {key: user, value: '*', rate_limit: {unit: second, limit: 2}}
  - {key: user, value: vip*, rate_limit: {unit: second, limit: 3}}";
    assert_eq!(lines(text), [3]);
    assert_eq!(
        lines(&text.replace("domain: d", "domain: d\ncompat: envoy")),
        [4, 6],
        "with `compat: envoy`, rules that are declared after `*` are not reached either"
    );
}

#[test]
fn nested_rules_are_shadowed_only_where_they_are_repeated() {
    let text = "domain: d
descriptors:
  - key: user
    value: '*'
    descriptors:
      - {key: path, value: /buy, rate_limit: {unit: second, limit: 1}}
      - {key: page, rate_limit: {unit: second, limit: 1}}
  - key: user
    descriptors:
      - {key: path, value: /buy, rate_limit: {unit: second, limit: 2}}
      - {key: path, value: /sell, rate_limit: {unit: second, limit: 3}}
      - {key: page, value: a*, rate_limit: {unit: second, limit: 4}}";
    assert_eq!(lines(text), [10, 12]);
}

#[test]
fn a_wildcard_behind_a_wider_one_is_dead_in_compat_only() {
    let text = "domain: d
descriptors:
  - {key: path, value: /a*, rate_limit: {unit: second, limit: 1}}
  - {key: path, value: /api/*, rate_limit: {unit: second, limit: 2}}
  - {key: path, value: /b*, rate_limit: {unit: second, limit: 3}}";
    assert_eq!(lines(text), [0; 0]);
    assert_eq!(lines(&text.replace("domain: d", "domain: d\ncompat: envoy")), [5]);
}

#[test]
fn limits_that_never_bind() {
    let text = |limits: &str| format!("domain: d\ndescriptors:\n  - key: k\n    rate_limits:\n{limits}");
    let second = "      - {unit: second, limit: 10}\n";
    assert_eq!(lines(&text(&format!("{second}      - {{unit: minute, limit: 600}}\n"))), [6]);
    assert_eq!(lines(&text(&format!("{second}      - {{unit: minute, limit: 599}}\n"))), [0; 0]);
    assert_eq!(lines(&text("      - {unit: second, limit: 1}\n      - {unit: day, limit: 150}\n")), [0; 0]);
    let message = &warnings(&text(&format!("{second}      - {{window: 2m, limit: 5000}}\n")))[0].1;
    assert_eq!(message, "the limit of 5,000 per 2m never refuses a request, because 10 per second is always stricter");
}

#[test]
fn names_that_no_limit_has_and_modes_that_exclude_each_other() {
    let text = "domain: d
descriptors:
  - {key: a, rate_limit: {name: a, unit: second, limit: 1, replaces: [{name: b}]}}
  - {key: b, rate_limit: {name: bb, unit: second, limit: 1}}
  - {key: c, shadow_mode: true, quota_mode: true, rate_limit: {unit: second, limit: 1}}";
    assert_eq!(lines(text), [3, 5]);
}

#[test]
fn permits_that_no_caller_can_release_are_a_warning_and_those_that_some_callers_cannot_a_note() {
    let text = "domain: d
descriptors:
  - {key: a, rate_limit: {algorithm: concurrency, limit: 5}}
  - {key: b, rate_limits: [{unit: second, limit: 1}, {algorithm: concurrency, limit: 5}]}
  - {key: c, rate_limit: {algorithm: concurrency, limit: 5}}
  - {key: e, rate_limit: {unit: second, limit: 5}}";
    let file = RulesFile { name: "d.yaml".into(), text: text.into() };
    let mut rules = rules(text);
    assert_eq!(rules.warnings().len(), 0, "the parser does not know which clients can send a request for a rule");
    rules.warn_of_unreleased(&[file], |rule| match &*rule.path {
        "a" => Unreleased::Never,
        "b" => Unreleased::Sometimes,
        _ => Unreleased::Always,
    });
    let found: Vec<_> =
        rules.warnings().iter().map(|warning| (warning.line(), warning.severity() == Severity::Note)).collect();
    assert_eq!(found, [(4, true), (5, false)]);
}

#[test]
fn plain_limits_have_no_note_about_peeks() {
    let plain = "domain: d\ndescriptors: [{key: a, rate_limit: {unit: second, limit: 1}}]";
    assert_eq!(
        rules(plain).warnings().len(),
        0,
        "nearly every rule has a limit without options, so a note about it would be useless"
    );
}

#[test]
fn a_value_that_is_longer_than_what_is_counted_is_a_warning() {
    let long = "x".repeat(1_025);
    let text = format!(
        "domain: d\ndescriptors:\n  - {{key: a, value: {long}, rate_limit: {{unit: second, limit: 1}}}}\n  \
         - {{key: a, value: {long}*, share_threshold: true, rate_limit: {{unit: second, limit: 1}}}}"
    );
    let file = RulesFile { name: "d.yaml".into(), text };
    let found = |value_bytes| {
        let mut rules = Rules::parse(std::slice::from_ref(&file)).expect("the rules are valid");
        rules.warn_of_long_values(std::slice::from_ref(&file), value_bytes);
        let real = rules.warnings().iter().filter(|warning| warning.severity() != Severity::Note);
        real.map(|warning| (warning.line(), warning.message().to_owned())).collect::<Vec<_>>()
    };
    assert_eq!(found(1_025), []);
    let message = "this value is 1025 bytes long, but only its first 1024 bytes choose the counter";
    assert_eq!(
        found(1_024),
        [(3, message.to_owned())],
        "line 4 has no warning, because all values that match its wildcard share one counter anyway"
    );
}

#[test]
fn a_key_with_a_star_inside_and_no_value_is_a_warning() {
    let text = "domain: d\ndescriptors:\n  - {key: user*id, rate_limit: {unit: second, limit: 1}}";
    assert_eq!(warnings(text), [(3, "the key `user*id` also has to match the value".to_owned())]);
    for other in ["user*", "user*id, value: a", "user*id*"] {
        assert_eq!(lines(&text.replace("user*id", other)), [0; 0], "{other}");
    }
}

#[test]
fn in_compat_a_key_wildcard_behind_a_wider_one_is_dead() {
    let text = "domain: d
compat: envoy
descriptors:
  - {key: 'user*', rate_limit: {unit: second, limit: 1}}
  - {key: 'user_id*', value: 7, rate_limit: {unit: second, limit: 1}}";
    assert_eq!(lines(text), [5]);
    assert_eq!(lines(&text.replace("compat: envoy\n", "")), [0; 0]);
}

#[test]
fn a_leaf_without_a_limit_is_noted() {
    let rules = rules("domain: d\ndescriptors:\n  - {key: a}\n  - {key: b, rate_limit: {unlimited: true}}");
    let found: Vec<(u32, bool)> = rules.warnings().iter().map(|w| (w.line(), w.severity() == Severity::Note)).collect();
    assert_eq!(found, [(3, true)]);
}

#[test]
fn a_domain_that_a_cut_file_left_without_a_limit_is_a_warning() {
    for text in ["domain: d", "# limits\ndomain: d\ndescriptors:", "domain: d\ndescriptors: [{key: a}, {key: b}]"] {
        let line = if text.starts_with('#') { 2 } else { 1 };
        assert_eq!(warnings(text), [(line, "domain `d` has no limit, so all requests are allowed".to_owned())]);
    }
    let meant = "domain: d\ndescriptors: [{key: a, rate_limit: {unlimited: true}}]";
    assert_eq!(warnings(meant), []);
}

#[test]
fn the_examples_have_no_warnings() {
    for text in [
        include_str!("../../../examples/quickstart.yaml"),
        include_str!("../../../examples/reference.yaml"),
        include_str!("../../../examples/login.yaml"),
    ] {
        assert_eq!(warnings(text), []);
    }
}

#[test]
fn a_warning_shows_its_line() {
    let rules = rules("domain: d\ndescriptors:\n  - {key: a, shadow_mode: yes, rate_limit: {unit: second, limit: 5}}");
    insta::assert_snapshot!("warning", rules.warnings()[0].to_string());
}

#[test]
fn options_that_only_a_shared_store_uses_are_not_a_warning() {
    let text = "domain: d\ndescriptors:
  - {key: a, rate_limit: {unit: second, limit: 1, post_paid: true, on_store_failure: deny, slot_by: a}}";
    assert_eq!(rules(text).warnings().len(), 0, "the parser does not know which store is used");
}

/// How many units a sliding window counter of `limit` and `segments` admits in `windows` windows, if `asks` says when
/// callers ask: the time in 840 parts of a window.
fn admitted(limit: u64, segments: u8, asks: impl Iterator<Item = u64>) -> u64 {
    let window = std::time::Duration::from_secs(840);
    let quota = Quota::sliding_window_counter(limit, window).segments(segments).build().expect("the quota is valid");
    let store = MemoryStore::new(MemoryOptions::default());
    let hit = Hit::new(1, &quota, Op::take(1), spillgate_limiter::Binding::Enforce);
    let taken = asks.filter(|at| store.hit_now(Time::from_nanos((840_000 + at) * 1_000_000_000), &hit).allowed);
    taken.count() as u64
}

#[test]
fn a_counter_that_admits_less_than_its_limit_says_is_a_warning() {
    const WINDOWS: u64 = 66;
    for (limit, segments) in (1..=11).flat_map(|limit| [1, 2, 3, 5, 7, 8].map(|segments| (limit, segments))) {
        let (units, parts) =
            if limit <= u64::from(segments) { (limit, 840 + 840 / u64::from(segments)) } else { (limit - 1, 840) };
        // Nobody gets more, whether they ask all the time or only now and then.
        let most = units * (WINDOWS * 840 / parts) + limit + units;
        let random = {
            let mut random = limit * 100 + u64::from(segments);
            let mut at = 0;
            (0..20_000).map(move |_| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                at += (random >> 60) / 3;
                at
            })
        };
        let all_the_time = admitted(limit, segments, 0..WINDOWS * 840);
        let sometimes = admitted(limit, segments, random.take_while(|at| *at < WINDOWS * 840));
        assert!(all_the_time <= most && sometimes <= most, "{limit} {segments}: {all_the_time} {sometimes} {most}");
        // Callers that know the segments get as much as that.
        let pulses = (0..WINDOWS * 840).step_by(parts as usize).flat_map(|at| std::iter::repeat_n(at, 20));
        let best = all_the_time.max(admitted(limit, segments, pulses));
        assert!(best >= units * (WINDOWS * 840 / parts), "{limit} {segments}: {best}");

        let text = format!(
            "domain: d\ndescriptors:\n  - key: a\n    rate_limit: {{algorithm: sliding_window_counter, window: 14m, \
             segments: {segments}, limit: {limit}}}"
        );
        let found = warnings(&text);
        let is_rough = units * 840 * 10 < limit * parts * 9;
        assert_eq!(found.len(), usize::from(is_rough), "{limit} {segments}: {found:?}");
        if is_rough {
            let said = format!(
                "admits at most {units} per {}",
                spillgate_limiter::units::format_duration(std::time::Duration::from_secs(parts))
            );
            assert!(found[0].1.contains(&said), "{said}: {found:?}");
        }
    }
    let report =
        "domain: d\ndescriptors: [{key: a, rate_limit: {algorithm: sliding_window_counter, window: 10s, limit: 1}}]";
    assert!(
        warnings(report)[0].1.contains("of 1 per 10s admits at most 1 per 20s in the long run"),
        "{:?}",
        warnings(report)
    );
    for exact in
        ["limit: 1, segments: 10", "limit: 10", "limit: 2, post_paid: true", "limit: 0", "limit: 5, soft: 100%"]
    {
        assert_eq!(lines(&report.replace("limit: 1}", &format!("{exact}}}"))), [0; 0], "{exact}");
    }
}
