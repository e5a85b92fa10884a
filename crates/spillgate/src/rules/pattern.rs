//! Wildcards: `*` stands for any run of characters, also an empty one.

/// A value with at least one `*`, cut at its stars.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    text: Box<str>,
    /// Bytes before the first star.
    prefix: usize,
    /// Bytes after the last star.
    suffix: usize,
    literals: u32,
}

impl Pattern {
    /// `None` if `text` has no star. Runs of stars count as one.
    pub(super) fn new(text: &str) -> Option<Pattern> {
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

    /// The pattern with runs of stars made one.
    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    /// How specific it is: the characters that are not stars.
    pub(super) const fn literals(&self) -> u32 {
        self.literals
    }

    /// Whether it fits every value.
    pub(super) const fn is_any(&self) -> bool {
        self.literals == 0
    }

    /// What a value that fits begins with.
    pub(super) fn prefix(&self) -> &str {
        &self.text[..self.prefix]
    }

    /// The text from the first star to the last.
    fn middle(&self) -> &str {
        &self.text[self.prefix..self.text.len() - self.suffix]
    }

    /// Whether there is text between two stars: the value has to be searched for it. Other patterns look at no more
    /// bytes than they have themselves.
    pub(super) fn is_searched(&self) -> bool {
        self.middle().len() > 1
    }

    /// Whether `value` fits. What stands between stars is searched from left to right, each part where it is first
    /// found, so the value is read once.
    pub(super) fn fits(&self, value: &str) -> bool {
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
    pub(super) fn covers(&self, other: &Pattern) -> bool {
        // A star of `other` can only be eaten by a star of this: matching its text as a value
        // would let a star of this eat a literal star, which is the same thing.
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
    fn a_value_without_a_star_is_no_pattern() {
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
