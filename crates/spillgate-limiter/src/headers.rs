//! Header fields that tell an HTTP client its limits.
//!
//! A client that knows how many units are left, and when to try again, sends fewer requests that are refused. Several
//! specifications of such fields exist, and a client usually reads the fields of only one specification. So a program
//! chooses a style, which is a set of fields.
//!
//! | style | fields |
//! |---|---|
//! | [`Draft11`](HeaderStyle::Draft11) | `RateLimit-Policy`, `RateLimit` of draft-ietf-httpapi-ratelimit-headers-11: one item for each limit |
//! | [`Draft06`](HeaderStyle::Draft06) | `RateLimit-Policy`, `RateLimit-Limit`, `-Remaining`, `-Reset` of draft 06 |
//! | [`XRateLimit`](HeaderStyle::XRateLimit) | `X-RateLimit-Limit`, `-Remaining`, `-Reset`, and on refusal `X-Ratelimit-Retry-After` |
//! | [`Off`](HeaderStyle::Off) | none of these |
//!
//! In every style a refusal has `Retry-After` if the wait is known. All times are whole seconds, rounded up. A client
//! that waits this long is never too early, and the wait in a refusal is never 0. The fields of the two drafts are
//! structured fields (RFC 9651): integers are at most 999,999,999,999,999, and names are escaped.
//!
//! ```
//! use spillgate::headers::{HeaderStyle, Policy, write_fields};
//! use spillgate::{Decision, Quota, Wait};
//!
//! let quota = Quota::fixed_window(100, std::time::Duration::from_secs(60)).build()?;
//! let decision = Decision::allow(100, 42).with_reset_after_ns(16_500_000_000);
//! let policies = [Policy { name: Some("per_user"), quota: &quota, decision: &decision }];
//! let (mut fields, mut buffer) = (Vec::new(), String::new());
//! write_fields(HeaderStyle::Draft11, &policies, Some(0), Wait::NONE, &mut buffer, |name, value| {
//!     fields.push((name, std::mem::take(value)));
//! });
//! assert_eq!(fields[0], ("ratelimit-policy", r#""per_user";q=100;w=60"#.to_owned()));
//! assert_eq!(fields[1], ("ratelimit", r#""per_user";r=42;t=17"#.to_owned()));
//! # Ok::<(), spillgate::QuotaError>(())
//! ```

mod names;

use std::fmt::{self, Write};
use std::str::FromStr;

use spillgate_core::{Algorithm, Decision, Quota, Wait};

pub use names::label;

use names::push_name;

/// The set of header fields that an answer has. The [module](self) has a table of the styles and an example. The list
/// is open, because a later draft can add a style.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum HeaderStyle {
    /// The structured fields of draft 11. This is the default.
    #[default]
    Draft11,
    /// The four fields of draft 06.
    Draft06,
    /// The fields that were in use before the drafts.
    XRateLimit,
    /// Only `Retry-After`.
    Off,
}

impl HeaderStyle {
    /// Every style, in the order of the table in the [module](self).
    pub const ALL: [HeaderStyle; 4] =
        [HeaderStyle::Draft11, HeaderStyle::Draft06, HeaderStyle::XRateLimit, HeaderStyle::Off];

    /// Returns the name of the style in settings.
    ///
    /// ```
    /// use spillgate::headers::HeaderStyle;
    /// assert_eq!("draft-06".parse(), Ok(HeaderStyle::Draft06));
    /// assert_eq!(HeaderStyle::Draft06.as_str(), "draft-06");
    /// ```
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            HeaderStyle::Draft11 => "draft-11",
            HeaderStyle::Draft06 => "draft-06",
            HeaderStyle::XRateLimit => "x-ratelimit",
            HeaderStyle::Off => "off",
        }
    }
}

impl FromStr for HeaderStyle {
    type Err = UnknownStyle;

    /// Finds the style that has this name in settings.
    ///
    /// # Errors
    /// The error is [`UnknownStyle`] if no style has this name. The text of the error lists all names.
    fn from_str(name: &str) -> Result<HeaderStyle, UnknownStyle> {
        HeaderStyle::ALL.into_iter().find(|style| style.as_str() == name).ok_or(UnknownStyle)
    }
}

