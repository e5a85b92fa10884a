//! The unit of the file with the key secret, which a reload never takes: it only says that the file has changed.
//!
//! With another secret every key has another name in the store, so all counts would begin again at zero, and servers with
//! different secrets would not count together.

use std::path::PathBuf;

use spillgate_service::reloads::{Cause, UnitName};

use super::reader::{READ_WITHIN, Reader};
use super::unit::{Seen, Taken, Unit};
use crate::command::open::secret_file;
use crate::command::terminal::Problems;
use crate::settings::Settings;

/// The file that `store.key_secret_file` names.
pub(super) struct KeySecretUnit {
    file: PathBuf,
    /// The content with which the server has started.
    used: Option<Seen>,
    /// The other content of which the log has warned last.
    warned: Option<Seen>,
    read: Option<Seen>,
}

impl KeySecretUnit {
    /// Returns `None` if there is no such file.
    pub(super) fn new(settings: &Settings) -> Option<KeySecretUnit> {
        let file = settings.store.key_secret_file.clone()?;
        let used = Some(seen(&file));
        Some(KeySecretUnit { file, used, warned: None, read: None })
    }
}

impl Unit for KeySecretUnit {
    fn name(&self) -> UnitName {
        UnitName::KeySecret
    }

    fn kept(&self) -> &'static str {
        "the key secret stays as it was at the start"
    }

    fn paths(&self) -> Vec<PathBuf> {
        vec![self.file.clone()]
    }

    fn read(&mut self, reader: &mut Reader) -> Seen {
        let file = self.file.clone();
        let read = reader.read(READ_WITHIN, move || seen(&file));
        let seen = read.unwrap_or_else(|problem| Seen::of([problem.to_string().as_bytes()]));
        self.read = Some(seen);
        seen
    }

    fn take(&mut self, _: Cause) -> Result<Taken, Problems> {
        let mut taken = Taken::default();
        let read = self.read.take();
        if read == self.used {
            self.warned = None;
        } else if read != self.warned {
            self.warned = read;
            let line = format!(
                "{} (store.key_secret_file) has changed, but the server goes on with the secret of its start: with another \
                 one, all counts in the store would begin again at zero. To change it, restart all servers together",
                self.file.display()
            );
            tracing::warn!("{line}");
            taken.notes.add(|| line);
        }
        Ok(taken)
    }

    fn forget(&mut self) {
        self.read = None;
    }
}

fn seen(file: &std::path::Path) -> Seen {
    match secret_file::read(file, "key secret", "store.key_secret_file") {
        Ok(secret) => Seen::of([&b"secret"[..], secret.as_deref().unwrap_or_default()]),
        Err(problem) => Seen::of([&b"problem"[..], problem.to_string().as_bytes()]),
    }
}
