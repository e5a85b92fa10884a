//! Finds requests that a web page of another site sends through the browser of a visitor.
//!
//! A browser sends some requests of a page to any address that it can reach, also to one that the owner of the page cannot
//! reach. The page does not get the answers, but the requests are decided and charged. So without these checks, a page
//! could use up the limits of other callers. Three header fields, which a page cannot set itself, show such requests:
//!
//! * `Origin` names the site of the page. It must be the site that `Host` names, or a site of the settings.
//! * `Sec-Fetch-Site` says whether the page and the URL belong to the same site. Browsers also send it with requests
//!   that have no `Origin`.
//! * `Host` is the name in the URL. The owner of a name can let this name point to any address, for example to this
//!   machine (DNS rebinding). For a browser, a page from this name then belongs to the same site as the listener.
//!
//! Programs send neither `Origin` nor `Sec-Fetch-Site`. The HTTP listener and the admin listener both use this module,
//! but what they do with its answers differs.

use std::net::{Ipv4Addr, Ipv6Addr};

use http::{HeaderMap, HeaderName, StatusCode, Uri, header};
use spillgate_service::ServiceError;

use super::problem::{Failure, Problem};

const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Which web pages and names of this server the HTTP listener accepts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Browsers {
    /// Origins of other sites whose pages may send requests, such as `https://app.example`.
    pub origins: Vec<String>,
    /// Names of this server, without a port. If there are none, every name is accepted.
    pub hosts: Vec<String>,
}

impl Browsers {
    /// Checks a request to the HTTP listener that can change counts.
    ///
    /// Most requests come from programs, and have few header fields. To compare the names of these fields costs less than
    /// two searches in the map.
    #[inline]
    pub(super) fn check(&self, headers: &HeaderMap, uri: &Uri) -> Result<(), Failure> {
        let is_of_browser = headers.keys().any(|name| *name == header::ORIGIN || *name == SITE);
        if is_of_browser || !self.hosts.is_empty() { self.check_fields(headers, uri) } else { Ok(()) }
    }

    #[cold]
    fn check_fields(&self, headers: &HeaderMap, uri: &Uri) -> Result<(), Failure> {
        let is_known = || {
            let authority = authority(headers, uri)?;
            Ok::<_, Problem>(authority.is_some() && is_known_host(&self.hosts, uri, authority))
        };
        if !self.hosts.is_empty() && !is_known()? {
            return Err(Failure::Forbidden(
                ServiceError::Forbidden("the name of this server in the URL (the header field `Host`) is unknown"),
                "use an IP address or localhost, or add the name to the setting `http_hosts`",
            ));
        }
        let field = match origin(headers, uri, &self.origins)? {
            Some(Origin::Permitted) => return Ok(()),
            Some(Origin::Other) => "the request comes from a web page of another site (the header field `Origin`)",
            None if is_of_other_site(headers)? => {
                "the request comes from a web page of another site (the header field `Sec-Fetch-Site`)"
            }
            None => return Ok(()),
        };
        Err(Failure::Forbidden(
            ServiceError::Forbidden(field),
            "programs send neither `Origin` nor `Sec-Fetch-Site`; to permit the pages of this site, add its origin to \
             the setting `http_origins`",
        ))
    }
}

/// What the header field `Origin` of a request says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// It names the site of this server, or a permitted site.
    Permitted,
    /// It names another site, or none (`null`).
    Other,
}

/// Returns what `Origin` says, or `None` if the request has no such field. `permitted` are origins of other sites whose
/// pages may send requests.
///
/// # Errors
/// A field is repeated, or no text.
pub fn origin(headers: &HeaderMap, uri: &Uri, permitted: &[String]) -> Result<Option<Origin>, Problem> {
    let Some(origin) = single(headers, &header::ORIGIN)? else { return Ok(None) };
    let is_permitted = permitted.iter().any(|permitted| permitted.eq_ignore_ascii_case(origin))
        || authority(headers, uri)?.is_some_and(|own| is_site_of(origin, own));
    Ok(Some(if is_permitted { Origin::Permitted } else { Origin::Other }))
}

/// Returns whether `Sec-Fetch-Site` says that a page of another site has sent the request. A word that browsers do not
/// send today counts as another site.
///
/// # Errors
/// The field is repeated, or no text.
pub fn is_of_other_site(headers: &HeaderMap) -> Result<bool, Problem> {
    Ok(!matches!(single(headers, &SITE)?, None | Some("same-origin" | "none")))
}

/// Returns the name and the port of the server, as the client's URL has them. `None` if the request has no name, but no
/// browser sends such a request.
///
/// # Errors
/// The field `Host` is repeated, or no text.
pub fn authority<'r>(headers: &'r HeaderMap, uri: &'r Uri) -> Result<Option<&'r str>, Problem> {
    // HTTP/2 has the name in the URI.
    let in_uri = || uri.authority().map(|authority| authority.as_str());
    Ok(single(headers, &header::HOST)?.or_else(in_uri))
}

/// Returns whether each name of a server in the request is an address, `localhost`, or one of `hosts`.
pub fn is_known_host(hosts: &[String], uri: &Uri, authority: Option<&str>) -> bool {
    let in_uri = uri.authority().map(|authority| authority.as_str());
    authority.into_iter().chain(in_uri).map(host_of).all(|name| {
        name.is_some_and(|name| {
            let mut hosts = hosts.iter().map(String::as_str).chain(["localhost"]);
            is_address(name) || hosts.any(|host| host.eq_ignore_ascii_case(name))
        })
    })
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

/// Returns the value of a header field. Fails if the field is repeated, or if its value is not visible ASCII text.
fn single<'r>(headers: &'r HeaderMap, name: &HeaderName) -> Result<Option<&'r str>, Problem> {
    let mut values = headers.get_all(name).iter();
    match (values.next().map(|value| value.to_str()), values.next()) {
        (None, _) => Ok(None),
        (Some(Ok(value)), None) => Ok(Some(value)),
        _ => Err(Problem::new(
            StatusCode::BAD_REQUEST,
            format!("the header field `{name}` is repeated or no text"),
            "send it once",
        )),
    }
}

fn is_address(name: &str) -> bool {
    match name.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').is_some_and(|address| address.parse::<Ipv6Addr>().is_ok()),
        None => name.parse::<Ipv4Addr>().is_ok(),
    }
}

/// Returns the name or address in an authority such as `localhost:6070`. An IPv6 address keeps its brackets.
pub(super) fn host_of(authority: &str) -> Option<&str> {
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
