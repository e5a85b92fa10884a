//! `spillgate top`: lists the callers with the most units of each limit.

use serde::Deserialize;
use serde_json::Value;
use spillgate::insight::TopCallers;
use spillgate::rules::LimitDescription;

use super::answer::{Failure, Server, usage};
use super::rule_name::chosen;
use crate::command::insight::page::By;
use crate::command::insight::render::{Over, push_line, shared, title};
use crate::command::terminal::{Table, Terminal, Tone, clean, count, percent, thousands};

#[derive(Deserialize)]
struct Page {
    limits: Vec<Limit>,
}

#[derive(Deserialize)]
struct Limit {
    #[serde(flatten)]
    name: LimitDescription,
    allowed: TopCallers,
    refused: TopCallers,
    refused_requests: u64,
    unenforced_requests: u64,
    shared: bool,
    by: Option<By>,
}

/// Of each list, at most this many callers are printed, because a terminal shows the last lines. JSON has all.
const CALLERS: usize = 10;

/// Prints the callers of all limits, or those of the rule and of the domain that the command line names.
pub(super) fn run(
    server: &Server,
    named: (Option<&str>, Option<&str>),
    terminal: &mut Terminal,
) -> Result<(), Failure> {
    let mut answer = server.get("/top", terminal)?;
    if let (Some(limits), true) = (answer["limits"].as_array_mut(), named != (None, None)) {
        let described = |limit: Value| Ok((server.parse::<LimitDescription>(&limit)?, limit));
        let all = std::mem::take(limits).into_iter().map(described).collect::<Result<Vec<_>, Failure>>()?;
        let chosen = chosen(all, |(described, _)| described, named, "spillgate top").map_err(usage)?;
        *limits = chosen.into_iter().map(|(_, limit)| limit).collect();
    }
    server.list(&answer, terminal, text)
}

/// Returns the text for these limits. Limits that refuse most come first, and limits without callers are left out.
fn text(page: &Page, terminal: &Terminal) -> String {
    let has_callers = |limit: &&Limit| limit.allowed.units > 0 || limit.refused.units > 0;
    let mut limits: Vec<_> = page.limits.iter().filter(has_callers).collect();
    limits.sort_by_key(|limit| std::cmp::Reverse(limit.refused.units));
    if limits.is_empty() {
        let watched = if page.limits.is_empty() { "no limit is watched" } else { "no limit has callers yet" };
        return format!("{watched}\n");
    }
    let mut text = String::new();
    for (index, limit) in limits.into_iter().enumerate() {
        text.push_str(if index > 0 { "\n" } else { "" });
        text.push_str(&title(&limit.name, terminal));
        text.push('\n');
        let passes = limit.name.options.passing().is_some();
        let refused = Over::of(limit.refused_requests, limit.unenforced_requests, passes).units();
        text.push_str(&callers(refused, &limit.refused, terminal));
        text.push_str(&callers("allowed units", &limit.allowed, terminal));
        if let Some(By { key, allowed, refused: over }) = &limit.by {
            let by = format!(" by {}", clean(key));
            text.push_str(&callers(&format!("{refused}{by}"), over, terminal));
            text.push_str(&callers(&format!("allowed units{by}"), allowed, terminal));
        }
        if limit.shared {
            push_line(&mut text, &format!("  {}", shared(limit.by.is_some())), terminal.width());
        }
    }
    text
}

/// Returns a table of callers, or an empty text if there is none.
fn callers(units: &str, top: &TopCallers, terminal: &Terminal) -> String {
    if top.units == 0 {
        return String::new();
    }
    let mut table = Table::new(2);
    table.row([units, "share", "caller"].map(|title| (Tone::Faint, title.to_owned())));
    let mut known = top.callers.iter().filter(|caller| caller.units > top.missing).peekable();
    if known.peek().is_none() {
        let why = if top.callers.is_empty() {
            "The setting insight.keys hides the callers".to_owned()
        } else {
            format!("No caller is known to have more than {} of them", thousands(top.missing))
        };
        return format!("  {units}: {}. {why}.\n", thousands(top.units));
    }
    for caller in known.by_ref().take(CALLERS) {
        // A client chose the name.
        let who = caller.name.as_deref().map_or_else(|| caller.id.to_string(), clean);
        table.row([
            (Tone::Plain, thousands(caller.units)),
            (Tone::Plain, percent(caller.units, top.units)),
            (Tone::Title, who),
        ]);
    }
    let text = table.text(true, terminal);
    match known.count() {
        0 => text,
        more => format!("{text}  and {}\n", count(more, "more caller")),
    }
}
