//! The lines of the log that are not written yet, and the thread that writes them to standard error.
//!
//! Standard error can be a file on a full disk, or a pipe that nobody reads. A thread that serves requests must not wait
//! for it. So each thread only puts its lines into this queue, which has a bound. A line that does not fit is lost and
//! counted.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use spillgate_service::metrics::Counter;

/// A number of lines, and the number of their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Size {
    lines: usize,
    bytes: usize,
}

/// What the queue holds at most.
const MAX: Size = Size { lines: 4096, bytes: 4 << 20 };

/// The part of [`MAX`] that only lines of [`Rank::Kept`] use.
const FOR_KEPT: Size = Size { lines: 256, bytes: 512 << 10 };

/// About how many bytes are written at once. A longer line is written alone.
const BATCH_BYTES: usize = 64 << 10;

/// The time between two attempts to write, if the first one has failed.
const RETRY: Duration = Duration::from_millis(200);

thread_local! {
    /// How many lines of this thread are lost.
    static LOST: Cell<u64> = const { Cell::new(0) };
}

/// Who decides how many lines there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rank {
    /// Clients or a store that fails can cause many such lines.
    Other,
    /// Lines about the start and the end of the server, writes of operators, and panics. Other lines cannot take their
    /// places.
    Kept,
}

/// Lines that wait until a thread has written them.
#[derive(Debug)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    /// Signals that a line has been put into the queue.
    put: Condvar,
    /// Signals that lines have been written.
    written: Condvar,
    /// Counts the lost lines for the page of metrics.
    lost: OnceLock<Counter>,
}

#[derive(Debug)]
struct Waiting {
    lines: VecDeque<Box<[u8]>>,
    /// The size of `lines` and of the lines that are being written.
    size: Size,
    /// How many lines were lost and are not reported yet.
    lost: u64,
}

impl Queue {
    pub(super) const fn new() -> Queue {
        Queue {
            waiting: Mutex::new(Waiting { lines: VecDeque::new(), size: Size { lines: 0, bytes: 0 }, lost: 0 }),
            put: Condvar::new(),
            written: Condvar::new(),
            lost: OnceLock::new(),
        }
    }

    /// Counts the lines that are lost from now on in `lost` too.
    pub(super) fn count_in(&self, lost: Counter) {
        // A process has one log, so a second counter can come only from a test.
        let _ = self.lost.set(lost);
    }

    /// Puts a line into the queue, without waiting. If the queue has no place for it, the line is lost.
    pub(super) fn put(&self, line: &[u8], rank: Rank) {
        let reserved = match rank {
            Rank::Other => FOR_KEPT,
            Rank::Kept => Size::default(),
        };
        let mut waiting = self.waiting.lock();
        let size = Size { lines: waiting.size.lines + 1, bytes: waiting.size.bytes + line.len() };
        if size.lines <= MAX.lines - reserved.lines && size.bytes <= MAX.bytes - reserved.bytes {
            waiting.size = size;
            waiting.lines.push_back(line.into());
            drop(waiting);
            self.put.notify_one();
        } else {
            waiting.lost += 1;
            drop(waiting);
            LOST.set(LOST.get() + 1);
            self.lost.get().inspect(|lost| lost.inc());
        }
    }

    /// Waits for lines and writes them, for ever. `write` writes some of the bytes, and returns how many. While `write`
    /// fails, its bytes are tried again. If lines were lost, `report` is called with their number after the next write,
    /// and puts a line about them into the queue.
    pub(super) fn write_all(
        &self,
        mut write: impl FnMut(&[u8]) -> io::Result<usize>,
        mut report: impl FnMut(u64),
    ) -> ! {
        let mut batch = Vec::new();
        loop {
            let lines = self.take(&mut batch);
            let mut rest = &batch[..];
            while !rest.is_empty() {
                match write(rest) {
                    Ok(written @ 1..) => rest = rest.get(written..).unwrap_or_default(),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Ok(0) | Err(_) => self.pause(),
                }
            }
            let lost = self.end(Size { lines, bytes: batch.len() });
            if lost > 0 {
                let before = LOST.get();
                report(lost);
                if LOST.get() > before {
                    // The report is lost too, so a later one has to name these lines.
                    self.waiting.lock().lost += lost;
                }
            }
        }
    }

    /// Waits for lines, and moves the first ones into `batch`. Returns how many.
    fn take(&self, batch: &mut Vec<u8>) -> usize {
        batch.clear();
        // A long line has made the buffer large, and few lines are long.
        batch.shrink_to(BATCH_BYTES);
        let mut waiting = self.waiting.lock();
        while waiting.lines.is_empty() {
            self.put.wait(&mut waiting);
        }
        let mut lines = 0;
        while let Some(line) = waiting.lines.front()
            && (lines == 0 || batch.len() + line.len() <= BATCH_BYTES)
        {
            batch.extend_from_slice(line);
            waiting.lines.pop_front();
            lines += 1;
        }
        lines
    }

    /// Waits a little before bytes are written again.
    fn pause(&self) {
        let mut waiting = self.waiting.lock();
        // No line ends this wait, because only `written` is awaited, and only this thread signals it.
        self.written.wait_for(&mut waiting, RETRY);
    }

    /// Gives back the places of written lines. Returns how many lines were lost since the last call.
    fn end(&self, written: Size) -> u64 {
        let mut waiting = self.waiting.lock();
        waiting.size.lines -= written.lines;
        waiting.size.bytes -= written.bytes;
        self.written.notify_all();
        std::mem::take(&mut waiting.lost)
    }

