//! Makes the descriptors of a request from the fields of a log line.
//!
//! A template is a descriptor whose values have fields in braces, such as `remote_address={remote_addr}`.

use std::borrow::Cow;
use std::fmt;

use spillgate::rules::{Action, Request};

use super::modifier::{ClientSettings, Modifier, Seen};

/// The field with the address of the connection.
const PEER: &str = "remote_addr";

/// The descriptors of each request, with fields to fill in.
#[derive(Debug, Default)]
pub struct Templates {
    descriptors: Vec<Vec<Entry>>,
    fields: Vec<String>,
    settings: ClientSettings,
}

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    key: String,
    value: Vec<Part>,
}

#[derive(Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    /// The index of a field in the list of all fields, and what is made of its value.
    Field(usize, Vec<Modifier>),
}

/// What is wrong with a template, and how to fix it.
#[derive(Debug, PartialEq, Eq)]
pub struct TemplateError {
    pub template: String,
    pub message: String,
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the descriptor `{}` is wrong: {}", self.template, self.message)
    }
}

impl TemplateError {
    /// How to write a template.
    pub const HELP: &'static str = "write KEY={FIELD}, such as remote_address={remote_addr} or route={method} {path}, with commas \
                                    between entries. Write {FIELD|MODIFIER} to change a value, such as {remote_addr|network}. Write \\, \\= \\{ \\} \
                                    and \\\\ for these characters themselves";
}

/// The values of one line. Each line reuses the memory of the line before.
#[derive(Debug, Default)]
pub struct Filled {
    /// One value for each entry of each descriptor, in order.
    values: Vec<String>,
    /// For each descriptor, whether the line has all fields that it needs.
    complete: Vec<bool>,
    /// What the values of each field of each template look like, in the order of the templates.
    seen: Vec<Seen>,
}

impl Templates {
    /// Parses templates, such as `remote_address={remote_addr}`. `settings` say how a server counts clients.
    ///
    /// # Errors
    /// A template is not written as [`TemplateError::HELP`] says, or it needs trusted proxies that `settings` do not
    /// have.
    pub fn parse(texts: &[String], settings: ClientSettings) -> Result<Templates, TemplateError> {
        let mut templates = Templates { settings, ..Templates::default() };
        for text in texts {
            let error = |message| TemplateError { template: text.clone(), message };
            let entries = templates.entries(text).map_err(error)?;
            if templates.descriptors.contains(&entries) {
                return Err(error("it is given twice".into()));
            }
            templates.descriptors.push(entries);
        }
        Ok(templates)
    }

    /// Returns the names of all fields that the templates name. [`fill`](Templates::fill) asks for their values by their
    /// indexes.
    #[must_use]
    pub fn fields(&self) -> &[String] {
        &self.fields
    }

