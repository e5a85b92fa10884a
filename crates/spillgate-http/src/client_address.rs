//! Finds the address of the client, so that rules can count the requests of each client.
//!
//! Behind a proxy, the socket has the address of the proxy, and the address of the client is in a header field. Anybody
//! can write this field, so it is used only if a trusted proxy has sent it.

use std::net::{IpAddr, Ipv4Addr};

use http::HeaderMap;
use ipnet::IpNet;
use spillgate_service::Peer;

/// Returns the client's address: the peer of the socket, or the address that a trusted proxy reports.
///
/// A peer on a Unix socket counts as having the address 127.0.0.1, because it is a process on this machine. It is
/// trusted only if `trusted` contains this address.
pub(super) fn client_address(peer: Peer, headers: &HeaderMap, trusted: &[IpNet]) -> IpAddr {
    let peer = match peer {
        Peer::Tcp(socket) => socket.ip(),
        Peer::Unix => IpAddr::V4(Ipv4Addr::LOCALHOST),
    };
    spillgate::tower::client_address(peer, headers, trusted)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use http::HeaderValue;
    use spillgate_service::counted_by::network as counted_by;

    use super::*;

    fn client(peer: &str, forwarded: &[&str], trusted: &[&str]) -> String {
        let mut headers = HeaderMap::new();
        for value in forwarded {
            headers.append("x-forwarded-for", HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        let trusted: Vec<IpNet> = trusted.iter().map(|net| net.parse().unwrap()).collect();
        let socket = || SocketAddr::new(peer.parse().unwrap(), 4711);
        let peer = if peer == "unix" { Peer::Unix } else { Peer::Tcp(socket()) };
        counted_by(client_address(peer, &headers, &trusted), 64)
    }

    #[test]
    fn a_peer_that_is_not_trusted_is_the_client_whatever_it_says() {
        assert_eq!(client("198.51.100.9", &["203.0.113.1"], &[]), "198.51.100.9");
        assert_eq!(client("198.51.100.9", &["203.0.113.1"], &["10.0.0.0/8"]), "198.51.100.9");
    }

    #[test]
    fn the_walk_goes_from_the_right_through_trusted_proxies_only() {
        let trusted = ["10.0.0.0/8", "2001:db8:aaaa::/48"];
        let spoofed = "1.1.1.1, 203.0.113.7, 10.0.0.2";
        assert_eq!(
            client("10.0.0.1", &[spoofed], &trusted),
            "203.0.113.7",
            "the leftmost entry is not used, because the client wrote it"
        );
        assert_eq!(
            client("10.0.0.1", &["1.1.1.1", "203.0.113.7", "10.0.0.2"], &trusted),
            "203.0.113.7",
            "several header lines are read as one list"
        );
        assert_eq!(
            client("10.0.0.1", &["10.0.0.3, 2001:db8:aaaa::1"], &trusted),
            "10.0.0.3",
            "if all addresses are trusted, the leftmost one is the client"
        );
        assert_eq!(client("10.0.0.1", &[], &trusted), "10.0.0.1");
    }

    #[test]
    fn an_entry_that_is_not_an_address_ends_the_walk_at_the_proxy_that_forwarded_it() {
        let trusted = ["10.0.0.0/8"];
        for junk in ["unknown", "", "10.0.0.256", "203.0.113.1;drop", "[::1", "_hidden", "\u{fffd}"] {
            let list = format!("203.0.113.1, {junk}, 10.0.0.2");
            assert_eq!(client("10.0.0.1", &[&list], &trusted), "10.0.0.2", "{junk:?}");
            assert_eq!(client("10.0.0.1", &[junk], &trusted), "10.0.0.1", "{junk:?}");
        }
    }

    #[test]
    fn ipv4_mapped_addresses_are_ipv4() {
        assert_eq!(client("::ffff:198.51.100.9", &[], &[]), "198.51.100.9");
        assert_eq!(client("::ffff:10.0.0.1", &["::ffff:203.0.113.7"], &["10.0.0.0/8"]), "203.0.113.7");
        assert_ne!(client("::ffff:198.51.100.9", &[], &[]), client("::ffff:198.51.100.8", &[], &[]));
    }

    #[test]
    fn ipv6_is_counted_by_network() {
        assert_eq!(client("2001:db8:1:2:aaaa::1", &[], &[]), "2001:db8:1:2::/64");
        assert_eq!(client("2001:db8:1:2:aaaa::1", &[], &[]), client("2001:db8:1:2:bbbb::2", &[], &[]));
        assert_ne!(client("2001:db8:1:2::1", &[], &[]), client("2001:db8:1:3::1", &[], &[]));
        let address = "2001:db8:1:2::1".parse().unwrap();
        assert_eq!(counted_by(address, 128), "2001:db8:1:2::1");
        assert_eq!(counted_by(address, 48), "2001:db8:1::/48");
        assert_eq!(counted_by(address, 0), "::/0");
    }

    #[test]
    fn entries_may_carry_ports() {
        let trusted = ["10.0.0.0/8"];
        assert_eq!(client("10.0.0.1", &["203.0.113.7:4711"], &trusted), "203.0.113.7");
        assert_eq!(client("10.0.0.1", &["[2001:db8:1:2::7]:4711"], &trusted), "2001:db8:1:2::/64");
        assert_eq!(client("10.0.0.1", &["[2001:db8:1:2::7]"], &trusted), "2001:db8:1:2::/64");
    }

    #[test]
    fn a_unix_socket_is_this_machine() {
        assert_eq!(client("unix", &["203.0.113.7"], &[]), "127.0.0.1");
        assert_eq!(client("unix", &["203.0.113.7"], &["127.0.0.0/8"]), "203.0.113.7");
    }
}
