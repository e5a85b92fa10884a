//! Which clients may connect to a listener that wants certificates.

use std::cell::Cell;
use std::sync::Arc;

use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error as TlsError, RootCertStore, SignatureScheme,
};

use super::names::{ClientPattern, listed, name_of};

thread_local! {
    /// The names in the certificate that this thread has refused because of its names. The library tells whoever asked for the
    /// handshake only that it was refused, and an operator has to see which name to add.
    static REFUSED_NAMES: Cell<Option<String>> = const { Cell::new(None) };
}

/// Returns the names that were refused since the last call. One handshake computes at a time on a thread, so a call after
/// each step returns the names of this handshake.
pub(super) fn take_refused_names() -> Option<String> {
    REFUSED_NAMES.take()
}

/// Checks the certificate of a client: it must be signed by one of these authorities, and have one of these names.
#[derive(Debug)]
pub(super) struct ClientVerifier {
    webpki: Arc<dyn ClientCertVerifier>,
    names: Arc<[ClientPattern]>,
}

impl ClientVerifier {
    pub(super) fn new(
        roots: Arc<RootCertStore>,
        names: Arc<[ClientPattern]>,
        provider: Arc<CryptoProvider>,
    ) -> Result<ClientVerifier, VerifierBuilderError> {
        let webpki = WebPkiClientVerifier::builder_with_provider(roots, provider).build()?;
        Ok(ClientVerifier { webpki, names })
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.webpki.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, TlsError> {
        let verified =
            self.webpki.verify_client_cert(certificate, intermediates, now).map_err(|error| match error {
                // `openssl req -x509` makes such a certificate: nobody else has signed it.
                TlsError::InvalidCertificate(CertificateError::Other(other))
                    if matches!(other.0.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity)) =>
                {
                    CertificateError::UnknownIssuer.into()
                }
                // Its issuer has the name of an authority, and another key.
                TlsError::InvalidCertificate(CertificateError::BadSignature) => CertificateError::UnknownIssuer.into(),
                error => error,
            })?;
        match name_of(&self.names, certificate) {
            Some(_) => Ok(verified),
            None => {
                REFUSED_NAMES.set(Some(listed(certificate)));
                Err(CertificateError::ApplicationVerificationFailure.into())
            }
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.webpki.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.webpki.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}
