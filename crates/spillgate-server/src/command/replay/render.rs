//! Prints the result of a replay for people.

use std::time::Duration;

use spillgate::insight::Verdict;
use spillgate::rules::limit_size;
use spillgate::text::{count, percent, thousands};
use spillgate::units::format_duration;
use spillgate_replay::report::{
    Agreement, CallerCounts, Comparison, Counts, LimitCallers, LimitChange, LimitReport, LogSummary, Period, Refusal,
    ReplayReport, RunReport, SampleLine, Samples, SuggestionResult,
};

use crate::command::insight::render::{advice, counts, figures, push_line, push_rules, title, verdict, verdict_name};
use crate::command::terminal::{Terminal, Tone, clean, date_time, duration};

/// How many refusals of each list are printed, at most. JSON and HTML have more.
const REFUSALS: usize = 3;
/// How many callers of each list are printed, at most.
const TOP: usize = 5;

/// A text that grows by lines. On a terminal, no line is wider than the terminal.
struct Lines<'t> {
    text: String,
    width: Option<usize>,
    terminal: &'t Terminal,
}

impl Lines<'_> {
    fn push(&mut self, line: &str) {
        push_line(&mut self.text, line, self.width);
    }

    /// Begins a section of the text with its title.
    fn part(&mut self, title: &str) {
        let title = self.terminal.paint(Tone::Title, title);
        self.text.push('\n');
        self.push(&title);
    }
}

pub(super) fn text(report: &ReplayReport, terminal: &Terminal) -> String {
    let mut lines = Lines { text: String::new(), width: terminal.width(), terminal };
    log(&mut lines, &report.log);
    report.warnings.iter().for_each(|warning| lines.push(&format!("warning: {}", clean(warning))));
    if let Some(run) = report.runs.first() {
        lines.push(&requests(run));
        run.limits.iter().for_each(|of_limit| limit(&mut lines, of_limit));
    }
    if let Some(compared) = &report.comparison {
        comparison(&mut lines, compared);
    }
    if !report.suggestion_notes.is_empty() {
        lines.part("suggestions, each with all other limits as they are today");
        report.suggestions.iter().for_each(|result| suggestion(&mut lines, result));
        report.suggestion_notes.iter().for_each(|note| lines.push(&format!("  {}", clean(note))));
    }
    lines.text.push('\n');
    report.notes.iter().for_each(|note| lines.push(&format!("note: {note}")));
    lines.text
}

fn log(lines: &mut Lines<'_>, log: &LogSummary) {
    let period = format!("{} to {} UTC", date_time(log.from_ns), date_time(log.to_ns));
    let files = match &log.files[..] {
        [file] => clean(file),
        files => grouped(files.len() as u64, "file"),
    };
    lines.push(&format!("{files}: {}, {period}", grouped(log.requests, "request")));
    samples(lines, "cannot be read", &log.unreadable);
    samples(lines, "came later than allowed, and were decided at the time of the newest line before them", &log.late);
    samples(lines, "exceed a bound of the server's settings, and were not decided", &log.not_decided);
    if log.without_descriptor > 0 {
        let descriptors = log.descriptors.iter().map(|text| clean(text)).collect::<Vec<_>>().join(", ");
        let without = grouped(log.without_descriptor, "line");
        lines.push(&format!("{without} without all fields of any descriptor ({descriptors}): not decided"));
    }
}

fn samples(lines: &mut Lines<'_>, what: &str, samples: &Samples) {
    if samples.count == 0 {
        return;
    }
    let first = if samples.count > samples.first.len() as u64 { ". The first ones" } else { "" };
    lines.push(&format!("{} {what}{first}:", grouped(samples.count, "line")));
    for SampleLine { file, line, why, text } in &samples.first {
        let text = text.as_deref().map(|text| format!(": {}", clean(text))).unwrap_or_default();
        lines.push(&format!("  {}:{line}: {}{text}", clean(file), clean(why)));
    }
}

fn requests(run: &RunReport) -> String {
    let unmatched = match run.unmatched_requests {
        0 => String::new(),
        unmatched => format!(". {} matched no rule", grouped(unmatched, "request")),
    };
    let full = match run.store_full_requests {
        0 => String::new(),
        full => format!(". {} refused because the memory is full: raise memory.max_keys", grouped(full, "request")),
    };
    let counts = Counts { allowed: run.allowed_requests, refused: run.refused_requests };
    format!("{}: {}{unmatched}{full}", clean(&run.name), allowed_and_refused(counts))
}

