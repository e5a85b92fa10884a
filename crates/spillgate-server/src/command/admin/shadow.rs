//! `spillgate shadow` and `spillgate shadows`: let a rule refuse nothing for a time, and list such rules.

use serde::Deserialize;
use serde_json::json;
use spillgate::rules::LimitDescription;
use spillgate::text::nearest;

use super::answer::{Failure, Server, usage};
use super::rule_name::{NamedRule, Rule, Rules};
use super::{add, copy_line};
use crate::cli::RuleName;
use crate::command::explained::{left, scope_words};
use crate::command::terminal::{EXIT_DENIED, Problem, Table, Terminal, Tone, clean};

/// The list of the switches.
#[derive(Deserialize)]
pub(super) struct Shadows {
    scope_default: String,
    read_ms_ago: Option<u64>,
    all: Option<Switch>,
    rules: Vec<SwitchedRule>,
}

#[derive(Deserialize)]
struct Switch {
    scope: String,
    ends_in_ms: u64,
}

#[derive(Deserialize)]
struct SwitchedRule {
    domain: String,
    path: String,
    #[serde(flatten)]
    switch: Switch,
}

pub(super) fn list(page: &Shadows, terminal: &Terminal) -> String {
    let of_rules = page.rules.iter().map(|rule| (format!("{}: {}", rule.domain, rule.path), &rule.switch));
    let all = page.all.iter().map(|switch| ("all rules".to_owned(), switch));
    let rows: Vec<_> = all.chain(of_rules).collect();
    let copy = copy_line(&page.scope_default, page.read_ms_ago);
    if rows.is_empty() {
        return format!("no rule was put into shadow\n{copy}");
    }
    let mut table = Table::new(0);
    table.row(["rule", "where", "time left"].map(|title| (Tone::Faint, title.to_owned())));
    for (rule, switch) in rows {
        let place = if switch.scope == "fleet" { "all servers" } else { "this server" };
        table.row([
            (Tone::Title, clean(&rule)),
            (Tone::Plain, place.to_owned()),
            (Tone::Plain, left(switch.ends_in_ms)),
        ]);
    }
    table.text(true, terminal) + &copy
}

#[derive(Deserialize)]
struct Shadowed {
    shadow: Shadow,
}

#[derive(Deserialize)]
struct Shadow {
    scopes: Vec<String>,
    ends_in_ms: Option<u64>,
}

pub(super) fn run(
    server: &Server,
    rule: &RuleName,
    (is_on, lasts, scope): (bool, &Option<String>, &Option<String>),
    terminal: &mut Terminal,
) -> Result<(), Failure> {
    let (of, name) = match rule {
        RuleName::All => (json!("all"), "all rules".to_owned()),
        RuleName::One { name, domain } => {
            let (domain, path) = find(server, (name, domain.as_deref()), is_on, terminal)?;
            let name = format!("the rule {domain}: {path}");
            (json!({"domain": domain, "path": path}), name)
        }
    };
    let mut body = json!({"rule": of, "on": is_on});
    add(&mut body, [("for", lasts), ("scope", scope)]);
    let answer = server.post("/shadow", &body, terminal)?;
    let s = if matches!(rule, RuleName::All) { "" } else { "s" };
    server.print(&answer, terminal, |Shadowed { shadow }: &Shadowed| {
        let scopes: Vec<_> = shadow.scopes.iter().map(|scope| scope_words(scope)).collect();
        let scopes = scopes.join(" and ");
        match shadow.ends_in_ms {
            Some(ms) => format!("{name} count{s}, but refuse{s} nothing for {}, {scopes}", left(ms)),
            // Another switch, or `shadow_mode` of the rules file, can still stop the rule from refusing.
            None => format!("the shadow of {name} has ended, {scopes}"),
        }
    })
}

/// Returns the domain and the path of the only rule with this name.
fn find(
    server: &Server,
    (name, domain): (&str, Option<&str>),
    is_on: bool,
    terminal: &mut Terminal,
) -> Result<(String, String), Failure> {
    let answer = server.get("/rules", terminal)?;
    let Rules { rules } = server.parse(&answer)?;
    let mut found: Vec<_> = rules.iter().filter(|rule| rule.named().has_name(name)).collect();
    let several = |found: &[&Rule]| {
        let names: Vec<_> = found.iter().map(|rule| format!("{}: {}", rule.domain, rule.rule)).collect();
        let message = format!("several rules have the name `{name}`: {}", names.join("; "));
        usage(Problem::new(message, "write DOMAIN: PATH, or name the domain of the rule with --domain"))
    };
    found.retain(|rule| domain.is_none_or(|domain| rule.domain == domain));
    found.sort_by_key(|rule| (&rule.domain, &rule.rule));
    found.dedup_by_key(|rule| (&rule.domain, &rule.rule));
    if let [rule] = found[..] {
        return Ok((rule.domain.clone(), rule.rule.clone()));
    }
    // A path that is written in full is meant, even if it is also the name of a limit.
    let by_path: Vec<_> = found.iter().copied().filter(|rule| rule.rule == name).collect();
    if let [rule] = by_path[..] {
        return Ok((rule.domain.clone(), rule.rule.clone()));
    }
    if !found.is_empty() {
        return Err(several(&found));
    }
    // A switch can outlive its rule.
    if !is_on {
        let answer = server.get("/shadows", terminal)?;
        let page: Shadows = server.parse(&answer)?;
        let is_it = |rule: &&SwitchedRule| {
            let named = NamedRule { domain: &rule.domain, path: &rule.path, labels: Vec::new() };
            named.has_name(name) && domain.is_none_or(|domain| rule.domain == domain)
        };
        if let Some(rule) = page.rules.into_iter().find(|rule| is_it(&rule)) {
            return Ok((rule.domain, rule.path));
        }
    }
    let known = domain.is_none_or(|domain| rules.iter().any(|rule| rule.domain == domain));
    let help = match (known, domain) {
        (false, Some(domain)) => nearest(domain, rules.iter().map(|rule| &*rule.domain))
            .map(|near| format!("did you mean the domain `{}`?", clean(near))),
        _ => {
            let paths = rules.iter().flat_map(|rule| [rule.rule.clone(), format!("{}: {}", rule.domain, rule.rule)]);
            let labels = rules.iter().flat_map(|rule| rule.limits.iter().map(LimitDescription::label));
            let names: Vec<_> = paths.chain(labels).collect();
            nearest(name, names.iter().map(|name| &**name)).map(|near| format!("did you mean `{}`?", clean(near)))
        }
    };
    let help = help.unwrap_or_else(|| "`spillgate insight` shows the names of all rules with limits".to_owned());
    let of = domain.map(|domain| format!(" of the domain `{domain}`")).unwrap_or_default();
    Err((Problem::new(format!("no rule{of} has the name `{name}`"), help).into(), EXIT_DENIED))
}
