//! The arguments of the commands for operators: `block`, `unblock`, `blocks`, `shadow`, `shadows`, `reset`, `explain`,
//! `top` and `reload`. Each has the name of the route of the admin listener that it uses.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use super::arguments::{
    allow_unmatched_argument, descriptor_argument, domain_argument, entries, json_argument, optional_domain_argument,
};
use super::verb::{Admin, AdminAction, Entries, RuleName};

/// The address of the admin listener if the settings do not change it.
pub(super) const DEFAULT_ADMIN: &str = "http://127.0.0.1:6070";

/// The exit codes of commands that can fail only as the listener fails.
const EXIT_CODES: &str = "Exit codes:
  0  done
  2  the command line is wrong, or the server says that the request is wrong
  3  the server cannot be asked, or refuses the token; or the output cannot be written";

/// The exit codes of commands that change something.
const EXIT_CODES_OF_CHANGES: &str = "Exit codes:
  0  done
  1  nothing was changed: what the command names does not exist, or a list is full
  2  the command line is wrong, or the server says that the request is wrong
  3  the server cannot be asked, refuses the token, or has failed: the error says whether something
     may have changed; or the output cannot be written";

const TOKEN: &str =
    "If the server has an admin token, name a file with its text: --admin-token-file, or the environment
variable SPILLGATE_ADMIN_TOKEN_FILE. Commands that change something need the text of the setting
admin_token_file; for the others that of admin_read_token_file is enough.";

/// Returns the commands for operators.
pub(super) fn commands() -> [Command; 9] {
    [block(), unblock(), blocks(), shadow(), shadows(), reset(), explain(), top(), reload()]
}

pub(super) fn server_argument() -> Arg {
    Arg::new("server")
        .long("admin")
        .value_name("URL")
        .default_value(DEFAULT_ADMIN)
        .help("Admin listener of the server: http://HOST:PORT or unix:/path")
}

pub(super) fn token_file_argument() -> Arg {
    Arg::new("admin-token-file")
        .long("admin-token-file")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help("File with the bearer token of the admin listener [env: SPILLGATE_ADMIN_TOKEN_FILE]")
}

fn command(name: &'static str, about: &'static str, examples: &[&str], exit_codes: &str) -> Command {
    let examples: String = examples.iter().map(|example| format!("  spillgate {name}{example}\n")).collect();
    Command::new(name).about(about).after_help(format!("Examples:\n{examples}\n{TOKEN}\n\n{exit_codes}"))
}

/// Adds the arguments that all commands for operators have.
fn with_server(command: Command) -> Command {
    command
        .arg(server_argument())
        .arg(token_file_argument())
        .arg(json_argument("Print the answer of the server as JSON"))
}

fn entry_argument() -> Arg {
    let help = "The key and the value of an entry, as requests have them. Write \\, for a comma";
    Arg::new("ENTRY").value_name("KEY=VALUE").required(true).value_parser(entry).help(help)
}

fn for_argument(help: &'static str) -> Arg {
    Arg::new("for").long("for").value_name("DURATION").help(help)
}

fn block() -> Command {
    let about = "Refuse all requests with one value, for example one address, for a time";
    let examples = [
        " remote_address=203.0.113.9 --for 10m",
        " user_id=7 --domain api --for 1h --reason 'sends floods'",
        " remote_address=203.0.113.9 --for 10m --admin http://10.0.0.1:6070",
    ];
    let reason = Arg::new("reason").long("reason").value_name("TEXT").help("Text that other operators see");
    with_server(
        command("block", about, &examples, EXIT_CODES_OF_CHANGES)
            .arg(entry_argument())
            .arg(
                for_argument("How long: 1s to 30d, for example 10m. A new block replaces an earlier one")
                    .required(true),
            )
            .arg(optional_domain_argument("Refuse only requests of this domain. Without it, those of all domains"))
            .arg(reason),
    )
}

fn unblock() -> Command {
    let examples = [" remote_address=203.0.113.9", " user_id=7 --domain api"];
    with_server(
        command("unblock", "End the block on a value before its time", &examples, EXIT_CODES_OF_CHANGES)
            .arg(entry_argument())
            .arg(optional_domain_argument("End only the block in this domain. Without it, those in all domains")),
    )
}

fn blocks() -> Command {
    with_server(command("blocks", "List the blocks that are on", &["", " --json"], EXIT_CODES))
}

fn shadow() -> Command {
    let examples = [
        " on user_id --for 30m",
        " on 'plan=free > user_id' --domain api --for 1h",
        " off user_id",
        " on --all --for 5m",
    ];
    let about = "Let a rule count, but refuse nothing, for a time; or end this";
    with_server(
        command("shadow", about, &examples, EXIT_CODES_OF_CHANGES)
            .arg(
                Arg::new("STATE")
                    .value_name("on|off")
                    .required(true)
                    .value_parser(PossibleValuesParser::new(["on", "off"]))
                    .hide_possible_values(true)
                    .help("Put the rule into shadow, or end its shadow"),
            )
            .arg(
                Arg::new("RULE")
                    .required_unless_present("all")
                    .help("Path of the rule, as insight and explain show it: user_id, 'plan=free > user_id'"),
            )
            .arg(
                Arg::new("all")
                    .long("all")
                    .action(ArgAction::SetTrue)
                    .conflicts_with_all(["RULE", "domain"])
                    .help("All rules of all domains"),
            )
            .arg(optional_domain_argument("Domain of the rule. Needed if rules of several domains have this path"))
            .arg(for_argument("How long: 1s to 30d. Only with on").required_if_eq("STATE", "on"))
            .arg(
                Arg::new("scope")
                    .long("scope")
                    .value_name("SCOPE")
                    .value_parser(PossibleValuesParser::new(["server", "fleet"]))
                    .hide_possible_values(true)
                    .help("server or fleet. Without it: the fleet if the servers share a store; off ends both"),
            ),
    )
}

