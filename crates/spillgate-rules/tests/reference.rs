//! Tests that rules files of Envoy's reference rate limit server load unchanged and match in the same way.
//!
//! Users who bring rules files from that server do not want to change the files.

use spillgate_limiter::{Algorithm, Anchor, Binding, Denied, KeyHasher, MemoryOptions, MemoryStore, Op, Time};
use spillgate_rules::{Action, Limit, Metadata, Plan, Request, Rules, RulesFile, Severity, Unit};

fn rules(files: &[&str]) -> Rules {
    let file = |(number, text): (usize, &&str)| RulesFile { name: format!("{number}.yaml"), text: (*text).into() };
    let files: Vec<RulesFile> = files.iter().enumerate().map(file).collect();
    Rules::parse(&files).unwrap_or_else(|errors| panic!("{errors}"))
}

/// A descriptor of a request that takes one unit: its entries, and the limit that the caller sends with the request, if
/// any.
type Asked<'p> = (&'p [(&'p str, &'p str)], Option<&'p Limit>);

fn take<'p>(entries: &'p [(&'p str, &'p str)]) -> Asked<'p> {
    (entries, None)
}

fn plan<'p>(rules: &'p Rules, domain: &'p str, descriptors: &[Asked<'p>]) -> Plan<'p> {
    let mut request = Request::new(domain);
    for (entries, limit) in descriptors {
        request.add(entries.iter().copied(), Action::Take(1), *limit);
    }
    rules.plan(&KeyHasher::with_secret([7; 16]), &request, 1024)
}

/// Returns the first limit of the rule that matches: its units, and its window in seconds.
fn limit(rules: &Rules, domain: &str, entries: &[(&str, &str)]) -> Option<(u64, u64)> {
    let limits = &rules.find(domain, entries)?.limits;
    limits.first().map(|limit| (limit.requests_per_unit, limit.quota.window_ns() / 1_000_000_000))
}

const DATABASES: &str = "
domain: mongo_cps
descriptors:
  - key: database
    value: users
    rate_limit: {unit: second, requests_per_unit: 500}
  - key: database
    value: default
    rate_limit: {unit: second, requests_per_unit: 500}
";

#[test]
fn the_worked_case() {
    let messaging = include_str!("../../../examples/reference.yaml");
    let rules = rules(&[DATABASES, messaging]);
    assert_eq!(limit(&rules, "mongo_cps", &[("database", "users")]), Some((500, 1)));
    assert_eq!(limit(&rules, "mongo_cps", &[("database", "default")]), Some((500, 1)));
    assert_eq!(limit(&rules, "mongo_cps", &[("database", "other")]), None);
    let marketing = ("message_type", "marketing");
    let number = ("to_number", "2061111111");
    assert_eq!(limit(&rules, "messaging", &[marketing, number]), Some((5, 86_400)));
    assert_eq!(limit(&rules, "messaging", &[number]), Some((100, 86_400)));
    assert_eq!(
        limit(&rules, "messaging", &[marketing]),
        None,
        "a descriptor must have one entry for each level of the rule"
    );
    assert_eq!(
        limit(&rules, "messaging", &[number, marketing]),
        None,
        "the entries must be in the order of the levels"
    );
    assert_eq!(limit(&rules, "messaging", &[("message_type", "news"), number]), None);
    let asked = [take(&[("message_type", "marketing"), ("to_number", "1")]), take(&[("to_number", "1")])];
    let plan = plan(&rules, "messaging", &asked);
    assert_eq!(plan.hits.iter().map(|hit| hit.quota.limit()).collect::<Vec<_>>(), [5, 100]);
    assert!(!plan.separately);
}

/// Returns the line and the message of each warning. Notes are left out.
fn warned(rules: &Rules) -> Vec<(u32, &str)> {
    rules
        .warnings()
        .iter()
        .filter(|warning| warning.severity() != Severity::Note)
        .map(|w| (w.line(), w.message()))
        .collect()
}

