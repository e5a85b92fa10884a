//! The file that snapshots go to: where it really is, and that nobody else has it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use crate::command::terminal::Problem;

/// A file for snapshots, found and fit to be one.
#[derive(Debug)]
pub(super) struct SnapshotFile {
    path: PathBuf,
}

impl SnapshotFile {
    /// Links are followed, so that they stay when a snapshot takes the place of the one before. A file that the
    /// server reads as something else (`read`, or rules in a folder there) is refused.
    pub(super) fn find<'p>(path: &Path, mut read: impl Iterator<Item = &'p PathBuf>) -> Result<SnapshotFile, Problem> {
        let shown = path.display();
        let path = followed(path).map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => {
                let message = format!("the snapshot cannot be written to {shown}: its folder does not exist");
                Problem::new(message, "create the folder, or choose another file with --memory-snapshot-path")
            }
            _ => unreadable(path, &error),
        })?;
        if path.exists() && !path.is_file() {
            let message = format!("the snapshot cannot be written to {shown}: what stands there is no file");
            return Err(Problem::new(
                message,
                "choose a file with --memory-snapshot-path, such as `state` in a folder",
            ));
        }
        if let Some(other) = read.find(|other| is_read_from(&path, other)) {
            let message = format!("the snapshot {shown} would take the place of what is read from {}", other.display());
            return Err(Problem::new(message, "choose a file of its own with --memory-snapshot-path"));
        }
        Ok(SnapshotFile { path })
    }

    /// Makes it this process's own. The lock is on a file beside it, which stays: who removed it could take the
    /// lock from somebody who came in between.
    pub(super) fn lock(self) -> Result<LockedFile, Problem> {
        let mut name = self.path.clone().into_os_string();
        name.push(".lock");
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&name);
        let path = self.path.display();
        let locked = opened.map_err(TryLockError::Error).and_then(|file| file.try_lock().map(|()| file));
        match locked {
            Ok(lock) => Ok(LockedFile { path: self.path, _lock: lock }),
            Err(TryLockError::WouldBlock) => {
                let message = format!("the snapshot {path} is another server's: it runs, and writes to that file");
                Err(Problem::new(message, "end it, or give each server its own file with --memory-snapshot-path"))
            }
            Err(TryLockError::Error(error)) => {
                let message = format!("the snapshot {path} cannot be written: {}: {error}", Path::new(&name).display());
                let help = "make its folder one that this user may write to, on a file system with locks";
                Err(Problem::new(message, help))
            }
        }
    }
}

/// A file for snapshots that is this process's own as long as this is kept.
#[derive(Debug)]
pub(super) struct LockedFile {
    pub(super) path: PathBuf,
    _lock: File,
}

pub(super) fn unreadable(path: &Path, error: &io::Error) -> Problem {
    let message = format!("the snapshot {} cannot be read: {error}", path.display());
    Problem::new(message, "make it a file that this user may read; or move it away, and counts start anew")
}

/// Where `path` leads, whether or not there is a file yet.
fn followed(path: &Path) -> io::Result<PathBuf> {
    match fs::canonicalize(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let (folder, name) = (path.parent(), path.file_name());
            let folder = folder.filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let folder = fs::canonicalize(folder)?;
            // A link to nothing may have been put there for the first snapshot.
            fs::read_link(path).map_or_else(
                |_| name.map(|name| folder.join(name)).ok_or(error),
                |target| followed(&folder.join(target)),
            )
        }
        found => found,
    }
}

/// Whether reading `other`, a file or a folder of rules, reads `path`.
fn is_read_from(path: &Path, other: &Path) -> bool {
    let Ok(other) = fs::canonicalize(other) else { return false };
    let is_yaml = path.extension().is_some_and(|end| end == "yaml" || end == "yml");
    path == other || is_yaml && other.is_dir() && path.parent() == Some(&other)
}
