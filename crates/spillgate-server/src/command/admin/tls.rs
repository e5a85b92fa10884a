//! TLS to the admin listeners of servers.

use std::error::Error;
use std::io;
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::sign::SingleCertAndKey;
use tokio_rustls::rustls::{ClientConfig, Error as TlsError, RootCertStore};

use super::client::{Admin, HELP, TlsOptions};
use crate::command::open::listener_tls;
use crate::command::terminal::Problem;

/// Returns what makes connections with TLS. It reads the files of the options.
pub(super) fn connector(options: &TlsOptions) -> Result<TlsConnector, Problem> {
    let roots = match &options.ca {
        Some(ca) => listener_tls::trusted(ca, "--ca")?,
        None => {
            let mut roots = RootCertStore::empty();
            // Invalid certificates of the system are skipped.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            roots
        }
    };
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| Problem::new(format!("TLS cannot be used: {error}"), HELP))?;
    let builder = builder.with_root_certificates(roots);
    let config = match &options.client {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let pair = listener_tls::pair_named((cert, "--client-cert"), (key, "--client-key"))?;
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair.key)))
        }
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Returns the name that the certificate of the server at this address must have.
pub(super) fn server_name(address: &str) -> Result<ServerName<'static>, Problem> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    ServerName::try_from(host.to_owned()).map_err(|_| {
        let help = "give --admin an address whose host is a name or an IP address";
        Problem::new(format!("a certificate cannot have the name `{host}`"), help)
    })
}

/// Returns the problem of a handshake that has failed.
pub(super) fn failed(admin: &Admin, error: &io::Error) -> Problem {
    let help = match error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>()) {
        Some(TlsError::InvalidCertificate(_)) => {
            "give --ca the file of the authority that signed the certificate of the server, and --admin a name that the certificate has"
        }
        Some(TlsError::AlertReceived(_)) => {
            "the server refuses this client, and its log says why: if its listener wants certificates of clients, give --client-cert and \
             --client-key with one that may connect, or leave `admin` out of `tls.client_listeners`"
        }
        _ => "check that the listener has TLS (the setting `tls.listeners`), or write http://",
    };
    Problem::new(format!("{admin} cannot be asked over TLS: {error}"), help)
}

/// Returns the problem of a client that the server has refused, if that is the cause of `error`. With TLS 1.3, a client learns
/// only after its handshake that its certificate is refused.
pub(super) fn refused(admin: &Admin, error: &(dyn Error + 'static)) -> Option<Problem> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let of_system = error.downcast_ref::<io::Error>();
        let inner = of_system.and_then(io::Error::get_ref).and_then(|inner| inner.downcast_ref::<TlsError>());
        if let (Some(error), Some(TlsError::AlertReceived(_))) = (of_system, inner) {
            return Some(failed(admin, error));
        }
        cause = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_certificate_has_the_host_of_the_address() {
        for (address, name) in [("a.internal:6070", "a.internal"), ("127.0.0.1:1", "127.0.0.1"), ("[::1]:1", "::1")] {
            assert_eq!(server_name(address).map(|name| name.to_str().into_owned()).ok().as_deref(), Some(name));
        }
        assert!(server_name("a b:1").is_err());
    }
}
