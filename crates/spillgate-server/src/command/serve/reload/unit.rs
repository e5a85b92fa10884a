//! A unit: a part of what files say, which is taken whole or not at all.
//!
//! Units are independent: a typo in a rule does not keep a new token out.

use std::path::PathBuf;
use std::sync::LazyLock;

use spillgate::KeyHasher;
use spillgate_service::reloads::{Cause, Lines, LoadedCounts, UnitName};

use super::reader::{READ_WITHIN, Reader};
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

/// What a unit has read, until it is taken or dropped.
pub(super) struct Kept<T>(Option<Result<T, Problems>>);

impl<T> Default for Kept<T> {
    fn default() -> Kept<T> {
        Kept(None)
    }
}

impl<T: Send + 'static> Kept<T> {
    /// Reads the files with `work`, and keeps what it returns. `seen` makes the hash of it.
    pub(super) fn read<E: Into<Problems> + Send + 'static>(
        &mut self,
        reader: &mut Reader,
        work: impl FnOnce() -> Result<T, E> + Send + 'static,
        seen: impl FnOnce(&T) -> Seen,
    ) -> Seen {
        let read = match reader.read(READ_WITHIN, work) {
            Ok(read) => read.map_err(Into::into),
            Err(problem) => Err(problem.into()),
        };
        let seen = read.as_ref().map_or_else(Seen::of_problems, seen);
        self.0 = Some(read);
        seen
    }

    /// Returns what was read, and keeps it no more. `None` if nothing is kept.
    pub(super) fn take(&mut self) -> Result<Option<T>, Problems> {
        self.0.take().transpose()
    }

    pub(super) fn forget(&mut self) {
        self.0 = None;
    }
}

/// What has become different because a unit was taken.
#[derive(Debug, Default)]
pub(super) struct Taken {
    pub(super) loaded: Option<LoadedCounts>,
    pub(super) changes: Lines,
    pub(super) notes: Lines,
    /// The files say something else than what is in use, and the server does not take it.
    pub(super) is_noted: bool,
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
pub(super) enum Seen {
    Content(u128),
    Problems(u128),
}

/// Nobody outside this process can make two contents with the same hash, because the secret is random.
static HASHER: LazyLock<KeyHasher> = LazyLock::new(KeyHasher::random);

impl Seen {
    /// Makes the hash of `parts`. Their number and their lengths count too.
    pub(super) fn of<'p>(parts: impl IntoIterator<Item = &'p [u8]>) -> Seen {
        Seen::Content(hash(parts))
    }

    /// Makes the hash of the reasons why files cannot be read.
    pub(super) fn of_problems(problems: &Problems) -> Seen {
        let lines: Vec<String> = problems.0.iter().map(|problem| problem.one_line()).collect();
        Seen::Problems(hash(lines.iter().map(String::as_bytes)))
    }
}

fn hash<'p>(parts: impl IntoIterator<Item = &'p [u8]>) -> u128 {
    let mut hash = HASHER.start();
    for part in parts {
        hash.part(part);
    }
    hash.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::terminal::Problem;

    #[test]
    fn the_content_and_its_parts_make_the_hash() {
        let seen = |parts: &[&str]| Seen::of(parts.iter().map(|part| part.as_bytes()));
        assert_eq!(seen(&["a.yaml", "domain: a"]), seen(&["a.yaml", "domain: a"]));
        assert_ne!(seen(&["a.yaml", "domain: a"]), seen(&["b.yaml", "domain: a"]));
        assert_ne!(seen(&["a", "b"]), seen(&["ab"]));
        assert_ne!(seen(&["a", ""]), seen(&["a"]));
        let problems = Problems::from(Problem::new("it cannot be read", "write it again"));
        assert_ne!(seen(&[&problems.0[0].one_line()]), Seen::of_problems(&problems));
    }

    #[test]
    fn what_was_read_is_taken_once() {
        let (mut kept, mut reader) = (Kept::default(), Reader::default());
        let mut read = |kept: &mut Kept<u8>, result: Result<u8, Problem>| {
            kept.read(&mut reader, move || result, |content| Seen::of([&[*content][..]]))
        };
        let seen = read(&mut kept, Ok(7));
        assert_eq!((kept.take().ok(), kept.take().ok()), (Some(Some(7)), Some(None)));
        assert_ne!(read(&mut kept, Err(Problem::new("gone", "write it again"))), seen);
        assert!(kept.take().is_err());
        read(&mut kept, Ok(7));
        kept.forget();
        assert_eq!(kept.take().ok(), Some(None));
    }
}
