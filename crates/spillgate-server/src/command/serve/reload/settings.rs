//! The unit of the settings file. A reload takes only two settings, `insight.keys` and `log_level`. Of the others, the
//! log names those that have changed, and of a file with errors it names the errors: the server goes on, but would not
//! start with this file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use spillgate_service::Service;
use spillgate_service::reloads::{Cause, Lines, UnitName};

use super::reader::{READ_WITHIN, Reader};
use super::unit::{Seen, Taken, Unit};
use crate::cli::Serve;
use crate::command::open::settings;
use crate::command::serve::log;
use crate::command::terminal::{Problem, Problems};
use crate::settings::{Resolved, SettingsFile, masked};

/// The settings file of the server.
pub(super) struct SettingsUnit {
    service: Arc<Service>,
    serve: Serve,
    file: PathBuf,
    resolved: Resolved,
    read: Option<Result<SettingsFile, Problem>>,
}

impl SettingsUnit {
    /// Returns `None` if the server has no settings file. `resolved` are the current settings.
    pub(super) fn new(service: &Arc<Service>, serve: &Serve, resolved: Resolved) -> Option<SettingsUnit> {
        let file = serve.config.clone()?;
        Some(SettingsUnit { service: Arc::clone(service), serve: serve.clone(), file, resolved, read: None })
    }

    /// Takes the settings that a reload changes.
    fn replace(&mut self, later: &Resolved, cause: Cause, taken: &mut Taken) {
        let mut changed = |line: String| {
            tracing::info!(cause = cause.as_str(), "{line}");
            taken.changes.add(|| line);
        };
        if let Some((keys, line)) = self.resolved.take_caller_keys(later) {
            self.service.replace_caller_keys(keys);
            changed(line);
        }
        if let Some((level, line)) = self.resolved.take_log_level(later) {
            log::set_level(level);
            changed(line);
        }
        let waiting = self.resolved.changed(later);
        if !waiting.is_empty() {
            let waiting = waiting.join(", ");
            warn(
                &mut taken.notes,
                format!("settings changed and take effect at a restart, not at a reload: {waiting}"),
            );
        }
    }
}

impl Unit for SettingsUnit {
    fn name(&self) -> UnitName {
        UnitName::Settings
    }

    fn kept(&self) -> &'static str {
        "the settings were not read again; the earlier settings stay in use"
    }

    fn paths(&self) -> Vec<PathBuf> {
        vec![self.file.clone()]
    }

    fn read(&mut self, reader: &mut Reader) -> Seen {
        let file = self.file.clone();
        let read = reader.read(READ_WITHIN, move || settings::settings_file(&file)).and_then(|read| read);
        let seen = match &read {
            Ok(file) => Seen::of([file.text.as_bytes()]),
            Err(problem) => Seen::of([&b"problem"[..], problem.to_string().as_bytes()]),
        };
        self.read = Some(read);
        seen
    }

    fn take(&mut self, cause: Cause) -> Result<Taken, Problems> {
        let mut taken = Taken::default();
        let Some(read) = self.read.take() else { return Ok(taken) };
        let later = read.map_err(Problems::from);
        match later.and_then(|file| settings::load_from(Some(file), &self.serve.rules, &self.serve.flags)) {
            Ok(later) => self.replace(&later, cause, &mut taken),
            Err(problems) => {
                let file = Path::new(&self.file).display();
                let note = format!("{file} has errors now: the server goes on, but would not start with it");
                warn(&mut taken.notes, note);
                for problem in &problems.0 {
                    warn(&mut taken.notes, masked(&problem.one_line()));
                }
            }
        }
        Ok(taken)
    }

    fn forget(&mut self) {
        self.read = None;
    }
}

fn warn(notes: &mut Lines, line: String) {
    tracing::warn!("{line}");
    notes.add(|| line);
}
