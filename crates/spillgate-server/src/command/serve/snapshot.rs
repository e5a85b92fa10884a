//! Snapshots of the memory store: read before a port opens, written at intervals and at the end.
//!
//! Without snapshots, a restart would lose all counts, and each client could use its limits a second time.

use std::fs;
use std::io::{self, ErrorKind};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use spillgate::{Clock, Limiter, MemoryOptions, MemoryStore, Saved, SnapshotError, Time};
use spillgate_service::{Backend, Service};
use tokio::time::Instant;

use super::log;
use super::snapshot_file::{LockedFile, unreadable};
use crate::command::terminal::Problem;

/// The shortest time between log lines about failed snapshots.
const FAILURE_LOG_EVERY_NS: u64 = 60_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;
/// At most this many invalid snapshot files are kept. A newer file never replaces them.
const KEPT_MAX: usize = 3;

/// Opens the memory store, with the counts of the snapshot. If no snapshot exists, the store is empty.
///
/// An invalid snapshot is renamed, and the store is empty. A file that cannot be read is an error. This file keeps its
/// name, because its content can be valid.
pub(super) fn limiter(options: MemoryOptions, file: Option<&LockedFile>) -> Result<Limiter<Backend>, Problem> {
    let clock = log::clock();
    let empty = |clock| Limiter::with_clock(Backend::Memory(MemoryStore::new(options)), clock);
    let Some(LockedFile { path, .. }) = file else { return Ok(empty(clock)) };
    let now = clock.now();
    match MemoryStore::restored(options, now, path) {
        Ok((store, keys, found)) => {
            let age_ms = now.as_nanos().saturating_sub(found.taken_at.as_nanos()) / 1_000_000;
            tracing::info!(entries = found.entries, stale = found.expired, age_ms, "counts restored from the snapshot");
            if found.left_out > 0 {
                tracing::warn!(
                    entries = found.left_out,
                    "the snapshot has more entries than memory.max_keys and memory.max_heap allow: the other counts start at zero"
                );
            }
            Ok(Limiter::with_keys(Backend::Memory(store), clock, keys))
        }
        Err(SnapshotError::Io(error)) if error.kind() == ErrorKind::NotFound => {
            tracing::info!("no snapshot yet: counts start at zero");
            Ok(empty(clock))
        }
        Err(SnapshotError::Io(error)) => Err(unreadable(path, &error)),
        Err(error) => {
            tracing::warn!("{}: {error}; counts start at zero", path.display());
            move_aside(path);
            Ok(empty(clock))
        }
    }
}

/// Renames an invalid snapshot, so that the next snapshot does not replace it.
fn move_aside(path: &Path) {
    let names = (1..=KEPT_MAX).map(|number| {
        let mut name = path.as_os_str().to_owned();
        name.push(if number == 1 { ".bad".to_owned() } else { format!(".bad.{number}") });
        PathBuf::from(name)
    });
    let is_free = |name: &PathBuf| fs::symlink_metadata(name).is_err_and(|error| error.kind() == ErrorKind::NotFound);
    let Some(bad) = names.into_iter().find(is_free) else {
        tracing::warn!(
            "the next snapshot replaces the invalid snapshot: {KEPT_MAX} earlier invalid files are kept already"
        );
        return;
    };
    match fs::rename(path, &bad) {
        Ok(()) => tracing::warn!("the invalid snapshot was moved to {}", bad.display()),
        Err(error) => tracing::warn!("the invalid snapshot cannot be moved to {}: {error}", bad.display()),
    }
}

/// A thread that writes snapshots.
pub(super) struct Saver {
    work: Mutex<Work>,
}

enum Work {
    /// The thread ends when the first channel is closed. The second one then has whether the last snapshot was written.
    Running(mpsc::Sender<()>, mpsc::Receiver<bool>),
    /// The thread has ended, or nobody waits for it any more. `true` if it wrote the last snapshot.
    Done(bool),
}

impl Saver {
    pub(super) fn start(file: Option<LockedFile>, interval: Duration, service: &Arc<Service>) -> io::Result<Saver> {
        let Some(file) = file else { return Ok(Saver { work: Mutex::new(Work::Done(true)) }) };
        Saver::start_with(Saving { file, write, service: Arc::clone(service), logged: None }, interval)
    }

    fn start_with(mut saving: Saving, interval: Duration) -> io::Result<Saver> {
        let ((end, ended), (kept, last)) = (mpsc::channel(), mpsc::channel());
        let work = move || {
            // At the end, nobody may wait any more.
            let _ = kept.send(saving.until(&ended, interval));
        };
        thread::Builder::new().name("snapshot".into()).spawn(work)?;
        Ok(Saver { work: Mutex::new(Work::Running(end, last)) })
    }

    /// Ends the thread and waits until it has written the last snapshot, but no longer than `within`: a disk that does
    /// not answer must not keep the server from its end. If several threads call this function, all of them wait.
    /// Returns false if the last snapshot is not written.
    pub(super) fn finish(&self, within: Duration) -> bool {
        let until = Instant::now() + within;
        // The lock is held while the thread writes, so that a second caller waits too.
        let finished = self.work.try_lock_for(within).and_then(|mut work| {
            let written = match mem::replace(&mut *work, Work::Done(false)) {
                Work::Running(end, last) => {
                    drop(end);
                    match last.recv_timeout(until.saturating_duration_since(Instant::now())) {
                        Ok(kept) => Some(kept),
                        // The panic was logged already.
                        Err(RecvTimeoutError::Disconnected) => Some(false),
                        Err(RecvTimeoutError::Timeout) => None,
                    }
                }
                Work::Done(kept) => Some(kept),
            };
            *work = Work::Done(written.unwrap_or(false));
            written
        });
        if finished.is_none() {
            tracing::error!(
                "the last snapshot was not written within {} s: its disk may not answer; a restart loses the counts since \
                 the snapshot before",
                within.as_secs()
            );
        }
        finished.unwrap_or(false)
    }
}

