//! TLS of the client.
//!
//! The client checks no certificates. So a handshake costs it less than the server, and one core of clients can keep a
//! core of the server busy.

use clap::{Args, ValueEnum};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme, SupportedProtocolVersion};
use std::net::SocketAddr;
use std::sync::Arc;

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Version {
    #[value(name = "1.2")]
    Tls12,
    #[value(name = "1.3")]
    Tls13,
}

#[derive(Args, Clone)]
pub(crate) struct Tls {
    /// Connect with TLS. The certificate of the server is not checked
    #[arg(long)]
    pub(crate) tls: bool,
    /// Use only this version of TLS
    #[arg(long, requires = "tls")]
    tls_version: Option<Version>,
    /// Resume sessions of earlier connections
    #[arg(long, requires = "tls")]
    tls_resume: bool,
}

impl Tls {
    /// Returns the configuration of a client that offers this `protocol` (ALPN), or `None` for a client without TLS.
    pub(crate) fn config(&self, protocol: &str) -> Result<Option<Arc<ClientConfig>>, String> {
        if !self.tls {
            return Ok(None);
        }
        let versions: &[&SupportedProtocolVersion] = match self.tls_version {
            Some(Version::Tls12) => &[&TLS12],
            Some(Version::Tls13) => &[&TLS13],
            None => &[&TLS12, &TLS13],
        };
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(versions);
        let builder = builder.map_err(|e| e.to_string())?.dangerous();
        let mut config = builder.with_custom_certificate_verifier(Arc::new(Unchecked(provider))).with_no_client_auth();
        config.alpn_protocols = vec![protocol.into()];
        if !self.tls_resume {
            config.resumption = Resumption::disabled();
        }
        Ok(Some(Arc::new(config)))
    }
}

/// Begins a connection. All bytes that are written before the end of the handshake wait in it.
pub(crate) fn connection(config: &Arc<ClientConfig>, target: SocketAddr) -> Result<ClientConnection, String> {
    let connection = ClientConnection::new(Arc::clone(config), ServerName::IpAddress(target.ip().into()));
    let mut connection = connection.map_err(|e| e.to_string())?;
    // The window of the load bounds what waits.
    connection.set_buffer_limit(None);
    Ok(connection)
}

/// Returns the first message of a client, which a flood repeats.
pub(crate) fn first_message(target: SocketAddr) -> Result<Vec<u8>, String> {
    let tls = Tls { tls: true, tls_version: None, tls_resume: false };
    let config = tls.config("h2")?.ok_or("a configuration of TLS is missing")?;
    let mut message = Vec::new();
    connection(&config, target)?.write_tls(&mut message).map_err(|e| e.to_string())?;
    Ok(message)
}

/// Accepts every certificate.
#[derive(Debug)]
struct Unchecked(Arc<CryptoProvider>);

impl ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
