//! Which rights a request to the admin listener needs, and whether the request has them.
//!
//! With these rights, operators can reset counts, which clients and foreign web pages must not do. `tokens.rs` has the
//! tokens, `hosts.rs` finds requests of foreign web pages, and `rate.rs` limits the requests of each address.
//! `../guard.rs` checks each request with them.

mod hosts;
mod rate;
mod tokens;

use std::sync::Arc;

use axum::extract::{ConnectInfo, Request};
use axum::http::{HeaderName, Method, StatusCode};

pub(crate) use rate::{RateLimits, Source, source};
use spillgate_http::problem::Problem;
use spillgate_service::Peer;
use spillgate_service::metrics::AdminRefusal;
pub(crate) use tokens::Tokens;
pub use tokens::WrongTokens;
use tokio::sync::watch;

/// The routes with the method `POST` that change nothing. Every other request that is neither `GET` nor `HEAD` is a
/// write.
const READS: [&str; 3] = ["/explain", "/caller", "/peek"];

/// Without a token, every write needs this header field with the value `1`. A web page of another site cannot send it,
/// because its browser first asks this listener for permission and never gets it.
const WRITE_HEADER: HeaderName = HeaderName::from_static("x-spillgate-admin");

/// Most proxies add one of these header fields. A request with such a field counts as sent from another machine, even
/// if its connection comes from this machine.
const OF_PROXIES: [HeaderName; 2] = [HeaderName::from_static("forwarded"), HeaderName::from_static("x-forwarded-for")];

/// The rights to use the admin listener. This value is cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Access(Arc<Rights>);

#[derive(Debug, Default)]
struct Rights {
    /// A channel, so that an event stream ends if the token with which it began is replaced.
    tokens: watch::Sender<Tokens>,
    hosts: Vec<String>,
}

/// The right that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// No check at all: a probe of the server's health.
    Nothing,
    /// No token: the files of the page, which hold no secret.
    NoToken,
    /// The read token or the write token. If the settings have no token: nothing for a GET, and a client on this
    /// machine for a POST.
    Read,
    /// The write token. If the settings have no token: a client on this machine, and the header field
    /// `X-Spillgate-Admin: 1`.
    Write,
}

/// The right that a permitted request has proved with its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Proof {
    /// The request has the write token, which includes the right to read.
    Write,
    /// The request has the read token.
    Read,
    /// The request has proved nothing: the settings have no token, or the request needs no token.
    None,
}

impl Proof {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Proof::Write => "write",
            Proof::Read => "read",
            Proof::None => "none",
        }
    }
}

/// A request that is not permitted.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) reason: AdminRefusal,
    pub(crate) problem: Problem,
}

impl Refused {
    pub(crate) fn new(reason: AdminRefusal, problem: Problem) -> Refused {
        Refused { reason, problem }
    }
}

impl Access {
    /// Makes the rights. `write_token` and `read_token` are the contents of the files with the tokens. `hosts` are
    /// further names of this listener, each without a port.
    ///
    /// # Errors
    /// The [`WrongTokens`] say why the tokens would protect nothing.
    pub fn new(write_token: Option<&str>, read_token: Option<&str>, hosts: Vec<String>) -> Result<Access, WrongTokens> {
        let tokens = watch::Sender::new(Tokens::new(write_token, read_token)?);
        Ok(Access(Arc::new(Rights { tokens, hosts })))
    }

    /// Replaces the tokens, for all clones of this value. The old tokens then prove nothing, and open event streams end.
    /// Returns whether a token is different from before.
    ///
    /// # Errors
    /// The [`WrongTokens`] say why the new tokens would protect nothing. The old ones stay valid.
    pub fn replace_tokens(&self, write_token: Option<&str>, read_token: Option<&str>) -> Result<bool, WrongTokens> {
        if self.0.tokens.borrow().are(write_token, read_token) {
            return Ok(false);
        }
        self.0.tokens.send_replace(Tokens::new(write_token, read_token)?);
        Ok(true)
    }

    /// Returns a receiver that is notified when the tokens are replaced.
    pub(crate) fn watch_tokens(&self) -> watch::Receiver<Tokens> {
        self.0.tokens.subscribe()
    }

