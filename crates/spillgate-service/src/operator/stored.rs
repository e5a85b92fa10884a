//! Blocks and shadow switches as the shared store keeps them: each is an entry of a list, with a name and a text in
//! JSON.
//!
//! Other programs can write to the store too. So each entry is checked when it is read. An entry that is neither a
//! valid block nor a valid switch is left out.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::change::{LONGEST, REASON_BYTES, ShadowOf};
use super::in_force::{Block, RefusedCount, Term};

/// The maximum length of a key, and of a domain's name, in bytes. The setting `limits.key` can be smaller.
pub(crate) const NAME_BYTES: usize = 1024;
/// The maximum number of bytes of a value that a block stores and compares. The setting `limits.value` can be smaller.
pub(crate) const VALUE_BYTES: usize = 4096;

/// The maximum length of a rule's path, in bytes, for a switch in the shared store. In a rules file, a path can be
/// longer: a switch for such a rule can only have the scope `server`.
pub(crate) const PATH_BYTES: usize = 8192;

/// The clocks of two servers can differ by this much. An entry is left out if it ends later than the longest term plus
/// this difference, because no server writes such an entry.
const CLOCKS_MS: u64 = 86_400_000;

/// The name of a block in its list: domain, key and value.
#[derive(Serialize, Deserialize)]
struct BlockName(Option<String>, String, String);

/// The text of an entry, in JSON. Only blocks have a reason.
#[derive(Serialize, Deserialize)]
struct Text {
    since_ms: u64,
    until_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// The name of a switch in its list: domain and path of its rule, or `None` for the switch that applies to all rules.
pub(crate) type SwitchName = Option<(String, String)>;

/// Returns the name of a block in its list.
pub(crate) fn block_name(key: &str, value: &str, domain: Option<&str>) -> Vec<u8> {
    written(&BlockName(domain.map(str::to_owned), key.to_owned(), value.to_owned()))
}

pub(crate) fn switch_name(of: ShadowOf<'_>) -> Vec<u8> {
    written(&match of {
        ShadowOf::All => None,
        ShadowOf::Rule { domain, path } => Some((domain, path)),
    })
}

pub(crate) fn text(term: Term, reason: Option<&str>) -> Vec<u8> {
    written(&Text { since_ms: term.since_ms, until_ms: term.until_ms, reason: reason.map(str::to_owned) })
}

/// Reads a block. `None` if the entry is not a valid block.
pub(crate) fn block(name: &[u8], text: &[u8], now_ms: u64) -> Option<Block> {
    let BlockName(domain, key, value) = serde_json::from_slice(name).ok()?;
    let (term, reason) = term(text, now_ms)?;
    let is_bounded = (1..=NAME_BYTES).contains(&key.len())
        && value.len() <= VALUE_BYTES
        && domain.as_ref().is_none_or(|domain| (1..=NAME_BYTES).contains(&domain.len()))
        && reason.as_ref().is_none_or(|reason| reason.len() <= REASON_BYTES);
    let (domain, reason): (Option<Arc<str>>, _) = (domain.map(Arc::from), reason.map(Arc::from));
    let refused = RefusedCount::default();
    is_bounded.then(|| Block { key: key.into(), value: value.into(), domain, term, reason, refused })
}

/// Reads a switch. `None` if the entry is not a valid switch.
pub(crate) fn switch(name: &[u8], text: &[u8], now_ms: u64) -> Option<(SwitchName, Term)> {
    let name: SwitchName = serde_json::from_slice(name).ok()?;
    let is_bounded = name.as_ref().is_none_or(|(domain, path)| {
        (1..=NAME_BYTES).contains(&domain.len()) && (1..=PATH_BYTES).contains(&path.len())
    });
    let (term, _) = term(text, now_ms)?;
    is_bounded.then_some((name, term))
}

/// Returns when an entry ends. `None` if its text cannot be read.
pub(crate) fn until_ms(text: &[u8], now_ms: u64) -> Option<u64> {
    term(text, now_ms).map(|(term, _)| term.until_ms)
}

/// Returns when an entry began. `None` if its text cannot be read.
pub(crate) fn since_ms(text: &[u8], now_ms: u64) -> Option<u64> {
    term(text, now_ms).map(|(term, _)| term.since_ms)
}

fn term(text: &[u8], now_ms: u64) -> Option<(Term, Option<String>)> {
    let Text { since_ms, until_ms, reason } = serde_json::from_slice(text).ok()?;
    let latest_ms = now_ms + u64::try_from(LONGEST.as_millis()).ok()? + CLOCKS_MS;
    (until_ms <= latest_ms).then_some((Term { since_ms, until_ms }, reason))
}

fn written(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("invariant: strings and numbers become JSON in memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: u64 = 1_700_000_000_000;

    #[test]
    fn what_is_written_is_read_again() {
        let term = Term { since_ms: NOW_MS, until_ms: NOW_MS + 60_000 };
        for (key, value, domain, reason) in [
            ("user_id", "7", None, None),
            ("remote_address", "", Some("api"), Some("floods")),
            ("\u{0}\"", "é\u{202e}\n", Some("[null]"), Some("\\")),
        ] {
            let (name, text) = (block_name(key, value, domain), text(term, reason));
            let read = block(&name, &text, NOW_MS).expect("it is a block");
            let same = Block {
                key: key.into(),
                value: value.into(),
                domain: domain.map(Arc::from),
                term,
                reason: reason.map(Arc::from),
                refused: RefusedCount::default(),
            };
            assert_eq!(read, same);
        }
        let rule = ShadowOf::Rule { domain: "api", path: "a > b=\"c\"" };
        let name = Some(("api".to_owned(), "a > b=\"c\"".to_owned()));
        assert_eq!(switch(&switch_name(rule), &text(term, None), NOW_MS), Some((name, term)));
        assert_eq!(switch(&switch_name(ShadowOf::All), &text(term, None), NOW_MS), Some((None, term)));
    }

    #[test]
    fn what_other_programs_write_is_left_out() {
        let good = br#"{"since_ms":1,"until_ms":2,"later":true}"#;
        assert!(block(br#"[null,"a","b"]"#, good, NOW_MS).is_some(), "later versions may add members");
        let long = |bytes: usize| format!(r#"["d","{}","v"]"#, "k".repeat(bytes)).into_bytes();
        assert!(
            block(&long(NAME_BYTES), good, NOW_MS).is_some() && block(&long(NAME_BYTES + 1), good, NOW_MS).is_none()
        );
        for name in [
            &b""[..],
            b"\xff\xfe",
            b"a",
            b"null",
            b"[]",
            br#"["a","b"]"#,
            br#"["","a","b"]"#,
            br#"[null,"","b"]"#,
            b"{}",
            b"[[[[[",
        ] {
            assert_eq!(block(name, good, NOW_MS), None, "{name:?}");
        }
        let late = format!(r#"{{"since_ms":1,"until_ms":{}}}"#, NOW_MS + 40 * 86_400_000);
        let reason = format!(r#"{{"since_ms":1,"until_ms":2,"reason":"{}"}}"#, "r".repeat(REASON_BYTES + 1));
        for text in
            ["", "{}", "[1]", r#"{"since_ms":1,"until_ms":-1}"#, r#"{"since_ms":1,"until_ms":"2"}"#, &late, &reason]
        {
            assert_eq!(block(br#"[null,"a","b"]"#, text.as_bytes(), NOW_MS), None, "{text}");
        }
        for name in [&b"\"all\""[..], br#"["a"]"#, br#"["","b"]"#, b"7"] {
            assert_eq!(switch(name, good, NOW_MS), None, "{name:?}");
        }
    }
}
