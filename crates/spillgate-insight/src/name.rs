//! Names of callers, in memory of fixed size.

use std::fmt;

/// A caller's name: at most 64 bytes, which need no allocation. Long names are cut.
#[derive(Clone, Copy)]
pub struct CallerName {
    bytes: [u8; CallerName::BYTES],
    length: u8,
}

/// Takes the place of what was cut out of a value.
const CUT: &str = "…";

impl CallerName {
    /// The number of bytes of a name that are kept.
    pub const BYTES: usize = 64;

    /// Joins the parts of a name, and keeps the beginning.
    ///
    /// ```
    /// use spillgate::insight::CallerName;
    /// assert_eq!(CallerName::of(["user", "=", "7"]).to_string(), "user=7");
    /// ```
    pub fn of<'a>(parts: impl IntoIterator<Item = &'a str>) -> CallerName {
        let mut name = CallerName { bytes: [0; CallerName::BYTES], length: 0 };
        parts.into_iter().all(|part| name.push(part));
        name
    }

    /// Names a caller by entries, as `user=7, path=/search`. If the name is too long, the longest values are cut in the
    /// middle: two callers mostly differ at the beginning or at the end of a value, and no long value hides another one.
    ///
    /// ```
    /// use spillgate::insight::CallerName;
    /// let path = format!("/api/{}/items", "x".repeat(100));
    /// let name = CallerName::of_entries([("path", path.as_str()), ("tenant", "acme")].into_iter());
    /// assert_eq!(name.to_string(), "path=/api/xxxxxxxxxxxxxxxxx…xxxxxxxxxxxxxxx/items, tenant=acme");
    /// ```
    pub fn of_entries<'a>(entries: impl Iterator<Item = (&'a str, &'a str)> + Clone) -> CallerName {
        let mut name = CallerName { bytes: [0; CallerName::BYTES], length: 0 };
        let longest = longest_value(entries.clone());
        for (index, (key, value)) in entries.enumerate() {
            let [begin, cut, end] = cut(value, longest);
            let parts = [if index > 0 { ", " } else { "" }, key, "=", begin, cut, end];
            if !parts.into_iter().all(|part| name.push(part)) {
                break;
            }
        }
        name
    }

    /// Returns whether the name has no text, so that the caller has no name yet.
    pub(super) const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Adds a text, or its beginning if the rest does not fit. Returns whether all of it fits.
    fn push(&mut self, text: &str) -> bool {
        let length = usize::from(self.length);
        let kept = &text[..text.floor_char_boundary(CallerName::BYTES - length)];
        self.bytes[length..length + kept.len()].copy_from_slice(kept.as_bytes());
        self.length += kept.len() as u8;
        kept.len() == text.len()
    }
}

/// Returns the greatest length of values with which the whole name fits. Longer values are cut.
fn longest_value<'a>(entries: impl Iterator<Item = (&'a str, &'a str)> + Clone) -> usize {
    let length = |longest: usize| {
        let of_entry = |(key, value): (&str, &str)| ", ".len() + key.len() + "=".len() + value.len().min(longest);
        entries.clone().map(of_entry).sum::<usize>().saturating_sub(", ".len())
    };
    if length(usize::MAX) <= CallerName::BYTES {
        return usize::MAX;
    }
    // With long keys, nothing fits. Then the name ends where its bytes end, and values are not cut as well.
    (1..=CallerName::BYTES).rev().find(|longest| length(*longest) <= CallerName::BYTES).unwrap_or(usize::MAX)
}

/// Returns the beginning of a value, what marks the cut, and the end. All of them have at most `longest` bytes. A length
/// that has no place for the mark leaves only the beginning of the value.
fn cut(value: &str, longest: usize) -> [&str; 3] {
    if value.len() <= longest {
        return [value, "", ""];
    }
    let Some(kept) = longest.checked_sub(CUT.len()) else {
        return [&value[..value.floor_char_boundary(longest)], "", ""];
    };
    let begin = value.floor_char_boundary(kept.div_ceil(2));
    let end = value.ceil_char_boundary(value.len() - kept / 2);
    [&value[..begin], CUT, &value[end..]]
}

impl fmt::Display for CallerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or_default())
    }
}

impl fmt::Debug for CallerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_string(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(entries: &[(&str, &str)]) -> String {
        CallerName::of_entries(entries.iter().copied()).to_string()
    }

    #[test]
    fn no_long_value_hides_another_one_and_a_name_fits() {
        let long = "/v1/".to_owned() + &"projects/".repeat(20);
        let names = ["acme", "zeta"].map(|tenant| name(&[("path", &long), ("tenant", tenant), ("agent", &long)]));
        assert!(names[0].contains("tenant=acme") && names[1].contains("tenant=zeta"), "{names:?}");
        assert_eq!(name(&[("user", "7"), ("path", "/search")]), "user=7, path=/search");
        // Two keys that differ only at their ends look different.
        let keys = ["a", "b"].map(|end| name(&[("api_key", &format!("{}{end}", "k".repeat(90)))]));
        assert_ne!(keys[0], keys[1]);
        for count in 1..12 {
            for length in 0..90 {
                let value = "ö".repeat(length);
                let entries: Vec<_> = (0..count).map(|_| ("key", value.as_str())).collect();
                let name = name(&entries);
                assert!(name.len() <= CallerName::BYTES && name.starts_with("key="), "{name}");
            }
        }
        assert_eq!(name(&[(&"k".repeat(100), "v")]), "k".repeat(64));
    }
}
