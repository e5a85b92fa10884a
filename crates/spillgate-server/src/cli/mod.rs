//! The command line: its parser, its help and its errors.
//!
//! [`parse`] turns the arguments into a [`Verb`], which is plain data. Errors never show a password that was written in
//! a URL.

mod admin;
mod arguments;
mod check;
mod health;
mod insight;
mod replay;
mod serve;
mod size;
mod store;
mod verb;

use std::ffi::OsString;
use std::io::{self, Write as _};

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::settings::{KEYS, Key, masked};
use arguments::{config_argument, json_argument, paths, rules_argument};
pub use verb::{
    Admin, AdminAction, BlockedEntry, CallerValue, Check, Doctor, Entries, ExplainedRequest, Health, Insight, KeyNames,
    RegionAction, Replay, RuleName, Serve, Setting, Size, TlsFiles, Validate, Verb,
};

/// The address of the admin listener if the settings do not change it.
pub const DEFAULT_ADMIN: &str = "http://127.0.0.1:6070";

/// Reads the command line.
///
/// # Errors
/// The message of clap, or the help that the user asked for. `exit_code` of the error returns the exit code.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Verb, clap::Error> {
    let matches = command().try_get_matches_from(arguments).map_err(with_suggestion)?;
    match matches.subcommand() {
        Some(("serve", m)) => Ok(Verb::Serve(serve::read(m))),
        Some(("validate", m)) => Ok(Verb::Validate(validate(m))),
        Some(("check", m)) => check::read(m).map(Verb::Check),
        Some(("key", m)) => Ok(Verb::Key(store::key(m))),
        Some(("doctor", m)) => Ok(Verb::Doctor(store::doctor(m))),
        Some(("health", m)) => Ok(Verb::Health(health::read(m))),
        Some(("insight", m)) => Ok(Verb::Insight(insight::read(m))),
        Some(("replay", m)) => Ok(Verb::Replay(replay::read(m))),
        Some(("size", m)) => Ok(Verb::Size(size::read(m))),
        Some((name, m)) => Ok(admin::read(name, m).map_or(Verb::Schema, Verb::Admin)),
        None => Ok(Verb::Schema),
    }
}

/// Returns the error with a better suggestion. clap suggests the most similar flag, which can belong to another
/// setting.
///
/// If the wrong flag is written as the key of a setting (`--store-url` for `store.url`), the suggestion is the flag of
/// that setting. If a time is missing, the suggestion shows how one is written.
fn with_suggestion(mut error: clap::Error) -> clap::Error {
    if let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg)
        && missing.iter().any(|argument| argument.starts_with("--for "))
    {
        let tip = "a time from 1s to 30d, after which it ends by itself: for example --for 10m";
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
        return error;
    }
    let Some(ContextValue::String(written)) = error.get(ContextKind::InvalidArg) else { return error };
    // A flag that is written correctly, but belongs to another command, has no better form.
    let is_key = |key: &&Key| {
        let flag = written.strip_prefix("--");
        flag == Some(&*key.path.replace(['.', '_'], "-")) && flag != Some(&*key.flag())
    };
    if let Some(key) = KEYS.iter().find(is_key) {
        error.insert(ContextKind::SuggestedArg, ContextValue::String(format!("--{}", key.flag())));
    }
    error
}

/// Prints an error of [`parse`] without passwords, or the help that the user asked for.
///
/// # Errors
/// Standard output cannot be written. Errors of standard error are ignored, because there is no other place for them.
pub fn print(error: &clap::Error) -> io::Result<()> {
    if !error.use_stderr() {
        return error.print().and_then(|()| io::stdout().flush());
    }
    let text = error.render().to_string();
    let shown = masked(&text);
    drop(if shown == text { error.print() } else { io::stderr().write_all(shown.as_bytes()) });
    Ok(())
}

/// Returns the whole command line, for parsing and for help.
#[must_use]
pub fn command() -> Command {
    Command::new("spillgate")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Rate limiter: decides for each request whether it may pass now")
        .after_help(
            "Start here:\n  spillgate serve rules.yaml        serve the limits of a rules file\n  \
             spillgate validate rules.yaml     find errors in it\n  \
             spillgate check rules.yaml --domain api --descriptor user_id=7   try it without a server\n  \
             spillgate doctor --store redis://127.0.0.1:6379                  find faults of a store\n\n\
             While a server runs:\n  spillgate insight                 what its limits do to their callers\n  \
             spillgate top                     who asks most, and who is refused most\n  \
             spillgate explain --domain api --descriptor user_id=7            why a caller is refused\n  \
             spillgate block remote_address=203.0.113.9 --for 10m             refuse a caller for a time\n  \
             spillgate reload                  use changed rules\n\n\
             `spillgate COMMAND --help` has examples, and says what each of its exit codes means: 0 is yes\n\
             or done, 1 is no, 2 is a wrong command line, setting or rule, and 3 is not available.",
        )
        .subcommand_required(true)
        .subcommand(serve::command())
        .subcommand(validate_command())
        .subcommand(check::command())
        .subcommand(store::key_command())
        .subcommand(store::doctor_command())
        .subcommand(health::command())
        .subcommand(insight::command())
        .subcommands(admin::commands())
        .subcommand(replay::command())
        .subcommand(size::command())
        .subcommand(Command::new("schema").about("Print the JSON Schema of rules files, for editors").after_help(
            "Examples:\n  spillgate schema > rules.schema.json\n  \
                 and at the top of a rules file: # yaml-language-server: $schema=./rules.schema.json\n\n\
                 Exit codes:\n  0  success\n  2  the command line is wrong\n  3  the output cannot be written",
        ))
}

const EXIT_CODES_OF_VALIDATE: &str = "Exit codes:
  0  there are no errors
  1  with --deny-warnings: there are warnings
  2  the command line, a setting or a rule is wrong
  3  the output cannot be written";

fn validate_command() -> Command {
    Command::new("validate")
        .about("Find errors in rules and settings files")
        .after_help(format!(
            "Examples:\n  spillgate validate rules.yaml\n  spillgate validate rules/ --deny-warnings\n  \
             spillgate validate --config spillgate.yaml --json\n\n{EXIT_CODES_OF_VALIDATE}"
        ))
        .arg(rules_argument())
        .arg(config_argument(
            "Settings file. It is validated too, with the files that it names. If no RULES are given, its rules are used",
        ))
        .arg(
            Arg::new("deny-warnings")
                .long("deny-warnings")
                .action(ArgAction::SetTrue)
                .help("Exit with code 1 if there are warnings"),
        )
        .arg(json_argument("Print one line of JSON: errors and warnings with file, line and column"))
}

fn validate(matches: &ArgMatches) -> Validate {
    Validate {
        config: matches.get_one("config").cloned(),
        rules: paths(matches),
        deny_warnings: matches.get_flag("deny-warnings"),
        json: matches.get_flag("json"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn serve_help_documents_every_key() {
        let help = serve::command().render_long_help().to_string();
        for key in KEYS {
            let flag = |after| help.contains(&format!("--{}{after}", key.flag()));
            assert!(flag(" <") || flag("[="), "{}", key.flag());
            let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(words.contains(&format!("[env: {}] [key: {}]", key.variable(), key.path)), "{}", key.path);
        }
    }
}
