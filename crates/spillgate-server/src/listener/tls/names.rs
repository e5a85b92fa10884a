//! Which names the certificate of a client may have (setting `tls.client_names`).

use std::net::IpAddr;
use std::sync::Arc;

use tokio_rustls::rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

/// The longest name that is compared, in bytes. The names of SPIFFE have at most 2048.
const NAME_BYTES_MAX: usize = 2048;

/// A name that the certificate of a client may have, or a family of such names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientPattern {
    /// The whole name, or what all names of the family have in common.
    text: String,
    is_uri: bool,
    is_family: bool,
}

impl ClientPattern {
    /// Reads a DNS name (`gateway.internal`), the names with one more label (`*.internal`), a URI
    /// (`spiffe://cluster/ns/a`), or the URIs below one (`spiffe://cluster/ns/*`). Returns `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<ClientPattern> {
        if let Some((scheme, rest)) = text.split_once("://") {
            let is_family = rest.ends_with("/*");
            let whole = text.strip_suffix('*').filter(|_| is_family).unwrap_or(text);
            let authority = rest.split('/').next().unwrap_or_default();
            let is_visible = whole.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'*');
            let is_uri = !scheme.is_empty() && !authority.is_empty() && is_visible && text.len() <= NAME_BYTES_MAX;
            return is_uri.then(|| ClientPattern { text: whole.to_owned(), is_uri, is_family });
        }
        // The names of a certificate that are compared are no addresses.
        if text.parse::<IpAddr>().is_ok() {
            return None;
        }
        let (is_family, name) = text.strip_prefix("*.").map_or((false, text), |name| (true, name));
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        let is_name = name.len() <= 253 && name.split('.').all(is_label);
        is_name.then_some(ClientPattern { text: name, is_uri: false, is_family })
    }

    /// Returns whether this pattern contains the DNS name of a certificate.
    fn has_dns(&self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        let rest = match name.split_once('.') {
            Some((label, rest)) if self.is_family && is_label(label) => rest,
            _ if self.is_family => return false,
            // A certificate for `*.internal` is none for a name, so its star matches nothing.
            _ => &*name,
        };
        !self.is_uri && rest == self.text
    }

    /// Returns whether this pattern contains the URI of a certificate.
    fn has_uri(&self, uri: &str) -> bool {
        if !self.is_uri || uri.len() > NAME_BYTES_MAX {
            return false;
        }
        match uri.strip_prefix(&*self.text) {
            Some(rest) if self.is_family => !rest.split('/').any(|part| matches!(part, "" | "." | "..")),
            Some(rest) => rest.is_empty(),
            None => false,
        }
    }
}

