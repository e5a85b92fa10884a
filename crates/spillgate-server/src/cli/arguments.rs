//! Arguments that several commands share.
//!
//! The flags for settings are made from `KEYS`, the table of all settings. So no flag can be missing or differ from its
//! setting.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, value_parser};

use super::verb::{Entries, Setting};
use crate::settings::{Key, Shape};

/// The help on exit codes of a command whose answer is never no. Other commands have their own text.
pub(super) const EXIT_CODES: &str = "Exit codes:
  0  success
  2  the command line, a setting, a rule or a log is wrong
  3  the output cannot be written";

/// Returns the flag of a setting.
pub(super) fn setting(key: &'static Key) -> Arg {
    let default = if key.default.is_empty() { String::new() } else { format!(" [default: {}]", key.default) };
    let help = format!("{}{default} [env: {}] [key: {}]", key.help, key.variable(), key.path);
    let arg = Arg::new(key.path).long(key.flag()).value_name(key.value).help(help).help_heading(heading(key));
    match key.shape {
        Shape::One | Shape::Yaml => arg.action(ArgAction::Set),
        Shape::List => arg.action(ArgAction::Append),
        Shape::Switch => {
            let words = PossibleValuesParser::new(["true", "false"]);
            arg.num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
                .value_parser(words)
                .hide_possible_values(true)
        }
    }
}

fn heading(key: &Key) -> &'static str {
    match key.path.split_once('.') {
        Some(("store" | "memory", _)) => "Store",
        Some(("tls", _)) => "TLS on the listeners",
        Some(("forward_auth", _)) => "Forward-auth",
        Some(("allow", _)) => "What clients may do",
        Some(("insight", _)) => "What is remembered of callers",
        Some(("limits", _)) => "Bounds on clients",
        _ => "Settings",
    }
}

pub(super) fn domain_argument() -> Arg {
    Arg::new("domain").long("domain").short('d').value_name("NAME").required(true).help("Domain of the rules")
}

pub(super) fn optional_domain_argument(help: &'static str) -> Arg {
    domain_argument().required(false).help(help)
}

pub(super) fn allow_unmatched_argument() -> Arg {
    let help = "Accept a domain or a key that no rule has. Without it, such a name is an error";
    Arg::new("allow-unmatched").long("allow-unmatched").action(ArgAction::SetTrue).help(help)
}

pub(super) fn descriptor_argument() -> Arg {
    Arg::new("descriptor")
        .long("descriptor")
        .short('e')
        .value_name("KEY=VALUE,...")
        .action(ArgAction::Append)
        .required(true)
        .value_parser(entries)
        .help("One descriptor. Repeat the flag for a request with several descriptors")
}

pub(super) fn rules_argument() -> Arg {
    Arg::new("RULES")
        .action(ArgAction::Append)
        .value_parser(value_parser!(PathBuf))
        .help("Rules files, or folders of *.yaml, *.yml and *.json")
}

pub(super) fn config_argument(help: &'static str) -> Arg {
    Arg::new("config").long("config").short('c').value_name("FILE").value_parser(value_parser!(PathBuf)).help(help)
}

pub(super) fn json_argument(help: &'static str) -> Arg {
    Arg::new("json").long("json").action(ArgAction::SetTrue).help(help)
}

pub(super) fn paths(matches: &ArgMatches) -> Vec<PathBuf> {
    matches.get_many("RULES").into_iter().flatten().cloned().collect()
}

/// Returns the settings among `keys` that the command line gives.
pub(super) fn given(matches: &ArgMatches, keys: impl Iterator<Item = &'static Key>) -> Vec<Setting> {
    let is_given = |key: &&Key| matches.value_source(key.path) == Some(ValueSource::CommandLine);
    let values = |key: &Key| matches.get_many::<String>(key.path).into_iter().flatten().cloned().collect();
    keys.filter(is_given).map(|key| (key, values(key))).collect()
}

/// Reads a descriptor such as `user_id=7,path=/x`, whose entries are separated by commas. A `\` before `,`, `=` or `\`
/// makes that character a part of the text. Spaces after a comma between entries are ignored, as commands print them.
pub(super) fn entries(text: &str) -> Result<Entries, String> {
    let mut entries = Vec::new();
    let (mut key, mut part) = (None, String::new());
    let mut characters = text.chars();
    loop {
        match characters.next() {
            Some('\\') => match characters.next() {
                Some(plain @ (',' | '=' | '\\')) => part.push(plain),
                _ => {
                    return Err(
                        r"a backslash may only come before `,`, `=` or `\`; write \\ for a backslash".to_owned()
                    );
                }
            },
            Some('=') if key.is_none() => key = Some(std::mem::take(&mut part)),
            Some(',') | None if key.is_none() => {
                return Err(format!("`{part}` has no value: write KEY=VALUE (a comma in a value is written `\\,`)"));
            }
            end @ (Some(',') | None) => {
                let key = key.take().unwrap_or_default();
                if key.is_empty() {
                    return Err("an entry has no key: write KEY=VALUE".to_owned());
                }
                entries.push((key, std::mem::take(&mut part)));
                if end.is_none() {
                    return Ok(Entries(entries));
                }
                characters = characters.as_str().trim_start_matches(' ').chars();
            }
            Some(other) => part.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<(String, String)> {
        entries(text).expect(text).0
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn descriptors_express_commas_equals_signs_and_backslashes() {
        assert_eq!(read("user_id=7,path=/x"), pairs(&[("user_id", "7"), ("path", "/x")]));
        assert_eq!(read(r"tags=a\,b,q=x=y"), pairs(&[("tags", "a,b"), ("q", "x=y")]));
        assert_eq!(read(r"a\=b=c\\d\=,e="), pairs(&[("a=b", r"c\d="), ("e", "")]));
        assert_eq!(read("user_id=7,  path= /x, e=y "), pairs(&[("user_id", "7"), ("path", " /x"), ("e", "y ")]));
        assert_eq!(read("name=grüße 🙂"), pairs(&[("name", "grüße 🙂")]));
    }

    #[test]
    fn descriptors_that_make_no_sense_are_errors() {
        for text in ["", "user_id", "a=1,b", "a=1,", "=7", r"a=\n", "a=\\"] {
            assert!(entries(text).is_err(), "{text}");
        }
    }
}
