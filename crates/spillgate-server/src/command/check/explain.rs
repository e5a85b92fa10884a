//! Prints the answers of `spillgate check` as text: how each descriptor found its rule, and what each limit decided.
//!
//! Users run the command to see the reason of a decision, so the text contains the reason.

use std::time::Duration;

use spillgate::rules::{How, Limit, LimitDescription, Outcome, Rule, Step};
use spillgate::{Decision, Reason, Wait};
use spillgate_service::Loaded;
use spillgate_service::explain::{Explained, ExplainedLimit, Pairs, is_left_out};

use crate::cli::Check;
use crate::command::terminal::{Table, Terminal, Tone, duration};

/// Returns the explanation as text.
pub(super) fn text(
    check: &Check,
    rules: &Loaded,
    pairs: &Pairs<'_>,
    asked: &[Explained<'_>],
    terminal: &Terminal,
) -> String {
    let mut text = String::new();
    match rules.domains().find(|domain| *domain.name == *check.domain) {
        Some(domain) => {
            let compat = if domain.compat_envoy { ", compat: envoy" } else { "" };
            text.push_str(&format!(
                "domain {} ({}{compat})\n",
                terminal.paint(Tone::Title, &check.domain),
                domain.file
            ));
        }
        None => {
            let known: Vec<_> = rules.domains().map(|domain| &*domain.name).collect();
            let note =
                format!("no rules file has the domain `{}`; the domains are: {}\n", check.domain, known.join(", "));
            text.push_str(&terminal.paint(Tone::Warn, &note));
        }
    }
    for (number, entries) in pairs.iter().enumerate() {
        text.push('\n');
        let left_out = |limit: &Limit| is_left_out(asked, number, limit);
        descriptor(&mut text, check, rules, number, entries, &left_out, terminal);
    }
    text.push('\n');
    text.push_str(&table(pairs.len() > 1, check.costs.len() > 1, asked).text(true, terminal));
    let refused = asked.iter().filter(|asked| !asked.verdict.allowed).count();
    let summary = match (asked.len(), refused) {
        (1, _) => String::new(),
        (all, 0) => format!("\nall {all} allowed\n"),
        (all, refused) => format!("\n{} of {all} allowed, {refused} refused\n", all - refused),
    };
    text + &summary
}

fn descriptor(
    text: &mut String,
    check: &Check,
    rules: &Loaded,
    number: usize,
    entries: &[(&str, &str)],
    left_out: &dyn Fn(&Limit) -> bool,
    terminal: &Terminal,
) {
    let shown: Vec<_> = entries.iter().map(|(key, value)| format!("{key}={value}")).collect();
    text.push_str(&format!("descriptor {}: {}\n", number + 1, terminal.paint(Tone::Title, &shown.join(", "))));
    let steps = rules.explain(&check.domain, entries);
    let mut table = Table::new(2);
    for step in &steps {
        let origin = step.origin.as_ref().map(ToString::to_string).unwrap_or_default();
        let indent = "  ".repeat(step.level);
        table.row([
            (Tone::Plain, format!("{indent}{}={}", step.key, step.value)),
            (Tone::Plain, step.how.to_string()),
            (Tone::Plain, outcome(step)),
            (Tone::Faint, origin),
        ]);
    }
    text.push_str(&table.text(false, terminal));
    let Some(rule) = rules.find(&check.domain, entries) else {
        let outcome = if rules.denies_unmatched() { "refused (unmatched: deny)" } else { "allowed and not counted" };
        text.push_str(&format!("  no rule matches: {outcome}\n"));
        return;
    };
    text.push_str(&format!("  rule {} at {}{}\n", terminal.paint(Tone::Title, &rule.path), rule.origin, modes(rule)));
    if rule.unlimited {
        text.push_str("    unlimited: allowed and not counted\n");
    } else if rule.limits.is_empty() {
        text.push_str("    without a limit: allowed and not counted\n");
    }
    for limit in &rule.limits {
        let left_out = if left_out(limit) { "; left out: another rule of this request replaces it" } else { "" };
        let described = LimitDescription::of(rule, limit);
        let name = limit.name.as_deref().map(|name| format!(" {name}")).unwrap_or_default();
        text.push_str(&format!("    limit{name}: {}{left_out}\n", described.summary()));
    }
}

fn outcome(step: &Step) -> String {
    let text = match step.outcome {
        Outcome::WentDeeper => "goes on below",
        Outcome::WentBack => "nothing below matches: goes back",
        Outcome::Matched => "matched",
        Outcome::Failed if step.how != How::Nothing => "the rule ends here, the descriptor goes on",
        Outcome::Failed => "no rule",
    };
    text.to_owned()
}

fn modes(rule: &Rule) -> String {
    let modes = [(rule.shadow_mode, "shadow: never refuses"), (rule.quota_mode, "quota mode")];
    modes.iter().filter(|(on, _)| *on).map(|(_, mode)| format!(", {mode}")).collect()
}

fn table(several: bool, costs: bool, asked: &[Explained<'_>]) -> Table {
    let mut table = Table::new(0);
    let titles = ["at", "answer", "limit", "says", "left", "retry after", "reset after", "delay"];
    table.row(titles.map(|title| (Tone::Faint, title.to_owned())));
    for asked in asked {
        let (tone, answer) = match asked.verdict.allowed {
            true => (Tone::Good, "allowed"),
            false => (Tone::Bad, "refused"),
        };
        let when = match costs {
            true => format!("{}, cost {}", duration(asked.at), asked.cost),
            false => duration(asked.at),
        };
        let head = [(Tone::Plain, when), (tone, answer.to_owned())];
        let blank = [const { (Tone::Plain, String::new()) }; 2];
        if asked.limits.is_empty() {
            table.row(head.clone());
        }
        for (row, limit) in asked.limits.iter().enumerate() {
            let head = if row == 0 { head.clone() } else { blank.clone() };
            table.row(head.into_iter().chain(limit_cells(several, limit)));
        }
    }
    table
}

fn limit_cells(several: bool, asked: &ExplainedLimit<'_>) -> [(Tone, String); 6] {
    let decision = &asked.decision;
    let mut label = asked.limit.label();
    if several {
        label = format!("{}: {label}", asked.descriptor + 1);
    }
    let (tone, says) = says(decision);
    let left = format!("{} -> {} of {}", asked.before.remaining, asked.after.remaining, decision.limit);
    [
        (Tone::Plain, label),
        (tone, says.to_owned()),
        (Tone::Plain, left),
        (Tone::Plain, if decision.allowed { "-".to_owned() } else { wait(decision.retry_after) }),
        (Tone::Plain, asked.after.reset_after_ns.map_or_else(|| "-".to_owned(), nanos)),
        (Tone::Plain, if decision.delay_ns == 0 { "-".to_owned() } else { nanos(decision.delay_ns) }),
    ]
}

fn says(decision: &Decision) -> (Tone, &'static str) {
    match decision.reason {
        _ if decision.soft_over => (Tone::Warn, "yes, over the soft limit"),
        _ if decision.allowed && decision.delay_ns > 0 => (Tone::Good, "yes, after the delay"),
        _ if decision.allowed => (Tone::Good, "yes"),
        Reason::CostAboveCapacity if decision.limit == 0 => (Tone::Bad, "never: the limit is 0"),
        Reason::CostAboveCapacity => (Tone::Bad, "never: the cost is above the capacity"),
        Reason::Penalty => (Tone::Bad, "no: penalty"),
        Reason::WaitTooLong => (Tone::Bad, "no: longer than --wait"),
        Reason::StoreFull => (Tone::Bad, "no: the store is full"),
        Reason::LeaseExpired => (Tone::Bad, "no: the lease has expired"),
        Reason::Unsupported => (Tone::Bad, "no: this algorithm does not support the operation"),
        Reason::StoreFailed => (Tone::Bad, "no: the store failed"),
        Reason::Exceeded | Reason::Fits | Reason::NotAsked => (Tone::Bad, "no: used up"),
        _ => (Tone::Bad, "no"),
    }
}

fn wait(wait: Wait) -> String {
    match wait {
        Wait::After(ns) => nanos(ns),
        Wait::Unknown => "unknown".to_owned(),
        Wait::Never => "never".to_owned(),
    }
}

fn nanos(ns: u64) -> String {
    duration(Duration::from_nanos(ns))
}
