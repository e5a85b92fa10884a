//! Compares the matching of rules with a simple search through the same tree of descriptors.
//!
//! The library matches rules with an index, which is fast but complex. The search in this file is slow but simple. A
//! fault of the index is found unless this simple search has the same fault.

use proptest::prelude::*;
use spillgate_rules::{Defaults, How, Outcome, Rules, RulesFile};

/// A descriptor of a rules file, with the descriptors below it. The name of its limit is the path of the descriptor in
/// the tree.
#[derive(Clone, Debug)]
struct Tree {
    key: &'static str,
    value: Option<&'static str>,
    below: Vec<Tree>,
}

const KEYS: [&str; 5] = ["a", "b", "a*", "*b", "a*b"];
const VALUES: [Option<&str>; 8] =
    [None, Some("x"), Some("y"), Some("xy"), Some("*"), Some("x*"), Some("*y"), Some("x*y")];

fn trees(depth: u32) -> BoxedStrategy<Vec<Tree>> {
    let below = if depth == 0 { Just(Vec::new()).boxed() } else { trees(depth - 1) };
    let tree = (prop::sample::select(&KEYS[..]), prop::sample::select(&VALUES[..]), below)
        .prop_map(|(key, value, below)| Tree { key, value, below });
    prop::collection::vec(tree, 0..5)
        .prop_map(|mut trees: Vec<Tree>| {
            let mut seen = Vec::new();
            trees.retain(|tree| {
                let new = !seen.contains(&(tree.key, tree.value));
                seen.push((tree.key, tree.value));
                new
            });
            trees
        })
        .boxed()
}

fn yaml(trees: &[Tree], indent: usize, path: &str, text: &mut String) {
    let pad = " ".repeat(indent);
    for (number, tree) in trees.iter().enumerate() {
        let name = format!("{path}/{number}");
        text.push_str(&format!("{pad}- key: \"{}\"\n", tree.key));
        if let Some(value) = tree.value {
            text.push_str(&format!("{pad}  value: \"{value}\"\n"));
        }
        text.push_str(&format!("{pad}  rate_limit: {{name: \"{name}\", unit: second, requests_per_unit: 1}}\n"));
        if !tree.below.is_empty() {
            text.push_str(&format!("{pad}  descriptors:\n"));
            yaml(&tree.below, indent + 2, &name, text);
        }
    }
}

/// Returns whether `pattern` matches `value`. For each star, tries texts of every length.
fn fits(pattern: &str, value: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == value,
        Some((head, tail)) => value.strip_prefix(head).is_some_and(|rest| {
            (0..=rest.len()).any(|skip| fits(tail, &rest[skip..]) || (tail.is_empty() && skip == rest.len()))
        }),
    }
}

/// Returns the name of the limit that matches `entries`. Looks at every descriptor of every level.
fn walk(trees: &[Tree], entries: &[(&str, &str)], path: &str, compat: bool) -> Option<String> {
    let ((key, value), rest) = entries.split_first()?;
    let star = |tree: &Tree| tree.value.is_some_and(|value| value.contains('*'));
    let mut candidates: Vec<(u32, usize, &Tree)> = Vec::new();
    let by_key = |tree: &Tree| tree.key.contains('*');
    for (number, tree) in trees.iter().enumerate().filter(|(_, tree)| by_key(tree)) {
        let own = tree.value.map_or_else(|| tree.key.to_owned(), |value| format!("{}_{value}", tree.key));
        let literals = u32::try_from(own.replace('*', "").len()).expect("the wildcard is short");
        if fits(&own, &format!("{key}_{value}")) {
            candidates.push((if compat { 50 } else { 500 - literals }, number, tree));
        }
    }
    for (number, tree) in trees.iter().enumerate().filter(|(_, tree)| !by_key(tree) && tree.key == *key) {
        let literals = tree.value.map_or(0, |value| value.replace('*', "").len());
        match tree.value {
            Some(own) if !star(tree) && own == *value => candidates.push((0, number, tree)),
            Some(own) if star(tree) && fits(own, value) => {
                let rank = if compat { 50 } else { 100 - u32::try_from(literals).expect("the wildcard is short") };
                candidates.push((rank, number, tree));
            }
            None => candidates.push((1000, number, tree)),
            Some(_) => {}
        }
    }
    candidates.sort_by_key(|(rank, number, _)| (*rank, *number));
    for (_, number, tree) in candidates {
        let name = format!("{path}/{number}");
        let found = if rest.is_empty() { Some(name) } else { walk(&tree.below, rest, &name, compat) };
        if found.is_some() || compat {
            return found;
        }
    }
    None
}

