//! The arguments of `spillgate insight`.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use super::arguments::{EXIT_CODES, json_argument};
use super::verb::Insight;

/// The address of the admin listener if the settings do not change it.
const DEFAULT_ADMIN: &str = "http://127.0.0.1:6070";

pub(super) fn command() -> Command {
    Command::new("insight")
        .about("Show what each limit does to its callers, with a verdict and a better limit")
        .after_help(format!(
            "Examples:\n  spillgate insight\n  spillgate insight --admin http://10.0.0.1:6070 --admin http://10.0.0.2:6070\n  \
             spillgate insight --admin unix:/run/spillgate/admin.sock --json\n  \
             spillgate insight --admin-token-file /etc/spillgate/admin.token\n\n\
             Several servers are shown as one. A caller of two servers is one caller only if both use the\n\
             same store and the same store.key_secret_file. If a server does not answer, the others are\n\
             shown, and the exit code is 3.\n\n{EXIT_CODES}"
        ))
        .arg(
            Arg::new("server")
                .long("admin")
                .value_name("URL")
                .action(ArgAction::Append)
                .default_value(DEFAULT_ADMIN)
                .help("Admin listener of a server: http://HOST:PORT or unix:/path. Repeat the flag for several servers"),
        )
        .arg(
            Arg::new("admin-token-file")
                .long("admin-token-file")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("File with the bearer token of the admin listeners"),
        )
        .arg(json_argument("Print one line of JSON"))
}

pub(super) fn read(matches: &ArgMatches) -> Insight {
    Insight {
        admin: matches.get_many("server").into_iter().flatten().cloned().collect(),
        admin_token_file: matches.get_one("admin-token-file").cloned(),
        json: matches.get_flag("json"),
    }
}
