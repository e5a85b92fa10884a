//! The unit of the settings file. A reload takes only two settings, `insight.keys` and `log_level`. Of the others, the
//! log names those that have changed. A file with errors fails, because the server would not start with it.

use std::path::PathBuf;
use std::sync::Arc;

use spillgate_service::Service;
use spillgate_service::reloads::{Cause, UnitName};

use super::reader::Reader;
use super::unit::{Kept, Seen, Taken, Unit};
use crate::cli::Serve;
use crate::command::open::settings;
use crate::command::serve::log;
use crate::command::terminal::Problems;
use crate::settings::{Resolved, SettingsFile};

/// The settings file of the server.
pub(super) struct SettingsUnit {
    service: Arc<Service>,
    serve: Serve,
    file: PathBuf,
    resolved: Resolved,
    read: Kept<SettingsFile>,
}

impl SettingsUnit {
    /// Returns `None` if the server has no settings file. `resolved` are the current settings.
    pub(super) fn new(service: &Arc<Service>, serve: &Serve, resolved: Resolved) -> Option<SettingsUnit> {
        let file = serve.config.clone()?;
        let (service, serve) = (Arc::clone(service), serve.clone());
        Some(SettingsUnit { service, serve, file, resolved, read: Kept::default() })
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
            let line = format!("settings changed and take effect at a restart, not at a reload: {waiting}");
            tracing::warn!(cause = cause.as_str(), "{line}");
            taken.notes.add(|| line);
        }
    }
}

impl Unit for SettingsUnit {
    fn name(&self) -> UnitName {
        UnitName::Settings
    }

    fn kept(&self) -> &'static str {
        "the earlier settings stay in use; the server would not start with the settings file as it is now"
    }

    fn paths(&self) -> Vec<PathBuf> {
        vec![self.file.clone()]
    }

    fn read(&mut self, reader: &mut Reader) -> Seen {
        let file = self.file.clone();
        let work = move || settings::settings_file(&file).map_err(|problem| problem.in_file(&file));
        self.read.read(reader, work, |file| Seen::of([file.text.as_bytes()]))
    }

    fn take(&mut self, cause: Cause) -> Result<Taken, Problems> {
        let mut taken = Taken::default();
        let Some(file) = self.read.take()? else { return Ok(taken) };
        let later = settings::load_from(Some(file), &self.serve.rules, &self.serve.flags)?;
        self.replace(&later, cause, &mut taken);
        Ok(taken)
    }

    fn forget(&mut self) {
        self.read.forget();
    }
}
