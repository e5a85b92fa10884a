//! Makes the tables of the book from the code: settings, rules, commands, exit codes, metrics, failures.
//!
//! A table is between `<!-- table: NAME -->` and `<!-- end of table -->`. The test fails if the table in the page differs from
//! the table that is made from the code. If `WRITE_DOCS` is set, the test writes the new table into the page instead.

use std::fmt::Write as _;
use std::fs;

use clap::Command;
use serde_json::{Map, Value};
use spillgate_redis::StoreErrorKind;
use spillgate_server::cli;
use spillgate_server::settings::{KEYS, Key};

use super::metrics;
use super::page::read;
use crate::support::root;

type Make = fn() -> String;

/// The tables. Each entry has the page, the name of the table, and the function that makes the table.
const TABLES: [(&str, &str, Make); 8] = [
    ("reference/settings.md", "settings", settings),
    ("reference/rules.md", "rules-top", || properties("/properties")),
    ("reference/rules.md", "rules-descriptor", || properties("/$defs/descriptor/properties")),
    ("reference/rules.md", "rules-limit", || properties("/$defs/limit/properties")),
    ("reference/commands.md", "commands", commands),
    ("reference/exit-codes.md", "exit-codes", exit_codes),
    ("reference/metrics.md", "metrics", metrics::table_of_all),
    ("reference/metrics.md", "failures", failures),
];

#[test]
fn generated_tables_are_those_of_the_code() {
    for (page, name, make) in TABLES {
        let path = format!("docs/src/{page}");
        let text = read(&path);
        let begin = format!("<!-- table: {name} -->\n");
        let (before, rest) = text.split_once(&begin).unwrap_or_else(|| panic!("{path} has no table {name}"));
        let (table, after) =
            rest.split_once("<!-- end of table -->").unwrap_or_else(|| panic!("{path}: the table {name} has no end"));
        let made = format!("\n{}\n", make());
        if std::env::var_os("WRITE_DOCS").is_some() {
            let text = format!("{before}{begin}{made}<!-- end of table -->{after}");
            fs::write(root().join(&path), text).expect("the page can be written");
        } else {
            assert_eq!(table, made, "{path}: the table {name} differs from the code: run `make docs-tables`");
        }
    }
}

/// Returns a Markdown table. A `|` in a cell is escaped.
pub(crate) fn table<const N: usize>(head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut text = format!("| {} |\n|{}\n", head.join(" | "), "---|".repeat(N));
    for row in rows {
        let _ = writeln!(text, "| {} |", row.map(|cell| cell.replace('|', "\\|")).join(" | "));
    }
    text
}

fn code(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("`{text}`") }
}

/// Returns the text with a capital letter at its beginning.
fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().collect::<String>() + chars.as_str())
}

/// The groups of settings. Each entry has the name of a group in a settings file, and a heading.
const GROUPS: [(&str, &str); 9] = [
    ("", "General"),
    ("tls", "TLS on the listeners"),
    ("store", "The shared store"),
    ("memory", "The memory store"),
    ("regions", "Several regions"),
    ("forward_auth", "Forward-auth"),
    ("allow", "What callers may do"),
    ("insight", "What is remembered of callers"),
    ("limits", "Bounds on clients"),
];

fn settings() -> String {
    let group = |key: &Key| key.path.split_once('.').map_or("", |(group, _)| group);
    assert!(
        KEYS.iter().all(|key| GROUPS.iter().any(|(name, _)| *name == group(key))),
        "each group of settings has a heading in GROUPS"
    );
    let part = |(name, heading): (&str, &str)| {
        let keys = KEYS.iter().filter(|key| group(key) == name);
        let rows = keys.map(|key| [code(key.path), code(key.default), sentence(key.help)]);
        format!("### {heading}\n\n{}", table(["key", "default", "meaning"], rows))
    };
    GROUPS.map(part).join("\n")
}

fn properties(pointer: &str) -> String {
    let schema: Value = serde_json::from_str(spillgate::rules::SCHEMA).expect("the schema is JSON");
    let properties = schema.pointer(pointer).and_then(Value::as_object).expect("the schema has properties here");
    // The JSON parser sorts the properties by name, so their order in the text of the schema is restored here.
    let section = pointer.trim_end_matches("/properties").rsplit('/').next().unwrap_or_default();
    let begin = spillgate::rules::SCHEMA.find(&format!("\n    \"{section}\": {{")).map_or(0, |at| at + section.len());
    let mut properties: Vec<_> = properties.iter().collect();
    properties.sort_by_key(|(name, _)| spillgate::rules::SCHEMA[begin..].find(&format!("  \"{name}\": {{")));
    let rows = properties.into_iter().map(|(name, property)| {
        let property = property.as_object().expect("a property of the schema is an object");
        let description = property
            .get("description")
            .and_then(Value::as_str)
            .unwrap_or("A list of rules. The table of `descriptors` has the keys of a rule.");
        [code(name), values(property), description.to_owned()]
    });
    table(["key", "value", "meaning"], rows)
}

