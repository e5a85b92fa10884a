//! Prints the insights of limits for people.

use std::fmt::Write as _;
use std::time::Duration;

use spillgate::insight::{
    Callers, Estimate, Percentiles, Range, Report, SpanReport, TopCallers, Urgency, Verdict, Who,
};
use spillgate::rules::{LimitDescription, limit_size};
use spillgate::units::format_duration;

use super::Reported;
use crate::command::terminal::{Terminal, Tone, clean, count, percent, thousands, wrapped};

/// At most this many callers are shown.
const CALLERS: usize = 5;

/// Returns the text for all limits. On a terminal, no line is wider than the terminal, except in a suggestion.
pub(super) fn text(limits: &[Reported], terminal: &Terminal) -> String {
    let mut text = String::new();
    if limits.is_empty() {
        let none = "no limit is watched: the rules have no limits, or insight.max_callers is off or too small";
        push_line(&mut text, none, terminal.width());
    }
    for (index, reported) in limits.iter().enumerate() {
        if index > 0 {
            text.push('\n');
        }
        for line in lines(reported, terminal) {
            push_line(&mut text, &line, terminal.width());
        }
        push_suggestion(&mut text, reported, terminal.width());
    }
    text
}

pub(crate) fn push_line(text: &mut String, line: &str, width: Option<usize>) {
    match width {
        Some(width) => text.push_str(&wrapped(line, width)),
        None => text.push_str(line),
    }
    text.push('\n');
}

/// Returns the lines for a limit, without its suggestion.
fn lines(reported: &Reported, terminal: &Terminal) -> Vec<String> {
    let report = &reported.report;
    let passes = reported.limit.name.options.passing().is_some();
    let mut lines = vec![title(&reported.limit.name, terminal)];
    lines.extend(verdict(report, passes, terminal));
    lines.push(advice(report.verdict, report.who));
    let asked = report.spans.iter().filter(|span| span.counts.requests > 0);
    lines.extend(asked.map(|span| format!("  last {}: {}", span_name(span), counts(span, passes))));
    let [.., hour] = &report.spans;
    lines.extend(figures(hour).map(|figure| format!("  last {}: {figure}", span_name(hour))));
    lines.extend(tops(report, passes));
    lines
}

/// Returns the line that names a limit.
pub(crate) fn title(limit: &LimitDescription, terminal: &Terminal) -> String {
    let name = limit.name.as_deref().map(|name| format!(" {name}")).unwrap_or_default();
    let title = clean(&format!("{}: {}{name}", limit.domain, limit.rule));
    let origin = clean(&format!("({}:{}, {})", limit.file, limit.line, limit.summary()));
    format!("{} {}", terminal.paint(Tone::Title, &title), terminal.paint(Tone::Faint, &origin))
}

/// Returns the name of a verdict, coloured. `who` has the refused units.
pub(crate) fn verdict_name(verdict: Verdict, who: Who, terminal: &Terminal) -> String {
    let tone = match verdict.urgency(who) {
        Urgency::High => Tone::Bad,
        Urgency::Low => Tone::Warn,
        Urgency::None => Tone::Good,
        Urgency::Unknown => Tone::Faint,
    };
    terminal.paint(tone, &verdict.words_with(who))
}

/// Returns the lines with the verdict, its reason, and what can be the cause. `passes` says whether requests over the
/// limit pass.
pub(crate) fn verdict(report: &Report, passes: bool, terminal: &Terminal) -> impl Iterator<Item = String> {
    let condition = if passes { "if it refused: " } else { "" };
    let name = verdict_name(report.verdict, report.who, terminal);
    let verdict = format!("  {name}: {condition}{}", clean(&report.reason));
    let causes = report.causes.map(|causes| format!("  cause: {causes}"));
    [Some(verdict), causes].into_iter().flatten()
}

/// Returns the line that says what an operator can do.
pub(crate) fn advice(verdict: Verdict, who: Who) -> String {
    format!("  what to do: {}", verdict.advice(who))
}

/// Returns the figures of the callers of a span, each as `burst needed 1 (median), ...`.
pub(crate) fn figures(span: &SpanReport) -> impl Iterator<Item = String> {
    let highest = if span.callers.asked.relative_error > 0.0 { "highest in the sample" } else { "highest" };
    let figure = |name: &str, figures: &Option<Percentiles>, show: fn(f64) -> String| {
        Some(format!("{name} {}", percentiles(figures.as_ref()?, highest, show)))
    };
    let figures = [
        figure("burst needed", &span.burst_needed, units),
        figure("highest count of a window", &span.window_count, units),
        figure("use of the limit", &span.use_share, used),
    ];
    figures.into_iter().flatten()
}

