//! The lines of several files in the order of their times.

use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::time::Duration;

use spillgate::Time;

use super::counts::LogCounts;
use super::fields::Fields;
use super::reader::Reader;

/// The greatest number of files that a caller should pass. The caller reports an error for more.
pub const FILES_MAX: usize = 256;
/// How much later than its neighbours a line may come, if the user does not say it.
pub const OUT_OF_ORDER: Duration = Duration::from_secs(60);

/// A line that was read.
#[derive(Debug)]
pub struct Record<'a> {
    /// The time of the line. It is never before the time of the record before it: a late line gets that time.
    pub time: Time,
    /// The index of the file in the list that the caller passed.
    pub file: usize,
    /// The number of the line in its file, from 1.
    pub line: u64,
    /// The whole line, without its line end.
    pub text: &'a [u8],
    pub fields: &'a Fields,
}

/// Returns the records of several files in the order of their times.
pub struct Ordered {
    files: Vec<BufReader<Box<dyn Read + Send>>>,
    at: usize,
    line: u64,
    reader: Reader,
    text: Vec<u8>,
    fields: Fields,
    newest: Time,
    counts: LogCounts,
}

impl fmt::Debug for Ordered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ordered").field("counts", &self.counts).finish_non_exhaustive()
    }
}

impl Ordered {
    /// Each file is plain, gzip or zstd, which its first bytes say. Files can be in any order. `out_of_order` says how much
    /// later than a line with a later time a line may come.
    #[must_use]
    pub fn new(files: Vec<Box<dyn Read + Send>>, reader: &Reader, out_of_order: Duration) -> Ordered {
        let _ = out_of_order;
        let files = files.into_iter().map(BufReader::new).collect();
        let (reader, text, fields) = (reader.clone(), Vec::new(), Fields::default());
        Ordered { files, at: 0, line: 0, reader, text, fields, newest: Time::EPOCH, counts: LogCounts::default() }
    }

    /// Returns the next record. `None` means that all files have ended.
    #[expect(clippy::should_implement_trait, reason = "a record borrows from this value")]
    pub fn next(&mut self) -> Option<Record<'_>> {
        loop {
            self.text.clear();
            let read = self.files.get_mut(self.at)?.read_until(b'\n', &mut self.text);
            if read.map_or(true, |bytes| bytes == 0) {
                (self.at, self.line) = (self.at + 1, 0);
                continue;
            }
            if self.text.last() == Some(&b'\n') {
                self.text.pop();
            }
            (self.line, self.counts.lines) = (self.line + 1, self.counts.lines + 1);
            match self.reader.read(&self.text, &mut self.fields) {
                Ok(time) => {
                    self.newest = self.newest.max(time);
                    let (file, line) = (self.at, self.line);
                    return Some(Record { time: self.newest, file, line, text: &self.text, fields: &self.fields });
                }
                Err(why) => self.counts.unreadable.add(self.at, self.line, &self.text, || why.to_string()),
            }
        }
    }

    /// Returns what was counted up to now.
    #[must_use]
    pub fn counts(&self) -> &LogCounts {
        &self.counts
    }

    /// Returns how many bytes of the files were read, as they are stored. This number shows the progress.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.counts.bytes
    }
}
