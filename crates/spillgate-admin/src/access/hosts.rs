//! Says whether a request can come from a web page of another site.
//!
//! If an operator opens a page of another site in a browser, this page can send requests to this listener. Three header
//! fields, which a page cannot set itself, show such requests:
//!
//! * `Origin` names the site of the page. It must be the site that `Host` names.
//! * `Sec-Fetch-Site` says whether the page and the URL belong to the same site. Browsers also send it with requests
//!   that have no `Origin`.
//! * `Host` is the name in the URL. The owner of a name can let this name point to any address, for example to this
//!   machine (DNS rebinding). For a browser, a page from this name then belongs to the same site as the listener.
//!
//! Because of DNS rebinding, `Host` must be an address, `localhost`, or in the setting `admin_hosts` if the settings
//! have no token. With a token, every name is accepted, because a page of another site does not know the token.

use std::net::{Ipv4Addr, Ipv6Addr};

use axum::extract::Request;
use axum::http::{HeaderName, Method, StatusCode, header};
use spillgate_http::problem::Problem;
use spillgate_service::metrics::AdminRefusal;

use super::Refused;

const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// Returns the name and the port of the server, as the client's URL has them. `None` if the request has no name, but no
/// browser sends such a request.
pub(super) fn authority(request: &Request) -> Result<Option<&str>, Refused> {
    match single(request, &header::HOST, AdminRefusal::Host)? {
        Some(host) => Ok(Some(host)),
        // HTTP/2 has the name in the URI.
        None => Ok(request.uri().authority().map(|authority| authority.as_str())),
    }
}

/// Checks that each name of a server in the request is an address, `localhost`, or one of `hosts`.
pub(super) fn known_host(hosts: &[String], request: &Request, authority: Option<&str>) -> Result<(), Refused> {
    let in_uri = request.uri().authority().map(|authority| authority.as_str());
    for name in authority.into_iter().chain(in_uri).map(host_of) {
        let known = name.is_some_and(|name| {
            let mut hosts = hosts.iter().map(String::as_str).chain(["localhost"]);
            is_address(name) || hosts.any(|host| host.eq_ignore_ascii_case(name))
        });
        if !known {
            let detail = "the name of this server in the URL (the header field `Host`) is unknown";
            let help = "use an IP address or localhost, add the name to the setting `admin_hosts`, or set a token (`admin_token_file`)";
            return Err(Refused::new(AdminRefusal::Host, Problem::new(StatusCode::FORBIDDEN, detail, help)));
        }
    }
    Ok(())
}

/// Checks that the request does not come from a page of another site.
pub(super) fn same_origin(request: &Request, authority: Option<&str>) -> Result<(), Refused> {
    let origin = single(request, &header::ORIGIN, AdminRefusal::Origin)?;
    if origin.is_some_and(|origin| !authority.is_some_and(|own| is_site_of(origin, own))) {
        return Err(other_site("Origin"));
    }
    match single(request, &SITE, AdminRefusal::Origin)? {
        None | Some("same-origin" | "none") => Ok(()),
        Some(_) if is_link(request) => Ok(()),
        Some(_) => Err(other_site("Sec-Fetch-Site")),
    }
}

/// Returns whether an origin such as `https://localhost:6070` is the site of an authority such as `localhost:6070`. In
/// an origin, browsers leave out the ports 80 (http) and 443 (https). But a proxy can add these ports to `Host`.
fn is_site_of(origin: &str, authority: &str) -> bool {
    [("http://", ":80"), ("https://", ":443")].iter().any(|(scheme, port)| {
        let bare = authority.strip_suffix(port).unwrap_or(authority);
        origin
            .strip_prefix(scheme)
            .is_some_and(|site| [authority, bare].iter().any(|own| site.eq_ignore_ascii_case(own)))
    })
}

/// Returns whether the request opens the page of the listener in a window and not in a frame, for example after a click
/// on a link in a wiki. Such a request is harmless: the page holds no secret, and the wiki cannot read the page.
fn is_link(request: &Request) -> bool {
    let is = |name: &HeaderName, value: &str| {
        let mut values = request.headers().get_all(name).iter();
        values.next().is_some_and(|first| first == value) && values.next().is_none()
    };
    let is_page = request.method() == Method::GET && request.uri().path() == "/";
    is_page && is(&MODE, "navigate") && is(&DEST, "document")
}

