//! The names of limits for clients, in header fields and in `violated-policies` (a list in the body of a refusal).
//!
//! A client has to distinguish the limits of an answer, but a rules file can leave the name of a limit out. Such a
//! limit is called by its size.

use std::borrow::Cow;
use std::fmt::Write;

use spillgate_core::Quota;

use super::{NS_PER_S, Policy, push, push_number};

/// Returns the name of the limit at `index`, without the escapes of a header field. Only a limit without a name, or with
/// the name of an earlier limit, needs an allocation.
///
/// Each limit gets another name. The second limit with the same name is called `spend-2`, for example.
///
/// ```
/// use spillgate::headers::{Policy, label};
/// let quota = spillgate::Quota::per_hour(20).build()?;
/// let decision = spillgate::Decision::default();
/// let policy = Policy { name: None, quota: &quota, decision: &decision };
/// assert_eq!((label(&[policy, policy], 0), label(&[policy, policy], 1)), ("20-per-3600s".into(), "20-per-3600s-2".into()));
/// # Ok::<(), spillgate::QuotaError>(())
/// ```
///
/// # Panics
/// Panics if there is no limit with this index.
#[must_use]
pub fn label<'a>(policies: &[Policy<'a>], index: usize) -> Cow<'a, str> {
    let number = number(policies, index);
    let mut label = String::new();
    match policies[index].name {
        Some(name) if number.is_none() => return Cow::Borrowed(name),
        Some(name) => push(&mut label, name),
        None => push_size(&mut label, policies[index].quota),
    }
    push_suffix(&mut label, number);
    Cow::Owned(label)
}

/// Writes the name as a string of a structured field.
///
/// A structured field can have only printable ASCII characters. So all other bytes of the name (in UTF-8) are
/// percent-encoded. The character `%` is percent-encoded too, so that two different names are never written in the same
/// way.
pub(super) fn push_name(out: &mut impl Write, policies: &[Policy<'_>], index: usize) {
    push(out, "\"");
    match policies[index].name {
        Some(name) if name.bytes().all(is_plain) => push(out, name),
        Some(name) => name.bytes().for_each(|byte| push_name_byte(out, byte)),
        None => push_size(out, policies[index].quota),
    }
    push_suffix(out, number(policies, index));
    push(out, "\"");
}

/// Returns whether a byte of a name can be written without an escape.
const fn is_plain(byte: u8) -> bool {
    matches!(byte, 0x20..0x7f) && !matches!(byte, b'"' | b'\\' | b'%')
}

/// Writes a byte of a name, escaped if necessary.
fn push_name_byte(out: &mut impl Write, byte: u8) {
    match byte {
        b'"' => push(out, "\\\""),
        b'\\' => push(out, "\\\\"),
        byte if !is_plain(byte) => write!(out, "%{byte:02X}").expect("writing to memory does not fail"),
        byte => out.write_char(char::from(byte)).expect("writing to memory does not fail"),
    }
}

fn push_suffix(out: &mut impl Write, number: Option<u64>) {
    if let Some(number) = number {
        push(out, "-");
        push_number(out, number);
    }
}

/// Returns the number that is added to the name at `index`, as draft 11 wants different names. Returns `None` if no
/// earlier limit has this name. A number that would make the name of another limit is left out.
fn number(policies: &[Policy<'_>], index: usize) -> Option<u64> {
    let this = &policies[index];
    let earlier = policies[..index].iter().filter(|other| has_same_name(other, this)).count();
    let is_free = |number: &u64| !policies.iter().any(|other| is_numbered(other, this, *number));
    (2..).filter(is_free).nth(earlier.checked_sub(1)?)
}

fn has_same_name(one: &Policy<'_>, other: &Policy<'_>) -> bool {
    match (one.name, other.name) {
        (Some(one), _) => is_name(one, other),
        (None, Some(other)) => is_name(other, one),
        (None, None) => (one.quota.limit(), one.quota.window_ns()) == (other.quota.limit(), other.quota.window_ns()),
    }
}

/// Returns whether the name of `other` is the name of `this` with this number. A size never ends with such a number.
fn is_numbered(other: &Policy<'_>, this: &Policy<'_>, number: u64) -> bool {
    let Some((name, digits)) = other.name.and_then(|name| name.rsplit_once('-')) else { return false };
    digits.parse() == Ok(number) && !digits.starts_with(['0', '+']) && is_name(name, this)
}

/// Returns whether the limit is called `text`, without a number.
fn is_name(text: &str, policy: &Policy<'_>) -> bool {
    /// What is left of a text when its beginning is written again. `None` if something else was written.
    struct Rest<'t>(Option<&'t str>);

    impl Write for Rest<'_> {
        fn write_str(&mut self, written: &str) -> std::fmt::Result {
            self.0 = self.0.and_then(|rest| rest.strip_prefix(written));
            Ok(())
        }
    }

    policy.name.map_or_else(
        || {
            let mut rest = Rest(Some(text));
            push_size(&mut rest, policy.quota);
            rest.0 == Some("")
        },
        |name| name == text,
    )
}

