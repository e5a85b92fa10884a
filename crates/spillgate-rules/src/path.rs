//! The path of a rule as text. Two rules have the same text only if they have the same keys and values.

use std::fmt;

/// What is between two levels of a path.
const SEPARATOR: &str = " > ";

/// One level of a path as text: `user_id=vip*`, or only the key if there is no value. A key or a value that could be
/// taken for something else is in double quotes, where a `"` or a `\` has a `\` before it.
///
/// ```
/// use spillgate::rules::PathStep;
/// assert_eq!(PathStep("user_id", Some("vip*")).to_string(), "user_id=vip*");
/// assert_eq!(PathStep("a=b", None).to_string(), r#""a=b""#);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathStep<'a>(pub &'a str, pub Option<&'a str>);

impl fmt::Display for PathStep<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PathStep(key, value) = *self;
        write_part(f, key, key.contains('='))?;
        value.map_or(Ok(()), |value| {
            f.write_str("=")?;
            write_part(f, value, false)
        })
    }
}

fn write_part(f: &mut fmt::Formatter<'_>, text: &str, is_unclear: bool) -> fmt::Result {
    if !is_unclear && !text.starts_with('"') && !text.contains(" >") {
        return f.write_str(text);
    }
    write!(f, "\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Returns a whole path as text, for example `user_id=vip* > path`.
///
/// ```
/// use spillgate::rules::{PathStep, path_text};
/// assert_eq!(path_text([PathStep("user_id", Some("vip*")), PathStep("path", None)]), "user_id=vip* > path");
/// ```
pub fn path_text<'a>(steps: impl IntoIterator<Item = PathStep<'a>>) -> String {
    let mut text = String::new();
    for step in steps {
        if !text.is_empty() {
            text.push_str(SEPARATOR);
        }
        text.push_str(&step.to_string());
    }
    text
}

/// Returns the keys of a path from its text.
///
/// ```
/// use spillgate::rules::path_keys;
/// assert_eq!(path_keys(r#"user_id=vip* > "a=b"=c > path"#), ["user_id", "a=b", "path"]);
/// ```
#[must_use]
pub fn path_keys(mut text: &str) -> Vec<String> {
    let mut keys = Vec::new();
    loop {
        let (key, rest) = read_part(text, &["=", SEPARATOR]);
        keys.push(key);
        let rest = rest.strip_prefix('=').map_or(rest, |value| read_part(value, &[SEPARATOR]).1);
        match rest.strip_prefix(SEPARATOR) {
            Some(next) => text = next,
            None => return keys,
        }
    }
}

/// Reads a key or a value, which ends where it is closed, or before the first of `ends`. Returns it and the rest.
fn read_part<'a>(text: &'a str, ends: &[&str]) -> (String, &'a str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = ends.iter().filter_map(|end| text.find(end)).min().unwrap_or(text.len());
        return (text[..end].to_owned(), &text[end..]);
    };
    let (mut part, mut characters) = (String::new(), quoted.char_indices());
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return (part, &quoted[at + 1..]),
            '\\' => part.extend(characters.next().map(|(_, escaped)| escaped)),
            other => part.push(other),
        }
    }
    (part, "")
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// All paths of one or two levels with parts from a list of texts that could be mixed up.
    #[test]
    fn two_paths_have_two_texts_and_their_keys_are_read() {
        let parts = ["a", "a=b", "=", ">", " >", "> ", " > ", "a > b", "\"", "\"a\"", "a\"", "\\", "a\\\"=", "", " "];
        let values = || std::iter::once(None).chain(parts.map(Some));
        let steps: Vec<_> = parts.iter().flat_map(|key| values().map(|value| PathStep(key, value))).collect();
        let alone = steps.iter().map(|step| vec![*step]);
        let paths = alone.chain(steps.iter().flat_map(|first| steps.iter().map(|second| vec![*first, *second])));
        let mut seen = HashMap::new();
        // A key always has a text.
        for path in paths.filter(|path| path.iter().all(|step| !step.0.is_empty())) {
            let text = path_text(path.iter().copied());
            assert_eq!(path_keys(&text), path.iter().map(|step| step.0).collect::<Vec<_>>(), "{text}");
            if let Some(other) = seen.insert(text.clone(), path.clone()) {
                panic!("{text} is the text of {other:?} and of {path:?}");
            }
        }
    }
}
