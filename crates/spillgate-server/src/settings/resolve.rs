//! Reads the settings from all their sources: a flag wins over the environment, the environment over the file, and the
//! file over the default.
//!
//! It finds all errors in one run, also between settings that are each right alone.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use spillgate::text::Diagnostic;

use super::blank;
use super::error::{Source, error_at};
use super::keys::{KEYS, Key, Shape};
use super::secret::{after_names, masked, sounds_secret};
use super::store;
use super::unknown::{unknown_key, variable_help};
use super::values::Value;
use super::yaml::{self, Kind, Name, Node, Wrong};
use super::{Listen, Settings, StoreUrl};

/// The key whose value may hold a password. A wrong value of it is not shown.
const URL: &str = "store.url";

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
    /// Rules files that were given as arguments. They are used with those of `--rules`, and instead of all other `rules`.
    pub arguments: Vec<PathBuf>,
    /// The command does not connect to a store, so conflicts between settings of the store do not matter.
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
/// Every setting that is wrong, each with its place and how to fix it.
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
    if !resolver.errors.is_empty() {
        return Err(resolver.errors);
    }
    let origins = resolver.set.into_iter().map(|(path, set)| (path, (set.origin, masked(&set.text)))).collect();
    Ok(Resolved { settings: resolver.settings, origins })
}

/// Where a key got its value.
struct Set {
    origin: Origin,
    text: String,
    place: Option<(Source, Node)>,
}

struct Resolver {
    settings: Settings,
    set: BTreeMap<&'static str, Set>,
    errors: Vec<Diagnostic>,
    /// Groups of keys that have an error. A conflict with other keys may be caused by it, so it is not reported.
    wrong_groups: BTreeSet<String>,
    /// The URL of the store is wrong, so it is not known which settings belong to it.
    is_url_wrong: bool,
}