/// Writes the size of a quota, which is the name of a limit that has no name: `20-per-3600s`, `5-per-250ms`, `8-at-once`.
/// The unit of the window is the largest of s, ms and ns in which
/// the window is a whole number.
fn push_size(out: &mut impl Write, quota: &Quota) {
    push_number(out, quota.limit());
    let window_ns = quota.window_ns();
    if window_ns == 0 {
        push(out, "-at-once");
        return;
    }
    push(out, "-per-");
    let (units, unit) = match window_ns {
        ns if ns.is_multiple_of(NS_PER_S) => (ns / NS_PER_S, "s"),
        ns if ns.is_multiple_of(1_000_000) => (ns / 1_000_000, "ms"),
        ns => (ns, "ns"),
    };
    push_number(out, units);
    push(out, unit);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_limit_without_a_name_is_called_by_its_size() {
        let named = |limit, window| {
            let quota = Quota::fixed_window(limit, window).build().expect("the quota is valid");
            let mut out = String::new();
            push_size(&mut out, &quota);
            out
        };
        assert_eq!(named(20, Duration::from_secs(3600)), "20-per-3600s");
        assert_eq!(named(5, Duration::from_millis(250)), "5-per-250ms");
        assert_eq!(named(5, Duration::from_nanos(7)), "5-per-7ns");
    }

    #[test]
    fn every_limit_of_an_answer_has_another_name() {
        let quota = Quota::fixed_window(5, Duration::from_secs(7)).build().expect("the quota is valid");
        let decision = spillgate_core::Decision::default();
        let labels = |names: &[Option<&'static str>]| {
            let policies: Vec<_> =
                names.iter().map(|name| Policy { name: *name, quota: &quota, decision: &decision }).collect();
            let labels: Vec<_> = (0..names.len()).map(|at| label(&policies, at).into_owned()).collect();
            let mut written: Vec<_> = labels.iter().map(|_| String::new()).collect();
            written.iter_mut().enumerate().for_each(|(at, out)| push_name(out, &policies, at));
            assert_eq!(written, labels.iter().map(|label| format!("\"{label}\"")).collect::<Vec<_>>());
            labels
        };
        assert_eq!(labels(&[Some("a"), Some("b"), Some("a"), Some("a")]), ["a", "b", "a-2", "a-3"]);
        assert_eq!(labels(&[Some("a"), Some("a"), Some("a"), Some("a-2")]), ["a", "a-3", "a-4", "a-2"]);
        assert_eq!(labels(&[Some("a-2"), Some("a-2"), Some("a"), Some("a")]), ["a-2", "a-2-2", "a", "a-3"]);
        assert_eq!(labels(&[Some("a"), Some("a"), Some("a-02"), Some("a-+2")]), ["a", "a-2", "a-02", "a-+2"]);
        assert_eq!(labels(&[None, Some("5-per-7s"), None]), ["5-per-7s", "5-per-7s-2", "5-per-7s-3"]);
        assert_eq!(labels(&[None, None, Some("5-per-7s-2")]), ["5-per-7s", "5-per-7s-3", "5-per-7s-2"]);
        assert_eq!(labels(&[Some(""), Some("")]), ["", "-2"]);
    }

    proptest::proptest! {
        #[test]
        fn names_are_never_shared(names in proptest::collection::vec(proptest::option::of("(a|5-per-7s)(-[0-9]{1,2}){0,2}"), 0..12)) {
            let quota = Quota::fixed_window(5, Duration::from_secs(7)).build().expect("the quota is valid");
            let decision = spillgate_core::Decision::default();
            let policies: Vec<_> =
                names.iter().map(|name| Policy { name: name.as_deref(), quota: &quota, decision: &decision }).collect();
            let different: std::collections::HashSet<_> = (0..names.len()).map(|at| label(&policies, at)).collect();
            proptest::prop_assert_eq!(different.len(), names.len());
        }
    }
}
