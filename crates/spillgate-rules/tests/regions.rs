//! `across_regions`: what a limit means for all regions together, and which limits cannot be shared.

use spillgate_core::{AcrossRegions, Regions};
use spillgate_rules::{Defaults, LimitDescription, Rules, RulesErrors, RulesFile};

fn three() -> Regions {
    Regions::new(3).expect("2 to 8")
}

fn parse(limit: &str, head: &str, across: AcrossRegions) -> Result<Rules, RulesErrors> {
    let text = format!("{head}domain: api\ndescriptors:\n  - key: user\n    rate_limit: {limit}\n");
    let files = [RulesFile { name: "api.yaml".into(), text }];
    Rules::parse_with(&files, Defaults { regions: Some(three()), across, ..Defaults::default() })
}

fn rules(limit: &str, across: AcrossRegions) -> Rules {
    parse(limit, "", across).unwrap_or_else(|errors| panic!("{limit}: {errors}"))
}

#[test]
fn a_limit_says_what_it_means_or_has_the_default() {
    let (split, shared) = (AcrossRegions::Split(three()), AcrossRegions::Shared(three()));
    let limit = "{unit: minute, limit: 600, algorithm: token_bucket, burst: 90}";
    let said = |word: &str| limit.replace('}', &format!(", across_regions: {word}}}"));
    for (text, default, expected) in [
        (limit.to_owned(), AcrossRegions::Each, AcrossRegions::Each),
        (limit.to_owned(), shared, shared),
        (said("each"), shared, AcrossRegions::Each),
        (said("split"), shared, split),
        (said("shared"), AcrossRegions::Each, shared),
    ] {
        let rules = rules(&text, default);
        let rule = rules.find("api", &[("user", "ann")]).expect("a rule");
        let limit = &rule.limits[0];
        assert_eq!(limit.quota.across_regions(), expected, "{text}");
        assert_eq!(limit.quota.capacity(), if expected == split { 30 } else { 90 }, "{text}");
        let described = LimitDescription::of(rule, limit);
        let further = match expected {
            AcrossRegions::Each => "",
            AcrossRegions::Split(_) => ", split among 3 regions",
            AcrossRegions::Shared(_) => ", shared by 3 regions",
        };
        assert_eq!(described.summary(), format!("600 per minute, token bucket, burst 90{further}"));
        assert_eq!(limit.size(), "600 per minute");
        let json = serde_json::to_value(&described).expect("a description becomes JSON");
        assert_eq!(serde_json::from_value::<LimitDescription>(json).expect("the same description"), described);
    }
}

#[test]
fn a_limit_that_cannot_be_shared_is_an_error_also_by_default() {
    let shared = AcrossRegions::Shared(three());
    for (limit, head, what) in [
        ("{unit: day, limit: 9, algorithm: leaky_bucket}", "", "a queue"),
        ("{limit: 9, algorithm: concurrency}", "", "a concurrency limit"),
        ("{unit: day, limit: 9, algorithm: sliding_window_log}", "", "a sliding window log"),
        (
            "{unit: day, limit: 9, algorithm: sliding_window_counter, segments: 2}",
            "",
            "a counter with several segments",
        ),
        ("{unit: day, limit: 9, anchor: first_hit}", "", "a window that begins at its first hit"),
        ("{unit: day, limit: 9, soft: 10%}", "", "a soft limit"),
        ("{unit: day, limit: 9, penalty: 1m}", "", "a limit with a penalty"),
        ("{unit: day, limit: 9, denied: charged}", "", "a limit whose refusals are charged"),
        ("{unit: day, limit: 9}", "compat: envoy\n", "a limit whose refusals are charged"),
        ("{unit: day, limit: 9, post_paid: true}", "", "a limit with `post_paid`"),
        (
            "{unit: second, limit: 9, algorithm: token_bucket, representation: sketch}",
            "",
            "a limit with `representation: sketch`",
        ),
    ] {
        let said = limit.replace('}', ", across_regions: shared}");
        for (limit, default, by) in
            [(said.as_str(), AcrossRegions::Each, ""), (limit, shared, " by the setting `regions.default`")]
        {
            let errors = parse(limit, head, default).expect_err(limit);
            let error = errors.iter().next().expect("an error");
            let expected = format!("the limit of `user` is shared by regions{by}, but {what} cannot be shared");
            assert_eq!(error.message(), expected, "{limit}");
            assert!(error.help().contains("`across_regions: split` or `across_regions: each`"), "{}", error.help());
            assert_eq!(error.help().contains("denied: free"), !head.is_empty(), "{limit}: {}", error.help());
            assert_eq!(error.line(), if head.is_empty() { 4 } else { 5 }, "{limit}");
        }
        assert!(parse(limit, head, AcrossRegions::Split(three())).is_ok(), "every limit can be split: {limit}");
    }
    let deep = "{window: 365d, limit: 1, algorithm: token_bucket, burst: 60, across_regions: shared}";
    let errors = parse(deep, "", AcrossRegions::Each).expect_err("360 years are too long");
    assert_eq!(errors.iter().next().expect("an error").help(), "write `burst: 24` or less, or shorten the window");
    let few = parse("{limit: 2, algorithm: concurrency, across_regions: split}", "", AcrossRegions::Each);
    assert!(few.expect_err("one region would have no permit").to_string().contains("because some would have none"));
}

#[test]
fn without_other_regions_nothing_is_split_or_shared() {
    for word in ["split", "shared"] {
        let text = format!(
            "domain: api\ndescriptors: [{{key: user, rate_limit: {{unit: day, limit: 5, across_regions: {word}}}}}]"
        );
        let errors = Rules::parse(&[RulesFile { name: "api.yaml".into(), text }]).expect_err("there are no regions");
        let error = errors.iter().next().expect("an error");
        assert!(error.message().starts_with(&format!("`across_regions: {word}` needs other regions")), "{error}");
        assert!(error.help().contains("regions.peers"), "{}", error.help());
    }
    let text = "domain: api\ndescriptors: [{key: user, rate_limit: {unit: day, limit: 5, across_regions: each}}]";
    assert!(Rules::parse(&[RulesFile { name: "api.yaml".into(), text: text.into() }]).is_ok());
}

#[test]
fn few_units_and_short_windows_are_warnings() {
    for (limit, expected) in [
        ("{unit: day, limit: 2, across_regions: split}", Some("fewer units than there are regions")),
        ("{unit: day, limit: 3, across_regions: split}", None),
        ("{unit: second, limit: 9, across_regions: shared}", Some("can admit nearly 3 times the limit")),
        ("{window: 9s, limit: 9, algorithm: sliding_window_counter, across_regions: shared}", Some("nearly 3 times")),
        ("{window: 10s, limit: 9, across_regions: shared}", None),
        ("{unit: second, limit: 9, algorithm: token_bucket, across_regions: shared}", None),
        ("{unit: second, limit: 9, across_regions: each}", None),
    ] {
        let rules = rules(limit, AcrossRegions::Each);
        let found = rules.warnings().iter().map(|warning| warning.message()).collect::<Vec<_>>().join("; ");
        match expected {
            Some(text) => assert!(found.contains(text), "{limit}: {found}"),
            None => assert_eq!(found, "", "{limit}"),
        }
    }
}
