//! The names of limits for clients, in header fields and in `violated-policies` (a list in the body of a refusal).
//!
//! A client has to distinguish the limits of an answer, but a rules file can leave the name of a limit out. Such a
//! limit is called by its size.

use std::borrow::Cow;
use std::fmt::Write;

use spillgate_core::Quota;

use super::{NS_PER_S, Policy, push, push_number};

/// Returns the name of the limit at `index`, without the escapes of a header field. Only a limit without a name needs
/// an allocation.
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
    match policies[index].name {
        Some(name) => Cow::Borrowed(name),
        None => {
            let mut label = String::new();
            push_description(&mut label, policies, index);
            Cow::Owned(label)
        }
    }
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
        None => push_description(out, policies, index),
    }
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

/// Writes a name for a limit that has no name: `20-per-3600s`, `5-per-250ms`, `8-at-once`. If several limits without a
/// name have the same size, the second one is called `8-at-once-2`, and so on.
fn push_description(out: &mut impl Write, policies: &[Policy<'_>], index: usize) {
    let (before, quota) = (&policies[..index], policies[index].quota);
    push_size(out, quota);
    let same = |other: &&Policy<'_>| {
        other.name.is_none() && (other.quota.limit(), other.quota.window_ns()) == (quota.limit(), quota.window_ns())
    };
    let earlier = before.iter().filter(same).count();
    if earlier > 0 {
        push(out, "-");
        push_number(out, earlier as u64 + 1);
    }
}

/// Writes the size of a quota: its limit and its window. The unit of the window is the largest of s, ms and ns in which
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
}
