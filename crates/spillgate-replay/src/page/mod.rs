//! Writes a replay as one HTML file, for an engineer who opens it once.
//!
//! The file needs no script, no other file and no network, and its content security policy forbids them. The first
//! screen says which limits need attention, and the section of a limit says what to change. Every text that came from
//! elsewhere is cleaned and escaped.

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
/// With this content security policy, nothing is loaded and no script runs, even if a text was not escaped.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

/// Returns the text of the HTML file.
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
                title { "Replay of " (spillgate_service::text::clean(&run.name)) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                main {
                    (overview::section(report, run))
                    @if let Some(comparison) = &report.comparison { (changes::comparison(comparison, report.runs.get(1))) }
                    @if !report.suggestion_notes.is_empty() { (changes::suggestions(report)) }
                    (limits(report, run))
                    (notes::lines(&report.log))
                    (notes::limits_of_knowledge(&report.notes))
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use spillgate::insight::{Verdict, Who};

    use super::*;

    #[test]
    fn a_text_of_the_log_is_never_markup() {
        let page = page(&crate::sample::sample());
        assert!(page.starts_with("<!DOCTYPE html><html lang=\"en\">"), "{page}");
        for part in ["<script", "<b>", "onerror", "http:", "https:", "//"] {
            assert!(!page.contains(part), "{part}");
        }
        assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;\\u{1b}[2J\\u{202e}"), "{page}");
        assert!(!page.contains(|c: char| c.is_control() && c != '\n' || c == '\u{202e}'));
        // Each opened element is closed, so no hostile text has broken the structure of the page.
        for element in ["table", "tr", "section", "article", "figure", "svg", "bdi", "details"] {
            let count = |part: String| page.matches(&part).count();
            let opened = count(format!("<{element}>")) + count(format!("<{element} "));
            assert_eq!(opened, count(format!("</{element}>")), "{element}");
        }
    }

    #[test]
    fn a_suggestion_has_what_all_rules_together_would_refuse() {
        let page = page(&crate::sample::sample()).replace('\u{a0}', " ");
        let sentence =
            "All rules together would refuse <strong>2.5 %</strong> of all requests instead of <strong>15 %</strong>.";
        assert!(page.contains(sentence) && page.contains("500 (2.5 %)"), "{page}");
        assert!(page.contains("counted only together: 3 of their requests are allowed, and 4 are refused."), "{page}");
    }

    #[test]
    fn limits_without_a_verdict_are_not_called_good() {
        let mut report = crate::sample::sample();
        report.runs[0].limits.retain(|limit| limit.period.is_none());
        let page = page(&report).replace('\u{a0}', " ");
        assert!(!page.contains("No limit needs attention"), "{page}");
        assert!(page.contains("For 1 limit, it is not known whether the rules work."), "{page}");
    }

    #[test]
    fn a_limit_that_could_be_lower_needs_no_attention() {
        let mut report = crate::sample::sample();
        for whole_log in report.runs[0].limits.iter_mut().filter_map(|limit| limit.whole_log.as_mut()) {
            (whole_log.verdict, whole_log.who) = (Verdict::NeverBinding, Who::Nobody);
        }
        let page = page(&report).replace('\u{a0}', " ");
        assert!(page.contains("2 limits could be lower.") && !page.contains("need attention."), "{page}");
        assert!(page.contains("▽") && !page.contains("▲"), "{page}");
    }

    #[test]
    fn one_bar_alone_has_words_and_no_picture() {
        let mut report = crate::sample::sample();
        let picture = "aria-label=\"Callers by the burst that they need.";
        assert!(page(&report).contains(picture));
        for period in report.runs[0].limits.iter_mut().filter_map(|limit| limit.period.as_mut()) {
            period.burst_needed[1..].iter_mut().for_each(|bar| bar.callers = 0);
        }
        let page = page(&report);
        assert!(!page.contains(picture) && page.contains("Burst that callers need, in units."), "{page}");
    }

    #[test]
    fn a_sentence_begins_after_a_badge() {
        let page = page(&crate::sample::sample());
        let (_, after) = page.split_once("Its verdict would be: ").expect("a suggestion has a verdict");
        let (badge, sentence) = after.split_once(". ").expect("the sentence ends");
        assert!(badge.ends_with("</span>") && sentence.starts_with("All rules together"), "{after}");
    }

    /// Returns the colours of the blocks that begin with `:root`: light, dark and print. Print changes some colours of
    /// light.
    fn schemes() -> Vec<BTreeMap<&'static str, f64>> {
        let blocks = STYLE.split(":root {").skip(1).map(|block| block.split('}').next().unwrap_or_default());
        let colours = |block: &'static str| {
            let lines =
                block.lines().filter_map(|line| line.trim().strip_prefix("--")?.strip_suffix(';')?.split_once(": #"));
            lines.map(|(name, colour)| (name, luminance(colour))).collect()
        };
        let mut schemes: Vec<BTreeMap<_, _>> = blocks.map(colours).collect();
        if let [light, _, print] = &mut schemes[..] {
            light.iter().for_each(|(name, colour)| _ = print.entry(name).or_insert(*colour));
        }
        schemes
    }

    /// Returns the relative luminance of WCAG 2.
    fn luminance(colour: &str) -> f64 {
        let channel = |at: usize| {
            let value = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).expect("it is hexadecimal")) / 255.0;
            if value <= 0.040_45 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * channel(0) + 0.7152 * channel(2) + 0.0722 * channel(4)
    }

    #[test]
    fn contrasts_are_those_of_wcag_aa() {
        let texts = [
            ("text", "background"),
            ("text", "card"),
            ("text", "edge"),
            ("faint", "background"),
            ("faint", "card"),
            ("link", "background"),
            ("good", "good-card"),
            ("warn", "warn-card"),
            ("bad", "bad-card"),
        ];
        let shapes = [
            ("allowed-edge", "background"),
            ("refused", "background"),
            ("near", "background"),
            ("refused", "allowed"),
            ("near", "allowed"),
            ("allowed-edge", "edge"),
            ("refused", "edge"),
            ("faint", "background"),
        ];
        let schemes = schemes();
        assert_eq!(schemes.len(), 3, "light, dark and print");
        for colours in schemes {
            let ratio = |pair: (&str, &str)| {
                let (one, other) = (colours[pair.0] + 0.05, colours[pair.1] + 0.05);
                one.max(other) / one.min(other)
            };
            for (pairs, least) in [(&texts[..], 4.5), (&shapes[..], 3.0)] {
                for pair in pairs {
                    assert!(ratio(*pair) >= least, "{pair:?}: {:.2} is below {least}", ratio(*pair));
                }
            }
        }
    }
}
