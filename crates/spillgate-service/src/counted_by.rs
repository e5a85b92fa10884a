//! The texts under which requests are counted.
//!
//! A client can write the same address or the same path in many ways. So each is brought into one form, and forward-auth
//! and a replay of its log count the same clients.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::net::IpAddr;

use percent_encoding::percent_decode_str;
use spillgate::network_of;

/// Returns the text under which an address is counted. Each IPv4 address has a text of its own. IPv6 addresses that
/// begin with the same `ipv6_prefix` bits share a text, because one client usually has a whole network of addresses.
#[must_use]
pub fn network(address: IpAddr, ipv6_prefix: u8) -> String {
    let mut text = String::with_capacity(48);
    let written = match network_of(address, ipv6_prefix) {
        IpAddr::V6(network) if ipv6_prefix < 128 => write!(text, "{network}/{ipv6_prefix}"),
        address => write!(text, "{address}"),
    };
    written.expect("writing to a string does not fail");
    text
}

/// Returns the path of a URI in one form: decoded, without the query, without empty segments, and with `.` and `..`
/// resolved. Upper and lower case, and a slash at the end, stay.
#[must_use]
pub fn path(uri: &str) -> Cow<'_, str> {
    if uri.is_empty() {
        return Cow::Borrowed(uri);
    }
    let target = without_authority(uri);
    let raw = &target[..target.find(['?', '#']).unwrap_or(target.len())];
    if raw.starts_with('/') && !raw.contains('%') && !raw.contains("//") && !raw.contains("/.") {
        return Cow::Borrowed(raw);
    }
    let decoded = percent_decode_str(raw).decode_utf8_lossy();
    let mut path = String::with_capacity(decoded.len() + 1);
    let mut ends_in_folder = false;
    for segment in decoded.split('/') {
        ends_in_folder = matches!(segment, "" | "." | "..");
        match segment {
            "" | "." => {}
            ".." => path.truncate(path.rfind('/').unwrap_or(0)),
            name => {
                path.push('/');
                path.push_str(name);
            }
        }
    }
    if ends_in_folder || path.is_empty() {
        path.push('/');
    }
    Cow::Owned(path)
}

/// Returns the path and the query of a URI such as `http://app.example/a?b`. A client may send a proxy such a URI.
fn without_authority(uri: &str) -> &str {
    let Some((_, rest)) = uri.split_once("://").filter(|(scheme, _)| !scheme.contains(['/', '?', '#'])) else {
        return uri;
    };
    rest.find(['/', '?', '#']).map_or("/", |at| &rest[at..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_in_its_one_form_is_not_changed_and_not_copied() {
        for text in ["/", "/search", "/a/b/", "/caf\u{e9}"] {
            assert!(matches!(super::path(text), Cow::Borrowed(own) if own == text), "{text}");
        }
        let mut random = 7_u64;
        for _ in 0..20_000 {
            let mut text = String::new();
            for _ in 0..8 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                text.push_str(["/", ".", "..", "a", "%2f", "%2e", "?", "b"][(random >> 61) as usize]);
            }
            let once = super::path(&text).into_owned();
            let segments = |path: &str| path.split('/').any(|segment| segment == "." || segment == "..");
            assert!(once.starts_with('/') && !once.contains("//") && !segments(&once), "{text} {once}");
        }
    }
}
