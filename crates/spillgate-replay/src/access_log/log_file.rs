//! One file of a log. Its lines wait in a window (a sorted buffer) until no earlier line can follow.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::backwards::Direction;
use super::counts::{LogCounts, Unreadable};
use super::input::LogInput;
use super::lines::{Lines, Text};
use super::ordered::FILES_MAX;
use super::reader::Reader;
use super::window::{Spares, Stored, Window};

/// The memory of a window in bytes, enough for 170,000 lines of 200 bytes. When a window is full, its earliest line is
/// returned, even if a still earlier one may follow.
const WINDOW_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The memory of the windows of all files together. When this memory is used up, a window can only grow to the size of
/// a small one.
pub(super) const ALL_WINDOWS_BYTES_MAX: usize = 4 * WINDOW_BYTES_MAX;
/// A small window may use [`ALL_WINDOWS_BYTES_MAX`] divided by this number. So the small windows of `FILES_MAX` files
/// add at most a quarter to that bound.
const SMALL_WINDOWS_PARTS: usize = 4 * FILES_MAX;
/// If the time of a line is later than the lines before it by more than this, the next line has to confirm the time.
/// Without this rule, one line with a wrong time would make all lines after it late.
const JUMP_NS_MIN: u64 = Duration::from_secs(3600).as_nanos() as u64;
/// The last line of a file has no next line that could confirm its time. So its time is believed if it is at most this
/// far after the lines before it.
const LAST_JUMP_NS_MAX: u64 = Duration::from_secs(24 * 3600).as_nanos() as u64;
/// If the first line is more than this before the second one, one of the two times is wrong, usually that of the first
/// line. A replay that begins at a wrong time, years before the log, would show nothing.
const FIRST_JUMP_NS_MAX: u64 = Duration::from_secs(366 * 24 * 3600).as_nanos() as u64;

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) counts: LogCounts,
    pub(super) spares: Spares,
    pub(super) bytes_read: Arc<AtomicU64>,
    pub(super) out_of_order_ns: u64,
    /// The bytes that the windows of all files use now.
    pub(super) windows_bytes: usize,
    /// The bound for `windows_bytes`.
    pub(super) windows_bytes_max: usize,
    /// A zstd frame with a greater window is refused.
    pub(super) zstd_window_bytes_max: u64,
    /// A file whose newest line is the first one, although it is not read from its end.
    pub(super) newest_first: Option<usize>,
}

pub(super) struct LogFile {
    /// The index of the file in the list that the caller passed.
    index: usize,
    /// The file before its first line is read.
    unopened: Option<LogInput>,
    /// The lines that were not read yet. `None` before the first line and after the last.
    lines: Option<Lines>,
    reader: Reader,
    /// Whether the first line of the file, which names its columns, was read before.
    knows_columns: bool,
    direction: Direction,
    /// The number of lines that were read.
    order: u64,
    window: Window,
    /// The latest time of all lines whose times are believed.
    newest_ns: Option<u64>,
    /// A line that is far after the lines before it, and waits for the next line to confirm its time.
    unconfirmed: Option<Stored>,
    /// The first line, if it is far before the second one. One of the two times is wrong, and the third line shows
    /// which.
    first: Option<Stored>,
}

impl LogFile {
    pub(super) fn new(index: usize, mut file: LogInput, reader: &Reader) -> LogFile {
        let own = file.reader.take();
        let knows_columns = own.as_ref().is_some_and(Reader::has_first_line);
        LogFile {
            index,
            unopened: Some(file),
            lines: None,
            reader: own.unwrap_or_else(|| reader.clone()),
            knows_columns,
            direction: Direction::default(),
            order: 0,
            window: Window::default(),
            newest_ns: None,
            unconfirmed: None,
            first: None,
        }
    }

    /// Returns the time of the next line. `None` means that there is no further line.
    pub(super) fn first_ns(&self) -> Option<u64> {
        self.window.first_ns()
    }

    /// Returns whether a line is out of order by no more than the bound.
    pub(super) fn is_within_bound(&self, time_ns: u64, shared: &Shared) -> bool {
        self.newest_ns.is_some_and(|newest_ns| newest_ns.saturating_sub(time_ns) <= shared.out_of_order_ns)
    }

    pub(super) fn pop(&mut self, shared: &mut Shared) -> Option<Stored> {
        let before = self.window.bytes();
        let stored = self.window.pop();
        shared.windows_bytes -= before - self.window.bytes();
        stored
    }

    /// Reads lines until the window has at least one.
    pub(super) fn begin(&mut self, shared: &mut Shared) {
        let Some(file) = self.unopened.take() else { return };
        match Lines::new(file, self.reader.is_json(), &shared.bytes_read, shared.zstd_window_bytes_max) {
            Ok(lines) => self.lines = Some(lines),
            Err(error) => shared.counts.broken(self.index, 1, &error),
        }
        while self.lines.is_some() && self.window.first_ns().is_none() {
            self.read_line(shared);
        }
    }

