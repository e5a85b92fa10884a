//! Writes a suggestion of insight as a rules file, which `spillgate validate` accepts.
//!
//! The file has only the rule with the suggested numbers. A comment in it says that the other options stay in the
//! user's own file.

use std::fmt::Write as _;
use std::time::Duration;

use spillgate_core::{Algorithm, QuotaError};
use spillgate_insight::{SuggestedRule, Suggestion};
use spillgate_limiter::units::format_duration;

use crate::{Limit, Rule, Rules};

impl Rules {
    /// Applies a suggestion to the limit with the index `limit` of the rule with the index `rule`. The limit keeps its
    /// other options. Returns whether there is such a limit.
    ///
    /// If the limit counts in a sketch, [open the sketches](Rules::open_sketches) afterwards.
    ///
    /// ```
    /// use spillgate::insight::Suggestion;
    /// use spillgate::rules::{Rules, RulesFile};
    /// let text = "domain: api\ndescriptors: [{key: user, rate_limit: {unit: minute, limit: 5, penalty: 10s}}]";
    /// let mut rules = Rules::parse(&[RulesFile { name: "api.yaml".into(), text: text.into() }])?;
    /// assert!(rules.suggest(0, 0, Suggestion::new(5, Some(20)))?);
    /// let quota = &rules.find("api", &[("user", "ann")]).expect("a rule").limits[0].quota;
    /// assert_eq!((quota.capacity(), quota.penalty_ns()), (20, 10_000_000_000));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The limit cannot have these numbers together with its other options.
    pub fn suggest(&mut self, rule: usize, limit: usize, suggestion: Suggestion) -> Result<bool, QuotaError> {
        let Some(limit) = self.limit_mut(rule, limit) else { return Ok(false) };
        limit.quota = limit.quota.with_limit(suggestion.limit, suggestion.burst)?;
        limit.requests_per_unit = suggestion.limit;
        Ok(true)
    }
}

impl SuggestedRule for Rule {
    type Limit = Limit;

    fn with_suggestion(&self, limit: &Limit, suggestion: &Suggestion) -> String {
        let mut text = "# Change these numbers in your rule, and keep its other options.\n".to_owned();
        let _ = write!(text, "domain: {}\ndescriptors:\n", quoted(&self.domain));
        let mut indent = 2;
        for (level, step) in self.steps.iter().enumerate() {
            if level > 0 {
                let _ = writeln!(text, "{:indent$}descriptors:", "");
                indent += 2;
            }
            let _ = writeln!(text, "{:indent$}- key: {}", "", quoted(&step.key));
            indent += 2;
            if let Some(value) = &step.value {
                let _ = writeln!(text, "{:indent$}value: {}", "", quoted(value));
            }
        }
        let _ = writeln!(text, "{:indent$}rate_limit:", "");
        for (option, value) in options(suggestion, limit) {
            let _ = writeln!(text, "{:indent$}  {option}: {value}", "");
        }
        text
    }
}

fn options(suggestion: &Suggestion, limit: &Limit) -> Vec<(&'static str, String)> {
    let quota = &limit.quota;
    let mut options = Vec::new();
    if let Some(name) = &limit.name {
        options.push(("name", quoted(name)));
    }
    match (limit.unit, quota.window_ns()) {
        (Some(unit), _) => options.push(("unit", unit.as_str().to_owned())),
        (None, 0) => {}
        (None, window_ns) => options.push(("window", format_duration(Duration::from_nanos(window_ns)))),
    }
    options.push(("requests_per_unit", suggestion.limit.to_string()));
    if let Some(burst) = suggestion.burst {
        options.push(("algorithm", Algorithm::TokenBucket.as_str().to_owned()));
        options.push(("burst", burst.to_string()));
    } else {
        options.push(("algorithm", quota.algorithm().as_str().to_owned()));
        if quota.algorithm() == Algorithm::LeakyBucket {
            options.push(("queue", (quota.capacity() - 1).to_string()));
        }
    }
    options
}

