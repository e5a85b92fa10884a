//! Reads YAML into a tree of nodes that know their place in the text.
//!
//! Errors need that place. Scalars stay text: each key decides how to read values such as `10M` or `off`.

use std::ops::Range;

use serde_saphyr::granit_parser::{Event, Parser, Span};

/// Deeper nesting is refused, so that no file can exhaust the stack. No key needs this many levels.
const MAX_DEPTH: usize = 16;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) kind: Kind,
    /// Bytes of the text.
    pub(super) span: Range<usize>,
}

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

/// An error: what is wrong, where, and how to fix it. The caller adds the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) message: String,
    pub(super) help: String,
    pub(super) label: &'static str,
    pub(super) span: Range<usize>,
}

impl Wrong {
    pub(super) fn new(span: &Range<usize>, message: impl Into<String>, help: impl Into<String>) -> Wrong {
        Wrong { message: message.into(), help: help.into(), label: "here", span: span.clone() }
    }

    pub(super) fn labelled(self, label: &'static str) -> Wrong {
        Wrong { label, ..self }
    }
}

/// Reads the only document of `text`. Returns `None` if it is empty.
pub(super) fn parse(text: &str) -> Result<Option<Node>, Wrong> {
    let mut reader = Reader { text, parser: Parser::new_from_str(text) };
    let mut root = None;
    while let Some((event, span)) = reader.next()? {
        match event {
            Event::DocumentStart(..) if root.is_some() => {
                return Err(Wrong::new(&span, "a second YAML document", "keep one document a file: remove this `---`"));
            }
            Event::StreamStart | Event::StreamEnd | Event::DocumentStart(..) | Event::DocumentEnd => {}
            event => root = Some(reader.node(event, span, 0)?),
        }
    }
    Ok(root.filter(|node| node.kind != Kind::Scalar(String::new())))
}

struct Reader<'t> {
    text: &'t str,
    parser: Parser<'t, serde_saphyr::granit_parser::StrInput<'t>>,
}

impl<'t> Reader<'t> {
    /// The next event that is not a comment.
    fn next(&mut self) -> Result<Option<(Event<'t>, Range<usize>)>, Wrong> {
        loop {
            match self.parser.next_event() {
                None => return Ok(None),
                Some(Ok((Event::Comment(..), _))) => {}
                Some(Ok((event, span))) => return Ok(Some((event, self.range(&span)))),
                Some(Err(error)) => {
                    let at = error.marker().byte_offset().unwrap_or(self.text.len()).min(self.text.len());
                    let help = "fix the YAML: indent with spaces, quote values that hold `: ` or ` #`, close every bracket and quote";
                    return Err(Wrong::new(&(at..at), format!("this is not YAML: {}", error.info()), help));
                }
            }
        }
    }

    fn range(&self, span: &Span) -> Range<usize> {
        let whole = span.byte_range().unwrap_or(0..0);
        let end = whole.end.min(self.text.len());
        let start = whole.start.min(end);
        // The span of a plain scalar or block can include the spaces after it.
        let shown = self.text.get(start..end).map_or(0, |slice| slice.trim_end().len());
        start..start + shown
    }

    fn some(&mut self) -> Result<(Event<'t>, Range<usize>), Wrong> {
        let end = self.text.len();
        self.next()?.ok_or_else(|| Wrong::new(&(end..end), "the file ends too early", "finish the last line"))
    }

    fn node(&mut self, event: Event<'t>, span: Range<usize>, depth: usize) -> Result<Node, Wrong> {
        if depth > MAX_DEPTH {
            return Err(Wrong::new(&span, "nested too deeply", "no key needs more than a few levels"));
        }
        match event {
            Event::Scalar(text, style, ..) => {
                let null = style == serde_saphyr::granit_parser::ScalarStyle::Plain && matches!(&*text, "~" | "null");
                let text = if null { String::new() } else { text.into_owned() };
                Ok(Node { kind: Kind::Scalar(text), span })
            }
            Event::SequenceStart(..) => self.list(span, depth),
            Event::MappingStart(..) => self.map(span, depth),
            _ => Err(Wrong::new(&span, "aliases are not read here", "write the value out in place of the alias")),
        }
    }

    fn list(&mut self, start: Range<usize>, depth: usize) -> Result<Node, Wrong> {
        let mut items = Vec::new();
        loop {
            match self.some()? {
                (Event::SequenceEnd, end) => {
                    return Ok(Node { kind: Kind::List(items), span: start.start..end.end.max(start.end) });
                }
                (event, span) => items.push(self.node(event, span, depth + 1)?),
            }
        }
    }

    fn map(&mut self, start: Range<usize>, depth: usize) -> Result<Node, Wrong> {
        let mut members: Vec<(Name, Node)> = Vec::new();
        loop {
            let name = match self.some()? {
                (Event::MappingEnd, end) => {
                    return Ok(Node { kind: Kind::Map(members), span: start.start..end.end.max(start.end) });
                }
                (Event::Scalar(text, ..), span) => Name { text: text.into_owned(), span },
                (_, span) => return Err(Wrong::new(&span, "a key must be a word", "write `key: value`")),
            };
            if let Some((first, _)) = members.iter().find(|(other, _)| other.text == name.text) {
                let line = self.text[..first.span.start].matches('\n').count() + 1;
                let message = format!("`{}` is here twice", name.text);
                return Err(Wrong::new(&name.span, message, format!("keep one; the first is on line {line}")));
            }
            let (event, span) = self.some()?;
            let value = self.node(event, span, depth + 1)?;
            members.push((name, value));
        }
    }
}
