//! Writes a replay as one HTML file, for an engineer that opens it once.
//!
//! The file needs no script, no other file and no network, and its policy forbids them. The first screen says which limits need
//! attention, and the section of a limit says what to change. Every text that came from elsewhere is cleaned and escaped.

mod changes;
mod histogram;
mod limit;
mod notes;
mod overview;
mod picture;
mod table;
mod timeline;
mod words;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::report::{LimitReport, ReplayReport, RunReport, SuggestionResult};

const STYLE: &str = include_str!("page.css");
/// Nothing is loaded and no script runs, even if a text was not escaped.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

/// Returns the text of the file.
#[must_use]
pub fn page(report: &ReplayReport) -> String {
    let nothing = RunReport::default();
    let run = report.runs.first().unwrap_or(&nothing);
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="referrer" content="no-referrer";
                title { "Replay of " (crate::text::clean(&run.name)) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                main {
                    (overview::section(report, run))
                    @if let Some(comparison) = &report.comparison { (changes::comparison(comparison, report.runs.get(1))) }
                    @if !report.suggestions.is_empty() { (changes::suggestions(report)) }
                    (limits(report, run))
                    (notes::lines(&report.log))
                    (notes::limits_of_knowledge(&report.log))
                }
                footer { "Written by spillgate " (env!("CARGO_PKG_VERSION")) ". All times are in UTC." }
            }
        }
    };
    markup.into_string()
}

fn limits(report: &ReplayReport, run: &RunReport) -> Markup {
    if run.limits.is_empty() {
        return html! {};
    }
    html! {
        section id="limits" aria-labelledby="limits-name" {
            h2 id="limits-name" { "Each limit" }
            @for (index, limit) in run.limits.iter().enumerate() {
                (limit::section(index, limit, suggestion(report, limit)))
            }
        }
    }
}

/// Returns what the suggestion for this limit would do.
fn suggestion<'r>(report: &'r ReplayReport, limit: &LimitReport) -> Option<&'r SuggestionResult> {
    report.suggestions.iter().find(|result| result.limit == limit.limit)
}
