//! Reads rules files from the paths that a user gives.
//!
//! A path comes from a command line or from settings. It can lead to a folder, a pipe or a huge file. Wherever it
//! leads, the program must not wait without end, and must not use up its memory.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::model::{MAX_FILE_BYTES, RulesFile};
use spillgate_text::{At, Diagnostic, Source};

/// The maximum number of entries (files and folders) of one folder, including the entries of all folders inside it. A
/// folder with more entries is an error, because it is probably the wrong folder.
const MAX_ENTRIES: usize = 10_000;

/// The maximum number of levels of folders that are read. Without this bound, a folder that contains a link to itself
/// would be read again and again.
const MAX_FOLDERS_DEEP: usize = 8;

/// Reads the rules files at `paths`. A path is a file or a folder.
///
/// In a folder, all files that end in `.yaml`, `.yml` or `.json`, in any case, are read in the order of their names. The
/// folders inside it are read after its files. Files and folders are left out if their names start with a dot.
/// [`left_out`] returns the other files.
///
/// A file in `paths` can have any name. It has to be a regular file, because a read from a pipe or a device might never
/// end.
///
/// ```
/// use spillgate::rules::{Rules, read_files};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("api.yaml");
/// # std::fs::write(&path, "domain: api")?;
/// let files = read_files(&[path])?;
/// let rules = Rules::parse(&files)?;
/// assert!(rules.has_domain("api"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// * There are no paths.
/// * A path cannot be read, or names neither a folder nor a regular file.
/// * A folder has no rules file, more than 10,000 entries, or more than 8 levels of folders.
/// * A file is larger than [`MAX_FILE_BYTES`], or is not UTF-8.
pub fn read_files(paths: &[PathBuf]) -> Result<Vec<RulesFile>, Diagnostic> {
    if paths.is_empty() {
        let help = "give the path of a rules file, or of a folder with rules files";
        return Err(Diagnostic::error("no rules file was given", help));
    }
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            for file in folder(path)?.files {
                files.push(read_file(&file)?);
            }
        } else {
            files.push(read_file(path)?);
        }
    }
    Ok(files)
}

/// Returns the files that [`read_files`] leaves out of the folders in `paths` because of how their names end. Files with
/// names that start with a dot are not among them. A folder that cannot be read has none.
///
/// ```
/// use spillgate::rules::{Rules, left_out, read_files};
/// # let folder = tempfile::tempdir()?;
/// # std::fs::write(folder.path().join("api.yaml"), "domain: api")?;
/// # std::fs::write(folder.path().join("limits"), "domain: web")?;
/// # let paths = [folder.path().to_owned()];
/// let mut rules = Rules::parse(&read_files(&paths)?)?;
/// rules.warn_of_left_out(&left_out(&paths));
/// assert!(rules.warnings()[0].message().contains("limits"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn left_out(paths: &[PathBuf]) -> Vec<PathBuf> {
    let folders = paths.iter().filter(|path| path.is_dir());
    folders.filter_map(|path| folder(path).ok()).flat_map(|found| found.left_out).collect()
}

/// Returns whether [`read_files`] reads a file with this name from a folder.
#[must_use]
pub fn is_rules_file(path: &Path) -> bool {
    let is_known = |end: &std::ffi::OsStr| ["yaml", "yml", "json"].iter().any(|known| end.eq_ignore_ascii_case(known));
    !is_hidden(path) && path.extension().is_some_and(is_known)
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."))
}

/// What is in a folder and in the folders inside it.
struct Found {
    /// The rules files. Those of a folder come before those of the folders inside it.
    files: Vec<PathBuf>,
    /// All other files, without hidden ones.
    left_out: Vec<PathBuf>,
}

