//! Opens what the settings name: settings files, rules files, secrets and the store.
//!
//! All commands open them in the same way, so that they report the same errors with the same help.

pub(crate) mod forward_auth;
pub(crate) mod listener_tls;
pub(crate) mod memory;
pub(crate) mod redis;
pub(crate) mod regular_file;
pub(crate) mod rule_checks;
pub(crate) mod rules;
pub(crate) mod secret_file;
pub(crate) mod settings;
pub(crate) mod store;
