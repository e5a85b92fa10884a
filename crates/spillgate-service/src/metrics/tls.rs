//! Counts the handshakes of TLS, and shows when certificates end.
//!
//! An expired certificate stops all clients at the same moment, and an alert can come before it. The reasons of failed
//! handshakes say on which side the mistake is.

use super::registry::{Counter, Gauge, Registry};

/// Why a handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HandshakeFailure {
    /// The client went away. Many load balancers check a port in this way.
    Gone,
    /// The client did not end its handshake in time.
    Late,
    /// Too many handshakes were in progress: this was the oldest, or it came while the oldest had had little time.
    Crowded,
    /// The client did not begin with TLS.
    Plain,
    /// The client and the server have no version or cipher in common.
    Version,
    /// The client offers only other protocols than those of the listener.
    Protocol,
    /// The client gave up, usually because it does not trust the certificate of this server.
    Refused,
    /// The client has no certificate, and the listener wants one.
    NoCertificate,
    /// The client's certificate has ended, or is not yet valid.
    Expired,
    /// The client's certificate is not signed by the authority of the settings.
    UnknownCa,
    /// The client's certificate has no name that may connect.
    Name,
    /// The client's certificate has another fault.
    BadCertificate,
    /// The client broke the rules of TLS.
    Broken,
}

impl HandshakeFailure {
    /// Every reason.
    pub const ALL: [HandshakeFailure; 13] = [
        HandshakeFailure::Gone,
        HandshakeFailure::Late,
        HandshakeFailure::Crowded,
        HandshakeFailure::Plain,
        HandshakeFailure::Version,
        HandshakeFailure::Protocol,
        HandshakeFailure::Refused,
        HandshakeFailure::NoCertificate,
        HandshakeFailure::Expired,
        HandshakeFailure::UnknownCa,
        HandshakeFailure::Name,
        HandshakeFailure::BadCertificate,
        HandshakeFailure::Broken,
    ];

    /// Returns the value of the label `reason`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            HandshakeFailure::Gone => "gone",
            HandshakeFailure::Late => "late",
            HandshakeFailure::Crowded => "crowded",
            HandshakeFailure::Plain => "plain",
            HandshakeFailure::Version => "version",
            HandshakeFailure::Protocol => "protocol",
            HandshakeFailure::Refused => "refused",
            HandshakeFailure::NoCertificate => "no_certificate",
            HandshakeFailure::Expired => "expired",
            HandshakeFailure::UnknownCa => "unknown_ca",
            HandshakeFailure::Name => "name",
            HandshakeFailure::BadCertificate => "bad_certificate",
            HandshakeFailure::Broken => "broken",
        }
    }
}

/// The metrics of TLS on the listeners.
#[derive(Debug)]
pub struct TlsMetrics {
    /// Connections whose handshake succeeded.
    pub encrypted: Counter,
    /// Connections without TLS on listeners with TLS (`tls.plain: allow`).
    pub plain: Counter,
    failed: [Counter; HandshakeFailure::ALL.len()],
    /// When the certificate of the listeners ends, in seconds since 1970. Not shown without TLS.
    pub certificate_end: Gauge,
    /// When the first of the authorities of clients ends, in seconds since 1970. Not shown without `tls.client_ca`.
    pub client_ca_end: Gauge,
}

impl TlsMetrics {
    pub(super) fn new(registry: &mut Registry) -> TlsMetrics {
        let connections = "Connections of listeners with TLS, by whether they are encrypted: a plain one is there only with \
                           tls.plain: allow";
        let [encrypted, plain] = registry.counters("tls_connections", connections, "kind", ["tls", "plain"]);
        let reasons = HandshakeFailure::ALL.map(HandshakeFailure::as_str);
        TlsMetrics {
            encrypted,
            plain,
            failed: registry.counters("tls_handshakes_failed", "Failed TLS handshakes, by reason", "reason", reasons),
            certificate_end: registry.gauge(
                "tls_certificate_end_timestamp_seconds",
                "When the certificate of the listeners (tls.cert) ends, in seconds since 1970. If its file has several \
                 certificates, this is the first end",
                Gauge::unknown(),
            ),
            client_ca_end: registry.gauge(
                "tls_client_ca_end_timestamp_seconds",
                "When the first certificate of tls.client_ca ends, in seconds since 1970",
                Gauge::unknown(),
            ),
        }
    }

    /// Returns the counter of handshakes that failed because of `reason`.
    #[must_use]
    pub fn failed(&self, reason: HandshakeFailure) -> &Counter {
        &self.failed[reason as usize]
    }
}