fn is_label(label: &str) -> bool {
    !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

/// Returns the name of a client: the first name of its certificate that one of the patterns contains. Without patterns,
/// every name is good, and also none. Returns `None` if the client may not connect.
pub(super) fn name_of(patterns: &[ClientPattern], certificate: &CertificateDer<'_>) -> Option<Arc<str>> {
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    let is_any = patterns.is_empty();
    let uri = certificate
        .valid_uri_names()
        .find(|name| is_any && name.len() <= NAME_BYTES_MAX || patterns.iter().any(|pattern| pattern.has_uri(name)));
    let dns = || {
        let mut names = certificate.valid_dns_names();
        names.find(|name| is_any || patterns.iter().any(|pattern| pattern.has_dns(name)))
    };
    uri.or_else(dns).or(is_any.then_some("")).map(Arc::from)
}

/// The log shows at most this many names of a certificate, each with at most this many characters.
const NAMES_SHOWN: usize = 5;
const CHARS_SHOWN: usize = 120;

/// Returns the names in a certificate, for the log.
pub(super) fn listed(certificate: &CertificateDer<'_>) -> String {
    let Ok(certificate) = EndEntityCert::try_from(certificate) else { return "none".to_owned() };
    let mut names = certificate.valid_uri_names().chain(certificate.valid_dns_names());
    let shown: Vec<String> =
        names.by_ref().take(NAMES_SHOWN).map(|name| name.chars().take(CHARS_SHOWN).collect()).collect();
    match (shown.is_empty(), names.count()) {
        (true, _) => "none".to_owned(),
        (false, 0) => shown.join(", "),
        (false, more) => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, SanType};

    use super::*;

    fn pattern(text: &str) -> ClientPattern {
        ClientPattern::parse(text).unwrap_or_else(|| panic!("{text} is a pattern"))
    }

    #[test]
    fn a_star_is_one_label_or_the_rest_of_a_uri() {
        for (text, names, others) in [
            (
                "Gate.internal.",
                &["gate.internal", "GATE.internal"][..],
                &["a.gate.internal", "gate", "*.internal", ""][..],
            ),
            (
                "*.internal",
                &["a.internal", "A.INTERNAL"],
                &["internal", "a.b.internal", ".internal", "*.internal", "a.internalx"],
            ),
        ] {
            names.iter().for_each(|name| assert!(pattern(text).has_dns(name), "{text}: {name}"));
            others.iter().for_each(|name| assert!(!pattern(text).has_dns(name), "{text}: {name}"));
            assert!(!pattern(text).has_uri(names[0]));
        }
        for (text, names, others) in [
            (
                "spiffe://a/ns/b",
                &["spiffe://a/ns/b"][..],
                &["spiffe://a/ns/bc", "spiffe://a/ns/b/c", "spiffe://A/ns/b"][..],
            ),
            (
                "spiffe://a/ns/*",
                &["spiffe://a/ns/b", "spiffe://a/ns/b/sa/c"],
                &[
                    "spiffe://a/ns/",
                    "spiffe://a/ns",
                    "spiffe://a/nsx",
                    "spiffe://a/ns/../x",
                    "spiffe://a/ns//x",
                    "spiffe://a/ns/b/.",
                ],
            ),
            ("spiffe://a/*", &["spiffe://a/b"], &["spiffe://ab/b", "spiffe://a/"]),
        ] {
            names.iter().for_each(|name| assert!(pattern(text).has_uri(name), "{text}: {name}"));
            others.iter().for_each(|name| assert!(!pattern(text).has_uri(name), "{text}: {name}"));
            assert!(!pattern(text).has_dns(names[0]));
        }
    }

    #[test]
    fn what_would_let_in_everybody_is_no_pattern() {
        for text in [
            "",
            "*",
            "*.",
            "*.*",
            "a.*",
            "a*.internal",
            "*.*.internal",
            "a..b",
            "a b",
            "a/b",
            "spiffe://*",
            "spiffe://",
            "spiffe:///*",
            "://a",
            "spiffe://a/*/b",
            "spiffe://a*",
            "spiffe://a/ b",
            "spiffe://*/a",
            "10.0.0.1",
        ] {
            assert_eq!(ClientPattern::parse(text), None, "{text}");
        }
        assert_eq!(ClientPattern::parse(&format!("spiffe://a/{}", "b".repeat(2048))), None);
    }

    #[test]
    fn the_name_of_a_client_is_the_first_that_may_connect() {
        let certificate = |names: Vec<SanType>| {
            let mut params = CertificateParams::new(Vec::new()).expect("no names are valid");
            params.subject_alt_names = names;
            params.self_signed(&KeyPair::generate().expect("a key can be made")).expect("it can be signed")
        };
        let dns = |name: &str| SanType::DnsName(name.try_into().expect("the name is valid"));
        let uri = |name: &str| SanType::URI(name.try_into().expect("the name is valid"));
        let both = certificate(vec![dns("a.internal"), dns("b.internal"), uri("spiffe://a/b")]);
        let name = |patterns: &[&str]| {
            let patterns: Vec<_> = patterns.iter().map(|text| pattern(text)).collect();
            name_of(&patterns, both.der())
        };
        assert_eq!(name(&[]).as_deref(), Some("spiffe://a/b"));
        assert_eq!(name(&["b.internal"]).as_deref(), Some("b.internal"));
        assert_eq!(name(&["x.internal", "*.internal"]).as_deref(), Some("a.internal"));
        assert_eq!(name(&["x.internal"]), None);
        assert_eq!(listed(both.der()), "spiffe://a/b, a.internal, b.internal");
        let many: Vec<_> = (0..7).map(|number| dns(&format!("{number}.internal"))).collect();
        assert_eq!(
            listed(certificate(many).der()),
            "0.internal, 1.internal, 2.internal, 3.internal, 4.internal and 2 more"
        );
        let unnamed = certificate(Vec::new());
        assert_eq!(listed(unnamed.der()), "none");
        assert_eq!(name_of(&[], unnamed.der()).as_deref(), Some(""));
        assert_eq!(name_of(&[pattern("*.internal")], unnamed.der()), None);
    }
}
