//! The section of one limit: whether it works, what to change, its pictures, and the requests that it refuses.

use maud::{Markup, html};
use spillgate::insight::{Verdict, Who};
use spillgate_service::text::clean;

use super::table::{Table, bar};
use super::words::{
    Seen, advice, badge, count, limit_name, needs_attention, number, quota, seen, share, time, times, wait,
};
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
            @if let Some(whole_log) = &limit.whole_log { p class="reason" { (seen(&whole_log.reason)) } }
            @if let Some(period) = &limit.period { (hour(limit, period)) }
            (fix(limit, result))
            // A reader seldom needs the picture of a limit that does its job.
            @if needs_attention(verdict) {
                (timeline::figure(&limit.timeline, judged))
            } @else {
                details { summary { "Requests over time" } (timeline::figure(&limit.timeline, judged)) }
            }
            (folded("Callers", &callers(&limit.callers)))
            @if let Some(period) = &limit.period {
                (folded("What callers need", &pictures(limit, period)))
            }
            (refusals(limit))
        }
    }
}

/// Returns a part that a reader opens with a click, so that a page of many limits stays short. It is open on paper.
pub(super) fn folded(name: &str, part: &Markup) -> Markup {
    html! { @if !part.0.is_empty() { details { summary { (name) } (part) } } }
}

fn pictures(limit: &LimitReport, period: &Period) -> Markup {
    let (bursts, uses) = (histogram::bursts(&limit.limit, period), histogram::uses(&limit.limit, period));
    html! { @if !bursts.0.is_empty() || !uses.0.is_empty() { div class="pair" { (bursts) (uses) } } }
}

pub(super) fn verdict(limit: &LimitReport) -> Option<Seen> {
    limit.whole_log.as_ref().map(|whole_log| (whole_log.verdict, whole_log.who))
}

/// Says what the reader can do. If there is no number to change, a caller with most of the refusals is named.
pub(super) fn what_to_do(limit: &LimitReport) -> Markup {
    let verdict = verdict(limit);
    let is_about_callers =
        matches!(verdict, Some((Verdict::AboveRate, Who::One) | (Verdict::TooEarly | Verdict::Unclear, _)));
    let main_caller = limit.main_caller().filter(|_| is_about_callers);
    let suggestion = limit.whole_log.as_ref().and_then(|whole_log| whole_log.suggestion.as_ref());
    html! {
        @if let Some((name, refused)) = main_caller {
            "Keep the limit, and look at " (seen(name)) ", which has " (share(refused, limit.refused_requests))
            " of the refusals. Before you block it, make sure that it is not many people behind one address or key."
        } @else if matches!(verdict, Some((Verdict::TooEarly, _))) {
            @if limit.refused_requests > 0 { "Look at the callers that it refuses." }
            @else { "Nothing: it refuses no request of this log." }
        } @else {
            (advice(&limit.limit, verdict, suggestion))
        }
    }
}

/// Says what insight has found in the hour that is shown, and which verdicts the other hours have.
fn hour(limit: &LimitReport, period: &Period) -> Markup {
    let hours = limit.hours.iter().fold(0_u64, |sum, hours| sum.saturating_add(hours.hours));
    let which =
        if limit.refused_requests > 0 { "The hour with the most refusals" } else { "The hour of the highest use" };
    html! {
        p class="hours" {
            (which) ", " (times(period.from_ns, period.to_ns)) ": "
            (period.report.verdict.words_with(period.report.who)) ". " (seen(&period.report.reason))
            @if let Some(causes) = period.report.causes { " " (causes) }
            @if let Some(evidence) = &period.report.evidence { " " (seen(evidence)) }
            @if hours > 1 {
                " All hours with requests: "
                @for (index, VerdictHours { verdict, who, hours, .. }) in limit.hours.iter().enumerate() {
                    @if index > 0 { ", " }
                    (count(*hours, "hour")) " " (verdict.words_with(*who))
                }
                "."
            }
        }
    }
}

/// Says what to change, and what the change would do.
fn fix(limit: &LimitReport, result: Option<&SuggestionResult>) -> Markup {
    let rules = limit.whole_log.as_ref().and_then(|whole_log| whole_log.suggested_rules.as_deref());
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
                    (instead((then.refused, sum(then)), (today.refused, sum(today)), "its requests"))
                    @if let Some(then) = result.verdict_then.zip(result.who_then) { "Its verdict would be: " (badge(Some(then))) ". " }
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
        "All rules together would refuse " (instead((then, all), (today, all), "all requests"))
    }
}

const fn sum(counts: Counts) -> u64 {
    counts.allowed.saturating_add(counts.refused)
}

/// Says what part of the requests is refused then, and today. If both parts are written with the same digits, their
/// numbers are written instead.
fn instead(then: (u64, u64), today: (u64, u64), of: &str) -> Markup {
    let (part_then, part_today) = (share(then.0, then.1), share(today.0, today.1));
    html! {
        @if then.0 == today.0 {
            "as many of " (of) " as today: " strong { (number(then.0)) } ". "
        } @else if part_then == part_today {
            strong { (number(then.0)) } " of " (of) " instead of " strong { (number(today.0)) } ". "
        } @else {
            strong { (part_then) } " of " (of) " instead of " strong { (part_today) } ". "
        }
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
                    " There are further callers, which are counted only together: " (number(further_allowed))
                    " of their requests are allowed, and " (number(further_refused)) " are refused."
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
        let (of_caller, all) = (counted(counts), counts.allowed.saturating_add(counts.refused));
        let part = of_caller as f64 / all.max(1) as f64;
        vec![seen(caller), html! { (number(of_caller)) }, html! { (share(of_caller, all)) (bar(part, what)) }]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_never_written_with_two_equal_numbers() {
        let says = |then, today| instead(then, today, "its requests").into_string().replace('\u{a0}', " ");
        let strong = |text: &str| text.replace(['<', '>'], "").replace("/strong", "").replace("strong", "");
        for (then, today, expected) in [
            ((100, 1_000), (200, 1_000), "10 % of its requests instead of 20 %. "),
            ((1_601, 10_000), (1_609, 10_000), "1,601 of its requests instead of 1,609. "),
            ((1_601, 10_000), (1_601, 10_000), "as many of its requests as today: 1,601. "),
        ] {
            assert_eq!(strong(&says(then, today)), expected);
        }
    }
}
