//! A unit: a part of what files say, which is taken whole or not at all.
//!
//! Units are independent: a typo in a rule does not keep a new token out.

use std::path::PathBuf;
use std::sync::LazyLock;

use spillgate::KeyHasher;
use spillgate_service::reloads::{Cause, Lines, LoadedCounts, UnitName};

use super::reader::Reader;
use crate::command::terminal::Problems;

/// A unit. The thread that reloads calls [`read`](Unit::read), and then either [`take`](Unit::take) or
/// [`forget`](Unit::forget).
pub(super) trait Unit: Send {
    /// The name in the log, in answers and in metrics.
    fn name(&self) -> UnitName;

    /// The log line, if the unit cannot be taken: what stays in use.
    fn kept(&self) -> &'static str;

    /// The files and folders that the unit reads.
    fn paths(&self) -> Vec<PathBuf>;

    /// Reads the files, and keeps what they say until the next call.
    fn read(&mut self, reader: &mut Reader) -> Seen;

    /// Takes what was read: these bytes, even if the files have changed since then. If anything is wrong, the unit stays
    /// as it was.
    fn take(&mut self, cause: Cause) -> Result<Taken, Problems>;

    /// Drops what was read, so that nobody holds the texts of all files for nothing.
    fn forget(&mut self);
}

/// What has become different because a unit was taken.
#[derive(Debug, Default)]
pub(super) struct Taken {
    pub(super) loaded: Option<LoadedCounts>,
    pub(super) changes: Lines,
    pub(super) notes: Lines,
}

impl Taken {
    /// Returns whether nothing has become different.
    pub(super) fn is_nothing(&self) -> bool {
        self.loaded.is_none() && self.changes.count() == 0 && self.notes.count() == 0
    }
}

/// A hash of what files say, or of the error with which they cannot be read. So the content decides whether something has
/// changed, and an error that stays the same is reported once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen(u128);

/// Nobody outside this process can make two contents with the same hash, because the secret is random.
static HASHER: LazyLock<KeyHasher> = LazyLock::new(KeyHasher::random);

impl Seen {
    /// Makes the hash of `parts`. Their number and their lengths count too.
    pub(super) fn of<'p>(parts: impl IntoIterator<Item = &'p [u8]>) -> Seen {
        let mut hash = HASHER.start();
        for part in parts {
            hash.part(part);
        }
        Seen(hash.finish())
    }

    /// Makes the hash of the reasons why files cannot be read.
    pub(super) fn of_problems(problems: &Problems) -> Seen {
        let lines: Vec<String> = problems.0.iter().map(|problem| problem.one_line()).collect();
        Seen::of([&b"problems"[..]].into_iter().chain(lines.iter().map(String::as_bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_content_and_its_parts_make_the_hash() {
        let seen = |parts: &[&str]| Seen::of(parts.iter().map(|part| part.as_bytes()));
        assert_eq!(seen(&["a.yaml", "domain: a"]), seen(&["a.yaml", "domain: a"]));
        assert_ne!(seen(&["a.yaml", "domain: a"]), seen(&["b.yaml", "domain: a"]));
        assert_ne!(seen(&["a", "b"]), seen(&["ab"]));
        assert_ne!(seen(&["a", ""]), seen(&["a"]));
    }
}
