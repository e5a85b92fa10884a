//! Merges the lines of several files in the order of their times.
//!
//! Logs are rotated, and a service on several servers has several logs. But the requests of all files have to be
//! decided in the order of their times.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use spillgate::Time;

use super::counts::LogCounts;
use super::fields::Fields;
use super::input::LogInput;
use super::log_file::{ALL_WINDOWS_BYTES_MAX, LogFile, Shared};
use super::reader::Reader;
use super::window::{Spares, Stored};

/// At most this many files should be passed. The caller reports an error for more.
pub const FILES_MAX: usize = 256;
/// How far out of order a line may be, if the user does not say it.
pub const OUT_OF_ORDER: Duration = Duration::from_secs(60);
/// The largest window of a zstd frame: the bytes that its decoder must keep in memory. The command `zstd --long` makes
/// windows of this size.
const ZSTD_WINDOW_BYTES_MAX: u64 = 128 * 1024 * 1024;
/// The bound for the windows of all zstd files together. With more than four files, the bound for the window of each
/// file is lower.
const ZSTD_WINDOWS_BYTES_MAX: u64 = 4 * ZSTD_WINDOW_BYTES_MAX;

/// A line that was read: a request that a server has logged.
#[derive(Debug)]
pub struct LogRequest<'a> {
    /// When the request is decided. Times never go back: a late line gets the time of the request before it.
    pub time: Time,
    /// The index of the file in the list that the caller passed.
    pub file: usize,
    /// The number of the line in its file, from 1.
    pub line: u64,
    /// The whole line, without its line end.
    pub text: &'a [u8],
    pub fields: &'a Fields,
}

/// At least this many late lines, one after the other, show that older lines were joined after newer ones.
const STEP_LINES_MIN: u64 = 8;
/// The times of a log step back if at least one of this many lines is late because of the step.
const STEP_SHARE: u64 = 10;

/// A place of a log from which on its times are those of an older log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepBack {
    /// The index of the file.
    pub file: usize,
    /// The number of the first of these lines in its file, from 1.
    pub line: u64,
    /// The late lines, one after the other.
    pub lines: u64,
    /// By how much their times are before those of lines that were decided before them, at most, in seconds.
    pub late_s: u64,
}

/// Returns the requests of several files in the order of their times. Requests with the same time are in the order of
/// their files, and then of their lines.
pub struct Ordered {
    files: Vec<LogFile>,
    /// The files that are not at their ends, each with the earliest time that its next request can have.
    next: BinaryHeap<Reverse<Next>>,
    shared: Shared,
    /// The request that was returned last.
    current: Stored,
    /// The time of the request that was returned last, which is later than the time of its line if that line was late.
    time_ns: u64,
    /// The late lines that were returned last, one after the other.
    step: Option<StepBack>,
    /// The most late lines that were returned one after the other.
    longest_step: Option<StepBack>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Next {
    time_ns: u64,
    file: usize,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Unopened,
    /// Only the first line was read. The file gets memory for its window only when its lines are needed.
    Begun,
    Filled,
}

impl fmt::Debug for Ordered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ordered").field("shared", &self.shared).finish_non_exhaustive()
    }
}

impl Ordered {
    /// Each file is plain, gzip or zstd: its first bytes say which. Files can be in any order. Inside of a file, lines
    /// are sorted if no line is out of order by more than `out_of_order`.
    #[must_use]
    pub fn new(files: Vec<impl Into<LogInput>>, reader: &Reader, out_of_order: Duration) -> Ordered {
        let files_count = files.len().max(1) as u64;
        let next = (0..files.len()).map(|file| Reverse(Next { time_ns: 0, file, stage: Stage::Unopened })).collect();
        let files = files.into_iter().enumerate();
        let files = files.map(|(index, file)| LogFile::new(index, file.into(), reader)).collect();
        let shared = Shared {
            counts: LogCounts::default(),
            spares: Spares::default(),
            bytes_read: Arc::new(AtomicU64::new(0)),
            out_of_order_ns: u64::try_from(out_of_order.as_nanos()).unwrap_or(u64::MAX),
            windows_bytes: 0,
            windows_bytes_max: ALL_WINDOWS_BYTES_MAX,
            zstd_window_bytes_max: ZSTD_WINDOW_BYTES_MAX.min(ZSTD_WINDOWS_BYTES_MAX / files_count),
            newest_first: None,
        };
        Ordered { files, next, shared, current: Stored::default(), time_ns: 0, step: None, longest_step: None }
    }