type Write = fn(&Limiter<Backend>, Time, &Path) -> io::Result<Saved>;

fn write(limiter: &Limiter<Backend>, now: Time, path: &Path) -> io::Result<Saved> {
    limiter.store().memory().save(limiter.keys(), now, path)
}

struct Saving {
    file: LockedFile,
    write: Write,
    service: Arc<Service>,
    /// The time of the last log line about a failure.
    logged: Option<Time>,
}

impl Saving {
    fn until(&mut self, ended: &mpsc::Receiver<()>, interval: Duration) -> bool {
        while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
            self.save(false);
        }
        self.save(true)
    }

    fn save(&mut self, last: bool) -> bool {
        let (limiter, metrics) = (self.service.limiter(), self.service.metrics());
        let begun = limiter.now();
        // A panic counts as one failed snapshot and does not end the thread, because the next snapshot can succeed.
        let written = catch_unwind(AssertUnwindSafe(|| (self.write)(limiter, begun, &self.file.path)));
        match written.unwrap_or_else(|_| Err(io::Error::other("its writer panicked; see the panic above"))) {
            Ok(saved) => {
                metrics.snapshots.inc();
                metrics.snapshot_successful.set(1);
                metrics.snapshot_time.set(i64::try_from(begun.as_nanos() / SECOND_NS).unwrap_or(i64::MAX));
                let took_ms = limiter.now().as_nanos().saturating_sub(begun.as_nanos()) / 1_000_000;
                let (entries, bytes) = (saved.entries, saved.bytes);
                if last {
                    tracing::info!(entries, bytes, took_ms, "snapshot written: a restart keeps all counts");
                } else {
                    tracing::debug!(entries, bytes, took_ms, "snapshot written");
                }
                true
            }
            Err(error) => {
                metrics.snapshot_failures.inc();
                metrics.snapshot_successful.set(0);
                let since_ns = |logged: Time| begun.as_nanos().saturating_sub(logged.as_nanos());
                if last || self.logged.is_none_or(|logged| since_ns(logged) >= FAILURE_LOG_EVERY_NS) {
                    self.logged = Some(begun);
                    let path = self.file.path.display();
                    tracing::error!(
                        "the snapshot {path} cannot be written: {error}; a restart would lose the counts since the last snapshot"
                    );
                }
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use spillgate::rules::{Rules, RulesFile};

    use super::*;
    use crate::command::serve::snapshot_file::SnapshotFile;
    use spillgate_service::ServiceOptions;
    use spillgate_service::metrics::Metrics;

    fn panics_at_first(limiter: &Limiter<Backend>, now: Time, path: &Path) -> io::Result<Saved> {
        assert!(
            fs::File::create_new(path).is_err(),
            "this test wants a panic at the first snapshot, when the file does not exist yet"
        );
        write(limiter, now, path)
    }

    /// Returns what writes the counts of an empty service into the folder, with `write`.
    fn saving(folder: &Path, write: Write) -> Saving {
        let text = "domain: d\ndescriptors: [{key: a}]".to_owned();
        let rules = Rules::parse(&[RulesFile { name: "d.yaml".to_owned(), text }]).expect("the rules are valid");
        let limiter = Limiter::new(Backend::Memory(MemoryStore::new(MemoryOptions::default())));
        let service = Arc::new(Service::new(rules, limiter, ServiceOptions::default(), Arc::new(Metrics::new())));
        let file = SnapshotFile::find(&folder.join("state"), std::iter::empty())
            .and_then(SnapshotFile::lock)
            .expect("no other process has locked the file");
        Saving { file, write, service, logged: None }
    }

    /// A disk that does not answer, as that of a server of files that is gone.
    fn never_ends(_: &Limiter<Backend>, _: Time, _: &Path) -> io::Result<Saved> {
        loop {
            thread::park();
        }
    }

    #[test]
    fn a_snapshot_that_never_ends_does_not_keep_the_server_from_its_end() {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let saver = Saver::start_with(saving(folder.path(), never_ends), Duration::from_secs(3600));
        let saver = saver.expect("the thread starts");
        let short = Duration::from_millis(20);
        // The first SIGTERM waits longer than the second one, which must not wait for the first.
        thread::scope(|scope| {
            let first = scope.spawn(|| saver.finish(short * 100));
            assert!(!saver.finish(short));
            assert!(!first.join().expect("it does not panic"));
        });
        assert!(!saver.finish(short), "what was not written is never reported as written");
    }

    #[test]
    fn a_writer_that_panics_is_counted_and_writes_the_next_snapshot() {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let path = folder.path().join("state");
        let mut saving = saving(folder.path(), panics_at_first);
        let metrics = Arc::clone(saving.service.metrics());
        assert!(!saving.save(false));
        assert_eq!((metrics.snapshot_failures.get(), metrics.snapshots.get()), (1, 0));
        assert!(saving.logged.is_some(), "the failure is in the log");
        assert!(saving.save(true));
        assert_eq!((metrics.snapshot_failures.get(), metrics.snapshots.get()), (1, 1));
        let options = MemoryOptions::default();
        assert!(MemoryStore::restored(options, log::clock().now(), &path).is_ok(), "the last snapshot is valid");
    }
}
