//! TLS to Redis servers and sentinels: which certificates are trusted, and which names they must have.
//!
//! The usual verifier (webpki) refuses two setups that are common for Redis: a Redis server with a self-signed
//! certificate, and a certificate with another name than the host.
//!
//! | the server's certificate | accepted |
//! |---|---|
//! | signed by a trusted authority, right name and dates | always |
//! | may sign other certificates, as `openssl req -x509` makes it | if [`Tls::ca`] contains this same certificate with right name and dates |
//! | right in everything except its name | if [`Tls::skip_name_check`] is set |
//! | any other | never |

use std::fmt;
use std::sync::Arc;

use spillgate_core::StoreErrorKind;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::{WebPkiServerVerifier, verify_server_name};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::{Error as PemError, PemObject as _, SectionKind};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error as TlsError, RootCertStore, SignatureScheme,
};

use crate::error::{Cause, Error};
use crate::settings::Tls;

pub(crate) struct TlsClient {
    /// Has the trusted authorities and the client's certificate. All connections share it.
    connector: TlsConnector,
    /// The name that a certificate must have. `None` if the certificate must have the name of the host.
    name: Option<ServerName<'static>>,
}

impl TlsClient {
    /// Parses the certificates of the settings. Those of the system are read only here.
    ///
    /// # Errors
    /// A certificate, a key or the name is invalid.
    pub(crate) fn new(tls: &Tls) -> Result<TlsClient, Error> {
        // The provider is passed on explicitly, because the program may have installed another provider for its own
        // connections.
        let provider = Arc::new(ring::default_provider());
        let versions = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(invalid)?;
        let verifier = Arc::new(Verifier::new(tls, provider)?);
        let builder = versions.dangerous().with_custom_certificate_verifier(verifier);
        let config = match &tls.client {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain).collect();
                let certificates = certificates.map_err(|_| wrong_pem("the certificate of the client", chain))?;
                let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| wrong_pem("the key of the client", key))?;
                builder.with_client_auth_cert(certificates, key).map_err(invalid::<TlsError>)?
            }
        };
        let name = tls.server_name.as_deref().map(server_name).transpose()?;
        Ok(TlsClient { connector: TlsConnector::from(Arc::new(config)), name })
    }

    /// Does the TLS handshake on a socket to `host`. The certificate must have the name `host`, or the name in
    /// [`Tls::server_name`] if it is set.
    ///
    /// # Errors
    /// [`Disconnected`](StoreErrorKind::Disconnected) if the handshake fails, for example because a certificate is not
    /// trusted. The detail is the text of rustls or of the system. The cause of the error says whether a certificate is
    /// the reason. [`Other`](StoreErrorKind::Other) if no certificate can have the name `host`.
    pub(crate) async fn connect(&self, host: &str, stream: TcpStream) -> Result<TlsStream<TcpStream>, Error> {
        let name = self.name.clone().map_or_else(|| server_name(host), Ok)?;
        self.connector.connect(name, stream).await.map_err(|error| match Error::from(error) {
            // A Redis server without TLS can close or reset the connection without a reply.
            error @ Error { cause: Cause::Unknown | Cause::ConnectionClosed, .. } => {
                Error { cause: Cause::TlsHandshake, ..error }
            }
            error => error,
        })
    }
}

/// Returns the name in the form that TLS checks: a DNS name or an IP address. Any other host cannot be in a
/// certificate.
fn server_name(name: &str) -> Result<ServerName<'static>, Error> {
    let wrong = |_| Error::new(StoreErrorKind::Other, format!("a certificate cannot name the host `{name}`"));
    ServerName::try_from(name.to_owned()).map_err(wrong)
}

/// Checks certificates as webpki does, with the two exceptions in the table at the top of this file.
#[derive(Debug)]
struct Verifier {
    /// `None` if no authority is trusted, because the system has no certificates.
    webpki: Option<Arc<WebPkiServerVerifier>>,
    /// Checks signatures. The provider is always *ring*, whatever the program uses for its other connections.
    provider: Arc<CryptoProvider>,
    /// The certificates in [`Tls::ca`]. A Redis server may use one of them as its own certificate.
    named: Vec<CertificateDer<'static>>,
    /// [`Tls::skip_name_check`].
    skips_names: bool,
}

