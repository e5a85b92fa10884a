//! The section of one limit: whether it works, what to change, its pictures, and the requests that it refuses.

use maud::{Markup, html};
use spillgate::insight::{Verdict, Who};
use spillgate::text::thousands;
use spillgate_service::text::clean;

use super::table::{Table, bar};
use super::words::{Seen, advice, badge, count, limit_name, quota, seen, share, time, times, wait};
use super::{histogram, timeline};
use crate::report::{
    Agreement, CallerCounts, Counts, LimitCallers, LimitReport, Period, Refusal, SuggestionResult, VerdictHours,
};

/// At most this many callers are shown in a list.
const MOST_CALLERS: usize = 5;

/// Returns the section. `result` is what the suggestion of insight would do.
pub(super) fn section(index: usize, limit: &LimitReport, result: Option<&SuggestionResult>) -> Markup {
    let verdict = verdict(limit);
    let judged = limit.period.as_ref().map(|period| (period.from_ns, period.to_ns));
    html! {
        article class="limit" id={ "limit-" (index + 1) } {
            h3 { (limit_name(&limit.limit)) }
            p class="quota" {
                (badge(verdict)) " " (quota(&limit.limit)) ", from " (seen(&limit.limit.file)) ":" (limit.limit.line)
            }
            @if let Some(note) = &limit.note { p class="note" { (seen(note)) } }
            @if let Some(period) = &limit.period { (reason(limit, period)) }
            (fix(limit, result))
            (timeline::figure(&limit.timeline, judged))
            @if let Some(period) = &limit.period {
                div class="pair" {
                    (histogram::bursts(&limit.limit, period))
                    (histogram::uses(&limit.limit, period))
                }
            }
            (callers(&limit.callers))
            (refusals(limit))
        }
    }
}

pub(super) fn verdict(limit: &LimitReport) -> Option<Seen> {
    limit.period.as_ref().map(|period| (period.report.verdict, period.report.who))
}

/// Says what the reader can do. One caller above the rate is named.
pub(super) fn what_to_do(limit: &LimitReport) -> Markup {
    let verdict = verdict(limit);
    let report = limit.period.as_ref().map(|period| &period.report);
    let one = report
        .filter(|_| verdict == Some((Verdict::AboveRate, Who::One)))
        .and_then(|report| report.top_refused.callers.first());
    html! {
        @if let Some(name) = one.and_then(|caller| caller.name.as_deref()) {
            "Keep the limit, and look at " (seen(name))
            ". Before you block it: it can be many people behind one address or key."
        } @else {
            (advice(&limit.limit, verdict, report.and_then(|report| report.suggestion.as_ref())))
        }
    }
}

/// Says why this is the verdict, and which verdicts the other hours have.
fn reason(limit: &LimitReport, period: &Period) -> Markup {
    let hours = limit.hours.iter().fold(0_u64, |sum, hours| sum.saturating_add(hours.hours));
    html! {
        p class="reason" { (seen(&period.report.reason)) }
        @if let Some(causes) = period.report.causes { p class="reason" { (causes) } }
        @if let Some(evidence) = &period.report.evidence { p class="reason" { (seen(evidence)) } }
        p class="hours" {
            @if hours > 1 {
                "This is the hour that needs the most attention: " (times(period.from_ns, period.to_ns)) ". All hours with requests: "
                @for (index, VerdictHours { verdict, who, hours }) in limit.hours.iter().enumerate() {
                    @if index > 0 { ", " }
                    (count(*hours, "hour")) " " (verdict.words_with(*who))
                }
                "."
            } @else {
                "Judged on the requests from " (times(period.from_ns, period.to_ns)) "."
            }
        }
    }
}

/// Says what to change, and what the change would do.
fn fix(limit: &LimitReport, result: Option<&SuggestionResult>) -> Markup {
    let rules = limit.period.as_ref().and_then(|period| period.suggested_rules.as_deref());
    let Some(rules) = result.map(|result| result.suggested_rules.as_str()).or(rules) else {
        return html! {};
    };
    html! {
        div class="fix" {
            div {
            h4 { "What to change" }
            p {
                (what_to_do(limit)) " "
                @if let Some(result) = result {
                    @let (today, then) = (result.today, result.then);
                    "On this log, the limit would then refuse "
                    strong { (share(then.refused, then.allowed.saturating_add(then.refused))) }
                    " of its requests instead of "
                    strong { (share(today.refused, today.allowed.saturating_add(today.refused))) } ". "
                    @if let Some(then) = result.verdict_then.zip(result.who_then) { "Its verdict would be: " (badge(Some(then))) }
                    (all_rules(&result.requests))
                } @else {
                    "These rules have the numbers that fit. Use " code { "--suggest" } " to see what they would do on this log."
                }
            }
            }
            pre { code { (lines(rules)) } }
        }
    }
}

