//! Whether a server can serve rules as its settings say.

use spillgate::rules::{Rule, RuleStep, Rules, Unreleased};

use super::load::{self, Problems, Trouble};
use super::store;
use crate::settings::{EntrySource, Settings, ValueSource, nearest};

/// What an error lists of what there is.
const LISTED: usize = 5;

/// Everything that is wrong between rules and settings, so that no such rules are put in force.
pub(super) fn check(settings: &Settings, rules: &Rules) -> Result<(), Problems> {
    let mut found = store::unserved_by_server(settings, rules);
    found.extend(unlimited_forward_auth(settings, rules));
    load::problems(found)
}

/// What forward-auth asks and nothing limits: every request passes there, and nothing says so.
fn unlimited_forward_auth(settings: &Settings, rules: &Rules) -> Vec<Trouble> {
    let auth = &settings.forward_auth;
    let Some(domain) = &auth.domain else { return Vec::new() };
    if !rules.has_domain(domain) {
        let message = format!("no rules file has the domain `{domain}`, which `forward_auth.domain` asks");
        let help = meant(domain, rules.domains().map(|domain| domain.name.to_string()), "the domains are");
        return vec![Trouble::new(message, help)];
    }
    let limiting =
        || rules.rules().filter(|rule| *rule.domain == **domain && (rule.unlimited || !rule.limits.is_empty()));
    let unlimited = auth.descriptors.iter().filter(|entries| !limiting().any(|rule| fits(rule, entries)));
    let trouble = unlimited.map(|entries| {
        let path = entries.iter().map(written).collect::<Vec<_>>().join(" > ");
        let message = format!("no rule of domain `{domain}` limits `{path}`, which `forward_auth.descriptors` asks");
        let help = meant(&path, limiting().map(|rule| rule.path.to_string()), "the rules of this domain limit");
        Trouble::new(message, help + "; to let it pass, write a rule for it with `rate_limit: {unlimited: true}`")
    });
    trouble.collect()
}

/// Where the permits of a rule's concurrency limit are taken: a lease is released over HTTP alone.
pub(super) fn unreleased(settings: &Settings, rule: &Rule) -> Unreleased {
    let auth = &settings.forward_auth;
    let by_forward_auth =
        auth.domain.as_deref() == Some(&*rule.domain) && auth.descriptors.iter().any(|entries| fits(rule, entries));
    match (settings.http.is_some(), settings.grpc.is_some()) {
        (true, _) if by_forward_auth => Unreleased::Always,
        (false, true) => Unreleased::Always,
        (true, true) => Unreleased::Sometimes,
        (_, false) => Unreleased::Never,
    }
}

/// Whether some request can have these entries and match the rule.
fn fits(rule: &Rule, entries: &[EntrySource]) -> bool {
    let fits = |(step, entry): (&RuleStep, &EntrySource)| {
        let value = match &entry.from {
            ValueSource::Value(text) => step.fits(text),
            ValueSource::ClientIp | ValueSource::Header(_) => true,
        };
        value && *step.key == *entry.key
    };
    rule.steps.len() == entries.len() && rule.steps.iter().zip(entries).all(fits)
}

/// An entry as in the path of a rule.
fn written(entry: &EntrySource) -> String {
    match &entry.from {
        ValueSource::Value(text) => format!("{}={text}", entry.key),
        ValueSource::ClientIp | ValueSource::Header(_) => entry.key.clone(),
    }
}

/// What was probably meant, or what there is.
fn meant(written: &str, known: impl Iterator<Item = String>, there_is: &str) -> String {
    let mut known: Vec<_> = known.collect();
    known.sort();
    known.dedup();
    if let Some(near) = nearest(written, known.iter().map(String::as_str)) {
        return format!("did you mean `{near}`?");
    }
    let more = if known.len() > LISTED { ", ..." } else { "" };
    known.truncate(LISTED);
    match known.is_empty() {
        true => format!("{there_is}: nothing"),
        false => format!("{there_is}: {}{more}", known.join(", ")),
    }
}
