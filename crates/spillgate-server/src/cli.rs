//! The command line as plain data. Flags for settings come from the table of keys.

mod store;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use crate::settings::{KEYS, Key, Shape, duration, masked};

/// What to do.
#[derive(Debug)]
pub enum Verb {
    Serve(Serve),
    Validate(Validate),
    Check(Check),
    Key(KeyNames),
    Doctor(Doctor),
    Schema,
}

/// A setting that a flag brings.
pub type Setting = (&'static Key, Vec<String>);

/// `spillgate serve`
#[derive(Clone, Debug)]
pub struct Serve {
    pub config: Option<PathBuf>,
    pub rules: Vec<PathBuf>,
    pub flags: Vec<Setting>,
    pub show_settings: bool,
    pub json: bool,
}

/// `spillgate validate`
#[derive(Debug)]
pub struct Validate {
    pub config: Option<PathBuf>,
    pub rules: Vec<PathBuf>,
    pub deny_warnings: bool,
    pub json: bool,
}

/// `spillgate check`
#[derive(Debug)]
pub struct Check {
    pub config: Option<PathBuf>,
    pub rules: Vec<PathBuf>,
    pub domain: String,
    pub descriptors: Vec<Entries>,
    /// What each round of questions takes, in turn.
    pub costs: Vec<u64>,
    pub times: u32,
    /// Permits are released before the next question.
    pub releases: bool,
    /// Since the start of the virtual clock, never going back.
    pub at: Vec<Duration>,
    /// Somebody wrote `at`.
    pub sets_clock: bool,
    pub wait: Duration,
    /// Of the store.
    pub flags: Vec<Setting>,
    /// The shared store is taken from, not only looked at.
    pub takes: bool,
    pub json: bool,
}

/// `spillgate key`
#[derive(Debug)]
pub struct KeyNames {
    pub config: Option<PathBuf>,
    pub rules: Vec<PathBuf>,
    pub flags: Vec<Setting>,
    pub domain: String,
    pub descriptors: Vec<Entries>,
    pub json: bool,
}

/// `spillgate doctor`
#[derive(Debug)]
pub struct Doctor {
    pub config: Option<PathBuf>,
    pub flags: Vec<Setting>,
    pub json: bool,
}

/// The entries of one descriptor, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entries(pub Vec<(String, String)>);

/// The most questions that one `check` asks.
pub const MAX_ASKS: usize = 10_000;

const EXIT_CODES: &str = "Exit codes:
  0  done; for check: every question was allowed; for doctor: all is well
  1  the answer is no: check was refused, validate --deny-warnings found warnings, doctor something to mend
  2  a wrong command line, setting or rule; nothing was started
  3  serve could not serve, or not to its end: an address in use, no permission, a failed worker, a second SIGTERM, a
     last snapshot that cannot be written; for check and doctor: the store cannot be reached";

/// Reads the command line; without arguments there is nothing to do but help.
///
/// # Errors
/// What clap has to say, help included; it knows its own exit code.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Verb, clap::Error> {
    let matches = command().try_get_matches_from(arguments).map_err(meant)?;
    match matches.subcommand() {
        Some(("serve", m)) => Ok(Verb::Serve(serve(m))),
        Some(("validate", m)) => Ok(Verb::Validate(Validate {
            config: m.get_one("config").cloned(),
            rules: paths(m),
            deny_warnings: m.get_flag("deny-warnings"),
            json: m.get_flag("json"),
        })),
        Some(("check", m)) => check(m).map(Verb::Check),
        Some(("key", m)) => Ok(Verb::Key(store::key(m))),
        Some(("doctor", m)) => Ok(Verb::Doctor(store::doctor(m))),
        _ => Ok(Verb::Schema),
    }
}

/// The error with the flag that was meant, where that is named as the key is and the nearest is another's.
fn meant(mut error: clap::Error) -> clap::Error {
    let Some(ContextValue::String(written)) = error.get(ContextKind::InvalidArg) else { return error };
    let is_key = |key: &&Key| written.strip_prefix("--") == Some(&*key.path.replace(['.', '_'], "-"));
    if let Some(key) = KEYS.iter().find(is_key) {
        error.insert(ContextKind::SuggestedArg, ContextValue::String(format!("--{}", key.flag())));
    }
    error
}