/// Says what all rules together would do. Another limit can refuse what this one lets pass.
fn all_rules(requests: &Agreement) -> Markup {
    let Agreement { both_allow, both_refuse, only_old_refuses, only_new_refuses } = *requests;
    let (today, then) = (both_refuse.saturating_add(only_old_refuses), both_refuse.saturating_add(only_new_refuses));
    let all = both_allow.saturating_add(today).saturating_add(only_new_refuses);
    html! {
        "All rules together would refuse " strong { (share(then, all)) } " of all requests instead of "
        strong { (share(today, all)) } ". "
    }
}

/// Returns the lines of a text, each of them cleaned.
pub(super) fn lines(text: &str) -> Markup {
    html! { @for line in text.lines() { (clean(line)) "\n" } }
}

/// Returns the callers with the most refused and the most allowed requests of the whole log.
fn callers(callers: &LimitCallers) -> Markup {
    let refused =
        top("Callers with the most refused requests", ["refused", "of its requests"], &callers.top_refused, |counts| {
            counts.refused
        });
    let allowed =
        top("Callers with the most allowed requests", ["allowed", "of its requests"], &callers.top_allowed, |counts| {
            counts.allowed
        });
    let Counts { allowed: further_allowed, refused: further_refused } = callers.further;
    html! {
        @if refused.is_some() || allowed.is_some() {
            div class="pair" {
                @if let Some(refused) = refused { (refused) }
                @if let Some(allowed) = allowed { (allowed) }
            }
            p class="note" {
                "Counted over the whole log, for each of " (count(callers.counted, "caller")) "."
                @if further_allowed > 0 || further_refused > 0 {
                    " There are further callers, which are counted only together: " (thousands(further_allowed))
                    " of their requests are allowed, and " (thousands(further_refused)) " are refused."
                }
            }
        }
    }
}

fn top(
    caption: &str,
    [what, of]: [&'static str; 2],
    callers: &[CallerCounts],
    counted: fn(&Counts) -> u64,
) -> Option<Markup> {
    let row = |CallerCounts { caller, counts }: &CallerCounts| {
        let (number, all) = (counted(counts), counts.allowed.saturating_add(counts.refused));
        let part = number as f64 / all.max(1) as f64;
        vec![seen(caller), html! { (thousands(number)) }, html! { (share(number, all)) (bar(part, what)) }]
    };
    let rows: Vec<_> = callers.iter().take(MOST_CALLERS).map(row).collect();
    (!rows.is_empty()).then(|| {
        Table { caption: caption.to_owned(), heads: vec!["caller", what, of], numbers: &[1, 2], rows }.markup()
    })
}

/// Returns the first and the longest refusals, with their lines of the log.
fn refusals(limit: &LimitReport) -> Markup {
    let lists = [
        ("The first refusals", &limit.first_refusals),
        ("The refusals with the longest waits", &limit.longest_refusals),
    ];
    html! {
        @for (caption, refusals) in lists.into_iter().filter(|(_, refusals)| !refusals.is_empty()) {
            details {
                summary { (caption) }
                (refusal_table(caption, refusals))
            }
        }
    }
}

fn refusal_table(caption: &str, refusals: &[Refusal]) -> Markup {
    let row = |refusal: &Refusal| {
        vec![
            html! { span class="fixed" { (time(refusal.time_ns)) } },
            html! { (wait(refusal.wait_ns)) },
            html! { (seen(&refusal.file)) ":" (refusal.line) },
            html! {
                (seen(&refusal.caller))
                @if let Some(text) = &refusal.text { br; code { (seen(text)) } }
            },
        ]
    };
    let has_text = refusals.iter().any(|refusal| refusal.text.is_some());
    let last = if has_text { "caller, and line of the log" } else { "caller" };
    let heads = vec!["time (UTC)", "wait", "file and line", last];
    let rows = refusals.iter().map(row).collect();
    Table { caption: caption.to_owned(), heads, numbers: &[1], rows }.markup()
}