impl Resolver {
    fn new() -> Resolver {
        let mut resolver = Resolver {
            settings: blank::settings(),
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
        let parsed = yaml::parse(&file.text);
        // Each error shows the lines around it: these must not show a secret.
        let mut secrets = Vec::new();
        match &parsed {
            Ok(root) => root.iter().for_each(|root| add_secrets("", root, &mut secrets)),
            Err(_) => secrets = after_names(&file.text, is_word),
        }
        let source = Source::new(&file.name, &file.text, secrets);
        let wrong = match parsed {
            Ok(None) => return,
            Ok(Some(Node { kind: Kind::Map(members), .. })) => {
                return self.group("", &members, &source, &file.text, &folder);
            }
            Ok(Some(node)) => Wrong::new(
                &node.span,
                "a settings file is a list of `key: value` lines",
                "begin with `http: 0.0.0.0:8080`",
            ),
            Err(wrong) => wrong,
        };
        self.errors.push(error_at(&source, wrong));
    }

    fn group(&mut self, prefix: &str, members: &[(Name, Node)], source: &Source, text: &str, folder: &Path) {
        for (name, node) in members {
            let path = if prefix.is_empty() { name.text.clone() } else { format!("{prefix}.{}", name.text) };
            if let Some(key) = KEYS.iter().find(|key| key.path == path) {
                let shown = text.get(node.span.clone()).unwrap_or_default().to_owned();
                self.apply(key, node, Origin::File, shown, source, folder);
                continue;
            }
            let inner: Vec<_> = KEYS.iter().filter_map(|key| key.path.strip_prefix(&path)?.strip_prefix('.')).collect();
            let wrong = match &node.kind {
                _ if inner.is_empty() => {
                    self.wrong_groups.insert(prefix.to_owned());
                    unknown_key(prefix, name)
                }
                // A group whose keys are all commented out.
                Kind::Scalar(text) if text.is_empty() => continue,
                Kind::Map(members) => {
                    self.group(&path, members, source, text, folder);
                    continue;
                }
                _ => {
                    let help = format!("write `{}: {{{}: ...}}`; its keys: {}", name.text, inner[0], inner.join(", "));
                    Wrong::new(&node.span, format!("`{path}` is a group of keys, not a value"), help)
                }
            };
            self.errors.push(error_at(source, wrong));
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
            // Other software may use the prefix too: Kubernetes does so for a service of this name. Only a variable that
            // looks like a mistyped setting is an error.
            if let Some(help) = variable_help(variable) {
                // Its value may be a secret.
                let source = Source::new("the environment", variable, Vec::new());
                let wrong = Wrong::new(&(0..variable.len()), format!("unknown variable `{variable}`"), help);
                self.errors.push(error_at(&source, wrong.labelled("no such variable")));
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

    /// Applies a value of a flag, a variable or the table of defaults. The key's shape says how to read its text.
    fn apply_text(&mut self, key: &'static Key, values: &[String], origin: Origin, name: &str, place: &str) {
        let between = if origin == Origin::Flag { ' ' } else { '=' };
        let text = format!("{name}{between}{}", values.join(","));
        let start = name.len() + 1;
        let node = match (key.shape, &text[start..]) {
            (Shape::Yaml, yaml) => match yaml::parse(yaml) {
                Ok(node) => shifted(node.unwrap_or(Node { kind: Kind::Scalar(String::new()), span: 0..0 }), start),
                Err(mut wrong) => {
                    wrong.span = wrong.span.start + start..wrong.span.end + start;
                    self.errors.push(error_at(&Source::new(place, &text, Vec::new()), wrong));
                    return;
                }
            },
            (Shape::List, "[]") => Node { kind: Kind::List(Vec::new()), span: start..text.len() },
            (Shape::List, list) => split_list(list, start),
            (Shape::One | Shape::Switch, one) => Node { kind: Kind::Scalar(one.to_owned()), span: start..text.len() },
        };
        let mut secrets = Vec::new();
        add_secrets(key.path, &node, &mut secrets);
        let source = Source::new(place, &text, secrets);
        self.apply(key, &node, origin, text[start..].to_owned(), &source, Path::new(""));
    }

    fn apply(&mut self, key: &'static Key, node: &Node, origin: Origin, text: String, source: &Source, folder: &Path) {
        match (key.apply)(&mut self.settings, &Value { node, path: key.path, folder }) {
            Ok(()) => {
                let place = (origin != Origin::Default).then(|| (source.clone(), node.clone()));
                self.set.insert(key.path, Set { origin, text, place });
            }
            Err(wrong) => {
                self.is_url_wrong |= key.path == URL;
                self.wrong_groups.extend(key.path.split_once('.').map(|(group, _)| group.to_owned()));
                self.errors.push(error_at(source, wrong));
            }
        }
    }

    /// Finds conflicts between settings that are each right alone.
    fn check_conflicts(&mut self) {
        let s = &self.settings;
        let listeners = [("http", &s.http), ("grpc", &s.grpc), ("admin", &s.admin)];
        let mut found: Vec<(&'static str, String, &'static str)> = Vec::new();
        if s.http.is_none() && s.grpc.is_none() {
            found.push((
                "http",
                "http and grpc are both off: the server would have nothing to serve".into(),
                "give one of them an address",
            ));
        }
        for (i, (name, listen)) in listeners.iter().enumerate() {
            let twin = listeners[..i].iter().find(|(_, other)| clash(listen.as_ref(), other.as_ref()));
            if let (Some(listen), Some((other, _))) = (listen, twin) {
                // The error is shown at the one that was set explicitly.
                let (changed, kept) = if self.is_written(name) { (name, other) } else { (other, name) };
                let message = format!("`{changed}` and `{kept}` have the same address, {listen}");
                found.push((*changed, message, "give each listener its own port, or switch one off"));
            }
        }
        let auth = &s.forward_auth;
        let is_whole = !self.wrong_groups.contains("forward_auth");
        if is_whole && auth.domain.is_some() && auth.descriptors.is_empty() {
            let help = "set `forward_auth.descriptors`: [[{key: remote_address, from: client_ip}]]";
            found.push(("forward_auth.domain", "forward_auth has a domain but no descriptors".to_owned(), help));
        }
        if is_whole && auth.domain.is_none() && !auth.descriptors.is_empty() {
            let help = "set `forward_auth.domain` to the domain of its rules";
            found.push(("forward_auth.descriptors", "forward_auth has descriptors but no domain".to_owned(), help));
        }
        self.add_errors(found);
    }

    fn add_errors(&mut self, found: Vec<(&'static str, String, &'static str)>) {
        for (path, message, help) in found {
            self.errors.push(match self.set.get(path).and_then(|set| set.place.as_ref()) {
                Some((source, node)) => error_at(source, Wrong::new(&node.span, message, help)),
                None => Diagnostic::error(message, help),
            });
        }
    }

    /// The keys about stores whose values differ from the default. A default that is written out changes nothing, so it
    /// cannot conflict.
    fn changed(&self) -> Vec<&'static str> {
        let groups = ["store.", "memory.", "on_store_failure"];
        let stores = KEYS.iter().filter(|key| groups.iter().any(|group| key.path.starts_with(group)));
        stores.filter(|key| self.is_written(key.path) && self.is_changed(key)).map(|key| key.path).collect()
    }

    /// Whether the default of the key would change the settings. For a key without a default this is true.
    fn is_changed(&self, key: &Key) -> bool {
        let node = Node { kind: Kind::Scalar(key.default.to_owned()), span: 0..0 };
        let mut other = self.settings.clone();
        let applied = (key.apply)(&mut other, &Value { node: &node, path: key.path, folder: Path::new("") });
        applied.is_err() || other != self.settings
    }

    fn is_written(&self, path: &str) -> bool {
        self.set.get(path).is_some_and(|set| set.origin != Origin::Default)
    }
}

/// Adds the places in `node`, the value of `path`, that may hold a secret.
///
/// These are values of unknown keys whose names sound like secrets. A URL of a store that is not understood is hidden as a
/// whole, since any part of it may be a password.
fn add_secrets(path: &str, node: &Node, secrets: &mut Vec<Range<usize>>) {
    let is_known = KEYS.iter().any(|key| key.path == path);
    let value = Value { node, path, folder: Path::new("") };
    match &node.kind {
        _ if path == URL && StoreUrl::read(&value).is_err() => secrets.push(node.span.clone()),
        _ if is_known => {}
        _ if sounds_secret(last(path)) => secrets.push(node.span.clone()),
        Kind::Scalar(_) => {}
        Kind::List(items) => items.iter().for_each(|item| add_secrets(path, item, secrets)),
        Kind::Map(members) => {
            let prefix = if path.is_empty() { String::new() } else { format!("{path}.") };
            members.iter().for_each(|(name, node)| add_secrets(&format!("{prefix}{}", name.text), node, secrets));
        }
    }
}

/// Whether a text that is not a settings file may show a secret.
pub(crate) fn shows_secret(text: &str) -> bool {
    masked(text) != text || !after_names(text, is_word).is_empty()
}

/// Whether this word is the last part of a key.
fn is_word(name: &str) -> bool {
    KEYS.iter().any(|key| last(key.path) == name)
}

/// The last part of a path.
fn last(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or_default()
}

/// Whether two listeners cannot both listen on their addresses.
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
        items.push(Node { kind: Kind::Scalar(part.to_owned()), span: at..at + part.len() });
        at += part.len() + 1;
    }
    Node { kind: Kind::List(items), span: start..start + text.len() }
}

fn shifted(node: Node, by: usize) -> Node {
    let kind = match node.kind {
        Kind::Scalar(text) => Kind::Scalar(text),
        Kind::List(items) => Kind::List(items.into_iter().map(|item| shifted(item, by)).collect()),
        Kind::Map(members) => {
            let member = |(name, node): (Name, Node)| {
                (Name { span: name.span.start + by..name.span.end + by, ..name }, shifted(node, by))
            };
            Kind::Map(members.into_iter().map(member).collect())
        }
    };
    Node { kind, span: node.span.start + by..node.span.end + by }
}
