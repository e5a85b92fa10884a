//! Reads what the far side (the service that a program calls) says about its limits in the header fields of its
//! answers.
//!
//! | fields | where |
//! |---|---|
//! | `Retry-After` | RFC 9110 |
//! | `RateLimit` and `RateLimit-Policy` | the draft of the IETF, from version 8 on |
//! | `RateLimit-Limit`, `-Remaining`, `-Reset` | older drafts |
//! | `X-RateLimit-Limit`, `-Remaining`, `-Reset`, `-Reset-After`, also `X-Rate-Limit-` | GitHub, Okta, Discord and many others |
//! | the same with `-Requests` at the end, and `Anthropic-RateLimit-Requests-Limit` and so on | services of language models |

use std::time::Duration;

use http::HeaderMap;
use sfv::{BareItem, List, ListEntry, Parameters, Parser};
use smallvec::SmallVec;

use super::reset::{Reset, http_date, reset, seconds_or_date};

/// What one answer says about limits and pauses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    /// How long no call may be sent, as `Retry-After` says.
    pub(super) retry_after: Option<Duration>,
    /// The limits that the answer names.
    pub(super) limits: SmallVec<[FarLimit; 2]>,
}

/// One limit of the far side. A field is `None` if the answer does not say it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FarLimit {
    name: String,
    /// The units in each window.
    limit: Option<u64>,
    window: Option<Duration>,
    /// The units that are left.
    remaining: Option<u64>,
    /// When all units are available again.
    reset: Option<Reset>,
}

/// A pace that follows from the limits in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pace {
    /// The time between two calls.
    pub(super) interval: Duration,
    /// Whether the right `interval` can be longer than this one.
    pub(super) is_bound: bool,
}

impl FarLimit {
    /// Returns the pace that keeps this limit, if the call took `elapsed`. Returns `None` if the answer does not say
    /// enough.
    fn pace(&self, elapsed: Duration) -> Option<Pace> {
        let pace = |interval| Some(Pace { interval, is_bound: false });
        match (self.limit, self.window, self.remaining, self.reset) {
            (Some(limit @ 1..), Some(window), ..) if !window.is_zero() => pace(divided(window, limit)),
            (.., Some(remaining @ 1..), Some(reset)) if reset.is_exact_after(elapsed) => {
                pace(divided(reset.after, remaining))
            }
            // The window is at least as long as the time until the reset, because the reset ends the window.
            (Some(limit @ 1..), None, _, Some(reset)) if !reset.after.is_zero() => {
                Some(Pace { interval: divided(reset.after, limit), is_bound: true })
            }
            _ => None,
        }
    }

    /// Returns how long no call may be sent, because this limit is used up. After a refusal, this is the whole time
    /// until the reset. Any other answer shortens a time in whole seconds by one second, because most services round it
    /// up.
    fn used_up(&self, is_refusal: bool) -> Option<Duration> {
        let reset = self.reset.filter(|_| self.remaining == Some(0))?;
        Some(if is_refusal { reset.after } else { reset.after.saturating_sub(reset.rounded()) })
    }
}

fn divided(time: Duration, calls: u64) -> Duration {
    Duration::from_nanos(u64::try_from(time.as_nanos() / u128::from(calls)).unwrap_or(u64::MAX))
}

impl Said {
    /// Reads the fields of an answer. `now` is the local time since 1970. If the answer has the field `Date`, its time
    /// replaces `now`, so that the two clocks need not agree.
    pub(super) fn read(headers: &HeaderMap, now: Duration) -> Said {
        let now = text(headers, "date").and_then(http_date).unwrap_or(now);
        let mut said = Said {
            retry_after: text(headers, "retry-after").and_then(|text| seconds_or_date(text, now)),
            limits: structured(headers),
        };
        if said.limits.is_empty() {
            said.limits = FAMILIES.iter().flat_map(|family| family.read(headers, now)).collect();
            said.limits
                .extend(headers.get_all("ratelimit-policy").iter().flat_map(|line| policies(line.to_str().ok())));
        }
        said
    }

    /// Returns the pace that keeps all limits, if the call took `elapsed`.
    pub(super) fn pace(&self, elapsed: Duration) -> Option<Pace> {
        self.limits.iter().filter_map(|limit| limit.pace(elapsed)).max()
    }

