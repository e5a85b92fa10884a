//! Reads YAML text into a tree of nodes. Each node has a value and its position in the text.
//!
//! In this crate, only this file uses serde. The readers of rules and settings need three things that serde alone does
//! not offer:
//!
//! * the position of each value, because errors show the position
//! * single values exactly as they were written, because `007` can be a text
//! * all entries with the same key, because repeated keys are errors

use std::collections::{HashMap, HashSet};
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy, NonFiniteFloatPolicy};
use serde_saphyr::{Error, Location, Options, Spanned};

use super::excerpt::boundary;
use super::{At, Diagnostic, DiagnosticText, Severity, Source};

/// One value of the file, with its position. [`parse`] returns the root node, which contains all others, and has an
/// example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The position of the value. For a list or a map, this is the position of its start, with the length 0.
    pub at: At,
    /// Where the value ends in the text, in bytes. A list or a map ends with its last value, or with its closing
    /// bracket. A value that an alias repeats ends where the original value ends.
    pub end: usize,
    /// What was written: nothing, a text, a list or a map.
    pub value: Value,
}

/// The value of a node. YAML has no other kinds of values, so the list is complete. [`parse`] has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Nothing, `~` or `null`.
    Null,
    /// A single value (a scalar), as it was written.
    Text {
        /// Without quotes.
        text: Box<str>,
        /// Whether the text was written in quotes, or has a tag such as `!!str`. Such a text is never a number, and never a
        /// word such as `true`. If a tag such as `!!int` makes a value in quotes a number, this is false.
        quoted: bool,
    },
    /// A list.
    List(Vec<Node>),
    /// The keys and values in the order of the file. A key can occur more than once. Entries that `<<` adds come last.
    Map(Vec<(Node, Node)>),
}

/// The largest text, in bytes: 16 MiB.
#[doc(hidden)] // Only for spillgate-rules, which has this bound as `MAX_FILE_BYTES`.
pub const MAX_BYTES: usize = 16 << 20;

/// The maximum number of values of one file. A usual file has far fewer values, even if it is as large as
/// [`MAX_BYTES`]. The bound limits the time and memory that a hostile file costs.
const MAX_NODES: usize = 4_000_000;

/// The maximum number of aliases of one file. An alias (`*name`) repeats a value that was written elsewhere. Repeated
/// values also count for all other bounds, as if they were written out.
const MAX_ALIASES: usize = 10_000;

/// The maximum number of values that all aliases of one file together can repeat. Without this bound, a few lines of
/// nested aliases could stand for billions of values.
const MAX_REPLAYED: usize = 250_000;

/// The maximum number of levels of nested lists and maps. A rules file can have sixteen levels of descriptors. These
/// need thirty-two levels of YAML, and metadata needs some more.
const MAX_YAML_DEPTH: usize = 64;

/// The size of the stack of the parser's thread, in bytes. The parser calls itself for each level, and each level needs
/// up to 50 KiB in an unoptimised build. The parser runs on its own thread, because the stack of the caller may be too
/// small.
const STACK_BYTES: usize = 16 << 20;

/// Help texts for a file that is valid YAML but cannot be used. Rules files and settings files have different help
/// texts. [`parse`] has an example.
#[derive(Clone, Copy, Debug)]
pub struct Advice {
    /// What to do if the file is empty. If this is `None`, an empty file is valid, and its value is null.
    pub empty: Option<&'static str>,
    /// What to do if the file has an alias (`*name`). If this is `None`, aliases are valid.
    pub alias: Option<&'static str>,
    /// Whether tags that have no meaning here (`!name`) are ignored. If they are not ignored, such a tag is an error.
    pub ignore_tags: bool,
    /// What to do if the file has more than one document.
    pub documents: &'static str,
    /// What to do if the file is nested too deeply.
    pub depth: &'static str,
    /// What to do if the file is too large or has too many values. Values that aliases repeat count too.
    pub size: &'static str,
}

