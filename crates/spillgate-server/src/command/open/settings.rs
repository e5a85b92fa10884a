//! Reads the settings from a settings file, the environment and flags.
//!
//! The module `crate::settings` reads no files and no environment. This module reads both and passes the texts to
//! `crate::settings`.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::regular_file;
use crate::command::terminal::{Problem, Problems};
use crate::settings::{Key, Resolved, SettingsFile, Sources, resolve};

/// The maximum size of a settings file, in bytes. A larger file is probably not a settings file.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Returns the settings of a file, the environment and flags together. `arguments` are the rules files of the command
/// line.
pub(crate) fn load(
    config: Option<&Path>,
    arguments: &[PathBuf],
    flags: &[(&'static Key, Vec<String>)],
) -> Result<Resolved, Problems> {
    load_from(config.map(settings_file).transpose()?, arguments, flags)
}

/// Does the same as [`load`], with a settings file that was read before.
pub(crate) fn load_from(
    file: Option<SettingsFile>,
    arguments: &[PathBuf],
    flags: &[(&'static Key, Vec<String>)],
) -> Result<Resolved, Problems> {
    resolved(sources(file, arguments, flags))
}

/// Does the same as [`load`], for a command that does not connect to a store.
pub(crate) fn load_without_store(
    config: Option<&Path>,
    arguments: &[PathBuf],
    flags: &[(&'static Key, Vec<String>)],
) -> Result<Resolved, Problems> {
    let file = config.map(settings_file).transpose()?;
    resolved(Sources { asks_no_store: true, ..sources(file, arguments, flags) })
}

fn sources(file: Option<SettingsFile>, arguments: &[PathBuf], flags: &[(&'static Key, Vec<String>)]) -> Sources {
    let text = |value: std::ffi::OsString| value.to_string_lossy().into_owned();
    Sources {
        file,
        environment: std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect(),
        flags: flags.to_vec(),
        arguments: arguments.to_vec(),
        asks_no_store: false,
    }
}

fn resolved(sources: Sources) -> Result<Resolved, Problems> {
    resolve(&sources).map_err(Problems)
}

/// Reads a settings file.
pub(crate) fn settings_file(path: &Path) -> Result<SettingsFile, Problem> {
    let name = path.display().to_string();
    let unread = |error: std::io::Error| {
        let help = match error.kind() {
            std::io::ErrorKind::InvalidData => "save the file as UTF-8",
            _ => "check the path after --config and its permissions",
        };
        Problem::new(format!("the settings file {name} cannot be read: {error}"), help)
    };
    // The kind of the file is checked before the file is opened, because opening a pipe would wait for its writer.
    let kind = fs::metadata(path).map_err(unread)?.file_type();
    if !kind.is_file() {
        let help = "write the settings into a regular file";
        let kind = regular_file::name(kind);
        return Err(Problem::new(format!("the settings file {name} is not a regular file, but {kind}"), help));
    }
    let mut text = String::new();
    let file = File::open(path).map_err(unread)?;
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(unread)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        let help = "is it a settings file? rules files are given as arguments or under `rules:`";
        return Err(Problem::new(format!("the settings file {name} is larger than 1 MiB"), help));
    }
    Ok(SettingsFile { name, text })
}
