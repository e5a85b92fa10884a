//! TLS on listeners: the handshake in front of a connection, and the end of connections whose client is trusted no more.
//!
//! A handshake runs on the worker of its connection. After it, the connection is served by the same code as one without
//! TLS. All handshakes use what [`Tls`] has at this moment, so certificates can change while the server runs.
//!
//! | of a listener with `client_ca` | is |
//! |---|---|
//! | `client.rs`, `names.rs` | who may connect |
//! | a resumed session | never accepted: each connection shows its certificate again |
//! | an open connection | ended when the authorities change, or when the certificate of its client ends |

mod client;
mod failure;
mod handshakes;
mod names;
mod stream;
mod validity;

use std::fmt;
use std::future::{Future as _, pending};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{self, Poll, Wake};
use std::time::Duration;

use spillgate::{Clock as _, SystemClock};
use spillgate_service::metrics::{Closed, HandshakeFailure, Metrics};
use spillgate_service::{ClientName, Peer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::server::{NoServerSessionStorage, ProducesTickets};
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls::{Error as TlsError, RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;

use super::connection::CLOSE_TIMEOUT;
use super::context::Context;
use super::serve::serve_stream;
use super::{App, Phase};
use client::{ClientVerifier, take_refused_names};
use failure::{Failures, reason};
pub(super) use handshakes::{Handshakes, InProgress, Turns};
pub use names::ClientPattern;
use names::name_of;
use stream::{BUFFER_BYTES, Encrypted};
pub(crate) use validity::Validity;

/// The first byte of a client that speaks TLS: the type of a record with a part of a handshake.
pub(super) const HANDSHAKE: u8 = 0x16;

/// After the authorities of clients have changed, connections end within this time, and not all at the same moment. All
/// their clients then connect again, and each handshake takes time.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// While a connection is open, the clock is compared with the end of its certificate at least this often, because a clock can
/// be set.
const CHECK_EVERY: Duration = Duration::from_secs(30);

/// At most this much is read, and thrown away, of a client that was refused.
const READ_OFF_BYTES: u64 = 64 << 10;

/// The answer to plain HTTP on a listener with TLS. Without it, a user of curl would see only that the connection was closed.
const PLAIN_ANSWER: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: text/plain\r\ncontent-length: 39\r\n\r\n\
    this port speaks TLS: ask with https://";

/// What handshakes use. All listeners of a server share it.
pub struct Tls {
    provider: Arc<CryptoProvider>,
    ticketer: Arc<dyn ProducesTickets>,
    names: Arc<[ClientPattern]>,
    allows_plain: bool,
    current: watch::Sender<Current>,
}

/// What can change while the server runs.
struct Current {
    pair: Arc<CertifiedKey>,
    roots: Option<Arc<RootCertStore>>,
    /// How often the roots have changed.
    changes: u64,
    configs: Configs,
}

/// The configurations of the library, made of the other members of [`Current`].
struct Configs {
    grpc: Config,
    http: Config,
}

struct Config {
    anyone: Arc<ServerConfig>,
    /// Only for clients with a certificate. `None` if there are no roots.
    certified: Option<Arc<ServerConfig>>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

impl Tls {
    /// Makes what handshakes use: the certificate of this server with its key, and the authorities that sign the certificates of
    /// clients, if listeners want any. `names` are the clients that may connect, or empty for all clients of these authorities.
    /// If `allows_plain` is true, clients may also connect without TLS to listeners that want no certificates.
    ///
    /// # Errors
    /// The system has no random numbers, or `roots` is empty.
    pub fn new(
        pair: CertifiedKey,
        roots: Option<RootCertStore>,
        names: Vec<ClientPattern>,
        allows_plain: bool,
    ) -> Result<Tls, TlsError> {
        let (provider, ticketer) = (Arc::new(ring::default_provider()), ring::Ticketer::new()?);
        let (pair, roots, names) = (Arc::new(pair), roots.map(Arc::new), names.into());
        let configs = Configs::new(&provider, (&pair, roots.as_ref()), &names, &ticketer)?;
        let current = watch::Sender::new(Current { pair, roots, changes: 0, configs });
        Ok(Tls { provider, ticketer, names, allows_plain, current })
    }

    /// Returns whether this certificate is in use.
    pub fn has_pair(&self, pair: &CertifiedKey) -> bool {
        self.current.borrow().pair.cert == pair.cert
    }

    /// Returns whether these authorities are in use, in any order.
    pub fn has_roots(&self, roots: &RootCertStore) -> bool {
        self.current.borrow().roots.as_ref().is_some_and(|now| is_same_set(now, roots))
    }

    /// Replaces the certificate of this server and its key, for all handshakes that begin later. Open connections stay.
    ///
    /// # Errors
    /// The library refuses the pair, and everything stays as it was.
    pub fn replace_pair(&self, pair: CertifiedKey) -> Result<(), TlsError> {
        let (pair, roots) = (Arc::new(pair), self.current.borrow().roots.clone());
        let configs = Configs::new(&self.provider, (&pair, roots.as_ref()), &self.names, &self.ticketer)?;
        self.current.send_modify(|current| (current.pair, current.configs) = (pair, configs));
        Ok(())
    }

    /// Replaces the authorities that sign the certificates of clients. Connections of clients with certificates end soon, and
    /// these clients have to prove themselves again.
    ///
    /// # Errors
    /// `roots` is empty, and everything stays as it was.
    pub fn replace_roots(&self, roots: RootCertStore) -> Result<(), TlsError> {
        let (pair, roots) = (Arc::clone(&self.current.borrow().pair), Arc::new(roots));
        let configs = Configs::new(&self.provider, (&pair, Some(&roots)), &self.names, &self.ticketer)?;
        self.current.send_modify(|current| {
            (current.roots, current.configs) = (Some(roots), configs);
            current.changes += 1;
        });
        Ok(())
    }
}

/// Returns whether two stores have the same authorities, in any order.
fn is_same_set(one: &RootCertStore, other: &RootCertStore) -> bool {
    let has_all = |one: &RootCertStore, other: &RootCertStore| one.roots.iter().all(|root| other.roots.contains(root));
    has_all(one, other) && has_all(other, one)
}

impl Configs {
    fn new(
        provider: &Arc<CryptoProvider>,
        (pair, roots): (&Arc<CertifiedKey>, Option<&Arc<RootCertStore>>),
        names: &Arc<[ClientPattern]>,
        ticketer: &Arc<dyn ProducesTickets>,
    ) -> Result<Configs, TlsError> {
        let verifier = |roots: &Arc<RootCertStore>| {
            let verifier = ClientVerifier::new(Arc::clone(roots), Arc::clone(names), Arc::clone(provider));
            verifier.map(Arc::new).map_err(|error| TlsError::General(error.to_string()))
        };
        let verifier = roots.map(verifier).transpose()?;
        let config =
            |protocols: &[&[u8]], verifier: Option<Arc<ClientVerifier>>| -> Result<Arc<ServerConfig>, TlsError> {
                let builder =
                    ServerConfig::builder_with_provider(Arc::clone(provider)).with_safe_default_protocol_versions()?;
                let resolver = Arc::new(SingleCertAndKey::from(CertifiedKey::clone(pair)));
                let is_certified = verifier.is_some();
                let mut config = match verifier {
                    Some(verifier) => builder.with_client_cert_verifier(verifier),
                    None => builder.with_no_client_auth(),
                }
                .with_cert_resolver(resolver);
                config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
                // Sessions are in tickets that clients keep, so they take no memory here. A client with a certificate gets none:
                // a session would let it in without a look at its certificate.
                config.session_storage = Arc::new(NoServerSessionStorage {});
                if is_certified {
                    config.send_tls13_tickets = 0;
                } else {
                    config.ticketer = Arc::clone(ticketer);
                }
                Ok(Arc::new(config))
            };
        let both = |protocols: &[&[u8]]| -> Result<Config, TlsError> {
            let certified = verifier.clone().map(|verifier| config(protocols, Some(verifier)));
            Ok(Config { anyone: config(protocols, None)?, certified: certified.transpose()? })
        };
        Ok(Configs { grpc: both(&[b"h2"])?, http: both(&[b"h2", b"http/1.1", b"http/1.0"])? })
    }
}

/// TLS on one listener.
#[derive(Debug)]
pub(super) struct Secured {
    tls: Arc<Tls>,
    /// The name of the listener, for the log.
    listener: &'static str,
    /// Whether clients have to show a certificate.
    wants_certificates: bool,
    handshakes: Arc<Handshakes>,
    failures: Failures,
}

impl Secured {
    /// At most `handshakes` are in progress at once.
    pub(super) fn new(tls: Arc<Tls>, app: &App, wants_certificates: bool, handshakes: usize) -> Secured {
        let (handshakes, failures) = (Handshakes::new(handshakes), Failures::default());
        Secured { tls, listener: app.name(), wants_certificates, handshakes, failures }
    }

    /// Counts a handshake that begins. Returns `None`, and counts a failure, if too many are in progress.
    pub(super) fn begin(&self, peer: Peer, metrics: &Metrics) -> Option<InProgress> {
        let begun = self.handshakes.begin();
        if begun.is_none() {
            self.failed(&Failed::from(HandshakeFailure::Crowded), peer, metrics);
        }
        begun
    }

    /// Returns how many connections are open only until they notice that their handshake has made way for a newer one.
    pub(super) fn closing(&self) -> usize {
        self.handshakes.closing()
    }

    /// Returns the configuration for a handshake that begins now, and how often the roots have changed before.
    fn config(&self, app: &App) -> Option<(Arc<ServerConfig>, u64)> {
        let current = self.tls.current.borrow();
        let config = if matches!(app, App::Grpc(_)) { &current.configs.grpc } else { &current.configs.http };
        let config = if self.wants_certificates { config.certified.clone()? } else { Arc::clone(&config.anyone) };
        Some((config, current.changes))
    }

    fn failed(&self, failed: &Failed, peer: Peer, metrics: &Metrics) -> Closed {
        let Failed { reason, error, names, .. } = failed;
        self.failures.count(*reason, (self.listener, peer), (error.as_ref(), names.as_deref()), metrics)
    }
}

/// A handshake that has failed.
struct Failed {
    reason: HandshakeFailure,
    error: Option<io::Error>,
    /// The names of a certificate that has none of the settings.
    names: Option<String>,
    /// The socket of a client that still has to read why it is refused.
    stream: Option<TcpStream>,
}

impl From<HandshakeFailure> for Failed {
    fn from(reason: HandshakeFailure) -> Failed {
        Failed { reason, error: None, names: None, stream: None }
    }
}

/// What a client has begun with.
enum Begun {
    Plain(TcpStream),
    Encrypted(Box<TlsStream<TcpStream>>, Trust),
}

/// For how long the client of a connection is trusted.
struct Trust {
    /// How often the roots had changed when the handshake began.
    changes: u64,
    /// The certificate of the client, if the listener wants one: its name, and its end in seconds since 1970.
    client: Option<(Arc<str>, i64)>,
}

/// Serves a connection of a listener with TLS until it ends.
pub(super) async fn serve(
    stream: TcpStream,
    peer: Peer,
    (secured, mut in_progress): (Arc<Secured>, InProgress),
    app: &App,
    context: &Context,
) -> Option<Closed> {
    let metrics = &context.metrics;
    let mut phase = context.phase.clone();
    let begun = tokio::select! {
        biased;
        () = in_progress.closed() => Err(HandshakeFailure::Crowded.into()),
        begun = timeout(context.limits.handshake, begin(stream, &secured, app, context)) => {
            begun.unwrap_or(Err(HandshakeFailure::Late.into()))
        }
        // A client that is silent must not delay the end of the server.
        () = async {
            let _ = phase.wait_for(|phase| *phase == Phase::Draining).await;
            sleep(CLOSE_TIMEOUT).await;
        } => Err(HandshakeFailure::Late.into()),
    };
    let begun = match begun {
        Ok(begun) => begun,
        Err(mut failed) => {
            let closed = secured.failed(&failed, peer, metrics);
            if let Some(stream) = failed.stream.take() {
                // It still counts as a handshake, so clients that are refused cannot fill the listener.
                tokio::select! {
                    () = in_progress.closed() => {}
                    _ = timeout(CLOSE_TIMEOUT, read_off(stream)) => {}
                }
            }
            return Some(closed);
        }
    };
    drop(in_progress);
    match begun {
        Begun::Plain(stream) => {
            metrics.tls.plain.inc();
            serve_stream(stream, peer, None, app, context).await
        }
        Begun::Encrypted(stream, Trust { client: None, .. }) => {
            metrics.tls.encrypted.inc();
            serve_stream(Encrypted(*stream), peer, None, app, context).await
        }
        Begun::Encrypted(stream, Trust { client: Some((name, end)), changes }) => {
            metrics.tls.encrypted.inc();
            tracing::debug!(listener = secured.listener, %peer, client = &*name, "a client has proved its certificate");
            let mut of_server = context.phase.clone();
            let (of_connection, phase) = watch::channel(*of_server.borrow_and_update());
            let ending = Context { phase, ..context.clone() };
            let served = serve_stream(Encrypted(*stream), peer, Some(ClientName(name)), app, &ending);
            let mut until = pin!(until_untrusted(&secured.tls, changes, end, spread(peer), &context.clock));
            let mut is_trusted = true;
            let ended = tokio::select! {
                biased;
                closed = served => closed,
                () = async {
                    tokio::select! {
                        () = async {
                            while of_server.changed().await.is_ok() {
                                of_connection.send_replace(*of_server.borrow_and_update());
                            }
                            pending().await
                        } => {}
                        () = &mut until => {}
                    }
                    is_trusted = false;
                    // The client is asked to go, as in a drain, and its requests in flight are answered.
                    of_connection.send_replace(Phase::Draining);
                    sleep(context.limits.drain).await;
                } => None,
            };
            if is_trusted { ended } else { Some(Closed::Certificate) }
        }
    }
}

/// Ends a connection so that its client reads what the server has sent. A socket that is closed while bytes wait in it resets
/// the connection, and most clients then report only the reset.
async fn read_off(mut stream: TcpStream) {
    // If this fails, the client is gone.
    let _ = stream.shutdown().await;
    let (mut rest, mut bytes) = (stream.take(READ_OFF_BYTES), [0; 1024]);
    while let Ok(1..) = rest.read(&mut bytes).await {}
}

/// Does the handshake.
async fn begin(mut stream: TcpStream, secured: &Secured, app: &App, context: &Context) -> Result<Begun, Failed> {
    let mut first = [0];
    match stream.peek(&mut first).await {
        Ok(1..) if first[0] == HANDSHAKE => {}
        Ok(1..) if secured.tls.allows_plain && !secured.wants_certificates => return Ok(Begun::Plain(stream)),
        Ok(1..) => {
            if !matches!(app, App::Grpc(_)) {
                // If this fails, the client is gone.
                let _ = stream.write_all(PLAIN_ANSWER).await;
            }
            return Err(Failed { stream: Some(stream), ..HandshakeFailure::Plain.into() });
        }
        Ok(0) => return Err(HandshakeFailure::Gone.into()),
        Err(error) => return Err(Failed { error: Some(error), ..HandshakeFailure::Gone.into() }),
    }
    let Some((config, changes)) = secured.config(app) else { return Err(HandshakeFailure::NoCertificate.into()) };
    let stream = shake_hands(stream, config, &context.turns).await?;
    let client = if secured.wants_certificates {
        let first = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        Some(first.and_then(|first| client(first, &secured.tls.names)).ok_or(HandshakeFailure::BadCertificate)?)
    } else {
        None
    };
    Ok(Begun::Encrypted(Box::new(stream), Trust { changes, client }))
}

/// Returns the name of a client, and when its certificate ends.
fn client(certificate: &CertificateDer<'_>, names: &[ClientPattern]) -> Option<(Arc<str>, i64)> {
    Some((name_of(names, certificate)?, Validity::of(certificate)?.end))
}

/// Wakes a handshake that waits until its socket can be read or written.
///
/// The task of the handshake has other reasons to wake up, so its own waker cannot say that the socket is ready.
#[derive(Default)]
struct Ready(Notify);

impl Wake for Ready {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

/// Does the handshake in steps, each in a turn of its own. Between them, it waits for the client.
async fn shake_hands(
    stream: TcpStream,
    config: Arc<ServerConfig>,
    turns: &Arc<Turns>,
) -> Result<TlsStream<TcpStream>, Failed> {
    let accept = TlsAcceptor::from(config).accept_with(stream, |session| session.set_buffer_limit(Some(BUFFER_BYTES)));
    // If this fails, it returns the socket.
    let mut accept = accept.into_fallible();
    let ready = Arc::<Ready>::default();
    let waker = task::Waker::from(Arc::clone(&ready));
    let mut names = None;
    loop {
        let turn = turns.take().await;
        let begun = Instant::now();
        let step = Pin::new(&mut accept).poll(&mut task::Context::from_waker(&waker));
        names = take_refused_names().or(names);
        turn.end(begun.elapsed()).await;
        match step {
            Poll::Ready(Ok(stream)) => return Ok(stream),
            Poll::Ready(Err((error, stream))) => {
                return Err(Failed { reason: reason(&error), error: Some(error), names, stream: Some(stream) });
            }
            Poll::Pending => ready.0.notified().await,
        }
    }
}

/// Waits until the client of a connection is trusted no more: its certificate has ended, or the roots have changed.
async fn until_untrusted(tls: &Tls, changes: u64, end: i64, spread: Duration, clock: &SystemClock) {
    let mut current = tls.current.subscribe();
    let replaced = async {
        let _ = current.wait_for(|current| current.changes != changes).await;
        sleep(spread).await;
    };
    let ended = async {
        loop {
            let now = i64::try_from(clock.now().as_nanos() / 1_000_000_000).unwrap_or(i64::MAX);
            // The last second of a certificate is a whole one.
            match u64::try_from(end.saturating_add(1).saturating_sub(now)) {
                Ok(left @ 1..) => sleep(Duration::from_secs(left).min(CHECK_EVERY)).await,
                _ => return,
            }
        }
    };
    tokio::select! {
        () = replaced => {}
        () = ended => {}
    }
}

/// Returns how long after a change of the roots a connection ends. The ports of clients are different enough.
fn spread(peer: Peer) -> Duration {
    let port = match peer {
        Peer::Tcp(address) => address.port(),
        Peer::Unix => 0,
    };
    // An odd factor spreads ports that follow one another.
    ENDS_WITHIN * u32::from(port.wrapping_mul(40_503)) / u32::from(u16::MAX)
}
