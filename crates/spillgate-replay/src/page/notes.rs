//! The end of the page: lines that were not used, and what a log cannot show.

use maud::{Markup, html};

use super::overview::unused;
use super::table::Table;
use super::words::{count, seen};
use crate::report::{LogSummary, SampleLine, Samples};

/// Returns the lines that were not decided, or not at their own time. Returns nothing if there are no such lines.
pub(super) fn lines(log: &LogSummary) -> Markup {
    let kinds = [
        ("unreadable", &log.unreadable, "could not be read"),
        ("not decided", &log.not_decided, "exceed a bound of the settings, so a server would not decide them"),
        ("late", &log.late, "came later than allowed, and were decided at the time of the newest line before them"),
    ];
    if unused(log) == 0 && log.late.count == 0 {
        return html! {};
    }
    html! {
        section id="lines" aria-labelledby="lines-name" {
            h2 id="lines-name" { "Lines of the log that were not used as they are" }
            ul {
                @for (_, samples, what) in kinds.iter().filter(|(_, samples, _)| samples.count > 0) {
                    li { (count(samples.count, "line")) " " (what) "." }
                }
                @if log.without_descriptor > 0 {
                    li { (count(log.without_descriptor, "line")) " without all fields of any descriptor: not decided." }
                }
            }
            @for (kind, samples, _) in kinds { (first(kind, samples)) }
        }
    }
}

fn first(kind: &str, samples: &Samples) -> Markup {
    if samples.first.is_empty() {
        return html! {};
    }
    let has_text = samples.first.iter().any(|line| line.text.is_some());
    let row = |line: &SampleLine| {
        let mut row = vec![html! { (seen(&line.file)) ":" (line.line) }, seen(&line.why)];
        if has_text {
            row.push(html! { code { (seen(line.text.as_deref().unwrap_or_default())) } });
        }
        row
    };
    let mut heads = vec!["file and line", "reason"];
    if has_text {
        heads.push("beginning of the line");
    }
    let caption = format!("The first {kind} lines");
    let table = Table { caption: caption.clone(), heads, numbers: &[], rows: samples.first.iter().map(row).collect() };
    html! { details { summary { (caption) } (table.markup()) } }
}

/// Says what the reader must not conclude from the report.
pub(super) fn limits_of_knowledge(notes: &[String]) -> Markup {
    html! {
        section id="notes" aria-labelledby="notes-name" {
            h2 id="notes-name" { "What to know before you conclude" }
            ul {
                @for note in notes { li { (seen(note)) } }
                li { "Verdicts, bursts and the use of a limit are of one hour of each limit: the one that needs the most attention." }
            }
        }
    }
}
