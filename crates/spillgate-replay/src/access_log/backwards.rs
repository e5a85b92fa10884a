//! Reads the lines of a file from the last one to the first, because some programs write the newest line first.
//!
//! The memory is bounded: of a line that is too long, only its beginning is kept.

use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;

use memchr::{memchr_iter, memrchr};

use super::lines::BYTE_ORDER_MARK;
use super::reader::{LINE_BYTES_MAX, Reader};

const BLOCK_BYTES: usize = 256 * 1024;
/// This many bytes of a line are enough to see that it is too long.
const KEPT_BYTES: usize = LINE_BYTES_MAX + 2;
/// How much of a file [`newest_first`] looks at.
pub const BEGINNING_BYTES: usize = 1024 * 1024;
/// If the times go back in fewer steps, the order of the lines is not known.
const STEPS_MIN: u64 = 2;
/// The order of a file that is still read is known after this many steps.
const SURE_STEPS: u64 = 16;
/// For each step forward, at least this many have to go back.
const STEPS_BACK: u64 = 4;
/// The number of lines at each end of a file whose times are compared.
const ENDS: usize = 3;

/// Returns the lines of a file in reverse order. Each line has its line end after it.
pub(super) struct Backwards<F> {
    file: F,
    /// The bytes of the file that are before `block`.
    unread: u64,
    block: Vec<u8>,
    /// The end of the bytes of `block` that were not returned, without the line end after them.
    end: usize,
    /// The bytes of `block` that are returned next.
    pending: Range<usize>,
    owes_line_end: bool,
    is_ended: bool,
}

impl<F: Read + Seek> Backwards<F> {
    /// Returns the reader, and the number of lines of the file, which is read once to count them.
    pub(super) fn new(mut file: F) -> io::Result<(Backwards<F>, u64)> {
        let (mut lines, mut bytes, mut last) = (0, 0, b'\n');
        let mut block = vec![0; BLOCK_BYTES];
        file.seek(SeekFrom::Start(0))?;
        loop {
            let read = match file.read(&mut block) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            lines += memchr_iter(b'\n', &block[..read]).count() as u64;
            bytes += read as u64;
            last = block[read - 1];
        }
        let has_line_end = bytes > 0 && last == b'\n';
        block.clear();
        let lines = lines + u64::from(!has_line_end && bytes > 0);
        let unread = bytes - u64::from(has_line_end);
        let is_ended = bytes == 0;
        Ok((Backwards { file, unread, block, end: 0, pending: 0..0, owes_line_end: false, is_ended }, lines))
    }

    /// Puts the block before the current one in front of the bytes that were not returned.
    fn read_block(&mut self) -> io::Result<()> {
        let bytes = self.unread.min(BLOCK_BYTES as u64);
        self.unread -= bytes;
        let mut block = vec![0; bytes as usize];
        self.file.seek(SeekFrom::Start(self.unread))?;
        self.file.read_exact(&mut block)?;
        block.extend_from_slice(&self.block[..self.end]);
        (self.block, self.end) = (block, bytes as usize + self.end);
        Ok(())
    }

    /// Finds the last line that was not returned.
    fn find(&mut self) -> io::Result<()> {
        loop {
            if let Some(at) = memrchr(b'\n', &self.block[..self.end]) {
                (self.pending, self.end) = (at + 1..self.end, at);
                break;
            }
            if self.unread == 0 {
                (self.pending, self.end, self.is_ended) = (0..self.end, 0, true);
                break;
            }
            // The rest of a line that is too long is dropped.
            self.end = self.end.min(KEPT_BYTES);
            self.read_block()?;
        }
        self.owes_line_end = true;
        Ok(())
    }
}

impl<F: Read + Seek> Read for Backwards<F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut written = 0;
        while written < buffer.len() {
            if !self.pending.is_empty() {
                let bytes = self.pending.len().min(buffer.len() - written);
                let begin = self.pending.start;
                buffer[written..written + bytes].copy_from_slice(&self.block[begin..begin + bytes]);
                self.pending.start += bytes;
                written += bytes;
            } else if self.owes_line_end {
                buffer[written] = b'\n';
                self.owes_line_end = false;
                written += 1;
            } else if self.is_ended {
                break;
            } else {
                self.find()?;
            }
        }
        Ok(written)
    }
}

/// Whether the times of lines go forward or back.
#[derive(Debug, Clone, Default)]
pub(super) struct Direction {
    /// The number of lines.
    lines: usize,
    /// The times of the first lines. Of three, the one in the middle is right even if one of them is wrong.
    first_ns: [u64; ENDS],
    /// The times of the last lines, in a ring.
    last_ns: [u64; ENDS],
    forward: u64,
    back: u64,
}

