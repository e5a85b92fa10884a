//! Reads files with a time limit, because a disk or a network that does not answer would hold up the thread that reloads.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::command::terminal::Problem;

/// The time limit for reading the files of one unit. If reading takes longer, a disk or a network probably does not
/// answer.
pub(super) const READ_WITHIN: Duration = Duration::from_secs(10);

/// Reads files with a time limit. If a read takes longer than its limit, no other read of this reader begins until the late one
/// has ended. So at most one thread of each reader is blocked, even if a read never ends. Each unit has a reader of its own: a
/// token on a disk that does not answer keeps no new rules out.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// The thread of the last read that took longer than its time limit.
    late: Option<JoinHandle<()>>,
}

impl Reader {
    pub(super) fn read<T, F>(&mut self, within: Duration, work: F) -> Result<T, Problem>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        const HELP: &str = "check the disk or network of the files, then reload again";
        if self.late.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return Err(Problem::new("the files are still being read after an earlier attempt", HELP));
        }
        let (send, result) = sync_channel(1);
        let thread = thread::Builder::new().name("file-reader".into()).spawn(move || drop(send.send(work())));
        let thread = thread.map_err(|error| Problem::no_resources(&error))?;
        result.recv_timeout(within).map_err(|error| match error {
            RecvTimeoutError::Timeout => {
                self.late = Some(thread);
                Problem::new(format!("the files could not be read within {} s", within.as_secs()), HELP)
            }
            RecvTimeoutError::Disconnected => Problem::new("reading the files panicked", "see the panic above"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_that_never_ends_blocks_one_thread() {
        let mut reader = Reader::default();
        let (end, ended) = sync_channel::<()>(0);
        let late = reader.read(Duration::from_millis(20), move || ended.recv());
        assert!(late.expect_err("the read does not end in time").to_string().contains("could not be read within"));
        let next = reader.read(Duration::from_secs(30), || 1);
        assert!(next.expect_err("the first read has not ended").to_string().contains("still being read"));
        drop(end);
        while reader.late.as_ref().is_some_and(|thread| !thread.is_finished()) {
            thread::yield_now();
        }
        assert_eq!(reader.read(Duration::from_secs(30), || 2).ok(), Some(2));
    }

    #[test]
    fn a_reader_that_panics_is_an_error() {
        let read = Reader::default().read(Duration::from_secs(30), || -> u8 { panic!("as this test wants it") });
        assert!(read.expect_err("the reader panicked").to_string().contains("panicked"));
    }
}
