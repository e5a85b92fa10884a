//! The difference between two readings of the settings.
//!
//! A reload changes only two settings, `insight.keys` and `log_level`. The log names the other settings that have new
//! values in the file and need a restart.

use spillgate_service::CallerKeys;

use super::{KEYS, Key, Resolved};

/// The settings that a reload changes.
const KEYS_OF_CALLERS: &str = "insight.keys";
const LOG_LEVEL: &str = "log_level";

impl Resolved {
    /// Returns the keys whose text differs in `later`, without the settings that a reload changes. The list is empty if
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
        keys.map(|key| key.path).filter(|path| ![KEYS_OF_CALLERS, LOG_LEVEL].contains(path)).collect()
    }

    /// Takes over `insight.keys`. Returns how reports show callers now, and a line about the change.
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
    /// Takes over `log_level`. Returns the new filter of the log, and a line about the change. Returns `None` if `later`
    /// has the same value.
    pub fn take_log_level(&mut self, later: &Resolved) -> Option<(&str, String)> {
        let (before, level) = (&self.settings.log_level, &later.settings.log_level);
        if before == level {
            return None;
        }
        let line = format!("setting {LOG_LEVEL} changed: {before} -> {level}");
        self.settings.log_level.clone_from(level);
        Some((&self.settings.log_level, line))
    }
}
