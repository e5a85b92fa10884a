//! How much work a search for one descriptor can be, computed when rules are loaded.
//!
//! Clients choose values, and a search tries the next wildcard if nothing below the last one fits. A search may therefore
//! visit every rule. The worst case of a file is known once it is read. A file that could cost too much is rejected then,
//! so that no search has to be stopped half-way.

use crate::rules::model::Pattern;

/// The most bytes of keys, values and patterns that one descriptor is compared with.
const MAX_COMPARED_BYTES: usize = 2 << 20;

/// How often the values of one descriptor may be searched from beginning to end.
const MAX_SEARCHES: usize = 256;

/// The cost of one comparison of any length, as a number of compared bytes.
const LOOK_BYTES: usize = 32;

/// The work of a search in the worst case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Work {
    compared_bytes: usize,
    searches: usize,
}

impl Work {
    /// The work to look up a text of this length.
    pub(super) const fn lookup(bytes: usize) -> Work {
        Work { compared_bytes: LOOK_BYTES + bytes, searches: 0 }
    }

    /// The work to find out whether a value fits.
    pub(super) fn of(pattern: &Pattern) -> Work {
        let searches = usize::from(pattern.is_searched());
        Work { compared_bytes: LOOK_BYTES + pattern.as_str().len(), searches }
    }

    /// The work of both.
    pub(super) fn and(self, other: Work) -> Work {
        Work {
            compared_bytes: self.compared_bytes.saturating_add(other.compared_bytes),
            searches: self.searches.saturating_add(other.searches),
        }
    }

    /// The work of one of them: the larger numbers.
    pub(super) fn or(self, other: Work) -> Work {
        Work {
            compared_bytes: self.compared_bytes.max(other.compared_bytes),
            searches: self.searches.max(other.searches),
        }
    }

    /// A message and a help text if it is too much, else `None`.
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

/// The most work below patterns that can all fit one value. Each pattern comes as the text before its first star, with
/// the work below it. Patterns can fit one value only if each of these texts begins with the shorter ones.
pub(super) fn together<'p>(below: impl Iterator<Item = (&'p str, Work)>) -> Work {
    let mut below: Vec<(&str, Work)> = below.collect();
    below.sort_unstable_by_key(|(prefix, _)| *prefix);
    let mut most = Work::default();
    // The texts that the current one begins with. Each has the work of all texts up to it.
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
