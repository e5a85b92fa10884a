//! Finds the comments in Rust source text, and the links of a page of Markdown.

use std::ops::Range;

/// Returns the target of each link `[text](target)`, with its line number. Links in code blocks are left out.
pub(crate) fn markdown_links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut in_block = false;
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        }
        for (at, _) in line.match_indices("](").filter(|_| !in_block) {
            let rest = &line[at + 2..];
            found.extend(rest.find(')').map(|end| (number, rest[..end].split(' ').next().unwrap_or_default())));
        }
    }
    found
}

/// The kind of a piece of Rust text that is not code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Comment,
    String,
    RawString,
    Char,
}

/// Returns the comments and literals of the text, in order, each with its range of bytes.
pub(crate) fn pieces(text: &str) -> Vec<(Piece, Range<usize>)> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let piece = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => Some((Piece::Comment, find(bytes, at, b"\n"))),
            b'/' if bytes[at..].starts_with(b"/*") => Some((Piece::Comment, block_comment_end(bytes, at))),
            b'"' => Some((Piece::String, string_end(bytes, at).min(bytes.len()))),
            b'r' if at == 0 || !is_word(bytes[at - 1]) || bytes[at - 1] == b'b' => {
                raw_string_end(bytes, at).map(|end| (Piece::RawString, end))
            }
            b'\'' => char_end(bytes, at).map(|end| (Piece::Char, end)),
            _ => None,
        };
        let end = piece.map_or(at, |(_, end)| end).max(at + 1);
        found.extend(piece.map(|(kind, _)| (kind, at..end)));
        at = end;
    }
    found
}

fn find(bytes: &[u8], from: usize, what: &[u8]) -> usize {
    bytes[from..].windows(what.len()).position(|window| window == what).map_or(bytes.len(), |at| from + at)
}

fn block_comment_end(bytes: &[u8], from: usize) -> usize {
    let (mut depth, mut at) = (0, from);
    while at + 1 < bytes.len() {
        match &bytes[at..at + 2] {
            b"/*" => depth += 1,
            b"*/" => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return at;
        }
    }
    bytes.len()
}

fn string_end(bytes: &[u8], from: usize) -> usize {
    let mut at = from + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn raw_string_end(bytes: &[u8], from: usize) -> Option<usize> {
    let hashes = bytes[from + 1..].iter().take_while(|byte| **byte == b'#').count();
    if bytes.get(from + 1 + hashes) != Some(&b'"') {
        return None;
    }
    let close = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
    Some((find(bytes, from + 2 + hashes, &close) + close.len()).min(bytes.len()))
}

/// Returns the end of a character literal. Returns `None` for a lifetime such as `'a`, which has no second quote.
fn char_end(bytes: &[u8], from: usize) -> Option<usize> {
    let len = match bytes.get(from + 1)? {
        b'\\' => return bytes[from + 3..].iter().position(|byte| *byte == b'\'').map(|at| from + 3 + at + 1),
        byte if byte.is_ascii() => 1,
        _ => bytes[from + 1..].iter().take(4).position(|byte| *byte == b'\'')?,
    };
    (bytes.get(from + 1 + len) == Some(&b'\'')).then_some(from + len + 2)
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

#[test]
fn comments_are_distinguished_from_literals() {
    let text = "fn a<'l>() {\n  let _ = (\"// \\\" b\", r#\"\"// c\"#, '{', '\\'', b'}', '\\u{7b}', 'é'); // d\n}\n/* /* { */ e */\n";
    let comments = pieces(text).into_iter().filter(|(piece, _)| *piece == Piece::Comment);
    let found: Vec<&str> = comments.map(|(_, range)| &text[range]).collect();
    assert_eq!(found, ["// d", "/* /* { */ e */"]);
}

#[test]
fn links_of_a_page() {
    let links = markdown_links("[a](b.md#c) and [d](https://e \"t\")\n```\n[x](y)\n```\n");
    assert_eq!(links, [(1, "b.md#c"), (1, "https://e")]);
}
