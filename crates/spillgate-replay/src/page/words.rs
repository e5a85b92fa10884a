//! How the page writes numbers, times, limits and verdicts.

use std::time::Duration;

use maud::{Markup, html};
use spillgate::Algorithm;
use spillgate::insight::{Suggestion, Urgency, Verdict, Who};
use spillgate::rules::{LimitDescription, limit_size};
use spillgate::text::{self, thousands};
use spillgate::units::format_duration;
use spillgate_service::text::clean;

use crate::calendar::utc;
use crate::report::RunReport;

/// What insight has seen, and whose units were refused.
pub(super) type Seen = (Verdict, Who);

/// A space at which no line is broken.
const FIXED_SPACE: char = '\u{a0}';
const SECOND_NS: u64 = 1_000_000_000;
const MINUTE_NS: u64 = 60 * SECOND_NS;

/// Returns a text that came from a log or from a rules file. Control characters become visible, and a text that is
/// written from right to left cannot change the direction of the text after it.
pub(super) fn seen(text: &str) -> Markup {
    html! { bdi { (clean(text)) } }
}

/// Returns a number as it is, or rounded if it is so long that it would make a table too wide: `12,345`, `18.4E`.
pub(super) fn number(number: u64) -> String {
    if number < 1_000_000_000_000 { thousands(number) } else { short(number as f64) }
}

/// Returns a number with its noun: `1 request`, `2,000 requests`.
pub(super) fn count(of: u64, noun: &str) -> String {
    text::count(number(of), noun).replacen(' ', &FIXED_SPACE.to_string(), 1)
}

/// Returns a part in percent. It is 0 % or 100 % only if the part is nothing or everything.
pub(super) fn share(part: u64, whole: u64) -> String {
    let percent = 100.0 * part as f64 / whole.max(1) as f64;
    let number = match percent {
        _ if part == 0 => "0".to_owned(),
        _ if part >= whole => "100".to_owned(),
        ..0.1 => "below 0.1".to_owned(),
        _ if percent > 99.9 => "above 99.9".to_owned(),
        10.0..99.0 => format!("{percent:.0}"),
        _ => format!("{percent:.1}"),
    };
    format!("{number}{FIXED_SPACE}%")
}

