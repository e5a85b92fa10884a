//! The sections that compare: the old rules with the new ones, and each suggestion with the limit of today.

use maud::{Markup, html};

use super::limit::folded;
use super::table::Table;
use super::timeline;
use super::words::{badge, count, limit_name, name, number, seen, share, units_of};
use crate::report::{
    Agreement, CallerChange, Comparison, Counts, LimitChange, ReplayReport, RunReport, SuggestionResult,
};

/// Returns what changes from the old rules to the new ones. `old` is the run of the old rules.
pub(super) fn comparison(comparison: &Comparison, old: Option<&RunReport>) -> Markup {
    let Agreement { only_old_refuses, only_new_refuses, .. } = comparison.requests;
    let all = sum(&comparison.requests);
    html! {
        section id="changes" aria-labelledby="changes-name" {
            h2 id="changes-name" { "What changes from " (seen(&comparison.old)) " to " (seen(&comparison.new)) }
            p class="lede" {
                @if only_old_refuses == 0 && only_new_refuses == 0 {
                    "Nothing: both rules answer each request in the same way."
                } @else {
                    "The new rules refuse " strong { (count(only_new_refuses, "request")) } " (" (share(only_new_refuses, all))
                    ") that the old rules allow, and allow " strong { (count(only_old_refuses, "request")) } " ("
                    (share(only_old_refuses, all)) ") that the old rules refuse."
                }
            }
            (agreement(&comparison.requests))
            (limits(&comparison.limits))
            (callers(comparison))
            @if let Some(old) = old {
                (folded("The old rules over time", &timeline::figure(&old.timeline, None)))
            }
        }
    }
}

const fn sum(requests: &Agreement) -> u64 {
    let Agreement { both_allow, both_refuse, only_old_refuses, only_new_refuses } = *requests;
    both_allow.saturating_add(both_refuse).saturating_add(only_old_refuses).saturating_add(only_new_refuses)
}

fn agreement(requests: &Agreement) -> Markup {
    let all = sum(requests);
    let row = |what: &str, allowed: u64, refused: u64| {
        let cell = |number| part(number, all);
        vec![html! { (what) }, cell(allowed), cell(refused)]
    };
    Table {
        caption: "How both rules answer the same requests".to_owned(),
        heads: vec!["answer", "new rules allow", "new rules refuse"],
        numbers: &[1, 2],
        rows: vec![
            row("old rules allow", requests.both_allow, requests.only_new_refuses),
            row("old rules refuse", requests.only_old_refuses, requests.both_refuse),
        ],
    }
    .markup()
}

fn limits(limits: &[LimitChange]) -> Markup {
    if limits.is_empty() {
        return html! {};
    }
    let counts = |counts: Option<Counts>| match counts {
        Some(Counts { allowed, refused }) => part(refused, allowed.saturating_add(refused)),
        None => html! { "does not exist" },
    };
    let row = |limit: &LimitChange| {
        let refused = |counts: Option<Counts>| counts.map_or(0, |counts| counts.refused);
        vec![
            name(&limit.domain, &limit.rule, limit.name.as_deref()),
            counts(limit.old),
            counts(limit.new),
            difference(refused(limit.old), refused(limit.new)),
        ]
    };
    Table {
        caption: "Requests that each limit refuses".to_owned(),
        heads: vec!["limit", "old rules", "new rules", "change"],
        numbers: &[1, 2, 3],
        rows: limits.iter().map(row).collect(),
    }
    .markup()
}

/// Returns a change with its sign: `+3`, `0` or `−3`.
fn difference(old: u64, new: u64) -> Markup {
    html! {
        @match old.cmp(&new) {
            std::cmp::Ordering::Less => { "+" (number(new - old)) },
            std::cmp::Ordering::Equal => { "0" },
            std::cmp::Ordering::Greater => { "−" (number(old - new)) },
        }
    }
}

fn callers(comparison: &Comparison) -> Markup {
    if comparison.callers.is_empty() {
        return html! {};
    }
    let row = |change: &CallerChange| {
        vec![
            seen(&change.caller),
            html! { (number(change.requests)) },
            html! { (number(change.old_refused)) },
            html! { (number(change.new_refused)) },
            difference(change.old_refused, change.new_refused),
        ]
    };
    let table = Table {
        caption: "Callers whose refusals change the most".to_owned(),
        heads: vec!["caller", "requests", "old rules refuse", "new rules refuse", "change"],
        numbers: &[1, 2, 3, 4],
        rows: comparison.callers.iter().map(row).collect(),
    };
    html! {
        details { summary { "Callers whose refusals change the most" } (table.markup()) }
        @if comparison.further_callers > 0 {
            p class="note" { "The refusals of " (count(comparison.further_callers, "further caller")) " change too." }
        }
        @if comparison.callers_incomplete {
            p class="note" { "The log has too many callers to compare all of them. The table has only callers that came early." }
        }
    }
}

/// Returns a number and its share: `500 (2.5 %)`. The two can be on two lines.
fn part(part: u64, whole: u64) -> Markup {
    html! { (number(part)) " (" (share(part, whole)) ")" }
}

/// Returns how many requests all rules together would refuse with a suggestion, and how many of these pass today.
fn together(requests: &Agreement) -> Markup {
    let Agreement { both_refuse, only_new_refuses, .. } = *requests;
    let refused = both_refuse.saturating_add(only_new_refuses);
    html! {
        (part(refused, sum(requests)))
        @if only_new_refuses > 0 { " " span class="note" { (number(only_new_refuses)) " of them pass today" } }
    }
}

/// Returns a table with the effect of each suggestion.
pub(super) fn suggestions(report: &ReplayReport) -> Markup {
    let row = |result: &SuggestionResult| {
        let refused = |counts: Counts| part(counts.refused, counts.allowed.saturating_add(counts.refused));
        vec![
            limit_name(&result.limit),
            html! {
                (units_of(&result.limit, result.suggested_limit))
                @if let Some(burst) = result.suggested_burst { ", burst " (number(burst)) }
            },
            refused(result.today),
            refused(result.then),
            together(&result.requests),
            html! { @if let Some(then) = result.verdict_then.zip(result.who_then) { (badge(Some(then))) } @else { "not known" } },
        ]
    };
    let table = Table {
        caption: "What each suggestion would do, each tried alone".to_owned(),
        heads: vec![
            "limit",
            "suggestion",
            "it refuses today",
            "it refuses then",
            "all rules refuse then",
            "verdict then",
        ],
        numbers: &[2, 3, 4],
        rows: report.suggestions.iter().map(row).collect(),
    };
    html! {
        section id="suggestions" aria-labelledby="suggestions-name" {
            h2 id="suggestions-name" { "Suggestions, tried on this log" }
            @if !report.suggestions.is_empty() {
                (table.markup())
                p class="note" { "The rules of a suggestion are in the section of its limit." }
            }
            @for note in &report.suggestion_notes { p class="note" { (seen(note)) } }
        }
    }
}
