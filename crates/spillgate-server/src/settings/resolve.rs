//! Flags over environment over file over defaults.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use spillgate::headers::HeaderStyle;
use spillgate::text::{Diagnostic, nearest};
use spillgate::{OnFull, OnStoreFailure};
use spillgate_redis::LogForm;

use super::error::{Source, error_at};
use super::keys::{KEYS, Key, Shape};
use super::secret::{after_names, masked, sounds_secret};
use super::store;
use super::values::Value;
use super::yaml::{self, Kind, Name, Node, Wrong};
use super::{
    Allow, ForwardAuth, Grants, Limits, Listen, LogFormat, Memory, Settings, Snapshot, Store, StoreTls, StoreUrl,
};

/// Its value may hold a password, and is not shown where it is wrong.
const URL: &str = "store.url";

/// A settings file as read.
#[derive(Debug, Clone)]
pub struct SettingsFile {
    pub name: String,
    pub text: String,
}

/// All that was said about settings, by whom.
#[derive(Debug, Default)]
pub struct Sources {
    pub file: Option<SettingsFile>,
    /// The process's environment; what does not start with `SPILLGATE_` is passed over.
    pub environment: Vec<(String, String)>,
    /// Keys given as flags, with the values of each.
    pub flags: Vec<(&'static Key, Vec<String>)>,
    /// Rules given as arguments; they stand beside `--rules` and in place of all other `rules`.
    pub arguments: Vec<PathBuf>,
    /// No store is asked, so nobody minds whether its settings go together.
    pub asks_no_store: bool,
}

/// Who set a key, for listings.
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

/// The settings, and for each key who set it and to what.
#[derive(Debug)]
pub struct Resolved {
    pub settings: Settings,
    pub origins: BTreeMap<&'static str, (Origin, String)>,
}

/// Makes settings of all sources.
///
/// # Errors
/// Every setting that is wrong, each with its place and its mend.
pub fn resolve(sources: &Sources) -> Result<Resolved, Vec<Diagnostic>> {
    let mut resolver = Resolver::new();
    if let Some(file) = &sources.file {
        resolver.file(file);
    }
    resolver.environment(&sources.environment);
    for (key, values) in &sources.flags {
        resolver.spelled(key, values, Origin::Flag, &format!("--{}", key.flag()), "the command line");
    }
    resolver.arguments(&sources.arguments);
    resolver.agree();
    if !sources.asks_no_store && !resolver.is_url_wrong {
        let found = store::disagreements(&resolver.settings, &resolver.changed());
        resolver.blame(found);
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
    /// Groups of keys with a mistake in them: that they do not agree with other keys may be due to it.
    wrong_groups: BTreeSet<String>,
    /// Nobody knows which store is meant, so nobody can say what goes with it.
    is_url_wrong: bool,
}

impl Resolver {
    fn new() -> Resolver {
        let mut resolver = Resolver {
            settings: blank(),
            set: BTreeMap::new(),
            errors: Vec::new(),
            wrong_groups: BTreeSet::new(),
            is_url_wrong: false,
        };
        for key in KEYS {
            if !key.default.is_empty() {
                resolver.spelled(key, &[key.default.to_owned()], Origin::Default, key.path, "the defaults");
            }
        }
        resolver
    }

    fn file(&mut self, file: &SettingsFile) {
        let folder = Path::new(&file.name).parent().map(Path::to_path_buf).unwrap_or_default();
        let parsed = yaml::parse(&file.text);
        // Each error shows the lines around it too.
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
                    unknown(prefix, name)
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
            // An empty variable is what a shell or a container makes of an unset one.
            if value.is_empty() {
                continue;
            }
            if let Some(key) = KEYS.iter().find(|key| key.variable() == *variable) {
                self.spelled(key, std::slice::from_ref(value), Origin::Environment, variable, "the environment");
                continue;
            }
            // Others may use the prefix too (Kubernetes does for a service of this name), so only
            // what looks like a slip is an error.
            if let Some(help) = meant_variable(variable) {
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

    /// A value written in a flag, a variable or the table: as the key's shape says.
    fn spelled(&mut self, key: &'static Key, values: &[String], origin: Origin, name: &str, place: &str) {
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

    /// What is wrong between keys that are right alone.
    fn agree(&mut self) {
        let s = &self.settings;
        let listeners = [("http", &s.http), ("grpc", &s.grpc), ("admin", &s.admin)];
        let mut found: Vec<(&'static str, String, &'static str)> = Vec::new();
        if s.http.is_none() && s.grpc.is_none() {
            found.push((
                "http",
                "http and grpc are both off: nothing would be served".into(),
                "give one of them an address",
            ));
        }
        for (i, (name, listen)) in listeners.iter().enumerate() {
            let twin = listeners[..i].iter().find(|(_, other)| clash(listen.as_ref(), other.as_ref()));
            if let (Some(listen), Some((other, _))) = (listen, twin) {
                // Blame the one that somebody wrote.
                let (blamed, kept) = if self.is_written(name) { (name, other) } else { (other, name) };
                let message = format!("`{blamed}` and `{kept}` want the same address, {listen}");
                found.push((*blamed, message, "give each listener its own port, or switch one off"));
            }
        }
        let auth = &s.forward_auth;
        let is_whole = !self.wrong_groups.contains("forward_auth");
        if is_whole && auth.domain.is_some() && auth.descriptors.is_empty() {
            let help = "set `forward_auth.descriptors`: [[{key: remote_address, from: client_ip}]]";
            found.push(("forward_auth.domain", "forward_auth has a domain but no descriptors".to_owned(), help));
        }
        if is_whole && auth.domain.is_none() && !auth.descriptors.is_empty() {
            let help = "set `forward_auth.domain` to the domain whose rules are to be asked";
            found.push(("forward_auth.descriptors", "forward_auth has descriptors but no domain".to_owned(), help));
        }
        self.blame(found);
    }

    fn blame(&mut self, found: Vec<(&'static str, String, &'static str)>) {
        for (path, message, help) in found {
            self.errors.push(match self.set.get(path).and_then(|set| set.place.as_ref()) {
                Some((source, node)) => error_at(source, Wrong::new(&node.span, message, help)),
                None => Diagnostic::error(message, help),
            });
        }
    }

    /// The keys about stores that say something else than the default: writing that out says nothing that could be lost.
    fn changed(&self) -> Vec<&'static str> {
        let groups = ["store.", "memory.", "on_store_failure"];
        let stores = KEYS.iter().filter(|key| groups.iter().any(|group| key.path.starts_with(group)));
        stores.filter(|key| self.is_written(key.path) && self.is_changed(key)).map(|key| key.path).collect()
    }

    /// Whether the settings would be others if the key were the default; without one it is.
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

/// Adds where in `node`, which `path` names, somebody may have written a secret: what no key has and sounds like one,
/// and a store that is not understood, of which nobody knows what is a password.
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

/// Whether a text that is no settings file may show a secret all the same.
pub(crate) fn shows_secret(text: &str) -> bool {
    masked(text) != text || !after_names(text, is_word).is_empty()
}

/// Whether some key ends with this word.
fn is_word(name: &str) -> bool {
    KEYS.iter().any(|key| last(key.path) == name)
}

/// The last word of a path.
fn last(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or_default()
}

/// Whether two listeners cannot both have their address.
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

/// Keys that earlier versions had, and what to do about each.
const REMOVED: [(&str, &str); 1] =
    [("store.fixed_window", "delete this line: windows are counted as `script`, the default, counted them")];

fn unknown(prefix: &str, name: &Name) -> Wrong {
    let depth = if prefix.is_empty() { 0 } else { prefix.split('.').count() };
    let siblings = || {
        let inside = KEYS.iter().filter(|key| prefix.is_empty() || key.path.starts_with(&format!("{prefix}.")));
        inside.filter_map(|key| key.path.split('.').nth(depth))
    };
    let elsewhere = KEYS.iter().find(|key| key.path == name.text || key.path.ends_with(&format!(".{}", name.text)));
    let whole = if prefix.is_empty() { name.text.clone() } else { format!("{prefix}.{}", name.text) };
    if let Some((path, help)) = REMOVED.iter().find(|(path, _)| *path == whole) {
        return Wrong::new(&name.span, format!("the key `{path}` was removed"), *help).labelled("no longer a key");
    }
    if let Some(key) = KEYS.iter().find(|key| key.path.strip_suffix("_file") == Some(&*whole)) {
        let help = format!("put it into a file and name that: `{}`", key.path);
        return Wrong::new(&name.span, format!("unknown key `{whole}`"), help).labelled("no such key");
    }
    let help = match (nearest(&name.text, siblings()), elsewhere.map(|key| key.path.rsplit_once('.'))) {
        (Some(near), _) => format!("did you mean `{near}`?"),
        (None, Some(Some((group, key)))) => format!("`{key}` belongs under `{}:`", group.replace('.', ": ")),
        (None, Some(None)) => format!("`{}` belongs at the top of the file, not under `{prefix}:`", name.text),
        (None, None) => {
            let mut names: Vec<_> = siblings().collect();
            names.dedup();
            format!("the keys here are: {}", names.join(", "))
        }
    };
    Wrong::new(&name.span, format!("unknown key `{whole}`"), help).labelled("no such key")
}

/// What to write in place of a variable that is none, if it looks like a slip.
fn meant_variable(variable: &str) -> Option<String> {
    let bare = variable.strip_prefix("SPILLGATE_")?;
    if let Some(key) = KEYS.iter().find(|key| key.variable().strip_suffix("_FILE") == Some(variable)) {
        let (path, flag) = (key.path, key.flag());
        return Some(format!("put it into a file and name that: {}, `{path}` or --{flag}", key.variable()));
    }
    let in_words = |key: &&Key| key.path.replace('.', "_").eq_ignore_ascii_case(bare);
    let names: Vec<_> = KEYS.iter().map(|key| key.variable().split_off("SPILLGATE_".len())).collect();
    let meant = KEYS.iter().find(in_words).map(Key::variable);
    let near = || Some(format!("SPILLGATE_{}", nearest(bare, names.iter().map(String::as_str))?));
    meant.or_else(near).map(|meant| format!("did you mean `{meant}`?"))
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

/// What the table's defaults are then written over.
fn blank() -> Settings {
    Settings {
        http: None,
        grpc: None,
        admin: None,
        admin_token_file: None,
        rules: Vec::<PathBuf>::new(),
        compat_envoy: false,
        on_store_failure: OnStoreFailure::Local,
        shadow: false,
        deny_unmatched: false,
        workers: None,
        log_level: String::new(),
        log_format: LogFormat::Text,
        store: Store {
            url: StoreUrl::Memory,
            deadline: Duration::ZERO,
            expected_nodes: None,
            key_secret_file: None,
            user: None,
            password_file: None,
            sentinel_user: None,
            sentinel_password_file: None,
            tls: StoreTls::default(),
            connections: None,
            max_in_flight: 0,
            scripts: true,
            log: LogForm::Packed,
            deny_cache: 0,
            deny_cache_max_age: Duration::ZERO,
        },
        memory: Memory {
            max_keys: 0,
            max_heap: 0,
            on_full: OnFull::Deny,
            snapshot: Snapshot { path: None, interval: Duration::ZERO },
        },
        headers: HeaderStyle::Off,
        trusted_proxies: Vec::new(),
        forward_auth: ForwardAuth { domain: None, deny_status: 0, ipv6_prefix: 0, descriptors: Vec::new() },
        allow: Allow { grpc: Grants::default(), http: Grants::default() },
        limits: Limits {
            connections: 0,
            streams: 0,
            unread: 0,
            body: 0,
            descriptors: 0,
            entries: 0,
            key: 0,
            value: 0,
            metric_values: 0,
            idle: Duration::ZERO,
            receive: Duration::ZERO,
            drain: Duration::ZERO,
        },
    }
}
