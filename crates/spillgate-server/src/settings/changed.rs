//! What two readings of the settings differ in.

use super::{KEYS, Key, Resolved};

impl Resolved {
    /// The keys that `later` writes otherwise; none if that means the same.
    #[must_use]
    pub fn changed(&self, later: &Resolved) -> Vec<&'static str> {
        let (now, then) = (&self.settings, &later.settings);
        if now == then {
            return Vec::new();
        }
        let text = |resolved: &Resolved, key: &Key| resolved.origins.get(key.path).map(|(_, text)| text.clone());
        // Texts do not show passwords.
        let other_url = |key: &&Key| key.path == "store.url" && now.store.url != then.store.url;
        let keys = KEYS.iter().filter(|key| text(self, key) != text(later, key) || other_url(key));
        keys.map(|key| key.path).collect()
    }
}
