//! Prints the insights of limits for people.

use std::fmt::Write as _;
use std::time::Duration;

use spillgate::insight::{Callers, Estimate, Percentiles, Range, SpanReport, TopCallers, Verdict};
use spillgate::units::format_duration;

use super::Reported;
use crate::command::terminal::{Terminal, Tone, clean, thousands, wrapped};

/// At most this many callers are shown.
const CALLERS: usize = 5;

/// Returns the position of a verdict in the list. Limits that need attention come first.
pub(super) const fn attention(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::TooStrict => 0,
        Verdict::Bursts => 1,
        Verdict::OneAbuser => 2,
        Verdict::NeverBinding => 3,
        Verdict::Effective => 4,
        Verdict::TooLittleToTell => 5,
    }
}

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

fn push_line(text: &mut String, line: &str, width: Option<usize>) {
    match width {
        Some(width) => text.push_str(&wrapped(line, width)),
        None => text.push_str(line),
    }
    text.push('\n');
}

/// Returns the lines for a limit, without its suggestion.
fn lines(reported: &Reported, terminal: &Terminal) -> Vec<String> {
    let (limit, report) = (&reported.limit, &reported.report);
    let (tone, verdict) = match report.verdict {
        Verdict::TooStrict => (Tone::Bad, "too strict"),
        Verdict::Bursts => (Tone::Warn, "bursts"),
        Verdict::OneAbuser => (Tone::Warn, "one abuser"),
        Verdict::NeverBinding => (Tone::Warn, "never binding"),
        Verdict::Effective => (Tone::Good, "effective"),
        Verdict::TooLittleToTell => (Tone::Faint, "too little to tell"),
    };
    let name = limit.name.as_deref().map(|name| format!(" {name}")).unwrap_or_default();
    let title = clean(&format!("{}: {}{name}", limit.domain, limit.rule));
    let origin = clean(&format!("({}:{}, {})", limit.file, limit.line, quota(reported)));
    let mut lines = vec![format!("{} {}", terminal.paint(Tone::Title, &title), terminal.paint(Tone::Faint, &origin))];
    let passes = limit.options.passing().is_some();
    let (condition, refused) = if passes { ("if it refused: ", "over the limit") } else { ("", "refused") };
    lines.push(format!("  {}: {condition}{}", terminal.paint(tone, verdict), clean(&report.reason)));
    let asked = report.spans.iter().filter(|span| span.counts.requests > 0);
    lines.extend(asked.map(|span| format!("  {}", counts(span, refused))));
    let [.., hour] = &report.spans;
    let highest = if hour.callers.asked.relative_error > 0.0 { "highest in the sample" } else { "highest" };
    let figure = |name: &str, figures: &Option<Percentiles>, show| {
        let figures = percentiles(figures.as_ref()?, highest, show);
        Some(format!("  last {}: {name} {figures}", span_name(hour)))
    };
    lines.extend(figure("burst needed", &hour.burst_needed, units));
    lines.extend(figure("highest count of a window", &hour.window_count, units));
    lines.extend(figure("use of the limit", &hour.use_share, percent));
    lines.extend(top(if passes { "most units over the limit" } else { "most refused units" }, &report.top_refused));
    lines.extend(top("most allowed units", &report.top_allowed));
    lines
}

fn push_suggestion(text: &mut String, reported: &Reported, width: Option<usize>) {
    match (&reported.limit.suggested_rules, &reported.report.suggestion) {
        (Some(rules), _) => {
            text.push_str("  suggested:\n");
            // These lines are for copying, so they are not broken.
            rules.lines().for_each(|line| text.push_str(&format!("    {}\n", clean(line))));
        }
        (None, Some(suggestion)) => {
            let burst = suggestion.burst.map(|burst| format!(", burst {burst}")).unwrap_or_default();
            let of = if reported.limit.window_ns.is_some() { "in each window" } else { "permits" };
            push_line(text, &format!("  suggested: {} {of}{burst}", suggestion.limit), width);
        }
        (None, None) => {}
    }
}

fn quota(reported: &Reported) -> String {
    let limit = &reported.limit;
    let window =
        limit.window_ns.map(|ns| format!(" in {}", format_duration(Duration::from_nanos(ns)))).unwrap_or_default();
    let capacity = if limit.capacity == limit.limit { String::new() } else { format!(", capacity {}", limit.capacity) };
    let passing = limit.options.passing().map(|binding| format!(", {binding}")).unwrap_or_default();
    format!("{} {}{window}{capacity}{passing}", limit.algorithm, limit.limit)
}

/// Returns the counts of a span: `1h: 12,000 requests, 8.1 % refused; 340 callers, 12 refused; waits 1s, 4s, 5s`. `refused` is
/// the word for this.
fn counts(span: &SpanReport, refused: &str) -> String {
    let percent = 100.0 * span.counts.refused_requests as f64 / span.counts.requests.max(1) as f64;
    let requests = units(span.counts.requests as f64);
    let Callers { asked, refused: refused_callers, .. } = span.callers;
    let mut text = format!(
        "last {}: {requests} request{}, {percent:.1} % {refused}; {} caller{}, {} {refused}",
        span_name(span),
        plural(span.counts.requests as f64),
        estimate(&asked),
        plural(asked.value),
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

/// Returns the end of a noun after this number.
fn plural(number: f64) -> &'static str {
    if number == 1.0 { "" } else { "s" }
}

fn span_name(span: &SpanReport) -> String {
    format_duration(Duration::from_nanos(span.span_ns))
}

/// Returns the number of callers that are a part of all. If the sample has none of them, they can still be a few: with a
/// probability of 95 %, there are at most three for each caller that stands for others.
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

fn percent(share: f64) -> String {
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
            format!("{who} {:.1} %", 100.0 * caller.units as f64 / top.units.max(1) as f64)
        })
        .collect();
    (!callers.is_empty()).then(|| format!("  {title}: {}", callers.join(", ")))
}
