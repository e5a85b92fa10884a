//! Why handshakes fail, for metrics and the log.

use std::io;
use std::time::Duration;

use parking_lot::Mutex;
use spillgate_service::Peer;
use spillgate_service::metrics::{Closed, HandshakeFailure, Metrics};
use tokio::time::Instant;
use tokio_rustls::rustls::{CertificateError, Error as TlsError};

/// The log has at most one line for each reason in this time, because clients can cause any number of failures. The
/// metric counts each one.
const LOG_EVERY: Duration = Duration::from_secs(60);

const ONCE: &str = "each listener logs each reason at most once a minute";

/// Returns the reason of an error of a handshake.
pub(super) fn reason(error: &io::Error) -> HandshakeFailure {
    let Some(error) = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>()) else {
        return HandshakeFailure::Gone;
    };
    match error {
        TlsError::PeerIncompatible(_) => HandshakeFailure::Version,
        TlsError::NoApplicationProtocol => HandshakeFailure::Protocol,
        TlsError::AlertReceived(_) => HandshakeFailure::Refused,
        TlsError::NoCertificatesPresented => HandshakeFailure::NoCertificate,
        TlsError::InvalidCertificate(error) => match error {
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => HandshakeFailure::Expired,
            CertificateError::UnknownIssuer => HandshakeFailure::UnknownCa,
            CertificateError::ApplicationVerificationFailure => HandshakeFailure::Name,
            _ => HandshakeFailure::BadCertificate,
        },
        _ => HandshakeFailure::Broken,
    }
}

/// Returns what the log advises.
fn help(reason: HandshakeFailure) -> &'static str {
    match reason {
        HandshakeFailure::Gone => "the client closed the connection; health checks by TCP do so too",
        HandshakeFailure::Late => "the client was silent for too long (limits.handshake)",
        HandshakeFailure::Crowded => {
            "too many handshakes at once: more than a quarter of limits.connections; the oldest are closed, or new ones while \
             the oldest have had little time"
        }
        HandshakeFailure::Plain => {
            "the client speaks without TLS to a listener with TLS: use https:// or TLS there, or set `tls.plain: allow` for a while"
        }
        HandshakeFailure::Version => "the client is too old: the server needs TLS 1.2 or 1.3, and a cipher of today",
        HandshakeFailure::Protocol => {
            "the client offers another protocol (ALPN) than h2, which gRPC needs, or than h2 and http/1.1 elsewhere"
        }
        HandshakeFailure::Refused => {
            "the client gave up: usually it does not trust the authority of tls.cert, or looks for another name in it"
        }
        HandshakeFailure::NoCertificate => "the client has to show a certificate of tls.client_ca",
        HandshakeFailure::Expired => {
            "the certificate of the client has ended or is not yet valid: renew it, or correct a clock"
        }
        HandshakeFailure::UnknownCa => "the certificate of the client is not signed by an authority in tls.client_ca",
        HandshakeFailure::Name => "the certificate of the client has no name of tls.client_names",
        HandshakeFailure::BadCertificate => "the certificate of the client, or its signature, is wrong",
        HandshakeFailure::Broken => "the client broke the rules of TLS",
    }
}

/// Counts failed handshakes of one listener, and writes some of them to the log.
#[derive(Debug, Default)]
pub(super) struct Failures {
    /// When the log had its last line, for each reason.
    logged_at: [Mutex<Option<Instant>>; HandshakeFailure::ALL.len()],
}

impl Failures {
    /// Counts a failure, and returns why the connection is closed. `error` has details, and `names` are those of a client that
    /// has none of the settings.
    pub(super) fn count(
        &self,
        failure: HandshakeFailure,
        (listener, peer): (&str, Peer),
        (error, names): (Option<&io::Error>, Option<&str>),
        metrics: &Metrics,
    ) -> Closed {
        metrics.tls.failed(failure).inc();
        let mut logged_at = self.logged_at[failure as usize].lock();
        if logged_at.is_none_or(|at| at.elapsed() >= LOG_EVERY) {
            *logged_at = Some(Instant::now());
            drop(logged_at);
            let (reason, help) = (failure.as_str(), help(failure));
            let error = error.map(tracing::field::display);
            // A program that only looks whether the port is open is no reason to worry.
            if matches!(failure, HandshakeFailure::Gone) {
                tracing::info!(listener, %peer, reason, error, "a TLS handshake failed: {help}; {ONCE}");
            } else {
                tracing::warn!(listener, %peer, reason, error, names, "a TLS handshake failed: {help}; {ONCE}");
            }
        }
        match failure {
            HandshakeFailure::Late => Closed::Slow,
            HandshakeFailure::Crowded => Closed::Bound,
            _ => Closed::Broken,
        }
    }
}
