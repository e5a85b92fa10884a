//! The file of `--html`. It is opened before the log is read, so that a wrong path is found at once.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::command::terminal::Problem;

pub(super) struct HtmlFile {
    path: PathBuf,
    file: File,
    /// Whether the file did not exist before.
    is_new: bool,
}

impl HtmlFile {
    /// Opens the file, and keeps its content until [`write`](HtmlFile::write). Fails if the file is one of `inputs`.
    pub(super) fn open<'p>(path: &Path, mut inputs: impl Iterator<Item = &'p PathBuf>) -> Result<HtmlFile, Problem> {
        let is_new = !path.exists();
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| problem(path, &error))?;
        let html = HtmlFile { path: path.to_owned(), file, is_new };
        let real = path.canonicalize().ok();
        if real.is_some() && inputs.any(|input| input.canonicalize().ok() == real) {
            html.give_up();
            let message = format!("the report would overwrite {}, which this replay reads", path.display());
            return Err(Problem::new(message, "write another file after --html"));
        }
        Ok(html)
    }

    pub(super) fn write(mut self, page: &str) -> Result<(), Problem> {
        let is_file = self.file.metadata().is_ok_and(|metadata| metadata.is_file());
        let emptied = if is_file { self.file.set_len(0) } else { Ok(()) };
        emptied.and_then(|()| self.file.write_all(page.as_bytes())).map_err(|error| problem(&self.path, &error))
    }

    /// Removes the file if it is new, because there is no report.
    pub(super) fn give_up(self) {
        if self.is_new {
            // An error is ignored here, because the user already gets a more important one.
            _ = std::fs::remove_file(&self.path);
        }
    }
}

fn problem(path: &Path, error: &io::Error) -> Problem {
    let message = format!("the report {} cannot be written: {error}", path.display());
    Problem::new(message, "check the path after --html, its permissions, and the space on the disk")
}
