//! The arguments of `spillgate health`.

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::admin::{tls_arguments, tls_files};
use super::arguments::json_argument;
use super::verb::Health;

const EXIT_CODES: &str = "Exit codes:
  0  the server is ready, or with --live: it answers
  1  it is not ready, or does not answer
  2  the command line, or a variable with the address, is wrong
  3  the output cannot be written";

pub(super) fn command() -> Command {
    Command::new("health")
        .about("Ask a server whether it is ready, for the health check of a container")
        .after_help(format!(
            "Examples:\n  spillgate health\n  spillgate health http://127.0.0.1:8090 --live\n  \
             spillgate health unix:/run/spillgate/health.sock --json\n  \
             spillgate health https://localhost:6070 --ca ca.pem\n  \
             and in a Dockerfile: HEALTHCHECK CMD [\"/spillgate\", \"health\"]\n\n{EXIT_CODES}"
        ))
        .arg(Arg::new("URL").help(
            "A health, HTTP or admin listener: http://HOST:PORT, https://HOST:PORT (if it has TLS) or unix:/path. Without it: the address in \
             SPILLGATE_HEALTH, then SPILLGATE_ADMIN_URL, then http://127.0.0.1:6070",
        ))
        .arg(
            Arg::new("live")
                .long("live")
                .action(ArgAction::SetTrue)
                .help("Ask only whether the server answers (/healthz instead of /readyz)"),
        )
        .args(tls_arguments())
        .arg(json_argument("Print one line of JSON"))
}

pub(super) fn read(matches: &ArgMatches) -> Health {
    Health {
        server: matches.get_one("URL").cloned(),
        tls: tls_files(matches),
        live: matches.get_flag("live"),
        json: matches.get_flag("json"),
    }
}
