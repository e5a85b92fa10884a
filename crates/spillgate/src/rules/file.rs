//! From paths to the texts of rules files.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::{MAX_FILE_BYTES, RulesFile};
use crate::text::{At, Diagnostic, Source};

/// The most files and folders that are looked at in a folder.
const MAX_ENTRIES: usize = 10_000;

/// How deep folders are read.
const MAX_FOLDERS_DEEP: usize = 8;

/// Reads the files named by `paths`. A folder stands for its files that end in `.yaml` or
/// `.yml`, in the order of their names, and after them for those of the folders inside; what starts with a dot is left
/// out. A file is taken whatever its name is, but only a regular one is read: nobody knows when a pipe
/// or a device ends.
///
/// # Errors
/// A path that cannot be read or is no regular file, a folder without rules, a file above
/// [`MAX_FILE_BYTES`] or one that is not UTF-8.
pub fn read_files(paths: &[PathBuf]) -> Result<Vec<RulesFile>, Diagnostic> {
    if paths.is_empty() {
        let help = "name a rules file, or a folder of them";
        return Err(Diagnostic::error("no rules file was given", help));
    }
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            for file in folder(path)? {
                files.push(read_file(&file)?);
            }
        } else {
            files.push(read_file(path)?);
        }
    }
    Ok(files)
}

/// The rules files in a folder and the folders inside it, each folder's own files before those inside.
fn folder(path: &Path) -> Result<Vec<PathBuf>, Diagnostic> {
    let (mut files, mut looked_at) = (Vec::new(), 0);
    let mut waiting = vec![(path.to_owned(), 0)];
    while let Some((at, depth)) = waiting.pop() {
        let (mut own, mut inside) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(&at).map_err(|error| unreadable(&at, &error))? {
            let entry = entry.map_err(|error| unreadable(&at, &error))?.path();
            looked_at += 1;
            if looked_at > MAX_ENTRIES || depth == MAX_FOLDERS_DEEP {
                return Err(too_many(path));
            }
            let yaml = entry.extension().is_some_and(|end| end == "yaml" || end == "yml");
            let hidden = entry.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
            if !hidden && entry.is_dir() {
                inside.push((entry, depth + 1));
            } else if yaml && !hidden {
                own.push(entry);
            }
        }
        own.sort();
        files.append(&mut own);
        // The last one that waits is the next to be read.
        inside.sort_by(|a, b| b.cmp(a));
        waiting.append(&mut inside);
    }
    if files.is_empty() {
        let message = format!("{} has no rules file", path.display());
        let help = "rules files end in .yaml or .yml, and their names do not start with a dot";
        return Err(Diagnostic::unreadable(&path.display().to_string(), message, help));
    }
    Ok(files)
}

fn too_many(path: &Path) -> Diagnostic {
    let message =
        format!("{} holds more than {MAX_ENTRIES} files, or folders {MAX_FOLDERS_DEEP} levels deep", path.display());
    let help = "name the folder of the rules itself; a link that leads back to its own folder has no end";
    Diagnostic::unreadable(&path.display().to_string(), message, help)
}

fn read_file(path: &Path) -> Result<RulesFile, Diagnostic> {
    let name = path.display().to_string();
    // Asked before it is opened: to open a pipe is to wait for its other end.
    if !fs::metadata(path).map_err(|error| unreadable(path, &error))?.is_file() {
        let help = "rules are read from regular files: write them into one, or take this out of the folder";
        return Err(Diagnostic::unreadable(&name, format!("{name} is not a regular file"), help));
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
    Diagnostic::unreadable(name, message, "spread the rules over several domains, one file each")
}

/// Shows the line up to its first bad byte.
fn not_utf8(name: &str, valid: usize, bytes: &[u8]) -> Diagnostic {
    let text: String = String::from_utf8_lossy(bytes).into_owned();
    let at = At::of(&text, valid..valid + char::REPLACEMENT_CHARACTER.len_utf8());
    let source = Source::new(name, &text);
    let message = format!("the file is not UTF-8 at byte {valid}");
    Diagnostic::error_at(
        &source,
        at,
        message,
        "this byte is no character",
        "save the file as UTF-8 without compression",
    )
}

fn unreadable(path: &Path, error: &std::io::Error) -> Diagnostic {
    let message = format!("{} cannot be read: {error}", path.display());
    Diagnostic::unreadable(&path.display().to_string(), message, "check the path and its permissions")
}
