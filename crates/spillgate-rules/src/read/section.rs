//! The keys that each part of a rules file can have. Unknown, misplaced and repeated keys are errors.
//!
//! If the reader ignored a misspelt key, a limit could be missing, and its author would not notice.

use super::errors::Reporter;
use crate::model::Unit;
use spillgate_text::yaml::{Node, Value};
use spillgate_text::{At, nearest};

/// A part of a rules file that has its own keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Section {
    /// The top of the file.
    File,
    /// An item of `descriptors`.
    Descriptor,
    /// A `rate_limit`, or an item of `rate_limits`.
    Limit,
    /// An item of `replaces`.
    Replaces,
}

impl Section {
    pub(in super::super) const ALL: [Section; 4] =
        [Section::File, Section::Descriptor, Section::Limit, Section::Replaces];

    /// Returns all keys that this part can have. The JSON Schema lists the same keys.
    pub(in super::super) const fn keys(self) -> &'static [&'static str] {
        match self {
            Section::File => &["domain", "compat", "descriptors"],
            Section::Descriptor => &[
                "key",
                "value",
                "rate_limit",
                "rate_limits",
                "shadow_mode",
                "quota_mode",
                "detailed_metric",
                "value_to_metric",
                "share_threshold",
                "insight_by",
                "metadata",
                "descriptors",
            ],
            Section::Limit => &[
                "unit",
                "requests_per_unit",
                "limit",
                "unlimited",
                "name",
                "replaces",
                "window",
                "algorithm",
                "burst",
                "queue",
                "segments",
                "anchor",
                "denied",
                "soft",
                "penalty",
                "lease",
                "slot_by",
                "post_paid",
                "expose",
                "on_store_failure",
                "across_regions",
                "representation",
                "sketch_memory",
            ],
            Section::Replaces => &["name"],
        }
    }

    /// Returns the name of the part with its article, for messages.
    const fn what(self) -> &'static str {
        match self {
            Section::File => "a rules file",
            Section::Descriptor => "a descriptor",
            Section::Limit => "a rate_limit",
            Section::Replaces => "an item of replaces",
        }
    }

    /// Returns the words that say where a key of this part is, for messages.
    const fn place(self) -> &'static str {
        match self {
            Section::File => "at the top of the file",
            Section::Descriptor => "in a descriptor",
            Section::Limit => "in a rate_limit",
            Section::Replaces => "in an item of replaces",
        }
    }
}

/// Keys at the top of a settings file. Except `compat`, a rules file has none of these keys at its top. A test of the
/// server checks that each of its settings is here.
const SETTINGS: &[&str] = &[
    "compat",
    "http",
    "http_origins",
    "http_hosts",
    "grpc",
    "admin",
    "admin_token_file",
    "admin_read_token_file",
    "admin_hosts",
    "health",
    "tls",
    "rules",
    "watch",
    "shadow",
    "workers",
    "log_level",
    "log_format",
    "on_store_failure",
    "unmatched",
    "store",
    "regions",
    "memory",
    "headers",
    "trusted_proxies",
    "forward_auth",
    "allow",
    "limits",
    "insight",
];

/// Returns the position of the first key of settings, if the file is a settings file instead of a rules file.
///
/// A file with `domain` or `descriptors` is always read as a rules file. For a settings file, one error about the whole
/// file is more useful than an error for each key.
pub(super) fn settings_key(file: &Node) -> Option<At> {
    let Value::Map(map) = &file.value else { return None };
    let mut first = None;
    for (key, _) in map {
        let Value::Text { text, .. } = &key.value else { continue };
        // Both kinds of files have the key `compat`.
        match (Section::File.keys().contains(&&**text), SETTINGS.contains(&&**text)) {
            (true, false) => return None,
            (false, true) if first.is_none() => first = Some(key.at),
            _ => {}
        }
    }
    first
}

/// A map of the file, after its keys were checked.
pub(super) struct Fields<'n> {
    /// The start of the map.
    pub(super) at: At,
    /// Whether the map has an unknown key. The unknown key can be a misspelt form of a key that seems to be missing.
    has_unknown: bool,
    /// For each known key of the map: the name of the key, its node, and the node of its value.
    entries: Vec<(&'static str, &'n Node, &'n Node)>,
}

