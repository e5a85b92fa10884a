//! `GET /v1/forward-auth`: decides the sub-request of a proxy.
//!
//! For each request of a client, nginx (`auth_request`), Caddy (`forward_auth`) or Traefik (ForwardAuth) sends a
//! sub-request with the header fields of that request. The settings say which descriptors are made of these fields.
//!
//! Every sub-request gets all descriptors of the settings. If a header field is missing, its value is empty. So all
//! clients that omit a field share one counter, and a client cannot avoid a limit by omitting the field.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, StatusCode};
use smallvec::SmallVec;
use spillgate::Clock;
use spillgate::rules::{Action, Request};
use spillgate_service::{Peer, counted_by};

use super::answer::Summary;
use super::client_address::client_address;
use super::problem::{Failure, Problem};
use super::{HttpError, HttpState, Response, sent_request};

type Values<'a> = SmallVec<[(&'a str, Cow<'a, str>); 2]>;

/// How `/v1/forward-auth` turns a proxy's sub-request into descriptors.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ForwardAuth {
    /// The domain of the rules for sub-requests. `None` switches `/v1/forward-auth` off.
    pub domain: Option<String>,
    /// The status of a refusal. nginx needs 401 or 403: it treats every other error status as a failure of this server.
    pub deny_status: u16,
    /// The length of a network prefix, in bits. IPv6 clients in the same network of this length share a counter.
    pub ipv6_prefix: u8,
    /// The descriptors of every sub-request, each as a list of its entries.
    pub descriptors: Vec<Vec<EntrySource>>,
}

/// One entry of a forward-auth descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntrySource {
    pub key: String,
    pub from: ValueSource,
}

/// Where the value of an entry comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueSource {
    /// The address of the client: that of the peer, or the one that a trusted proxy reports.
    ClientIp,
    /// A header field of the sub-request. If the field is missing, the value is empty.
    Header(String),
    /// The same text for every sub-request.
    Value(String),
    /// The path of the client's URI (`X-Forwarded-Uri`), in one form for all ways to write it.
    Path,
    /// The method of the client's request (`X-Forwarded-Method`), in capital letters.
    Method,
    /// The name in the client's URL (`X-Forwarded-Host`), in small letters and without a port.
    Host,
    /// A cookie of the client. If it is missing or has different values, the value is empty.
    Cookie(String),
    /// A parameter in the query of the client's URI. If it is missing or has different values, the value is empty.
    Query(String),
}

impl ValueSource {
    /// Returns what a client can leave out of its request, so that the value is empty. `None` if the value comes from the
    /// proxy or the settings. The names of some header fields say that proxies set them.
    #[must_use]
    pub fn can_be_left_out(&self) -> Option<String> {
        match self {
            ValueSource::Header(name) => {
                let name = name.to_ascii_lowercase();
                let of_proxies = ["x-forwarded-", "x-original-", "x-real-ip"];
                let is_of_proxy = of_proxies.iter().any(|prefix| name.starts_with(prefix));
                (!is_of_proxy).then(|| format!("the header field `{name}`"))
            }
            ValueSource::Cookie(name) => Some(format!("the cookie `{name}`")),
            ValueSource::Query(name) => Some(format!("the parameter `{name}` of the query")),
            ValueSource::ClientIp
            | ValueSource::Value(_)
            | ValueSource::Path
            | ValueSource::Method
            | ValueSource::Host => None,
        }
    }
}

/// A [`ForwardAuth`] whose names and status are known to be valid.
#[derive(Debug)]
pub(super) struct Mapping {
    domain: Option<String>,
    deny_status: StatusCode,
    ipv6_prefix: u8,
    descriptors: Vec<Vec<(String, Origin)>>,
}

#[derive(Debug)]
enum Origin {
    ClientIp,
    Header(HeaderName),
    Literal(String),
    Path,
    Method,
    Host,
    Cookie(String),
    Query(String),
}

impl TryFrom<ForwardAuth> for Mapping {
    type Error = HttpError;

    fn try_from(wire: ForwardAuth) -> Result<Mapping, HttpError> {
        let entry = |entry: EntrySource| -> Result<_, HttpError> {
            let from = match entry.from {
                ValueSource::ClientIp => Origin::ClientIp,
                ValueSource::Value(text) => Origin::Literal(text),
                ValueSource::Path => Origin::Path,
                ValueSource::Method => Origin::Method,
                ValueSource::Host => Origin::Host,
                ValueSource::Cookie(name) => Origin::Cookie(name),
                ValueSource::Query(name) => Origin::Query(name),
                ValueSource::Header(name) => {
                    Origin::Header(HeaderName::try_from(&name).map_err(|_| HttpError::HeaderName(name))?)
                }
            };
            Ok((entry.key, from))
        };
        let descriptors = wire.descriptors.into_iter().map(|entries| entries.into_iter().map(entry).collect());
        Ok(Mapping {
            domain: wire.domain,
            deny_status: StatusCode::from_u16(wire.deny_status).map_err(|_| HttpError::DenyStatus(wire.deny_status))?,
            ipv6_prefix: wire.ipv6_prefix,
            descriptors: descriptors.collect::<Result<_, _>>()?,
        })
    }
}

impl Origin {
    fn value<'a>(&'a self, headers: &'a HeaderMap, client: &'a str) -> Cow<'a, str> {
        match self {
            Origin::ClientIp => Cow::Borrowed(client),
            Origin::Literal(text) => Cow::Borrowed(text),
            Origin::Path => sent_request::path(headers),
            Origin::Method => sent_request::method(headers),
            Origin::Host => sent_request::host(headers),
            Origin::Cookie(name) => sent_request::cookie(headers, name),
            Origin::Query(name) => sent_request::query(headers, name),
            Origin::Header(name) => {
                let lines = headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
                // Several lines of one field are one list (RFC 9110, section 5.2).
                lines.reduce(|list, line| Cow::Owned(format!("{list}, {line}"))).unwrap_or_default()
            }
        }
    }
}

pub(super) async fn forward_auth<C: Clock>(
    state: &HttpState<C>,
    peer: Peer,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let auth = &state.0.forward_auth;
    let Some(domain) = &auth.domain else {
        let help = "set `forward_auth.domain` and `forward_auth.descriptors` in the settings";
        return Err(Problem::new(StatusCode::NOT_FOUND, "forward-auth is not configured", help).into());
    };
    let client = counted_by::network(client_address(peer, &headers, &state.0.trusted_proxies), auth.ipv6_prefix);
    let values = values(auth, &headers, &client);
    let rules = state.0.service.rules();
    let mut request = Request::new(domain);
    for entries in &values {
        request.add(entries.iter().map(|(key, value)| (*key, &**value)), Action::Take(1), None);
    }
    let answer = state.0.service.decide(&rules, &request, state.0.client).await?;
    Ok(Summary::of(&answer).respond(state.0.headers, auth.deny_status, None, HeaderMap::new()))
}

/// Returns the descriptors of a sub-request. `client` is the text under which the client's address is counted.
fn values<'a>(auth: &'a Mapping, headers: &'a HeaderMap, client: &'a str) -> SmallVec<[Values<'a>; 2]> {
    let entry = |(key, from): &'a (String, Origin)| (key.as_str(), from.value(headers, client));
    auth.descriptors.iter().map(|entries| entries.iter().map(entry).collect()).collect()
}