    /// Returns whether the settings have a token.
    #[must_use]
    pub fn has_token(&self) -> bool {
        self.0.tokens.borrow().are_set()
    }

    /// Returns whether a token is so short that a program could find it by trying.
    #[must_use]
    pub fn has_short_token(&self) -> bool {
        self.0.tokens.borrow().are_short()
    }

    /// Returns what the request has proved, or the refusal if the request is not permitted.
    pub(crate) fn permit(&self, request: &Request) -> Result<Proof, Refused> {
        hosts::same_origin(request)?;
        let needs = needs(request);
        if !self.has_token() {
            hosts::known_host(&self.0.hosts, request)?;
            return without_token(request, needs).map(|()| Proof::None);
        }
        match tokens::bearer(request).and_then(|given| self.0.tokens.borrow().proof(given)) {
            _ if needs == Needs::NoToken => Ok(Proof::None),
            Some(Proof::Read) if needs == Needs::Write => {
                let help = "send the text of admin_token_file";
                let problem = Problem::new(StatusCode::FORBIDDEN, "this admin token may only read", help);
                Err(Refused::new(AdminRefusal::ReadToken, problem))
            }
            Some(proof) => Ok(proof),
            None => {
                let help = "send `Authorization: Bearer` and the text of admin_token_file, or to read that of admin_read_token_file";
                let problem = Problem::new(StatusCode::UNAUTHORIZED, "the admin token is missing or wrong", help);
                Err(Refused::new(AdminRefusal::Token, problem))
            }
        }
    }
}

/// Returns what a request needs. A path without a route needs the same token as a path with a route, so that strangers
/// cannot find out which routes exist.
fn needs(request: &Request) -> Needs {
    let path = request.uri().path();
    match *request.method() {
        Method::GET | Method::HEAD if path == "/" || path.starts_with("/ui/") => Needs::NoToken,
        Method::GET | Method::HEAD => Needs::Read,
        _ if READS.contains(&path) => Needs::Read,
        _ => Needs::Write,
    }
}

/// Returns whether a request can change something.
pub(crate) fn is_write(request: &Request) -> bool {
    needs(request) == Needs::Write
}

/// Returns whether a request asks for a file of the page. Such a file is a part of the program, so its answer costs
/// little.
pub(crate) fn is_file(request: &Request) -> bool {
    needs(request) == Needs::NoToken
}

/// Returns whether a request has a token, right or wrong.
pub(crate) fn shows_token(request: &Request) -> bool {
    tokens::bearer(request).is_some()
}

pub(crate) fn peer(request: &Request) -> Option<Peer> {
    request.extensions().get::<ConnectInfo<Peer>>().map(|ConnectInfo(peer)| *peer)
}

/// Checks a request if the settings have no token. Everyone may send `GET`, but only programs on this machine may send
/// `POST`. This is also true of the [`READS`], although they change nothing: with them, strangers
/// could find out who uses the service.
fn without_token(request: &Request, needs: Needs) -> Result<(), Refused> {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return Ok(());
    }
    let refused = |reason, detail, help| Err(Refused::new(reason, Problem::new(StatusCode::FORBIDDEN, detail, help)));
    let on_this_machine = match peer(request) {
        Some(Peer::Tcp(address)) => address.ip().to_canonical().is_loopback(),
        Some(Peer::Unix) => true,
        None => false,
    };
    if !on_this_machine || OF_PROXIES.iter().any(|name| request.headers().contains_key(name)) {
        let detail = "without an admin token, only programs on this machine may send POST, and not through a proxy";
        let help = "set `admin_token_file`, and send its text as a bearer token";
        return refused(AdminRefusal::Remote, detail, help);
    }
    if needs == Needs::Write && request.headers().get(WRITE_HEADER).is_none_or(|value| value != "1") {
        let detail = "without an admin token, a write needs the header field `X-Spillgate-Admin: 1`";
        return refused(
            AdminRefusal::Header,
            detail,
            "add the header field, for example with curl -H 'X-Spillgate-Admin: 1'",
        );
    }
    Ok(())
}
