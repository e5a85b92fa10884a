//! The commands for operators. Each asks the admin listener of a running server, and prints its answer in the words of
//! the server's page.

mod answer;
mod caller;
pub(super) mod client;
mod reload;
mod top;

use serde::Deserialize;
use serde_json::{Value, json};
use spillgate::rules::path_keys;
use spillgate::text::nearest;

use super::explained::{Explanation, check_names, left, scope_words, where_words};
use super::terminal::{
    EXIT_DENIED, EXIT_OK, EXIT_UNAVAILABLE, EXIT_USAGE, Problem, Table, Terminal, Tone, clean, count, thousands,
};
use crate::cli::{Admin as Arguments, AdminAction, BlockedEntry, Entries, ExplainedRequest, RuleName};
use answer::{Failure, Server, usage};

pub(super) fn run(arguments: &Arguments, terminal: &mut Terminal) -> u8 {
    let done = Server::new(arguments).and_then(|server| act(&server, &arguments.action, terminal));
    done.unwrap_or_else(|(problems, code)| {
        problems.print(arguments.json, terminal);
        code
    })
}

fn act(server: &Server, action: &AdminAction, terminal: &mut Terminal) -> Result<u8, Failure> {
    match action {
        AdminAction::Block { entry, lasts, domain, reason } => {
            let mut body = match entry {
                BlockedEntry::Entry((key, value)) => json!({"key": key, "value": value, "for": lasts}),
                BlockedEntry::Hash { hash, .. } => json!({"hash": hash, "for": lasts}),
            };
            if let BlockedEntry::Hash { key, .. } = entry {
                add(&mut body, [("key", key)]);
            }
            add(&mut body, [("domain", domain), ("reason", reason)]);
            let answer = server.post("/block", &body, terminal)?;
            server.print(&answer, terminal, |blocked: &Blocked| {
                let Entry { key, value, domain, ends_in_ms, .. } = &blocked.block;
                let (place, left) = (where_words(domain.as_deref()), left(*ends_in_ms));
                format!("{key}={value} is blocked {place} for {left}, {}", scope_words(&blocked.scope))
            })?;
            // The server has found the key of a hash, so it is no misspelt name.
            if let BlockedEntry::Entry((key, _)) = entry
                && !server.prints_json()
            {
                note_unknown_names(server, key, domain.as_deref(), terminal);
            }
        }
        AdminAction::Unblock { entry: (key, value), domain } => {
            let mut body = json!({"key": key, "value": value});
            add(&mut body, [("domain", domain)]);
            let answer = server.post("/unblock", &body, terminal)?;
            // Another block can still refuse the entry: a block in all domains if this one was of one domain.
            server.print(&answer, terminal, |Unblocked { unblocked }: &Unblocked| match domain {
                Some(domain) => format!("the block of {key}={value} in the domain {domain} has ended"),
                None => format!("all blocks of {key}={value} have ended: {unblocked}"),
            })?;
        }
        AdminAction::Blocks => {
            let answer = server.get("/blocks", terminal)?;
            server.list(&answer, terminal, blocks)?;
        }
        AdminAction::Shadow { rule, is_on, lasts, scope } => shadow(server, rule, (*is_on, lasts, scope), terminal)?,
        AdminAction::Shadows => {
            let answer = server.get("/shadows", terminal)?;
            server.list(&answer, terminal, shadows)?;
        }
        AdminAction::Reset { domain, descriptors } => {
            let body = json!({"domain": domain, "descriptors": pairs(descriptors)});
            let answer = server.post("/reset", &body, terminal)?;
            server.print(&answer, terminal, |answer: &Value| {
                let limits = answer["reset"].as_u64().and_then(|limits| usize::try_from(limits).ok()).unwrap_or(0);
                format!("all its limits are full again: {}", count(limits, "limit"))
            })?;
        }
        AdminAction::Explain { request, cost, allows_unmatched } => {
            let body = match request {
                ExplainedRequest::Descriptors { domain, descriptors } => {
                    json!({"domain": domain, "descriptors": pairs(descriptors), "cost": cost}).to_string()
                }
                ExplainedRequest::Json(request) => request.clone(),
                ExplainedRequest::Hash(hash) => json!({"hash": hash, "cost": cost}).to_string(),
            };
            return explain(server, body, *allows_unmatched, terminal);
        }
        AdminAction::Caller { values, domain } => return caller::run(server, values, domain.as_deref(), terminal),
        AdminAction::Top => {
            let answer = server.get("/top", terminal)?;
            server.list(&answer, terminal, top::text)?;
        }
        AdminAction::Reload => return reload::run(server, terminal),
    }
    Ok(EXIT_OK)
}

