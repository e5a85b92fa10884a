//! A suggestion as a rules file, which `spillgate validate` accepts.
//!
//! The file has only the rule with the suggested numbers. Its other options stay in the user's own file.

use std::fmt::Write as _;
use std::time::Duration;

use spillgate_core::Algorithm;

use super::Suggestion;
use crate::rules::{Limit, Rule};
use crate::units::format_duration;

impl Suggestion {
    /// Returns the suggestion for `limit` of `rule` as the text of a rules file.
    ///
    /// ```
    /// use spillgate::insight::Suggestion;
    /// use spillgate::rules::{Rules, RulesFile};
    /// let text = "domain: api\ndescriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 5}}]";
    /// let rules = Rules::parse(&[RulesFile { name: "api.yaml".into(), text: text.into() }])?;
    /// let rule = rules.rules().next().unwrap();
    /// let text = Suggestion::new(5, Some(20)).to_yaml(rule, &rule.limits[0]);
    /// let suggested = Rules::parse(&[RulesFile { name: "suggested.yaml".into(), text }])?;
    /// assert_eq!(suggested.rules().next().unwrap().limits[0].quota.capacity(), 20);
    /// # Ok::<(), spillgate::rules::RulesErrors>(())
    /// ```
    #[must_use]
    pub fn to_yaml(&self, rule: &Rule, limit: &Limit) -> String {
        let mut text = format!("domain: {}\ndescriptors:\n", quoted(&rule.domain));
        let mut indent = 2;
        for (level, step) in rule.steps.iter().enumerate() {
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
        for (option, value) in self.options(limit) {
            let _ = writeln!(text, "{:indent$}  {option}: {value}", "");
        }
        text
    }

    fn options(&self, limit: &Limit) -> Vec<(&'static str, String)> {
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
        options.push(("requests_per_unit", self.limit.to_string()));
        if let Some(burst) = self.burst {
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
}

/// Returns the text in quotes, so that YAML reads it as a text whatever it contains.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}') => {
                let _ = write!(quoted, "\\u{:04x}", c as u32);
            }
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

#[cfg(test)]
mod tests {
    use crate::rules::{Rules, RulesFile};

    use super::*;

    fn parsed(text: &str) -> Rules {
        Rules::parse(&[RulesFile { name: "rules.yaml".into(), text: text.into() }]).expect("the rules are valid")
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
