//! TLS by our own certificates.

use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use crate::failure::{Failed, Failure};
use crate::settings::Tls;

/// Whom a server's certificate has to name.
pub(crate) fn server_name(host: &str) -> Result<ServerName<'static>, Failed> {
    ServerName::try_from(host.to_owned()).map_err(invalid)
}

/// # Errors
/// A certificate or a key is none.
pub(crate) fn connector(tls: &Tls) -> Result<TlsConnector, Failed> {
    let mut roots = RootCertStore::empty();
    match &tls.ca {
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                roots.add(certificate.map_err(invalid)?).map_err(invalid)?;
            }
            if roots.is_empty() {
                return Err(invalid("no certificate of an authority"));
            }
        }
        // Those of the system that are none are left out.
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    // The program may have chosen another provider for its own connections.
    let versions = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(invalid)?;
    let builder = versions.with_root_certificates(roots);
    let config = match &tls.client {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => {
            let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain).collect();
            let key = PrivateKeyDer::from_pem_slice(key).map_err(invalid)?;
            builder.with_client_auth_cert(chain.map_err(invalid)?, key).map_err(invalid::<rustls::Error>)?
        }
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

fn invalid<E: std::fmt::Display>(error: E) -> Failed {
    Failed::new(Failure::Other, error.to_string())
}