fn limit(lines: &mut Lines<'_>, report: &LimitReport) {
    lines.text.push('\n');
    lines.push(&title(&report.limit, lines.terminal));
    let counts = Counts { allowed: report.allowed_requests, refused: report.refused_requests };
    lines.push(&format!("  {}", allowed_and_refused(counts)));
    if report.limit.options.passing().is_some() && report.refused_requests > 0 {
        lines.push("  These refusals refuse no request, because the rule is in shadow mode or quota mode.");
    }
    if let Some(note) = &report.note {
        lines.push(&format!("  {note}"));
    }
    if let Some(whole_log) = &report.whole_log {
        let verdict = verdict_name(whole_log.verdict, whole_log.who, lines.terminal);
        lines.push(&format!("  the whole log: {verdict}. {}", clean(&whole_log.reason)));
        // A log that is too short gets no longer if somebody waits.
        if whole_log.verdict != Verdict::TooEarly {
            lines.push(&advice(whole_log.verdict, whole_log.who));
        }
    }
    if let Some(shown) = &report.period {
        period(lines, report, shown);
    }
    if let Some(rules) = report.whole_log.as_ref().and_then(|whole_log| whole_log.suggested_rules.as_deref()) {
        push_rules(&mut lines.text, rules);
    }
    callers(lines, &report.callers);
    refusals(lines, "first refusals", &report.first_refusals);
    refusals(lines, "longest waits, each of another caller", &report.longest_refusals);
}

/// Adds the insight of the hour that is shown.
fn period(lines: &mut Lines<'_>, report: &LimitReport, period: &Period) {
    let insight = &period.report;
    let passes = report.limit.options.passing().is_some();
    let [.., hour] = &insight.spans;
    let length = format_duration(Duration::from_nanos(hour.span_ns));
    let which = if report.refused_requests > 0 { "with the most refusals" } else { "of the highest use" };
    lines.push(&format!("  the hour {which}, up to {} UTC:", date_time(period.to_ns)));
    verdict(insight, lines.terminal).for_each(|line| lines.push(&line));
    lines.push(&format!("    last {length}: {}", counts(hour, passes)));
    for figure in figures(hour) {
        let error = match period.burst_error_units {
            Some(units) if figure.starts_with("burst needed") => format!(", ± {} (whole seconds)", thousands(units)),
            _ => String::new(),
        };
        lines.push(&format!("    last {length}: {figure}{error}"));
    }
    if let Some(evidence) = &insight.evidence {
        lines.push(&format!("  {evidence}"));
    }
}

/// Adds the callers of the whole log.
fn callers(lines: &mut Lines<'_>, callers: &LimitCallers) {
    top(lines, ("most refused", callers.counted), &callers.top_refused, |counts| counts.refused);
    top(lines, ("most allowed", callers.counted), &callers.top_allowed, |counts| counts.allowed);
    if callers.further != Counts::default() {
        lines.push(&format!("  of further callers together: {}", allowed_and_refused(callers.further)));
    }
}

fn top(lines: &mut Lines<'_>, (what, all): (&str, u64), list: &[CallerCounts], count: fn(&Counts) -> u64) {
    let one = |CallerCounts { caller, counts }: &CallerCounts| {
        let requests = thousands(counts.allowed + counts.refused);
        format!("{} {} of {requests}", quoted(caller), thousands(count(counts)))
    };
    let list: Vec<_> = list.iter().take(TOP).map(one).collect();
    if !list.is_empty() {
        lines.push(&format!("  {what} requests in the log, of {}: {}", grouped(all, "caller"), list.join(", ")));
    }
}

fn refusals(lines: &mut Lines<'_>, name: &str, refusals: &[Refusal]) {
    if refusals.is_empty() {
        return;
    }
    lines.push(&format!("  {name}:"));
    for Refusal { file, line, time_ns, text, caller, wait_ns } in refusals.iter().take(REFUSALS) {
        let wait = wait_ns.map(|ns| format!(", wait {}", wait(ns))).unwrap_or_default();
        lines.push(&format!("    {} {}{wait} ({}:{line})", date_time(*time_ns), quoted(caller), clean(file)));
        if let Some(text) = text {
            lines.push(&format!("      {}", clean(text)));
        }
    }
}

