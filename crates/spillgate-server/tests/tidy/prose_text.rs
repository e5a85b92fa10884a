//! Finds the prose of a file (comments, docstrings, pages), and splits it into sentences.
//!
//! If code were read as prose, every second line of code would be reported as a long sentence.

use super::rust_source::{self, Piece};

/// A paragraph, list item or table cell. The end of a block also ends its last sentence.
pub(crate) struct Block {
    /// The characters of the block, each with its line number.
    text: Vec<(char, usize)>,
}

pub(crate) struct Sentence {
    /// The line on which the sentence begins.
    pub(crate) line: usize,
    /// The first words, by which a person finds the sentence.
    pub(crate) start: String,
    /// Whether the text begins with a capital letter, and is no question. Other text, for example code, is no sentence.
    pub(crate) is_sentence: bool,
    /// The number of words. A word is the text between two spaces, and a code span counts as one word.
    pub(crate) count: usize,
}

/// This character replaces each code span, so that it counts as one word.
const CODE: char = '\u{e000}';

const ABBREVIATIONS: [&str; 5] = ["e.g.", "i.e.", "vs.", "cf.", "etc."];

/// Returns whether this module can find the prose in files with this name.
pub(crate) fn is_read(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let endings = [".rs", ".md", ".lua", ".sh", ".py", ".yaml", ".yml", ".toml", ".conf", ".proto"];
    endings.iter().any(|ending| path.ends_with(ending)) || ["Makefile", "Caddyfile"].contains(&name)
}

pub(crate) fn blocks(path: &str, text: &str) -> Vec<Block> {
    let mut found = Vec::new();
    match path.rsplit('.').next().unwrap_or_default() {
        "rs" => {
            rust_comments(text, &mut found);
        }
        "md" => page(written(text), &mut found),
        ending => script(ending, text, &mut found),
    }
    found
}

fn rust_comments(text: &str, found: &mut Vec<Block>) {
    let (mut group, mut group_mark): (Vec<(usize, &str)>, &str) = (Vec::new(), "");
    for (_, range) in rust_source::pieces(text).into_iter().filter(|(piece, _)| *piece == Piece::Comment) {
        let line = line_at(text, range.start);
        let comment = &text[range.clone()];
        let alone = text[..range.start].rsplit('\n').next().is_some_and(|before| before.trim().is_empty());
        let marks = ["//!", "///", "//", ""];
        let mark = marks.into_iter().find(|mark| comment.starts_with(mark)).unwrap_or_default();
        let follows = group.last().is_some_and(|(last, _)| last + 1 == line);
        if !(follows && alone && mark == group_mark) {
            page(std::mem::take(&mut group).into_iter(), found);
        }
        group_mark = if alone { mark } else { "after code" };
        let lines =
            comment[mark.len()..].lines().map(|l| if mark.is_empty() { l.trim().trim_matches(['*', '/']) } else { l });
        group.extend((line..).zip(lines).map(|(line, text)| (line, text.strip_prefix(' ').unwrap_or(text))));
    }
    page(group.into_iter(), found);
}

/// Finds the comments of a script or a configuration file, and the docstrings of a Python file.
fn script(ending: &str, text: &str, found: &mut Vec<Block>) {
    let mark = match ending {
        "lua" => "--",
        "proto" => "//",
        _ => "#",
    };
    let (mut group, mut group_alone) = (Vec::new(), false);
    let (mut docstring, mut in_docstring) = (Vec::new(), false);
    for (line, text) in (1..).zip(text.lines()) {
        let edge = ending == "py" && text.matches("\"\"\"").count() == 1;
        if in_docstring || edge || text.trim_start().starts_with("\"\"\"") {
            docstring.push((line, text.trim().trim_matches('"')));
            in_docstring ^= edge;
            if !in_docstring {
                page(std::mem::take(&mut docstring).into_iter(), found);
            }
            continue;
        }
        let at = comment_start(text, mark).unwrap_or(text.len());
        let (code, comment) = text.split_at(at);
        let alone = code.trim().is_empty();
        if !(alone && group_alone) || comment.is_empty() {
            page(std::mem::take(&mut group).into_iter(), found);
        }
        group_alone = alone;
        if !comment.is_empty() && !comment.starts_with("#!") {
            let comment = comment.trim_start_matches(mark);
            group.push((line, comment.strip_prefix(' ').unwrap_or(comment)));
        }
    }
    page(group.into_iter(), found);
}

/// Returns where the comment of a line begins. A comment begins at the start of the line or after a space, and not in a string.
fn comment_start(line: &str, mark: &str) -> Option<usize> {
    let (mut quote, mut last) = (None, ' ');
    for (at, c) in line.char_indices() {
        match quote {
            Some(open) if c == open && last != '\\' => quote = None,
            Some(_) => {}
            None if last.is_whitespace() && line[at..].starts_with(mark) => return Some(at),
            None if c == '"' || (c == '\'' && !last.is_alphanumeric()) => quote = Some(c),
            None => {}
        }
        last = c;
    }
    None
}

/// Returns the lines of a page without its generated tables. The texts of these tables come from the code, and are checked there.
fn written(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_made = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        is_made = line.starts_with("<!-- table: ") || is_made && !line.starts_with("<!-- end of table");
        !is_made
    })
}

