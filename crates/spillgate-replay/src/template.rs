//! Makes the descriptors of a request from the fields of a log line.
//!
//! A template is a descriptor whose values have fields in braces, such as `remote_address={remote_addr}`.

use std::fmt;

use spillgate::rules::{Action, Request};

/// The descriptors of each request, with fields to fill in.
#[derive(Debug, Default)]
pub struct Templates {
    descriptors: Vec<Vec<Entry>>,
    fields: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    key: String,
    value: Vec<Part>,
}

#[derive(Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    /// The index of a field in the list of all fields.
    Field(usize),
}

/// What is wrong with a template, and how to fix it.
#[derive(Debug, PartialEq, Eq)]
pub struct TemplateError {
    pub template: String,
    pub message: &'static str,
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the descriptor `{}` is wrong: {}", self.template, self.message)
    }
}

impl TemplateError {
    /// How to write a template.
    pub const HELP: &'static str = "write KEY={FIELD}, such as remote_address={remote_addr} or route={method} {path}, with commas \
                                    between entries. Write \\, \\= \\{ \\} and \\\\ for these characters themselves";
}

/// The values of one line. Each line reuses the memory of the line before.
#[derive(Debug, Default)]
pub struct Filled {
    /// One value for each entry of each descriptor, in order.
    values: Vec<String>,
    /// For each descriptor, whether the line has all fields that it needs.
    complete: Vec<bool>,
}

impl Templates {
    /// Parses templates, such as `remote_address={remote_addr}`.
    ///
    /// # Errors
    /// A template is not written as [`TemplateError::HELP`] says.
    pub fn parse(texts: &[String]) -> Result<Templates, TemplateError> {
        let mut templates = Templates::default();
        for text in texts {
            let error = |message| TemplateError { template: text.clone(), message };
            let entries = templates.entries(text).map_err(error)?;
            if templates.descriptors.contains(&entries) {
                return Err(error("it is given twice"));
            }
            templates.descriptors.push(entries);
        }
        Ok(templates)
    }

    /// Returns the names of all fields. [`fill`](Templates::fill) asks for their values by their indexes.
    #[must_use]
    pub fn fields(&self) -> &[String] {
        &self.fields
    }

    fn entries(&mut self, text: &str) -> Result<Vec<Entry>, &'static str> {
        let mut entries = Vec::new();
        let mut rest = text;
        loop {
            let (key, after) = piece(rest, &['=', ',', '{', '}'])?;
            if key.is_empty() || !after.starts_with('=') {
                return Err("an entry is KEY=VALUE, and its key has no braces");
            }
            let mut value = Vec::new();
            rest = &after[1..];
            loop {
                let (plain, after) = piece(rest, &[',', '{', '}'])?;
                if !plain.is_empty() {
                    value.push(Part::Text(plain));
                }
                let Some(field) = after.strip_prefix('{') else {
                    rest = after;
                    break;
                };
                let (name, after) = field.split_once('}').ok_or("a brace is not closed")?;
                value.push(Part::Field(self.field(name)?));
                rest = after;
            }
            if value.is_empty() {
                return Err("an entry has no value");
            }
            entries.push(Entry { key, value });
            match rest.strip_prefix(',') {
                Some(next) => rest = next,
                None if rest.is_empty() => return Ok(entries),
                None => return Err("a closing brace has no opening one"),
            }
        }
    }

    /// Returns the index of a field, and adds the field if it is new.
    fn field(&mut self, name: &str) -> Result<usize, &'static str> {
        if name.is_empty() || name.contains('{') {
            return Err("a field has no name");
        }
        let known = self.fields.iter().position(|field| field == name);
        Ok(known.unwrap_or_else(|| {
            self.fields.push(name.to_owned());
            self.fields.len() - 1
        }))
    }

    /// Fills in the values of a line. `value` returns the value of the field with this index.
    pub fn fill<'f>(&self, filled: &mut Filled, value: impl Fn(usize) -> Option<&'f str>) {
        filled.complete.clear();
        let mut used = 0;
        for entries in &self.descriptors {
            let mut complete = true;
            for entry in entries {
                if filled.values.len() == used {
                    filled.values.push(String::new());
                }
                let text = &mut filled.values[used];
                used += 1;
                text.clear();
                for part in &entry.value {
                    match part {
                        Part::Text(plain) => text.push_str(plain),
                        Part::Field(index) => match value(*index) {
                            Some(value) => text.push_str(value),
                            None => complete = false,
                        },
                    }
                }
            }
            filled.complete.push(complete);
        }
    }

    /// Returns the request of a line. A descriptor that lacks a field is left out, as Envoy does. Returns `None` if no
    /// descriptor is left.
    #[must_use]
    pub fn request<'r>(&'r self, domain: &'r str, filled: &'r Filled) -> Option<Request<'r>> {
        let mut request = Request::new(domain);
        let mut values = filled.values.iter();
        for (entries, complete) in self.descriptors.iter().zip(&filled.complete) {
            let own = values.by_ref().take(entries.len());
            let pairs = entries.iter().zip(own).map(|(entry, value)| (&*entry.key, &**value));
            if *complete {
                request.add(pairs, Action::Take(1), None);
            } else {
                pairs.for_each(drop);
            }
        }
        let is_empty = request.descriptors().len() == 0;
        (!is_empty).then_some(request)
    }
}

