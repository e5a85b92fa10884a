//! Finds a rule by any name that a command prints for it or for one of its limits.

use serde::Deserialize;
use spillgate::rules::LimitDescription;

use crate::command::terminal::clean;

/// The answer of `GET /rules`.
#[derive(Deserialize)]
pub(super) struct Rules {
    pub(super) rules: Vec<Rule>,
}

#[derive(Deserialize)]
pub(super) struct Rule {
    pub(super) domain: String,
    pub(super) rule: String,
    pub(super) limits: Vec<LimitDescription>,
}

impl Rule {
    pub(super) fn named(&self) -> NamedRule<'_> {
        let labels = self.limits.iter().map(LimitDescription::label).collect();
        NamedRule { domain: &self.domain, path: &self.rule, labels }
    }
}

/// A rule with the labels of its limits.
pub(in crate::command) struct NamedRule<'a> {
    pub(in crate::command) domain: &'a str,
    pub(in crate::command) path: &'a str,
    pub(in crate::command) labels: Vec<String>,
}

impl NamedRule<'_> {
    /// Returns whether `name` is a name of the rule: `user_id`, `api: user_id`, one of these with a limit of the rule, as insight
    /// and explain print it, or only the limit.
    pub(in crate::command) fn has_name(&self, name: &str) -> bool {
        // A name that was printed has no special characters, even if the path has some.
        let (name, path) = (clean(name), self.path);
        let full = format!("{}: {path}", self.domain);
        let of_limit = |label: &String| [format!("{full}, limit {label}"), format!("{label} ({path})"), label.clone()];
        let names = [path.to_owned(), full.clone()].into_iter().chain(self.labels.iter().flat_map(of_limit));
        names.into_iter().any(|known| clean(&known) == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_has_all_names_that_commands_print() {
        let rule =
            NamedRule { domain: "api", path: "a: \u{1b} > b", labels: vec!["per_user".into(), "5 per day".into()] };
        for name in ["a: \u{1b} > b", "api: a: \u{1b} > b"] {
            assert!(rule.has_name(name) && rule.has_name(&clean(name)), "{name}");
        }
        for limit in ["per_user", "5 per day"] {
            assert!(rule.has_name(&format!("api: a: \u{1b} > b, limit {limit}")), "{limit}");
            assert!(rule.has_name(&format!("{limit} (a: \u{1b} > b)")) && rule.has_name(limit), "{limit}");
        }
        for other in ["", "api", "b", "web: a: \u{1b} > b", "api: a: \u{1b} > b, limit", "per_use"] {
            assert!(!rule.has_name(other), "{other}");
        }
    }
}
