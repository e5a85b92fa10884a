//! The address of a client behind proxies.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Reads an address with or without a port: `192.0.2.7`, `192.0.2.7:4711`, `2001:db8::7`, `[2001:db8::7]` or
/// `[2001:db8::7]:4711`. An IPv4 address in the form `::ffff:a.b.c.d` is returned as `a.b.c.d`. Returns `None` for any
/// other text.
///
/// ```
/// use spillgate::address_of;
///
/// assert_eq!(address_of(b"192.0.2.7:4711"), "192.0.2.7".parse().ok());
/// assert_eq!(address_of(b"[2001:db8::7]:4711"), "2001:db8::7".parse().ok());
/// assert_eq!(address_of(b"unknown"), None);
/// ```
#[must_use]
pub fn address_of(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?.trim_matches([' ', '\t']);
    let bracketed = || text.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().ok().map(IpAddr::V6);
    let with_port = || text.parse::<SocketAddr>().ok().map(|socket| socket.ip());
    text.parse::<IpAddr>().ok().or_else(with_port).or_else(bracketed).map(|address| address.to_canonical())
}

/// Returns the address of the client behind proxies: that of `peer`, or the one that a trusted proxy reports.
///
/// `entries` are the addresses in X-Forwarded-For, from the right to the left, because each proxy adds the address of
/// its peer on the right. The first address that is not trusted is that of the client. If all addresses are trusted, the
/// leftmost address is the client's. If an entry is not an address, the result is the address of the proxy that added
/// this entry.
///
/// ```
/// use spillgate::{address_of, client_of};
///
/// let list = "1.1.1.1, 203.0.113.7, 10.0.0.2";
/// let entries = list.rsplit(',').map(str::as_bytes);
/// let trusted = |address: std::net::IpAddr| address.to_string().starts_with("10.");
/// let client = client_of(address_of(b"10.0.0.1").unwrap(), entries, trusted);
/// assert_eq!(client.to_string(), "203.0.113.7", "anybody can write 1.1.1.1 in front");
/// ```
#[must_use]
pub fn client_of<'e>(
    peer: IpAddr,
    entries: impl Iterator<Item = &'e [u8]>,
    is_trusted: impl Fn(IpAddr) -> bool,
) -> IpAddr {
    let mut address = peer.to_canonical();
    if !is_trusted(address) {
        return address;
    }
    for entry in entries {
        match address_of(entry) {
            Some(before) => address = before,
            None => break,
        }
        if !is_trusted(address) {
            break;
        }
    }
    address
}
