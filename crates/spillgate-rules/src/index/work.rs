//! Computes, when rules are loaded, how much work the search for the rule of one descriptor can need.
//!
//! If a wildcard fits a value, but no rule nested in it fits, the search tries the next wildcard. Clients choose the
//! values, so without a bound a client could make a search visit every rule. The worst case depends only on the rules
//! file. So a file that could need too much work is rejected when it is loaded, and no search has to be stopped
//! half-way.

use crate::model::Pattern;

/// The maximum number of bytes of rules (keys, values and patterns) that one descriptor can be compared with: 2 MiB.
const MAX_COMPARED_BYTES: usize = 2 << 20;

/// The maximum number of times that the search for one descriptor can read a whole value. Only a pattern with text
/// between two stars makes the search read the whole value.
const MAX_SEARCHES: usize = 256;

/// The maximum number of bytes of values that the search for one descriptor looks through for text between two stars. It
/// is divided by the number of times that the search can read a value. So a long value costs less than a millisecond.
/// 256 wildcards look at 2 KiB of a value, and up to 8 wildcards at the 64 KiB of a whole body.
const MAX_SEARCHED_BYTES: usize = 512 << 10;

/// The fixed cost of each comparison, in bytes. It is added to the number of compared bytes.
const LOOK_BYTES: usize = 32;

/// The work of a search in the worst case. Sums stop at the largest `usize`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Work {
    /// The bytes of rules that the descriptor is compared with, plus [`LOOK_BYTES`] for each comparison.
    compared_bytes: usize,
    /// How often a whole value is read. These reads are counted apart, because the length of a value is unknown when
    /// rules are loaded.
    searches: usize,
}

impl Work {
    /// Returns the work to look up a text of this length in a hash map.
    pub(super) const fn lookup(bytes: usize) -> Work {
        Work { compared_bytes: LOOK_BYTES + bytes, searches: 0 }
    }

    /// Returns the work to find out whether a value fits `pattern`.
    pub(super) fn of(pattern: &Pattern) -> Work {
        let searches = usize::from(pattern.is_searched());
        Work { compared_bytes: LOOK_BYTES + pattern.as_str().len(), searches }
    }

    /// Returns the work to read a whole value, without any comparison.
    pub(super) const fn whole_value() -> Work {
        Work { compared_bytes: LOOK_BYTES, searches: 1 }
    }

    /// Returns how many bytes of a value each wildcard may look through, if this is the work of a whole search.
    pub(super) fn searched_bytes(self) -> usize {
        MAX_SEARCHED_BYTES / self.searches.max(1)
    }

    /// Returns the work of two parts of a search if both are done.
    pub(super) fn and(self, other: Work) -> Work {
        Work {
            compared_bytes: self.compared_bytes.saturating_add(other.compared_bytes),
            searches: self.searches.saturating_add(other.searches),
        }
    }

    /// Returns the work of two parts of a search if only one of them is done. It is not known which one, so each number
    /// of the result is the larger one of the two parts.
    pub(super) fn or(self, other: Work) -> Work {
        Work {
            compared_bytes: self.compared_bytes.max(other.compared_bytes),
            searches: self.searches.max(other.searches),
        }
    }

    /// Returns an error message and a help text if the work is too much. Otherwise returns `None`.
    pub(super) fn too_much(self) -> Option<(String, &'static str)> {
        if self.searches > MAX_SEARCHES {
            let message = format!("for one descriptor, whole values may be read {} times", self.searches);
            let help = "at most 256 wildcards with text between two stars can be tried for one descriptor; write \
                        wildcards such as `text*` or `*text` instead";
            return Some((message, help));
        }
        (self.compared_bytes > MAX_COMPARED_BYTES).then(|| {
            let message = format!("a value here may be compared with {} KiB of rules", self.compared_bytes >> 10);
            let help = "at most 2048 KiB can be compared for one descriptor, and each wildcard counts as its length plus 32 \
                        bytes; use fewer wildcards with one key, or values without a star";
            (message, help)
        })
    }
}

/// Returns the maximum work on the levels below the patterns of a key, if a search tries all patterns that fit one
/// value.
///
/// Each item of `below` is a pattern: its prefix (the text before its first star), and the work on the level below it.
/// A value that fits a pattern begins with the prefix of the pattern. Two patterns can therefore fit the same value
/// only if the longer prefix begins with the shorter prefix. For example, `a*` and `ab*` can both fit one value, but
/// `a*` and `b*` cannot.
pub(super) fn together<'p>(below: impl Iterator<Item = (&'p str, Work)>) -> Work {
    let mut below: Vec<(&str, Work)> = below.collect();
    below.sort_unstable_by_key(|(prefix, _)| *prefix);
    let mut most = Work::default();
    // The earlier prefixes that the current prefix begins with, the shortest first. Beside each prefix is a sum:
    // the work of this prefix and of all shorter prefixes in this list.
    let mut open: Vec<(&str, Work)> = Vec::new();
    for (prefix, work) in below {
        while open.last().is_some_and(|(shorter, _)| !prefix.starts_with(shorter)) {
            open.pop();
        }
        let all = open.last().map_or(Work::default(), |(_, all)| *all).and(work);
        open.push((prefix, all));
        most = most.or(all);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_added_only_if_one_prefix_begins_with_the_other() {
        let work = |below: &[&str]| together(below.iter().map(|prefix| (*prefix, Work::lookup(0)))).compared_bytes;
        assert_eq!(work(&[]), 0);
        assert_eq!(work(&["a", "b", "c"]), LOOK_BYTES);
        assert_eq!(work(&["ab", "", "a", "b", "ab"]), 4 * LOOK_BYTES);
    }
}
