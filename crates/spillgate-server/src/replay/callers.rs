//! The names of callers in a report.
//!
//! A caller is named by its descriptor. If callers are hidden, a hash takes the place of the name.

use spillgate::KeyHasher;
use spillgate::insight::TopCallers;

/// The most bytes of a name. The rest is left out, so that a long value does not fill a report.
const NAME_BYTES: usize = 128;

/// How callers are named.
#[derive(Debug)]
pub struct Names {
    /// The secret of the hashes. It is random and never shown. So a reader of the report cannot try which name has a hash.
    hasher: Option<KeyHasher>,
}

impl Names {
    /// Names callers by their descriptors.
    #[must_use]
    pub const fn plain() -> Names {
        Names { hasher: None }
    }

    /// Names callers by hashes. A caller has the same hash everywhere in one report, and another one in each report.
    #[must_use]
    pub fn hashed() -> Names {
        Names { hasher: Some(KeyHasher::random()) }
    }

    /// Returns whether callers are hidden.
    #[must_use]
    pub const fn are_hidden(&self) -> bool {
        self.hasher.is_some()
    }

    /// Returns the name of a caller with this descriptor, as [`push_name`] writes it.
    pub(super) fn shown(&self, descriptor: &str) -> String {
        match &self.hasher {
            None => descriptor.to_owned(),
            Some(hasher) => format!("caller {:012x}", hasher.start().part(descriptor.as_bytes()).finish() as u64 >> 16),
        }
    }

    /// Hides the names in a list of insight. The hash of a name is the one in the rest of the report, unless insight has kept only
    /// the beginning of the name.
    pub(super) fn hide(&self, top: &mut TopCallers) {
        if self.are_hidden() {
            for caller in &mut top.callers {
                caller.name = caller.name.take().map(|name| self.shown(&name));
            }
        }
    }
}

/// Writes the beginning of a descriptor as text, as insight does: `user_id=7, path=/search`.
pub(super) fn push_name(text: &mut String, entries: &[(&str, &str)]) {
    for (index, (key, value)) in entries.iter().enumerate() {
        for part in [if index > 0 { ", " } else { "" }, key, "=", value] {
            let left = NAME_BYTES.saturating_sub(text.len());
            text.push_str(&part[..part.floor_char_boundary(left)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(entries: &[(&str, &str)]) -> String {
        let mut text = String::new();
        push_name(&mut text, entries);
        text
    }

    #[test]
    fn a_name_is_the_beginning_of_the_descriptor() {
        assert_eq!(name(&[("user_id", "7"), ("path", "/x")]), "user_id=7, path=/x");
        let long = "é".repeat(200);
        let cut = name(&[("a", &long), ("b", &long)]);
        assert!(cut.len() <= NAME_BYTES && cut.starts_with("a=éé"), "{cut}");
    }

    #[test]
    fn hashes_are_equal_within_a_report_only() {
        let (one, other) = (Names::hashed(), Names::hashed());
        assert_eq!(one.shown("a=1"), one.shown("a=1"));
        assert_ne!(one.shown("a=1"), one.shown("a=2"));
        assert_ne!(one.shown("a=1"), other.shown("a=1"));
        assert_eq!(Names::plain().shown("a=1"), "a=1");
    }
}