impl Direction {
    pub(super) fn add(&mut self, time_ns: u64) {
        if self.lines > 0 {
            let before_ns = self.last_ns[(self.lines - 1) % ENDS];
            self.forward += u64::from(time_ns > before_ns);
            self.back += u64::from(time_ns < before_ns);
        }
        if let Some(first_ns) = self.first_ns.get_mut(self.lines) {
            *first_ns = time_ns;
        }
        self.last_ns[self.lines % ENDS] = time_ns;
        self.lines += 1;
    }

    /// Returns by how much the last lines are before the first ones. Blocks of lines can have their newest line first
    /// although each block is later than the one before it. Then most steps go back, but the file goes forward.
    fn back_ns(&self) -> u64 {
        let middle_ns = |mut times_ns: [u64; ENDS]| {
            times_ns.sort_unstable();
            times_ns[ENDS / 2]
        };
        match self.lines {
            0 => 0,
            lines if lines < 2 * ENDS => self.first_ns[0].saturating_sub(self.last_ns[(lines - 1) % ENDS]),
            _ => middle_ns(self.first_ns).saturating_sub(middle_ns(self.last_ns)),
        }
    }

    /// Returns whether the newest line is the first one. `has_all` says whether all lines of the file were added.
    fn is_back(&self, has_all: bool) -> bool {
        let steps = if has_all { STEPS_MIN } else { SURE_STEPS };
        self.back >= steps && self.back >= STEPS_BACK.saturating_mul(self.forward) && self.back_ns() > 0
    }

    /// Returns whether the newest line is the first one, and sorting within `out_of_order_ns` cannot repair the order.
    pub(super) fn is_beyond(&self, out_of_order_ns: u64, has_all: bool) -> bool {
        self.back_ns() > out_of_order_ns && self.is_back(has_all)
    }
}

/// Looks at the beginning of a file, of at most [`BEGINNING_BYTES`]. If its newest line is the first one, returns a reader
/// of its lines that knows the names of their columns. Lines of a JSON array and of a compressed file have no order that
/// this function could see.
#[must_use]
pub fn newest_first(beginning: &[u8], reader: &Reader) -> Option<Reader> {
    let has_all = beginning.len() < BEGINNING_BYTES;
    let beginning = beginning.strip_prefix(BYTE_ORDER_MARK).unwrap_or(beginning);
    if reader.is_json() && beginning.trim_ascii_start().first() == Some(&b'[') {
        return None;
    }
    let (mut reader, mut direction, mut fields) = (reader.clone(), Direction::default(), super::Fields::default());
    for line in beginning.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if let Ok(time) = reader.read(line, &mut fields) {
            direction.add(time.as_nanos());
        }
    }
    direction.is_back(has_all).then_some(reader)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use proptest::prelude::*;

    use super::*;

    fn reversed(text: &[u8]) -> (Vec<u8>, u64) {
        let (mut file, lines) = Backwards::new(Cursor::new(text)).expect("memory can be read");
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).expect("memory can be read");
        (bytes, lines)
    }

    #[test]
    fn lines_come_in_reverse_order() {
        for (text, expected, lines) in
            [("", "", 0), ("\n", "\n", 1), ("a", "a\n", 1), ("a\nb\n", "b\na\n", 2), ("a\n\nb", "b\n\na\n", 3)]
        {
            assert_eq!(reversed(text.as_bytes()), (expected.as_bytes().to_vec(), lines), "{text:?}");
        }
    }

    #[test]
    fn a_long_line_keeps_only_its_beginning() {
        let long = [b"b".repeat(9), b"c".repeat(5 * BLOCK_BYTES)].concat();
        let (bytes, lines) = reversed(&[b"a\n", &long[..], b"\nd"].concat());
        assert_eq!(lines, 3);
        let parts: Vec<_> = bytes.split(|byte| *byte == b'\n').collect();
        assert_eq!((parts[0], parts[2]), (&b"d"[..], &b"a"[..]));
        assert!(long.starts_with(parts[1]) && parts[1].len() > LINE_BYTES_MAX, "{}", parts[1].len());
        let (all, _) = Backwards::new(Cursor::new(long.repeat(20))).expect("memory can be read");
        let mut all = io::BufReader::new(all);
        io::copy(&mut all, &mut io::sink()).expect("memory can be read");
        assert!(all.get_ref().block.capacity() <= 3 * BLOCK_BYTES, "{}", all.get_ref().block.capacity());
    }

    proptest! {
        #[test]
        fn no_line_is_lost(lengths in prop::collection::vec(0..40_000usize, 0..40)) {
            let lines: Vec<Vec<u8>> = lengths.iter().map(|length| vec![b'a'; *length]).collect();
            let text: Vec<u8> = lines.iter().flat_map(|line| [&line[..], b"\n"].concat()).collect();
            let expected: Vec<u8> = lines.iter().rev().flat_map(|line| [&line[..], b"\n"].concat()).collect();
            prop_assert_eq!(reversed(&text), (expected, lines.len() as u64));
        }
    }
}
