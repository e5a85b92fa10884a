//! The difference between two readings of the settings.
//!
//! A reload changes only one setting, `insight.keys`. The log names the other settings that have new values in the file
//! and need a restart.

use spillgate_service::CallerKeys;

use super::{KEYS, Key, Resolved};

/// The setting that a reload changes.
const KEYS_OF_CALLERS: &str = "insight.keys";

impl Resolved {
    /// Returns the keys whose text differs in `later`, without the setting that a reload changes. The list is empty if
    /// both readings have the same meaning.
    #[must_use]
    pub fn changed(&self, later: &Resolved) -> Vec<&'static str> {
        let (now, then) = (&self.settings, &later.settings);
        if now == then {
            return Vec::new();
        }
        let text = |resolved: &Resolved, key: &Key| resolved.origins.get(key.path).map(|(_, text)| text.clone());
        // The texts have stars in place of passwords, so they do not show a changed password. Therefore the URLs are
        // compared too.
        let other_url = |key: &&Key| {
            let other_store = key.path == "store.url" && now.store.url != then.store.url;
            other_store || key.path == "regions.peers" && now.regions.peers != then.regions.peers
        };
        let keys = KEYS.iter().filter(|key| text(self, key) != text(later, key) || other_url(key));
        keys.map(|key| key.path).filter(|path| *path != KEYS_OF_CALLERS).collect()
    }

    /// Takes over the setting that a reload changes. Returns how reports show callers now, and a line about the change.
    /// Returns `None` if `later` has the same value.
    pub fn take_caller_keys(&mut self, later: &Resolved) -> Option<(CallerKeys, String)> {
        let (before, keys) = (self.settings.insight.keys, later.settings.insight.keys);
        if before == keys {
            return None;
        }
        self.settings.insight.keys = keys;
        let line = format!("setting {KEYS_OF_CALLERS} changed: {} -> {}", before.as_str(), keys.as_str());
        Some((keys, line))
    }
}