/// Returns the text before the first of `ends`, and the rest, which begins with this end. After a backslash, a special
/// character is a part of the text.
fn piece<'t>(text: &'t str, ends: &[char]) -> Result<(String, &'t str), &'static str> {
    let mut plain = String::new();
    let mut characters = text.char_indices();
    while let Some((at, c)) = characters.next() {
        match c {
            '\\' => match characters.next() {
                Some((_, escaped @ (',' | '=' | '\\' | '{' | '}'))) => plain.push(escaped),
                _ => return Err("a backslash can only be before one of , = { } and another backslash"),
            },
            c if ends.contains(&c) => return Ok((plain, &text[at..])),
            c => plain.push(c),
        }
    }
    Ok((plain, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Templates, TemplateError> {
        Templates::parse(&[text.to_owned()])
    }

    fn filled(text: &str, value: impl Fn(&str) -> Option<&'static str>) -> Vec<(String, String)> {
        let templates = parse(text).expect(text);
        let mut filled = Filled::default();
        templates.fill(&mut filled, |index| value(&templates.fields()[index]));
        let request = templates.request("d", &filled);
        let entries = request.iter().flat_map(|request| request.descriptors().next()).flat_map(|it| it.entries);
        entries.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn fields_are_filled_in() {
        let value = |name: &str| Some(if name == "method" { "GET" } else { "/x" });
        let pairs = |text| filled(text, value).into_iter().map(|(k, v)| format!("{k}|{v}")).collect::<Vec<_>>();
        assert_eq!(pairs("path={path}"), ["path|/x"]);
        assert_eq!(pairs("route={method} {path},kind=web"), ["route|GET /x", "kind|web"]);
        assert_eq!(pairs(r"a\=b=\{path\}\,{path}=\\"), [r"a=b|{path},/x=\"]);
    }

    #[test]
    fn a_descriptor_without_a_field_is_left_out() {
        assert!(filled("a={x},b={y}", |name| (name == "x").then_some("1")).is_empty());
        let texts = ["a={x},b={y}", "c={x}", "d={y}"].map(str::to_owned);
        let templates = Templates::parse(&texts).expect("the templates are right");
        assert_eq!(templates.fields(), ["x", "y"]);
        let mut filled = Filled::default();
        for missing in [0, 1, 2] {
            templates.fill(&mut filled, |index| (index != missing).then_some("v"));
            let request = templates.request("d", &filled);
            let keys: Vec<_> =
                request.iter().flat_map(|it| it.descriptors()).map(|descriptor| descriptor.entries[0].0).collect();
            assert_eq!(keys, [&["d"][..], &["c"], &["a", "c", "d"]][missing]);
        }
        templates.fill(&mut filled, |_| None);
        assert!(templates.request("d", &filled).is_none());
    }

    #[test]
    fn wrong_templates_are_errors() {
        for text in [
            "", "a", "a=", "=x", "a={", "a={}", "a={x", "a=x}", "a={x},", "a={x}}", "{x}=a", r"a=\n", "a=\\", "a={{x}}",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
