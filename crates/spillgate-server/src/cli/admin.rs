//! The arguments of the commands for operators: `block`, `unblock`, `blocks`, `shadow`, `shadows`, `reset`, `explain`,
//! `top`, `reload`, `reloads` and `regions`. Each has the name of the route of the admin listener that it uses.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command, value_parser};
use serde::de::IgnoredAny;

use super::DEFAULT_ADMIN;
use super::arguments::{
    allow_unmatched_argument, descriptor_argument, domain_argument, entries, json_argument, optional_domain_argument,
};
use super::verb::{
    Admin, AdminAction, BlockedEntry, CallerValue, Entries, ExplainedRequest, RegionAction, RuleName, TlsFiles,
};

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

/// The exit codes of `block`, which can wait for a caller.
const EXIT_CODES_OF_BLOCK: &str = "Exit codes:
  0  done
  1  nothing was changed: the list is full, or the --hash has no entry of its own, or several
  2  the command line is wrong, or the server says that the request is wrong
  3  the server cannot be asked, refuses the token, has failed, or sees no request of the --hash:
     the error says whether something may have changed; or the output cannot be written";

const TOKEN: &str =
    "If the server has an admin token, name a file with its text: --admin-token-file, or the environment
variable SPILLGATE_ADMIN_TOKEN_FILE. Commands that change something need the text of the setting
admin_token_file; for the others that of admin_read_token_file is enough.";

/// Returns the commands for operators.
pub(super) fn commands() -> [Command; 11] {
    [block(), unblock(), blocks(), shadow(), shadows(), reset(), explain(), top(), reload(), reloads(), regions()]
}

pub(super) fn server_argument() -> Arg {
    Arg::new("server").long("admin").value_name("URL").default_value(DEFAULT_ADMIN).help(
        "Admin listener of the server: http://HOST:PORT, https://HOST:PORT or unix:/path [env: SPILLGATE_ADMIN_URL]",
    )
}

/// Returns whether the command line has an address of an admin listener. Without it, the environment can have one.
pub(super) fn has_server(matches: &ArgMatches) -> bool {
    matches.value_source("server") == Some(ValueSource::CommandLine)
}

/// Returns the arguments for addresses with `https`. The argument `--key` of `block` is something else.
pub(super) fn tls_arguments() -> [Arg; 3] {
    let file =
        |name, help| Arg::new(name).long(name).value_name("FILE").value_parser(value_parser!(PathBuf)).help(help);
    [
        file(
            "ca",
            "File (PEM) with the authority of the server's certificate, for https. Without it, the authorities of the system \
             [env: SPILLGATE_ADMIN_CA]",
        ),
        file(
            "client-cert",
            "File (PEM) with the certificate of this client, for a listener that wants one (tls.client_ca) \
             [env: SPILLGATE_ADMIN_CLIENT_CERT]",
        ),
        file("client-key", "File (PEM) with the private key of this certificate [env: SPILLGATE_ADMIN_CLIENT_KEY]"),
    ]
}

pub(super) fn tls_files(matches: &ArgMatches) -> TlsFiles {
    let file = |name| matches.get_one(name).cloned();
    TlsFiles { ca: file("ca"), cert: file("client-cert"), key: file("client-key") }
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
        .args(tls_arguments())
        .arg(token_file_argument())
        .arg(json_argument("Print the answer of the server as JSON"))
}

/// Returns the argument that names the only rule that is shown.
pub(super) fn rule_argument() -> Arg {
    Arg::new("RULE")
        .help("Show only this rule, by its name or that of a limit of it, as any command prints it: 'api: user_id'")
}

fn entry_argument() -> Arg {
    let help = "The key and the value of an entry, as requests have them. Write \\, for a comma";
    Arg::new("ENTRY").value_name("KEY=VALUE").value_parser(entry).help(help)
}

fn hash_argument() -> Arg {
    let help =
        "Hash of a caller, as top, insight and the page show it. The server waits 3s for a request of this caller";
    Arg::new("hash").long("hash").value_name("HASH").help(help)
}

fn for_argument(help: &'static str) -> Arg {
    // A duration with a sign is wrong, but no flag.
    Arg::new("for").long("for").value_name("DURATION").allow_hyphen_values(true).help(help)
}

fn block() -> Command {
    let about = "Refuse all requests with one value, for example one address, for a time";
    let examples = [
        " remote_address=203.0.113.9 --for 10m",
        " user_id=7 --domain api --for 1h --reason 'sends floods'",
        " remote_address=203.0.113.9 --for 10m --admin http://10.0.0.1:6070",
        " --hash 5f3c8a1be07d4926 --for 10m",
    ];
    let reason = Arg::new("reason").long("reason").value_name("TEXT").help("Text that other operators see");
    with_server(
        command("block", about, &examples, EXIT_CODES_OF_BLOCK)
            .arg(entry_argument())
            .arg(hash_argument())
            .group(ArgGroup::new("blocked").args(["ENTRY", "hash"]).required(true))
            .arg(
                Arg::new("key")
                    .long("key")
                    .value_name("KEY")
                    .requires("hash")
                    .help("With --hash: the key of the entry to block, if the caller has several of its own"),
            )
            .arg(
                for_argument("How long: 1s to 30d, for example 10m. A new block replaces an earlier one")
                    .required(true),
            )
            .arg(optional_domain_argument("Refuse only requests of this domain. Without it, those of all domains"))
            .arg(reason)
            .arg(allow_unmatched_argument().conflicts_with("hash")),
    )
}

