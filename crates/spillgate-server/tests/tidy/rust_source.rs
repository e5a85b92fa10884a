//! Reads Rust source text, as far as the rules in `tidy.rs` need it. Finds the code without comments and strings, the
//! functions, and the paths that the code names.

use std::ops::Range;

/// One file of Rust.
pub(crate) struct Source {
    /// The path of the file, relative to the root of the repository.
    pub(crate) path: String,
    /// The text of the file, in which spaces replace each comment, string and character literal. The number of lines
    /// stays the same.
    pub(crate) code: String,
    /// `code` without the items that are compiled for tests only.
    pub(crate) shipped_code: String,
    /// The names of modules that have their own files and are compiled for tests only.
    pub(crate) test_modules: Vec<String>,
}

/// One name that a `use` brings into a module.
pub(crate) struct Import {
    pub(crate) line: usize,
    /// Whether the `use` is a re-export (`pub use`).
    pub(crate) public: bool,
    pub(crate) path: String,
    /// The name in this module, or `*` for a glob import.
    pub(crate) name: String,
}

/// The name of a function, its first line and its number of lines.
pub(crate) struct Function<'s> {
    pub(crate) name: &'s str,
    pub(crate) line: usize,
    pub(crate) lines: usize,
}

impl Source {
    pub(crate) fn new(path: String, text: String) -> Source {
        let code = blanked(&text);
        let mut shipped = code.clone().into_bytes();
        let mut test_modules = Vec::new();
        for (at, _) in code.match_indices("#[cfg(").filter(|(at, _)| is_for_tests(&code[*at..])) {
            let item = &code[at..at + item_len(&code[at..])];
            let module = item.rsplit("mod ").next().and_then(|name| name.strip_suffix(';'));
            test_modules.extend(module.filter(|name| name.chars().all(is_word)).map(str::to_owned));
            for byte in shipped[at..at + item.len()].iter_mut().filter(|byte| **byte != b'\n') {
                *byte = b' ';
            }
        }
        let shipped_code = String::from_utf8(shipped).expect("only whole items are replaced by spaces");
        Source { path, code, shipped_code, test_modules }
    }

    /// Returns all functions that have a body.
    pub(crate) fn functions(&self) -> Vec<Function<'_>> {
        let mut found = Vec::new();
        for (at, _) in self.code.match_indices("fn ") {
            if self.code[..at].chars().next_back().is_some_and(is_word) {
                continue;
            }
            let rest = &self.code[at + 3..];
            let name = &rest[..rest.find(|c| !is_word(c)).unwrap_or(rest.len())];
            // A function type `fn (..)` has no name, and a declaration has no body. Both are left out.
            let (Some(open), semicolon) = (rest.find('{'), rest.find(';')) else { continue };
            if name.is_empty() || semicolon.is_some_and(|at| at < open && !in_brackets(&rest[..at])) {
                continue;
            }
            let lines = rest[..open + block_len(&rest[open..])].lines().count();
            found.push(Function { name, line: self.line_at(at), lines });
        }
        found
    }

    /// Returns every path of two or more segments in shipped code, and the full path of each item of each `use`. For example,
    /// `use a::{b, c::d}` names `a::b` and `a::c::d`. A path that begins with `super` is changed to begin with `crate`.
    pub(crate) fn paths(&self) -> Vec<(usize, String)> {
        let (imports, mut found) = self.imports_and_paths();
        found.extend(imports.into_iter().map(|import| (import.line, import.path)));
        found.sort();
        found
    }

    /// Returns every item of each `use` in shipped code. Also returns every path of two or more segments that is not in a `use`.
    pub(crate) fn imports_and_paths(&self) -> (Vec<Import>, Vec<(usize, String)>) {
        let code = self.shipped_code.as_str();
        let (mut imports, mut paths) = (Vec::new(), Vec::new());
        let mut at = 0;
        while let Some(start) = code[at..].find(|c: char| c.is_ascii_alphabetic() || c == '_').map(|n| n + at) {
            let len = code[start..].find(|c| !is_word(c)).unwrap_or(code.len() - start);
            let word = &code[start..start + len];
            at = start + len;
            let line = self.line_at(start);
            if word == "use" && code[at..].starts_with(' ') {
                let end = code[at..].find(';').map_or(code.len(), |n| n + at);
                let visibility = code[..start].rsplit(['\n', ';', '}']).next().unwrap_or_default();
                let public = visibility.trim_start().starts_with("pub");
                let mut items = Vec::new();
                use_items("", code[at..end].trim(), &mut items);
                imports.extend(items.into_iter().map(|(path, name)| Import {
                    line,
                    public,
                    path: self.resolved(&path),
                    name,
                }));
                at = end;
            } else if code[at..].starts_with("::") && !code[..start].ends_with("::") {
                let path = |c: char| is_word(c) || c == ':';
                let end = code[start..].find(|c| !path(c)).map_or(code.len(), |n| n + start);
                paths.push((line, self.resolved(code[start..end].trim_end_matches(':'))));
                at = end;
            }
        }
        (imports, paths)
    }

    fn line_at(&self, at: usize) -> usize {
        self.code[..at].matches('\n').count() + 1
    }

    /// Changes a path that begins with `super` or `self`: `super::x` in `src/a/b.rs` becomes `crate::a::x`.
    fn resolved(&self, path: &str) -> String {
        let inside = self.path.split_once("/src/").map_or("", |(_, inside)| inside).trim_end_matches(".rs");
        let inside = inside.strip_suffix("/mod").unwrap_or(inside);
        let mut module: Vec<&str> = inside.split('/').filter(|m| !matches!(*m, "" | "lib" | "main")).collect();
        let mut rest = path;
        if let Some(own) = rest.strip_prefix("self::") {
            rest = own;
        } else if !rest.starts_with("super::") {
            return rest.to_owned();
        }
        while let Some(above) = rest.strip_prefix("super::") {
            module.pop();
            rest = above;
        }
        module.insert(0, "crate");
        module.push(rest);
        module.join("::")
    }
}

