//! What was counted outlives the process: read before a port opens, written at intervals and at the end.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use spillgate::{Clock, Limiter, MemoryOptions, MemoryStore, SnapshotError, SystemClock, Time};

use super::load::Trouble;
use crate::service::{Backend, Service};
use crate::settings::Snapshot;

/// How often the log is told that snapshots fail.
const FAILURE_LOG_EVERY_NS: u64 = 60_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// A limiter that counts on from the snapshot, where there is one; a file that is none is moved aside.
pub(super) fn limiter(options: MemoryOptions, snapshot: &Snapshot) -> Result<Limiter<Backend>, Trouble> {
    let clock = SystemClock::start();
    let anew = |clock| Limiter::with_clock(Backend::Memory(MemoryStore::new(options)), clock);
    let Some(path) = &snapshot.path else { return Ok(anew(clock)) };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        let message = format!("the snapshot cannot be written to {}: its folder does not exist", path.display());
        return Err(Trouble::new(message, "create the folder, or choose another file with --memory-snapshot-path"));
    }
    let now = clock.now();
    match MemoryStore::restored(options, now, path) {
        Ok((store, keys, found)) => {
            let age_ms = now.as_nanos().saturating_sub(found.taken_at.as_nanos()) / 1_000_000;
            tracing::info!(entries = found.entries, stale = found.stale, age_ms, "counting on from the snapshot");
            if found.left_out > 0 {
                tracing::warn!(
                    entries = found.left_out,
                    "the snapshot has more than memory.max_keys and memory.max_heap allow: the rest counts anew"
                );
            }
            Ok(Limiter::with_keys(Backend::Memory(store), clock, keys))
        }
        Err(SnapshotError::Io(error)) if error.kind() == ErrorKind::NotFound => {
            tracing::info!("no snapshot yet: counts start anew");
            Ok(anew(clock))
        }
        Err(error) => {
            tracing::warn!("{}: {error}; counts start anew", path.display());
            move_aside(path);
            Ok(anew(clock))
        }
    }
}

/// So that the next snapshot does not take its place.
fn move_aside(path: &Path) {
    let mut name = path.as_os_str().to_owned();
    name.push(".bad");
    let bad = PathBuf::from(name);
    match fs::rename(path, &bad) {
        Ok(()) => tracing::warn!("it was moved to {}", bad.display()),
        Err(error) => tracing::warn!("it cannot be moved to {}: {error}", bad.display()),
    }
}

/// A thread that writes snapshots, the last one when this is dropped.
pub(super) struct Saver {
    /// Closed when the server has ended; `None` where nothing is kept.
    thread: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
}

impl Saver {
    pub(super) fn start(snapshot: &Snapshot, service: &Arc<Service>) -> io::Result<Saver> {
        let Some(path) = snapshot.path.clone() else { return Ok(Saver { thread: None }) };
        let (end, ended) = mpsc::channel();
        let mut saving = Saving { path, service: Arc::clone(service), told: None };
        let interval = snapshot.interval;
        let work = move || saving.until(&ended, interval);
        Ok(Saver { thread: Some((end, thread::Builder::new().name("snapshot".into()).spawn(work)?)) })
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.thread.take() {
            drop(end);
            // Its panic was logged.
            let _ = thread.join();
        }
    }
}

struct Saving {
    path: PathBuf,
    service: Arc<Service>,
    /// When the log was last told of a failure.
    told: Option<Time>,
}

impl Saving {
    fn until(&mut self, ended: &mpsc::Receiver<()>, interval: Duration) {
        while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
            self.save(false);
        }
        self.save(true);
    }

    fn save(&mut self, last: bool) {
        let (limiter, metrics) = (self.service.limiter(), self.service.metrics());
        let Backend::Memory(store) = limiter.store();
        let begun = limiter.now();
        match store.save(limiter.keys(), begun, &self.path) {
            Ok(saved) => {
                metrics.snapshots.inc();
                metrics.snapshot_time.set(i64::try_from(begun.as_nanos() / SECOND_NS).unwrap_or(i64::MAX));
                let took_ms = limiter.now().as_nanos().saturating_sub(begun.as_nanos()) / 1_000_000;
                let (entries, bytes) = (saved.entries, saved.bytes);
                if last {
                    tracing::info!(entries, bytes, took_ms, "snapshot written: a restart forgets nothing");
                } else {
                    tracing::debug!(entries, bytes, took_ms, "snapshot written");
                }
            }
            Err(error) => {
                metrics.snapshot_failures.inc();
                let since_ns = |told: Time| begun.as_nanos().saturating_sub(told.as_nanos());
                if last || self.told.is_none_or(|told| since_ns(told) >= FAILURE_LOG_EVERY_NS) {
                    self.told = Some(begun);
                    let path = self.path.display();
                    tracing::error!("the snapshot {path} cannot be written: {error}; a restart would forget more");
                }
            }
        }
    }
}