    /// Returns the name of one more field, with the index after the others, if a template needs it to find the client.
    /// A line may lack this field.
    #[must_use]
    pub fn peer_field(&self) -> Option<&'static str> {
        let mut parts = self.parts();
        let finds_client = parts.any(|(_, modifiers)| modifiers.contains(&Modifier::Client));
        (finds_client && !self.fields.iter().any(|field| field == PEER)).then_some(PEER)
    }

    /// Returns each field of each template, with its modifiers.
    fn parts(&self) -> impl Iterator<Item = (usize, &[Modifier])> {
        let parts = self.descriptors.iter().flatten().flat_map(|entry| &entry.value);
        parts.filter_map(|part| match part {
            Part::Field(index, modifiers) => Some((*index, &**modifiers)),
            Part::Text(_) => None,
        })
    }

    /// Returns a warning for each field whose values a server would count in another way. `hides` leaves out examples.
    #[must_use]
    pub fn warnings(&self, filled: &Filled, hides: bool) -> Vec<String> {
        let mut warnings = Vec::new();
        for ((index, modifiers), seen) in self.parts().zip(&filled.seen) {
            // Several descriptors can have the same field.
            let warning = seen.warning(&self.fields[index], modifiers, hides);
            warnings.extend(warning.filter(|warning| !warnings.contains(warning)));
        }
        warnings
    }

    fn entries(&mut self, text: &str) -> Result<Vec<Entry>, String> {
        let mut entries = Vec::new();
        let mut rest = text;
        loop {
            let (key, after) = piece(rest, &['=', ',', '{', '}'])?;
            if key.is_empty() || !after.starts_with('=') {
                return Err("an entry is KEY=VALUE, and its key has no braces".into());
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
                let (name, after) = field.split_once('}').ok_or("a brace is not closed".to_owned())?;
                value.push(self.field(name)?);
                rest = after;
            }
            if value.is_empty() {
                return Err("an entry has no value".into());
            }
            entries.push(Entry { key, value });
            match rest.strip_prefix(',') {
                Some(next) => rest = next,
                None if rest.is_empty() => return Ok(entries),
                None => return Err("a closing brace has no opening one".into()),
            }
        }
    }

    /// Reads what is between braces: a field, and its modifiers. A new field is added.
    fn field(&mut self, text: &str) -> Result<Part, String> {
        let mut words = text.split('|');
        let name = words.next().unwrap_or_default();
        if name.is_empty() || name.contains('{') {
            return Err("a field has no name".into());
        }
        let modifiers = words.map(Modifier::parse).collect::<Result<Vec<_>, _>>()?;
        if modifiers.contains(&Modifier::Client) && self.settings.trusted_proxies.is_empty() {
            return Err("`client` needs the networks of your proxies: add --trusted-proxies, such as 10.0.0.0/8".into());
        }
        let known = self.fields.iter().position(|field| field == name);
        let index = known.unwrap_or_else(|| {
            self.fields.push(name.to_owned());
            self.fields.len() - 1
        });
        Ok(Part::Field(index, modifiers))
    }

    /// Fills in the values of a line. `value` returns the value of the field with this index.
    pub fn fill<'f>(&self, filled: &mut Filled, value: impl Fn(usize) -> Option<&'f str>) {
        filled.complete.clear();
        let peer = self.fields.iter().position(|field| field == PEER).unwrap_or(self.fields.len());
        let (mut used, mut at) = (0, 0);
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
                        Part::Field(index, modifiers) => {
                            let own = modifiers.iter().fold(value(*index).map(Cow::Borrowed), |own, modifier| {
                                let peer = if *modifier == Modifier::Client { value(peer) } else { None };
                                modifier.apply(own, peer, &self.settings)
                            });
                            if filled.seen.len() == at {
                                filled.seen.push(Seen::default());
                            }
                            match own {
                                Some(own) => {
                                    filled.seen[at].look(&own, modifiers);
                                    text.push_str(&own);
                                }
                                None => complete = false,
                            }
                            at += 1;
                        }
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
fn piece<'t>(text: &'t str, ends: &[char]) -> Result<(String, &'t str), String> {
    let mut plain = String::new();
    let mut characters = text.char_indices();
    while let Some((at, c)) = characters.next() {
        match c {
            '\\' => match characters.next() {
                Some((_, escaped @ (',' | '=' | '\\' | '{' | '}'))) => plain.push(escaped),
                _ => return Err("a backslash can only be before one of , = { } and another backslash".into()),
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
        Templates::parse(&[text.to_owned()], ClientSettings::default())
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
        let templates = Templates::parse(&texts, ClientSettings::default()).expect("the templates are right");
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
            "",
            "a",
            "a=",
            "=x",
            "a={",
            "a={}",
            "a={x",
            "a=x}",
            "a={x},",
            "a={x}}",
            "{x}=a",
            r"a=\n",
            "a=\\",
            "a={{x}}",
            "a={|ip}",
            "a={x|}",
            "a={x|ips}",
            "a={x|client}",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        let error = parse("a={x|ips}").expect_err("there is no such modifier").to_string();
        assert!(error.ends_with("`ips`. The modifiers are ip, network, client, first, last, normal"), "{error}");
    }

    #[test]
    fn a_value_is_what_its_modifiers_make_of_it() {
        let value = |name: &str| match name {
            "address" => Some("[2001:db8::7]:80"),
            "uri" => Some("/a//b?c"),
            _ => None,
        };
        let values = |text| filled(text, value).into_iter().map(|(_, value)| value).collect::<Vec<_>>();
        assert_eq!(values("a={address|network}-{uri|normal}"), ["2001:db8::/64-/a/b"]);
        assert_eq!(values("a={address|ip},b={address}"), ["2001:db8::7", "[2001:db8::7]:80"]);
        assert!(values("a={none|ip}").is_empty());
    }

    #[test]
    fn a_field_of_several_descriptors_has_one_warning() {
        let texts = ["a={x},b={y}", "c={x}", "d={x|ip}"].map(str::to_owned);
        let templates = Templates::parse(&texts, ClientSettings::default()).expect("the templates are right");
        let mut filled = Filled::default();
        templates.fill(&mut filled, |index| Some(["2001:db8::1", "/a?b"][index]));
        let warnings = templates.warnings(&filled, true);
        let fields: Vec<_> = warnings.iter().filter_map(|warning| warning.split('`').nth(1)).collect();
        assert_eq!(fields, ["{x}", "{y}", "{x|ip}"]);
    }
}
