//! How much work one descriptor of a request can be, found out when rules are loaded.
//!
//! A search may come past every rule: values are chosen by clients, and where nothing fits below a wildcard the next
//! one is tried. What a file could cost at worst is known once it is read, so a file that could cost too much is
//! refused then, and no request has to be broken off.

use super::pattern::Pattern;

/// Bytes of keys, values and patterns that one descriptor is compared with at most.
const MAX_COMPARED_BYTES: usize = 2 << 20;

/// How often the values of one descriptor are searched at most, each from its beginning to its end.
const MAX_SEARCHES: usize = 256;

/// What it costs to look at anything, in bytes that are compared.
const LOOK_BYTES: usize = 32;

/// The work of a search at worst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Work {
    compared_bytes: usize,
    searches: usize,
}

impl Work {
    /// To look something of this length up.
    pub(super) const fn lookup(bytes: usize) -> Work {
        Work { compared_bytes: LOOK_BYTES + bytes, searches: 0 }
    }

    /// To see whether a value fits.
    pub(super) fn of(pattern: &Pattern) -> Work {
        let searches = usize::from(pattern.is_searched());
        Work { compared_bytes: LOOK_BYTES + pattern.as_str().len(), searches }
    }

    pub(super) fn and(self, other: Work) -> Work {
        Work {
            compared_bytes: self.compared_bytes.saturating_add(other.compared_bytes),
            searches: self.searches.saturating_add(other.searches),
        }
    }

    /// One or the other.
    pub(super) fn or(self, other: Work) -> Work {
        Work {
            compared_bytes: self.compared_bytes.max(other.compared_bytes),
            searches: self.searches.max(other.searches),
        }
    }

    /// What is too much about it, and what to do; `None` if nothing is.
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

/// The most work below patterns that can all fit one value, each with the work below it: those whose beginnings begin
/// with each other.
pub(super) fn together<'p>(below: impl Iterator<Item = (&'p str, Work)>) -> Work {
    let mut below: Vec<(&str, Work)> = below.collect();
    below.sort_unstable_by_key(|(prefix, _)| *prefix);
    let mut most = Work::default();
    // The beginnings that the one at hand begins with, each with the work of all up to it.
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
    fn only_beginnings_that_begin_with_each_other_add_up() {
        let work = |below: &[&str]| together(below.iter().map(|prefix| (*prefix, Work::lookup(0)))).compared_bytes;
        assert_eq!(work(&[]), 0);
        assert_eq!(work(&["a", "b", "c"]), LOOK_BYTES);
        assert_eq!(work(&["ab", "", "a", "b", "ab"]), 4 * LOOK_BYTES);
    }
}