fn shadows() -> Command {
    with_server(command("shadows", "List the rules in shadow", &["", " --json"], EXIT_CODES))
}

fn reset() -> Command {
    let examples = [
        " --domain api --descriptor user_id=7",
        " --domain api --descriptor plan=free,user_id=7 --descriptor user_id=7",
    ];
    let about = "Set the counters of a caller to zero, and end the penalties of the caller";
    with_server(
        command("reset", about, &examples, EXIT_CODES_OF_CHANGES).arg(domain_argument()).arg(descriptor_argument()),
    )
}

fn explain() -> Command {
    let codes = "Exit codes:
  0  the request would be allowed now
  1  the request would be refused now
  2  the command line is wrong, or no rule has the domain or a key of the request
  3  the server cannot be asked, refuses the token, or has failed; or the output cannot be written";
    let examples = [
        " --domain api --descriptor user_id=7",
        " --domain api --descriptor plan=free,user_id=7 --descriptor remote_address=203.0.113.9",
        " --domain api --descriptor user_id=7 --cost 5 --json",
    ];
    let about = "Say why a running server would allow or refuse a request now, and take nothing";
    with_server(
        command("explain", about, &examples, codes)
            .arg(domain_argument())
            .arg(descriptor_argument())
            .arg(
                Arg::new("cost")
                    .long("cost")
                    .value_name("UNITS")
                    .default_value("1")
                    .value_parser(value_parser!(u64))
                    .help("Units that the request takes"),
            )
            .arg(allow_unmatched_argument()),
    )
}

fn top() -> Command {
    let about = "List the callers with the most refused and the most allowed units of each limit";
    with_server(command("top", about, &["", " --json"], EXIT_CODES))
}

fn reload() -> Command {
    let codes = "Exit codes:
  0  the server uses the rules that it has read
  1  the rules have errors, and the earlier rules stay in use
  2  the command line is wrong
  3  the server cannot be asked, refuses the token, or has failed; or the output cannot be written";
    let about = "Make a server read its rules again, wait, and say what has changed or which errors they have";
    with_server(command("reload", about, &["", " --admin unix:/run/spillgate/admin.sock"], codes))
}

/// Reads the arguments of the command `name`. Returns `None` if it is no command for operators.
pub(super) fn read(name: &str, matches: &ArgMatches) -> Option<Admin> {
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    let entry = || matches.get_one("ENTRY").cloned().unwrap_or_default();
    let descriptors = || matches.get_many("descriptor").into_iter().flatten().cloned().collect::<Vec<Entries>>();
    let action = match name {
        "block" => AdminAction::Block {
            entry: entry(),
            lasts: text("for").unwrap_or_default(),
            domain: text("domain"),
            reason: text("reason"),
        },
        "unblock" => AdminAction::Unblock { entry: entry(), domain: text("domain") },
        "blocks" => AdminAction::Blocks,
        "shadow" => AdminAction::Shadow {
            rule: text("RULE").map_or(RuleName::All, |path| RuleName::One { path, domain: text("domain") }),
            is_on: text("STATE").is_some_and(|state| state == "on"),
            lasts: text("for"),
            scope: text("scope"),
        },
        "shadows" => AdminAction::Shadows,
        "reset" => AdminAction::Reset { domain: text("domain").unwrap_or_default(), descriptors: descriptors() },
        "explain" => AdminAction::Explain {
            domain: text("domain").unwrap_or_default(),
            descriptors: descriptors(),
            cost: matches.get_one("cost").copied().unwrap_or(1),
            allows_unmatched: matches.get_flag("allow-unmatched"),
        },
        "top" => AdminAction::Top,
        "reload" => AdminAction::Reload,
        _ => return None,
    };
    let server = text("server").unwrap_or_default();
    let token_file = matches.get_one("admin-token-file").cloned();
    Some(Admin { server, token_file, json: matches.get_flag("json"), action })
}

/// Reads one entry, which is written as in a descriptor.
fn entry(text: &str) -> Result<(String, String), String> {
    let Entries(mut entries) = entries(text)?;
    match entries.pop() {
        Some(entry) if entries.is_empty() => Ok(entry),
        _ => Err("write one KEY=VALUE (a comma in a value is written `\\,`)".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_one_key_with_one_value() {
        let pair = |key: &str, value: &str| Ok((key.to_owned(), value.to_owned()));
        assert_eq!(entry("remote_address=203.0.113.9"), pair("remote_address", "203.0.113.9"));
        assert_eq!(entry(r"agent=a\,b=c"), pair("agent", "a,b=c"));
        for wrong in ["", "a", "a=1,b=2", "=1"] {
            assert!(entry(wrong).is_err(), "{wrong}");
        }
    }
}