/// Returns the lines with the callers that have the most units. `passes` says whether requests over the limit pass.
pub(crate) fn tops(report: &Report, passes: bool) -> impl Iterator<Item = String> {
    let refused = if passes { "most units over the limit" } else { "most refused units" };
    [top(refused, &report.top_refused), top("most allowed units", &report.top_allowed)].into_iter().flatten()
}

fn push_suggestion(text: &mut String, reported: &Reported, width: Option<usize>) {
    if let Some(evidence) = &reported.report.evidence {
        push_line(text, &format!("  {evidence}"), width);
    }
    match (&reported.limit.suggested_rules, &reported.report.suggestion) {
        (Some(rules), _) => push_rules(text, rules),
        (None, Some(suggestion)) => {
            let burst = suggestion.burst.map(|burst| format!(", burst {burst}")).unwrap_or_default();
            let size = limit_size(suggestion.limit, reported.limit.name.window_ns);
            push_line(text, &format!("  suggested: {size}{burst}"), width);
        }
        (None, None) => {}
    }
}

/// Adds suggested rules. Their lines are for copying, so they are not broken.
pub(crate) fn push_rules(text: &mut String, rules: &str) {
    text.push_str("  suggested:\n");
    rules.lines().for_each(|line| text.push_str(&format!("    {}\n", clean(line))));
}

/// Returns the counts of a span: `12,000 requests, 8.1 % refused; 340 callers, 12 refused; waits 1s, 4s, 5s`. `passes`
/// says whether requests over the limit pass.
pub(crate) fn counts(span: &SpanReport, passes: bool) -> String {
    let refused = if passes { "over the limit" } else { "refused" };
    let Callers { asked, refused: refused_callers, .. } = span.callers;
    let mut text = format!(
        "{}, {} {refused}; {}, {} {refused}",
        count(units(span.counts.requests as f64), "request"),
        percent(span.counts.refused_requests, span.counts.requests),
        count(estimate(&asked), "caller"),
        part(&refused_callers, &asked)
    );
    if let Some(waits) = span.waits {
        let wait = |ns| format_duration(Duration::from_millis(Duration::from_nanos(ns).as_millis() as u64));
        let _ = write!(
            text,
            "; waits {} (median), {} (90 %), {} (99 %)",
            wait(waits.median_ns),
            wait(waits.p90_ns),
            wait(waits.p99_ns)
        );
    }
    text
}

fn span_name(span: &SpanReport) -> String {
    format_duration(Duration::from_nanos(span.span_ns))
}

/// Returns how many of `all` callers are in `part`. If no caller of the sample is in `part`, a few callers outside the
/// sample can still be in it. Each caller of the sample stands for a number of callers. With a probability of 95 %, at
/// most three times this number are in `part`.
fn part(part: &Estimate, all: &Estimate) -> String {
    if part.value > 0.0 || all.relative_error == 0.0 {
        return estimate(part);
    }
    let sampled = 2.0 + all.relative_error.powi(-2);
    format!("at most {}", units((3.0 * all.value / sampled).ceil()))
}

fn estimate(estimate: &Estimate) -> String {
    if estimate.relative_error == 0.0 {
        return units(estimate.value);
    }
    format!("about {} (± {:.1} %)", units(estimate.value), 100.0 * estimate.relative_error)
}

fn percentiles(figures: &Percentiles, highest: &str, show: fn(f64) -> String) -> String {
    let range = |range: &Range| match range.at_most {
        Some(at_most) if at_most == range.at_least => show(at_most),
        Some(at_most) => format!("{} to {}", show(range.at_least), show(at_most)),
        None => format!("at least {}", show(range.at_least)),
    };
    format!(
        "{} (median), {} (99 %), {} ({highest})",
        range(&figures.median),
        range(&figures.p99),
        range(&figures.highest)
    )
}

fn units(units: f64) -> String {
    thousands(units.round() as usize)
}

fn used(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

fn top(title: &str, top: &TopCallers) -> Option<String> {
    let callers: Vec<_> = top
        .callers
        .iter()
        .filter(|caller| caller.units > top.missing)
        .take(CALLERS)
        .map(|caller| {
            // A client chose the name. In quotes, no name can look like several callers.
            let who = caller.name.as_deref().map_or_else(|| caller.id.to_string(), |name| format!("{name:?}"));
            format!("{who} {}", percent(caller.units, top.units))
        })
        .collect();
    (!callers.is_empty()).then(|| format!("  {title}: {}", callers.join(", ")))
}
