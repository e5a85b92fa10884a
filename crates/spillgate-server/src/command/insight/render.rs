//! Prints the insights of limits for people.

use std::fmt::Write as _;
use std::time::Duration;

use spillgate::insight::{Estimate, Percentiles, Range, SpanReport, TopCallers, Verdict};
use spillgate::units::format_duration;

use super::Reported;
use crate::command::terminal::{Terminal, Tone, thousands};

/// At most this many callers are shown.
const CALLERS: usize = 5;

/// Returns the place of a verdict in the list. Limits that need attention come first.
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

pub(super) fn text(limits: &[Reported], terminal: &Terminal) -> String {
    if limits.is_empty() {
        return "the server watches no limit: the rules have no limits, or insight.max_callers is off\n".to_owned();
    }
    let texts: Vec<_> = limits.iter().map(|reported| limit(reported, terminal)).collect();
    texts.join("\n")
}

fn limit(reported: &Reported, terminal: &Terminal) -> String {
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
    let title = terminal.paint(Tone::Title, &format!("{}: {}{name}", limit.domain, limit.rule));
    let place = terminal.paint(Tone::Faint, &format!("({}:{}, {})", limit.file, limit.line, quota(reported)));
    let mut text = format!("{title} {place}\n  {}: {}\n", terminal.paint(tone, verdict), report.reason);
    for span in &report.spans {
        if span.counts.requests > 0 {
            let _ = writeln!(text, "  {}", counts(span));
        }
    }
    let [.., hour] = &report.spans;
    let mut figures = Vec::new();
    figures.extend(hour.burst_needed.map(|burst| format!("burst needed {}", percentiles(&burst, units))));
    figures.extend(hour.window_count.map(|count| format!("highest count of a window {}", percentiles(&count, units))));
    figures.extend(hour.use_share.map(|share| format!("use of the limit {}", percentiles(&share, percent))));
    for figure in figures {
        let _ = writeln!(text, "  {figure}");
    }
    top(&mut text, "most refused units", &report.top_refused);
    top(&mut text, "most allowed units", &report.top_allowed);
    match (&limit.suggested_rules, &report.suggestion) {
        (Some(rules), _) => {
            text.push_str("  suggested:\n");
            rules.lines().for_each(|line| text.push_str(&format!("    {line}\n")));
        }
        (None, Some(suggestion)) => {
            let burst = suggestion.burst.map(|burst| format!(", burst {burst}")).unwrap_or_default();
            let _ = writeln!(text, "  suggested: {} in each window{burst}", suggestion.limit);
        }
        (None, None) => {}
    }
    text
}

fn quota(reported: &Reported) -> String {
    let limit = &reported.limit;
    let window =
        limit.window_ns.map(|ns| format!(" in {}", format_duration(Duration::from_nanos(ns)))).unwrap_or_default();
    let capacity = if limit.capacity == limit.limit { String::new() } else { format!(", capacity {}", limit.capacity) };
    format!("{} {}{window}{capacity}", limit.algorithm, limit.limit)
}

/// Returns the counts of a span: `1h: 12,000 requests, 8.1 % refused; 340 callers, 12 refused; waits 1s, 4s, 5s`.
fn counts(span: &SpanReport) -> String {
    let span_text = format_duration(Duration::from_nanos(span.span_ns));
    let refused = 100.0 * span.counts.refused_requests as f64 / span.counts.requests.max(1) as f64;
    let requests = units(span.counts.requests as f64);
    let (asked, refused_callers) = (estimate(&span.callers.asked), estimate(&span.callers.refused));
    let mut text = format!(
        "last {span_text}: {requests} requests, {refused:.1} % refused; {asked} callers, {refused_callers} refused"
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

fn estimate(estimate: &Estimate) -> String {
    if estimate.relative_error == 0.0 {
        return units(estimate.value);
    }
    format!("about {} (± {:.1} %)", units(estimate.value), 100.0 * estimate.relative_error)
}

fn percentiles(figures: &Percentiles, show: fn(f64) -> String) -> String {
    let range = |range: &Range| match range.at_most {
        Some(at_most) if at_most == range.at_least => show(at_most),
        Some(at_most) => format!("{} to {}", show(range.at_least), show(at_most)),
        None => format!("at least {}", show(range.at_least)),
    };
    format!(
        "{} (median), {} (99 %), {} (highest)",
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

fn top(text: &mut String, title: &str, top: &TopCallers) {
    let callers: Vec<_> = top
        .callers
        .iter()
        .filter(|caller| caller.units > top.missing)
        .take(CALLERS)
        .map(|caller| {
            let who = caller.name.as_deref().map_or_else(|| caller.id.to_string(), printable);
            format!("{who} {:.1} %", 100.0 * caller.units as f64 / top.units.max(1) as f64)
        })
        .collect();
    if !callers.is_empty() {
        let _ = writeln!(text, "  {title}: {}", callers.join(", "));
    }
}

/// Replaces control characters: a client chose the text, and the terminal must not obey it.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
