//! Reads the settings from all their sources. A flag wins over the environment, the environment over the file, and the
//! file over the default.
//!
//! One run finds all errors, also conflicts between settings that are each valid alone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use spillgate::OnFull;
use spillgate::text::yaml::{Node, Value as Yaml};
use spillgate::text::{Diagnostic, Source};

use crate::listener::Listen;

use super::Settings;
use super::error::{Location, SettingError};
use super::keys::{KEYS, Key, Shape};
use super::regions;
use super::secret::{masked, masked_url};
use super::store;
use super::tls;
use super::unknown::{unknown_key, variable_help};
use super::values::Value;
use super::yaml;

/// The key of the store's URL.
const URL: &str = "store.url";
const AGE_GRACE: &str = "limits.connection_age_grace";
/// The keys whose values can contain a password. Errors do not show these values.
const WITH_PASSWORD: [&str; 2] = [URL, regions::PEERS];

/// The name and text of a settings file.
#[derive(Debug, Clone)]
pub struct SettingsFile {
    pub name: String,
    pub text: String,
}

/// Everything that can set settings.
#[derive(Debug, Default)]
pub struct Sources {
    pub file: Option<SettingsFile>,
    /// The environment of the process. Variables that do not start with `SPILLGATE_` are ignored.
    pub environment: Vec<(String, String)>,
    /// The keys that were given as flags, with their values.
    pub flags: Vec<(&'static Key, Vec<String>)>,
    /// Rules files that were given as arguments. They are used together with the values of the flag `--rules`, and
    /// replace `rules` of all other sources.
    pub arguments: Vec<PathBuf>,
    /// Whether the command does not connect to a store. If so, conflicts between settings of the store do not matter.
    pub asks_no_store: bool,
}

/// Where the value of a key comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    Default,
    File,
    Environment,
    Flag,
}

impl Origin {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Origin::Default => "default",
            Origin::File => "file",
            Origin::Environment => "environment",
            Origin::Flag => "flag",
        }
    }
}

/// The settings, and for each key the origin and the text of its value.
#[derive(Debug)]
pub struct Resolved {
    pub settings: Settings,
    pub origins: BTreeMap<&'static str, (Origin, String)>,
}

/// Reads the settings from all sources.
///
/// # Errors
/// Every wrong setting, each with its place and how to fix it.
pub fn resolve(sources: &Sources) -> Result<Resolved, Vec<Diagnostic>> {
    let mut resolver = Resolver::new();
    if let Some(file) = &sources.file {
        resolver.file(file);
    }
    resolver.environment(&sources.environment);
    for (key, values) in &sources.flags {
        resolver.apply_text(key, values, Origin::Flag, &format!("--{}", key.flag()), "the command line");
    }
    resolver.arguments(&sources.arguments);
    resolver.check_conflicts();
    if !sources.asks_no_store && !resolver.is_url_wrong {
        let found = store::conflicts(&resolver.settings, &resolver.changed());
        resolver.add_errors(found);
    }
    if !resolver.wrong_groups.contains("regions") {
        let Settings { regions, store, .. } = &resolver.settings;
        let found = regions::conflicts(regions, &store.url, &resolver.changed_in(&["regions."]));
        resolver.add_errors(found);
    }
    if !resolver.wrong_groups.contains("tls") {
        let found = tls::conflicts(&resolver.settings, &resolver.changed_in(&["tls."]));
        resolver.add_errors(found);
    }
    if !resolver.errors.is_empty() {
        return Err(resolver.errors);
    }
    // A list of URLs can have several passwords.
    let peers = resolver.settings.regions.peers.iter().map(|peer| format!("{}={}", peer.name, peer.url));
    let peers = peers.collect::<Vec<_>>().join(",");
    let shown = |path, text: &str| match path {
        URL => masked_url(text),
        regions::PEERS if !peers.is_empty() => peers.clone(),
        _ => masked(text),
    };
    let set = resolver.set.into_iter();
    let origins = set.map(|(path, set)| (path, (set.origin, shown(path, &set.text)))).collect();
    Ok(Resolved { settings: resolver.settings, origins })
}