impl Verifier {
    /// Creates a verifier that trusts the authorities of the settings. If the settings have none, it trusts the
    /// authorities of the system.
    ///
    /// # Errors
    /// A certificate of the settings is invalid, or their text contains no certificate.
    fn new(tls: &Tls, provider: Arc<CryptoProvider>) -> Result<Verifier, Error> {
        let (mut roots, mut named) = (RootCertStore::empty(), Vec::new());
        match &tls.ca {
            Some(pem) => {
                for certificate in CertificateDer::pem_slice_iter(pem) {
                    let certificate = certificate.map_err(|_| wrong_pem("the certificate of the authority", pem))?;
                    roots.add(certificate.clone()).map_err(invalid)?;
                    named.push(certificate);
                }
                if roots.is_empty() {
                    return Err(invalid("no certificate of an authority"));
                }
            }
            // Invalid certificates of the system are skipped.
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        let webpki = if roots.is_empty() {
            None
        } else {
            let builder = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
            Some(builder.build().map_err(invalid)?)
        };
        Ok(Verifier { webpki, provider, named, skips_names: tls.skip_name_check })
    }
}

impl ServerCertVerifier for Verifier {
    /// Asks webpki, and then accepts the two exceptions.
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        let Some(webpki) = &self.webpki else { return Err(CertificateError::UnknownIssuer.into()) };
        let checked = webpki.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        let checked = match checked {
            // webpki refuses a server's certificate that may sign others (`CA:TRUE`, as `openssl req -x509` makes
            // it). At that point webpki has already checked the dates. The settings contain this very certificate, so
            // it is trusted, and only its name remains to be checked.
            Err(TlsError::InvalidCertificate(CertificateError::Other(_))) if self.named.contains(end_entity) => {
                let certificate = ParsedCertificate::try_from(end_entity)?;
                verify_server_name(&certificate, server_name).map(|()| ServerCertVerified::assertion())
            }
            checked => checked,
        };
        match checked {
            // webpki checks the name last, so everything else is valid.
            Err(TlsError::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.skips_names => Ok(ServerCertVerified::assertion()),
            checked => checked,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        let algorithms = &self.provider.signature_verification_algorithms;
        tokio_rustls::rustls::crypto::verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        let algorithms = &self.provider.signature_verification_algorithms;
        tokio_rustls::rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Returns the error for a certificate or a key that cannot be used.
fn invalid<E: fmt::Display>(error: E) -> Error {
    Error::new(StoreErrorKind::Other, error.to_string())
}

fn wrong_pem(what: &str, pem: &[u8]) -> Error {
    invalid(format!("{what} is not valid PEM: {}", pem_fault(pem)))
}

/// Says what is wrong with a text that is not valid PEM, in words that have no part of the text. The errors of the library
/// have whole lines of it, and a private key without its line breaks is one line.
#[doc(hidden)] // Only for the server, which reads such files too.
#[must_use]
pub fn pem_fault(pem: &[u8]) -> &'static str {
    let begins = |line: &[u8]| line.starts_with(BEGIN);
    // Whether anything follows the label, which ends with five dashes.
    let goes_on = |line: &[u8]| {
        let rest = &line[BEGIN.len()..];
        rest.windows(5).position(|part| part == b"-----").is_some_and(|end| !rest[end + 5..].trim_ascii().is_empty())
    };
    if pem.split(|byte| matches!(byte, b'\n' | b'\r')).any(|line| begins(line) && goes_on(line)) {
        return "text follows its -----BEGIN ...----- on the same line, so its line breaks are lost";
    }
    match <(SectionKind, Vec<u8>)>::pem_slice_iter(pem).find_map(Result::err) {
        Some(PemError::IllegalSectionStart { .. }) => "a line -----BEGIN is not complete",
        Some(PemError::MissingSectionEnd { .. }) => "a line -----BEGIN has no line -----END with the same name",
        Some(PemError::Base64Decode(_)) => "what is between its lines -----BEGIN and -----END is not Base64",
        _ => "no line begins with -----BEGIN and the name of what is needed",
    }
}

const BEGIN: &[u8] = b"-----BEGIN ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fault_of_a_text_is_named_without_any_part_of_the_text() {
        let whole = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0c2VjcmV0\n-----END PRIVATE KEY-----\n";
        let of = |text: &str| pem_fault(text.as_bytes());
        for (text, part) in [
            (whole.replace('\n', ""), "line breaks are lost"),
            (whole.replace('\n', " "), "line breaks are lost"),
            (whole.replace('\n', "\\n"), "line breaks are lost"),
            (whole.replacen('\n', "", 1), "line breaks are lost"),
            (whole[..40].replace('\n', ""), "line breaks are lost"),
            (whole[..20].to_owned(), "is not complete"),
            (whole[..40].to_owned(), "has no line -----END"),
            (whole.replace("END PRIVATE", "END"), "has no line -----END"),
            (whole.replace("c2Vj", "c2V!"), "is not Base64"),
            (whole.to_owned(), "the name of what is needed"),
            (String::new(), "the name of what is needed"),
        ] {
            assert!(of(&text).contains(part), "{text}: {}", of(&text));
        }
        let lost = whole.replace('\n', "");
        let tls = |ca: Option<&str>, client: Option<&str>| Tls {
            ca: ca.map(|text| text.as_bytes().to_vec()),
            client: client.map(|text| (text.as_bytes().to_vec(), text.as_bytes().to_vec())),
            ..Tls::default()
        };
        let key_only = Tls { client: Some((Vec::new(), lost.clone().into_bytes())), ..Tls::default() };
        for tls in [tls(Some(&lost), None), tls(None, Some(&lost)), key_only] {
            let error = TlsClient::new(&tls).err().expect("the text is wrong").detail().to_owned();
            assert!(error.contains("line breaks are lost") && !error.contains("c2Vj"), "{error}");
            assert!(!error.contains("99, 50, 86, 106"), "the same as numbers: {error}");
        }
    }
}
