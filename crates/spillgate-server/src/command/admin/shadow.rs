//! `spillgate shadow` and `spillgate shadows`: let a rule refuse nothing for a time, and list such rules.

use serde::Deserialize;
use serde_json::json;
use spillgate::rules::LimitDescription;
use spillgate::text::nearest;

use super::answer::{Failure, Server, usage};
use super::rule_name::{NamedRule, Rule, Rules};
use super::{add, check_lasts, copy_line};
use crate::cli::RuleName;
use crate::command::explained::{left, scope_words};
use crate::command::terminal::{EXIT_DENIED, Problem, Table, Terminal, Tone, clean, count};

/// The list of the switches.
#[derive(Deserialize)]
pub(super) struct Shadows {
    scope_default: String,
    read_ms_ago: Option<u64>,
    all: Option<Switch>,
    rules: Vec<SwitchedRule>,
    by_file: Vec<ShadowedRule>,
    by_file_left_out: usize,
    by_server: bool,
}

/// A rule that is in shadow by its file.
#[derive(Deserialize)]
struct ShadowedRule {
    domain: String,
    path: String,
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
        return format!("no shadow switch is on\n{}{copy}", page.without_switch());
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
    table.text(true, terminal) + &page.without_switch() + &copy
}

impl Shadows {
    /// Returns the lines about what is in shadow although no switch is on for it.
    fn without_switch(&self) -> String {
        let mut text = String::new();
        if !self.by_file.is_empty() {
            let names: Vec<_> = self.by_file.iter().map(|rule| format!("{}: {}", rule.domain, rule.path)).collect();
            let more = match self.by_file_left_out {
                0 => String::new(),
                more => format!("; and {}", count(more, "more rule")),
            };
            text.push_str(&format!("in shadow by their files: {}{more}\n", clean(&names.join("; "))));
        }
        if self.by_server {
            text.push_str("in shadow by the setting `shadow` of this server: all rules\n");
        }
        text
    }
}

#[derive(Deserialize)]
struct Shadowed {
    shadow: Shadow,
}

#[derive(Deserialize)]
struct Shadow {
    scopes: Vec<String>,
    ends_in_ms: Option<u64>,
    also: Vec<Also>,
}

/// What keeps the rule in shadow beside the switch that was changed.
#[derive(Deserialize)]
struct Also {
    by: String,
    scope: Option<String>,
    ends_in_ms: Option<u64>,
}

impl Also {
    fn words(&self) -> String {
        let (scope, time) = (self.scope.as_deref().map_or("", scope_words), left(self.ends_in_ms.unwrap_or(0)));
        match &*self.by {
            "server" => "this server has the setting `shadow: true`".to_owned(),
            "file" => "its file says `shadow_mode: true`".to_owned(),
            "all" => format!("a switch for all rules is on for {time}, {scope}"),
            _ => format!("another switch of the rule is on for {time}, {scope}"),
        }
    }
}

pub(super) fn run(
    server: &Server,
    rule: &RuleName,
    (is_on, lasts, scope): (bool, &Option<String>, &Option<String>),
    terminal: &mut Terminal,
) -> Result<(), Failure> {
    lasts.as_deref().map_or(Ok(()), check_lasts)?;
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
    let (they, s) = if matches!(rule, RuleName::All) { ("they", "") } else { ("it", "s") };
    server.print(&answer, terminal, |Shadowed { shadow }: &Shadowed| {
        let scopes: Vec<_> = shadow.scopes.iter().map(|scope| scope_words(scope)).collect();
        let scopes = scopes.join(" and ");
        let (done, also) = match shadow.ends_in_ms {
            Some(ms) => (
                format!("{name} count{s}, but refuse{s} nothing for {}, {scopes}", left(ms)),
                "also without this switch".to_owned(),
            ),
            None => {
                (format!("the shadow switch of {name} has ended, {scopes}"), format!("{they} still refuse{s} nothing"))
            }
        };
        let reasons: Vec<_> = shadow.also.iter().map(Also::words).collect();
        let also = (!reasons.is_empty()).then(|| format!("{also}: {}", reasons.join("; ")));
        [Some(done), also].into_iter().flatten().collect()
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