/// Where a key got its value.
struct Set {
    origin: Origin,
    text: String,
    place: Option<(Location, Node)>,
}

struct Resolver {
    settings: Settings,
    set: BTreeMap<&'static str, Set>,
    errors: Vec<Diagnostic>,
    /// The groups in which a key has an error. This error can be the cause of a conflict in the group, so conflicts in
    /// these groups are not reported.
    wrong_groups: BTreeSet<String>,
    /// Whether the URL of the store is wrong. If so, the kind of the store is unknown, so it is also unknown which of
    /// the other settings have an effect.
    is_url_wrong: bool,
}

impl Resolver {
    fn new() -> Resolver {
        // The defaults of the keys, which are texts that `--help` shows too, replace the empty values.
        let mut resolver = Resolver {
            settings: Settings::default(),
            set: BTreeMap::new(),
            errors: Vec::new(),
            wrong_groups: BTreeSet::new(),
            is_url_wrong: false,
        };
        for key in KEYS {
            if !key.default.is_empty() {
                resolver.apply_text(key, &[key.default.to_owned()], Origin::Default, key.path, "the defaults");
            }
        }
        resolver
    }

    fn file(&mut self, file: &SettingsFile) {
        let folder = Path::new(&file.name).parent().map(Path::to_path_buf).unwrap_or_default();
        let source = Source::new(&file.name, &file.text);
        match yaml::parse(&source) {
            Ok(Node { value: Yaml::Map(members), .. }) => self.group("", &members, &source, &folder),
            Ok(node) if yaml::single(&node) == Some("") => {}
            Ok(node) => {
                let message = "a settings file is a list of `key: value` lines";
                let error = SettingError::new(&node.at.bytes(), message, "begin with `http: 0.0.0.0:8080`");
                self.errors.push(Location::new(&source, "").secret(true).error(error));
            }
            Err(error) => self.errors.push(error),
        }
    }

    fn group(&mut self, prefix: &str, members: &[(Node, Node)], source: &Source, folder: &Path) {
        for (key, node) in members {
            let name = yaml::single(key).unwrap_or_default();
            let path = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") };
            if let Some(key) = KEYS.iter().find(|key| key.path == path) {
                let location = Location::new(source, &format!("{name}: "));
                self.apply(key, node, Origin::File, yaml::on_one_line(node), &location, folder);
                continue;
            }
            let inner: Vec<_> = KEYS.iter().filter_map(|key| key.path.strip_prefix(&path)?.strip_prefix('.')).collect();
            let error = match &node.value {
                _ if inner.is_empty() => {
                    self.wrong_groups.insert(prefix.to_owned());
                    Location::new(source, "").error(unknown_key(prefix, name, key.at))
                }
                // All keys of this group are commented out.
                _ if yaml::single(node) == Some("") => continue,
                Yaml::Map(members) => {
                    self.group(&path, members, source, folder);
                    continue;
                }
                _ => {
                    let help = format!("write `{name}: {{{}: ...}}`; its keys: {}", inner[0], inner.join(", "));
                    let error =
                        SettingError::new(&node.at.bytes(), format!("`{path}` is a group of keys, not a value"), help);
                    // The value of `store` is probably the URL, which can contain a password. Therefore the error does
                    // not show it.
                    Location::new(source, &format!("{name}: ")).secret(true).error(error)
                }
            };
            self.errors.push(error);
        }
    }

    fn environment(&mut self, environment: &[(String, String)]) {
        for (variable, value) in environment.iter().filter(|(variable, _)| variable.starts_with("SPILLGATE_")) {
            // Shells and container tools turn an unset variable into an empty one.
            if value.is_empty() {
                continue;
            }
            if let Some(key) = KEYS.iter().find(|key| key.variable() == *variable) {
                self.apply_text(key, std::slice::from_ref(value), Origin::Environment, variable, "the environment");
                continue;
            }
            // Other software may use the prefix `SPILLGATE_` too: Kubernetes does so for a service of the name
            // `spillgate`. Only a variable that looks like a mistyped setting is an error.
            if let Some(help) = variable_help(variable) {
                // The error does not show the value, because it can be a secret.
                let location = Location::new(&Source::new("the environment", variable), "");
                let error = SettingError::new(&(0..variable.len()), format!("unknown variable `{variable}`"), help);
                self.errors.push(location.error(error.labelled("no such variable")));
            }
        }
    }