fn other_site(field: &str) -> Refused {
    let detail = format!("the request comes from a web page of another site (the header field `{field}`)");
    let help = "send the request from a program, without `Origin` and `Sec-Fetch-Site`";
    Refused::new(AdminRefusal::Origin, Problem::new(StatusCode::FORBIDDEN, detail, help))
}

/// Returns the value of a header field. Fails if the field is repeated, or if its value is not visible ASCII text.
fn single<'r>(request: &'r Request, name: &HeaderName, reason: AdminRefusal) -> Result<Option<&'r str>, Refused> {
    let mut values = request.headers().get_all(name).iter();
    match (values.next().map(|value| value.to_str()), values.next()) {
        (None, _) => Ok(None),
        (Some(Ok(value)), None) => Ok(Some(value)),
        _ => {
            let detail = format!("the header field `{name}` is repeated or no text");
            Err(Refused::new(reason, Problem::bad_request(detail, "send it once")))
        }
    }
}

fn is_address(name: &str) -> bool {
    match name.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').is_some_and(|address| address.parse::<Ipv6Addr>().is_ok()),
        None => name.parse::<Ipv4Addr>().is_ok(),
    }
}

/// Returns the name or address in an authority such as `localhost:6070`. An IPv6 address keeps its brackets.
fn host_of(authority: &str) -> Option<&str> {
    let end = match authority.starts_with('[') {
        true => authority.find(']')? + 1,
        false => authority.find(':').unwrap_or(authority.len()),
    };
    let (host, port) = authority.split_at(end);
    let is_port =
        port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()));
    // `localhost.` is the same name as `localhost`: the dot only says that the name is complete.
    is_port.then(|| host.strip_suffix('.').unwrap_or(host)).filter(|host| !host.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_are_addresses() {
        for address in ["127.0.0.1", "10.1.2.3", "[::1]", "[::ffff:10.0.0.1]"] {
            assert!(is_address(address), "{address}");
        }
        for other in
            ["", "[]", "::1", "[127.0.0.1]", "127.0.0.1]", "[::1", "[[::1]]", "127.1", "0x7f000001", "2130706433"]
        {
            assert!(!is_address(other), "{other}");
        }
    }

    #[test]
    fn an_origin_is_that_of_its_own_site_only() {
        let own = [
            ("http://localhost:6070", "localhost:6070"),
            ("https://Gate.example", "gate.example"),
            ("https://gate.example", "gate.example:443"),
            ("http://[::1]", "[::1]:80"),
            ("http://gate.example:80", "gate.example:80"),
        ];
        for (origin, authority) in own {
            assert!(is_site_of(origin, authority), "{origin} {authority}");
        }
        let others = [
            ("null", "localhost"),
            ("https://evil.example", "gate.example:443"),
            ("http://gate.example", "gate.example:443"),
            ("https://gate.example", "gate.example:80"),
            ("https://gate.example", "gate.example:8443"),
            ("https://gate.example:443:443", "gate.example:443"),
            ("ftp://gate.example", "gate.example"),
            ("https://gate.example/", "gate.example"),
        ];
        for (origin, authority) in others {
            assert!(!is_site_of(origin, authority), "{origin} {authority}");
        }
    }

    #[test]
    fn a_host_is_read_from_every_authority() {
        let hosts = [
            ("localhost", Some("localhost")),
            ("localhost:6070", Some("localhost")),
            ("LocalHost.:6070", Some("LocalHost")),
            ("[::1]:6070", Some("[::1]")),
            ("[::1]", Some("[::1]")),
            ("localhost:", Some("localhost")),
            ("", None),
            (":6070", None),
            (".", None),
            ("[::1", None),
            ("[::1]6070", None),
            ("localhost:6070:1", None),
            ("localhost:x", None),
            ("user@localhost", Some("user@localhost")),
            ("user:1@localhost", None),
        ];
        for (authority, host) in hosts {
            assert_eq!(host_of(authority), host, "{authority}");
        }
    }
}
