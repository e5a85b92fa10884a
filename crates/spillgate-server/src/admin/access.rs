//! The rights of callers of the admin listener: its two tokens, and its guard against web pages of other sites.
//!
//! A web page that is open in a browser on this machine can send requests to this listener, although the page comes from
//! another site. Two headers of the browser show that:
//!
//! * `Origin` names the site of the page. It must be the site that `Host` names.
//! * `Host` is the name in the URL. The owner of a name can let it point to any address, also to this machine (DNS
//!   rebinding). Then a page below this name has the same site as the listener. So without a token, the name must be an
//!   address, `localhost`, or in the setting `admin_hosts`. With a token this is not needed: a page does not know the token.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderName, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use spillgate::Clock;

use crate::protocol::http::{problem::Problem, signature::equal_in_constant_time};
use crate::service::Peer;

use super::AdminState;

/// The routes with the method `POST` that change nothing. Every other request that is neither `GET` nor `HEAD` is a
/// write.
const READS: [&str; 2] = ["/explain", "/peek"];

/// The log shows this much of the path of a write. No route is longer, but a path without a route can be.
const ROUTE_CHARS_MAX: usize = 32;

/// The rights of callers of the admin listener. It is cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Access(Arc<Rights>);

#[derive(Debug, Default)]
struct Rights {
    write_token: Option<Token>,
    read_token: Option<Token>,
    hosts: Vec<String>,
}

struct Token(String);

impl fmt::Debug for Token {
    /// Does not show the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// Why tokens protect nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WrongTokens {
    /// Everyone can send an empty token.
    #[error("an admin token is empty; write a token into its file, for example 32 random characters")]
    Empty,
    /// A caller that may read could write.
    #[error("both admin tokens are the same, so a caller that may read could write; make another read token")]
    Same,
    /// The listener would need a token to read, and none to write.
    #[error("there is a read token but no write token; set `admin_token_file` too")]
    ReadAlone,
}

/// What a write has changed, in words. A handler puts it into the extensions of its response, and the log shows it.
#[derive(Clone, Debug)]
pub(super) struct Change(pub(super) String);

/// The token with which a permitted request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Proof {
    /// The token with which a caller may write and read.
    Write,
    /// The token with which a caller may only read.
    Read,
    /// No token is set.
    None,
}

impl Proof {
    const fn as_str(self) -> &'static str {
        match self {
            Proof::Write => "write",
            Proof::Read => "read",
            Proof::None => "none",
        }
    }
}

impl Access {
    /// Makes the rights. `write_token` and `read_token` are the contents of the files with the tokens. `hosts` are further
    /// names of this listener, each without a port.
    ///
    /// # Errors
    /// The tokens would protect nothing.
    pub fn new(write_token: Option<&str>, read_token: Option<&str>, hosts: Vec<String>) -> Result<Access, WrongTokens> {
        let token = |text: Option<&str>| match text.map(str::trim) {
            Some("") => Err(WrongTokens::Empty),
            text => Ok(text.map(|text| Token(text.to_owned()))),
        };
        let (write_token, read_token) = (token(write_token)?, token(read_token)?);
        match (&write_token, &read_token) {
            (None, Some(_)) => Err(WrongTokens::ReadAlone),
            (Some(write), Some(read)) if write.0 == read.0 => Err(WrongTokens::Same),
            _ => Ok(Access(Arc::new(Rights { write_token, read_token, hosts }))),
        }
    }

    /// Returns the proof of a request that is permitted.
    fn permit(&self, request: &Request) -> Result<Proof, Problem> {
        let authority = authority(request)?;
        same_origin(request, authority)?;
        let Some(write_token) = &self.0.write_token else {
            self.known_host(request, authority)?;
            return local(request).map(|()| Proof::None);
        };
        let given = bearer(request);
        let is = |token: &Token| given.is_some_and(|given| equal_in_constant_time(given, token.0.as_bytes()));
        if is(write_token) {
            return Ok(Proof::Write);
        }
        if !self.0.read_token.as_ref().is_some_and(is) {
            let help = "send `Authorization: Bearer` and the text of admin_token_file, or to read that of admin_read_token_file";
            return Err(Problem::new(StatusCode::UNAUTHORIZED, "the admin token is missing or wrong", help));
        }
        if is_write(request) {
            let help = "send the text of admin_token_file";
            return Err(Problem::new(StatusCode::FORBIDDEN, "this admin token may only read", help));
        }
        Ok(Proof::Read)
    }

    /// Checks that the names with which the request came belong to this server.
    fn known_host(&self, request: &Request, authority: Option<&str>) -> Result<(), Problem> {
        let in_uri = request.uri().authority().map(|authority| authority.as_str());
        for name in authority.into_iter().chain(in_uri).map(host_of) {
            let known = name.is_some_and(|name| {
                let is_address = name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
                let mut hosts = self.0.hosts.iter().map(String::as_str).chain(["localhost"]);
                is_address || hosts.any(|host| host.eq_ignore_ascii_case(name))
            });
            if !known {
                let detail = "the name of this server in the URL (the header field `Host`) is unknown";
                let help = "use an IP address or localhost, add the name to the setting `admin_hosts`, or set a token (`admin_token_file`)";
                return Err(Problem::new(StatusCode::FORBIDDEN, detail, help));
            }
        }
        Ok(())
    }
}

fn is_write(request: &Request) -> bool {
    !matches!(*request.method(), Method::GET | Method::HEAD) && !READS.contains(&request.uri().path())
}