/// Parses one YAML document.
///
/// Keys are not checked here, because only the caller knows which keys are valid. Single values are returned as they
/// were written, and the caller decides which of them are numbers.
///
/// ```
/// use spillgate::text::Source;
/// use spillgate::text::yaml::{Advice, Value, parse};
/// let advice = Advice {
///     empty: Some("write a key"),
///     alias: None,
///     ignore_tags: false,
///     documents: "use two files",
///     depth: "nest less",
///     size: "use two files",
/// };
/// let node = parse(&Source::new("a.yaml", "id: 007"), &advice)?;
/// let Value::Map(entries) = node.value else { panic!("not a map") };
/// let (_, id) = &entries[0];
/// assert_eq!(id.value, Value::Text { text: "007".into(), quoted: false });
/// assert_eq!((id.at.line, id.at.column), (1, 5));
/// assert_eq!(parse(&Source::new("b.yaml", "a: 1\n---\nb: 2"), &advice).unwrap_err().help(), "use two files");
/// # Ok::<(), spillgate::text::Diagnostic>(())
/// ```
///
/// # Errors
/// * The text is not YAML.
/// * The text is empty, and `advice` has a help text for empty files.
/// * The text has an alias, and `advice` has a help text for aliases.
/// * The text has a tag that has no meaning here (`!name`), and `advice` does not ignore such tags.
/// * The text has more than one document.
/// * The text exceeds one of these bounds: 16 MiB, 64 levels, 4 million values, 10,000 aliases, or 250,000 values that
///   aliases repeat.
pub fn parse(source: &Source, advice: &Advice) -> Result<Node, Diagnostic> {
    if source.text.len() > MAX_BYTES {
        let message = format!("the file is larger than {} MiB", MAX_BYTES >> 20);
        return Err(Diagnostic::error_at(source, At::TOP, message, "in this file", advice.size));
    }
    let failed = || {
        let help = "this is an error in the parser; please report it, with the file";
        Diagnostic::error_at(source, At::TOP, "the file cannot be parsed", "in this file", help)
    };
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("yaml".into()).stack_size(STACK_BYTES);
        let parser = builder.spawn_scoped(scope, || parse_here(source, advice)).map_err(|_| failed())?;
        parser.join().map_err(|_| failed())?
    })
}

/// Parses on the current thread, which has to have a large stack.
fn parse_here(source: &Source, advice: &Advice) -> Result<Node, Diagnostic> {
    let parsed: Result<Spanned<Raw>, Error> = serde_saphyr::from_str_with_options(&source.text, options(advice));
    match parsed {
        Ok(raw) => Ok(Nodes { text: &source.text, ends: HashMap::new() }.node(raw)),
        Err(Error::Eof { .. }) if advice.empty.is_none() => Ok(Node { at: At::TOP, end: 0, value: Value::Null }),
        Err(error) => Err(yaml_error(source, advice, &error)),
    }
}

/// Returns the options of the parser: its bounds, and how it reads repeated keys, merge keys, booleans and numbers.
fn options(advice: &Advice) -> Options {
    let max_aliases = if advice.alias.is_none() { MAX_ALIASES } else { 0 };
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: usize::MAX,
            max_aliases: max_aliases,
            max_anchors: 1_000,
            max_depth: MAX_YAML_DEPTH,
            max_documents: 1,
            max_nodes: MAX_NODES,
            max_total_scalar_bytes: MAX_BYTES,
            max_total_comment_bytes: MAX_BYTES,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_REPLAYED },
        duplicate_keys: DuplicateKeyPolicy::LastWins,
        merge_keys: MergeKeyPolicy::AsOrdinary,
        strict_booleans: true,
        reject_unsupported_tags: !advice.ignore_tags,
        non_finite_float_policy: NonFiniteFloatPolicy::AsString,
        with_snippet: false,
        emit_comments: false,
    }
}

/// A value as serde returns it. `Plain` is a number or a boolean. Its text is later copied from the file, because a
/// rule with `value: 007` means the three characters and not the number 7.
enum Raw {
    Null,
    Plain,
    Text(Box<str>),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<Raw>, Spanned<Raw>)>),
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Raw, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

