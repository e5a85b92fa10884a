//! Finds a rule by any name that a command prints for it or for one of its limits.

use serde::Deserialize;
use spillgate::rules::LimitDescription;
use spillgate::text::nearest;

use crate::command::terminal::{Problem, clean};

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
    /// and explain print it, or only the limit, with or without the domain.
    pub(in crate::command) fn has_name(&self, name: &str) -> bool {
        // A name that was printed has no special characters, even if the path has some.
        let (name, path) = (clean(name), self.path);
        let full = format!("{}: {path}", self.domain);
        let of_limit = |label: &String| {
            let of_domain = format!("{}: {label}", self.domain);
            [format!("{full}, limit {label}"), format!("{label} ({path})"), label.clone(), of_domain]
        };
        let names = [path.to_owned(), full.clone()].into_iter().chain(self.labels.iter().flat_map(of_limit));
        names.into_iter().any(|known| clean(&known) == name)
    }
}

/// Returns the items of a rule and of a domain that the command line names. Without any, returns all. `limit_of` is the limit
/// that an item is about. Fails if no item has the name; `all` is the command that shows all names.
pub(in crate::command) fn chosen<T>(
    items: Vec<T>,
    limit_of: impl Fn(&T) -> &LimitDescription,
    (rule, domain): (Option<&str>, Option<&str>),
    all: &str,
) -> Result<Vec<T>, Problem> {
    let asked = match (rule, domain) {
        (None, None) => return Ok(items),
        (Some(name), None) => format!("the name `{name}`"),
        (None, Some(domain)) => format!("the domain `{domain}`"),
        (Some(name), Some(domain)) => format!("the name `{name}` and the domain `{domain}`"),
    };
    let names = |limit: &LimitDescription| [limit.rule.clone(), limit.rule_name(), limit.label()];
    let names: Vec<_> = items.iter().flat_map(|item| names(limit_of(item))).collect();
    let is_chosen = |item: &T| {
        let limit = limit_of(item);
        let named = NamedRule { domain: &limit.domain, path: &limit.rule, labels: vec![limit.label()] };
        domain.is_none_or(|domain| *domain == limit.domain) && rule.is_none_or(|name| named.has_name(name))
    };
    let chosen: Vec<_> = items.into_iter().filter(is_chosen).collect();
    if !chosen.is_empty() {
        return Ok(chosen);
    }
    let near = rule.and_then(|name| nearest(name, names.iter().map(|name| &**name)));
    let help = near.map_or_else(
        || format!("`{all}` without a name shows all limits that are watched"),
        |near| format!("did you mean `{}`?", clean(near)),
    );
    Err(Problem::new(format!("no limit that is watched has {asked}"), help))
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
            assert!(rule.has_name(&format!("api: {limit}")) && !rule.has_name(&format!("web: {limit}")), "{limit}");
        }
        for other in ["", "api", "b", "web: a: \u{1b} > b", "api: a: \u{1b} > b, limit", "per_use"] {
            assert!(!rule.has_name(other), "{other}");
        }
    }
}
