//! What settings mean for a user's rights, keys and quotas, without a connection.
//!
//! [`Settings`] are plain data that every part of the store reads. These answers need the commands and the URL, so they
//! are here: otherwise those parts and the settings would import each other.

use spillgate_core::{Hit, OpKind, Quota};

use crate::command::Encoder;
use crate::command::key::RedisKey;
use crate::command::script::SCRIPT_COMMANDS;
use crate::command::transaction::TRANSACTION_COMMANDS;
use crate::connect::url::Url;
use crate::settings::Settings;

impl Settings {
    /// The user that logs in, as an ACL names it: `default` if the URL names no user, or is invalid.
    ///
    /// ```
    /// use spillgate_redis::Settings;
    ///
    /// assert_eq!(Settings::new("redis://limiter:secret@10.0.0.7/").user(), "limiter");
    /// assert_eq!(Settings::new("redis://:secret@10.0.0.7/").user(), "default");
    /// ```
    #[must_use]
    pub fn user(&self) -> String {
        let named = Url::parse(&self.url).ok().and_then(|url| url.user.username().map(str::to_owned));
        named.filter(|name| !name.is_empty()).unwrap_or_else(|| "default".to_owned())
    }

    /// The commands that the user must be allowed on keys `sg:*`, beside those that run scripts.
    ///
    /// ```
    /// use spillgate_redis::Settings;
    ///
    /// let settings = Settings { scripts: false, ..Settings::new("redis://10.0.0.7/") };
    /// assert!(settings.commands().contains(&"INCRBY"));
    /// ```
    #[must_use]
    pub fn commands(&self) -> Vec<&'static str> {
        if self.scripts { SCRIPT_COMMANDS.to_vec() } else { TRANSACTION_COMMANDS.to_vec() }
    }

    /// The key of the state that `hit` counts in. This does not apply to a store without scripts, whose keys contain the
    /// number of the window.
    #[must_use]
    pub fn key(&self, hit: &Hit<'_>) -> RedisKey {
        RedisKey::with(hit, self.log)
    }

    /// Whether a store with these settings serves `op` on `quota`, in a request of its own.
    #[must_use]
    pub fn supports(&self, quota: &Quota, op: OpKind) -> bool {
        Encoder::new(self).support(quota, op)
    }
}