/// Describes in words which values a property of the schema can have.
fn values(property: &Map<String, Value>) -> String {
    let reference = |value: &Map<String, Value>| {
        let name = value.get("$ref")?.as_str()?.rsplit('/').next()?;
        Some(match name {
            "units" => "a count",
            "duration" => "a duration",
            "limit" => "a limit",
            _ => "a list",
        })
    };
    if let Some(words) = property.get("enum").and_then(Value::as_array) {
        let words = words.iter().filter_map(Value::as_str).filter(|word| !word.chars().all(char::is_uppercase));
        return words.map(code).collect::<Vec<_>>().join(", ");
    }
    if let Some(name) = reference(property) {
        return name.to_owned();
    }
    if property.contains_key("anyOf") {
        return "a limit".to_owned();
    }
    let kinds = match &property["type"] {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).filter(|kind| *kind != "null").collect(),
        kind => vec![kind.as_str().expect("a property of the schema has a type")],
    };
    match (kinds[0], property.get("minimum"), property.get("maximum")) {
        ("string", ..) => "a text".to_owned(),
        ("boolean", ..) => "`true`, `false`".to_owned(),
        ("integer", Some(least), Some(most)) => format!("{least} to {most}"),
        ("array", ..) => "a list".to_owned(),
        (other, ..) => format!("an {other}"),
    }
}

fn commands() -> String {
    let mut text = String::new();
    for command in cli::command().get_subcommands() {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(text, "## spillgate {}\n\n{about}.\n", command.get_name());
        let (settings, own): (Vec<_>, Vec<_>) = command
            .get_arguments()
            .filter(|argument| !["help", "version"].contains(&argument.get_id().as_str()))
            .partition(|argument| KEYS.iter().any(|key| key.path == argument.get_id().as_str()));
        let rows = own.iter().map(|argument| {
            let value = argument.get_value_names().unwrap_or_default().first().map(ToString::to_string);
            let takes_value = argument.get_action().takes_values();
            let name = match argument.get_long() {
                Some(long) if takes_value => format!("--{long} {}", value.unwrap_or_default()),
                Some(long) => format!("--{long}"),
                None => argument.get_id().to_string(),
            };
            let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
            let defaults = argument.get_default_values().iter().map(|value| value.to_string_lossy());
            let default = if takes_value { defaults.collect::<Vec<_>>().join(",") } else { String::new() };
            [code(&name), code(&default), help]
        });
        if !own.is_empty() {
            let _ = writeln!(text, "{}", table(["argument", "default", "meaning"], rows));
        }
        let names: Vec<_> = settings.iter().map(|argument| code(argument.get_id().as_str())).collect();
        match command.get_name() {
            "serve" => text.push_str("Each [setting](settings.md) is also a flag.\n\n"),
            _ if names.is_empty() => {}
            _ => drop(writeln!(text, "These [settings](settings.md) are also flags: {}.\n", names.join(", "))),
        }
    }
    text.trim_end().to_owned() + "\n"
}

/// Returns what each exit code means after each command, from the end of the help of the command.
fn exit_codes() -> String {
    let row = |command: &Command| {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let (_, codes) = help.split_once("Exit codes:\n").unwrap_or_else(|| panic!("{command} says its exit codes"));
        let mut row = [code(command.get_name()), String::new(), String::new(), String::new(), String::new()];
        let mut column = 0;
        for line in codes.lines() {
            let (number, meaning) = line.trim().split_once("  ").unwrap_or(("", line.trim()));
            column = if number.is_empty() { column } else { number.parse::<usize>().expect("it is a code") + 1 };
            row[column] = format!("{} {meaning}", row[column]).trim().to_owned();
        }
        assert!(!row[1].is_empty() && !row[3].is_empty() && !row[4].is_empty(), "every command can have 0, 2 and 3");
        row
    };
    table(["command", "0", "1", "2", "3"], cli::command().get_subcommands().map(row))
}

fn failures() -> String {
    let row = |class: &StoreErrorKind| [code(class.as_str()), sentence(class.explanation())];
    table(["class", "meaning"], StoreErrorKind::ALL.iter().map(row))
}
