//! What the layer counts by: the client's address, header fields, the route, or anything else that a request has.
//!
//! If a request lacks what a limit counts by, the answer is 500. A client of gRPC gets INTERNAL instead.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use http::{HeaderName, HeaderValue};

use spillgate_limiter::{Key, KeyBuilder, network_of};

use super::head::RequestHead;

/// What the requests of one limit are counted by. The functions of this module make keys, and [`and`](RequestKey::and)
/// joins several keys.
///
/// ```
/// use spillgate::tower::key;
///
/// // Each customer on each route of its own:
/// let by = key::header("x-customer").and(key::path());
/// # let _ = by;
/// ```
#[derive(Clone, Debug)]
pub struct RequestKey(Vec<Part>);

#[derive(Clone)]
enum Part {
    Address,
    Header(HeaderName),
    Path,
    Method,
    #[cfg(feature = "axum")]
    MatchedPath,
    Text(Cow<'static, str>),
    Custom(Arc<Custom>),
}

type Custom = dyn Fn(&RequestHead<'_>, &mut KeyBuilder) -> bool + Send + Sync;

/// Counts by the address of the client.
///
/// The address is that of the peer of the connection, or the address that a [trusted
/// proxy](super::RateLimitLayer::trusted_proxies) reports. IPv6 addresses are counted [by
/// network](super::RateLimitLayer::ipv6_prefix). The server has to add the peer's address to the extensions of each
/// request, in one of these forms:
///
/// | server | what to do |
/// |---|---|
/// | axum, with the feature `axum` | serve `app.into_make_service_with_connect_info::<SocketAddr>()` |
/// | tonic on TCP, with the feature `tonic` | nothing |
/// | hyper and others | insert a [`SocketAddr`](std::net::SocketAddr) or an [`IpAddr`](std::net::IpAddr) into the extensions of the request |
///
/// A request without an address is answered with 500 and a text that says so.
#[must_use]
pub fn address() -> RequestKey {
    RequestKey(vec![Part::Address])
}

/// Counts by the value of a header field, for example of an API key.
///
/// Only the first line of the field counts, as with [`HeaderMap::get`](http::HeaderMap::get). If the program checks the
/// value, it must check this line. All requests without the field are counted together, so a client cannot avoid the
/// limit by omitting the field. But a client that can choose any value gets a new count with each value. Count such
/// requests by [`address`] too, or check the value in an earlier layer.
///
/// # Panics
/// Panics if `name` is not the name of a header field in lower case.
#[must_use]
pub fn header(name: &'static str) -> RequestKey {
    RequestKey(vec![Part::Header(HeaderName::from_static(name))])
}

/// Counts by the path of the URI. If two paths lead to the same route, they count separately.
///
/// In a nested router of axum, the path lacks the prefix of that router. So count by `matched_path` in a nested router.
#[must_use]
pub fn path() -> RequestKey {
    RequestKey(vec![Part::Path])
}

/// Counts by the method of HTTP, such as `GET`.
#[must_use]
pub fn method() -> RequestKey {
    RequestKey(vec![Part::Method])
}

/// Counts by the route of axum that matched, for example `/users/{id}`.
///
/// Add the layer with `Router::route_layer`. Then axum answers 404 to a request that matches no route. With
/// `Router::layer`, such a request is answered with 500, because it has no route to count by.
#[cfg(feature = "axum")]
#[must_use]
pub fn matched_path() -> RequestKey {
    RequestKey(vec![Part::MatchedPath])
}

/// Counts all requests of the limit together.
#[must_use]
pub fn everything() -> RequestKey {
    RequestKey(vec![])
}

/// Counts by a text that is the same for all requests. Use different texts for limits that would otherwise share a
/// count.
#[must_use]
pub fn text(text: impl Into<Cow<'static, str>>) -> RequestKey {
    RequestKey(vec![Part::Text(text.into())])
}

/// Counts by a value of type `T` in the extensions of the request, for example a user whom an earlier layer has
/// authenticated. A request without such a value is answered with 500.
///
/// ```
/// use spillgate::tower::key;
/// use spillgate::{Key, KeyBuilder};
///
/// #[derive(Clone)]
/// struct UserId(u64);
/// impl Key for UserId {
///     fn add_to(&self, key: &mut KeyBuilder) {
///         key.key(&self.0);
///     }
/// }
/// let by = key::extension::<UserId>();
/// # let _ = by;
/// ```
#[must_use]
pub fn extension<T: Key + Send + Sync + 'static>() -> RequestKey {
    from_request(|request, key| request.extensions.get::<T>().map(|value| value.add_to(key)))
}

/// Counts by what `add` adds to the key. A request for which `add` returns `None` is answered with 500.
///
/// ```
/// use spillgate::tower::key;
///
/// // By the tenant, the first part of the host: `acme` of `acme.example.com`.
/// let by = key::from_request(|request, key| {
///     // Over HTTP/2 the URI has the host, and over HTTP/1.1 a header field has it.
///     let host = request.uri.host().or_else(|| request.headers.get("host")?.to_str().ok())?;
///     key.key(host.split('.').next()?);
///     Some(())
/// });
/// # let _ = by;
/// ```
#[must_use]
pub fn from_request(
    add: impl Fn(&RequestHead<'_>, &mut KeyBuilder) -> Option<()> + Send + Sync + 'static,
) -> RequestKey {
    RequestKey(vec![Part::Custom(Arc::new(move |request, key| add(request, key).is_some()))])
}

impl RequestKey {
    /// Counts by this key and by `other` together: requests share a count only if both are equal.
    #[must_use]
    pub fn and(mut self, other: RequestKey) -> RequestKey {
        self.0.extend(other.0);
        self
    }

    /// Adds the parts of the key. If the request lacks a part, returns an error text that names the missing part.
    pub(super) fn add_to(
        &self,
        request: &RequestHead<'_>,
        ipv6_prefix: u8,
        key: &mut KeyBuilder,
    ) -> Result<(), &'static str> {
        self.0.iter().try_for_each(|part| part.add_to(request, ipv6_prefix, key))
    }
}

impl Part {
    fn add_to(&self, request: &RequestHead<'_>, ipv6_prefix: u8, key: &mut KeyBuilder) -> Result<(), &'static str> {
        match self {
            Part::Address => {
                let address = request.client_address().ok_or(NO_ADDRESS)?;
                key.key(&network_of(address, ipv6_prefix));
            }
            Part::Header(name) => {
                let line = request.headers.get(name);
                // A request without the field and a request with an empty field count separately.
                key.part(line.map_or(b"", HeaderValue::as_bytes)).key(&u32::from(line.is_some()));
            }
            Part::Path => {
                key.part(request.uri.path().as_bytes());
            }
            Part::Method => {
                key.part(request.method.as_str().as_bytes());
            }
            #[cfg(feature = "axum")]
            Part::MatchedPath => {
                let path = request.extensions.get::<axum::extract::MatchedPath>().ok_or(NO_ROUTE)?;
                key.part(path.as_str().as_bytes());
            }
            Part::Text(text) => {
                key.part(text.as_bytes());
            }
            Part::Custom(add) => {
                if !add(request, key) {
                    return Err(NOTHING_TO_COUNT_BY);
                }
            }
        }
        Ok(())
    }
}

const NO_ADDRESS: &str = "the rate limit counts by address, and the request has no address of its peer; \
    with axum, serve `into_make_service_with_connect_info::<SocketAddr>()`";
#[cfg(feature = "axum")]
const NO_ROUTE: &str = "the rate limit counts by route, and the request has none; \
    add the layer with `Router::route_layer`";
const NOTHING_TO_COUNT_BY: &str = "the rate limit found nothing in the request to count by";

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Address => f.write_str("address"),
            Part::Header(name) => write!(f, "header {name}"),
            Part::Path => f.write_str("path"),
            Part::Method => f.write_str("method"),
            #[cfg(feature = "axum")]
            Part::MatchedPath => f.write_str("matched path"),
            Part::Text(text) => write!(f, "text {text:?}"),
            Part::Custom(_) => f.write_str("function"),
        }
    }
}