/// Returns the text in quotes, so that YAML reads it as a text whatever it contains.
///
/// The suggestion is also shown on terminals. So a character that YAML forbids, or that a terminal could obey or hide,
/// is written as its number.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            // The debug form of a visible character is the character itself.
            c if c == '\'' || c.escape_debug().len() == 1 => quoted.push(c),
            c if u32::from(c) > 0xffff => _ = write!(quoted, "\\U{:08x}", u32::from(c)),
            c => _ = write!(quoted, "\\u{:04x}", u32::from(c)),
        }
    }
    quoted + "\""
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RulesFile;

    fn parsed(text: &str) -> Rules {
        let file = RulesFile { name: "a.yaml".into(), text: text.into() };
        Rules::parse(&[file]).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Makes a rule with this domain, key, value and name, and checks that the suggestion for it is the same rule.
    fn assert_same_rule(texts: [&str; 4]) {
        let [domain, key, value, name] = texts.map(quoted);
        let limit = format!("{{unit: minute, requests_per_unit: 5, name: {name}}}");
        let rules =
            parsed(&format!("domain: {domain}\ndescriptors: [{{key: {key}, value: {value}, rate_limit: {limit}}}]"));
        let rule = rules.rules().next().expect("there is a rule");
        assert_eq!([&*rule.domain, &*rule.steps[0].key, rule.steps[0].value.as_deref().unwrap_or("")], texts[..3]);
        let suggested = Suggestion::new(7, None).to_yaml(rule, &rule.limits[0]);
        let hidden = |c| matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}');
        let shown = |c: char| c == '\n' || !c.is_control() && !hidden(c);
        assert!(suggested.chars().all(shown), "{suggested:?}");
        let again = parsed(&suggested);
        let again = again.rules().next().expect("there is a rule");
        assert_eq!(
            (&rule.domain, &rule.path, &rule.limits[0].name),
            (&again.domain, &again.path, &again.limits[0].name)
        );
        assert_eq!(again.limits[0].quota.limit(), 7);
    }

    #[test]
    fn a_suggestion_is_the_same_rule_whatever_its_texts_contain() {
        for text in [
            "\u{fffe}",
            "\u{ffff}",
            "\u{feff}",
            "a\"b\\c'",
            "\u{1b}[2J",
            "a\nb",
            "\t",
            "\u{85}",
            "\u{2028}",
            "\u{202e}",
            "\u{7f}",
            "\u{e0041}",
            "\u{10ffff}",
            "e\u{301}",
            "{x}: - #",
            "yes",
            "~",
            "0x10",
            "caf\u{e9} \u{1f600}",
        ] {
            assert_same_rule([text, text, &format!("v{text}"), text]);
        }
    }

    #[test]
    fn characters_of_every_kind_can_be_in_a_suggestion() {
        // Many characters share a rule, so that the test is fast. The star is left out, because it would make the text
        // a wildcard.
        let all: Vec<char> = ('\0'..='\u{ffff}').chain('\u{e0000}'..='\u{e01ff}').filter(|c| *c != '*').collect();
        for part in all.chunks(200) {
            let text: String = part.iter().collect();
            let text = format!("a{text}z");
            assert_same_rule(["d", "k", &text, "n"]);
        }
    }

    #[test]
    fn a_suggestion_keeps_the_algorithm_and_the_queue() {
        for (options, capacity) in [
            ("algorithm: leaky_bucket, queue: 7", 8),
            ("algorithm: fixed_window", 9),
            ("algorithm: sliding_window_log", 9),
            ("algorithm: sliding_window_counter", 9),
            ("algorithm: token_bucket", 9),
        ] {
            let text = format!(
                "domain: a\ndescriptors: [{{key: \"u\\ufffe\", rate_limit: {{unit: minute, requests_per_unit: 5, {options}}}}}]"
            );
            let rules = parsed(&text);
            let rule = rules.rules().next().expect("there is a rule");
            let suggested = parsed(&Suggestion::new(9, None).to_yaml(rule, &rule.limits[0]));
            let suggested = suggested.rules().next().expect("there is a rule");
            let quota = &suggested.limits[0].quota;
            assert_eq!(suggested.path, rule.path);
            assert_eq!(quota.algorithm(), rule.limits[0].quota.algorithm());
            assert_eq!((quota.limit(), quota.capacity()), (9, capacity), "{options}");
        }
    }
}
