//! The network by which a client is counted.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The network whose addresses stand for IPv4 addresses behind a NAT64 translator (RFC 6052): their last 32 bits are the
/// IPv4 address.
const NAT64: u128 = 0x0064_ff9b << 96;

/// Returns the address by which a client is counted. An IPv4 address is returned as it is. Its IPv6 forms, such as
/// `::ffff:10.0.0.7`, and `64:ff9b::10.0.0.7` of a NAT64 translator, are returned as `10.0.0.7`. An IPv6 address keeps only its first `ipv6_prefix` bits, because one
/// client usually has a whole network. A prefix of 64 bits is right for most limits.
///
/// ```
/// use std::net::IpAddr;
/// use spillgate::network_of;
///
/// let address: IpAddr = "2001:db8:1:2:aaaa::1".parse()?;
/// assert_eq!(network_of(address, 64), "2001:db8:1:2::".parse::<IpAddr>()?);
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[must_use]
pub fn network_of(address: IpAddr, ipv6_prefix: u8) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            if let Ok(v4) = u32::try_from(u128::from(v6) ^ NAT64) {
                return IpAddr::V4(Ipv4Addr::from(v4));
            }
            let mask = u128::MAX.checked_shl(128_u32.saturating_sub(u32::from(ipv6_prefix))).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from(u128::from(v6) & mask))
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_ipv4_client_counts_alone_in_every_form_of_its_address() {
        let counted = |address: &str| network_of(address.parse().expect("it is an address"), 64).to_string();
        for (address, client) in [
            ("192.0.2.7", "192.0.2.7"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("64:ff9b::192.0.2.7", "192.0.2.7"),
            ("64:ff9b::255.255.255.255", "255.255.255.255"),
            ("64:ff9b::1:c000:207", "64:ff9b::"),
            ("64:ff9b:1::192.0.2.7", "64:ff9b:1::"),
            ("2001:db8:1:2:3::7", "2001:db8:1:2::"),
        ] {
            assert_eq!(counted(address), client, "{address}");
        }
    }
}
