//! Wildcards: `*` matches any run of characters, also an empty one.
//!
//! A client chooses the values, so matching has to cost little for every value. A pattern is also meant to be read by
//! people. Regular expressions have neither property.
//!
//! ```text
//! pattern            api/*/v*.json
//! before the first   api/            the prefix
//! from first to last     */v*        the middle; only a pattern with text in it searches the value
//! after the last             .json   the suffix
//! ```

/// A value with at least one `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Pattern {
    text: Box<str>,
    /// The number of bytes before the first star.
    prefix: usize,
    /// The number of bytes after the last star.
    suffix: usize,
    /// The number of characters that are not stars. If two patterns fit a value, the one with more of them is tried
    /// first.
    literals: u32,
}

impl Pattern {
    /// A pattern for `text`, or `None` if it has no star. Several stars in a row count as one.
    pub(in super::super) fn new(text: &str) -> Option<Pattern> {
        if !text.contains('*') {
            return None;
        }
        let mut collapsed = String::with_capacity(text.len());
        for c in text.chars() {
            if c != '*' || !collapsed.ends_with('*') {
                collapsed.push(c);
            }
        }
        let literals = collapsed.chars().filter(|c| *c != '*').count();
        let prefix = collapsed.find('*').unwrap_or(0);
        let suffix = collapsed.len() - collapsed.rfind('*').unwrap_or(0) - 1;
        Some(Pattern { text: collapsed.into(), prefix, suffix, literals: u32::try_from(literals).unwrap_or(u32::MAX) })
    }

    /// The text of the pattern, with one star for several in a row.
    pub(in super::super) fn as_str(&self) -> &str {
        &self.text
    }

    /// How specific it is: the number of characters that are not stars.
    pub(in super::super) const fn literals(&self) -> u32 {
        self.literals
    }

    /// Whether every value fits.
    pub(in super::super) const fn is_any(&self) -> bool {
        self.literals == 0
    }

    /// The text before the first star: every value that fits begins with it.
    pub(in super::super) fn prefix(&self) -> &str {
        &self.text[..self.prefix]
    }

    /// The text from the first star to the last.
    fn middle(&self) -> &str {
        &self.text[self.prefix..self.text.len() - self.suffix]
    }

    /// Whether there is text between two stars. Such a pattern has to search the whole value. Any other pattern reads
    /// at most as many bytes of the value as it has itself.
    pub(in super::super) fn is_searched(&self) -> bool {
        self.middle().len() > 1
    }

    /// Whether `value` fits.
    ///
    /// The text between two stars is searched from left to right. Its first occurrence is used, which leaves the most
    /// of the value for the rest of the pattern. The search therefore never goes back, and reads the value once.
    pub(in super::super) fn fits(&self, value: &str) -> bool {
        let suffix = &self.text[self.text.len() - self.suffix..];
        let Some(mut rest) = value.strip_prefix(self.prefix()).and_then(|rest| rest.strip_suffix(suffix)) else {
            return false;
        };
        for part in self.middle().split('*').filter(|part| !part.is_empty()) {
            let Some((_, after)) = rest.split_once(part) else { return false };
            rest = after;
        }
        true
    }

    /// Whether every value that fits `other` fits this pattern too. The other pattern can then never match if this one
    /// is tried first.
    pub(in super::super) fn covers(&self, other: &Pattern) -> bool {
        // The text of `other` is matched as a value. Only a star of this pattern can match a star in it, and a star
        // matches any run of characters.
        self.fits(&other.text)
    }
}

#[cfg(test)]
mod tests;