fn load(trees: &[Tree], compat: bool) -> Rules {
    let mut text = String::from("domain: d\n");
    if compat {
        text.push_str("compat: envoy\n");
    }
    text.push_str("descriptors:\n");
    yaml(trees, 2, "", &mut text);
    Rules::parse(&[RulesFile { name: "d.yaml".into(), text }]).unwrap_or_else(|errors| panic!("{errors}"))
}

fn entries() -> impl Strategy<Value = Vec<(&'static str, &'static str)>> {
    let key = prop::sample::select(&["a", "b", "c", "ab", "a*", "a_x"][..]);
    let value = prop::sample::select(&["x", "y", "xy", "xzy", "z", "", "*", "x*"][..]);
    prop::collection::vec((key, value), 0..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn matches_as_a_naive_walk_does(
        tree in trees(2),
        asked in prop::collection::vec(entries(), 1..20),
        compat in any::<bool>(),
    ) {
        let rules = load(&tree, compat);
        for entries in asked {
            let found = rules.find("d", &entries);
            let name = found.map(|rule| rule.limits[0].name.as_deref().unwrap_or_default().to_owned());
            prop_assert_eq!(&name, &walk(&tree, &entries, "", compat), "{:?} {:?}", tree, entries);
            prop_assert!(found.is_none_or(|rule| rule.steps.len() == entries.len()));

            let steps = rules.explain("d", &entries);
            let matched: Vec<_> = steps.iter().filter(|step| step.outcome == Outcome::Matched).collect();
            prop_assert_eq!(matched.len(), usize::from(found.is_some()));
            prop_assert_eq!(matched.first().and_then(|step| step.origin.as_ref()), found.map(|rule| &rule.origin));
            for steps_max in 0..=steps.len() + 1 {
                let (first, left_out) = rules.explain_within("d", &entries, steps_max, usize::MAX);
                prop_assert_eq!((first.len(), first.len() + left_out), (steps_max.min(steps.len()), steps.len()));
                prop_assert_eq!(&first[..], &steps[..first.len()]);
            }
        }
    }

    #[test]
    fn warnings_of_unreachable_rules_are_true(
        tree in trees(1),
        asked in prop::collection::vec(entries(), 1..60),
        compat in any::<bool>(),
    ) {
        let rules = load(&tree, compat);
        let dead: Vec<u32> = rules
            .warnings()
            .iter()
            .filter(|warning| warning.message().contains("can never match"))
            .map(|warning| warning.line())
            .collect();
        for entries in asked {
            if let Some(rule) = rules.find("d", &entries) {
                prop_assert!(!dead.contains(&rule.origin.line), "{:?} reaches {}", entries, rule.path);
            }
        }
    }
}

fn rules(text: &str) -> Rules {
    Rules::parse(&[RulesFile { name: "d.yaml".into(), text: text.into() }]).unwrap_or_else(|errors| panic!("{errors}"))
}

#[test]
fn joined_names_do_not_collide() {
    let rules = rules(
        "domain: d
descriptors:
  - {key: a_b, value: c, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: a, value: b_c, rate_limit: {unit: second, requests_per_unit: 2}}",
    );
    let limit = |entry| rules.find("d", &[entry]).map(|rule| rule.limits[0].requests_per_unit);
    assert_eq!(limit(("a_b", "c")), Some(1));
    assert_eq!(limit(("a", "b_c")), Some(2));
    assert_eq!(limit(("a_b_c", "")), None);
}

#[test]
fn explaining_shows_each_attempt() {
    let rules = rules(
        "domain: d
descriptors:
  - key: user
    value: vip*
    descriptors:
      - {key: path, value: /buy, rate_limit: {unit: second, requests_per_unit: 1}}
  - key: user
    descriptors:
      - {key: path, rate_limit: {unit: second, requests_per_unit: 2}}",
    );
    let steps = rules.explain("d", &[("user", "vip7"), ("path", "/x")]);
    let found: Vec<(usize, How, Outcome)> =
        steps.iter().map(|step| (step.level, step.how.clone(), step.outcome)).collect();
    assert_eq!(
        found,
        [
            (0, How::Wildcard("vip*".into()), Outcome::WentBack),
            (1, How::Nothing, Outcome::Failed),
            (0, How::KeyAlone, Outcome::WentDeeper),
            (1, How::KeyAlone, Outcome::Matched),
        ]
    );
    assert_eq!(steps[3].origin.as_ref().map(|origin| origin.line), Some(9));
    assert!(rules.explain("other", &[("user", "7")]).is_empty());
    assert_eq!(rules.explain("d", &[("nobody", "7")])[0].how, How::Nothing);
}

#[test]
fn listings_have_the_path_and_the_origin() {
    let rules = rules(
        "domain: d
descriptors:
  - key: user_id
    value: vip*
    descriptors:
      - key: path
        rate_limit: {unit: second, requests_per_unit: 1}",
    );
    let listed: Vec<String> =
        rules.rules().map(|rule| format!("{} {} {}", rule.domain, rule.path, rule.origin)).collect();
    assert_eq!(listed, ["d user_id=vip* d.yaml:3", "d user_id=vip* > path d.yaml:6"]);
    assert!(rules.rules().enumerate().all(|(number, rule)| rule.index() == number));
    assert_eq!(rules.domains().map(|domain| &*domain.name).collect::<Vec<_>>(), ["d"]);
}

#[test]
fn defaults_hold_for_files_that_say_nothing() {
    let text = "domain: d\ndescriptors: [{key: a, value: 'x*', rate_limit: {unit: day, limit: 1}}, \
                {key: a, value: 'xy*', rate_limit: {unit: day, limit: 2}}]";
    let files = [RulesFile { name: "d.yaml".into(), text: text.into() }];
    for (compat_envoy, limit) in [(false, 2), (true, 1)] {
        let rules =
            Rules::parse_with(&files, Defaults { compat_envoy, ..Defaults::default() }).expect("the rules are valid");
        assert!(rules.domains().all(|domain| domain.compat_envoy == compat_envoy));
        assert_eq!(rules.find("d", &[("a", "xyz")]).expect("a rule").limits[0].requests_per_unit, limit);
    }
}

#[test]
fn explaining_long_values_takes_bounded_memory() {
    let wildcards: String =
        (1..=500).map(|length| format!("  - {{key: a, value: '{}*'}}\n", "x".repeat(length))).collect();
    let rules = rules(&format!("domain: d\ndescriptors:\n{wildcards}"));
    let value = "x".repeat(501) + &"\u{e9}".repeat(50_000);
    let entries = [("a", value.as_str()), ("b", "y")];
    assert_eq!(rules.explain("d", &entries).len(), 500);
    let (steps, left_out) = rules.explain_within("d", &entries, 100, 502);
    assert_eq!((steps.len(), left_out), (100, 400));
    // The cut is never inside a character: 502 bytes would end in the middle of the first `é`.
    assert!(steps.iter().all(|step| step.value == "x".repeat(501) && step.outcome == Outcome::Failed));
}

/// Without this bound, 250 wildcards and a value of 60 KB cost 20 ms.
#[test]
fn wildcards_with_text_between_stars_look_through_a_bounded_part_of_a_value() {
    let load = |count: usize| {
        let wildcards: String = (1..count).map(|n| format!("  - {{key: a, value: '*x{n}y*'}}\n")).collect();
        let below = "  - {key: b, descriptors: [{key: a, value: 'p*bot*s'}]}\n";
        rules(&format!("domain: d\ndescriptors:\n{wildcards}  - {{key: a, value: 'p*bot*s'}}\n{below}"))
    };
    // 512 KiB of values for one descriptor, divided by the number of wildcards that look through a value.
    for (count, bytes) in [(1, 512 << 10), (8, 64 << 10), (64, 8 << 10), (256, 2 << 10)] {
        let rules = load(count);
        for entries in [&["a"][..], &["b", "a"]] {
            let found = |at: usize| {
                let value = format!("p{}bot{}s", "\u{e9}".repeat(at / 2), "x".repeat(100_000));
                let mut all: Vec<(&str, &str)> = entries.iter().map(|key| (*key, "y")).collect();
                all.last_mut().expect("there is an entry").1 = &value;
                rules.find("d", &all).is_some()
            };
            assert!(found(bytes - 4) && !found(bytes), "{count} {entries:?}");
        }
        let other_end = format!("pbot{}t", "s".repeat(bytes));
        assert!(load(count).find("d", &[("a", &other_end)]).is_none());
    }
}
