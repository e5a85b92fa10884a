//! The values of a settings file, each with its position in the text.
//!
//! `spillgate::text::yaml` reads all YAML, and rules can use more forms of YAML than settings. In settings, an alias, a
//! repeated key, or a key that is not a word is an error.

use std::collections::HashMap;
use std::ops::Range;

use spillgate::text::yaml::{self, Advice, Value};
use spillgate::text::{self, Diagnostic};

use super::error::{Written, Wrong};

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

/// One value of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) kind: Kind,
    /// The bytes of the value in the text. The span of a list or a map is empty, and is at the start of the list or
    /// map.
    pub(super) span: Range<usize>,
}

/// The content of a value. A scalar stays text, because each key decides how to read values such as `10M` or `off`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    /// One value. The text is empty if the value is missing.
    Scalar(String),
    List(Vec<Node>),
    Map(Vec<(Name, Node)>),
}

/// The key of a map's member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) text: String,
    pub(super) span: Range<usize>,
}

impl Node {
    /// Returns a node with a single value.
    pub(super) fn scalar(text: &str, span: Range<usize>) -> Node {
        Node { kind: Kind::Scalar(text.to_owned()), span }
    }

    /// Returns the value on one line, in the syntax of YAML but without quotes.
    pub(super) fn on_one_line(&self) -> String {
        match &self.kind {
            Kind::Scalar(text) => text.trim().to_owned(),
            Kind::List(items) => format!("[{}]", items.iter().map(Node::on_one_line).collect::<Vec<_>>().join(", ")),
            Kind::Map(members) => {
                let member = |(name, node): &(Name, Node)| format!("{}: {}", name.text, node.on_one_line());
                format!("{{{}}}", members.iter().map(member).collect::<Vec<_>>().join(", "))
            }
        }
    }
}

/// Reads the only document of a text. An empty text gives a scalar without text.
pub(super) fn parse(source: &text::Source) -> Result<Node, Diagnostic> {
    // The lines around the error are not shown, because they can contain a password.
    let root = yaml::parse(source, &ADVICE).map_err(Diagnostic::without_lines)?;
    node(root).map_err(|wrong| Written::new(source, "").error(wrong))
}

fn node(node: yaml::Node) -> Result<Node, Wrong> {
    let span = node.at.bytes();
    let kind = match node.value {
        Value::Null => Kind::Scalar(String::new()),
        Value::Text { text, .. } => Kind::Scalar(text.into()),
        Value::List(items) => Kind::List(items.into_iter().map(self::node).collect::<Result<_, _>>()?),
        Value::Map(entries) => Kind::Map(members(entries)?),
    };
    Ok(Node { kind, span })
}

fn members(entries: Vec<(yaml::Node, yaml::Node)>) -> Result<Vec<(Name, Node)>, Wrong> {
    let mut lines: HashMap<Box<str>, u32> = HashMap::new();
    let mut members = Vec::with_capacity(entries.len());
    for (key, value) in entries {
        let span = key.at.bytes();
        let Value::Text { text, .. } = key.value else {
            return Err(Wrong::new(&span, "a key must be a word", "write `key: value`"));
        };
        if let Some(line) = lines.insert(text.clone(), key.at.line) {
            let message = format!("`{text}` is here twice");
            return Err(Wrong::new(&span, message, format!("keep one; the first is on line {line}")));
        }
        members.push((Name { text: text.into(), span }, node(value)?));
    }
    Ok(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> String {
        parse(&text::Source::new("s.yaml", text)).expect(text).on_one_line()
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