    fn arguments(&mut self, arguments: &[PathBuf]) {
        if arguments.is_empty() {
            return;
        }
        let beside = self.set.get("rules").is_some_and(|set| set.origin == Origin::Flag);
        let rules = std::mem::take(&mut self.settings.rules);
        self.settings.rules = arguments.iter().cloned().chain(rules.into_iter().filter(|_| beside)).collect();
        let text: Vec<_> = self.settings.rules.iter().map(|path| path.display().to_string()).collect();
        self.set.insert("rules", Set { origin: Origin::Flag, text: text.join(","), place: None });
    }

    /// Applies a value of a flag, a variable or the table of defaults. The shape of the key says how to read the text
    /// of the value.
    fn apply_text(&mut self, key: &'static Key, values: &[String], origin: Origin, name: &str, place: &str) {
        let between = if origin == Origin::Flag { ' ' } else { '=' };
        let before = format!("{name}{between}");
        let (start, value) = (before.len(), values.join(","));
        let text = format!("{before}{value}");
        let mut source = Source::new(place, &text);
        let node = match key.shape {
            Shape::Yaml => {
                // The value can have several lines, so positions are counted from the start of the value.
                source = Source::new(name, &value);
                match yaml::parse(&source) {
                    Ok(node) => node,
                    Err(error) => return self.errors.push(error),
                }
            }
            Shape::List if value == "[]" => yaml::node(Yaml::List(Vec::new()), start..text.len()),
            Shape::List => split_list(&value, start),
            Shape::One | Shape::Switch => yaml::scalar(&value, start..text.len()),
        };
        let location = Location::new(&source, &before);
        self.apply(key, &node, origin, value, &location, Path::new(""));
    }

    fn apply(
        &mut self,
        key: &'static Key,
        node: &Node,
        origin: Origin,
        text: String,
        location: &Location,
        folder: &Path,
    ) {
        let location = location.clone().secret(WITH_PASSWORD.contains(&key.path));
        match (key.apply)(&mut self.settings, &Value { node, path: key.path, folder }) {
            Ok(()) => {
                let place = (origin != Origin::Default).then(|| (location, node.clone()));
                self.set.insert(key.path, Set { origin, text, place });
            }
            Err(error) => {
                self.is_url_wrong |= key.path == URL;
                self.wrong_groups.extend(key.path.split_once('.').map(|(group, _)| group.to_owned()));
                self.errors.push(location.error(error));
            }
        }
    }

