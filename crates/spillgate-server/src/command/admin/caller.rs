//! `spillgate explain --caller`: lists all limits and all blocks that the values of a caller touch, each with its state.

use serde::Deserialize;
use serde_json::json;
use spillgate::Binding;
use spillgate::rules::LimitDescription;
use spillgate_service::explain::UnknownName;

use super::answer::{Failure, Server};
use crate::cli::CallerValue;
use crate::command::explained::{Block, check_names, nanos};
use crate::command::terminal::{EXIT_DENIED, EXIT_OK, EXIT_USAGE, Table, Terminal, Tone, clean, count};

#[derive(Deserialize)]
struct Caller {
    blocks: Vec<Block>,
    blocks_left_out: usize,
    limits: Vec<Limit>,
    limits_left_out: usize,
    unused_left_out: usize,
    shared: Vec<Limit>,
    shared_left_out: usize,
    unread: Vec<Unread>,
    unread_left_out: usize,
    unknown: Vec<UnknownName>,
}

#[derive(Deserialize)]
struct Limit {
    limit: LimitDescription,
    entries: Vec<(String, String)>,
    shared: bool,
    binding: String,
    capacity: u64,
    used: u64,
    remaining: u64,
    reset_after_ns: u64,
    allowed: bool,
    retry_after_ns: Option<u64>,
}

#[derive(Deserialize)]
struct Unread {
    domain: String,
    rule: String,
    missing: Vec<String>,
}

pub(super) fn run(
    server: &Server,
    (values, domain): (&[CallerValue], Option<&str>),
    allows_unmatched: bool,
    terminal: &mut Terminal,
) -> Result<u8, Failure> {
    let value = |CallerValue { key, value }: &CallerValue| match key {
        Some(key) => json!({"key": key, "value": value}),
        None => json!({"value": value}),
    };
    let mut body = json!({"values": values.iter().map(value).collect::<Vec<_>>()});
    if let Some(domain) = domain {
        body["domain"] = json!(domain);
    }
    let answer = server.post("/caller", &body, terminal)?;
    let caller: Caller = server.parse(&answer)?;
    if !allows_unmatched {
        check_names(&caller.unknown).map_err(|problems| (problems, EXIT_USAGE))?;
    }
    server.list(&answer, terminal, text)?;
    Ok(if caller.is_refused() { EXIT_DENIED } else { EXIT_OK })
}

fn text(caller: &Caller, terminal: &Terminal) -> String {
    let mut text = caller.sentence(terminal) + "\n";
    for block in &caller.blocks {
        text.push_str(&format!("  {}\n", terminal.paint(Tone::Bad, &block.text())));
    }
    left_out(&mut text, caller.blocks_left_out, "more block");
    if !caller.limits.is_empty() {
        text.push('\n');
        text.push_str(&table("caller", &caller.limits, terminal));
    }
    left_out(&mut text, caller.limits_left_out, "more limit");
    for limit in caller.limits.iter().filter(|limit| limit.shared) {
        text.push_str(&format!("  all callers share {}\n", clean(&limit.limit.full_name())));
    }
    if caller.unused_left_out > 0 {
        let unused = count(caller.unused_left_out, "unused limit");
        text.push_str(&format!(
            "\nleft out: {unused}, because a value without a key can be that of any key. KEY=VALUE lists the limits of a key\n"
        ));
    }
    if !caller.shared.is_empty() {
        text.push_str("\nlimits that all callers share, if their requests have these entries:\n");
        text.push_str(&table("entries", &caller.shared, terminal));
    }
    left_out(&mut text, caller.shared_left_out, "more shared limit");
    if !caller.unread.is_empty() {
        text.push_str("\nnot read, because a value is missing:\n");
    }
    for Unread { domain, rule, missing } in &caller.unread {
        let missing: Vec<_> = missing.iter().map(|key| format!("{key}=...")).collect();
        text.push_str(&clean(&format!("  {domain}: {rule} needs {}", missing.join(" and "))));
        text.push('\n');
    }
    left_out(&mut text, caller.unread_left_out, "more rule");
    text.push_str("\nnot searched: limits of further values of this caller. Add each value with --caller\n");
    text
}

fn left_out(text: &mut String, left_out: usize, what: &str) {
    if left_out > 0 {
        text.push_str(&format!("  and {}\n", count(left_out, what)));
    }
}

impl Caller {
    fn is_refused(&self) -> bool {
        !self.blocks.is_empty() || self.limits.iter().any(Limit::refuses)
    }

    fn sentence(&self, terminal: &Terminal) -> String {
        let refusing = self.limits.iter().filter(|limit| limit.refuses()).count();
        let shared = self.shared.iter().filter(|limit| limit.refuses()).count();
        let by = match (self.blocks.len(), refusing) {
            (0, 0) if shared > 0 => {
                let shared = count(shared, "shared limit");
                return terminal.paint(Tone::Warn, &format!("Nothing with these values refuses now, but {shared} may"));
            }
            (0, 0) if self.limits.is_empty() && self.unused_left_out > 0 => {
                let unused = count(self.unused_left_out, "limit");
                return terminal.paint(
                    Tone::Good,
                    &format!("No block has these values, and they have used nothing of {unused} now"),
                );
            }
            (0, 0) if self.limits.is_empty() => {
                return terminal.paint(Tone::Warn, "No limit and no block has these values");
            }
            (0, 0) => return terminal.paint(Tone::Good, "Nothing refuses this caller now"),
            (blocks, 0) => count(blocks, "block"),
            (0, limits) => count(limits, "limit"),
            (blocks, limits) => format!("{} and {}", count(blocks, "block"), count(limits, "limit")),
        };
        terminal.paint(Tone::Bad, &format!("Refused now by {by}"))
    }
}

/// Returns a table of limits. `who` is the title of the column with the entries that choose each counter.
fn table(who: &str, limits: &[Limit], terminal: &Terminal) -> String {
    let mut table = Table::new(0);
    let titles = ["limit", who, "used", "left", "refuses for", "all free in"];
    table.row(titles.map(|title| (Tone::Faint, title.to_owned())));
    for limit in limits {
        let entries: Vec<_> = limit.entries.iter().map(|(key, value)| format!("{key}={value}")).collect();
        table.row([
            (Tone::Plain, clean(&limit.limit.full_name())),
            (Tone::Title, clean(&entries.join(", "))),
            (Tone::Plain, format!("{} of {}", limit.used, limit.capacity)),
            (Tone::Plain, limit.remaining.to_string()),
            limit.refusal(),
            (Tone::Plain, if limit.used == 0 { "-".to_owned() } else { nanos(limit.reset_after_ns) }),
        ]);
    }
    table.text(true, terminal)
}

impl Limit {
    fn refuses(&self) -> bool {
        !self.allowed && self.binding == Binding::Enforce.as_str()
    }

    fn refusal(&self) -> (Tone, String) {
        let time = self.retry_after_ns.map_or_else(|| "unknown".to_owned(), nanos);
        match (self.allowed, self.refuses()) {
            (true, _) => (Tone::Plain, "-".to_owned()),
            (false, true) if self.capacity == 0 => (Tone::Bad, "always".to_owned()),
            (false, true) => (Tone::Bad, time),
            (false, false) => (Tone::Warn, "nothing: in shadow".to_owned()),
        }
    }
}