    /// Waits until all lines are written, but not longer than `at_most`.
    pub(super) fn flush(&self, at_most: Duration) {
        let mut waiting = self.waiting.lock();
        self.written.wait_while_for(&mut waiting, |waiting| waiting.size.lines > 0, at_most);
    }
}

/// Returns how many lines of the calling thread were lost since it began.
pub(in crate::command::serve) fn lost_by_this_thread() -> u64 {
    LOST.get()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;

    use super::*;

    /// How long a test waits for another thread before it fails.
    const DEADLINE: Duration = Duration::from_secs(300);

    /// A queue whose thread writes what the test allows.
    struct Written {
        queue: &'static Queue,
        /// Each result is the answer to one write: how many bytes at most, or an error.
        allow: Sender<io::Result<usize>>,
        bytes: Receiver<Vec<u8>>,
    }

    fn written() -> Written {
        let queue: &'static Queue = Box::leak(Box::new(Queue::new()));
        let ((allow, allowed), (send, bytes)) = (channel::<io::Result<usize>>(), channel());
        let write = move |all: &[u8]| {
            // After its test, the thread sleeps for ever.
            let Ok(allowed) = allowed.recv() else {
                loop {
                    thread::park()
                }
            };
            let count = allowed?.min(all.len());
            send.send(all[..count].to_vec()).expect("the test receives");
            Ok(count)
        };
        let report = move |lost: u64| queue.put(format!("{lost} lost\n").as_bytes(), Rank::Kept);
        thread::spawn(move || queue.write_all(write, report));
        Written { queue, allow, bytes }
    }

    impl Written {
        fn allow(&self, result: io::Result<usize>) {
            self.allow.send(result).expect("the thread writes");
        }

        fn next(&self) -> String {
            String::from_utf8(self.bytes.recv_timeout(DEADLINE).expect("bytes are written")).expect("a log is UTF-8")
        }
    }

    fn fill(queue: &Queue, rank: Rank, lines: usize, bytes: usize) -> u64 {
        let (line, before) = ("a".repeat(bytes), lost_by_this_thread());
        (0..lines).for_each(|_| queue.put(line.as_bytes(), rank));
        lost_by_this_thread() - before
    }

    #[test]
    fn a_full_queue_loses_lines_counts_them_and_has_places_for_kept_lines() {
        let (queue, counted) = (Queue::new(), Counter::default());
        queue.count_in(counted.clone());
        assert_eq!(fill(&queue, Rank::Other, MAX.lines - FOR_KEPT.lines, 10), 0);
        assert_eq!(fill(&queue, Rank::Other, 7, 10), 7);
        assert_eq!(fill(&queue, Rank::Kept, FOR_KEPT.lines, 10), 0);
        assert_eq!(fill(&queue, Rank::Kept, 3, 10), 3);
        assert_eq!((counted.get(), queue.waiting.lock().lost), (10, 10));
        assert_eq!(queue.waiting.lock().size, Size { lines: MAX.lines, bytes: 10 * MAX.lines });
    }

    #[test]
    fn the_bytes_of_the_queue_have_a_bound() {
        let queue = Queue::new();
        assert_eq!(fill(&queue, Rank::Other, 8, 512 << 10), 1);
        assert_eq!(fill(&queue, Rank::Other, 1, 1), 1, "a small line has no place either");
        assert_eq!(fill(&queue, Rank::Kept, 2, 256 << 10), 0);
        assert_eq!(fill(&queue, Rank::Kept, 1, 1), 1);
        assert_eq!(queue.waiting.lock().size.bytes, MAX.bytes);
    }

    #[test]
    fn each_byte_is_written_once_although_writes_fail_or_write_a_part() {
        let written = written();
        written.queue.put(b"first line\n", Rank::Other);
        written.allow(Err(io::ErrorKind::StorageFull.into()));
        written.allow(Err(io::ErrorKind::Interrupted.into()));
        written.allow(Ok(0));
        written.allow(Ok(4));
        written.allow(Ok(usize::MAX));
        assert_eq!([written.next(), written.next(), written.next()], ["", "firs", "t line\n"]);
        written.queue.put(b"second\n", Rank::Other);
        written.allow(Ok(usize::MAX));
        assert_eq!(written.next(), "second\n");
        written.queue.flush(DEADLINE);
    }

    #[test]
    fn lost_lines_are_reported_when_the_log_goes_on() {
        let written = written();
        fill(written.queue, Rank::Other, 1, 1);
        written.allow(Ok(1));
        assert_eq!(written.next(), "a");
        written.queue.flush(DEADLINE);
        fill(written.queue, Rank::Other, MAX.lines - FOR_KEPT.lines + 5, 1);
        let mut rest = String::new();
        while !rest.ends_with("5 lost\n") {
            written.allow(Ok(usize::MAX));
            rest += &written.next();
        }
        assert_eq!(rest.len(), MAX.lines - FOR_KEPT.lines + "5 lost\n".len());
        written.queue.flush(DEADLINE);
    }

    #[test]
    fn a_flush_does_not_wait_for_a_write_that_never_ends() {
        let written = written();
        written.queue.put(b"stuck\n", Rank::Kept);
        written.queue.flush(Duration::from_millis(1));
        assert_eq!(written.queue.waiting.lock().size.lines, 1);
    }
}
