//! The network by which a client is counted.

use std::net::{IpAddr, Ipv6Addr};

/// Returns the address by which a client is counted. An IPv4 address is returned as it is. Its IPv6 form, such as
/// `::ffff:10.0.0.7`, is returned as `10.0.0.7`. An IPv6 address keeps only its first `ipv6_prefix` bits, because one
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
            let mask = u128::MAX.checked_shl(128_u32.saturating_sub(u32::from(ipv6_prefix))).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from(u128::from(v6) & mask))
        }
        v4 => v4,
    }
}
