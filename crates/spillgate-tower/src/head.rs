//! A request without its body. The functions that a program gives to the layer get this type.

use std::net::{IpAddr, SocketAddr};

use http::{Extensions, HeaderMap, Method, Request, Uri};
use ipnet::IpNet;

use super::client_address::client_address;
use super::layer::Options;

/// A request without its body.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RequestHead<'r> {
    /// The HTTP method, such as `GET`.
    pub method: &'r Method,
    /// The URI, as the layer gets it. In a nested router of axum, its path lacks the prefix of that router.
    pub uri: &'r Uri,
    /// The header fields, as the server and earlier layers pass them on.
    pub headers: &'r HeaderMap,
    /// What the server and earlier layers have added to the request.
    pub extensions: &'r Extensions,
    trusted_proxies: &'r [IpNet],
}

impl<'r> RequestHead<'r> {
    pub(super) fn new<B>(request: &'r Request<B>, options: &'r Options) -> RequestHead<'r> {
        let (method, uri, headers) = (request.method(), request.uri(), request.headers());
        let extensions = request.extensions();
        RequestHead { method, uri, headers, extensions, trusted_proxies: &options.trusted_proxies }
    }

    /// Returns the address of the client: the peer of the connection, or the address that a
    /// [trusted proxy](super::RateLimitLayer::trusted_proxies) reports. Returns `None` if the server has not added the
    /// peer's address to the extensions.
    #[must_use]
    pub fn client_address(&self) -> Option<IpAddr> {
        Some(client_address(self.peer()?, self.headers, self.trusted_proxies))
    }

    fn peer(&self) -> Option<IpAddr> {
        let extensions = self.extensions;
        #[cfg(feature = "axum")]
        if let Some(axum::extract::ConnectInfo(peer)) = extensions.get::<axum::extract::ConnectInfo<SocketAddr>>() {
            return Some(peer.ip());
        }
        #[cfg(feature = "axum")]
        if let Some(axum::extract::connect_info::MockConnectInfo(peer)) =
            extensions.get::<axum::extract::connect_info::MockConnectInfo<SocketAddr>>()
        {
            return Some(peer.ip());
        }
        #[cfg(feature = "tonic")]
        if let Some(info) = extensions.get::<tonic::transport::server::TcpConnectInfo>() {
            return info.remote_addr().map(|peer| peer.ip());
        }
        let peer = extensions.get::<SocketAddr>().map(SocketAddr::ip);
        peer.or_else(|| extensions.get::<IpAddr>().copied())
    }
}