/// Makes a [`Raw`] from any value that serde can return.
struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a word, a number, a list or a map")
    }

    fn visit_unit<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_none<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Raw, E> {
        Ok(Raw::Plain)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Raw, E> {
        Ok(Raw::Plain)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Raw, E> {
        Ok(Raw::Plain)
    }

    fn visit_i128<E>(self, _: i128) -> Result<Raw, E> {
        Ok(Raw::Plain)
    }

    fn visit_u128<E>(self, _: u128) -> Result<Raw, E> {
        Ok(Raw::Plain)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Raw, E> {
        Ok(Raw::Plain)
    }

    fn visit_str<E>(self, text: &str) -> Result<Raw, E> {
        Ok(Raw::Text(text.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Raw, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Raw::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Raw, A::Error> {
        let mut map = Vec::new();
        while let Some(key) = entries.next_key()? {
            map.push((key, entries.next_value()?));
        }
        Ok(Raw::Map(map))
    }
}

/// Turns the values that serde returns into nodes.
struct Nodes<'t> {
    text: &'t str,
    /// Where each list or map ends. The key is the place where it begins, and whether it is a map: a list and a map can
    /// begin at the same place.
    ends: HashMap<(usize, bool), usize>,
}

impl Nodes<'_> {
    /// Makes the node of a value, with its position in the text. This function calls itself for each level of nesting,
    /// so it needs a large stack, as the parser does.
    fn node(&mut self, raw: Spanned<Raw>) -> Node {
        // An alias (`*name`) repeats a value. A repeated value has the position of the original value, which is beside
        // the anchor (`&name`).
        let is_repeated = is_repeated(&raw);
        let at = place(self.text, raw.defined);
        let written = self.text.get(at.start..at.start + at.len).unwrap_or_default();
        let mut end = at.start + written.trim_end().len();
        let value = match raw.value {
            Raw::Null => Value::Null,
            Raw::Plain => Value::Text { text: without_quotes(written), quoted: false },
            Raw::Text(text) => {
                let quoted = written.starts_with(['"', '\'', '|', '>']) || has_text_tag(&self.text[..at.start]);
                Value::Text { text, quoted }
            }
            Raw::List(items) => Value::List(items.into_iter().map(|item| self.child(item, &mut end)).collect()),
            Raw::Map(map) => {
                let entries = map.into_iter().map(|(k, v)| (self.child(k, &mut end), self.child(v, &mut end)));
                Value::Map(merged(entries.collect()))
            }
        };
        let end = self.end(at, end, &value, is_repeated);
        let at = match &value {
            // A list or a map can have many lines. An error about it shows only the first line.
            Value::List(_) | Value::Map(_) => At { len: 0, ..at },
            Value::Null | Value::Text { .. } => {
                At { len: written.trim_end().lines().next().unwrap_or_default().len(), ..at }
            }
        };
        Node { at, end, value }
    }

    /// Makes the node of a value in a list or a map. If the value ends after `end`, `end` becomes the end of the value.
    fn child(&mut self, raw: Spanned<Raw>, end: &mut usize) -> Node {
        let alias = is_repeated(&raw).then(|| place(self.text, raw.referenced));
        let node = self.node(raw);
        *end = alias.map_or(node.end, |alias| alias.start + alias.len).max(*end);
        node
    }

    /// Returns where a value ends. `inner` is the end of its last part. A repeated value was written before, so its end
    /// is already known, and the text is not searched again.
    fn end(&mut self, at: At, inner: usize, value: &Value, is_repeated: bool) -> usize {
        let (is_map, bracket) = match value {
            Value::Map(_) => (true, "{"),
            Value::List(_) => (false, "["),
            Value::Null | Value::Text { .. } if at.len == 0 && !is_repeated => return end_before(self.text, at.start),
            Value::Null | Value::Text { .. } => return inner,
        };
        if let Some(end) = self.ends.get(&(at.start, is_map)).filter(|_| is_repeated) {
            return *end;
        }
        let in_brackets = at.len > 0 && self.text[at.start..].starts_with(bracket);
        let end = if in_brackets { closed(self.text, inner) } else { inner };
        self.ends.insert((at.start, is_map), end);
        end
    }
}

/// Returns a number or a boolean without its quotes. A tag such as `!!int` makes a value in quotes a number.
fn without_quotes(written: &str) -> Box<str> {
    let bare = written.trim();
    let text = bare.starts_with(['"', '\'']).then(|| serde_saphyr::from_str::<String>(bare).ok()).flatten();
    text.map_or_else(|| bare.into(), |text| text.trim().into())
}

/// Returns whether the text before a value ends with a tag that makes the value a text, so that `!!str 7` is not a number.
///
/// Only the last words are looked at, not the whole line: a file of many values can be one line.
fn has_text_tag(before: &str) -> bool {
    const TAGS: [&str; 5] = ["!!str", "!!binary", "!<tag:yaml.org,2002:str>", "!<tag:yaml.org,2002:binary>", "!"];
    let mut rest = before;
    loop {
        rest = rest.trim_end_matches([' ', '\t']);
        let is_end = |c: char| c.is_ascii_whitespace() || matches!(c, '[' | ']' | '{' | '}' | ',');
        let begin = rest.rfind(is_end).map_or(0, |at| at + 1);
        // An anchor can be between the tag and the value.
        if !rest[begin..].starts_with('&') {
            break;
        }
        rest = &rest[..begin];
    }
    // In a list or a map in brackets, the tag can follow a bracket or a comma.
    let is_start = |before: &str| before.is_empty() || before.ends_with(['[', '{', ',', ' ', '\t', '\n', '\r']);
    TAGS.iter().any(|tag| rest.strip_suffix(tag).is_some_and(is_start))
}

/// Returns whether a value is an alias, or a part of what an alias repeats.
fn is_repeated(raw: &Spanned<Raw>) -> bool {
    raw.referenced != raw.defined
}

/// Returns where an empty value ends. For such a value, the parser can report the place of the text that follows it;
/// `at` is this place.
fn end_before(text: &str, at: usize) -> usize {
    let mut before = text[..at].trim_end();
    loop {
        let line = before.rfind(['\n', '\r']).map_or(0, |end| end + 1);
        if !before[line..].trim_start().starts_with('#') {
            return before.len();
        }
        before = before[..line].trim_end();
    }
}

/// Returns where a list or a map in brackets ends. Its last value ends at the byte `at`, and comments can follow before
/// the closing bracket.
fn closed(text: &str, mut at: usize) -> usize {
    loop {
        let rest = &text[at..];
        let Some(found) = rest.find(['}', ']', '#']) else { return text.len() };
        at += found + 1;
        if !rest[found..].starts_with('#') {
            return at;
        }
        at += text[at..].find(['\n', '\r']).unwrap_or(text.len() - at);
    }
}

/// Returns the entries of a map, followed by the entries that `<<` adds from other maps.
///
/// If several maps have the same key, the map's own entry wins over the entries of other maps. Among the other maps,
/// the first one wins.
fn merged(entries: Vec<(Node, Node)>) -> Vec<(Node, Node)> {
    let name = |key: &Node| match &key.value {
        Value::Text { text, .. } => Some(text.clone()),
        _ => None,
    };
    let merges = |(key, value): &(Node, Node)| {
        let is_map = |node: &Node| matches!(node.value, Value::Map(_));
        let is_merge = matches!(&key.value, Value::Text { text, quoted: false } if &**text == "<<");
        is_merge && (is_map(value) || matches!(&value.value, Value::List(maps) if maps.iter().all(is_map)))
    };
    if !entries.iter().any(merges) {
        return entries;
    }
    let (brought, mut own): (Vec<_>, Vec<_>) = entries.into_iter().partition(merges);
    let mut known: HashSet<Box<str>> = own.iter().filter_map(|(key, _)| name(key)).collect();
    let maps = brought.into_iter().flat_map(|(_, value)| match value.value {
        Value::List(maps) => maps,
        _ => vec![value],
    });
    for map in maps {
        let Value::Map(entries) = map.value else { continue };
        own.extend(entries.into_iter().filter(|(key, _)| name(key).is_none_or(|name| known.insert(name))));
    }
    own
}

/// Converts a location of the parser to a position in the text. If the location is outside the text, the nearest
/// position inside is returned, so that a wrong location from the parser cannot cause a panic.
fn place(text: &str, location: Location) -> At {
    let span = location.span();
    let offset = |bytes: Option<u64>| usize::try_from(bytes.unwrap_or(0)).unwrap_or(usize::MAX);
    let start = boundary(text, offset(span.byte_offset()));
    let end = boundary(text, start.saturating_add(offset(span.byte_len())));
    let number = |n: u64| u32::try_from(n).unwrap_or(u32::MAX).max(1);
    At { line: number(location.line()), column: number(location.column()), start, len: end - start }
}

/// Makes the diagnostic for an error of the parser. `advice` has the help texts for this kind of file.
fn yaml_error(source: &Source, advice: &Advice, error: &Error) -> Diagnostic {
    let error = error.without_snippet();
    let at = error.location().map_or(At::TOP, |location| error_place(&source.text, location));
    // If the error is in a value that an alias repeats, the parser wraps the error in an `AliasError` with the position
    // of the alias.
    let mut cause = error;
    while let Error::AliasError { error, .. } = cause {
        cause = error;
    }
    let words = match cause {
        Error::AliasReplayLimitExceeded { .. } | Error::AliasReplayStackDepthExceeded { .. } => {
            let help = format!("the aliases (`*name`) repeat too many values; {}", advice.size);
            DiagnosticText::new("the file is too large if its aliases are written out", "too large from here on", help)
        }
        Error::UnknownAnchor { .. } => {
            let help = "if this is not an alias, write it in quotes (`value: \"*.com\"`); otherwise define its anchor \
                        before this line";
            DiagnosticText::new("this alias (`*name`) has no anchor (`&name`)", "an alias", help)
        }
        Error::RecursiveReferencesRequireWeakTypes { .. } => {
            let help = "remove the alias, or move it out of the value that has its anchor (`&name`)";
            DiagnosticText::new("the value of this alias (`*name`) contains the alias", "an alias", help)
        }
        Error::Budget { breach, .. } => budget_words(breach, advice),
        Error::MultipleDocuments { .. } => two_documents(advice),
        Error::Eof { .. } => DiagnosticText::new("the file is empty", "here", advice.empty.unwrap_or_default()),
        other => syntax_words(&source.text, at, &other.to_string()),
    };
    Diagnostic::new(source, at, Severity::Error, words)
}

/// Returns the position of an error. For a syntax error, the parser gives only a line and a column. This function then
/// computes the offset from the line and the column.
fn error_place(text: &str, location: Location) -> At {
    let at = place(text, location);
    if location.span().byte_offset().is_some() {
        return At { len: 0, ..at };
    }
    let line = text.split_inclusive('\n').nth(at.line.saturating_sub(1) as usize);
    let before: usize = text.split_inclusive('\n').take(at.line.saturating_sub(1) as usize).map(str::len).sum();
    let within: usize =
        line.unwrap_or_default().chars().take(at.column.saturating_sub(1) as usize).map(char::len_utf8).sum();
    At { start: before + within, len: 0, ..at }
}

/// Returns the texts for a syntax error. A few common mistakes have their own help text.
fn syntax_words(text: &str, at: At, message: &str) -> DiagnosticText {
    let what = message.lines().next().unwrap_or_default();
    let what = what.rsplit_once(" at line ").map_or(what, |(what, _)| what);
    let line = text.lines().nth(at.line.saturating_sub(1) as usize).unwrap_or_default();
    let value = line.split_once(": ").map_or("", |(_, value)| value.trim_start());
    let help = if value.starts_with('*') {
        "write a value that starts with `*` in quotes, such as `value: \"*\"`"
    } else if what.contains("tab") {
        "indent with spaces"
    } else if what.contains(" tag ") || line.contains(" !!") {
        "remove the tag (the word that starts with `!`)"
    } else {
        "check the indentation, quotes and brackets on this line and on the line before it"
    };
    DiagnosticText::new(format!("this is not valid YAML: {what}"), "here", help)
}

fn two_documents(advice: &Advice) -> DiagnosticText {
    DiagnosticText::new("the file has more than one YAML document", "the next document starts here", advice.documents)
}

/// Returns the texts for a file that exceeds one of the parser's bounds.
fn budget_words(breach: &BudgetBreach, advice: &Advice) -> DiagnosticText {
    match (breach, advice.alias) {
        (BudgetBreach::Aliases { .. }, Some(help)) => {
            DiagnosticText::new("an alias (`*name`) is not allowed here", "an alias", help)
        }
        (BudgetBreach::Aliases { .. }, None) => {
            let help = format!("use at most {MAX_ALIASES} aliases in one file; write some values without an alias");
            DiagnosticText::new("there are too many YAML aliases (`*name`)", "an alias", help)
        }
        (BudgetBreach::Depth { .. }, _) => {
            DiagnosticText::new("the file is nested too deeply", "this is too deep", advice.depth)
        }
        (BudgetBreach::Documents { .. }, _) => two_documents(advice),
        (other, _) => {
            DiagnosticText::new(format!("the file is too large: {other:?}"), "too large from here on", advice.size)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_with_more_than_the_most_bytes_is_an_error() {
        let advice =
            Advice { empty: None, alias: None, ignore_tags: false, documents: "", depth: "", size: "use two files" };
        let text = |bytes: usize| Source::new("a.yaml", &format!("a: 1{}", " ".repeat(bytes - 4)));
        assert!(parse(&text(MAX_BYTES), &advice).is_ok());
        let error = parse(&text(MAX_BYTES + 1), &advice).unwrap_err();
        assert_eq!((error.message(), error.help()), ("the file is larger than 16 MiB", "use two files"));
    }

    /// A tag says what a value is, whether it has quotes or not.
    #[test]
    fn tags_decide_whether_a_value_is_a_text() {
        let advice = Advice { empty: None, alias: None, ignore_tags: true, documents: "", depth: "", size: "" };
        let values = |text: &str| {
            let root = parse(&Source::new("a.yaml", text), &advice).map_err(|error| error.help().to_owned())?;
            let Value::Map(entries) = root.value else { panic!("not a map: {text}") };
            let of_list = |value: Value| match value {
                Value::List(items) => items.into_iter().map(|item| item.value).collect(),
                other => vec![other],
            };
            Ok::<Vec<Value>, String>(
                entries.into_iter().flat_map(|(key, value)| [vec![key.value], of_list(value.value)].concat()).collect(),
            )
        };
        let text = |text: &str, quoted| Value::Text { text: text.into(), quoted };
        for (written, value, quoted) in [
            ("!!int \"7\"", "7", false),
            ("!!int '7'", "7", false),
            ("!!int \"\\x37\"", "7", false),
            ("!!int \" 7 \"", "7", false),
            ("!<tag:yaml.org,2002:int> \"7\"", "7", false),
            ("&a !!int \"7\"", "7", false),
            ("!!int &a \"7\"", "7", false),
            ("!!int 0x7", "0x7", false),
            ("!!bool \"true\"", "true", false),
            ("!!float '1.5'", "1.5", false),
            ("!!str 7", "7", true),
            ("!!str &a 7", "7", true),
            ("&a !!str 7", "7", true),
            ("!!str true", "true", true),
            ("!!str ~", "~", true),
            ("!!str", "", true),
            ("!!str \"7\"", "7", true),
            ("! 7", "7", true),
            ("!!binary Nw==", "7", true),
            ("!<tag:yaml.org,2002:str> 7", "7", true),
            ("\"7\"", "7", true),
            ("7", "7", false),
            ("!name 7", "7", false),
            ("a!!str", "a!!str", false),
        ] {
            let value = || text(value, quoted);
            assert_eq!(values(&format!("k: {written}")), Ok(vec![text("k", false), value()]), "{written}");
            let list = format!("k: [{written}, {written}]").replace("&a", "&b");
            if written != "!!str" {
                assert_eq!(values(&list), Ok(vec![text("k", false), value(), value()]), "{list}");
            }
        }
        assert_eq!(values("!!str 7: x"), Ok(vec![text("7", true), text("x", false)]));
        assert_eq!(values("!!int \"7\": x"), Ok(vec![text("7", false), text("x", false)]));
        assert_eq!(values("# !!str\n7: 8"), Ok(vec![text("7", false), text("8", false)]));
        let repeated = [text("a", false), text("7", false), text("b", false), text("7", false)];
        assert_eq!(values("a: &x !!int \"7\"\nb: *x"), Ok(repeated.to_vec()));
        assert_eq!(values("k: !!null x"), Ok(vec![text("k", false), Value::Null]));
        assert_eq!(values("k: [a,!!str 7]"), Ok(vec![text("k", false), text("a", false), text("7", true)]));
        // A value looks only at the words before it, and not at the whole line.
        let many = format!("k: [{}!!str 7]", "a, ".repeat(50_000));
        let last = values(&many).map(|values| (values.len(), values.last().cloned()));
        assert_eq!(last, Ok((50_002, Some(text("7", true)))));
        for wrong in ["!!int seven", "!!int \"seven\"", "!!int 007", "!!bool yes", "!!timestamp 2001-01-01"] {
            assert!(values(&format!("k: {wrong}")).unwrap_err().contains("remove the tag"), "{wrong}");
        }
    }
}