/// Prints what [`parse`] says, without the passwords in what was written.
pub fn print(error: &clap::Error) {
    let text = error.render().to_string();
    let shown = masked(&text);
    // A reader that went away is no error of ours.
    if error.use_stderr() && shown != text {
        drop(io::stderr().write_all(shown.as_bytes()));
    } else {
        drop(error.print());
    }
}

/// The whole command line, for parsing and for help.
#[must_use]
pub fn command() -> Command {
    Command::new("spillgate")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Decides, for every request, whether it may pass now")
        .after_help(format!(
            "Start here:\n  spillgate serve rules.yaml        serve what a rules file says\n  \
             spillgate validate rules.yaml     find what is wrong in it\n  \
             spillgate check rules.yaml --domain api --descriptor user_id=7   ask it without a server\n  \
             spillgate doctor --store redis://127.0.0.1:6379                  find what is wrong with a store\n\n\
             `spillgate COMMAND --help` has examples.\n\n{EXIT_CODES}"
        ))
        .subcommand_required(true)
        .disable_help_subcommand(true)
        .subcommand(serve_command())
        .subcommand(validate_command())
        .subcommand(check_command())
        .subcommand(store::key_command())
        .subcommand(store::doctor_command())
        .subcommand(Command::new("schema").about("Print the JSON Schema of rules files, for editors").after_help(
            "Examples:\n  spillgate schema > rules.schema.json\n  \
                 and at the top of a rules file: # yaml-language-server: $schema=./rules.schema.json",
        ))
}

fn serve_command() -> Command {
    let command = Command::new("serve")
        .about("Serve decisions over gRPC (Envoy RLS v3) and HTTP")
        .long_about(
            "Serve decisions over gRPC (Envoy RLS v3) and HTTP.\n\n\
             A setting is taken from its flag, else from its variable, else from the settings file, else from its \
             default. In a settings file the key is the flag with dots and underscores, shown after it in brackets. \
             Relative paths in a settings file start at its folder.",
        )
        .after_help(format!(
            "Examples:\n  spillgate serve rules.yaml\n  spillgate serve --config spillgate.yaml\n  \
             spillgate serve rules/ --http unix:/run/spillgate.sock --grpc off\n  \
             SPILLGATE_GRPC=0.0.0.0:9081 spillgate serve rules.yaml --memory-max-keys 1M\n  \
             spillgate serve rules.yaml --store redis://127.0.0.1:6379 --store-key-secret-file key.secret\n\n\
             Signals:\n  SIGTERM, SIGINT  stop listening, answer what is in flight, end; a second one ends at once\n  \
             SIGHUP           read the rules again: all files or none; settings take effect at a restart\n\n{EXIT_CODES}"
        ))
        .arg(rules_argument())
        .arg(config_argument("Settings file (YAML)"))
        .arg(json_argument("Print one line of JSON in place of the start-up text"))
        .arg(
            Arg::new("show-settings")
                .long("show-settings")
                .action(ArgAction::SetTrue)
                .help("Print every setting and who set it, and end"),
        );
    KEYS.iter().fold(command, |command, key| command.arg(setting(key)))
}

fn setting(key: &'static Key) -> Arg {
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
        Some(("forward_auth", _)) => "Forward-auth",
        Some(("allow", _)) => "Who may mint quota",
        Some(("limits", _)) => "Bounds on clients",
        _ => "Settings",
    }
}

fn validate_command() -> Command {
    Command::new("validate")
        .about("Find what is wrong in rules and settings files")
        .after_help(format!(
            "Examples:\n  spillgate validate rules.yaml\n  spillgate validate rules/ --deny-warnings\n  \
             spillgate validate --config spillgate.yaml --json\n\n{EXIT_CODES}"
        ))
        .arg(rules_argument())
        .arg(config_argument(
            "Settings file to validate too, and the files that it names; its rules are read if none are given",
        ))
        .arg(
            Arg::new("deny-warnings")
                .long("deny-warnings")
                .action(ArgAction::SetTrue)
                .help("End with exit code 1 if there are warnings"),
        )
        .arg(json_argument("Print one line of JSON: errors and warnings with file, line and column"))
}