    /// Finds conflicts between settings that are each valid alone.
    fn check_conflicts(&mut self) {
        let s = &self.settings;
        let listeners = s.listeners();
        let mut found: Vec<(&'static str, String, &'static str)> = Vec::new();
        let of_clients = s.listeners_for_clients();
        if of_clients.iter().all(|(_, listen)| listen.is_none()) {
            let names = of_clients.map(|(name, _)| name).join(", ");
            let message =
                format!("all listeners for clients ({names}) are off, so the server would have nothing to serve");
            found.push(("http", message, "give one of them an address"));
        }
        for (i, (name, listen)) in listeners.iter().enumerate() {
            let twin = listeners[..i].iter().find(|(_, other)| clash(*listen, *other));
            if let (Some(listen), Some((other, _))) = (listen, twin) {
                // The error is shown at the key that was set explicitly.
                let (changed, kept) = if self.is_written(name) { (name, other) } else { (other, name) };
                let message = format!("`{changed}` and `{kept}` have the same address, {listen}");
                found.push((*changed, message, "give each listener its own port, or switch one off"));
            }
        }
        if s.admin_read_token_file.is_some() && s.admin_token_file.is_none() {
            let message = "`admin_read_token_file` needs `admin_token_file`, the token with which a client can write";
            found.push(("admin_read_token_file", message.to_owned(), "set `admin_token_file` too"));
        }
        let has_age = s.limits.clients.age.is_some();
        if !self.wrong_groups.contains("limits") && !has_age && !self.changed_in(&[AGE_GRACE]).is_empty() {
            let message = format!("`{AGE_GRACE}` has no effect without `limits.connection_age`");
            found.push((AGE_GRACE, message, "set `limits.connection_age` too, or remove this line"));
        }
        let auth = &s.forward_auth;
        let is_whole = !self.wrong_groups.contains("forward_auth");
        if is_whole && auth.domain.is_some() && auth.descriptors.is_empty() {
            let help = "set `forward_auth.descriptors`: [[{key: remote_address, from: client_ip}]]";
            found.push(("forward_auth.domain", "forward_auth has a domain but no descriptors".to_owned(), help));
        }
        if is_whole && auth.domain.is_none() && !auth.descriptors.is_empty() {
            let help = "set `forward_auth.domain` to the domain of the rules for these descriptors";
            found.push(("forward_auth.descriptors", "forward_auth has descriptors but no domain".to_owned(), help));
        }
        let is_sketch = matches!(s.memory.on_full, OnFull::Sketch { .. });
        if !self.wrong_groups.contains("memory") && !is_sketch && self.changed().contains(&"memory.sketch") {
            let message = "`memory.sketch` has no effect without `memory.on_full: sketch`".to_owned();
            found.push(("memory.sketch", message, "add `memory.on_full: sketch`, or remove `memory.sketch`"));
        }
        self.add_errors(found);
    }

    fn add_errors(&mut self, found: Vec<(&'static str, String, &'static str)>) {
        for (path, message, help) in found {
            self.errors.push(match self.set.get(path).and_then(|set| set.place.as_ref()) {
                Some((location, node)) => location.error(SettingError::new(&node.at.bytes(), message, help)),
                None => Diagnostic::error(message, help),
            });
        }
    }

    /// Returns the keys about stores that the user has set to another value than the default. A value that is equal to
    /// the default changes nothing, so it cannot conflict.
    fn changed(&self) -> Vec<&'static str> {
        self.changed_in(&["store.", "memory.", "on_store_failure"])
    }

    /// Returns the keys that begin with one of `groups`, if the user has set them to another value than the default.
    fn changed_in(&self, groups: &[&str]) -> Vec<&'static str> {
        let keys = KEYS.iter().filter(|key| groups.iter().any(|group| key.path.starts_with(group)));
        keys.filter(|key| self.is_written(key.path) && self.is_changed(key)).map(|key| key.path).collect()
    }

    /// Returns whether the value of the key differs from the default of the key. Returns true for a key without a
    /// default.
    fn is_changed(&self, key: &Key) -> bool {
        let node = yaml::scalar(key.default, 0..0);
        let mut other = self.settings.clone();
        let applied = (key.apply)(&mut other, &Value { node: &node, path: key.path, folder: Path::new("") });
        applied.is_err() || other != self.settings
    }

    fn is_written(&self, path: &str) -> bool {
        self.set.get(path).is_some_and(|set| set.origin != Origin::Default)
    }
}

/// Returns whether two listeners have addresses on which they cannot both listen.
fn clash(a: Option<&Listen>, b: Option<&Listen>) -> bool {
    match (a, b) {
        (Some(Listen::Tcp(a)), Some(Listen::Tcp(b))) => {
            let same_ip = a.ip() == b.ip()
                || (a.is_ipv4() == b.is_ipv4() && (a.ip().is_unspecified() || b.ip().is_unspecified()));
            a.port() != 0 && a.port() == b.port() && same_ip
        }
        (Some(Listen::Unix(a)), Some(Listen::Unix(b))) => a == b,
        _ => false,
    }
}

fn split_list(text: &str, start: usize) -> Node {
    let mut at = start;
    let mut items = Vec::new();
    for part in text.split(',') {
        items.push(yaml::scalar(part, at..at + part.len()));
        at += part.len() + 1;
    }
    yaml::node(Yaml::List(items), start..start + text.len())
}
