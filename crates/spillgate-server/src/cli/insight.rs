//! The arguments of `spillgate insight`.

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use super::admin::{has_server, rule_argument, server_argument, tls_arguments, tls_files, token_file_argument};
use super::arguments::{json_argument, optional_domain_argument};
use super::verb::Insight;

const EXIT_CODES: &str = "Exit codes:
  0  all servers were asked
  2  the command line is wrong, or no limit that was read has the name RULE
  3  a server cannot be asked; the others are shown. Or the output cannot be written";

pub(super) fn command() -> Command {
    Command::new("insight")
        .about("Show what each limit does to its callers, with a verdict and a better limit")
        .after_help(format!(
            "Examples:\n  spillgate insight\n  spillgate insight 'api: user_id' --limit 200\n  \
             spillgate insight --admin http://10.0.0.1:6070 --admin http://10.0.0.2:6070\n  \
             spillgate insight --admin unix:/run/spillgate/admin.sock --json\n  \
             spillgate insight --admin-token-file /etc/spillgate/admin.token\n\n\
             Several servers are shown as one. A caller of two servers is one caller only if both use the\n\
             same store and the same store.key_secret_file.\n\n{EXIT_CODES}"
        ))
        .arg(rule_argument())
        .arg(optional_domain_argument("Show only rules of this domain"))
        .arg(
            Arg::new("limit")
                .long("limit")
                .value_name("UNITS")
                .value_parser(value_parser!(u64).range(1..))
                .help("Say what so many units in each window would have changed, instead of those of the limit"),
        )
        .arg(server_argument().action(ArgAction::Append).help(
            "Admin listener of a server: http://HOST:PORT, https://HOST:PORT or unix:/path. Repeat the flag for several servers \
             [env: SPILLGATE_ADMIN_URL, for one server]",
        ))
        .args(tls_arguments())
        .arg(token_file_argument())
        .arg(json_argument("Print one line of JSON"))
}

pub(super) fn read(matches: &ArgMatches) -> Insight {
    Insight {
        admin: matches.get_many("server").into_iter().flatten().filter(|_| has_server(matches)).cloned().collect(),
        tls: tls_files(matches),
        admin_token_file: matches.get_one("admin-token-file").cloned(),
        rule: matches.get_one("RULE").cloned(),
        domain: matches.get_one("domain").cloned(),
        with_limit: matches.get_one("limit").copied(),
        json: matches.get_flag("json"),
    }
}