/// The error for a name that no header style has.
///
/// ```
/// use spillgate::headers::{HeaderStyle, UnknownStyle};
/// assert_eq!("draft-12".parse::<HeaderStyle>(), Err(UnknownStyle));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownStyle;

impl fmt::Display for UnknownStyle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unknown header style; use draft-11, draft-06, x-ratelimit or off")
    }
}

impl std::error::Error for UnknownStyle {}

/// One limit of an answer, as a client sees it. The [module](self) has an example.
#[derive(Clone, Copy, Debug)]
pub struct Policy<'a> {
    /// The name of the limit. If the limit has no name, the client sees its size instead, such as `20-per-3600s` (20
    /// units in each 3600 s). A second limit of the same size and without a name is called `20-per-3600s-2`.
    pub name: Option<&'a str>,
    /// The limit and the window that the client sees.
    pub quota: &'a Quota,
    /// The decision on this limit, which says how many units are left, and when more are available.
    pub decision: &'a Decision,
}

/// The largest integer of a structured field (RFC 9651, section 3.3.1).
const SF_INTEGER_MAX: u64 = 999_999_999_999_999;

const NS_PER_S: u64 = 1_000_000_000;

/// Writes the header fields of an answer.
///
/// The value of each field is written into `buffer`, which must be empty. Then `put` is called with two arguments: the
/// name of the field in lower case, and the buffer. `put` must move the value out of the buffer. Every value is a valid
/// header value. Only the buffer may allocate memory.
///
/// `binding` is the index of the limit that determines the answer, as in [`Verdict::binding`](crate::Verdict::binding).
/// A style that shows only one limit shows this limit. If `binding` is `None`, such a style shows the first limit.
///
/// `retry_after` is the wait of the verdict, and [`Wait::NONE`] if the request was allowed. If `policies` is empty,
/// only `Retry-After` can be written.
///
/// The [module](self) has an example.
pub fn write_fields<W: Write>(
    style: HeaderStyle,
    policies: &[Policy<'_>],
    binding: Option<usize>,
    retry_after: Wait,
    buffer: &mut W,
    put: impl FnMut(&'static str, &mut W),
) {
    let mut fields = Fields { buffer, put };
    let refused = retry_after != Wait::NONE;
    let retry_after_s = retry_after.secs_ceil().filter(|_| refused).map(|s| s.max(1));
    if let Some(Policy { decision, .. }) = policies.get(binding.unwrap_or(0)).or(policies.first()) {
        let reset_s = retry_after_s.unwrap_or(decision.reset_after_ns.div_ceil(NS_PER_S));
        match style {
            HeaderStyle::Draft11 => {
                fields.list("ratelimit-policy", policies, policy_item);
                fields.list("ratelimit", policies, limit_item);
            }
            HeaderStyle::Draft06 => {
                fields.list("ratelimit-policy", policies, draft_06_policy_item);
                fields.int("ratelimit-limit", decision.limit);
                fields.int("ratelimit-remaining", decision.remaining);
                fields.int("ratelimit-reset", reset_s);
            }
            HeaderStyle::XRateLimit => {
                fields.int("x-ratelimit-limit", decision.limit);
                fields.int("x-ratelimit-remaining", decision.remaining);
                fields.int("x-ratelimit-reset", reset_s);
                if let Some(secs) = retry_after_s {
                    fields.int("x-ratelimit-retry-after", secs);
                }
            }
            HeaderStyle::Off => {}
        }
    }
    if let Some(secs) = retry_after_s {
        fields.int("retry-after", secs);
    }
}

/// The buffer and the function that the caller of [`write_fields`] passes.
struct Fields<'b, W, P> {
    buffer: &'b mut W,
    put: P,
}

impl<W: Write, P: FnMut(&'static str, &mut W)> Fields<'_, W, P> {
    fn int(&mut self, name: &'static str, value: u64) {
        push_int(self.buffer, "", value);
        (self.put)(name, self.buffer);
    }

    /// Adds a field with one item for each limit.
    fn list(&mut self, name: &'static str, policies: &[Policy<'_>], item: impl Fn(&mut W, &[Policy<'_>], usize)) {
        for i in 0..policies.len() {
            push(self.buffer, if i > 0 { ", " } else { "" });
            item(self.buffer, policies, i);
        }
        (self.put)(name, self.buffer);
    }
}

/// Writes an item of `RateLimit-Policy`: `"per_user";q=100;w=60`.
///
/// `q` is the limit without its burst. The remaining units (`r` in [`limit_item`]) can therefore be more than `q`.
fn policy_item(out: &mut impl Write, policies: &[Policy<'_>], index: usize) {
    let quota = policies[index].quota;
    push_name(out, policies, index);
    push_int(out, ";q=", quota.limit());
    push_window(out, quota);
    if quota.algorithm() == Algorithm::Concurrency {
        push(out, ";qu=\"concurrent-requests\"");
    }
}

/// Writes an item of `RateLimit`: `"per_user";r=42;t=17`.
///
/// `r` is the number of units left. `t` is the time in seconds until more units are available. If no unit is used, or
/// if this time is not known, `t` is left out.
fn limit_item(out: &mut impl Write, policies: &[Policy<'_>], index: usize) {
    let policy = &policies[index];
    push_name(out, policies, index);
    push_int(out, ";r=", policy.decision.remaining);
    if let Some(more_ns) = more_after_ns(policy) {
        push_int(out, ";t=", more_ns.div_ceil(NS_PER_S).max(1));
    }
}

/// Writes an item of draft 06's `RateLimit-Policy`, which has no name: `100;w=60`.
fn draft_06_policy_item(out: &mut impl Write, policies: &[Policy<'_>], index: usize) {
    push_int(out, "", policies[index].quota.limit());
    push_window(out, policies[index].quota);
}

/// Returns the nanoseconds until more units are available.
///
/// After a refusal, this is the wait of the decision. If the hit was allowed, this is the time until the next whole
/// unit of a bucket or a queue, and for the other algorithms the time until all units are available again. A log or a
/// counter with segments can free some units earlier, but a decision does not say when.
fn more_after_ns(policy: &Policy<'_>) -> Option<u64> {
    let Policy { quota, decision, .. } = policy;
    if !decision.allowed {
        return decision.retry_after.nanos();
    }
    let all_ns = decision.reset_after_ns;
    let missing = decision.limit.saturating_sub(decision.remaining);
    let more_ns = match quota.algorithm() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket if missing > 1 => {
            all_ns.saturating_sub((missing - 1).saturating_mul(quota.interval_ns()))
        }
        Algorithm::TokenBucket
        | Algorithm::LeakyBucket
        | Algorithm::FixedWindow(_)
        | Algorithm::SlidingWindowLog
        | Algorithm::SlidingWindowCounter { .. }
        | Algorithm::Concurrency => all_ns,
    };
    (more_ns > 0).then_some(more_ns)
}

/// Writes the window in seconds. The number is rounded up, so that a client that divides the limit by the window never
/// gets a rate that is too high. A concurrency limit has no window, so nothing is written.
fn push_window(out: &mut impl Write, quota: &Quota) {
    if quota.window_ns() > 0 {
        push_int(out, ";w=", quota.window_ns().div_ceil(NS_PER_S));
    }
}

/// Writes `prefix` and `value`. A value that is too large for a structured field is written as [`SF_INTEGER_MAX`].
fn push_int(out: &mut impl Write, prefix: &str, value: u64) {
    push(out, prefix);
    push_number(out, value.min(SF_INTEGER_MAX));
}

fn push(out: &mut impl Write, text: &str) {
    out.write_str(text).expect("writing to memory does not fail");
}

/// Writes a number without the formatting of the standard library, which takes several times as long.
fn push_number(out: &mut impl Write, value: u64) {
    push(out, itoa::Buffer::new().format(value));
}

#[cfg(test)]
mod tests;