    /// Returns the next request. `None` means that all files have ended, or that the order of a file is wrong: see
    /// [`newest_first`](Ordered::newest_first).
    #[expect(clippy::should_implement_trait, reason = "a request borrows from this value")]
    pub fn next(&mut self) -> Option<LogRequest<'_>> {
        loop {
            let Reverse(Next { file: index, stage, .. }) = self.next.pop()?;
            let file = self.files.get_mut(index)?;
            match stage {
                Stage::Unopened => {
                    file.begin(&mut self.shared);
                    self.push(index, Stage::Begun, self.shared.out_of_order_ns);
                }
                Stage::Begun => {
                    file.fill(&mut self.shared);
                    self.push(index, Stage::Filled, 0);
                }
                Stage::Filled => {
                    let stored = file.pop(&mut self.shared)?;
                    file.fill(&mut self.shared);
                    if self.shared.newest_first.is_some() {
                        return None;
                    }
                    self.push(index, Stage::Filled, 0);
                    return Some(self.give(index, stored));
                }
            }
        }
    }

    /// Queues a file that has a further line. `earlier_ns` says how much earlier than the first line the unread lines
    /// can be.
    fn push(&mut self, file: usize, stage: Stage, earlier_ns: u64) {
        if let Some(first_ns) = self.files.get(file).and_then(LogFile::first_ns) {
            self.next.push(Reverse(Next { time_ns: first_ns.saturating_sub(earlier_ns), file, stage }));
        }
    }

    fn give(&mut self, file: usize, stored: Stored) -> LogRequest<'_> {
        let before = std::mem::replace(&mut self.current, stored);
        self.shared.spares.give(before);
        let Stored { time_ns, line, ref text, ref fields, .. } = self.current;
        if time_ns < self.time_ns {
            let late_s = (self.time_ns - time_ns).div_ceil(1_000_000_000);
            // A line within the bound is late only if a window was full.
            let was_full = self.files.get(file).is_some_and(|file| file.is_within_bound(time_ns, &self.shared));
            let reason = ", because too many lines were waiting for their order: sort the log first";
            let reason = if was_full { reason } else { "" };
            let why = || format!("its time is {late_s} s before the time of a line that was decided before it{reason}");
            self.shared.counts.late.add(line, text, || (file, why()));
            let step = self.step.get_or_insert(StepBack { file, line, lines: 0, late_s });
            step.lines += 1;
            step.late_s = step.late_s.max(late_s);
            if step.file == file {
                step.line = step.line.min(line);
            }
            if self.longest_step.is_none_or(|longest| longest.lines < step.lines) {
                self.longest_step = Some(*step);
            }
        } else {
            self.step = None;
        }
        self.time_ns = self.time_ns.max(time_ns);
        LogRequest { time: Time::from_nanos(self.time_ns), file, line, text, fields }
    }

    /// Returns the index of a file whose newest line is the first one, if there is one. The requests of such a file
    /// cannot be sorted, so no answer would be right.
    #[must_use]
    pub fn newest_first(&self) -> Option<usize> {
        self.shared.newest_first
    }

    /// Returns the place at which a large part of older lines begins, if there is one. No answer about such a log would be
    /// right, because these lines are all decided at one time. Single late lines are not such a place.
    #[must_use]
    pub fn step_back(&self) -> Option<StepBack> {
        let lines = self.shared.counts.lines;
        self.longest_step.filter(|step| step.lines >= STEP_LINES_MIN && step.lines.saturating_mul(STEP_SHARE) >= lines)
    }

    #[must_use]
    pub fn counts(&self) -> &LogCounts {
        &self.shared.counts
    }

    /// Returns how many bytes of the files were read, counted before decompression. This number shows the progress.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.shared.bytes_read.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read};

    use super::*;

    /// Returns the most memory that the windows need at one time, and the number of requests.
    fn most_bytes(files: u64, lines: u64, windows_bytes_max: usize) -> (usize, u64) {
        let text = |file: u64| (0..lines).map(|line| format!("{} {file}\n", 1_700_000_000 + line)).collect::<String>();
        let logs = (0..files).map(|file| Box::new(io::Cursor::new(text(file))) as Box<dyn Read + Send>).collect();
        let reader = Reader::new("$msec $remote_addr", &[String::from("remote_addr")], None).unwrap();
        let mut log = Ordered::new(logs, &reader, Duration::from_secs(3600));
        log.shared.windows_bytes_max = windows_bytes_max;
        let (mut most, mut requests) = (0, 0);
        while log.next().is_some() {
            requests += 1;
            most = most.max(log.shared.windows_bytes);
        }
        assert_eq!((log.shared.windows_bytes, log.counts().late.count), (0, 0));
        (most, requests)
    }

    #[test]
    fn the_memory_of_the_windows_of_many_files_is_bounded() {
        const BYTES_MAX: usize = 1024 * 1024;
        assert_eq!(FILES_MAX, 256);
        let (most, requests) = most_bytes(FILES_MAX as u64, 200, BYTES_MAX);
        assert_eq!(requests, FILES_MAX as u64 * 200);
        // A window checks its bound before it reads a line, so each window can exceed it by one line.
        assert!(most <= BYTES_MAX * 5 / 4 + FILES_MAX * 512, "{most}");
        assert!(most_bytes(FILES_MAX as u64, 200, usize::MAX).0 > 4 * BYTES_MAX, "the files are large enough");
    }
}
