//! Wildcards: `*` matches any run of characters, also an empty one.
//!
//! A value comes from a client, so matching must cost little whatever the value is. Regular expressions could not
//! promise that and be as easy to read.

/// A value with at least one `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Pattern {
    text: Box<str>,
    /// The number of bytes before the first star.
    prefix: usize,
    /// The number of bytes after the last star.
    suffix: usize,
    literals: u32,
}

impl Pattern {
    /// A pattern for `text`, or `None` if it has no star. Several stars in a row are one.
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

    /// Whether there is text between two stars. Then the whole value has to be searched. Any other pattern reads no more
    /// bytes of the value than it has itself.
    pub(in super::super) fn is_searched(&self) -> bool {
        self.middle().len() > 1
    }

    /// Whether `value` fits. Text between stars is searched from left to right, and the first place is taken, so the
    /// value is read once.
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

    /// Whether every value that fits `other` fits this too.
    pub(in super::super) fn covers(&self, other: &Pattern) -> bool {
        // The text of `other` is matched as a value. Only a star of this pattern can match a star in it, and a star
        // matches any run of characters.
        self.fits(&other.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(pattern: &str, value: &str) -> bool {
        Pattern::new(pattern).is_some_and(|p| p.fits(value))
    }

    #[test]
    fn stars_take_any_run_of_characters() {
        assert!(fits("*", "") && fits("*", "x") && fits("vip*", "vip") && fits("vip*", "vip-7"));
        assert!(fits("*.example.com", "a.example.com") && !fits("*.example.com", "example.com"));
        assert!(fits("a*b*c", "abc") && fits("a*b*c", "a-b-b-c") && !fits("a*b*c", "acb"));
        assert!(fits("a**b", "ab") && !fits("a*", "ba") && fits("*ä*", "xäy"));
        assert!(!fits("a*a", "a") && !fits("ab*bc", "abc") && !fits("a*b*b", "ab") && fits("*ab*ab*", "abab"));
    }

    #[test]
    fn a_value_without_a_star_is_not_a_pattern() {
        assert_eq!(Pattern::new("vip"), None);
        assert_eq!(Pattern::new("a**").map(|p| p.as_str().to_owned()).as_deref(), Some("a*"));
    }

    #[test]
    fn covering_is_for_all_values() {
        let pattern = |text| Pattern::new(text).expect("has a star");
        assert!(pattern("vip*").covers(&pattern("vip1*")));
        assert!(!pattern("vip1*").covers(&pattern("vip*")));
        assert!(!pattern("a*b").covers(&pattern("a*")));
        assert!(pattern("*").covers(&pattern("a*b")));
    }
}
