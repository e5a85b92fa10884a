//! The command line of `spillgate serve`.
//!
//! Every setting is a flag here. The other commands have only the settings that they need.

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::arguments::{config_argument, given, json_argument, paths, rules_argument, setting};
use super::verb::Serve;
use crate::settings::KEYS;

const EXIT_CODES: &str = "Exit codes:
  0  the server has ended as SIGTERM or SIGINT asked
  2  the command line, a setting or a rule is wrong. Nothing was started
  3  it could not start (an address in use, no permission), or did not end well (a failed worker, a
     second SIGTERM, a last snapshot that cannot be written)";

pub(super) fn command() -> Command {
    let command = Command::new("serve")
        .about("Serve decisions over gRPC (Envoy RLS v3) and HTTP")
        .long_about(
            "Serve decisions over gRPC (Envoy RLS v3) and HTTP.\n\n\
             Each setting has a flag, an environment variable and a key in the settings file. The flag wins over the \
             variable, and the variable over the file. The brackets after each flag show its variable and its key. \
             Relative paths in a settings file start at its folder.",
        )
        .after_help(format!(
            "Examples:\n  spillgate serve rules.yaml\n  spillgate serve --config spillgate.yaml\n  \
             spillgate serve rules/ --http unix:/run/spillgate.sock --grpc off\n  \
             SPILLGATE_GRPC=0.0.0.0:9081 spillgate serve rules.yaml --memory-max-keys 1M\n  \
             spillgate serve rules.yaml --store redis://127.0.0.1:6379 --store-key-secret-file key.secret\n\n\
             Signals:\n  SIGTERM, SIGINT  stop listening, answer requests in flight, exit; a second signal exits at once\n  \
             SIGHUP           read rules, admin tokens and the settings file again, and use what has no error; most \
             settings need a restart\n\n{EXIT_CODES}"
        ))
        .arg(rules_argument())
        .arg(config_argument("Settings file (YAML)"))
        .arg(json_argument("Print one line of JSON instead of the start-up text"))
        .arg(
            Arg::new("show-settings")
                .long("show-settings")
                .action(ArgAction::SetTrue)
                .help("Print every setting and the place where it was set, then exit"),
        );
    KEYS.iter().fold(command, |command, key| command.arg(setting(key)))
}

pub(super) fn read(matches: &ArgMatches) -> Serve {
    Serve {
        config: matches.get_one("config").cloned(),
        rules: paths(matches),
        flags: given(matches, KEYS.iter()),
        show_settings: matches.get_flag("show-settings"),
        json: matches.get_flag("json"),
    }
}
