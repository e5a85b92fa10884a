//! Help for keys and variables that do not exist.
//!
//! A mistyped setting would silently have no effect. Each error here names the setting that was probably meant.

use spillgate::text::{At, nearest};

use super::error::SettingError;
use super::keys::{KEYS, Key};

/// Keys that only earlier versions had, and what to do about each of these keys.
const REMOVED: [(&str, &str); 1] = [(
    "store.fixed_window",
    "delete this line; windows are counted in the way that `script`, the old default, counted them",
)];

/// The environment variable with the address of the admin listener that commands ask. It is no setting: the variable of the
/// setting `admin` says where a server listens, and that is no URL.
pub(crate) const ADMIN_URL_VARIABLE: &str = "SPILLGATE_ADMIN_URL";

/// The environment variables with the files for an address with `https`, which are no settings either: the authorities of the
/// server's certificate, and the certificate of the client with its key.
pub(crate) const ADMIN_TLS_VARIABLES: [&str; 3] =
    ["SPILLGATE_ADMIN_CA", "SPILLGATE_ADMIN_CLIENT_CERT", "SPILLGATE_ADMIN_CLIENT_KEY"];

/// Returns the error about the unknown key `name` below `prefix`. The key is written at `at`.
pub(super) fn unknown_key(prefix: &str, name: &str, at: At) -> SettingError {
    let depth = if prefix.is_empty() { 0 } else { prefix.split('.').count() };
    let siblings = || {
        let inside = KEYS.iter().filter(|key| prefix.is_empty() || key.path.starts_with(&format!("{prefix}.")));
        inside.filter_map(|key| key.path.split('.').nth(depth))
    };
    let elsewhere = KEYS.iter().find(|key| key.path == name || key.path.ends_with(&format!(".{name}")));
    let whole = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") };
    if let Some((path, help)) = REMOVED.iter().find(|(path, _)| *path == whole) {
        return SettingError::new(&at.bytes(), format!("the key `{path}` was removed"), *help)
            .labelled("no longer a key");
    }
    if let Some(key) = KEYS.iter().find(|key| key.path.strip_suffix("_file") == Some(&*whole)) {
        let help = format!("put the secret into a file and name the file: `{}`", key.path);
        return SettingError::new(&at.bytes(), format!("unknown key `{whole}`"), help).labelled("no such key");
    }
    if prefix.is_empty() && ["domain", "descriptors"].contains(&name) {
        let help = "this looks like a rules file: give it as an argument, without --config, or name it under `rules:`";
        return SettingError::new(&at.bytes(), format!("unknown key `{whole}`"), help).labelled("a key of rules files");
    }
    let help = match (nearest(name, siblings()), elsewhere.map(|key| key.path.rsplit_once('.'))) {
        (Some(near), _) => format!("did you mean `{near}`?"),
        (None, Some(Some((group, key)))) => format!("`{key}` belongs under `{}:`", group.replace('.', ": ")),
        (None, Some(None)) => format!("`{name}` belongs at the top of the file, not under `{prefix}:`"),
        (None, None) => {
            let mut names: Vec<_> = siblings().collect();
            names.dedup();
            format!("the keys here are: {}", names.join(", "))
        }
    };
    SettingError::new(&at.bytes(), format!("unknown key `{whole}`"), help).labelled("no such key")
}

/// Returns how to fix an unknown variable, or `None` if the variable does not look like a mistyped setting.
pub(super) fn variable_help(variable: &str) -> Option<String> {
    if variable == ADMIN_URL_VARIABLE || ADMIN_TLS_VARIABLES.contains(&variable) {
        return None;
    }
    let bare = variable.strip_prefix("SPILLGATE_")?;
    if let Some(key) = KEYS.iter().find(|key| key.variable().strip_suffix("_FILE") == Some(variable)) {
        let (path, flag) = (key.path, key.flag());
        return Some(format!("put the secret into a file and name the file: {}, `{path}` or --{flag}", key.variable()));
    }
    let in_words = |key: &&Key| key.path.replace('.', "_").eq_ignore_ascii_case(bare);
    let names: Vec<_> = KEYS.iter().map(|key| key.variable().split_off("SPILLGATE_".len())).collect();
    let meant = KEYS.iter().find(in_words).map(Key::variable);
    let near = || Some(format!("SPILLGATE_{}", nearest(bare, names.iter().map(String::as_str))?));
    meant.or_else(near).map(|meant| format!("did you mean `{meant}`?"))
}
