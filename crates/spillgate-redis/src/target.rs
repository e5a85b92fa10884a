//! Where a server is, and a connection to it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionAddr, IntoConnectionInfo as _, RedisConnectionInfo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use crate::failure::{Failed, Failure};
use crate::script::Script;
use crate::settings::{Settings, Tls};

/// What reads and writes a connection: it has to be polled as long as answers are wanted, and ends with it.
pub(crate) type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A server's address, and who asks there.
pub(crate) struct Target {
    address: ConnectionAddr,
    user: RedisConnectionInfo,
    tls: Option<TlsConnector>,
    queue: usize,
}

impl Target {
    /// # Errors
    /// The address or a certificate is none.
    pub(crate) fn new(settings: &Settings) -> Result<Target, Failed> {
        // The client library knows these schemes only where TLS is its own business.
        let secure = ["rediss://", "valkeys://"].iter().find_map(|scheme| settings.url.strip_prefix(scheme));
        let (url, tls) = match secure {
            Some(rest) => (format!("redis://{rest}"), Some(connector(&settings.tls)?)),
            None => (settings.url.clone(), None),
        };
        let info = url.as_str().into_connection_info()?;
        let user = info.redis_settings().clone().set_skip_set_lib_name();
        Ok(Target { address: info.addr().clone(), user, tls, queue: settings.max_in_flight })
    }

    /// Connects, logs in, and loads the scripts.
    pub(crate) async fn connect(&self) -> Result<(MultiplexedConnection, Driver), Failed> {
        let (connection, mut driver) = match (&self.address, &self.tls) {
            (ConnectionAddr::Unix(path), _) => self.greet(UnixStream::connect(path).await?).await?,
            (ConnectionAddr::Tcp(host, port), tls) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                match tls {
                    Some(tls) => self.greet(tls.connect(server_name(host)?, stream).await?).await?,
                    None => self.greet(stream).await?,
                }
            }
            _ => return Err(Failed::new(Failure::Other, "an address of another kind")),
        };
        tokio::select! {
            loaded = load(&connection) => loaded?,
            () = &mut driver => return Err(Failed::new(Failure::Disconnected, "the server hung up")),
        }
        Ok((connection, driver))
    }

    async fn greet<S>(&self, stream: S) -> Result<(MultiplexedConnection, Driver), Failed>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        // Deadlines are the caller's, and what may be in flight at once never waits to be queued.
        let config = AsyncConnectionConfig::new().set_response_timeout(None).set_pipeline_buffer_size(self.queue);
        let (connection, driver) = MultiplexedConnection::new_with_config(&self.user, stream, config).await?;
        Ok((connection, Box::pin(driver)))
    }
}

async fn load(connection: &MultiplexedConnection) -> Result<(), Failed> {
    let mut all = redis::Pipeline::new();
    for script in Script::ALL {
        all.cmd("SCRIPT").arg("LOAD").arg(script.source).ignore();
    }
    all.query_async::<()>(&mut connection.clone()).await?;
    Ok(())
}

fn server_name(host: &str) -> Result<ServerName<'static>, Failed> {
    ServerName::try_from(host.to_owned()).map_err(invalid)
}

fn connector(tls: &Tls) -> Result<TlsConnector, Failed> {
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
