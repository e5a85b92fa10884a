//! Writes the file of a snapshot: through a buffer, with a checksum, and under a temporary name until the file is
//! complete.
//!
//! A process can be killed while it writes a snapshot. A reader must then find the previous snapshot, and not a new but
//! incomplete one.

use std::fs::{self, File, OpenOptions};
use std::hash::Hasher as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use siphasher::sip128::{Hasher128 as _, SipHasher13};

/// Writes a file and adds all its bytes to the checksum.
pub(super) struct Writer<'f> {
    file: &'f File,
    /// The bytes to write next.
    pub(super) buffer: Vec<u8>,
    checksum: SipHasher13,
    bytes: u64,
}

impl<'f> Writer<'f> {
    pub(super) fn new(file: &'f File) -> Writer<'f> {
        Writer { file, buffer: Vec::new(), checksum: SipHasher13::new(), bytes: 0 }
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.checksum.write(&self.buffer);
        self.bytes += self.buffer.len() as u64;
        self.file.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }

    /// Writes the checksum at the end, and returns the number of bytes in the file.
    pub(super) fn finish(mut self) -> io::Result<u64> {
        self.flush()?;
        self.buffer.extend(self.checksum.finish128().as_bytes());
        self.flush()?;
        Ok(self.bytes)
    }
}

/// A file with a temporary name, in the folder of its final path. On drop, the file is removed, unless it was
/// published.
pub(super) struct Draft<'p> {
    path: &'p Path,
    file: File,
    /// The temporary path: the final path with `.draft` at its end, in the same folder, so that a rename is possible.
    draft: PathBuf,
}

impl<'p> Draft<'p> {
    /// Creates an empty file beside `path`. On Unix, only the owner of the file can read it.
    pub(super) fn new(path: &'p Path) -> io::Result<Draft<'p>> {
        let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        name.push(".draft");
        let draft = path.with_file_name(name);
        // If a process was killed while it wrote a snapshot, its draft can still exist. The old draft is not reused,
        // because it could be a link or have other permissions.
        match fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        Ok(Draft { path, file: options.open(&draft)?, draft })
    }

    /// Returns the file, so that a [`Writer`] can write it.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Replaces the file at the final path, in a way that lasts even if the machine stops.
    pub(super) fn publish(self) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.draft, self.path)?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        // On systems other than Unix, a folder cannot be opened, and a rename lasts without this call.
        if cfg!(unix) { File::open(folder.unwrap_or(Path::new(".")))?.sync_all() } else { Ok(()) }
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        // An error is normal: after the rename, no file has the temporary name.
        let _ = fs::remove_file(&self.draft);
    }
}