fn folder(path: &Path) -> Result<Found, Diagnostic> {
    let (mut files, mut left_out, mut looked_at) = (Vec::new(), Vec::new(), 0);
    let mut waiting = vec![(path.to_owned(), 0)];
    while let Some((at, depth)) = waiting.pop() {
        let (mut own, mut inside) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(&at).map_err(|error| unreadable(&at, &error))? {
            let entry = entry.map_err(|error| unreadable(&at, &error))?.path();
            looked_at += 1;
            if looked_at > MAX_ENTRIES || depth == MAX_FOLDERS_DEEP {
                return Err(too_many(path));
            }
            if is_hidden(&entry) {
                continue;
            }
            if entry.is_dir() {
                inside.push((entry, depth + 1));
            } else if is_rules_file(&entry) {
                own.push(entry);
            } else {
                left_out.push(entry);
            }
        }
        own.sort();
        files.append(&mut own);
        // The loop reads the last folder of the list next, so the folders are sorted in reverse order.
        inside.sort_by(|a, b| b.cmp(a));
        waiting.append(&mut inside);
    }
    if files.is_empty() {
        let message = format!("{} has no rules file", path.display());
        let help = "rules files end in .yaml, .yml or .json, and their names do not start with a dot";
        return Err(Diagnostic::unreadable(&path.display().to_string(), message, help));
    }
    left_out.sort();
    Ok(Found { files, left_out })
}

/// Makes the error for a folder that has too many entries (files and folders), or too many levels of folders.
fn too_many(path: &Path) -> Diagnostic {
    let message = format!(
        "{} has more than {MAX_ENTRIES} files and folders, or more than {MAX_FOLDERS_DEEP} levels of folders",
        path.display()
    );
    let help = "give the folder that has the rules; it must not have a link to itself or to a folder above it";
    Diagnostic::unreadable(&path.display().to_string(), message, help)
}

/// Reads one file. At most [`MAX_FILE_BYTES`] + 1 bytes are read. A file with this many bytes is too large.
fn read_file(path: &Path) -> Result<RulesFile, Diagnostic> {
    let name = path.display().to_string();
    // The kind of the file is checked before it is opened, because opening a pipe waits until another program writes to
    // it.
    let found = fs::metadata(path).map_err(|error| unreadable(path, &error))?;
    if !found.is_file() {
        let help = "write the rules into a regular file; do not keep other kinds of files in a folder of rules";
        return Err(Diagnostic::unreadable(&name, format!("{name} is not a regular file"), help));
    }
    // A server that watches its files would otherwise read the beginning of a huge file again and again.
    if found.len() > MAX_FILE_BYTES as u64 {
        return Err(too_large(&name));
    }
    let file = File::open(path).map_err(|error| unreadable(path, &error))?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(|error| unreadable(path, &error))?;
    if bytes.len() > MAX_FILE_BYTES {
        return Err(too_large(&name));
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(RulesFile { name, text }),
        Err(error) => Err(not_utf8(&name, error.utf8_error().valid_up_to(), error.as_bytes())),
    }
}

pub(super) fn too_large(name: &str) -> Diagnostic {
    let message = format!("{name} is larger than {} MiB", MAX_FILE_BYTES >> 20);
    Diagnostic::unreadable(name, message, "split the rules into several domains, with one file for each domain")
}

/// The error shows the line with the first byte that is not UTF-8. The first `valid` bytes are UTF-8.
fn not_utf8(name: &str, valid: usize, bytes: &[u8]) -> Diagnostic {
    let text: String = String::from_utf8_lossy(bytes).into_owned();
    let at = At::of(&text, valid..valid + char::REPLACEMENT_CHARACTER.len_utf8());
    let source = Source::new(name, &text);
    let message = format!("{name} is not UTF-8 at byte {valid}");
    Diagnostic::error_at(
        &source,
        at,
        message,
        "this byte is not a character",
        "save the file as UTF-8 without compression",
    )
}

fn unreadable(path: &Path, error: &std::io::Error) -> Diagnostic {
    let message = format!("{} cannot be read: {error}", path.display());
    Diagnostic::unreadable(&path.display().to_string(), message, "check the path and its permissions")
}
