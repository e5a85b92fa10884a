//! How much work a search for one descriptor can be, computed when rules are loaded.
//!
//! If nothing below a wildcard fits, a search tries the next wildcard. A client chooses the values, and could therefore
//! make a search visit every rule. The worst case depends only on the file. A file whose worst case costs too much is
//! rejected when it is loaded, so no search ever has to be stopped half-way.

use crate::rules::model::Pattern;

/// The most bytes of keys, values and patterns that one descriptor is compared with: 2 MiB.
const MAX_COMPARED_BYTES: usize = 2 << 20;

/// How often the values of one descriptor may be searched from beginning to end. Only a pattern with text between two
/// stars searches a value.
const MAX_SEARCHES: usize = 256;

/// The cost of one comparison of any length, as a number of compared bytes.
const LOOK_BYTES: usize = 32;

/// The work of a search in the worst case. Sums stop at the largest number, so that they cannot overflow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Work {
    /// The bytes of rules that the descriptor is compared with, and [`LOOK_BYTES`] for each comparison.
    compared_bytes: usize,
    /// How often a whole value is searched. This cost depends on the length of the value, which the rules do not know.
    searches: usize,
}

impl Work {
    /// The work to look up a text of this length in a hash map.
    pub(super) const fn lookup(bytes: usize) -> Work {
        Work { compared_bytes: LOOK_BYTES + bytes, searches: 0 }
    }

    /// The work to find out whether a value fits `pattern`.
    pub(super) fn of(pattern: &Pattern) -> Work {
        let searches = usize::from(pattern.is_searched());
        Work { compared_bytes: LOOK_BYTES + pattern.as_str().len(), searches }
    }

    /// The work of two searches that are both done.
    pub(super) fn and(self, other: Work) -> Work {
        Work {
            compared_bytes: self.compared_bytes.saturating_add(other.compared_bytes),
            searches: self.searches.saturating_add(other.searches),
        }
    }

    /// The work of two searches of which only one is done: the larger numbers of both.
    pub(super) fn or(self, other: Work) -> Work {
        Work {
            compared_bytes: self.compared_bytes.max(other.compared_bytes),
            searches: self.searches.max(other.searches),
        }
    }

    /// A message and a help text if the work is too much, else `None`.
    pub(super) fn too_much(self) -> Option<(String, &'static str)> {
        if self.searches > MAX_SEARCHES {
            let message =
                format!("a value here is searched for up to {} wildcards, one after the other", self.searches);
            let help = "at most 256 that have text between two stars can be tried for one descriptor: write them with \
                        the text first (`text*`) or last (`*text`)";
            return Some((message, help));
        }
        (self.compared_bytes > MAX_COMPARED_BYTES).then(|| {
            let message = format!("a value here is compared with up to {} KiB of rules", self.compared_bytes >> 10);
            let help = "at most 2048 KiB can be compared for one descriptor (32 bytes and its length for a wildcard): \
                        use fewer wildcards on one key, or values without a star";
            (message, help)
        })
    }
}

/// The most work below patterns that can all fit one value.
///
/// Each pattern is given as the text before its first star, with the work below it. A value that fits a pattern begins
/// with that text. Several patterns can therefore fit one value only if, of any two of their texts, the longer one
/// begins with the shorter one. For example, `a*` and `ab*` can fit one value, and `a*` and `b*` cannot.
pub(super) fn together<'p>(below: impl Iterator<Item = (&'p str, Work)>) -> Work {
    let mut below: Vec<(&str, Work)> = below.collect();
    below.sort_unstable_by_key(|(prefix, _)| *prefix);
    let mut most = Work::default();
    // The earlier texts that the current text begins with. Each has its own work and that of the texts before it.
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
    fn only_texts_that_begin_with_each_other_add_up() {
        let work = |below: &[&str]| together(below.iter().map(|prefix| (*prefix, Work::lookup(0)))).compared_bytes;
        assert_eq!(work(&[]), 0);
        assert_eq!(work(&["a", "b", "c"]), LOOK_BYTES);
        assert_eq!(work(&["ab", "", "a", "b", "ab"]), 4 * LOOK_BYTES);
    }
}
