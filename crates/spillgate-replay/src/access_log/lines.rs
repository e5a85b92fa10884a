//! Splits a file into lines. The file can be compressed.
//!
//! The memory is bounded, because only the beginning of a line that is too long is kept.

use std::io::{self, ErrorKind, Read};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use memchr::memchr;

use super::decompress::decompressed;
use super::reader::LINE_BYTES_MAX;

const BUFFER_BYTES: usize = 2 * LINE_BYTES_MAX;
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// The next line, or the error that ends the file.
#[derive(Debug)]
pub(super) struct Next<'a> {
    /// The number of the line, from 1.
    pub(super) number: u64,
    /// The length of the line with its line end, in bytes.
    pub(super) bytes: u64,
    pub(super) text: Text<'a>,
}

#[derive(Debug)]
pub(super) enum Text<'a> {
    /// A line without its line end.
    Line(&'a [u8]),
    /// The first bytes of a line that is too long.
    TooLong(&'a [u8]),
    /// The file cannot be read further.
    Broken(io::Error),
}

/// Returns the lines of a file, one after the other.
pub(super) struct Lines {
    input: Box<dyn Read + Send>,
    buffer: Box<[u8]>,
    /// The part of the buffer that was read from the file, but not returned yet.
    unread: Range<usize>,
    /// How many bytes at the beginning of `unread` are known to have no line end.
    searched: usize,
    /// The number of lines that were returned.
    number: u64,
    /// The number of bytes that left the buffer since the last line was returned.
    bytes: u64,
    is_ended: bool,
}

/// Where a line is in the buffer.
enum Found {
    Line(Range<usize>),
    TooLong(Range<usize>),
    Broken(io::Error),
}

impl Lines {
    pub(super) fn new(
        file: Box<dyn Read + Send>,
        bytes_read: &Arc<AtomicU64>,
        window_bytes_max: u64,
    ) -> io::Result<Lines> {
        let input = decompressed(file, Arc::clone(bytes_read), window_bytes_max)?;
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        Ok(Lines { input, buffer, unread: 0..0, searched: 0, number: 0, bytes: 0, is_ended: false })
    }

    /// Returns the next line. `None` means that the file has ended.
    pub(super) fn next(&mut self) -> Option<Next<'_>> {
        let found = self.find()?;
        self.number += 1;
        let text = match found {
            Found::Line(mut range) => {
                if self.number == 1 && self.buffer[range.clone()].starts_with(BYTE_ORDER_MARK) {
                    range.start += BYTE_ORDER_MARK.len();
                }
                let line = &self.buffer[range];
                Text::Line(line.strip_suffix(b"\r").unwrap_or(line))
            }
            Found::TooLong(range) => Text::TooLong(&self.buffer[range]),
            Found::Broken(error) => Text::Broken(error),
        };
        Some(Next { number: self.number, bytes: std::mem::take(&mut self.bytes), text })
    }

    fn find(&mut self) -> Option<Found> {
        loop {
            let begin = self.unread.start;
            if let Some(at) = memchr(b'\n', &self.buffer[begin + self.searched..self.unread.end]) {
                let end = begin + self.searched + at;
                self.take(end + 1);
                // One more byte is allowed, because it can be the carriage return before a line end.
                let is_long = end - begin > LINE_BYTES_MAX + 1;
                return Some(if is_long { Found::TooLong(begin..end) } else { Found::Line(begin..end) });
            }
            self.searched = self.unread.len();
            if self.searched > LINE_BYTES_MAX + 1 {
                return Some(self.skip_long_line());
            }
            match self.read_more() {
                Ok(true) => {}
                Ok(false) if self.unread.is_empty() => return None,
                Ok(false) => {
                    let range = self.unread.clone();
                    self.take(range.end);
                    return Some(Found::Line(range));
                }
                // The file has broken off inside of a line, so this line is not returned.
                Err(error) => {
                    self.take(self.unread.end);
                    return Some(Found::Broken(error));
                }
            }
        }
    }

    fn take(&mut self, end: usize) {
        self.bytes += (end - self.unread.start) as u64;
        self.unread.start = end;
        self.searched = 0;
    }

    /// Reads more bytes, and appends them to those in the buffer. Returns false at the end of the file.
    fn read_more(&mut self) -> io::Result<bool> {
        if self.unread.start > 0 {
            self.buffer.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        }
        let bytes = self.read_at(self.unread.end)?;
        self.unread.end += bytes;
        Ok(bytes > 0)
    }

    /// Reads bytes into the buffer and returns their number: 0 after the end of the file, or after an error.
    fn read_at(&mut self, begin: usize) -> io::Result<usize> {
        while !self.is_ended {
            match self.input.read(&mut self.buffer[begin..]) {
                Ok(bytes) => {
                    self.is_ended = bytes == 0;
                    return Ok(bytes);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.is_ended = true;
                    return Err(error);
                }
            }
        }
        Ok(0)
    }

    /// Skips the rest of a line, and keeps only its first bytes.
    fn skip_long_line(&mut self) -> Found {
        let kept = self.unread.len().min(LINE_BYTES_MAX);
        self.buffer.copy_within(self.unread.start..self.unread.start + kept, 0);
        self.take(self.unread.end);
        loop {
            let bytes = match self.read_at(kept) {
                Ok(0) => return Found::TooLong(0..kept),
                Ok(bytes) => bytes,
                Err(error) => return Found::Broken(error),
            };
            self.unread = kept..kept + bytes;
            if let Some(at) = memchr(b'\n', &self.buffer[self.unread.clone()]) {
                self.take(kept + at + 1);
                return Found::TooLong(0..kept);
            }
            self.take(kept + bytes);
        }
    }
}