    /// Reads lines until no earlier line can follow the first one of the window, or until the window is full.
    pub(super) fn fill(&mut self, shared: &mut Shared) {
        while self.lines.is_some() && self.has_capacity(shared) {
            if let (Some(first_ns), Some(newest_ns)) = (self.window.first_ns(), self.newest_ns)
                && newest_ns - first_ns >= shared.out_of_order_ns
            {
                break;
            }
            self.read_line(shared);
        }
    }

    fn has_capacity(&self, shared: &Shared) -> bool {
        let bytes = self.window.bytes();
        bytes < shared.windows_bytes_max / SMALL_WINDOWS_PARTS
            || bytes < WINDOW_BYTES_MAX && shared.windows_bytes < shared.windows_bytes_max
    }

    fn read_line(&mut self, shared: &mut Shared) {
        let Some(next) = self.lines.as_mut().and_then(Lines::next) else { return self.end(shared) };
        let (counts, number) = (&mut shared.counts, next.number);
        counts.bytes += next.bytes;
        let (why, text) = match next.text {
            Text::Line(_) if self.knows_columns && number == 1 => return,
            Text::Line(text) => {
                let mut stored = shared.spares.take();
                match self.reader.read(text, &mut stored.fields) {
                    Ok(time) => {
                        self.order += 1;
                        (stored.time_ns, stored.order, stored.line) = (time.as_nanos(), self.order, number);
                        self.direction.add(stored.time_ns);
                        if self.direction.is_beyond(shared.out_of_order_ns, false) {
                            shared.newest_first = Some(self.index);
                        }
                        stored.text.clear();
                        stored.text.extend_from_slice(text);
                        counts.add_time(time);
                        counts.lines += 1;
                        return self.judge(stored, shared);
                    }
                    Err(why) => (why, text),
                }
            }
            Text::TooLong(text) => (Unreadable::TooLong, text),
            Text::Broken(error) => {
                counts.broken(self.index, number, &error);
                return self.end(shared);
            }
        };
        if why != Unreadable::Header {
            counts.lines += 1;
            counts.unreadable.add(number, text, || (self.index, why.to_string()));
        }
    }

    /// Gives a line to the window, unless the next line has to confirm its time first.
    fn judge(&mut self, stored: Stored, shared: &mut Shared) {
        let jump_ns = shared.out_of_order_ns.max(JUMP_NS_MIN);
        if let Some(before) = self.unconfirmed.take() {
            let is_confirmed = stored.time_ns.saturating_add(jump_ns) >= before.time_ns;
            if let Some(first) = self.first.take() {
                self.believe(first, is_confirmed.then_some(Unreadable::FarBehind), shared);
            }
            if self.newest_ns.is_none() && stored.time_ns > before.time_ns.saturating_add(FIRST_JUMP_NS_MAX) {
                self.first = Some(before);
            } else {
                self.believe(before, (!is_confirmed).then_some(Unreadable::FarAhead), shared);
            }
        }
        if self.newest_ns.is_none_or(|newest_ns| stored.time_ns > newest_ns.saturating_add(jump_ns)) {
            self.unconfirmed = Some(stored);
        } else {
            self.believe(stored, None, shared);
        }
    }

    /// Adds a line to the window. If its time is wrong, the line counts as unreadable instead.
    fn believe(&mut self, stored: Stored, wrong: Option<Unreadable>, shared: &mut Shared) {
        if let Some(why) = wrong {
            shared.counts.unreadable.add(stored.line, &stored.text, || (self.index, why.to_string()));
            shared.spares.give(stored);
        } else {
            self.newest_ns = self.newest_ns.max(Some(stored.time_ns));
            let before = self.window.bytes();
            self.window.push(stored);
            shared.windows_bytes += self.window.bytes() - before;
        }
    }

    /// Closes the file, and decides about the lines that were waiting for a confirmation.
    fn end(&mut self, shared: &mut Shared) {
        shared.counts.bytes += self.lines.take().map_or(0, |lines| lines.rest_bytes());
        if self.direction.is_beyond(shared.out_of_order_ns, true) {
            shared.newest_first = Some(self.index);
        }
        if let Some(first) = self.first.take() {
            self.believe(first, None, shared);
        }
        if let Some(last) = self.unconfirmed.take() {
            let believed_ns = self.newest_ns.map(|newest_ns| newest_ns.saturating_add(LAST_JUMP_NS_MAX));
            let is_right = believed_ns.is_none_or(|believed_ns| last.time_ns <= believed_ns);
            self.believe(last, (!is_right).then_some(Unreadable::FarAhead), shared);
        }
    }
}