fn check_command() -> Command {
    let command = Command::new("check")
        .about("Ask rules without a server, on a virtual clock or in a shared store, and explain the answers")
        .long_about(
            "Ask rules without a server, on a virtual clock, and explain the answers.\n\n\
             The clock starts at the edge of every window (0s), and nothing was used before. Where a shared store is \
             named (--store, SPILLGATE_STORE or the settings file) it is asked instead, by its own clock and counts: \
             what it would answer now. Nothing is taken from it but with --take. Its key secret, log and scripts have \
             to be the fleet's, or other keys are looked at. --store memory asks on the virtual clock all the same.",
        )
        .after_help(format!(
            "Descriptors are written KEY=VALUE, with commas between entries. The first = ends the key. A comma in a \
             value is written \\, and a backslash \\\\; a = in a key is written \\=.\n\n\
             Examples:\n  spillgate check rules.yaml --domain api --descriptor user_id=7\n  \
             spillgate check rules.yaml --domain api --descriptor user_id=7,path=/x --times 12\n  \
             spillgate check rules.yaml --domain api --descriptor user_id=7 --at 0s,100ms,1s --cost 3\n  \
             spillgate check login.yaml --domain login --descriptor account=bob --cost 0,1,0,1,0\n  \
             spillgate check rules.yaml --domain api --descriptor 'tags=a\\,b' --descriptor tenant=t1\n  \
             spillgate check rules.yaml --domain api --descriptor user_id=7 --store redis://127.0.0.1:6379 \
             --store-key-secret-file key.secret\n\n{EXIT_CODES}"
        ))
        .arg(rules_argument())
        .arg(config_argument("Settings file; its rules are read if none are given"))
        .arg(domain_argument())
        .arg(descriptor_argument())
        .arg(
            Arg::new("cost")
                .long("cost")
                .value_name("UNITS")
                .default_value("1")
                .value_delimiter(',')
                .allow_negative_numbers(true)
                .value_parser(units)
                .help("Units that a question takes; 0 looks. With commas between, one question for each: 0,5,0"),
        )
        .arg(
            Arg::new("times")
                .long("times")
                .short('n')
                .value_name("COUNT")
                .default_value("1")
                .value_parser(value_parser!(u32).range(1..=10_000))
                .help("Rounds of questions at each time of --at"),
        )
        .arg(
            Arg::new("release")
                .long("release")
                .action(ArgAction::SetTrue)
                .help("Release the permits of each question before the next one (concurrency)"),
        )
        .arg(
            Arg::new("at")
                .long("at")
                .value_name("TIMES")
                .default_value("0s")
                .value_delimiter(',')
                .value_parser(instant)
                .help("When to ask, since the clock's start, with commas between: 0s,100ms,1m"),
        )
        .arg(
            Arg::new("wait")
                .long("wait")
                .value_name("DURATION")
                .default_value("0s")
                .value_parser(instant)
                .help("The longest delay the caller accepts (leaky_bucket)"),
        );
    store::check_arguments(command).arg(json_argument("Print one line of JSON"))
}

fn domain_argument() -> Arg {
    Arg::new("domain").long("domain").short('d').value_name("NAME").required(true).help("Domain to ask")
}

fn descriptor_argument() -> Arg {
    Arg::new("descriptor")
        .long("descriptor")
        .short('e')
        .value_name("KEY=VALUE,...")
        .action(ArgAction::Append)
        .required(true)
        .value_parser(entries)
        .help("One descriptor; repeat it for a request with several")
}

fn rules_argument() -> Arg {
    Arg::new("RULES")
        .action(ArgAction::Append)
        .value_parser(value_parser!(PathBuf))
        .help("Rules files, or folders of *.yaml and *.yml")
}

