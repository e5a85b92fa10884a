//! The values of a settings file, each with its position in the text.
//!
//! `spillgate::text::yaml` reads all YAML, and rules can use more forms of YAML than settings. In settings, an alias, a
//! repeated key, or a key that is not a word is an error.

use std::collections::HashMap;
use std::ops::Range;

use spillgate::text::yaml::{self, Advice, Node, Value};
use spillgate::text::{At, Diagnostic, Source};

use super::error::{Location, SettingError};

/// How to fix a file that is YAML but cannot be a settings file.
const ADVICE: Advice = Advice {
    // An empty file is valid, because every setting can be left out.
    empty: None,
    alias: Some("write the value out in place of the alias"),
    ignore_tags: true,
    documents: "keep only one document in the file: remove this `---`",
    depth: "no key needs more than a few levels",
    size: "write fewer and shorter values",
};

/// Reads the only document of a text. All keys are words, and no map has a key twice. An empty text gives
/// [`Value::Null`].
pub(super) fn parse(source: &Source) -> Result<Node, Diagnostic> {
    // The lines around the error are not shown, because they can contain a password.
    let root = yaml::parse(source, &ADVICE).map_err(Diagnostic::without_lines)?;
    check_keys(&root).map_err(|error| Location::new(source, "").error(error))?;
    Ok(root)
}

fn check_keys(node: &Node) -> Result<(), SettingError> {
    let entries = match &node.value {
        Value::Null | Value::Text { .. } => return Ok(()),
        Value::List(items) => return items.iter().try_for_each(check_keys),
        Value::Map(entries) => entries,
    };
    let mut lines: HashMap<&str, u32> = HashMap::new();
    for (key, value) in entries {
        let Value::Text { text, .. } = &key.value else {
            return Err(SettingError::new(&key.at.bytes(), "a key must be a word", "write `key: value`"));
        };
        if let Some(line) = lines.insert(text, key.at.line) {
            let message = format!("`{text}` is here twice");
            return Err(SettingError::new(&key.at.bytes(), message, format!("keep one; the first is on line {line}")));
        }
        check_keys(value)?;
    }
    Ok(())
}

/// Returns the node of a single value that is not in a file. `span` is its place in the text that errors show.
pub(super) fn scalar(text: &str, span: Range<usize>) -> Node {
    node(Value::Text { text: text.into(), quoted: false }, span)
}

/// Returns a node that is not in a file.
pub(super) fn node(value: Value, span: Range<usize>) -> Node {
    Node { at: At { start: span.start, len: span.len(), ..At::TOP }, end: span.end, value }
}

/// Returns the text of a single value, as it was written. A value that is missing is an empty text, and a list or a map
/// is `None`.
pub(super) fn single(node: &Node) -> Option<&str> {
    match &node.value {
        Value::Null => Some(""),
        Value::Text { text, .. } => Some(text),
        Value::List(_) | Value::Map(_) => None,
    }
}

/// Returns the value on one line, in the syntax of YAML but without quotes.
pub(super) fn on_one_line(node: &Node) -> String {
    match &node.value {
        Value::Null => String::new(),
        Value::Text { text, .. } => text.trim().to_owned(),
        Value::List(items) => format!("[{}]", items.iter().map(on_one_line).collect::<Vec<_>>().join(", ")),
        Value::Map(entries) => {
            let entry = |(key, value): &(Node, Node)| format!("{}: {}", on_one_line(key), on_one_line(value));
            format!("{{{}}}", entries.iter().map(entry).collect::<Vec<_>>().join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> String {
        on_one_line(&parse(&Source::new("s.yaml", text)).expect(text))
    }

    #[test]
    fn every_form_of_yaml_has_the_same_meaning() {
        for text in [
            "\u{feff}workers: 2\ndomain: a b\nlists: [[{key: k, from: 'value:007'}]]",
            "%YAML 1.2\n---\nworkers: '2'\ndomain: &anchor a b\nlists:\n- - key: k\n    from: value:007\n...\n",
            "# c\r\nworkers: \"\\x32\" # c\r\ndomain: a\r\n  b\r\nlists: [[{key: k,\r\n  from: value:007}]]\r\n",
            "? workers\n: !!int 2\ndomain: |-\n  a b\nlists: [[{\"key\":\"k\",\"from\":\"value:007\"}]]",
            "workers: !!str 2\ndomain: >\n  a\n  b\nlists: [[{key: k, from: 'value:007',},],]",
        ] {
            assert_eq!(read(text), "{workers: 2, domain: a b, lists: [[{key: k, from: value:007}]]}", "{text}");
        }
        for empty in ["", "\n", "# only a comment\n", "---\n", "~", "null", "--- # c\n...\n"] {
            assert_eq!(read(empty), "", "{empty:?}");
        }
        assert_eq!(
            read("a: ~\nb: null\nc:\nd: 'null'\ne: 1_000\nf: 0x10\ng: off"),
            "{a: , b: , c: , d: null, e: 1_000, f: 0x10, g: off}"
        );
    }
}