#[test]
fn aliases_and_merge_keys_are_as_if_written_out() {
    let rules = rules(&["
domain: d
descriptors:
  - key: a
    rate_limit: &limit
      unit: minute
      requests_per_unit: &many 7
  - key: b
    rate_limit: *limit
  - key: c
    rate_limit: {<<: *limit, unit: hour}
  - key: e
    rate_limit: {<<: [{unit: day}, *limit]}
  - key: f
    rate_limit: {unit: second, requests_per_unit: *many}
"]);
    let limits = ["a", "b", "c", "e", "f"].map(|key| limit(&rules, "d", &[(key, "")]));
    assert_eq!(limits, [(7, 60), (7, 60), (7, 3600), (7, 86_400), (7, 1)].map(Some));
    assert_eq!(warned(&rules), []);
}

#[test]
fn aliases_cannot_make_a_file_large() {
    let parse = |text: String| Rules::parse(&[RulesFile { name: "f.yaml".into(), text }]).map(|_| ());
    let message = |text| parse(text).unwrap_err().iter().next().map(|error| error.message().to_owned());
    // If the aliases were written out, the first file would have a thousand texts of 1 MiB each, and the second file
    // would have more than 10^11 values.
    let long = format!("domain: &d {}\ndescriptors: [{}]", "d".repeat(1 << 20), "*d,".repeat(1_000));
    let doubled = (1..12).map(|n| format!("l{n}: &l{n} [{}]\n", format!("*l{},", n - 1).repeat(10)));
    let nested = format!("domain: d\nl0: &l0 [x]\n{}", doubled.collect::<String>());
    for text in [long, nested] {
        let message = message(text);
        assert!(message.as_deref().is_some_and(|message| message.contains("too large")), "{message:?}");
    }
    let many = format!("domain: d\na: &a x\ndescriptors: [{}]", "*a,".repeat(20_000));
    assert_eq!(message(many).as_deref(), Some("there are too many YAML aliases (`*name`)"));
}

#[test]
fn empty_values_are_as_if_not_written() {
    for empty in ["\"\"", "~", ""] {
        let rules = rules(&[&format!(
            "
domain: d
descriptors:
  - key: a
    value: {empty}
    rate_limit:
      unit: second
      name: {empty}
      requests_per_unit: 1
  - key: b
    rate_limit: {empty}
"
        )]);
        let rule = rules.find("d", &[("a", "any")]).expect("the rule matches any value");
        assert_eq!((&*rule.path, rule.limits[0].name.as_deref()), ("a", None));
        assert!(rules.find("d", &[("b", "x")]).is_some_and(|rule| rule.limits.is_empty() && !rule.unlimited));
        assert_eq!(warned(&rules), [(11, "`rate_limit` is empty, so it limits nothing")]);
    }
}

#[test]
fn an_empty_limit_above_other_rules_is_no_mistake() {
    let warned_at = |nested: &str| {
        let text = format!("domain: d\ndescriptors:\n  - key: a\n    rate_limit: null\n    descriptors: {nested}\n");
        warned(&rules(&[&text])).into_iter().map(|(line, _)| line).collect::<Vec<_>>()
    };
    assert_eq!(warned_at("[{key: b, rate_limit: {unit: day, requests_per_unit: 5}}]"), [0; 0]);
    // The domain has no limit, which is the warning of line 1.
    assert_eq!([warned_at("[]"), warned_at("null")], [[1, 4], [1, 4]]);
}

#[test]
fn a_missing_number_is_0_in_compat_only_and_warned_of() {
    let text = "domain: d\ncompat: envoy\ndescriptors:\n  - {key: a, rate_limit: {unit: second}}";
    let loaded = rules(&[text]);
    assert_eq!(limit(&loaded, "d", &[("a", "")]), Some((0, 1)));
    assert_eq!(warned(&loaded), [(4, "the limit has no `requests_per_unit`, so it is 0 and refuses every request")]);
    let own = RulesFile { name: "d.yaml".into(), text: text.replace("compat: envoy\n", "") };
    assert!(Rules::parse(&[own]).is_err());
}

#[test]
fn the_other_words_for_true_and_false_are_accepted_with_a_warning() {
    for (word, means) in [("yes", true), ("On", true), ("y", true), ("no", false), ("off", false), ("N", false)] {
        let loaded = rules(&[&format!(
            "domain: d\ndescriptors:\n  - {{key: a, shadow_mode: {word}, rate_limit: {{unit: second, requests_per_unit: 1}}}}"
        )]);
        assert_eq!(loaded.rules().next().map(|rule| rule.shadow_mode), Some(means));
        assert_eq!(warned(&loaded), [(3, &*format!("`shadow_mode: {word}` is read as {means}"))]);
    }
}

#[test]
fn numbers_have_separators_and_units() {
    for (text, number) in [("1_000", 1_000), ("10k", 10_000), ("2M", 2_000_000), ("07", 7), ("08", 8), ("0", 0)] {
        let rules = rules(&[&format!(
            "domain: d\ndescriptors: [{{key: a, rate_limit: {{unit: year, requests_per_unit: {text}}}}}]"
        )]);
        assert_eq!(limit(&rules, "d", &[("a", "")]).map(|(number, _)| number), Some(number), "{text}");
    }
}

#[test]
fn days_weeks_months_and_years_begin_where_the_documents_say() {
    let rules = rules(&["domain: d
descriptors:
  - {key: day, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: week, rate_limit: {unit: week, requests_per_unit: 1}}
  - {key: month, rate_limit: {unit: month, requests_per_unit: 1}}
  - {key: year, rate_limit: {unit: year, requests_per_unit: 1}}"]);
    // The time is Sunday, 2026-11-22, 12:00 UTC, when 20,779.5 days have passed since 1970. The next midnight is in
    // half a day, and the next Thursday begins in three and a half days. The current month of 30 days ends after 693 *
    // 30 = 20,790 days. The current year of 365 days ends after 57 * 365 = 20,805 days.
    let now = Time::from_nanos(1_795_348_800_000_000_000);
    let store = MemoryStore::new(MemoryOptions::default());
    for (key, days) in [("day", 0), ("week", 3), ("month", 10), ("year", 25)] {
        let until_s = 43_200 + days * 86_400;
        let entries = [(key, "")];
        let asked = [take(&entries)];
        let decision = store.hit_now(now, &plan(&rules, "d", &asked).hits[0]);
        assert_eq!(decision.reset_after_ns, until_s * 1_000_000_000, "{key}");
    }
    let begin = "indows begin at multiples of their length since 1970 in UTC";
    let page = include_str!("../../../docs/src/reference/rules.md").replace('\n', " ");
    let (page, schema) = (&*page, include_str!("../src/schema.json"));
    let months = "onths and years do not follow the calendar";
    for (document, lengths) in
        [(page, "month (30 days) or year (365 days)"), (schema, "A month has 30 days, and a year has 365")]
    {
        for said in [begin, "days begin at midnight UTC, and weeks begin on Thursdays", lengths, months] {
            assert!(document.contains(said), "the document must contain: {said}");
        }
    }
}

#[test]
fn units_in_any_case_and_default_algorithm() {
    for (unit, seconds) in [
        ("second", 1),
        ("MINUTE", 60),
        ("Hour", 3_600),
        ("day", 86_400),
        ("week", 604_800),
        ("month", 2_592_000),
        ("year", 31_536_000),
    ] {
        let text = format!(
            "domain: d\ndescriptors: [{{key: k, rate_limit: {{unit: {unit}, requests_per_unit: 4294967295}}}}]"
        );
        let rules = rules(&[&text]);
        assert_eq!(limit(&rules, "d", &[("k", "")]), Some((4_294_967_295, seconds)), "{unit}");
        let limit = &rules.find("d", &[("k", "")]).unwrap().limits[0];
        assert_eq!(limit.quota.algorithm(), Algorithm::FixedWindow(Anchor::Epoch));
        assert!(limit.unit.is_some_and(|named| named.as_str().eq_ignore_ascii_case(unit)));
    }
}

#[test]
fn values_without_quotes_are_what_is_written() {
    let rules = rules(&["domain: 7
descriptors:
  - {key: ip, value: 50.0.0.5, rate_limit: {unit: second, requests_per_unit: 0}}
  - {key: 1, value: 007, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: on, value: yes, rate_limit: {unit: second, requests_per_unit: 2}}
  - {key: hex, value: 0x10, rate_limit: {unit: second, requests_per_unit: 3}}
  - {key: exp, value: 1e3, rate_limit: {unit: second, requests_per_unit: 4}}
  - {key: big, value: 340282366920938463463374607431768211456, rate_limit: {unit: second, requests_per_unit: 5}}
  - {key: text, value: 'it''s', rate_limit: {unit: second, requests_per_unit: 6}}"]);
    for (number, entry) in [
        ("ip", "50.0.0.5"),
        ("1", "007"),
        ("on", "yes"),
        ("hex", "0x10"),
        ("exp", "1e3"),
        ("big", "340282366920938463463374607431768211456"),
        ("text", "it's"),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(limit(&rules, "7", &[entry]), Some((number as u64, 1)), "{entry:?}");
    }
}

#[test]
fn wildcards_by_specificity_or_as_declared() {
    let text = "domain: d
descriptors:
  - {key: path, value: /a*, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: path, value: /api/*, rate_limit: {unit: second, requests_per_unit: 2}}
  - {key: path, value: /api/me, rate_limit: {unit: second, requests_per_unit: 3}}
  - {key: path, rate_limit: {unit: second, requests_per_unit: 4}}";
    let ours = rules(&[text]);
    let theirs = rules(&[&text.replace("domain: d", "domain: d\ncompat: envoy")]);
    for (value, in_ours, in_theirs) in [("/api/x", 2, 1), ("/abc", 1, 1), ("/api/me", 3, 3), ("/b", 4, 4)] {
        assert_eq!(limit(&ours, "d", &[("path", value)]), Some((in_ours, 1)), "{value}");
        assert_eq!(limit(&theirs, "d", &[("path", value)]), Some((in_theirs, 1)), "{value}");
    }
}

#[test]
fn in_compat_the_search_never_goes_back_up() {
    let text = "domain: d
descriptors:
  - {key: user, value: vip*, descriptors: [{key: path, value: /buy, rate_limit: {unit: second, requests_per_unit: 1}}]}
  - {key: user, descriptors: [{key: path, rate_limit: {unit: second, requests_per_unit: 2}}]}";
    let asked = [("user", "vip7"), ("path", "/x")];
    assert_eq!(limit(&rules(&[text]), "d", &asked), Some((2, 1)));
    assert_eq!(limit(&rules(&[&text.replace("domain: d", "domain: d\ncompat: envoy")]), "d", &asked), None);
}

#[test]
fn unlimited_has_no_hits() {
    let rules = rules(&["domain: d
descriptors:
  - {key: user, value: root, rate_limit: {unlimited: true}}
  - {key: user, rate_limit: {unlimited: false, unit: second, requests_per_unit: 1}}"]);
    let asked = [take(&[("user", "root")]), take(&[("user", "7")]), take(&[("nobody", "7")])];
    let plan = plan(&rules, "d", &asked);
    assert_eq!(plan.hits.len(), 1);
    assert!(plan.descriptors[0].unlimited && plan.descriptors[0].hits.is_empty());
    assert!(!plan.descriptors[1].unlimited && plan.descriptors[1].hits[0].0 == 0);
    assert!(!plan.descriptors[2].unlimited && plan.descriptors[2].rule.is_none());
}

#[test]
fn modes_bind_differently() {
    let rules = rules(&["domain: d
descriptors:
  - {key: shadow, shadow_mode: true, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: quota, quota_mode: true, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: plain, rate_limit: {unit: second, requests_per_unit: 1}}"]);
    let asked = [take(&[("shadow", "1")]), take(&[("quota", "1")]), take(&[("plain", "1")])];
    let bindings: Vec<Binding> = plan(&rules, "d", &asked).hits.iter().map(|hit| hit.binding).collect();
    assert_eq!(bindings, [Binding::Shadow, Binding::Quota, Binding::Enforce]);
}

#[test]
fn replaces_across_the_request() {
    let rules = rules(&["domain: d
descriptors:
  - {key: all, rate_limit: {name: all, unit: second, requests_per_unit: 10}}
  - {key: user, rate_limit: {name: user, unit: second, requests_per_unit: 5}}
  - {key: vip, rate_limit: {name: vip, unit: second, requests_per_unit: 50, replaces: [{name: user}, {name: open}]}}
  - {key: open, rate_limit: {name: open, unlimited: true}}
  - {key: root, rate_limit: {unlimited: true, replaces: [{name: all}, {name: vip}]}}"]);
    let (all, user, vip) = (take(&[("all", "")]), take(&[("user", "7")]), take(&[("vip", "7")]));
    let (open, root) = (take(&[("open", "")]), take(&[("root", "")]));
    let limits =
        |asked: &[Asked<'_>]| plan(&rules, "d", asked).hits.iter().map(|hit| hit.quota.limit()).collect::<Vec<_>>();
    assert_eq!(limits(&[all, user]), [10, 5]);
    assert_eq!(limits(&[all, user, vip]), [10, 50], "the order does not matter");
    assert_eq!(limits(&[vip, user, all]), [50, 10]);
    assert_eq!(limits(&[root, all, user, vip]), [0; 0], "a limit that is replaced still replaces other limits");
    let asked = [open, vip];
    let plan = plan(&rules, "d", &asked);
    assert!(plan.descriptors[0].replaced && !plan.descriptors[0].unlimited);
    assert!(!plan.descriptors[1].replaced);
}

#[test]
fn a_shared_wildcard_has_one_counter() {
    let rules = rules(&["domain: d
descriptors:
  - key: ip
    value: 10.*
    share_threshold: true
    rate_limit: {unit: second, requests_per_unit: 1}
    descriptors: [{key: path, rate_limit: {unit: second, requests_per_unit: 2}}]
  - {key: ip, value: 192.*, rate_limit: {unit: second, requests_per_unit: 3}}"]);
    let key = |entries: &[(&str, &str)]| plan(&rules, "d", &[take(entries)]).hits[0].key;
    assert_eq!(key(&[("ip", "10.0.0.1")]), key(&[("ip", "10.0.0.2")]));
    assert_ne!(key(&[("ip", "192.0.0.1")]), key(&[("ip", "192.0.0.2")]));
    let below = |ip, path| key(&[("ip", ip), ("path", path)]);
    assert_eq!(
        below("10.0.0.1", "/"),
        below("10.0.0.2", "/"),
        "a rule nested in a shared wildcard has one counter for all values of the wildcard"
    );
    assert_ne!(below("10.0.0.1", "/"), below("10.0.0.1", "/x"));
}

#[test]
fn metric_flags_and_metadata_are_kept() {
    let rules = rules(&["domain: d
descriptors:
  - key: route
    value_to_metric: true
    descriptors:
      - key: user
        detailed_metric: true
        insight_by: tenant
        metadata: {tier: gold, weight: 1.5, tags: [a, '1'], on: true, none: ~}
        rate_limit: {unit: second, requests_per_unit: 1}"]);
    let rule = rules.find("d", &[("route", "r"), ("user", "u")]).unwrap();
    assert!(rule.detailed_metric && !rule.value_to_metric);
    assert_eq!(rule.insight_by.as_deref(), Some("tenant"));
    assert_eq!(rule.steps.iter().map(|step| step.value_to_metric).collect::<Vec<_>>(), [true, false]);
    let Some(Metadata::Map(map)) = &rule.metadata else { panic!("{:?}", rule.metadata) };
    let values: Vec<&Metadata> = map.iter().map(|(_, value)| value).collect();
    let text = |text: &str| Metadata::Text(text.into());
    assert_eq!(
        values,
        [
            &text("gold"),
            &Metadata::Number(1.5),
            &Metadata::List([text("a"), text("1")].into()),
            &Metadata::Bool(true),
            &Metadata::Null
        ]
    );
}

#[test]
fn an_override_needs_only_the_domain() {
    let rules = rules(&[DATABASES]);
    let limit = Limit::overriding(Unit::Hour, 3);
    let asked: [Asked<'_>; 2] = [(&[("anything", "x")], Some(&limit)), (&[("database", "users")], Some(&limit))];
    let planned = plan(&rules, "mongo_cps", &asked);
    assert_eq!(
        planned.hits.iter().map(|hit| (hit.quota.limit(), hit.quota.denied())).collect::<Vec<_>>(),
        [(3, Denied::Free), (3, Denied::Free)]
    );
    assert!(planned.descriptors.iter().all(|planned| planned.rule.is_none() && planned.hits.len() == 1));
    let unknown = plan(&rules, "unknown", &asked);
    assert!(unknown.hits.is_empty() && unknown.descriptors.len() == 2);
}

#[test]
fn compat_charges_refusals_and_keeps_descriptors_apart() {
    let rules = rules(&["domain: d
compat: envoy
descriptors:
  - {key: a, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: free, rate_limit: {unit: second, requests_per_unit: 1, denied: free}}"]);
    let limit = Limit::overriding(Unit::Second, 9);
    let asked: [Asked<'_>; 3] = [take(&[("a", "1")]), take(&[("a", "1")]), (&[("x", "")], Some(&limit))];
    let plan = plan(&rules, "d", &asked);
    assert!(plan.separately);
    assert_eq!(plan.hits.len(), 3, "equal hits of two descriptors are not merged");
    assert!(plan.hits.iter().all(|hit| hit.quota.denied() == Denied::Charged && hit.op == Op::take(1)));
    assert_eq!(rules.find("d", &[("free", "")]).unwrap().limits[0].quota.denied(), Denied::Free);
}

/// The cases and the results are those of a recording of the reference server.
#[test]
fn a_star_in_a_key_matches_the_joined_key_and_value() {
    for compat in ["", "compat: envoy\n"] {
        let matches = |rule: &str, entry: (&str, &str)| {
            let text = format!("domain: d\n{compat}descriptors:\n  - {{{rule}, rate_limit: {{unit: hour, limit: 2}}}}");
            limit(&rules(&[&text]), "d", &[entry]).is_some()
        };
        for entry in [("k", "a"), ("kk", "a"), ("k*", "a"), ("k", ""), ("k*", ""), ("kx", "y")] {
            assert!(matches("key: 'k*'", entry), "{entry:?}");
        }
        for (entry, expected) in
            [(("k", "v"), true), (("kk", "vz"), true), (("k*", "v"), true), (("kx", "w"), false), (("k_v", ""), true)]
        {
            assert_eq!(matches("key: 'k*', value: 'v*'", entry), expected, "{entry:?}");
        }
        // The case of the report.
        for (entry, expected) in [(("a", "b"), true), (("ax", "b"), true), (("a*", "b"), true), (("ax", "c"), false)] {
            assert_eq!(matches("key: a*, value: b", entry), expected, "{entry:?}");
        }
        assert!(!matches("key: 'k*'", ("j", "k")));
    }
}

#[test]
fn a_rule_with_a_star_in_its_key_has_a_counter_for_each_key() {
    let rules = rules(&["domain: d
descriptors:
  - {key: 'k*', value: 'v*', share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 2}}
  - {key: 'u*', share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 2}}
  - {key: 'n*', rate_limit: {unit: hour, requests_per_unit: 2}}"]);
    let key = |entry| plan(&rules, "d", &[take(&[entry])]).hits[0].key;
    assert_eq!(key(("kk", "vz")), key(("kk", "va")), "the values of one key share a counter");
    assert_ne!(key(("k", "v")), key(("kk", "v")));
    assert_eq!(key(("ux", "1")), key(("ux", "2")));
    assert_ne!(key(("ux", "1")), key(("uy", "1")));
    assert_ne!(key(("nx", "1")), key(("nx", "2")));
}

#[test]
fn wildcards_in_keys_and_in_values_are_tried_in_the_order_of_the_file_in_compat_only() {
    let text = "domain: d
descriptors:
  - {key: 'us*', rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: user, value: 'v*', rate_limit: {unit: second, requests_per_unit: 2}}
  - {key: user, value: vip, rate_limit: {unit: second, requests_per_unit: 3}}
  - {key: user, rate_limit: {unit: second, requests_per_unit: 4}}
  - {key: 'user*', value: x, rate_limit: {unit: second, requests_per_unit: 5}}";
    let ours = rules(&[text]);
    let theirs = rules(&[&text.replace("domain: d", "domain: d\ncompat: envoy")]);
    for (entry, in_ours, in_theirs) in [
        (("user", "vip"), 3, 3),
        (("user", "vx"), 2, 1),
        (("user", "x"), 5, 1),
        (("user", "y"), 1, 1),
        (("users", "x"), 5, 1),
        (("use", "x"), 1, 1),
    ] {
        assert_eq!(limit(&ours, "d", &[entry]), Some((in_ours, 1)), "{entry:?}");
        assert_eq!(limit(&theirs, "d", &[entry]), Some((in_theirs, 1)), "{entry:?}");
    }
}

#[test]
fn a_key_with_a_star_cannot_choose_the_slot() {
    let load = |by: &str| {
        let below = format!("{{key: path, rate_limit: {{unit: day, limit: 1, slot_by: '{by}'}}}}");
        let text = format!("domain: d\ndescriptors: [{{key: 'user*', descriptors: [{below}]}}]");
        Rules::parse(&[RulesFile { name: "d.yaml".into(), text }]).map(|_| ()).map_err(|errors| errors.to_string())
    };
    assert_eq!(load("path"), Ok(()));
    assert!(load("user*").unwrap_err().contains("is not a key of this rule"));
}
