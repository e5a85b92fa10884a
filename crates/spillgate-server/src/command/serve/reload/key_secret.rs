//! The unit of the file with the key secret, which a reload never takes: it only says that the file has changed.
//!
//! With another secret every key has another name in the store, so all counts would begin again at zero, and servers with
//! different secrets would not count together.

use std::path::PathBuf;

use spillgate::KeyHasher;
use spillgate_service::Service;
use spillgate_service::reloads::{Cause, UnitName};

use super::reader::Reader;
use super::unit::{Kept, Seen, Taken, Unit};
use crate::command::open::store;
use crate::command::terminal::{Problem, Problems};
use crate::settings::{Settings, StoreUrl};

/// The file that `store.key_secret_file` names.
pub(super) struct KeySecretUnit {
    settings: Settings,
    file: PathBuf,
    /// The secret with which the server has started.
    used: Mark,
    /// The other secret of which the log has warned last.
    warned: Option<Mark>,
    read: Kept<Mark>,
}

impl KeySecretUnit {
    /// Returns `None` if there is no such file. A store in memory does not use it.
    pub(super) fn new(service: &Service, settings: &Settings) -> Option<KeySecretUnit> {
        let file = settings.store.key_secret_file.clone().filter(|_| settings.store.url != StoreUrl::Memory)?;
        let used = Mark::of(service.limiter().keys());
        Some(KeySecretUnit { settings: settings.clone(), file, used, warned: None, read: Kept::default() })
    }
}

impl Unit for KeySecretUnit {
    fn name(&self) -> UnitName {
        UnitName::KeySecret
    }

    fn kept(&self) -> &'static str {
        "the key secret cannot be read again, so it stays as it was at the start; the server would not start with this file"
    }

    fn paths(&self) -> Vec<PathBuf> {
        vec![self.file.clone()]
    }

    fn read(&mut self, reader: &mut Reader) -> Seen {
        let (settings, file) = (self.settings.clone(), self.file.clone());
        let work = move || {
            let keys = store::key_hasher(&settings).map_err(|problem| problem.in_file(&file))?;
            Ok::<_, Problem>(Mark::of(&keys))
        };
        self.read.read(reader, work, |Mark(mark)| Seen::of([&mark.to_ne_bytes()[..]]))
    }

    fn take(&mut self, cause: Cause) -> Result<Taken, Problems> {
        let mut taken = Taken::default();
        let Some(read) = self.read.take()? else { return Ok(taken) };
        let (cause, file) = (cause.as_str(), self.file.display());
        taken.is_noted = read != self.used;
        if taken.is_noted && self.warned != Some(read) {
            let line = format!(
                "{file} (store.key_secret_file) has changed, but the server goes on with the secret of its start: with another \
                 one, all counts in the store would begin again at zero. To change it, restart all servers together"
            );
            tracing::warn!(cause, "{line}");
            taken.notes.add(|| line);
        } else if !taken.is_noted && self.warned.is_some() {
            let line = format!("{file} (store.key_secret_file) has the secret again with which the server has started");
            tracing::info!(cause, "{line}");
            taken.notes.add(|| line);
        }
        self.warned = taken.is_noted.then_some(read);
        Ok(taken)
    }

    fn forget(&mut self) {
        self.read.forget();
    }
}

/// Says which secret a hasher has, but not the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark(u128);

impl Mark {
    fn of(keys: &KeyHasher) -> Mark {
        Mark(keys.start().part(b"spillgate reload").finish())
    }
}
