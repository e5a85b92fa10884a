//! The files that settings name.

use std::path::PathBuf;

use super::Settings;
use super::store::StoreTls;

impl Settings {
    /// Returns all files and folders that the server reads because a setting names them. The snapshot is not among them,
    /// because the server writes it.
    #[must_use]
    pub fn files(&self) -> Vec<&PathBuf> {
        let (store, regions) = (&self.store, &self.regions);
        let logins = regions.peers.iter().map(|peer| &peer.login).chain([&regions.login]);
        let logins = logins.flat_map(|login| [&login.password_file].into_iter().chain(of_tls(&login.tls)));
        let one = [
            &self.admin_token_file,
            &self.admin_read_token_file,
            &self.tls.cert,
            &self.tls.key,
            &self.tls.client_ca,
            &store.key_secret_file,
            &store.password_file,
            &store.sentinel_password_file,
        ];
        let one = one.into_iter().chain(of_tls(&store.tls)).chain(logins).flatten();
        self.rules.iter().chain(one).collect()
    }
}

const fn of_tls(tls: &StoreTls) -> [&Option<PathBuf>; 3] {
    [&tls.ca, &tls.cert, &tls.key]
}

#[cfg(test)]
mod tests {
    use super::super::{KEYS, Origin, SettingsFile, Sources, resolve};

    #[test]
    fn every_file_that_a_setting_names_is_listed() {
        let text = "rules: [/a]
admin_token_file: /b
admin_read_token_file: /c
tls: {cert: /d, key: /e, client_ca: /f}
store:
  url: rediss-sentinel://h/main
  expected_nodes: 2
  key_secret_file: /g
  password_file: /h
  sentinel_password_file: /i
  tls: {ca: /j, cert: /k, key: /l}
regions:
  name: eu
  default: each
  password_file: /m
  tls: {ca: /n, cert: /o, key: /p}
  peers: {us: {url: rediss://us, password_file: /q, tls: {ca: /r, cert: /s, key: /t}}}
";
        let file = SettingsFile { name: "settings.yaml".into(), text: text.into() };
        let resolved = resolve(&Sources { file: Some(file), ..Sources::default() });
        let resolved = resolved.unwrap_or_else(|errors| panic!("{errors:?}"));
        let mut files: Vec<_> = resolved.settings.files().iter().map(|path| path.display().to_string()).collect();
        files.sort_unstable();
        assert_eq!(files, ('a'..='t').map(|name| format!("/{name}")).collect::<Vec<_>>());
        for key in KEYS.iter().filter(|key| key.value == "FILE" && key.path != "memory.snapshot.path") {
            let is_set = resolved.origins.get(key.path).is_some_and(|(origin, _)| *origin != Origin::Default);
            assert!(is_set, "this test and `files` do not know {}", key.path);
        }
    }
}
