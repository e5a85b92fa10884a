//! `spillgate health`: asks a server whether it is ready.
//!
//! The health check of a container runs this command, because a container with one program has neither a shell nor curl.
//! It reads no settings file: a file that was changed and not used yet must not make a server look ill.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::json;

use super::admin::client::{self, Admin, Request, TlsOptions};
use super::terminal::{EXIT_DENIED, EXIT_OK, EXIT_USAGE, Problem, Problems, Terminal, clean};
use crate::cli::{DEFAULT_ADMIN, Health};

/// A server has to answer within this time. Most probes give up earlier.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The variable of the setting `health`. A container that sets it needs no further address.
const VARIABLE: &str = "SPILLGATE_HEALTH";
/// What to do if the server does not answer at the address that a server has without settings.
const DEFAULT_FAILED: &str = "this command reads no settings file: give it the address of a listener (spillgate health http://HOST:PORT), or \
                          set SPILLGATE_HEALTH as for the server";
/// The most characters of an answer that are shown.
const ANSWER_CHARS: usize = 500;

pub(super) fn run(health: &Health, terminal: &mut Terminal) -> u8 {
    let variable = std::env::var(VARIABLE).ok();
    let tls = TlsOptions::new(&health.tls);
    let server = match tls.and_then(|tls| address(health.server.as_deref(), variable.as_deref(), &tls)) {
        Ok(server) => server,
        Err(problem) => {
            Problems::from(problem).print(health.json, terminal);
            return EXIT_USAGE;
        }
    };
    let path = if health.live { "/healthz" } else { "/readyz" };
    let request = Request { method: Method::GET, path: path.into(), token: None, body: None, within: TIMEOUT };
    let answer = client::send(&server, request, || {});
    let (status, text, help) = match &answer {
        Ok((status, body)) => (Some(status.as_u16()), String::from_utf8_lossy(body).trim().to_owned(), ""),
        Err(problem) if server.to_string() == DEFAULT_ADMIN => (None, problem.to_string(), DEFAULT_FAILED),
        Err(problem) => (None, problem.to_string(), problem.help()),
    };
    let is_healthy = matches!(answer, Ok((StatusCode::OK, _)));
    let text = clean(&text.chars().take(ANSWER_CHARS).collect::<String>());
    if health.json {
        let url = format!("{server}{path}");
        terminal.json(&json!({"url": url, "healthy": is_healthy, "status": status, "text": text}));
    } else {
        let line = match status {
            Some(status) => format!("{server}{path} answered {status}: {text}\n"),
            None => format!("{text}; {help}\n"),
        };
        terminal.print(&line);
    }
    if is_healthy { EXIT_OK } else { EXIT_DENIED }
}

/// Returns the address of the server: of the command line, of the variable of the setting `health`, or that of the other
/// commands for operators.
fn address(url: Option<&str>, variable: Option<&str>, tls: &TlsOptions) -> Result<Admin, Problem> {
    match (url, variable) {
        (Some(url), _) => Admin::parse(url, tls, "is no address of a listener"),
        (None, None | Some("" | "off" | "false" | "no")) => client::address(None, tls),
        (None, Some(listen)) => match (listen.parse(), listen.starts_with("unix:")) {
            (Ok(address), _) => tls.check(Admin::Tcp(reachable(address).to_string())),
            (Err(_), true) => Admin::parse(listen, tls, "is no address of a listener"),
            (Err(_), false) => {
                let message = format!("`{listen}` in {VARIABLE} is not an address to listen on");
                Err(Problem::new(message, "write an IP address and a port (0.0.0.0:8090), unix:/path, or off"))
            }
        },
    }
}

/// Returns the address at which a program on this machine reaches a listener. A listener on every address is also on the
/// loopback address.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_that_of_the_command_line_or_of_the_health_listener() {
        let of = |url, variable| address(url, variable, &TlsOptions::default()).map(|admin| admin.to_string()).ok();
        for (url, variable, expected) in [
            (Some("http://10.0.0.1:1"), Some("0.0.0.0:8090"), "http://10.0.0.1:1"),
            (None, Some("0.0.0.0:8090"), "http://127.0.0.1:8090"),
            (None, Some("[::]:8090"), "http://[::1]:8090"),
            (None, Some("10.0.0.1:8090"), "http://10.0.0.1:8090"),
            (None, Some("unix:/run/health.sock"), "unix:/run/health.sock"),
        ] {
            assert_eq!(of(url, variable).as_deref(), Some(expected), "{url:?} {variable:?}");
        }
        for wrong in ["8090", "localhost:8090", "http://127.0.0.1:8090"] {
            assert_eq!(of(None, Some(wrong)), None, "{wrong}");
        }
    }
}
