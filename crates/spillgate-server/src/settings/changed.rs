//! The difference between two readings of the settings.
//!
//! A reload does not change settings. The log names the settings that have new values in the file and need a restart.

use super::{KEYS, Key, Resolved};

impl Resolved {
    /// Returns the keys whose text differs in `later`. The list is empty if both readings have the same meaning.
    #[must_use]
    pub fn changed(&self, later: &Resolved) -> Vec<&'static str> {
        let (now, then) = (&self.settings, &later.settings);
        if now == then {
            return Vec::new();
        }
        let text = |resolved: &Resolved, key: &Key| resolved.origins.get(key.path).map(|(_, text)| text.clone());
        // The texts have stars in place of passwords, so they do not show a changed password. Therefore the URLs are
        // compared too.
        let other_url = |key: &&Key| key.path == "store.url" && now.store.url != then.store.url;
        let keys = KEYS.iter().filter(|key| text(self, key) != text(later, key) || other_url(key));
        keys.map(|key| key.path).collect()
    }
}
