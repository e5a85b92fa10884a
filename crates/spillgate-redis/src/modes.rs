//! Answers questions about settings without a connection: which user logs in, which rights that user needs, which keys
//! a store uses, and which quotas it supports.
//!
//! These functions are not in `settings.rs`, because they need the code for commands and URLs. That code imports
//! `settings.rs`, so `settings.rs` should not import that code.

use spillgate_core::{Hit, OpKind, Quota};

use crate::command::Encoder;
use crate::command::key::RedisKey;
use crate::command::script::SCRIPT_COMMANDS;
use crate::command::transaction::TRANSACTION_COMMANDS;
use crate::connect::url::Url;
use crate::settings::Settings;

impl Settings {
    /// Returns the user that logs in, as an ACL names the user: `default` if the URL names no user, or is invalid.
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

    /// Returns the commands that the user must be allowed on keys `sg:*`. EVALSHA and SCRIPT LOAD, which a store with
    /// scripts also needs, are not included.
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

    /// Returns the key of the state that counts the units of `hit`, for a store with scripts. A store without scripts
    /// uses other keys, because its keys contain the number of the window.
    #[must_use]
    pub fn key(&self, hit: &Hit<'_>) -> RedisKey {
        RedisKey::with(hit, self.log)
    }

    /// Returns whether a store with these settings supports `op` on `quota`, if the request has no other hit.
    #[must_use]
    pub fn supports(&self, quota: &Quota, op: OpKind) -> bool {
        Encoder::new(self).support(quota, op)
    }
}