impl<'n> Fields<'n> {
    /// Checks the keys of `node` and returns its fields. If `node` is not a map, reports an error and returns `None`.
    pub(super) fn read(node: &'n Node, section: Section, reporter: &mut Reporter<'_>) -> Option<Fields<'n>> {
        let Value::Map(map) = &node.value else {
            if let (Value::List(_), Section::Limit) = (&node.value, section) {
                let help = "write `rate_limits:` for several limits; a request is allowed only if all of them allow it";
                reporter.error(node.at, "`rate_limit` is one limit, not a list", found(node), help);
                return None;
            }
            let keys = section.keys().iter().take(4).map(|key| format!("`{key}:`")).collect::<Vec<_>>().join(", ");
            let message = format!("{} has to be a map of keys and values", section.what());
            reporter.error(node.at, message, found(node), format!("write one key on each line, such as {keys}"));
            return None;
        };
        let mut fields = Fields { at: node.at, has_unknown: false, entries: Vec::new() };
        for (key, value) in map {
            fields.add(key, value, section, reporter);
        }
        Some(fields)
    }

    /// Adds one field, or reports why its key is wrong.
    fn add(&mut self, key: &'n Node, value: &'n Node, section: Section, reporter: &mut Reporter<'_>) {
        let Value::Text { text, quoted } = &key.value else {
            reporter.error(
                key.at,
                "a key has to be a word",
                "this is not a word",
                format!("use one of {}", list(section)),
            );
            return;
        };
        let Some(known) = section.keys().iter().copied().find(|known| *known == &**text) else {
            self.has_unknown = true;
            if &**text == "<<" && !quoted {
                // If the value of `<<` is correct, the parser has merged it and removed the key `<<`. The key is still
                // here, so its value is wrong.
                let help =
                    "write `<<: *name` or `<<: [*name, *other]`, where each name is the anchor (`&name`) of a map";
                reporter.error(value.at, "`<<` takes a map or a list of maps", found(value), help);
                return;
            }
            let (message, help) = unknown(text, section);
            reporter.error(key.at, message, "not a key here", help);
            return;
        };
        if let Some((_, first, _)) = self.entries.iter().find(|(name, ..)| *name == known) {
            let message = format!("`{known}` is given twice");
            let help = format!("remove this key, or the first one on line {}", first.at.line);
            reporter.error(key.at, message, "given again", help);
            return;
        }
        self.entries.push((known, key, value));
    }

    pub(super) fn get(&self, key: &str) -> Option<&'n Node> {
        self.entries.iter().find(|(name, ..)| *name == key).map(|(_, _, value)| *value)
    }

    /// Returns whether `key` seems to be missing, but an unknown key of the map may be `key` with a spelling mistake. The
    /// unknown key was reported already, so an error that says that `key` is missing would hide the cause.
    pub(super) fn may_misspell(&self, key: &str) -> bool {
        self.has_unknown && self.get(key).is_none()
    }

    /// Reports that a key is missing. Does nothing if an unknown key [may be](Fields::may_misspell) this key.
    pub(super) fn missing(&self, at: At, message: &str, label: &str, help: &str, reporter: &mut Reporter<'_>) {
        if !self.has_unknown {
            reporter.error(at, message, label, help);
        }
    }

    pub(super) fn key_at(&self, key: &str) -> Option<At> {
        self.entries.iter().find(|(name, ..)| *name == key).map(|(_, key, _)| key.at)
    }

    /// Returns all known keys of the map, with their positions.
    pub(super) fn keys(&self) -> impl Iterator<Item = (&'static str, At)> {
        self.entries.iter().map(|(name, key, _)| (*name, key.at))
    }
}

/// Returns whether the value is empty. A value is empty if nothing is written, or if it is `~`, `null` or `""`.
pub(super) fn is_empty(node: &Node) -> bool {
    match &node.value {
        Value::Null => true,
        Value::Text { text, .. } => text.is_empty(),
        Value::List(_) | Value::Map(_) => false,
    }
}

/// Returns whether nothing, or a list without entries, is written here.
pub(super) fn is_empty_list(node: &Node) -> bool {
    is_empty(node) || matches!(&node.value, Value::List(list) if list.is_empty())
}

/// Returns words for the type of a value. An error about a wrong type shows them below the line.
pub(super) fn found(node: &Node) -> &'static str {
    match &node.value {
        Value::Null => "nothing is here",
        Value::Text { quoted: true, .. } => "this is text in quotes",
        Value::Text { quoted: false, .. } => "this is a single value",
        Value::List(_) => "this is a list",
        Value::Map(_) => "this is a map",
    }
}

/// Returns the message and the help text for a key that this part does not have.
///
/// * If another part has this key, the help says where the key belongs.
/// * For a key such as `requests_per_minute`, which is a common mistake, the help shows the right keys.
/// * Otherwise the help names the most similar key. If no key is similar, it names all keys of the part.
fn unknown(key: &str, section: Section) -> (String, String) {
    let elsewhere = Section::ALL.into_iter().find(|other| other.keys().contains(&key));
    if let Some(home) = elsewhere {
        let message = format!("`{key}` does not belong {}", section.place());
        let help = match home {
            Section::Limit => format!("move `{key}` under `rate_limit:`"),
            Section::Descriptor => format!("move `{key}` to the level of the descriptor's `key:`"),
            Section::File => format!("move `{key}` to the top of the file, without indentation"),
            Section::Replaces => format!("`{key}` belongs in an item of `replaces:`"),
        };
        return (message, help);
    }
    let message = format!("`{}` is not known {}", shown(key), section.place());
    let unit = key.strip_prefix("requests_per_").filter(|_| section == Section::Limit);
    let unit = unit.and_then(|unit| Unit::ALL.into_iter().find(|known| known.as_str() == unit));
    let help = match nearest(key, section.keys().iter().copied()) {
        _ if unit.is_some() => {
            format!("write `unit: {}` and `requests_per_unit: NUMBER`", unit.map_or("", Unit::as_str))
        }
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("the keys here are {}", list(section)),
    };
    (message, help)
}

fn list(section: Section) -> String {
    section.keys().join(", ")
}

/// Returns a key or a value of the file in a form that a message can show. The text is cut after 40 characters. Control
/// characters are escaped, because they could change what a terminal shows.
pub(super) fn shown(text: &str) -> String {
    let mut short: String = text.chars().take(40).collect();
    if short.len() < text.len() {
        short.push_str("...");
    }
    short.escape_debug().collect()
}
