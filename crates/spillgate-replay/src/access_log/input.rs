//! A file of a log, as the caller passes it.

use std::fmt;
use std::io::{self, Read, Seek};

use super::backwards::Backwards;
use super::reader::Reader;

/// A file of a log: plain, gzip or zstd.
pub struct LogInput {
    pub(super) file: Box<dyn Read + Send>,
    /// The number of lines of the file, if they are read from the last to the first.
    pub(super) last_line: Option<u64>,
    /// The reader of the lines, if it is not the one of all files.
    pub(super) reader: Option<Reader>,
}

impl LogInput {
    /// Returns a plain file whose newest line is the first one. Its lines are read from the end of the file. `reader` is
    /// the result of [`newest_first`](super::newest_first).
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn newest_first(file: impl Read + Seek + Send + 'static, reader: Reader) -> io::Result<LogInput> {
        let (file, lines) = Backwards::new(file)?;
        Ok(LogInput { file: Box::new(file), last_line: Some(lines), reader: Some(reader) })
    }
}

impl From<Box<dyn Read + Send>> for LogInput {
    fn from(file: Box<dyn Read + Send>) -> LogInput {
        LogInput { file, last_line: None, reader: None }
    }
}

impl fmt::Debug for LogInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogInput").field("last_line", &self.last_line).finish_non_exhaustive()
    }
}
