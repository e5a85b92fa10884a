//! The beginning of the page: what was replayed, and a table that says for each limit whether it works.

use maud::{Markup, html};
use spillgate::insight::Verdict;

use super::limit::{verdict, what_to_do};
use super::table::{Table, bar};
use super::timeline;
use super::words::{badge, count, limit_name, needs_attention, number, quota, requests, seen, share, times};
use crate::report::{LimitReport, LogSummary, ReplayReport, RunReport};

pub(super) fn section(report: &ReplayReport, run: &RunReport) -> Markup {
    html! {
        header {
            h1 { "Replay of " (seen(&run.name)) }
            p class="lede" { (lede(run)) }
            @for warning in &report.warnings { p class="warning" { strong { "Warning: " } (seen(warning)) } }
            (facts(report, run))
        }
        section id="overview" aria-labelledby="overview-name" {
            h2 id="overview-name" { "Overview" }
            (limits(run))
            (timeline::figure(&run.timeline, None))
        }
    }
}

/// Says in two sentences what the rules do.
fn lede(run: &RunReport) -> Markup {
    let all = requests(run);
    let attention = run.limits.iter().filter(|limit| needs_attention(verdict(limit))).count();
    let lower = run.limits.iter().filter(|limit| matches!(verdict(limit), Some((Verdict::NeverBinding, _)))).count();
    let unknown = run
        .limits
        .iter()
        .filter(|limit| matches!(verdict(limit), None | Some((Verdict::TooEarly | Verdict::Unclear, _))))
        .count();
    html! {
        @if all == 0 {
            "No request was decided. "
        } @else if run.refused_requests == 0 {
            "These rules would have refused none of " (count(all, "request")) ". "
        } @else {
            "These rules would have refused " strong { (share(run.refused_requests, all)) } " of "
            (count(all, "request")) ": " (number(run.refused_requests)) ". "
        }
        @match (attention, run.limits.len()) {
            (_, 0) => "The rules have no limits.",
            (0, _) if unknown > 0 => "",
            (0, _) => "No limit needs attention.",
            (1, limits) => { strong { "1 of " (count(limits as u64, "limit")) " needs attention." } },
            (attention, limits) => { strong { (attention) " of " (count(limits as u64, "limit")) " need attention." } },
        }
        @match lower {
            0 => "",
            1 => " 1 limit could be lower.",
            lower => { " " (count(lower as u64, "limit")) " could be lower." },
        }
        @if unknown > 0 { " For " (count(unknown as u64, "limit")) ", it is not known whether the rules work." }
    }
}

fn facts(report: &ReplayReport, run: &RunReport) -> Markup {
    let log = &report.log;
    html! {
        dl class="facts" {
            dt { "Log" }
            dd { (count(log.lines, "line")) " in format " code { (seen(&log.format)) } ": " (list(&log.files)) }
            @if log.requests > 0 {
                dt { "Time" }
                dd { (times(log.from_ns, log.to_ns)) }
            }
            @if !log.descriptors.is_empty() {
                dt { "Descriptors" }
                dd { @for descriptor in &log.descriptors { code { (seen(descriptor)) } " " } }
            }
            @if unused(log) > 0 {
                dt { "Not used" }
                dd { a href="#lines" { (count(unused(log), "line")) } }
            }
            @if run.store_full_requests > 0 {
                dt { "Memory" }
                dd { (count(run.store_full_requests, "request")) " refused because the memory is full: raise memory.max_keys" }
            }
            @if run.unmatched_requests > 0 {
                dt { "No rule" }
                dd { (count(run.unmatched_requests, "request")) " matched no rule" }
            }
            @if report.anonymous {
                dt { "Callers" }
                dd { "hidden: each name is a hash with a secret that no other report has" }
            }
        }
    }
}

/// Returns the number of lines that were not decided.
pub(super) const fn unused(log: &LogSummary) -> u64 {
    log.unreadable.count.saturating_add(log.without_descriptor).saturating_add(log.not_decided.count)
}

/// Returns the first names, and how many more there are.
fn list(names: &[String]) -> Markup {
    const SHOWN: usize = 3;
    html! {
        @for (index, name) in names.iter().take(SHOWN).enumerate() {
            @if index > 0 { ", " }
            (seen(name))
        }
        @if names.len() > SHOWN { " and " (names.len() - SHOWN) " more" }
    }
}

fn limits(run: &RunReport) -> Markup {
    if run.limits.is_empty() {
        return html! { p class="empty" { "There is no limit to judge. A rule gets one with " code { "rate_limit" } "." } };
    }
    let row = |(index, limit): (usize, &LimitReport)| {
        let all = limit.allowed_requests.saturating_add(limit.refused_requests);
        let part = limit.refused_requests as f64 / all.max(1) as f64;
        let verdict = verdict(limit);
        vec![
            html! {
                a href={ "#limit-" (index + 1) } { (limit_name(&limit.limit)) }
                div class="quota" { (quota(&limit.limit)) }
            },
            badge(verdict),
            html! { (share(limit.refused_requests, all)) (bar(part, "refused")) },
            html! { (number(all)) },
            what_to_do(limit),
        ]
    };
    Table {
        caption: "What each limit does, those that need attention first".to_owned(),
        heads: vec!["limit", "verdict", "refused", "requests", "what to do"],
        numbers: &[2, 3],
        rows: run.limits.iter().enumerate().map(row).collect(),
    }
    .markup()
}
