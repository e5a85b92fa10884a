//! The command lines of `key` and `doctor`, and the flags that `check` has for a shared store.
//!
//! These commands have only the settings that change which store they reach, which keys they use, or what they answer.

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::arguments::{
    config_argument, descriptor_argument, domain_argument, given, json_argument, paths, rules_argument, setting,
};
use super::verb::{Check, Doctor, KeyNames, Setting};
use crate::settings::KEYS;

const EXIT_CODES_OF_KEY: &str = "Exit codes:
  0  success
  1  no limit was found
  2  the command line, a setting or a rule is wrong
  3  the output cannot be written";

const EXIT_CODES_OF_DOCTOR: &str = "Exit codes:
  0  nothing has to be fixed
  1  something has to be fixed
  2  the command line or a setting is wrong
  3  the store cannot be reached or refuses access; or the output cannot be written";

/// The settings that say how to reach a shared store, and which commands to send.
const REACHING: [&str; 12] = [
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
];
/// The settings that change the names of keys.
const NAMING: [&str; 3] = ["store.key_secret_file", "store.log", "store.scripts"];
/// The further settings of `doctor`: that with which it compares the latency of the store, and those of other regions.
const OF_DOCTOR: [&str; 10] = [
    "store.deadline",
    "store.key_secret_file",
    "regions.name",
    "regions.peers",
    "regions.default",
    "regions.user",
    "regions.password_file",
    "regions.tls.ca",
    "regions.tls.cert",
    "regions.tls.key",
];

/// Returns the settings of a command that reads keys in a store.
fn for_keys() -> Vec<&'static str> {
    [&REACHING[..], &["store.key_secret_file"]].concat()
}

fn with(command: Command, paths: &[&str]) -> Command {
    KEYS.iter().filter(|key| paths.contains(&key.path)).fold(command, |command, key| command.arg(setting(key)))
}

fn settings(matches: &ArgMatches, paths: &[&str]) -> Vec<Setting> {
    given(matches, KEYS.iter().filter(|key| paths.contains(&key.path)))
}

/// Adds the flags that `check` needs to ask a shared store.
pub(super) fn check_arguments(command: Command) -> Command {
    let take = Arg::new("take").long("take").action(ArgAction::SetTrue);
    let take = take.help("Take the units from the shared store. Without --take, the store is only read");
    with(command, &for_keys()).arg(take.help_heading("Store"))
}

/// Adds the values of the flags for a shared store to `check`.
pub(super) fn check_settings(matches: &ArgMatches, check: Check) -> Check {
    Check { flags: settings(matches, &for_keys()), takes: matches.get_flag("take"), ..check }
}

pub(super) fn key_command() -> Command {
    let command = Command::new("key")
        .about("Print the names that the counters of some descriptors have in a shared store")
        .long_about(
            "Print the names that the counters of some descriptors have in a shared store.\n\n\
             Names are hashes: a name does not show its descriptor, and another key secret gives other names. The \
             command does not connect to the store.",
        )
        .after_help(format!(
            "Examples:\n  spillgate key rules.yaml --domain api --descriptor user_id=7\n  \
             spillgate key --config redis.yaml rules.yaml --domain api --descriptor user_id=7 --json\n  \
             redis-cli --scan --pattern 'sg:*'      all keys of spillgate\n\n{EXIT_CODES_OF_KEY}"
        ))
        .arg(rules_argument())
        .arg(config_argument(
            "Settings file with the key secret. If no RULES are given, the rules of this file are used",
        ))
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
        .about("Find what is wrong with a shared store, and say how to fix it")
        .long_about(
            "Find what is wrong with a shared store, and say how to fix it.\n\n\
             Of the store, it examines the version, the role, the eviction policy, the rights of the user, the clock, the scripts and \
             the latency. It also examines the slots and replicas of a cluster, and whether all sentinels answer. It runs \
             the scripts on keys of its own, and then removes these keys. It changes nothing else.\n\n\
             If the settings name other regions, it also examines whether each of their stores can be reached and charged, and \
             agrees in what has to be the same. It charges one unit of a key of its own there, which ends within a minute.\n\n\
             With a settings file, it finds files that the settings name and that are mounted alone (subPath in Kubernetes), and the \
             settings file itself. The server never sees a new version of such a file. It also reads the files of TLS on the listeners. If the \
             store is memory, this is all.",
        )
        .after_help(format!(
            "Examples:\n  spillgate doctor --store redis://127.0.0.1:6379\n  \
             spillgate doctor --config redis.yaml --json\n  \
             spillgate doctor --store rediss://redis.internal --store-user limiter --store-password-file password\n  \
             spillgate doctor --config eu.yaml      with regions.peers, the stores of the other regions too\n\n\
             {EXIT_CODES_OF_DOCTOR}"
        ))
        .arg(config_argument("Settings file that names the store"));
    with(with(command, &REACHING), &OF_DOCTOR).arg(json_argument("Print one line of JSON"))
}

pub(super) fn doctor(matches: &ArgMatches) -> Doctor {
    let config = matches.get_one("config").cloned();
    let flags = [settings(matches, &REACHING), settings(matches, &OF_DOCTOR)].concat();
    Doctor { config, flags, json: matches.get_flag("json") }
}
