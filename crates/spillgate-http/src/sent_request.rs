//! Reads the parts of a client's request from the header fields that a proxy sends to forward-auth.
//!
//! A client can write the same part in many ways: `/search`, `//search`, `/%73earch` and `/search?q=1` are one path for
//! most applications. Some proxies, such as Traefik, send the path as the client wrote it. So each part is brought into
//! one form here, and a client cannot avoid a rule by writing its value in another way.
//!
//! Each function reads its text once, and needs memory for about one copy of it. The listener bounds the header fields.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, header};
use percent_encoding::percent_decode_str;
use spillgate_service::counted_by;

use super::browsers::host_of;

const METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const URI: HeaderName = HeaderName::from_static("x-forwarded-uri");

/// Returns the last line of a field. A proxy replaces the field of the client, or adds its own line at the end.
fn last<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Cow<'h, str> {
    let line = headers.get_all(name).iter().next_back();
    line.map(|value| String::from_utf8_lossy(value.as_bytes())).unwrap_or_default()
}

/// Applies a function that returns a part of its argument, or a new text.
fn map<'h>(text: Cow<'h, str>, f: impl for<'t> FnOnce(&'t str) -> Cow<'t, str>) -> Cow<'h, str> {
    match text {
        Cow::Borrowed(text) => f(text),
        Cow::Owned(text) => Cow::Owned(f(&text).into_owned()),
    }
}

/// Returns the path of the client's URI in one form, as [`counted_by::path`] does. Empty if the proxy sends no URI.
pub(super) fn path(headers: &HeaderMap) -> Cow<'_, str> {
    map(last(headers, &URI), counted_by::path)
}

/// Returns the method of the client's request in capital letters. Empty if the proxy sends no method.
pub(super) fn method(headers: &HeaderMap) -> Cow<'_, str> {
    map(last(headers, &METHOD), |text| match text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        true => Cow::Owned(text.to_ascii_uppercase()),
        false => Cow::Borrowed(text),
    })
}

/// Returns the name of the server in the client's URL, in small letters and without a port or a dot at the end. Empty if
/// the proxy sends no name, or what no name can be.
pub(super) fn host(headers: &HeaderMap) -> Cow<'_, str> {
    map(last(headers, &HOST), |list| {
        let own = list.rsplit(',').next().unwrap_or_default().trim();
        let name = host_of(own).unwrap_or_default();
        match name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            true => Cow::Owned(name.to_ascii_lowercase()),
            false => Cow::Borrowed(name),
        }
    })
}

/// Returns the decoded value of a cookie. Empty if the client does not send the cookie, or sends it with different values.
///
/// Applications do not agree which one of several values counts. If one of them were chosen here, a client could add a
/// new value to each request, and so get a new counter each time.
pub(super) fn cookie<'h>(headers: &'h HeaderMap, name: &str) -> Cow<'h, str> {
    let lines = headers.get_all(header::COOKIE).iter().filter_map(|line| std::str::from_utf8(line.as_bytes()).ok());
    let pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    only(pairs.filter(|(own, _)| own.trim_end() == name).map(|(_, value)| {
        let value = value.trim_start();
        let bare = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(value);
        percent_decode_str(bare).decode_utf8_lossy()
    }))
}

/// Returns the decoded value of a parameter in the query of the client's URI. Empty if the query does not have it, or has
/// it with different values, as with [`cookie`].
pub(super) fn query<'h>(headers: &'h HeaderMap, name: &str) -> Cow<'h, str> {
    map(last(headers, &URI), |uri| {
        let (_, query) = uri.split_once('?').unwrap_or_default();
        let query = query.split('#').next().unwrap_or_default();
        only(form_urlencoded::parse(query.as_bytes()).filter(|(own, _)| own == name).map(|(_, value)| value))
    })
}

