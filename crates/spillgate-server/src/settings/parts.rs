//! What each part of the server gets from the settings.
//!
//! Each part has options of its own, so that it does not depend on the settings file. This module makes these options.

use spillgate_http::HttpOptions;
use spillgate_service::ServiceOptions;

use super::{Settings, StoreUrl};

impl From<&Settings> for ServiceOptions {
    fn from(settings: &Settings) -> Self {
        ServiceOptions {
            shadow: settings.shadow,
            deny_unmatched: settings.deny_unmatched,
            on_store_failure: settings.on_store_failure,
            bounds: settings.limits.bounds,
            has_public_keys: settings.store.url != StoreUrl::Memory && settings.store.key_secret_file.is_none(),
            insight: settings.insight,
        }
    }
}

impl From<&Settings> for HttpOptions {
    fn from(settings: &Settings) -> HttpOptions {
        HttpOptions {
            headers: settings.headers,
            trusted_proxies: settings.trusted_proxies.clone(),
            forward_auth: settings.forward_auth.clone(),
            grants: settings.allow.http,
            body_bytes: settings.limits.body,
            // A request that waits when the server begins to drain must have its turn before the drain ends.
            max_wait: settings.limits.clients.drain,
            reservation_life: settings.limits.reservation,
            browsers: settings.browsers.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{SettingsFile, Sources, resolve};
    use super::*;

    #[test]
    fn keys_are_public_if_a_shared_store_has_no_key_secret() {
        for (text, is_public) in [
            ("store: {url: memory}", false),
            ("store: {url: \"redis://127.0.0.1:1\"}", true),
            ("store: {url: \"redis://127.0.0.1:1\", key_secret_file: a}", false),
        ] {
            let file = SettingsFile { name: "a.yaml".into(), text: text.into() };
            let resolved =
                resolve(&Sources { file: Some(file), ..Sources::default() }).expect("the settings are valid");
            assert_eq!(ServiceOptions::from(&resolved.settings).has_public_keys, is_public, "{text}");
        }
    }
}