/// Adds the members that have a value.
fn add<const N: usize>(body: &mut Value, members: [(&str, &Option<String>); N]) {
    for (name, value) in members {
        if let Some(value) = value {
            body[name] = json!(value);
        }
    }
}

/// Returns descriptors in the form that keeps the order of their entries.
fn pairs(descriptors: &[Entries]) -> Vec<&[(String, String)]> {
    descriptors.iter().map(|Entries(entries)| &entries[..]).collect()
}

#[derive(Deserialize)]
struct Blocked {
    block: Entry,
    scope: String,
}

#[derive(Deserialize)]
struct Unblocked {
    unblocked: u64,
}

#[derive(Deserialize)]
struct Blocks {
    scope: String,
    read_ms_ago: Option<u64>,
    unreadable: usize,
    max: usize,
    blocks: Vec<Entry>,
}

/// If the copy of the lists is older than this, the command says so. The page says it from the same age on.
const OLD_MS: u64 = 5_000;

/// Returns a line about a copy of the lists that may lack what is in the shared store.
fn copy_line(scope: &str, read_ms_ago: Option<u64>) -> String {
    match read_ms_ago {
        Some(age_ms) if age_ms > OLD_MS => format!("the shared store was last read {} ago\n", left(age_ms)),
        None if scope == "fleet" => {
            "the shared store was not read yet, so its blocks and switches are not known\n".to_owned()
        }
        _ => String::new(),
    }
}

/// A block.
#[derive(Deserialize)]
struct Entry {
    key: String,
    value: String,
    domain: Option<String>,
    ends_in_ms: u64,
    reason: Option<String>,
    refused: u64,
}

fn blocks(page: &Blocks, terminal: &Terminal) -> String {
    let mut rest = copy_line(&page.scope, page.read_ms_ago);
    if page.unreadable > 0 {
        let entries = page.unreadable;
        rest.push_str(&format!("entries of the lists in the shared store that cannot be read: {entries}\n"));
    }
    if page.blocks.is_empty() {
        return format!("no caller is blocked\n{rest}");
    }
    let mut table = Table::new(0);
    table.row(["entry", "where", "time left", "refused here", "reason"].map(|title| (Tone::Faint, title.to_owned())));
    for Entry { key, value, domain, ends_in_ms, reason, refused } in &page.blocks {
        table.row([
            (Tone::Title, clean(&format!("{key}={value}"))),
            (Tone::Plain, domain.as_ref().map_or_else(|| "all domains".to_owned(), |domain| clean(domain))),
            (Tone::Plain, left(*ends_in_ms)),
            (Tone::Plain, refused.to_string()),
            (Tone::Plain, clean(reason.as_deref().unwrap_or_default())),
        ]);
    }
    let (blocks, scope) = (count(page.blocks.len(), "block"), scope_words(&page.scope));
    format!("{}\n{blocks} of at most {}, {scope}\n{rest}", table.text(true, terminal), thousands(page.max))
}