/// Returns whether an attribute says that its item is compiled for tests only.
fn is_for_tests(attribute: &str) -> bool {
    attribute.starts_with("#[cfg(test)]") || attribute.starts_with("#[cfg(all(test,")
}

/// Returns the length of an item with its attributes. An item ends with its first `;` or with its block,
/// whichever comes first.
fn item_len(code: &str) -> usize {
    let head = code.find(']').map_or(0, |end| end + 1);
    let (open, semicolon) = (code[head..].find('{'), code[head..].find(';'));
    match (open, semicolon) {
        (Some(open), Some(semicolon)) if semicolon < open => head + semicolon + 1,
        (Some(open), _) => head + open + block_len(&code[head + open..]),
        (None, semicolon) => semicolon.map_or(code.len(), |at| head + at + 1),
    }
}

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

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns whether the text ends inside brackets such as `[..; n]` or `(..)`.
fn in_brackets(text: &str) -> bool {
    let count = |open, close| text.matches::<char>(open).count() > text.matches::<char>(close).count();
    count('[', ']') || count('(', ')')
}

/// Returns the length of the block that begins with the first `{`.
fn block_len(code: &str) -> usize {
    let mut depth = 0usize;
    for (at, byte) in code.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' if depth <= 1 => return at + 1,
            b'}' => depth -= 1,
            _ => {}
        }
    }
    code.len()
}

/// Adds the full path of each item of a `use`, with the name that the item gets in this module.
fn use_items(prefix: &str, tree: &str, items: &mut Vec<(String, String)>) {
    let tree = tree.trim();
    let Some(open) = tree.find('{') else {
        let (path, alias) = tree.split_once(" as ").unwrap_or((tree, ""));
        let path = format!("{prefix}{}", path.trim()).trim_end_matches("::self").to_owned();
        let name = if alias.is_empty() { path.rsplit("::").next().unwrap_or_default() } else { alias.trim() };
        items.push((path.clone(), name.to_owned()));
        return;
    };
    let prefix = format!("{prefix}{}", &tree[..open]);
    let (mut depth, mut start) = (0, open + 1);
    let end = tree.rfind('}').unwrap_or(tree.len());
    for (at, byte) in tree.bytes().enumerate().take(end).skip(open + 1) {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b',' if depth == 0 => {
                use_items(&prefix, &tree[start..at], items);
                start = at + 1;
            }
            _ => {}
        }
    }
    if !tree[start..end].trim().is_empty() {
        use_items(&prefix, &tree[start..end], items);
    }
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
            b'r' if at == 0 || !is_word(bytes[at - 1] as char) || bytes[at - 1] == b'b' => {
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

/// Replaces comments, strings and character literals by spaces.
fn blanked(text: &str) -> String {
    let mut out = text.as_bytes().to_vec();
    for (_, range) in pieces(text) {
        for byte in out[range].iter_mut().filter(|byte| **byte != b'\n') {
            *byte = b' ';
        }
    }
    String::from_utf8(out).expect("only whole characters are replaced by spaces")
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

#[test]
fn code_is_distinguished_from_text() {
    let text = "fn a<'l>() {\n  let _ = (\"fn b() { \\\" todo!\", r#\"\"dbg!\"#, '{', '\\'', b'}', '\\u{7b}', 'é'); // fn c()\n}\n/* /* { */ dbg! */\nfn d(x: [u8; 2]) {}\nfn e();\n";
    let source = Source::new(String::from("crates/x/src/a/b.rs"), text.to_owned());
    let functions: Vec<_> = source.functions().iter().map(|f| (f.name, f.line, f.lines)).collect();
    assert_eq!(functions, [("a", 1, 3), ("d", 5, 1)]);
    assert!(!source.code.contains("dbg!") && !source.code.contains("todo!"));
}

#[test]
fn paths_are_reported_in_full() {
    let text = "use crate::{Quota, rules::{self, yaml as y}};\nuse super::c::D;\nfn f() { std::fs::read(x); a.b::<u8>(); }\n#[cfg(test)]\nmod tests { use std::thread; }\n#[cfg(test)]\nmod model;\npub use self::e::F as G;\n";
    let source = Source::new(String::from("crates/x/src/a/b.rs"), text.to_owned());
    let paths: Vec<_> = source.paths().into_iter().map(|(_, path)| path).collect();
    let first = ["crate::Quota", "crate::rules", "crate::rules::yaml", "crate::a::c::D"];
    assert_eq!(paths, [&first[..], &["b", "std::fs::read", "crate::a::b::e::F"]].concat());
    let (imports, _) = source.imports_and_paths();
    let names: Vec<_> = imports.iter().map(|import| (import.name.as_str(), import.public)).collect();
    assert_eq!(names, [("Quota", false), ("rules", false), ("y", false), ("D", false), ("G", true)]);
    assert_eq!(source.test_modules, ["model"]);
}

#[test]
fn links_of_a_page() {
    let links = markdown_links("[a](b.md#c) and [d](https://e \"t\")\n```\n[x](y)\n```\n");
    assert_eq!(links, [(1, "b.md#c"), (1, "https://e")]);
}
