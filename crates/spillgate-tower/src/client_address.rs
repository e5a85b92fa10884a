//! Finds the address of the client, so that limits can count the requests of each client.
//!
//! Behind a proxy, the address of the socket is that of the proxy, and the address of the client is in a header field.
//! Anybody can write this field, so the layer uses it only if a trusted proxy has sent it.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName};
use ipnet::IpNet;
use spillgate_limiter::client_of;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Returns the client's address: the peer of the socket, or the address that a trusted proxy reports.
///
/// X-Forwarded-For is read from right to left, because each proxy adds the address of its peer on the right. The first
/// address from the right that is not in `trusted` is the address of the client. If all addresses are trusted, the
/// leftmost address is the client's. So `trusted` must have only the addresses of proxies: a client with such an
/// address can write any address into the field. If an entry is not an address, the result is the address of the proxy
/// that added this entry.
///
/// An IPv4 address in the form `::ffff:a.b.c.d` is returned as `a.b.c.d`. If it stayed an IPv6 address, all IPv4
/// clients would be in one IPv6 network, and count as one client.
///
/// ```
/// use http::HeaderMap;
/// use spillgate::tower::client_address;
///
/// let trusted = ["10.0.0.0/24".parse()?];
/// let mut headers = HeaderMap::new();
/// headers.insert("x-forwarded-for", "1.1.1.1, 203.0.113.7, 10.0.0.2".parse()?);
/// let client = client_address("10.0.0.1".parse()?, &headers, &trusted);
/// assert_eq!(client.to_string(), "203.0.113.7", "anybody can write 1.1.1.1 in front");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn client_address(peer: IpAddr, headers: &HeaderMap, trusted: &[IpNet]) -> IpAddr {
    let entries =
        headers.get_all(X_FORWARDED_FOR).iter().rev().flat_map(|value| value.as_bytes().rsplit(|b| *b == b','));
    client_of(peer, entries, |address| is_trusted(address, trusted))
}

/// Returns `::ffff:10.0.0.0/104` as `10.0.0.0/8`, because addresses are compared in their IPv4 form.
pub(super) fn unmapped(network: IpNet) -> IpNet {
    let IpNet::V6(v6) = network else { return network };
    let v4 = v6.addr().to_ipv4_mapped().zip(v6.prefix_len().checked_sub(96));
    v4.and_then(|(address, bits)| IpNet::new(address.into(), bits).ok()).unwrap_or(network)
}

fn is_trusted(address: IpAddr, trusted: &[IpNet]) -> bool {
    trusted.iter().any(|net| net.contains(&address))
}
