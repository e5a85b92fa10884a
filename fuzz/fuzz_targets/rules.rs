//! Reads any bytes as rules files. The result must be rules that answer every request, or errors that can be printed.
//!
//! Rules are written by hand, and a server reads them while it runs. So a mistake in a file must not end the server.

#![no_main]

use libfuzzer_sys::fuzz_target;
use spillgate::KeyHasher;
use spillgate::rules::{Action, Request, Rule, Rules, RulesFile};
use spillgate::text::{Source, yaml};

const ADVICE: yaml::Advice =
    yaml::Advice { empty: None, alias: None, ignore_tags: false, documents: "", depth: "", size: "" };

/// The text between two files in the input.
const NEXT_FILE: &str = "\n=====\n";

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let files: Vec<RulesFile> = text
        .split(NEXT_FILE)
        .zip(["a.yaml", "b.yaml", "c.yaml"])
        .map(|(text, name)| RulesFile { name: name.to_owned(), text: text.to_owned() })
        .collect();
    let rules = match Rules::parse(&files) {
        Ok(rules) => rules,
        Err(errors) => {
            assert!(errors.iter().next().is_some(), "invalid rules have at least one error");
            // In YAML a carriage return alone ends a line too.
            let lines = text.split(['\n', '\r']).count();
            for error in errors.iter() {
                assert!(!error.help().is_empty(), "the error has no help text: {error}");
                assert!(error.line() as usize <= lines + 1, "the line is behind the end of the text: {error}");
            }
            assert!(!errors.to_string().is_empty());
            return;
        }
    };
    for warning in rules.warnings() {
        assert!(!warning.to_string().is_empty());
    }
    check_written(&rules);
    let domains: Vec<String> = rules.domains().map(|domain| domain.name.to_string()).collect();
    let words: Vec<&str> =
        text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).take(12).collect();
    let keys = KeyHasher::with_secret([7; 16]);
    for domain in &domains {
        for pair in words.windows(4) {
            let entries = [(pair[0], pair[1]), (pair[2], pair[3])];
            for entries in [&entries[..1], &entries[..]] {
                let found = rules.find(domain, entries);
                let mut request = Request::new(domain);
                request.add(entries.iter().copied(), Action::Take(1), None);
                request.add(entries.iter().copied(), Action::Take(1), None);
                let plan = rules.plan(&keys, &request, 16);
                assert_eq!(plan.descriptors.len(), 2);
                assert_eq!(plan.descriptors[0].rule.map(std::ptr::from_ref), found.map(std::ptr::from_ref));
                let _ = rules.explain(domain, entries);
            }
        }
    }
});

/// The text of a rule, loaded alone, must give the same rule.
fn check_written(rules: &Rules) {
    for rule in rules.rules().take(20) {
        let written = rules.written(rule);
        assert!(!written.is_empty(), "the rule has no text: {}", rule.origin);
        // The rule may refer to an anchor in another part of the file. Then its text cannot be loaded alone.
        if written.contains(['&', '*']) {
            continue;
        }
        let alone = match written.trim_start().starts_with(['#', '-']) {
            true => format!("domain: d\ndescriptors:\n{written}"),
            false => format!("domain: d\ndescriptors: [\n{written}\n]"),
        };
        let source = Source::new("again.yaml", &alone);
        assert!(yaml::parse(&source, &ADVICE).is_ok(), "{} is no YAML alone:\n{alone}", rule.path);
        let Ok(again) = Rules::parse(&[RulesFile { name: "again.yaml".to_owned(), text: alone.clone() }]) else {
            continue;
        };
        let same = again.rules().next().expect("the text has a rule");
        let own = rule.path.rsplit(" > ").next().unwrap_or_default();
        assert!(same.path.ends_with(own), "{} became {}:\n{alone}", rule.path, same.path);
        assert_eq!(same.limits.len(), rule.limits.len(), "{}:\n{alone}", rule.path);
        let is_nested = |other: &&Rule| other.steps.len() > rule.steps.len();
        let nested = rules.rules().skip(rule.index() + 1).take_while(is_nested).count();
        assert_eq!(again.rules().count(), nested + 1, "{}:\n{alone}", rule.path);
    }
}