fn config_argument(help: &'static str) -> Arg {
    Arg::new("config").long("config").short('c').value_name("FILE").value_parser(value_parser!(PathBuf)).help(help)
}

fn json_argument(help: &'static str) -> Arg {
    Arg::new("json").long("json").action(ArgAction::SetTrue).help(help)
}

fn paths(matches: &ArgMatches) -> Vec<PathBuf> {
    matches.get_many("RULES").into_iter().flatten().cloned().collect()
}

/// Those of `keys` that the command line has.
fn given(matches: &ArgMatches, keys: impl Iterator<Item = &'static Key>) -> Vec<Setting> {
    let is_given = |key: &&Key| matches.value_source(key.path) == Some(ValueSource::CommandLine);
    let values = |key: &Key| matches.get_many::<String>(key.path).into_iter().flatten().cloned().collect();
    keys.filter(is_given).map(|key| (key, values(key))).collect()
}

fn serve(matches: &ArgMatches) -> Serve {
    Serve {
        config: matches.get_one("config").cloned(),
        rules: paths(matches),
        flags: given(matches, KEYS.iter()),
        show_settings: matches.get_flag("show-settings"),
        json: matches.get_flag("json"),
    }
}

fn check(matches: &ArgMatches) -> Result<Check, clap::Error> {
    let at: Vec<Duration> = matches.get_many("at").into_iter().flatten().copied().collect();
    let times = matches.get_one("times").copied().unwrap_or(1);
    let mut command = check_command();
    if !at.is_sorted() {
        let why = "--at goes back in time: write its times in rising order";
        return Err(command.error(clap::error::ErrorKind::ValueValidation, why));
    }
    let costs: Vec<u64> = matches.get_many("cost").into_iter().flatten().copied().collect();
    if at.len().saturating_mul(times as usize).saturating_mul(costs.len()) > MAX_ASKS {
        let why = format!("--times and --cost for each of --at make more than {MAX_ASKS} questions: ask fewer");
        return Err(command.error(clap::error::ErrorKind::ValueValidation, why));
    }
    let check = Check {
        config: matches.get_one("config").cloned(),
        rules: paths(matches),
        domain: matches.get_one("domain").cloned().unwrap_or_default(),
        descriptors: matches.get_many("descriptor").into_iter().flatten().cloned().collect(),
        costs,
        releases: matches.get_flag("release"),
        times,
        at,
        sets_clock: matches.value_source("at") == Some(ValueSource::CommandLine),
        wait: matches.get_one("wait").copied().unwrap_or_default(),
        flags: Vec::new(),
        takes: false,
        json: matches.get_flag("json"),
    };
    Ok(store::check_settings(matches, check))
}

fn instant(text: &str) -> Result<Duration, String> {
    duration(text).map_err(str::to_owned)
}

fn units(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("write a whole number from 0 to {}", u64::MAX))
}

/// `user_id=7,path=/x`: entries between commas, `\` makes the next character plain.
fn entries(text: &str) -> Result<Entries, String> {
    let mut entries = Vec::new();
    let (mut key, mut part) = (None, String::new());
    let mut characters = text.chars();
    loop {
        match characters.next() {
            Some('\\') => match characters.next() {
                Some(plain @ (',' | '=' | '\\')) => part.push(plain),
                _ => return Err(r"a backslash stands before `,`, `=` or `\` only; write \\ for itself".to_owned()),
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
        assert_eq!(read("name=grüße 🙂"), pairs(&[("name", "grüße 🙂")]));
    }

    #[test]
    fn descriptors_that_cannot_be_meant_are_errors() {
        for text in ["", "user_id", "a=1,b", "a=1,", "=7", r"a=\n", "a=\\"] {
            assert!(entries(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn serve_help_documents_every_key() {
        let help = serve_command().render_long_help().to_string();
        for key in KEYS {
            let flag = |after| help.contains(&format!("--{}{after}", key.flag()));
            assert!(flag(" <") || flag("[="), "{}", key.flag());
            let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(words.contains(&format!("[env: {}] [key: {}]", key.variable(), key.path)), "{}", key.path);
        }
    }
}
