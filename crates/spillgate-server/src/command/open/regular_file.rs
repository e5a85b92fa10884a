//! Opens files that settings and arguments name, if they are regular files.
//!
//! To open a named pipe waits until another program opens it for writing, and a device such as `/dev/zero` never ends. A
//! server that starts, or a reload, would hang without a line that says why. So the kind of a file is checked before it
//! is opened.

use std::fs::{self, File, FileType};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

/// Returns the first `most` bytes of a regular file, and one more if there is one. The error of any other file names its
/// kind.
pub(crate) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Opens a regular file. The error of any other file names its kind.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let kind = fs::metadata(path)?.file_type();
    if !kind.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, format!("it is {}, not a regular file", name(kind))));
    }
    File::open(path)
}

/// Returns the name of a kind of file, with its article.
pub(crate) fn name(kind: FileType) -> &'static str {
    if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a named pipe (FIFO)"
    } else if kind.is_socket() {
        "a socket"
    } else if kind.is_char_device() || kind.is_block_device() {
        "a device"
    } else {
        "a file of another kind"
    }
}