#[derive(Deserialize)]
struct Shadows {
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

fn shadows(page: &Shadows, terminal: &Terminal) -> String {
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

fn shadow(
    server: &Server,
    rule: &RuleName,
    (is_on, lasts, scope): (bool, &Option<String>, &Option<String>),
    terminal: &mut Terminal,
) -> Result<(), Failure> {
    let (of, name) = match rule {
        RuleName::All => (json!("all"), "all rules".to_owned()),
        RuleName::One { path, domain } => {
            let domain = match domain {
                Some(domain) => domain.clone(),
                None => domain_of(server, path, terminal)?,
            };
            let name = format!("the rule {path} of the domain {domain}");
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

#[derive(Deserialize)]
struct Rules {
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
struct Rule {
    domain: String,
    rule: String,
}

/// Prints a note if no rule has the key or the domain of a block, because it is probably misspelt. A block needs no rule,
/// so this is no error, and neither is a server that does not answer: the block was made.
fn note_unknown_names(server: &Server, key: &str, domain: Option<&str>, terminal: &mut Terminal) {
    let rules = server.get("/rules", terminal).and_then(|answer| server.parse::<Rules>(&answer));
    let Ok(Rules { rules }) = rules else { return };
    let mut of_domain = rules.iter().filter(|rule| domain.is_none_or(|domain| rule.domain == domain)).peekable();
    let unknown = match domain {
        Some(domain) if of_domain.peek().is_none() => format!("domain {domain}"),
        _ if of_domain.any(|rule| rule.has_key(key)) => return,
        _ => format!("key {key}"),
    };
    terminal.complain(&clean(&format!("note: no rule has the {unknown}: check that requests have it")));
}

impl Rule {
    /// Returns whether an entry of the rule's path can have this key. A wildcard in a key can be any key.
    fn has_key(&self, key: &str) -> bool {
        path_keys(&self.rule).iter().any(|known| known == key || known.contains('*'))
    }
}

/// Returns the only domain that has a rule with this path.
fn domain_of(server: &Server, path: &str, terminal: &mut Terminal) -> Result<String, Failure> {
    let answer = server.get("/rules", terminal)?;
    let Rules { rules } = server.parse(&answer)?;
    let mut domains: Vec<_> = rules.iter().filter(|rule| rule.rule == path).map(|rule| &*rule.domain).collect();
    domains.sort_unstable();
    domains.dedup();
    match &domains[..] {
        [domain] => Ok((*domain).to_owned()),
        [] => {
            let help = match nearest(path, rules.iter().map(|rule| &*rule.rule)) {
                Some(near) => format!("did you mean `{}`?", clean(near)),
                None => "`spillgate insight` shows the paths of all rules with limits".to_owned(),
            };
            Err((Problem::new(format!("no rule has the path `{path}`"), help).into(), EXIT_DENIED))
        }
        several => {
            let message = format!("rules of several domains have the path `{path}`: {}", several.join(", "));
            Err(usage(Problem::new(message, "name the domain of the rule with --domain")))
        }
    }
}

fn explain(server: &Server, body: String, allows_unmatched: bool, terminal: &mut Terminal) -> Result<u8, Failure> {
    // That a caller cannot be found by its hash does not mean that its requests are refused.
    let unexplained = |(problems, code)| (problems, if code == EXIT_DENIED { EXIT_UNAVAILABLE } else { code });
    let answer = server.post_text("/explain", body, terminal).map_err(unexplained)?;
    let explanation: Explanation = server.parse(&answer)?;
    if !allows_unmatched {
        check_names(&explanation.unknown).map_err(|problems| (problems, EXIT_USAGE))?;
    }
    server.list(&answer, terminal, |explanation: &Explanation, terminal| {
        let (sentence, unknown) = (explanation.sentence(terminal), explanation.unknown_lines(terminal));
        let text = sentence + &unknown + &explanation.descriptors(terminal) + &explanation.known_lines();
        let is_decided = explanation.asked.iter().any(|asked| !asked.limits.is_empty());
        if is_decided { text + "\n" + &explanation.table(false, terminal) } else { text }
    })?;
    Ok(if explanation.asked.iter().all(|asked| asked.allowed) { EXIT_OK } else { EXIT_DENIED })
}