fn unblock() -> Command {
    let examples = [" remote_address=203.0.113.9", " user_id=7 --domain api"];
    with_server(
        command("unblock", "End the block on a value before its time", &examples, EXIT_CODES_OF_CHANGES)
            .arg(entry_argument().required(true))
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
        " off 'api: user_id'",
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
                    .help("Name of the rule or of a limit of it, as any command prints it: 'api: user_id', or only the path: user_id"),
            )
            .arg(
                Arg::new("all")
                    .long("all")
                    .action(ArgAction::SetTrue)
                    .conflicts_with("domain")
                    .help("All rules of all domains"),
            )
            .group(ArgGroup::new("rules").args(["RULE", "all"]).required(true))
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
  3  the server cannot be asked, refuses the token, has failed, or sees no request of the --hash;
     or the output cannot be written";
    let examples = [
        " --domain api --descriptor user_id=7",
        " --domain api --descriptor plan=free,user_id=7 --descriptor remote_address=203.0.113.9",
        " --domain api --descriptor user_id=7 --cost 5 --json",
        " --request '{\"domain\": \"api\", \"descriptors\": [{\"user_id\": \"7\"}]}'",
        " --caller user_id=7 --caller 203.0.113.9",
        " --hash 5f3c8a1be07d4926",
    ];
    let about = "Say why a running server would allow or refuse a request now, and take nothing. Or list all limits of a caller";
    with_server(
        command("explain", about, &examples, codes)
            .arg(optional_domain_argument("Domain of the rules. Needed with --descriptor"))
            .arg(descriptor_argument().required(false).requires("domain"))
            .arg(
                Arg::new("request")
                    .long("request")
                    .value_name("JSON")
                    .value_parser(request)
                    .conflicts_with_all(["domain", "cost"])
                    .help("A whole request in JSON, as /v1/check takes it, or as Envoy sends it to /json"),
            )
            .arg(
                Arg::new("caller")
                    .long("caller")
                    .value_name("KEY=VALUE")
                    .action(ArgAction::Append)
                    .value_parser(caller_value)
                    .conflicts_with("cost")
                    .help(
                        "All limits and blocks of a caller. VALUE alone is tried with every key without a `*`, and only \
                         limits that it uses are listed. Repeat the flag for more values",
                    ),
            )
            .arg(hash_argument().conflicts_with("domain"))
            .group(ArgGroup::new("asked").args(["descriptor", "request", "caller", "hash"]).required(true))
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
    let codes = "Exit codes:
  0  done
  2  the command line is wrong, or no limit that is watched has the name RULE
  3  the server cannot be asked, or refuses the token; or the output cannot be written";
    with_server(
        command("top", about, &["", " 'api: user_id'", " --domain api --json"], codes)
            .arg(rule_argument())
            .arg(optional_domain_argument("Show only rules of this domain")),
    )
}

fn reload() -> Command {
    let codes = "Exit codes:
  0  the server uses what it has read
  1  a file has errors, and what it says is not used; files without errors are used
  2  the command line is wrong
  3  the server cannot be asked, refuses the token, or has failed; or the output cannot be written";
    let about = "Make a server read its files again, wait, and say what has changed or which errors they have";
    with_server(command("reload", about, &["", " --admin unix:/run/spillgate/admin.sock"], codes))
}

fn reloads() -> Command {
    let about = "List the last reloads of a server: what each has changed, or why it failed";
    with_server(command("reloads", about, &["", " --json"], EXIT_CODES))
}

fn regions() -> Command {
    let examples = ["", " --json", " pause us", " resume us --admin http://10.0.0.1:6070"];
    let about = "Show how a server reaches the other regions, or let it send nothing to one of them";
    with_server(
        command("regions", about, &examples, EXIT_CODES_OF_CHANGES)
            .arg(
                Arg::new("ACTION")
                    .value_name("pause|resume")
                    .value_parser(PossibleValuesParser::new(["pause", "resume"]))
                    .hide_possible_values(true)
                    .requires("REGION")
                    .help("Send nothing to a region until resume or a restart. A restart loses what waits"),
            )
            .arg(Arg::new("REGION").value_parser(region).requires("ACTION").help("Name of the other region")),
    )
}

/// Reads the name of a region, which becomes a part of a path.
fn region(text: &str) -> Result<String, String> {
    let is_name = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let error = || "this is not the name of a region: it has lower-case letters, digits and dashes".to_owned();
    if is_name { Ok(text.to_owned()) } else { Err(error()) }
}

/// Reads the arguments of the command `name`. Returns `None` if it is no command for operators.
pub(super) fn read(name: &str, matches: &ArgMatches) -> Option<Admin> {
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    let entry = || matches.get_one("ENTRY").cloned().unwrap_or_default();
    let descriptors = || matches.get_many("descriptor").into_iter().flatten().cloned().collect::<Vec<Entries>>();
    let action = match name {
        "block" => AdminAction::Block {
            entry: match text("hash") {
                Some(hash) => BlockedEntry::Hash { hash, key: text("key") },
                None => BlockedEntry::Entry(entry()),
            },
            lasts: text("for").unwrap_or_default(),
            domain: text("domain"),
            reason: text("reason"),
            allows_unmatched: matches.get_flag("allow-unmatched"),
        },
        "unblock" => AdminAction::Unblock { entry: entry(), domain: text("domain") },
        "blocks" => AdminAction::Blocks,
        "shadow" => AdminAction::Shadow {
            rule: text("RULE").map_or(RuleName::All, |name| RuleName::One { name, domain: text("domain") }),
            is_on: text("STATE").is_some_and(|state| state == "on"),
            lasts: text("for"),
            scope: text("scope"),
        },
        "shadows" => AdminAction::Shadows,
        "reset" => AdminAction::Reset { domain: text("domain").unwrap_or_default(), descriptors: descriptors() },
        "explain" if matches.contains_id("caller") => AdminAction::Caller {
            values: matches.get_many("caller").into_iter().flatten().cloned().collect(),
            domain: text("domain"),
            allows_unmatched: matches.get_flag("allow-unmatched"),
        },
        "explain" => AdminAction::Explain {
            request: match (text("request"), text("hash")) {
                (Some(request), _) => ExplainedRequest::Json(request),
                (None, Some(hash)) => ExplainedRequest::Hash(hash),
                (None, None) => ExplainedRequest::Descriptors {
                    domain: text("domain").unwrap_or_default(),
                    descriptors: descriptors(),
                },
            },
            cost: matches.get_one("cost").copied().unwrap_or(1),
            allows_unmatched: matches.get_flag("allow-unmatched"),
        },
        "top" => AdminAction::Top { rule: text("RULE"), domain: text("domain") },
        "reload" => AdminAction::Reload,
        "reloads" => AdminAction::Reloads,
        "regions" => AdminAction::Regions(
            text("REGION")
                .map(|region| RegionAction { region, is_paused: text("ACTION").is_some_and(|it| it == "pause") }),
        ),
        _ => return None,
    };
    let server = text("server").filter(|_| has_server(matches));
    let token_file = matches.get_one("admin-token-file").cloned();
    Some(Admin { server, tls: tls_files(matches), token_file, json: matches.get_flag("json"), action })
}

/// Reads a request in JSON. The server checks its members.
fn request(text: &str) -> Result<String, String> {
    serde_json::from_str::<IgnoredAny>(text).map(|_| text.to_owned()).map_err(|error| {
        format!("this is not JSON: {error}. Write it as /v1/check takes it: {{\"domain\": \"api\", \"descriptors\": [{{\"user_id\": \"7\"}}]}}")
    })
}

/// Reads a value of a caller: `KEY=VALUE`, or only the value.
fn caller_value(text: &str) -> Result<CallerValue, String> {
    // A value of its own has no `=`, or has it with a backslash before it. The key `k` makes it an entry.
    match entry(text) {
        Ok((key, value)) => Ok(CallerValue { key: Some(key), value }),
        Err(error) => match entry(&format!("k={text}")) {
            Ok((_, value)) if !text.is_empty() && !text.starts_with('=') => Ok(CallerValue { key: None, value }),
            _ => Err(error),
        },
    }
}

/// Reads one entry, which is written as in a descriptor.
fn entry(text: &str) -> Result<(String, String), String> {
    if !text.is_empty() && !text.contains('=') {
        return Err(if text.contains(['.', ':']) {
            format!("`{text}` has no key: write KEY=VALUE, for example remote_address={text}")
        } else {
            format!("`{text}` has no `=`: write KEY=VALUE, for example user_id=7")
        });
    }
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

    #[test]
    fn a_value_of_a_caller_has_a_key_or_none() {
        let value =
            |key: Option<&str>, value: &str| CallerValue { key: key.map(str::to_owned), value: value.to_owned() };
        assert_eq!(caller_value("user_id=7"), Ok(value(Some("user_id"), "7")));
        assert_eq!(caller_value("user_id="), Ok(value(Some("user_id"), "")));
        assert_eq!(caller_value("203.0.113.9"), Ok(value(None, "203.0.113.9")));
        assert_eq!(caller_value(r"a\=b"), Ok(value(None, "a=b")), "the backslash makes it a value");
        for wrong in ["", "=1", "a=1,b=2", "a,b"] {
            assert!(caller_value(wrong).is_err(), "{wrong}");
        }
    }
}
