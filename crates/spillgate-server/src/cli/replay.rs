//! The arguments of `spillgate replay`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use spillgate_service::text::duration;

use super::arguments::{EXIT_CODES, config_argument, given, json_argument, paths, rules_argument, setting};
use super::verb::Replay;
use crate::settings::{KEYS, Key};

pub(super) fn command() -> Command {
    let command = Command::new("replay")
        .about("Show what rules would have done to the requests of an access log")
        .long_about(
            "Show what rules would have done to the requests of an access log.\n\n\
             The requests are decided on a virtual clock, at the times of their lines, by the same code as in the server. Each \
             request costs 1 unit. The command needs no server, and it changes nothing.",
        )
        .after_help(format!(
            "Formats: combined and common (Apache, nginx), nginx (the same as combined), envoy, caddy, haproxy, traefik, squid,\n\
             iis, cloudfront, alb, s3, json, csv, docker:FORMAT for the JSON lines of Docker, or a pattern as nginx's log_format\n\
             has it: '$remote_addr [$time_local] \"$request\" $status'. Files can be plain, gzip or zstd, and in any order.\n\n\
             Examples:\n  spillgate replay rules.yaml --log access.log* --descriptor 'remote_address={{remote_addr|network}}'\n  \
             spillgate replay new.yaml --compare old.yaml --log access.log.gz -e 'path={{path|normal}}'\n  \
             spillgate replay rules.yaml --log caddy.log --format caddy -e 'remote_address={{remote_addr|network}}' --suggest\n  \
             zcat access.log.gz | spillgate replay rules.yaml --log - -e 'remote_address={{remote_addr|network}}' --html report.html\n\n\
             {EXIT_CODES}"
        ))
        .arg(rules_argument())
        .arg(config_argument("Settings file. If no RULES are given, the rules of this file are used"));
    let command = output_arguments(question_arguments(log_arguments(command)));
    settings().fold(command, |command, key| command.arg(setting(key)))
}

/// Returns the settings that say how the server counts clients.
fn settings() -> impl Iterator<Item = &'static Key> {
    KEYS.iter().filter(|key| matches!(key.path, "trusted_proxies" | "forward_auth.ipv6_prefix"))
}

fn log_arguments(command: Command) -> Command {
    command
        .arg(
            Arg::new("log")
                .long("log")
                .short('l')
                .value_name("FILE")
                .action(ArgAction::Append)
                .num_args(1..)
                .required(true)
                .value_parser(value_parser!(PathBuf))
                .help("Access logs. - is standard input"),
        )
        .arg(
            Arg::new("format")
                .long("format")
                .short('f')
                .value_name("FORMAT")
                .default_value("combined")
                .help("How a line is written: one of the formats below, or a pattern"),
        )
        .arg(
            Arg::new("time-field")
                .long("time-field")
                .value_name("FIELD")
                .help("Field with the time of a line. Without it, the usual names are tried"),
        )
        .arg(
            Arg::new("out-of-order")
                .long("out-of-order")
                .value_name("DURATION")
                .default_value("60s")
                .value_parser(|text: &str| duration(text).map_err(str::to_owned))
                .help("How much later than its neighbours a line can come, and is still put into its place"),
        )
}

fn question_arguments(command: Command) -> Command {
    command
        .arg(
            Arg::new("descriptor")
                .long("descriptor")
                .short('e')
                .value_name("KEY={FIELD},...")
                .action(ArgAction::Append)
                .required(true)
                .help(
                    "One descriptor of each request, with fields of its line in braces. {FIELD|MODIFIER} changes a value \
                     as the server does: ip, network, client, first, last, normal. Repeat the flag for several \
                     descriptors. A descriptor is left out if the line has no such field",
                ),
        )
        .arg(
            Arg::new("domain")
                .long("domain")
                .short('d')
                .value_name("NAME")
                .help("Domain of the rules. It is needed if the rules have several domains"),
        )
        .arg(
            Arg::new("wait")
                .long("wait")
                .value_name("DURATION")
                .default_value("0s")
                .value_parser(|text: &str| duration(text).map_err(str::to_owned))
                .help("How long a request may wait in the queue of a leaky bucket"),
        )
        .arg(
            Arg::new("compare")
                .long("compare")
                .value_name("OLD")
                .action(ArgAction::Append)
                .value_parser(value_parser!(PathBuf))
                .help("Rules to compare with: shows what changes for each limit and each caller"),
        )
        .arg(
            Arg::new("suggest")
                .long("suggest")
                .action(ArgAction::SetTrue)
                .help("Try each suggestion of insight on the same log, and show the result beside today's"),
        )
}

fn output_arguments(command: Command) -> Command {
    command
        .arg(
            Arg::new("html")
                .long("html")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("Also write the report with pictures into one HTML file"),
        )
        .arg(
            Arg::new("anonymous")
                .long("anonymous")
                .action(ArgAction::SetTrue)
                .help("Hide the callers: hashes take the place of their names, and no line of the log is shown"),
        )
        .arg(json_argument("Print one line of JSON"))
}

pub(super) fn read(matches: &ArgMatches) -> Replay {
    let texts = |name: &str| matches.get_many(name).into_iter().flatten().cloned().collect();
    Replay {
        config: matches.get_one("config").cloned(),
        rules: paths(matches),
        compare: matches.get_many("compare").into_iter().flatten().cloned().collect(),
        logs: matches.get_many("log").into_iter().flatten().cloned().collect(),
        format: matches.get_one("format").cloned().unwrap_or_default(),
        time_field: matches.get_one("time-field").cloned(),
        descriptors: texts("descriptor"),
        flags: given(matches, settings()),
        domain: matches.get_one("domain").cloned(),
        out_of_order: matches.get_one::<Duration>("out-of-order").copied().unwrap_or_default(),
        wait: matches.get_one::<Duration>("wait").copied().unwrap_or_default(),
        suggests: matches.get_flag("suggest"),
        anonymous: matches.get_flag("anonymous"),
        html: matches.get_one("html").cloned(),
        json: matches.get_flag("json"),
    }
}
