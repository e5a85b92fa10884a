//! Reads the data that a file attaches to a rule (`metadata`).
//!
//! Every kind of YAML value is allowed in it. A key that is given twice in one map is an error, because one of its two
//! values would be lost.

use super::errors::Reporter;
use super::section::{found, shown};
use crate::model::Metadata;
use spillgate_text::yaml::{Node, Value};

/// Reads a `metadata` map. If the value is not a map, reports an error and returns `None`.
pub(super) fn read(node: &Node, reporter: &mut Reporter<'_>) -> Option<Metadata> {
    if matches!(node.value, Value::Map(_)) {
        return Some(value(node, reporter));
    }
    let help = "write `metadata: {name: value}`";
    reporter.error(node.at, "`metadata` has to be a map", found(node), help);
    None
}

/// Reads a value of any kind. If a part of the value is wrong, reports an error and reads the rest.
fn value(node: &Node, reporter: &mut Reporter<'_>) -> Metadata {
    match &node.value {
        Value::Null => Metadata::Null,
        Value::Text { text, quoted } => scalar(text, *quoted),
        Value::List(items) => Metadata::List(items.iter().map(|item| value(item, reporter)).collect()),
        Value::Map(entries) => Metadata::Map(map(entries, reporter)),
    }
}

/// Reads a single value. Without quotes it may be a number, `true` or `false`. Everything else is text, also `yes`,
/// `inf` and `nan`.
fn scalar(text: &str, quoted: bool) -> Metadata {
    match (text, text.parse::<f64>()) {
        (text, _) if quoted => Metadata::Text(text.into()),
        ("true", _) => Metadata::Bool(true),
        ("false", _) => Metadata::Bool(false),
        (_, Ok(number)) if number.is_finite() => Metadata::Number(number),
        (text, _) => Metadata::Text(text.into()),
    }
}

/// Reads a map. Its keys have to be words, and each key may be given only once.
fn map(entries: &[(Node, Node)], reporter: &mut Reporter<'_>) -> Box<[(Box<str>, Metadata)]> {
    let mut keys = std::collections::HashSet::new();
    let mut map = Vec::with_capacity(entries.len());
    for (key, entry) in entries {
        let Value::Text { text, .. } = &key.value else {
            reporter.error(key.at, "a key has to be a word", found(key), "write `name: value`");
            continue;
        };
        if keys.insert(text) {
            map.push((text.clone(), value(entry, reporter)));
        } else {
            let message = format!("`{}` is given twice", shown(text));
            reporter.error(key.at, message, "given again", "remove one of the two keys");
        }
    }
    map.into()
}