/// Returns the value that all items have, or an empty text.
fn only<'v>(mut values: impl Iterator<Item = Cow<'v, str>>) -> Cow<'v, str> {
    let first = values.next().unwrap_or_default();
    if values.all(|value| value == first) { first } else { Cow::Borrowed("") }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_bytes(value.as_bytes()).expect("the value is valid"));
        }
        headers
    }

    #[test]
    fn every_spelling_of_a_path_is_the_same_path() {
        let path = |uri: &str| path(&headers(&[("x-forwarded-uri", uri)])).into_owned();
        let spellings = [
            "/search",
            "/search?q=1",
            "/search#part",
            "//search",
            "///search",
            "/%73earch",
            "/%73%65%61%72%63%68?q",
            "/./search",
            "/a/../search",
            "/a/%2e%2E/search",
            "/%2Fsearch",
            "/../../search",
            "/a/b/.././../search",
            "http://app.example/search",
            "HTTPS://app.example//search?q",
            "search",
        ];
        for spelling in spellings {
            assert_eq!(path(spelling), "/search", "{spelling}");
        }
        for (uri, wanted) in [
            ("/", "/"),
            ("/?a", "/"),
            ("//", "/"),
            ("/..", "/"),
            ("/a/..", "/"),
            ("/a/b/..", "/a/"),
            ("/a/.", "/a/"),
            ("/a//", "/a/"),
            ("/a/b/", "/a/b/"),
            ("/A/.b/..c/d..", "/A/.b/..c/d.."),
            ("/caf%C3%A9", "/caf\u{e9}"),
            ("/caf\u{e9}", "/caf\u{e9}"),
            ("/%ff", "/\u{fffd}"),
            ("/a%2", "/a%2"),
            ("/a%3Fb", "/a?b"),
            ("/%252e", "/%2e"),
            ("/a?b=http://c/d", "/a"),
            ("http://app.example", "/"),
            ("*", "/*"),
        ] {
            assert_eq!(path(uri), wanted, "{uri}");
        }
        assert_eq!(super::path(&headers(&[])), "");
        let twice = headers(&[("x-forwarded-uri", "/of-the-client"), ("x-forwarded-uri", "/of-the-proxy")]);
        assert_eq!(super::path(&twice), "/of-the-proxy");
    }

    #[test]
    fn methods_and_hosts_have_one_form() {
        let method = |text: &str| method(&headers(&[("x-forwarded-method", text)])).into_owned();
        assert_eq!([method("GET"), method("get"), method("Post")], ["GET", "GET", "POST"]);
        let host = |text: &str| host(&headers(&[("x-forwarded-host", text)])).into_owned();
        for spelling in ["app.example", "APP.example", "app.example:8443", "app.example.", "evil.example, app.example"]
        {
            assert_eq!(host(spelling), "app.example", "{spelling}");
        }
        assert_eq!([host("[2001:DB8::1]:80"), host("a:b:c"), host("")], ["[2001:db8::1]", "", ""]);
        assert_eq!((super::method(&headers(&[])), super::host(&headers(&[]))), ("".into(), "".into()));
    }

    #[test]
    fn cookies_and_parameters_have_one_value_or_none() {
        let cookie = |lines: &[&str]| {
            let fields: Vec<_> = lines.iter().map(|line| ("cookie", *line)).collect();
            cookie(&headers(&fields), "plan").into_owned()
        };
        for lines in [
            &["plan=free"][..],
            &["a=1; plan=free; b"],
            &["plan=\"free\""],
            &["plan=%66ree"],
            &["plan=free; plan=free"],
            &["a=1", " plan = free"],
        ] {
            assert_eq!(cookie(lines), "free", "{lines:?}");
        }
        for lines in
            [&[][..], &["a=1"], &["Plan=free"], &["plan"], &["plan=free; plan=pro"], &["plan=free", "plan=pro"]]
        {
            assert_eq!(cookie(lines), "", "{lines:?}");
        }
        assert_eq!(cookie(&["plan=a=b"]), "a=b");
        let query = |uri: &str| query(&headers(&[("x-forwarded-uri", uri)]), "plan").into_owned();
        for uri in ["/?plan=free", "/a?b=1&plan=free", "/?%70lan=fre%65", "/?plan=free&plan=free", "/?plan=free#c"] {
            assert_eq!(query(uri), "free", "{uri}");
        }
        for uri in ["", "/", "/?", "/?a=1", "/?plan", "/?plan=free&plan=pro", "/plan=free", "/#?plan=free&plan=x"] {
            assert_eq!(query(uri), "", "{uri}");
        }
        assert_eq!(query("/?plan=a+b%26c"), "a b&c");
    }
}
