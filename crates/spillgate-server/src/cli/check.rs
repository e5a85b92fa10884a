//! The command line of `spillgate check`.
//!
//! A question is one request at one time. One command can ask many questions: at each time of `--at`, it asks with each
//! cost of `--cost`, and repeats this `--times` times. This file bounds the number of questions.

use std::time::Duration;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use spillgate_service::text::duration;

use super::arguments::{
    allow_unmatched_argument, config_argument, descriptor_argument, domain_argument, json_argument, paths,
    rules_argument,
};
use super::store;
use super::verb::Check;

const EXIT_CODES: &str = "Exit codes:
  0  every request was allowed
  1  a request was refused
  2  the command line, a setting or a rule is wrong, or no rule has the domain or a key of a request
  3  the store cannot be reached or refuses access; or the output cannot be written";

/// The maximum number of questions of one `check`.
const QUESTIONS_MAX: usize = 10_000;

pub(super) fn command() -> Command {
    let command = Command::new("check")
        .about("Decide requests by rules files, on a virtual clock or in a shared store, and explain the answers")
        .long_about(
            "Decide requests by rules files, on a virtual clock and without a server, and explain the answers.\n\n\
             The clock starts at 0s. Every window begins then, and nothing has been used. If a shared store is named \
             (--store, SPILLGATE_STORE or the settings file), that store is asked instead, with its own clock and counts. \
             The answer is what the store would decide now. Units are taken only with --take. The settings \
             store.key_secret_file, store.log and store.scripts must have the same values as on the servers. Otherwise \
             the command reads other keys than the servers. --store memory always uses the virtual clock.",
        )
        .after_help(format!(
            "Descriptors are written KEY=VALUE, with commas between entries. The first = ends the key. Write \\, for a comma \
             in a value, \\\\ for a backslash and \\= for a = in a key.\n\n\
             Examples:\n  spillgate check rules.yaml --domain api --descriptor user_id=7\n  \
             spillgate check rules.yaml --domain api --descriptor user_id=7,path=/x --times 12\n  \
             spillgate check rules.yaml --domain api --descriptor user_id=7 --at 0s,100ms,1s --cost 3\n  \
             spillgate check login.yaml --domain login --descriptor account=bob --cost 0,1,0,1,0\n  \
             spillgate check rules.yaml --domain api --descriptor 'tags=a\\,b' --descriptor tenant=t1\n  \
             spillgate check rules.yaml --domain api --descriptor user_id=7 --store redis://127.0.0.1:6379 \
             --store-key-secret-file key.secret\n\n{EXIT_CODES}"
        ))
        .arg(rules_argument())
        .arg(config_argument("Settings file. If no RULES are given, the rules of this file are used"))
        .arg(domain_argument())
        .arg(descriptor_argument());
    let command = question_arguments(command).arg(allow_unmatched_argument());
    store::check_arguments(command).arg(json_argument("Print one line of JSON"))
}

/// Adds the arguments that say what to ask, when, and how often.
fn question_arguments(command: Command) -> Command {
    command
        .arg(
            Arg::new("cost")
                .long("cost")
                .value_name("UNITS")
                .default_value("1")
                .value_delimiter(',')
                .allow_negative_numbers(true)
                .value_parser(units)
                .help("Units that a request takes. 0 takes nothing. Several costs send several requests: 0,5,0"),
        )
        .arg(
            Arg::new("times")
                .long("times")
                .short('n')
                .value_name("COUNT")
                .default_value("1")
                .value_parser(value_parser!(u32).range(1..=10_000))
                .help("At each time of --at, send the requests this many times"),
        )
        .arg(
            Arg::new("release")
                .long("release")
                .action(ArgAction::SetTrue)
                .help("Release the permits of each request before the next one (algorithm concurrency)"),
        )
        .arg(
            Arg::new("at")
                .long("at")
                .value_name("TIMES")
                .default_value("0s")
                .value_delimiter(',')
                .value_parser(instant)
                .help("When to ask, counted from the start of the clock: 0s,100ms,1m"),
        )
        .arg(
            Arg::new("wait")
                .long("wait")
                .value_name("DURATION")
                .default_value("0s")
                .value_parser(instant)
                .help("The longest delay that the caller accepts (algorithm leaky_bucket)"),
        )
}

pub(super) fn read(matches: &ArgMatches) -> Result<Check, clap::Error> {
    let at: Vec<Duration> = matches.get_many("at").into_iter().flatten().copied().collect();
    let times = matches.get_one("times").copied().unwrap_or(1);
    let mut command = command();
    if !at.is_sorted() {
        let why = "the times of --at go back: write them in rising order";
        return Err(command.error(clap::error::ErrorKind::ValueValidation, why));
    }
    let costs: Vec<u64> = matches.get_many("cost").into_iter().flatten().copied().collect();
    if at.len().saturating_mul(times as usize).saturating_mul(costs.len()) > QUESTIONS_MAX {
        let why = format!("--at, --times and --cost together make more than {QUESTIONS_MAX} questions: ask fewer");
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
        allows_unmatched: matches.get_flag("allow-unmatched"),
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
