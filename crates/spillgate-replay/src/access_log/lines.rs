//! Splits a file into lines. The file can be compressed. If lines are JSON, a file can also be one array, and each object of
//! this array counts as a line.
//!
//! The memory is bounded, because only the beginning of a line that is too long is kept.

use std::io::{self, ErrorKind, Read};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use memchr::{memchr, memchr_iter};

use super::decompress::{counted, decompressed};
use super::input::LogInput;
use super::json_array::Object;
use super::reader::LINE_BYTES_MAX;

const BUFFER_BYTES: usize = 2 * LINE_BYTES_MAX;
pub(super) const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// The next line, or the error that ends the file.
#[derive(Debug)]
pub(super) struct Next<'a> {
    /// The number of the line in its file, from 1. An object of a JSON array has the number of the line where it begins.
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
    /// The number of lines that were returned. For a JSON array, the number of line ends before the next object.
    number: u64,
    /// The number of lines of the file, if they are returned from the last to the first.
    last_line: Option<u64>,
    /// Whether the file is a JSON array.
    is_array: bool,
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
    /// `can_be_array` says whether the file can be a JSON array.
    pub(super) fn new(
        input: LogInput,
        can_be_array: bool,
        bytes_read: &Arc<AtomicU64>,
        window_bytes_max: u64,
    ) -> io::Result<Lines> {
        let last_line = input.last_line;
        // The end of a plain file can look like the beginning of a compressed one.
        let input = match last_line {
            Some(_) => counted(input.file, Arc::clone(bytes_read)),
            None => decompressed(input.file, Arc::clone(bytes_read), window_bytes_max)?,
        };
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        let (is_array, is_ended) = (false, false);
        let mut lines =
            Lines { input, buffer, unread: 0..0, searched: 0, number: 0, last_line, is_array, bytes: 0, is_ended };
        lines.is_array = can_be_array && last_line.is_none() && lines.begins_array()?;
        Ok(lines)
    }

    /// Returns the next line. `None` means that the file has ended.
    pub(super) fn next(&mut self) -> Option<Next<'_>> {
        let (found, number) = if self.is_array {
            self.find_object()?
        } else {
            let found = self.find()?;
            self.number += 1;
            (found, self.last_line.map_or(self.number, |last| (last + 1).saturating_sub(self.number)))
        };
        let text = match found {
            Found::Line(mut range) => {
                if number == 1 && self.buffer[range.clone()].starts_with(BYTE_ORDER_MARK) {
                    range.start += BYTE_ORDER_MARK.len();
                }
                let line = &self.buffer[range];
                Text::Line(line.strip_suffix(b"\r").unwrap_or(line))
            }
            Found::TooLong(range) => Text::TooLong(&self.buffer[range]),
            Found::Broken(error) => Text::Broken(error),
        };
        Some(Next { number, bytes: std::mem::take(&mut self.bytes), text })
    }

    /// Returns the number of bytes that left the buffer after the last line.
    pub(super) fn rest_bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether the file is a JSON array: its first character is `[`.
    fn begins_array(&mut self) -> io::Result<bool> {
        loop {
            let unread = &self.buffer[self.unread.clone()];
            let begin = unread.strip_prefix(BYTE_ORDER_MARK).unwrap_or(unread).trim_ascii_start();
            if let Some(first) = begin.first() {
                return Ok(*first == b'[');
            }
            if self.unread.len() > LINE_BYTES_MAX || !self.read_more()? {
                return Ok(false);
            }
        }
    }

    /// Finds the next object of a JSON array, and the number of the line where it begins.
    fn find_object(&mut self) -> Option<(Found, u64)> {
        // Between two objects are a comma and white space.
        loop {
            let between = &self.buffer[self.unread.clone()];
            let skipped = between.iter().take_while(|byte| b" \t\r\n,[]\xef\xbb\xbf".contains(byte)).count();
            self.number += memchr_iter(b'\n', &between[..skipped]).count() as u64;
            self.take(self.unread.start + skipped);
            if !self.unread.is_empty() {
                break;
            }
            match self.read_more() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some((Found::Broken(error), self.number + 1)),
            }
        }
        let number = self.number + 1;
        let mut object = Object::default();
        // The first bytes of an object that is too long stay at the beginning of the buffer.
        let mut kept = None;
        loop {
            let unscanned = &self.buffer[self.unread.start + self.searched..self.unread.end];
            let end = object.end(unscanned);
            let scanned = end.unwrap_or(unscanned.len());
            self.number += memchr_iter(b'\n', &unscanned[..scanned]).count() as u64;
            if end.is_some() || self.is_ended {
                let range = self.unread.start..self.unread.start + self.searched + scanned;
                self.take(range.end);
                let found = match kept {
                    Some(kept) => Found::TooLong(0..kept),
                    None if range.len() > LINE_BYTES_MAX + 1 => Found::TooLong(range),
                    None => Found::Line(range),
                };
                return Some((found, number));
            }
            self.searched += scanned;
            if kept.is_none() && self.searched > LINE_BYTES_MAX + 1 {
                self.buffer.copy_within(self.unread.start..self.unread.start + LINE_BYTES_MAX, 0);
                kept = Some(LINE_BYTES_MAX);
            }
            let read = match kept {
                Some(kept) => {
                    self.take(self.unread.end);
                    self.read_at(kept).map(|bytes| self.unread = kept..kept + bytes)
                }
                None => self.read_more().map(drop),
            };
            if let Err(error) = read {
                self.take(self.unread.end);
                return Some((Found::Broken(error), number));
            }
        }
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