    /// Returns how long no call may be sent, because a limit is used up. If the call was not refused, the time can be
    /// one second shorter.
    pub(super) fn used_up(&self, is_refusal: bool) -> Option<Duration> {
        self.limits.iter().filter_map(|limit| limit.used_up(is_refusal)).max()
    }
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

/// The names of the fields that together describe one limit.
struct Family {
    limit: &'static str,
    remaining: &'static str,
    reset: &'static str,
}

const FAMILIES: [Family; 6] = [
    Family { limit: "ratelimit-limit", remaining: "ratelimit-remaining", reset: "ratelimit-reset" },
    Family { limit: "x-ratelimit-limit", remaining: "x-ratelimit-remaining", reset: "x-ratelimit-reset-after" },
    Family { limit: "x-ratelimit-limit", remaining: "x-ratelimit-remaining", reset: "x-ratelimit-reset" },
    Family { limit: "x-rate-limit-limit", remaining: "x-rate-limit-remaining", reset: "x-rate-limit-reset" },
    Family {
        limit: "x-ratelimit-limit-requests",
        remaining: "x-ratelimit-remaining-requests",
        reset: "x-ratelimit-reset-requests",
    },
    Family {
        limit: "anthropic-ratelimit-requests-limit",
        remaining: "anthropic-ratelimit-requests-remaining",
        reset: "anthropic-ratelimit-requests-reset",
    },
];

impl Family {
    /// Returns the limits that these fields name. The remaining units and the reset belong to the first limit. In older
    /// drafts, the other limits follow it with their windows: `10, 10;w=1, 50;w=60`. Some services write only one limit
    /// with its window: `100;w=21600`.
    fn read(&self, headers: &HeaderMap, now: Duration) -> SmallVec<[FarLimit; 2]> {
        let mut limits = policies(text(headers, self.limit));
        if limits.is_empty() {
            limits.push(FarLimit::default());
        }
        limits[0].remaining = text(headers, self.remaining).and_then(leading_number);
        limits[0].reset = text(headers, self.reset).and_then(|text| reset(text, now));
        limits.retain(|limit| limit.reset.is_some() || limit.window.is_some());
        limits
    }
}

/// Reads a list of limits such as `10, 10;w=1, 50;w=60`. At most 16 items are read.
fn policies(list: Option<&str>) -> SmallVec<[FarLimit; 2]> {
    let read = |item: &str| {
        let window = item.split(';').find_map(|part| part.trim().strip_prefix("w=")).and_then(leading_number);
        let limit = Some(leading_number(item)?);
        Some(FarLimit { limit, window: window.map(Duration::from_secs), ..FarLimit::default() })
    };
    list.unwrap_or_default().split(',').take(16).filter_map(read).collect()
}

/// Reads the whole number at the beginning of a text, such as `598.0` or `100;w=60`.
fn leading_number(text: &str) -> Option<u64> {
    let text = text.trim_start();
    let end = text.find(|byte: char| !byte.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// Reads the structured fields `RateLimit-Policy` and `RateLimit`. If both fields have an item with the same name, the
/// two items are one limit.
fn structured(headers: &HeaderMap) -> SmallVec<[FarLimit; 2]> {
    let mut limits: SmallVec<[FarLimit; 2]> = SmallVec::new();
    for (name, parameters) in items(headers, "ratelimit-policy") {
        let (limit, window) = (whole(&parameters, "q"), whole(&parameters, "w").map(Duration::from_secs));
        limits.push(FarLimit { name, limit, window, ..FarLimit::default() });
    }
    for (name, parameters) in items(headers, "ratelimit") {
        let (remaining, reset) = (whole(&parameters, "r"), whole(&parameters, "t").map(Reset::after_seconds));
        match limits.iter_mut().find(|limit| limit.name == name) {
            Some(limit) => (limit.remaining, limit.reset) = (remaining, reset),
            None => limits.push(FarLimit { name, remaining, reset, ..FarLimit::default() }),
        }
    }
    limits
}

/// Returns the names and the parameters of a field that is a list of strings. At most 16 items are read.
fn items(headers: &HeaderMap, field: &str) -> Vec<(String, Parameters)> {
    let lines: Vec<&str> = headers.get_all(field).iter().filter_map(|line| line.to_str().ok()).collect();
    let Ok(list) = Parser::new(&lines.join(", ")).parse::<List>() else { return Vec::new() };
    let named = list.into_iter().take(16).filter_map(|entry| match entry {
        ListEntry::Item(item) => match item.bare_item {
            BareItem::String(name) => Some((name.as_str().to_owned(), item.params)),
            BareItem::Token(name) => Some((name.as_str().to_owned(), item.params)),
            _ => None,
        },
        ListEntry::InnerList(_) => None,
    });
    named.collect()
}

fn whole(parameters: &Parameters, name: &str) -> Option<u64> {
    match parameters.get(name)? {
        BareItem::Integer(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    const NOW: Duration = Duration::from_secs(1_769_854_830);
    const SECOND: Duration = Duration::from_secs(1);

    fn said(fields: &[(&'static str, &'static str)]) -> Said {
        let fields =
            fields.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name, value);
        }
        Said::read(&headers, NOW)
    }

    /// Returns the time between two calls, and the pause after a refusal if no unit is left, in milliseconds.
    fn ms(fields: &[(&'static str, &'static str)]) -> (Option<u128>, Option<u128>) {
        let said = said(fields);
        (
            said.pace(Duration::ZERO).map(|pace| pace.interval.as_millis()),
            said.used_up(true).map(|time| time.as_millis()),
        )
    }

    #[test]
    fn the_fields_of_known_services_are_read() {
        let github = |left| {
            [("x-ratelimit-limit", "5000"), ("x-ratelimit-remaining", left), ("x-ratelimit-reset", "1769858430")]
        };
        assert_eq!(ms(&github("3600")), (Some(1_000), None), "GitHub: an hour for 3,600 calls");
        assert_eq!(ms(&github("0")), (Some(720), Some(3_600_000)), "the window has at least an hour");
        let openai = [
            ("x-ratelimit-limit-requests", "60"),
            ("x-ratelimit-remaining-requests", "30"),
            ("x-ratelimit-reset-requests", "6m0s"),
        ];
        assert_eq!(ms(&openai), (Some(12_000), None));
        let anthropic = [
            ("anthropic-ratelimit-requests-limit", "50"),
            ("anthropic-ratelimit-requests-remaining", "0"),
            ("anthropic-ratelimit-requests-reset", "2026-01-31T10:21:00Z"),
        ];
        assert_eq!(ms(&anthropic), (Some(600), Some(30_000)));
        let docker = [("ratelimit-limit", "100;w=21600"), ("ratelimit-remaining", "76;w=21600")];
        assert_eq!(ms(&docker), (Some(216_000), None));
        let draft_3 =
            [("ratelimit-limit", "10, 10;w=1, 50;w=60"), ("ratelimit-remaining", "9"), ("ratelimit-reset", "1")];
        assert_eq!(ms(&draft_3), (Some(1_200), None), "50 a minute are slower than 10 a second");
        let reddit = |left| [("x-ratelimit-used", "2"), ("x-ratelimit-remaining", left), ("x-ratelimit-reset", "598")];
        assert_eq!(ms(&reddit("598.0")), (Some(1_000), None));
        assert_eq!(ms(&reddit("0.0")), (None, Some(598_000)));
        let discord = [
            ("x-ratelimit-limit", "5"),
            ("x-ratelimit-remaining", "0"),
            ("x-ratelimit-reset", "1769854831.250"),
            ("x-ratelimit-reset-after", "1.250"),
        ];
        assert_eq!(ms(&discord), (Some(250), Some(1_250)));
    }

    #[test]
    fn the_slowest_of_several_policies_is_the_pace() {
        let fields = [
            ("ratelimit-policy", "\"burst\";q=100;w=1, \"day\";q=86400;w=86400"),
            ("ratelimit", "\"burst\";r=99;t=1, \"day\";r=0;t=500"),
        ];
        assert_eq!(ms(&fields), (Some(1_000), Some(500_000)));
        let two_lines = [("ratelimit-policy", "\"a\";q=10;w=1"), ("ratelimit-policy", "\"b\";q=1;w=2")];
        assert_eq!(ms(&two_lines), (Some(2_000), None));
        assert_eq!(ms(&[("ratelimit", "\"only\";r=5;t=10")]), (Some(2_000), None), "without a policy");
    }

    #[test]
    fn each_limit_of_an_older_list_has_its_own_window() {
        let list = "10, 10;w=1, 50;w=60, 1000;w=3600, 5000;w=86400";
        let drafts = [("ratelimit-limit", list), ("ratelimit-remaining", "9"), ("ratelimit-reset", "1")];
        assert_eq!(ms(&drafts), (Some(17_280), None), "5,000 a day are the slowest");
        let closest = [
            ("ratelimit-limit", "5000, 1000;w=3600, 5000;w=86400"),
            ("ratelimit-remaining", "100"),
            ("ratelimit-reset", "36000"),
        ];
        assert_eq!(ms(&closest), (Some(360_000), None), "the first number is the limit that is closest");
        let policy = [
            ("ratelimit-limit", "10"),
            ("ratelimit-remaining", "9"),
            ("ratelimit-reset", "9"),
            ("ratelimit-policy", "10;w=10, 20;w=60"),
        ];
        assert_eq!(ms(&policy), (Some(3_000), None));
    }

    #[test]
    fn only_a_reset_in_whole_seconds_can_be_earlier() {
        let pause = |reset| {
            let said = said(&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset-after", reset)]);
            (said.used_up(false).map(|time| time.as_millis()), said.used_up(true).map(|time| time.as_millis()))
        };
        assert_eq!(pause("3"), (Some(2_000), Some(3_000)));
        assert_eq!(pause("0.9"), (Some(900), Some(900)));
        assert_eq!(pause("990ms"), (Some(990), Some(990)));
    }

    #[test]
    fn a_reset_now_is_no_pace_and_a_limit_of_one_call_is_one() {
        let x = |limit, left, reset| {
            [("x-ratelimit-limit", limit), ("x-ratelimit-remaining", left), ("x-ratelimit-reset-after", reset)]
        };
        assert_eq!(ms(&x("60", "5", "0")), (None, None));
        let bound = said(&x("1", "0", "0.500")).pace(SECOND);
        assert_eq!(bound, Some(Pace { interval: SECOND / 2, is_bound: true }));
    }

    #[test]
    fn units_are_spread_only_over_a_time_that_is_known_well_enough() {
        let left = [("x-ratelimit-remaining", "6"), ("x-ratelimit-reset-after", "3.000")];
        assert_eq!(said(&left).pace(SECOND / 2), Some(Pace { interval: SECOND / 2, is_bound: false }));
        assert_eq!(said(&left).pace(SECOND), None, "the call took too long");
        assert_eq!(said(&[left[0], ("x-ratelimit-reset-after", "3")]).pace(SECOND / 2), None, "it can be 2 s");
        let limit = ("x-ratelimit-limit", "12");
        assert_eq!(said(&[limit, left[0], left[1]]).pace(SECOND), Some(Pace { interval: SECOND / 4, is_bound: true }));
    }

    #[test]
    fn the_clock_of_the_far_side_counts() {
        let fields = [
            ("date", "Sat, 31 Jan 2026 11:20:30 GMT"),
            ("x-ratelimit-limit", "10"),
            ("x-ratelimit-remaining", "0"),
            ("x-ratelimit-reset", "1769858435"),
            ("retry-after", "Sat, 31 Jan 2026 11:20:33 GMT"),
        ];
        assert_eq!(ms(&fields), (Some(500), Some(5_000)));
        assert_eq!(said(&fields).retry_after, Some(Duration::from_secs(3)));
    }

    #[test]
    fn junk_says_nothing() {
        for fields in [
            [("ratelimit", "3"), ("ratelimit-policy", "q=1;w=1")],
            [("ratelimit", "\"a\";r=-1;t=1"), ("ratelimit-policy", "\"a\";q=0;w=1")],
            [("x-ratelimit-limit", "many"), ("x-ratelimit-reset", "never")],
            [("x-ratelimit-remaining", "0"), ("retry-after", "later")],
        ] {
            let said = said(&fields);
            assert_eq!(
                (said.pace(Duration::ZERO), said.used_up(true), said.retry_after),
                (None, None, None),
                "{fields:?}"
            );
        }
    }
}