/// Finds the blocks of Markdown text. Code blocks are left out.
fn page<'t>(lines: impl Iterator<Item = (usize, &'t str)>, found: &mut Vec<Block>) {
    let mut open: Vec<(usize, &str)> = Vec::new();
    let (mut in_code, mut in_list, mut after_blank) = (false, false, true);
    let mut flush = |open: &mut Vec<(usize, &'t str)>| {
        if !open.is_empty() {
            found.push(Block::new(open.drain(..)));
        }
    };
    for (number, line) in lines {
        let text = line.trim_start_matches([' ', '>']);
        let indented = line.starts_with("    ") && after_blank && !in_list;
        let fence = text.starts_with("```") || text.starts_with("~~~");
        after_blank = text.is_empty() || (indented && after_blank);
        if fence || text.is_empty() || in_code || indented || text.starts_with("{{#") {
            in_code ^= fence;
            flush(&mut open);
            continue;
        }
        let item = list_item(text);
        if item.is_some() || text.starts_with(['#', '|']) || is_definition(text) {
            flush(&mut open);
        }
        if open.is_empty() {
            in_list = item.is_some() || (in_list && line.starts_with(' '));
        }
        if text.starts_with('|') {
            for cell in cells(text) {
                open.push((number, cell));
                flush(&mut open);
            }
            continue;
        }
        open.push((number, item.unwrap_or(text)));
        if text.starts_with('#') {
            flush(&mut open);
        }
    }
    flush(&mut open);
}

/// Returns the text after `* `, `- `, `+ ` or `1. `. Returns `None` if the line begins with none of these marks.
fn list_item(text: &str) -> Option<&str> {
    let bullet = text.strip_prefix(['*', '-', '+']);
    let rest = bullet.or_else(|| {
        let after = text.trim_start_matches(|c: char| c.is_ascii_digit());
        after.strip_prefix(['.', ')']).filter(|_| after.len() < text.len())
    });
    rest?.strip_prefix(' ')
}

/// Returns whether the text is a definition such as `KEYS     the keys of the script`.
fn is_definition(text: &str) -> bool {
    let capitals = text.chars().take_while(char::is_ascii_uppercase).count();
    capitals > 1 && text.contains("  ")
}

/// Splits a row of a table at each `|` that is not in a code span.
fn cells(row: &str) -> Vec<&str> {
    let (mut found, mut start, mut in_span) = (Vec::new(), 0, false);
    for (at, c) in row.char_indices() {
        in_span ^= c == '`';
        if c == '|' && !in_span && !row[..at].ends_with('\\') {
            found.push(&row[start..at]);
            start = at + 1;
        }
    }
    found.push(&row[start..]);
    found
}

fn line_at(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

impl Block {
    fn new<'t>(lines: impl Iterator<Item = (usize, &'t str)>) -> Block {
        let text = lines.flat_map(|(line, text)| text.chars().chain([' ']).map(move |c| (c, line))).collect();
        Block { text }
    }

    pub(crate) fn sentences(&self) -> Vec<Sentence> {
        let text = without_targets(&without_code(&self.text));
        let mut found: Vec<Sentence> = Vec::new();
        let mut ended = true;
        for chunk in text.split(|(c, _)| c.is_whitespace()) {
            let Some((_, line)) = chunk.first() else { continue };
            if ended {
                found.push(Sentence { line: *line, start: String::new(), is_sentence: false, count: 0 });
            }
            let Some(sentence) = found.last_mut() else { continue };
            let word: String = chunk.iter().map(|(c, _)| if *c == CODE { '`' } else { *c }).collect();
            if let Some(first) = word.chars().find(|c| c.is_alphanumeric() || *c == '`') {
                sentence.is_sentence |= sentence.count == 0 && first.is_uppercase();
                sentence.count += 1;
            }
            if sentence.count <= 6 {
                sentence.start.extend([word.as_str(), " "]);
            }
            let bare = word.trim_end_matches([')', ']', '"', '\'', '*', '_', '\u{201d}']);
            sentence.is_sentence &= !bare.ends_with('?');
            ended =
                bare.ends_with(['.', '?', '!']) && !ABBREVIATIONS.contains(&bare.trim_start_matches(['(', '[', '"']));
        }
        found
    }
}

/// Replaces each code span of the text by one [`CODE`].
fn without_code(text: &[(char, usize)]) -> Vec<(char, usize)> {
    let ticks = |at: usize| text[at..].iter().take_while(|(c, _)| *c == '`').count();
    let mut kept = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let count = ticks(at);
        let mut close = at + count;
        while count > 0 && close < text.len() && ticks(close) != count {
            close += ticks(close).max(1);
        }
        if count > 0 && close < text.len() {
            kept.push((CODE, text[at].1));
            at = close + count;
        } else {
            kept.push(text[at]);
            at += 1;
        }
    }
    kept
}

/// Replaces each link `[text](target)` by `[text]`.
fn without_targets(text: &[(char, usize)]) -> Vec<(char, usize)> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < text.len() {
        kept.push(text[at]);
        at += 1;
        if text[at - 1].0 == ']' && text.get(at).is_some_and(|(c, _)| *c == '(') {
            let target = text[at..].iter().position(|(c, _)| *c == ')');
            at += target.map_or(0, |end| end + 1);
        }
    }
    kept
}
