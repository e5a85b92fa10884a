//! Prints the insights of limits for people.

use std::fmt::Write as _;
use std::time::Duration;

use spillgate::insight::{
    Callers, Counts, Estimate, Percentiles, Range, Report, SpanReport, TopCallers, Urgency, Verdict, Who,
};
use spillgate::rules::{LimitDescription, limit_size};
use spillgate::units::format_duration;

use super::Reported;
use super::page::By;
use crate::command::terminal::{Terminal, Tone, clean, count, percent, thousands, wrapped};

/// At most this many callers are shown.
const CALLERS: usize = 5;

/// What became of the requests over a limit. A limit in shadow lets them pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    Refused,
    WouldBeRefused,
    /// The limit was in shadow for a part of the time.
    Both,
}

impl Over {
    /// Returns what became of `requests` requests over a limit, of which `unenforced` passed. `passes` says whether such a
    /// request passes now.
    pub(crate) const fn of(requests: u64, unenforced: u64, passes: bool) -> Over {
        match (requests, unenforced) {
            (0, _) if passes => Over::WouldBeRefused,
            (_, 0) => Over::Refused,
            (requests, unenforced) if unenforced >= requests => Over::WouldBeRefused,
            _ => Over::Both,
        }
    }

    fn of_span(span: &SpanReport, passes: bool) -> Over {
        Over::of(span.counts.refused_requests, span.counts.unenforced_requests, passes)
    }

    /// Returns what units over the limit are called.
    pub(crate) const fn units(self) -> &'static str {
        if matches!(self, Over::Refused) { "refused units" } else { "units over the limit" }
    }
}

/// Returns the text for all limits. On a terminal, no line is wider than the terminal, except in a suggestion. `units` is
/// another limit that was asked about.
pub(super) fn text(limits: &[Reported], units: Option<u64>, terminal: &Terminal) -> String {
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
        if let Some(units) = units {
            let unknown = || {
                format!(
                    "With a limit of {units}: this cannot be known. The limit is a queue, or has permits, or is 0, or had no callers, or cannot be {units}."
                )
            };
            let line = reported.with_limit.as_ref().map_or_else(unknown, |other| other.text.clone());
            push_line(&mut text, &format!("  {line}"), terminal.width());
        }
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
    let [.., hour] = &report.spans;
    let mut lines = vec![title(&reported.limit.name, terminal)];
    if reported.limit.shared && hour.counts.requests > 0 {
        lines.push(format!("  {}", shared(reported.limit.by.is_some())));
    }
    lines.extend(verdict(report, terminal));
    lines.push(advice(report.verdict, report.who));
    // In a fleet, some servers can have counted for longer than others.
    let reading = &reported.limit.reading;
    let watched_ns = reading.now_ns.saturating_sub(reading.first_since_ns);
    lines.extend(spans(report, passes, watched_ns));
    lines.extend(figures(hour).map(|figure| format!("  last {}: {figure}", span_name(hour, watched_ns))));
    let units = Over::of_span(hour, passes).units();
    lines.extend(tops(units, "", [&report.top_refused, &report.top_allowed]));
    if let Some(By { key, allowed, refused }) = &reported.limit.by {
        lines.extend(tops(units, &format!(" by {}", clean(key)), [refused, allowed]));
    }
    lines
}

/// Returns the line about a rule whose requests share one counter. `has_by` says whether the rule has `insight_by`.
pub(crate) fn shared(has_by: bool) -> String {
    let by = "The setting insight_by: KEY of the rule shows which values of KEY fill it.";
    let shared = "All requests of this rule share one counter, so they count as one caller.";
    if has_by { shared.to_owned() } else { format!("{shared} {by}") }
}

/// Returns the counts of each span. Spans with the same counts share a line.
fn spans(report: &Report, passes: bool, watched_ns: u64) -> Vec<String> {
    let mut lines: Vec<(Vec<String>, String)> = Vec::new();
    for span in report.spans.iter().filter(|span| span.counts.requests > 0) {
        let (name, counts) = (span_name(span, watched_ns), counts(span, passes));
        match lines.last_mut() {
            Some((names, same)) if *same == counts => names.push(name),
            _ => lines.push((vec![name], counts)),
        }
    }
    let line = |(mut names, counts): (Vec<String>, String)| {
        // A span that is longer than the counting has the name of the one before.
        names.dedup();
        format!("  last {}: {counts}", names.join(", "))
    };
    lines.into_iter().map(line).collect()
}

/// Returns the line that names a limit.
pub(crate) fn title(limit: &LimitDescription, terminal: &Terminal) -> String {
    let title = clean(&if limit.name.is_some() { limit.full_name() } else { limit.rule_name() });
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

/// Returns the lines with the verdict, its reason, and what can be the cause.
pub(crate) fn verdict(report: &Report, terminal: &Terminal) -> impl Iterator<Item = String> {
    let name = verdict_name(report.verdict, report.who, terminal);
    let verdict = format!("  {name}: {}", clean(&report.reason));
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

/// Returns the lines with the callers that have the most units. `units` is what units over the limit are called, and `by`
/// says which callers these are.
fn tops(units: &str, by: &str, [refused, allowed]: [&TopCallers; 2]) -> impl Iterator<Item = String> {
    let lines = [top(&format!("most {units}{by}"), refused), top(&format!("most allowed units{by}"), allowed)];
    lines.into_iter().flatten()
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

/// Returns the counts of a span: `12,000 requests, 972 refused (8.1 %); 340 callers, 12 refused; waits 1s, 4s, 5s`.
/// `passes` says whether requests over the limit pass now.
pub(crate) fn counts(span: &SpanReport, passes: bool) -> String {
    let Counts { requests, refused_requests, unenforced_requests, refused_elsewhere_requests, .. } = span.counts;
    let share = |part: u64| format!("({})", percent(part, requests));
    let over = |part: u64| units(part as f64);
    let (refused, callers) = match Over::of_span(span, passes) {
        Over::Refused => (format!("{} refused {}", over(refused_requests), share(refused_requests)), "refused"),
        Over::WouldBeRefused => {
            (format!("{} would be refused {}", over(refused_requests), share(refused_requests)), "would be refused")
        }
        Over::Both => {
            let enforced = refused_requests - unenforced_requests;
            let (refused, would) = (over(enforced), over(unenforced_requests));
            (
                format!(
                    "{refused} refused {}, {would} over the limit in shadow {}",
                    share(enforced),
                    share(unenforced_requests)
                ),
                "over the limit",
            )
        }
    };
    let elsewhere = match refused_elsewhere_requests {
        0 => String::new(),
        requests => format!(", {} refused by other limits", over(requests)),
    };
    let Callers { asked, refused: refused_callers, .. } = span.callers;
    let mut text = format!(
        "{}, {refused}{elsewhere}; {}, {} {callers}",
        count(units(requests as f64), "request"),
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

/// Returns the length of a span, or the time since the counting began if that is shorter.
fn span_name(span: &SpanReport, watched_ns: u64) -> String {
    let counted = Duration::from_nanos(span.span_ns.min(watched_ns)).as_secs().max(1);
    format_duration(Duration::from_secs(counted))
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