fn comparison(lines: &mut Lines<'_>, comparison: &Comparison) {
    let Comparison { old, new, requests, .. } = comparison;
    lines.part(&clean(&format!("compared with {old}")));
    let changed = requests.only_old_refuses + requests.only_new_refuses;
    if changed == 0 {
        lines.push("  no request is answered differently");
    }
    for (count, before) in [
        (requests.only_new_refuses, format!("refused, which pass with {old}")),
        (requests.only_old_refuses, format!("allowed, which {old} refuses")),
    ] {
        if count > 0 {
            lines.push(&format!("  {}: {}", grouped(count, "request"), clean(&before)));
        }
    }
    for change in &comparison.limits {
        lines.push(&limit_change(change, (old, new)));
    }
    for change in &comparison.callers {
        let refused = was_and_is(change.old_refused, change.new_refused);
        lines.push(&format!("  {}: {refused} of {}", quoted(&change.caller), grouped(change.requests, "request")));
    }
    if comparison.further_callers > 0 {
        lines.push(&format!("  and {} more whose refusals change", grouped(comparison.further_callers, "caller")));
    }
    if comparison.callers_incomplete {
        lines.push("  There are too many callers to compare all of them: those that came last are not in this list. The sums above have all requests.");
    }
}

fn limit_change(change: &LimitChange, (old, new): (&str, &str)) -> String {
    let name = change.name.as_deref().map(|name| format!(" {name}")).unwrap_or_default();
    let name = clean(&format!("{}: {}{name}", change.domain, change.rule));
    let change = match (change.old, change.new) {
        (Some(before), Some(after)) => was_and_is(before.refused, after.refused),
        (None, Some(after)) => format!("{} refused. It is only in {}", thousands(after.refused), clean(new)),
        (before, None) => {
            let refused = before.map_or(0, |counts| counts.refused);
            format!("it is only in {}, where it refuses {}", clean(old), grouped(refused, "request"))
        }
    };
    format!("  {name}: {change}")
}

fn was_and_is(old_refused: u64, new_refused: u64) -> String {
    format!("{} refused (before: {})", thousands(new_refused), thousands(old_refused))
}

fn suggestion(lines: &mut Lines<'_>, result: &SuggestionResult) {
    lines.push(&title(&result.limit, lines.terminal));
    let burst = result.suggested_burst.map(|burst| format!(", burst {}", thousands(burst))).unwrap_or_default();
    let size = limit_size(result.suggested_limit, result.limit.window_ns);
    lines.push(&format!("  suggested: {size}{burst}"));
    for (name, counts, found) in [
        ("today", result.today, Some((result.verdict_today, result.who_today))),
        ("then", result.then, result.verdict_then.zip(result.who_then)),
    ] {
        let verdict =
            found.map(|(verdict, who)| format!("; {}", verdict_name(verdict, who, lines.terminal))).unwrap_or_default();
        lines.push(&format!("  {name}: {}{verdict}", allowed_and_refused(counts)));
    }
    let requests = &result.requests;
    let Agreement { both_refuse, only_old_refuses, only_new_refuses, .. } = *requests;
    lines.push(&format!(
        "  all rules together: {} refused (today: {})",
        thousands(both_refuse + only_new_refuses),
        thousands(both_refuse + only_old_refuses)
    ));
    lines.push(&format!(
        "  {} would pass that do not pass today, and {} would not pass that pass today",
        grouped(requests.only_old_refuses, "request"),
        thousands(requests.only_new_refuses)
    ));
}

fn allowed_and_refused(Counts { allowed, refused }: Counts) -> String {
    let share = percent(refused, allowed + refused);
    format!("{} allowed, {} refused ({share})", grouped(allowed, "request"), thousands(refused))
}

/// Returns a wait. A wait below a millisecond comes from rounding of the server, or does not matter.
fn wait(ns: u64) -> String {
    match ns {
        1..1_000_000 => "<1ms".to_owned(),
        ns => duration(Duration::from_nanos(ns)),
    }
}

/// Returns a text from the log in quotes, so that no text can look like several callers.
fn quoted(text: &str) -> String {
    format!("{text:?}")
}

fn grouped(number: u64, noun: &str) -> String {
    count(thousands(number), noun)
}
