//! YAML text as a tree of nodes that know where they stand.
//!
//! Scalars stay text: what `10M` or `off` means is the key's business, not YAML's.

use std::ops::Range;

use serde_saphyr::granit_parser::{Event, Parser, Span};

/// Deeper nesting than any key needs is refused, so that no file can exhaust the stack.
const MAX_DEPTH: usize = 16;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) kind: Kind,
    /// Bytes of the text.
    pub(super) span: Range<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing, or one value; the text is empty where nothing stands.
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

/// What is wrong, where and how to mend it; the caller knows the source.
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

/// Reads the one document of `text`; `None` if it is empty.
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
                    let help = "mend the YAML: indent with spaces, quote values that hold `: ` or ` #`, close every bracket and quote";
                    return Err(Wrong::new(&(at..at), format!("this is not YAML: {}", error.info()), help));
                }
            }
        }
    }

    fn range(&self, span: &Span) -> Range<usize> {
        let whole = span.byte_range().unwrap_or(0..0);
        let end = whole.end.min(self.text.len());
        let start = whole.start.min(end);
        // The span of a plain scalar or block can run over the blanks that follow it.
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
                let message = format!("`{}` stands here twice", name.text);
                return Err(Wrong::new(&name.span, message, format!("keep one; the first is on line {line}")));
            }
            let (event, span) = self.some()?;
            let value = self.node(event, span, depth + 1)?;
            members.push((name, value));
        }
    }
}
