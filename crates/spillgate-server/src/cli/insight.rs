//! The arguments of `spillgate insight`.

use clap::{ArgAction, ArgMatches, Command};

use super::admin::{server_argument, token_file_argument};
use super::arguments::json_argument;
use super::verb::Insight;

const EXIT_CODES: &str = "Exit codes:
  0  all servers were asked
  2  the command line is wrong
  3  a server cannot be asked; the others are shown. Or the output cannot be written";

pub(super) fn command() -> Command {
    Command::new("insight")
        .about("Show what each limit does to its callers, with a verdict and a better limit")
        .after_help(format!(
            "Examples:\n  spillgate insight\n  spillgate insight --admin http://10.0.0.1:6070 --admin http://10.0.0.2:6070\n  \
             spillgate insight --admin unix:/run/spillgate/admin.sock --json\n  \
             spillgate insight --admin-token-file /etc/spillgate/admin.token\n\n\
             Several servers are shown as one. A caller of two servers is one caller only if both use the\n\
             same store and the same store.key_secret_file.\n\n{EXIT_CODES}"
        ))
        .arg(
            server_argument()
                .action(ArgAction::Append)
                .help("Admin listener of a server: http://HOST:PORT or unix:/path. Repeat the flag for several servers"),
        )
        .arg(token_file_argument())
        .arg(json_argument("Print one line of JSON"))
}

pub(super) fn read(matches: &ArgMatches) -> Insight {
    Insight {
        admin: matches.get_many("server").into_iter().flatten().cloned().collect(),
        admin_token_file: matches.get_one("admin-token-file").cloned(),
        json: matches.get_flag("json"),
    }
}
