//! Reads what the far side says about its limits, from the header fields of its answers.
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

use super::reset::{http_date, seconds_or_date, until};

/// What an answer says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    /// How long no call should go.
    pub(super) retry_after: Option<Duration>,
    /// The limits that the answer names.
    pub(super) limits: SmallVec<[FarLimit; 2]>,
}

/// One limit of the far side. A part is `None` if the answer does not say it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FarLimit {
    name: String,
    /// The units in each window.
    limit: Option<u64>,
    window: Option<Duration>,
    /// The units that are left.
    remaining: Option<u64>,
    /// The time until all units are available again. Whole seconds are rounded up by most services.
    reset: Option<Duration>,
}

impl FarLimit {
    /// Returns the time for one call at which this limit is kept. `None` if the answer does not say enough.
    fn interval(&self) -> Option<Duration> {
        match (self.limit, self.window, self.remaining, self.reset) {
            (Some(limit @ 1..), Some(window), ..) if !window.is_zero() => Some(divided(window, limit)),
            (.., Some(remaining @ 1..), Some(reset)) => Some(divided(reset, remaining)),
            _ => None,
        }
    }
}

fn divided(time: Duration, calls: u64) -> Duration {
    Duration::from_nanos(u64::try_from(time.as_nanos() / u128::from(calls)).unwrap_or(u64::MAX))
}

impl Said {
    /// Reads the fields of an answer. `now` is the local time since 1970. The field `Date` of the answer replaces it, so
    /// that the clocks need not agree.
    pub(super) fn read(headers: &HeaderMap, now: Duration) -> Said {
        let now = text(headers, "date").and_then(http_date).unwrap_or(now);
        let mut said = Said {
            retry_after: text(headers, "retry-after").and_then(|text| seconds_or_date(text, now)),
            limits: structured(headers),
        };
        if said.limits.is_empty() {
            said.limits = FAMILIES.iter().filter_map(|family| family.read(headers, now)).collect();
        }
        said
    }

    /// Returns the time for one call at which all limits are kept.
    pub(super) fn interval(&self) -> Option<Duration> {
        self.limits.iter().filter_map(FarLimit::interval).max()
    }

    /// Returns how long no call should go, because a limit is used up.
    pub(super) fn used_up(&self) -> Option<Duration> {
        self.limits.iter().filter(|limit| limit.remaining == Some(0)).filter_map(|limit| limit.reset).max()
    }
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

/// The names of the fields of one family.
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
    /// Returns `None` if the answer has no field of this family that says how many units are left, or when.
    fn read(&self, headers: &HeaderMap, now: Duration) -> Option<FarLimit> {
        let remaining = text(headers, self.remaining).and_then(leading_number);
        let reset = text(headers, self.reset).and_then(|text| until(text, now));
        let limit = text(headers, self.limit)?;
        // Older drafts write the policies behind the limit: `10, 10;w=1`. Some services write only `100;w=21600`.
        let window = limit.split([';', ',']).find_map(|part| part.trim().strip_prefix("w=")).and_then(leading_number);
        let window = window.map(Duration::from_secs);
        (reset.is_some() || window.is_some()).then(|| FarLimit {
            name: String::new(),
            limit: leading_number(limit),
            window,
            remaining,
            reset,
        })
    }
}

/// Reads the whole number at the beginning of a text, such as `598.0` or `100;w=60`.
fn leading_number(text: &str) -> Option<u64> {
    let text = text.trim_start();
    let end = text.find(|byte: char| !byte.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// Reads the structured fields `RateLimit-Policy` and `RateLimit`. An item of both that has the same name is one limit.
fn structured(headers: &HeaderMap) -> SmallVec<[FarLimit; 2]> {
    let mut limits: SmallVec<[FarLimit; 2]> = SmallVec::new();
    for (name, parameters) in items(headers, "ratelimit-policy") {
        let (limit, window) = (whole(&parameters, "q"), whole(&parameters, "w").map(Duration::from_secs));
        limits.push(FarLimit { name, limit, window, ..FarLimit::default() });
    }
    for (name, parameters) in items(headers, "ratelimit") {
        let (remaining, reset) = (whole(&parameters, "r"), whole(&parameters, "t").map(Duration::from_secs));
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