/// Returns a number in few characters, rounded: `8`, `950`, `16.4k`, `2M`.
pub(super) fn short(number: f64) -> String {
    let powers = [(1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    let (scaled, unit) = match powers.iter().find(|(power, _)| number >= *power) {
        Some(_) if number >= 1e21 => return format!("{number:.0e}"),
        Some((power, unit)) if number >= 10_000.0 => (number / power, *unit),
        Some(_) => return thousands(number.round()),
        None => (number, ""),
    };
    let rounded = if scaled < 100.0 { format!("{scaled:.1}") } else { format!("{scaled:.0}") };
    format!("{}{unit}", rounded.strip_suffix(".0").unwrap_or(&rounded))
}

pub(super) fn duration(ns: u64) -> String {
    format_duration(Duration::from_nanos(ns))
}

/// Returns a wait, rounded up: to milliseconds if it is below 10 seconds, and otherwise to seconds.
pub(super) fn wait(wait_ns: Option<u64>) -> String {
    let rounded = |ns: u64| {
        let step = if ns < 10_000_000_000 { 1_000_000 } else { 1_000_000_000 };
        duration(ns.div_ceil(step).saturating_mul(step))
    };
    match wait_ns {
        None => "not known".to_owned(),
        Some(1..1_000_000) => "<1ms".to_owned(),
        Some(ns) => rounded(ns),
    }
}

/// Returns a time with its date: `2026-03-01 12:00:05`.
pub(super) fn time(time_ns: u64) -> String {
    let at = utc(time_ns);
    format!("{}{FIXED_SPACE}{}", at.date(), at.time())
}

/// Returns the first and the last time: `2026-03-01 12:00:05 to 13:00:00 UTC`. Seconds are left out if both times are
/// full minutes.
pub(super) fn times(from_ns: u64, to_ns: u64) -> String {
    // A time that ends with the last nanosecond of a second ends when the next second begins.
    let to_ns = if to_ns % SECOND_NS == SECOND_NS - 1 { to_ns.saturating_add(1) } else { to_ns };
    let minutes = from_ns.is_multiple_of(MINUTE_NS) && to_ns.is_multiple_of(MINUTE_NS);
    let cut = |text: String| if minutes { text[..text.len() - ":00".len()].to_owned() } else { text };
    if from_ns == to_ns {
        return format!("{}{FIXED_SPACE}UTC", time(from_ns));
    }
    let (from, to) = (utc(from_ns), utc(to_ns));
    let to = if from.date() == to.date() { to.time().to_string() } else { time(to_ns) };
    format!("{} to {}{FIXED_SPACE}UTC", cut(time(from_ns)), cut(to))
}

/// Returns what the reader can do.
pub(super) const fn advice_of(judged: Option<Seen>) -> &'static str {
    match judged {
        Some((verdict, who)) => verdict.advice(who),
        None => "Read the note.",
    }
}

/// Returns whether the reader should change something now. A limit that never binds only could be lower.
pub(super) const fn needs_attention(judged: Option<Seen>) -> bool {
    match judged {
        Some((Verdict::NeverBinding, _)) | None => false,
        Some((verdict, who)) => matches!(verdict.urgency(who), Urgency::High | Urgency::Low),
    }
}

/// Returns a verdict with a sign, so that colours are not needed.
pub(super) fn badge(judged: Option<Seen>) -> Markup {
    let (class, sign) = match judged.map_or(Urgency::Unknown, |(verdict, who)| verdict.urgency(who)) {
        _ if matches!(judged, Some((Verdict::NeverBinding, _))) => ("faint", "▽"),
        Urgency::High => ("bad", "✕"),
        Urgency::Low => ("warn", "▲"),
        Urgency::None => ("good", "✓"),
        Urgency::Unknown => ("faint", "?"),
    };
    let name = judged.map_or_else(|| "no verdict".to_owned(), |(verdict, who)| verdict.words_with(who));
    html! { span class={ "badge " (class) } { span aria-hidden="true" { (sign) } " " (name) } }
}

/// Returns the full name of a limit: its domain, its rule, and its own name.
pub(super) fn name(domain: &str, rule: &str, name: Option<&str>) -> Markup {
    html! {
        span class="domain" { (seen(domain)) ": " } (seen(rule))
        @if let Some(name) = name { " (" (seen(name)) ")" }
    }
}

pub(super) fn limit_name(limit: &LimitDescription) -> Markup {
    name(&limit.domain, &limit.rule, limit.name.as_deref())
}

/// Returns how many units a limit like this one would allow: `60 per minute`.
pub(super) fn units_of(limit: &LimitDescription, units: u64) -> String {
    limit_size(units, limit.window_ns)
}

/// Returns what the reader can do, with the numbers that insight suggests.
pub(super) fn advice(limit: &LimitDescription, judged: Option<Seen>, suggestion: Option<&Suggestion>) -> String {
    let plain = advice_of(judged);
    let verdict = judged.map(|(verdict, _)| verdict);
    let Some(suggestion) = suggestion else { return plain.to_owned() };
    let new_limit = (suggestion.limit != limit.limit).then(|| units_of(limit, suggestion.limit));
    let changed = match suggestion.burst {
        Some(burst) if limit.algorithm != Algorithm::TokenBucket.as_str() => {
            let units = units_of(limit, suggestion.limit);
            format!("Use a token bucket of {units} with a burst of {}", thousands(burst))
        }
        burst => {
            let burst = burst
                .filter(|burst| *burst != limit.capacity)
                .map(|burst| format!("the burst to {}", thousands(burst)));
            let parts: Vec<_> =
                new_limit.map(|units| format!("the limit to {units}")).into_iter().chain(burst).collect();
            let verb = if verdict == Some(Verdict::NeverBinding) { "Lower" } else { "Raise" };
            format!("{verb} {}", parts.join(" and "))
        }
    };
    match verdict {
        Some(Verdict::Bursts) => format!("{changed}, unless you want to refuse bursts."),
        Some(Verdict::AboveRate) => format!("{changed}, or keep it if it protects something that cannot do more."),
        _ => format!("{changed}."),
    }
}

/// Returns what a limit allows. Its words can come from a file, so they are cleaned.
pub(super) fn quota(limit: &LimitDescription) -> String {
    clean(&limit.summary())
}

/// Returns all requests of the run: those of the log that were decided.
pub(super) const fn requests(run: &RunReport) -> u64 {
    run.allowed_requests.saturating_add(run.refused_requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_never_hide_that_something_is_there() {
        let shares = [(0, 0), (0, 7), (1, 10_000_000), (1, 30), (1, 3), (999, 1_000), (9_999, 10_000), (7, 7), (7, 0)];
        let expected = ["0", "0", "below 0.1", "3.3", "33", "99.9", "above 99.9", "100", "100"];
        assert_eq!(shares.map(|(part, whole)| share(part, whole)), expected.map(|text| format!("{text}\u{a0}%")));
        let numbers = [0.0, 0.5, 8.0, 950.0, 4_096.0, 16_384.0, 123_456.0, 2e6, 1.8e19, f64::MAX];
        let expected = ["0", "0.5", "8", "950", "4,096", "16.4k", "123k", "2M", "18E", "2e308"];
        assert_eq!(numbers.map(short), expected);
        assert_eq!(
            [None, Some(0), Some(4), Some(1_000_000), Some(1_500_000_000), Some(90_000_000_001)].map(wait)[1..],
            ["0s", "<1ms", "1ms", "1.5s", "1m31s"]
        );
    }

    #[test]
    fn times_are_as_short_as_they_can_be() {
        let noon = 1_772_366_400 * SECOND_NS;
        let cases = [
            (noon, noon, "2026-03-01 12:00:00 UTC"),
            (noon, noon + 60 * MINUTE_NS - 1, "2026-03-01 12:00 to 13:00 UTC"),
            (noon, noon + 5 * SECOND_NS, "2026-03-01 12:00:00 to 12:00:05 UTC"),
            (noon, noon + 720 * MINUTE_NS, "2026-03-01 12:00 to 2026-03-02 00:00 UTC"),
        ];
        for (from_ns, to_ns, expected) in cases {
            assert_eq!(times(from_ns, to_ns).replace(FIXED_SPACE, " "), expected);
        }
        assert!(times(u64::MAX, u64::MAX).contains("2554-07-21"));
    }

    #[test]
    fn advice_has_the_numbers_that_change() {
        let limit = LimitDescription {
            domain: "d".into(),
            rule: "r".into(),
            file: "f".into(),
            line: 1,
            algorithm: "token_bucket".into(),
            limit: 60,
            window_ns: Some(MINUTE_NS),
            capacity: 10,
            ..Default::default()
        };
        let windows = LimitDescription { algorithm: "fixed_window".into(), capacity: 60, ..limit.clone() };
        let says = |limit: &LimitDescription, verdict, units, burst| {
            advice(limit, Some((verdict, Who::Many)), Some(&Suggestion::new(units, burst)))
        };
        let kept = "Raise the limit to 90 per minute, or keep it if it protects something that cannot do more.";
        assert_eq!(says(&limit, Verdict::AboveRate, 90, Some(10)), kept);
        assert_eq!(
            says(&limit, Verdict::Bursts, 60, Some(25)),
            "Raise the burst to 25, unless you want to refuse bursts."
        );
        assert_eq!(says(&limit, Verdict::NeverBinding, 60, Some(4)), "Lower the burst to 4.");
        assert_eq!(says(&windows, Verdict::NeverBinding, 20, None), "Lower the limit to 20 per minute.");
        let bucket = "Use a token bucket of 60 per minute with a burst of 99, unless you want to refuse bursts.";
        assert_eq!(says(&windows, Verdict::Bursts, 60, Some(99)), bucket);
        assert_eq!(advice(&limit, Some((Verdict::Effective, Who::Nobody)), None), "Keep it.");
    }

    #[test]
    fn a_text_from_elsewhere_cannot_be_markup_or_turn_the_text_around() {
        let text = seen("<b onclick=x>\u{202e}\u{1b}[0m&\u{0}").into_string();
        assert_eq!(text, "<bdi>&lt;b onclick=x&gt;\\u{202e}\\u{1b}[0m&amp;\\0</bdi>");
    }
}
