//! `spillgate block`, `spillgate unblock` and `spillgate blocks`: refuse all requests with one value for a time.

use serde::Deserialize;
use serde_json::json;
use spillgate::rules::path_keys;
use spillgate::text::nearest;

use super::answer::{Failure, Server};
use super::rule_name::Rules;
use super::{add, check_lasts, copy_line};
use crate::cli::BlockedEntry;
use crate::command::explained::{left, scope_words, where_words};
use crate::command::terminal::{EXIT_USAGE, Problem, Table, Terminal, Tone, clean, count, thousands};

#[derive(Deserialize)]
struct Blocked {
    block: Entry,
    replaced: Option<Entry>,
    scope: String,
}

/// The list of the blocks.
#[derive(Deserialize)]
pub(super) struct Blocks {
    scope: String,
    read_ms_ago: Option<u64>,
    unreadable: usize,
    max: usize,
    blocks: Vec<Entry>,
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

impl Entry {
    /// Says which block a new one has replaced. The count of the new one begins at zero.
    fn replaced(&self) -> String {
        let Entry { ends_in_ms, reason, refused, .. } = self;
        let requests = count(usize::try_from(*refused).unwrap_or(usize::MAX), "request");
        let reason = reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
        let time = left(*ends_in_ms);
        format!(
            "it replaces a block that had {time} left{reason}. This server has refused {requests} because of that one"
        )
    }
}

/// A block that an operator asks for.
pub(super) struct NewBlock<'a> {
    pub(super) entry: &'a BlockedEntry,
    pub(super) lasts: &'a str,
    pub(super) domain: &'a Option<String>,
    pub(super) reason: &'a Option<String>,
    pub(super) allows_unmatched: bool,
}

impl NewBlock<'_> {
    pub(super) fn run(&self, server: &Server, terminal: &mut Terminal) -> Result<(), Failure> {
        let NewBlock { lasts, domain, reason, .. } = self;
        check_lasts(lasts)?;
        let mut body = match self.entry {
            BlockedEntry::Entry((key, value)) => {
                if !self.allows_unmatched {
                    check_names(server, key, domain.as_deref(), terminal)?;
                }
                json!({"key": key, "value": value, "for": lasts})
            }
            // The server finds the key of a hash, so it is no misspelt name.
            BlockedEntry::Hash { hash, .. } => json!({"hash": hash, "for": lasts}),
        };
        if let BlockedEntry::Hash { key, .. } = self.entry {
            add(&mut body, [("key", key)]);
        }
        add(&mut body, [("domain", domain), ("reason", reason)]);
        let answer = server.seek("/block", body.to_string(), terminal)?;
        server.print(&answer, terminal, |Blocked { block, replaced, scope }: &Blocked| {
            let Entry { key, value, domain, ends_in_ms, .. } = block;
            let (place, time) = (where_words(domain.as_deref()), left(*ends_in_ms));
            let now = format!("{key}={value} is blocked {place} for {time}, {}", scope_words(scope));
            [Some(now), replaced.as_ref().map(Entry::replaced)].into_iter().flatten().collect()
        })
    }
}

#[derive(Deserialize)]
struct Unblocked {
    unblocked: usize,
    refused: u64,
}

pub(super) fn unblock(
    server: &Server,
    (key, value): (&str, &str),
    domain: &Option<String>,
    terminal: &mut Terminal,
) -> Result<(), Failure> {
    let mut body = json!({"key": key, "value": value});
    add(&mut body, [("domain", domain)]);
    let answer = server.post("/unblock", &body, terminal)?;
    server.print(&answer, terminal, |Unblocked { unblocked, refused }: &Unblocked| {
        // Another block can still refuse the entry: a block in all domains if this one was of one domain.
        let ended = match domain {
            Some(domain) => format!("the block of {key}={value} in the domain {domain} has ended"),
            None if *unblocked == 1 => format!("the block of {key}={value} has ended"),
            None => format!("{} of {key}={value} have ended", count(*unblocked, "block")),
        };
        let refused = count(usize::try_from(*refused).unwrap_or(usize::MAX), "request");
        let them = if *unblocked == 1 { "it" } else { "them" };
        vec![format!("{ended}. This server has refused {refused} because of {them}")]
    })
}

pub(super) fn list(page: &Blocks, terminal: &Terminal) -> String {
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

/// Fails if no rule has the key or the domain of a block, because it is probably misspelt. A block needs no rule, so
/// `--allow-unmatched` makes it without this check.
fn check_names(server: &Server, key: &str, domain: Option<&str>, terminal: &mut Terminal) -> Result<(), Failure> {
    let answer = server.get("/rules", terminal)?;
    let Rules { rules } = server.parse(&answer)?;
    let of_domain: Vec<_> = rules.iter().filter(|rule| domain.is_none_or(|domain| rule.domain == domain)).collect();
    let keys: Vec<String> = of_domain.iter().flat_map(|rule| path_keys(&rule.rule)).collect();
    // A wildcard in a key can be any key.
    let (what, near) = match domain {
        Some(domain) if of_domain.is_empty() => {
            (format!("domain `{domain}`"), nearest(domain, rules.iter().map(|rule| &*rule.domain)))
        }
        _ if keys.iter().any(|known| known == key || known.contains('*')) => return Ok(()),
        _ => (format!("key `{key}`"), nearest(key, keys.iter().map(String::as_str))),
    };
    let near = near.map(|near| format!("did you mean `{}`? ", clean(near))).unwrap_or_default();
    let help = format!("{near}If requests have it although no rule does, add --allow-unmatched");
    Err((Problem::new(format!("no rule has the {what}, so nothing was blocked"), help).into(), EXIT_USAGE))
}
