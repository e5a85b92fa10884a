//! The commands that are about a shared store, and what they and `check` take of its settings.

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::{
    Check, Doctor, EXIT_CODES, KeyNames, Setting, config_argument, descriptor_argument, domain_argument, given,
    json_argument, paths, rules_argument, setting,
};
use crate::settings::KEYS;

/// The flags of a shared store that are about what is asked and how it is reached.
const REACHING: [&str; 13] = [
    "store.url",
    "store.user",
    "store.password_file",
    "store.sentinel_user",
    "store.sentinel_password_file",
    "store.tls.ca",
    "store.tls.cert",
    "store.tls.key",
    "store.tls.server_name",
    "store.tls.skip_name_check",
    "store.scripts",
    "store.log",
    "store.fixed_window",
];
/// And about which keys.
const NAMING: [&str; 4] = ["store.key_secret_file", "store.log", "store.scripts", "store.fixed_window"];
/// What the doctor compares as well.
const DEADLINE: [&str; 1] = ["store.deadline"];

/// All flags of a command that asks about keys.
fn asking() -> Vec<&'static str> {
    [&REACHING[..], &["store.key_secret_file"]].concat()
}

fn with(command: Command, paths: &[&str]) -> Command {
    KEYS.iter().filter(|key| paths.contains(&key.path)).fold(command, |command, key| command.arg(setting(key)))
}

fn settings(matches: &ArgMatches, paths: &[&str]) -> Vec<Setting> {
    given(matches, KEYS.iter().filter(|key| paths.contains(&key.path)))
}

/// What `check` takes to ask a real store.
pub(super) fn check_arguments(command: Command) -> Command {
    let take = Arg::new("take").long("take").action(ArgAction::SetTrue);
    let take =
        take.help("Of a shared store: really take the units; without it the store is looked at, and nothing changes");
    with(command, &asking()).arg(take.help_heading("Store"))
}

pub(super) fn check_settings(matches: &ArgMatches, check: Check) -> Check {
    Check { flags: settings(matches, &asking()), takes: matches.get_flag("take"), ..check }
}

pub(super) fn key_command() -> Command {
    let command = Command::new("key")
        .about("Print what the keys of descriptors are called in a shared store")
        .long_about(
            "Print what the keys of descriptors are called in a shared store.\n\n\
             Names are hashes: nobody can tell from a name what it counts, and with another key secret it is another \
             name. The store is not asked.",
        )
        .after_help(format!(
            "Examples:\n  spillgate key rules.yaml --domain api --descriptor user_id=7\n  \
             spillgate key --config redis.yaml rules.yaml --domain api --descriptor user_id=7 --json\n  \
             redis-cli --scan --pattern 'sg:*'      all that is counted\n\n{EXIT_CODES}"
        ))
        .arg(rules_argument())
        .arg(config_argument("Settings file; its rules are read if none are given, and its key secret is used"))
        .arg(domain_argument())
        .arg(descriptor_argument());
    with(command, &NAMING).arg(json_argument("Print one line of JSON"))
}

pub(super) fn key(matches: &ArgMatches) -> KeyNames {
    KeyNames {
        config: matches.get_one("config").cloned(),
        rules: paths(matches),
        flags: settings(matches, &NAMING),
        domain: matches.get_one("domain").cloned().unwrap_or_default(),
        descriptors: matches.get_many("descriptor").into_iter().flatten().cloned().collect(),
        json: matches.get_flag("json"),
    }
}

pub(super) fn doctor_command() -> Command {
    let command = Command::new("doctor")
        .about("Find what is wrong with a shared store, and say what helps")
        .long_about(
            "Find what is wrong with a shared store, and say what helps.\n\n\
             Looks at the version, the role, the eviction policy, what the user may do, the clock, the scripts, the \
             latency and, of a cluster, its slots and replicas, or whether all sentinels answer. It runs the scripts on keys of its own, \
             which it removes, and changes nothing else.",
        )
        .after_help(format!(
            "Examples:\n  spillgate doctor --store redis://127.0.0.1:6379\n  \
             spillgate doctor --config redis.yaml --json\n  \
             spillgate doctor --store rediss://redis.internal --store-user limiter --store-password-file password\n\n\
             {EXIT_CODES}"
        ))
        .arg(config_argument("Settings file that names the store"));
    with(with(command, &REACHING), &DEADLINE).arg(json_argument("Print one line of JSON"))
}

pub(super) fn doctor(matches: &ArgMatches) -> Doctor {
    let config = matches.get_one("config").cloned();
    let flags = [settings(matches, &REACHING), settings(matches, &DEADLINE)].concat();
    Doctor { config, flags, json: matches.get_flag("json") }
}
