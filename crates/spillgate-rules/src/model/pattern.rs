//! Patterns (values with wildcards). A `*` in a pattern matches any text, also an empty text.
//!
//! Clients choose the values of requests, so the comparison with a pattern must be fast for every value. People must
//! also be able to read a pattern easily. Patterns are therefore not regular expressions, which are often slow and hard
//! to read.
//!
//! ```text
//! the whole pattern                api/*/v*.json
//! prefix: before the first star    api/
//! middle: from first to last star      */v*         the text between its stars is looked for in the whole value
//! suffix: after the last star              .json
//! ```

/// A `value` of a rules file that has at least one `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Pattern {
    text: Box<str>,
    /// The number of bytes before the first star.
    prefix: usize,
    /// The number of bytes after the last star.
    suffix: usize,
    /// The number of characters that are not stars. If two patterns fit a value, the pattern with the larger number is
    /// tried first, except with `compat: envoy`.
    literals: u32,
    /// How many bytes of a value are looked through for the texts between two stars.
    searched: usize,
}

impl Pattern {
    /// Makes a pattern from `text`. `None` if `text` has no star. Several stars in a row count as one star.
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
        let literals = u32::try_from(literals).unwrap_or(u32::MAX);
        Some(Pattern { text: collapsed.into(), prefix, suffix, literals, searched: usize::MAX })
    }

    /// Returns the text of the pattern. It has one star where the original text has several stars in a row.
    pub(in super::super) fn as_str(&self) -> &str {
        &self.text
    }

    pub(in super::super) const fn literals(&self) -> u32 {
        self.literals
    }

    /// Returns whether every value fits this pattern.
    pub(in super::super) const fn is_any(&self) -> bool {
        self.literals == 0
    }

    /// Returns the text before the first star. Every value that fits begins with this text.
    pub(in super::super) fn prefix(&self) -> &str {
        &self.text[..self.prefix]
    }

    /// Returns the text from the first star to the last star, with both stars.
    fn middle(&self) -> &str {
        &self.text[self.prefix..self.text.len() - self.suffix]
    }

    /// Returns whether there is text between two stars. If there is, the whole value has to be searched. For any other
    /// pattern, the number of bytes of the value that are read is at most the length of the pattern.
    pub(in super::super) fn is_searched(&self) -> bool {
        self.middle().len() > 1
    }

    /// Bounds how many bytes of a value are looked through for the texts between two stars. The texts before the first
    /// star and after the last star are compared in values of any length.
    pub(in super::super) const fn search_at_most(&mut self, bytes: usize) {
        self.searched = bytes;
    }

    /// Returns whether `value` fits this pattern.
    ///
    /// The texts between two stars are looked for in the value from left to right. For each text, the first occurrence
    /// is used, because it leaves as much of the value as possible for the next texts. So the search never goes back,
    /// and it reads the value only once.
    pub(in super::super) fn fits(&self, value: &str) -> bool {
        let suffix = &self.text[self.text.len() - self.suffix..];
        let Some(mut rest) = value.strip_prefix(self.prefix()).and_then(|rest| rest.strip_suffix(suffix)) else {
            return false;
        };
        if self.is_searched() && rest.len() > self.searched {
            rest = &rest[..rest.floor_char_boundary(self.searched)];
        }
        for part in self.middle().split('*').filter(|part| !part.is_empty()) {
            let Some((_, after)) = rest.split_once(part) else { return false };
            rest = after;
        }
        true
    }

    /// Returns whether every value that fits `other` also fits this pattern.
    pub(in super::super) fn covers(&self, other: &Pattern) -> bool {
        // The text of `other` is used as a value here. Only a star of this pattern can match a star in this value. A
        // star of this pattern also matches every text that the star of `other` can stand for.
        self.fits(&other.text)
    }
}

#[cfg(test)]
mod tests;