/// Checks the right of each request, and logs each write that is permitted.
pub(super) async fn check<C: Clock>(State(state): State<AdminState<C>>, request: Request, next: Next) -> Response {
    let proof = match state.access.permit(&request) {
        Ok(proof) => proof,
        Err(problem) if problem.status == StatusCode::UNAUTHORIZED => {
            return ([(header::WWW_AUTHENTICATE, "Bearer")], problem).into_response();
        }
        Err(problem) => return problem.into_response(),
    };
    let peer = peer(&request);
    let route = is_write(&request).then(|| request.uri().path().chars().take(ROUTE_CHARS_MAX).collect::<String>());
    let response = next.run(request).await;
    if let Some(route) = route {
        let change = response.extensions().get::<Change>().map_or("nothing", |change| &change.0);
        let peer = peer.map(|peer| peer.to_string()).unwrap_or_default();
        let (token, status) = (proof.as_str(), response.status().as_u16());
        tracing::info!(route, change, token, peer, status, "a write on the admin listener");
    }
    response
}

fn peer(request: &Request) -> Option<Peer> {
    request.extensions().get::<ConnectInfo<Peer>>().map(|ConnectInfo(peer)| *peer)
}

/// Returns the token of the request.
fn bearer(request: &Request) -> Option<&[u8]> {
    let value = request.headers().get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, given) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| given.trim_ascii())
}

/// Checks whether a request is permitted if there is no token. Everyone can read with `GET`. Only programs on this machine
/// can send `POST`, also to the routes that only read: with them, a caller could find out who uses the service.
fn local(request: &Request) -> Result<(), Problem> {
    let on_this_machine = match peer(request) {
        Some(Peer::Tcp(address)) => address.ip().to_canonical().is_loopback(),
        Some(Peer::Unix) => true,
        None => false,
    };
    if on_this_machine || matches!(*request.method(), Method::GET | Method::HEAD) {
        return Ok(());
    }
    let detail = "without an admin token, only programs on this machine may send POST";
    Err(Problem::new(StatusCode::FORBIDDEN, detail, "set `admin_token_file`, and send its text as a bearer token"))
}

/// Returns the name and port with which the request came. `None` if it names none, which no browser does.
fn authority(request: &Request) -> Result<Option<&str>, Problem> {
    match single(request, &header::HOST)? {
        Some(host) => Ok(Some(host)),
        // HTTP/2 has the name in the URI.
        None => Ok(request.uri().authority().map(|authority| authority.as_str())),
    }
}

/// Checks that the request comes from no page of another site.
fn same_origin(request: &Request, authority: Option<&str>) -> Result<(), Problem> {
    let Some(origin) = single(request, &header::ORIGIN)? else { return Ok(()) };
    let site = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    if site.zip(authority).is_some_and(|(site, own)| site.eq_ignore_ascii_case(own)) {
        return Ok(());
    }
    let detail = "the request comes from a web page of another site (the header field `Origin`)";
    Err(Problem::new(StatusCode::FORBIDDEN, detail, "send the request from a program, without `Origin`"))
}

/// Returns the value of a header field that must not be repeated.
fn single<'r>(request: &'r Request, name: &HeaderName) -> Result<Option<&'r str>, Problem> {
    let mut values = request.headers().get_all(name).iter();
    match (values.next().map(|value| value.to_str()), values.next()) {
        (None, _) => Ok(None),
        (Some(Ok(value)), None) => Ok(Some(value)),
        _ => Err(Problem::bad_request(format!("the header field `{name}` is repeated or no text"), "send it once")),
    }
}

/// Returns the name or address in an authority such as `localhost:6070`. An IPv6 address keeps its brackets.
fn host_of(authority: &str) -> Option<&str> {
    let end = match authority.starts_with('[') {
        true => authority.find(']')? + 1,
        false => authority.find(':').unwrap_or(authority.len()),
    };
    let (host, port) = authority.split_at(end);
    let is_port =
        port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()));
    // A name can end with a dot, which only says that the name is complete.
    is_port.then(|| host.strip_suffix('.').unwrap_or(host)).filter(|host| !host.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_read_from_every_authority() {
        let hosts = [
            ("localhost", Some("localhost")),
            ("localhost:6070", Some("localhost")),
            ("LocalHost.:6070", Some("LocalHost")),
            ("[::1]:6070", Some("[::1]")),
            ("[::1]", Some("[::1]")),
            ("localhost:", Some("localhost")),
            ("", None),
            (":6070", None),
            (".", None),
            ("[::1", None),
            ("[::1]6070", None),
            ("localhost:6070:1", None),
            ("localhost:x", None),
            ("user@localhost", Some("user@localhost")),
            ("user:1@localhost", None),
        ];
        for (authority, host) in hosts {
            assert_eq!(host_of(authority), host, "{authority}");
        }
    }

    #[test]
    fn tokens_that_protect_nothing_are_refused() {
        let new = |write, read| Access::new(write, read, vec![]).map(|_| ());
        assert_eq!(new(Some(" \n"), None), Err(WrongTokens::Empty));
        assert_eq!(new(Some("a"), Some("")), Err(WrongTokens::Empty));
        assert_eq!(new(Some("a"), Some("a\n")), Err(WrongTokens::Same));
        assert_eq!(new(None, Some("a")), Err(WrongTokens::ReadAlone));
        assert_eq!((new(Some("a"), Some("b")), new(None, None)), (Ok(()), Ok(())));
        assert!(!format!("{:?}", Access::new(Some("hidden"), None, vec![])).contains("hidden"));
    }
}
