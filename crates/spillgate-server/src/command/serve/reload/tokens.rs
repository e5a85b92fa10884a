//! The unit of both admin tokens. So a token can be rotated without a restart, and the old token then has no rights any
//! more.

use std::path::PathBuf;

use spillgate_admin::Access;
use spillgate_service::reloads::{Cause, UnitName};

use super::reader::Reader;
use super::unit::{Kept, Seen, Taken, Unit};
use crate::command::open::secret_file;
use crate::command::serve::warnings;
use crate::command::terminal::Problems;
use crate::settings::Settings;

/// The token that can write and the token that can only read.
type Tokens = (Option<String>, Option<String>);

/// The tokens of the admin listener.
pub(super) struct TokensUnit {
    settings: Settings,
    access: Access,
    read: Kept<Tokens>,
}

impl TokensUnit {
    /// Returns `None` if there are no tokens.
    pub(super) fn new(settings: &Settings, access: &Access) -> Option<TokensUnit> {
        let unit = || TokensUnit { settings: settings.clone(), access: access.clone(), read: Kept::default() };
        access.has_token().then(unit)
    }
}

impl Unit for TokensUnit {
    fn name(&self) -> UnitName {
        UnitName::AdminTokens
    }

    fn kept(&self) -> &'static str {
        "the admin tokens cannot be read again, so the current tokens stay valid"
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.settings.admin_token_file.iter().chain(&self.settings.admin_read_token_file).cloned().collect()
    }

    fn read(&mut self, reader: &mut Reader) -> Seen {
        let settings = self.settings.clone();
        self.read.read(
            reader,
            move || secret_file::admin_tokens(&settings),
            // A token that is not set differs from every token, because no token is empty.
            |(write, read)| Seen::of([write, read].map(|token| token.as_deref().unwrap_or_default().as_bytes())),
        )
    }

    fn take(&mut self, cause: Cause) -> Result<Taken, Problems> {
        let mut taken = Taken::default();
        let Some((write, read)) = self.read.take()? else { return Ok(taken) };
        let replaced = self.access.replace_tokens(write.as_deref(), read.as_deref());
        if replaced.map_err(|error| secret_file::wrong_tokens(&error))? {
            let line = "an admin token has changed in its file; the old token has no rights any more";
            tracing::info!(cause = cause.as_str(), "{line}");
            taken.changes.add(|| line.to_owned());
            if self.access.has_short_token() {
                tracing::warn!(cause = cause.as_str(), "{}", warnings::SHORT);
                taken.notes.add(|| warnings::SHORT.to_owned());
            }
        }
        Ok(taken)
    }

    fn forget(&mut self) {
        self.read.forget();
    }
}
