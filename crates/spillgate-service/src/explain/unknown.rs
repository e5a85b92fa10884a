//! Names in a request that no rule has: its domain, or keys of its entries.
//!
//! Such a request passes, because no limit applies to it. If somebody asks about it, the name is probably misspelt.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use spillgate::rules::Rules;
use spillgate::text::nearest;

use super::Pairs;

/// If no name is similar to the unknown one, the help lists this many of the known names.
const NAMES_MAX: usize = 8;

/// A name that no rule has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnknownName {
    /// What is unknown.
    pub message: String,
    /// The most similar name, or the first of all known names.
    pub help: String,
}

/// The maximum number of rules that are named to somebody whose request matches no rule.
const RULES_MAX: usize = 50;

/// The rules with limits of a domain, for somebody whose request matches none of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownRules {
    /// The paths of the rules: the keys of each, in their order, such as `path=/login > remote_address`.
    pub paths: Vec<String>,
    /// How many further rules the domain has.
    pub left_out: usize,
}

impl KnownRules {
    /// Returns the rules with limits of the domain, or none if each descriptor matches a rule.
    pub(super) fn of(rules: &Rules, domain: &str, descriptors: &Pairs<'_>) -> KnownRules {
        let mut known = KnownRules::default();
        if descriptors.iter().all(|entries| rules.find(domain, entries).is_some()) {
            return known;
        }
        for rule in rules.rules().filter(|rule| &*rule.domain == domain && !rule.limits.is_empty()) {
            if known.paths.len() < RULES_MAX {
                known.paths.push(rule.path.to_string());
            } else {
                known.left_out += 1;
            }
        }
        known
    }
}

/// Returns the names in a request that no rule has. If the domain is unknown, its keys are not looked at. Keys are looked
/// at only in descriptors without a rule.
#[must_use]
pub fn unknown_names(rules: &Rules, domain: &str, descriptors: &Pairs<'_>) -> Vec<UnknownName> {
    if !rules.has_domain(domain) {
        let domains: BTreeSet<_> = rules.domains().map(|domain| &*domain.name).collect();
        return vec![unknown(format!("no rules file has the domain `{domain}`"), domain, &domains, "domains")];
    }
    let unmatched = descriptors.iter().filter(|entries| rules.find(domain, entries).is_none());
    unknown_keys(rules, Some(domain), unmatched.flatten().map(|(key, _)| *key))
}

/// Returns those of the keys that no rule of the domain has. Without a domain, the rules of all domains are searched.
#[must_use]
pub fn unknown_keys<'a>(rules: &Rules, domain: Option<&str>, keys: impl Iterator<Item = &'a str>) -> Vec<UnknownName> {
    let asked: BTreeSet<_> = keys.collect();
    if asked.is_empty() {
        return Vec::new();
    }
    let searched = rules.rules().filter(|rule| domain.is_none_or(|domain| &*rule.domain == domain));
    let steps: Vec<_> = searched.flat_map(|rule| &rule.steps).collect();
    let known: BTreeSet<_> = steps.iter().map(|step| &*step.key).collect();
    let missing = asked.into_iter().filter(|key| !steps.iter().any(|step| step.can_match(key)));
    let of_domain = domain.map(|domain| format!(" of the domain `{domain}`")).unwrap_or_default();
    let no_key = |key| unknown(format!("no rule{of_domain} has the key `{key}`"), key, &known, "keys");
    missing.map(no_key).collect()
}

fn unknown(message: String, name: &str, known: &BTreeSet<&str>, kind: &str) -> UnknownName {
    let help = match nearest(name, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None if known.is_empty() => format!("the rules have no {kind}"),
        None => {
            let named: Vec<_> = known.iter().take(NAMES_MAX).map(|name| format!("`{name}`")).collect();
            let more = if known.len() > NAMES_MAX { ", ..." } else { "" };
            format!("the {kind} are: {}{more}", named.join(", "))
        }
    };
    UnknownName { message, help }
}

#[cfg(test)]
mod tests {
    use spillgate::rules::RulesFile;

    use super::*;

    #[test]
    fn an_unknown_name_is_found_and_the_nearest_one_is_named() {
        let text = "domain: api\ndescriptors:\n- key: user_id\n  descriptors: [{key: path, value: /x, rate_limit: {unit: hour, limit: 1}}]\n- {key: 'tier_*', value: a}\n";
        let rules = Rules::parse(&[RulesFile { name: "api.yaml".into(), text: text.into() }]).expect("valid rules");
        let found = |domain: &str, descriptors: &[&[(&'static str, &'static str)]]| -> Vec<(String, String)> {
            let descriptors = descriptors.iter().map(|entries| entries.to_vec()).collect();
            unknown_names(&rules, domain, &descriptors).into_iter().map(|name| (name.message, name.help)).collect()
        };
        let one = |message: &str, help: &str| vec![(message.to_owned(), help.to_owned())];
        let no_key = "no rule of the domain `api` has the key `user`";
        assert_eq!(found("ap", &[&[("user", "7")]]), one("no rules file has the domain `ap`", "did you mean `api`?"));
        assert_eq!(found("web", &[]), one("no rules file has the domain `web`", "the domains are: `api`"));
        assert_eq!(found("api", &[&[("user", "7")]]), one(no_key, "the keys are: `path`, `tier_*`, `user_id`"));
        assert_eq!(found("api", &[&[("user_ id", "7"), ("path", "/x")]]).len(), 1);
        assert_eq!(found("api", &[&[("user_id", "7"), ("path", "/x")]]), []);
        assert_eq!(found("api", &[&[("user_id", "7"), ("path", "/y")]]), [], "its keys are known");
        assert_eq!(found("api", &[&[("tier_1", "b")]]), [], "a wildcard fits its key");
        let both = found("api", &[&[("a", "1"), ("user_id", "7")], &[("b", "1")], &[("a", "2")]]);
        assert_eq!(both.len(), 2, "each key once: {both:?}");
        let in_all: Vec<_> =
            unknown_keys(&rules, None, ["user_ip", "path", "tier_1"].into_iter()).into_iter().collect();
        assert_eq!(in_all.len(), 1, "{in_all:?}");
        assert_eq!(
            (&*in_all[0].message, &*in_all[0].help),
            ("no rule has the key `user_ip`", "did you mean `user_id`?")
        );
    }
}
