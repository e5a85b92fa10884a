//! The file of the snapshots: its real path, and a lock on it.
//!
//! If two servers wrote to one snapshot file, each would destroy the counts of the other. A snapshot also must not
//! replace a file that the server reads, such as its key.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use spillgate::rules::is_rules_file;

use crate::command::open::regular_file;
use crate::command::terminal::Problem;

/// A path that can be used for snapshots.
#[derive(Debug)]
pub(super) struct SnapshotFile {
    path: PathBuf,
}

impl SnapshotFile {
    /// Finds the real path of the snapshot. Links are followed, so that a new snapshot replaces the file and not the
    /// link. Fails if the server reads the file at this path for another purpose. `read` lists the files that the
    /// server reads, and folders with rules files.
    pub(super) fn find<'p>(path: &Path, mut read: impl Iterator<Item = &'p PathBuf>) -> Result<SnapshotFile, Problem> {
        let shown = path.display();
        let path = followed(path).map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => {
                let message = format!("the snapshot cannot be written to {shown}: its folder does not exist");
                Problem::new(message, "create the folder, or choose another file with --memory-snapshot-path")
            }
            _ => unreadable(path, &error),
        })?;
        if let Some(kind) = fs::metadata(&path).ok().map(|it| it.file_type()).filter(|kind| !kind.is_file()) {
            let kind = regular_file::name(kind);
            let message = format!("the snapshot cannot be written to {shown}: it is not a regular file, but {kind}");
            return Err(Problem::new(
                message,
                "choose a file with --memory-snapshot-path, such as `state` in a folder",
            ));
        }
        if let Some(other) = read.find(|other| is_read_from(&path, other)) {
            let message = format!("the snapshot {shown} would replace a file that is read from {}", other.display());
            return Err(Problem::new(message, "choose another file with --memory-snapshot-path"));
        }
        Ok(SnapshotFile { path })
    }

    /// Locks the snapshot for this process. The lock is on a second file, with the ending `.lock`. The second file is
    /// never removed. If it were removed while one process has it locked, another process could create and lock a new
    /// file of the same name.
    pub(super) fn lock(self) -> Result<LockedFile, Problem> {
        let mut name = self.path.clone().into_os_string();
        name.push(".lock");
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&name);
        let path = self.path.display();
        let locked = opened.map_err(TryLockError::Error).and_then(|file| file.try_lock().map(|()| file));
        match locked {
            Ok(lock) => Ok(LockedFile { path: self.path, _lock: lock }),
            Err(TryLockError::WouldBlock) => {
                let message = format!("the snapshot {path} is in use by another server");
                Err(Problem::new(
                    message,
                    "stop that server, or give each server its own file with --memory-snapshot-path",
                ))
            }
            Err(TryLockError::Error(error)) => {
                let message = format!("the snapshot {path} cannot be written: {}: {error}", Path::new(&name).display());
                let help = "make its folder writable for this user, on a file system that supports locks";
                Err(Problem::new(message, help))
            }
        }
    }
}

/// A snapshot file that is locked until this value is dropped.
#[derive(Debug)]
pub(super) struct LockedFile {
    pub(super) path: PathBuf,
    _lock: File,
}

pub(super) fn unreadable(path: &Path, error: &io::Error) -> Problem {
    let message = format!("the snapshot {} cannot be read: {error}", path.display());
    Problem::new(message, "let this user read the file, or move the file away. Without it, counts start at zero")
}

/// Returns the real path of `path`, also if the file does not exist yet.
fn followed(path: &Path) -> io::Result<PathBuf> {
    match fs::canonicalize(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let (folder, name) = (path.parent(), path.file_name());
            let folder = folder.filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let folder = fs::canonicalize(folder)?;
            // Before the first snapshot, `path` can be a link to a file that does not exist yet.
            fs::read_link(path).map_or_else(
                |_| name.map(|name| folder.join(name)).ok_or(error),
                |target| followed(&folder.join(target)),
            )
        }
        found => found,
    }
}

/// Returns whether `path` is `other`, or a rules file in the folder `other`.
fn is_read_from(path: &Path, other: &Path) -> bool {
    let Ok(other) = fs::canonicalize(other) else { return false };
    path == other || is_rules_file(path) && other.is_dir() && path.parent() == Some(&other)
}
