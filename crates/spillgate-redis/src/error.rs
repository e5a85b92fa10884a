//! The errors of the store: their kinds and causes, and how errors of the client library map to them.
//!
//! Metrics, policies and log lines need a small fixed set of kinds instead of the many texts that Redis servers send. A
//! program that helps its user to connect also needs the cause, such as a certificate that has expired.
//!
//! What each kind means for the caller of this store:
//!
//! | kind | was the request sent | can it have been charged | what helps |
//! |---|---|---|---|
//! | `Timeout`, `Disconnected` | yes | yes | wait; look at the load of Redis, and at its log |
//! | `NotSent`, `CircuitOpen` | no | no | look at [`RedisStore::last_error`](crate::RedisStore::last_error) |
//! | `Overloaded` | no | no | raise [`Settings::max_in_flight`](crate::Settings::max_in_flight), or send less |
//! | `ReadOnly`, `Loading`, `Busy`, `ClusterDown` | yes | no | wait: the breaker is open until Redis serves again |
//! | `OutOfMemory` | yes | no | raise `maxmemory` |
//! | `NoPermission` | perhaps | no | check the login, and the rights that [`Settings::commands`](crate::Settings::commands) lists |
//! | `WrongType` | yes | no | delete the key that the error names |
//! | `Moved` | yes | no | wait; if the URL is that of a single Redis server, write the URL of a cluster |
//! | `NoScript` | yes | no | find the client that sends SCRIPT FLUSH |
//! | `NewKeys` | no | no | raise [`Settings::new_keys_per_second`](crate::Settings::new_keys_per_second), or find the client that makes the keys |
//! | `Malformed` | no | no | change the request: the store does not [support](crate::supports) it |
//! | `Garbled` | yes | yes | delete the key that the error names, or report a bug |
//! | `Other` | perhaps | no | read the detail |

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::sync::Arc;

use redis::{ErrorKind as RedisErrorKind, RedisError, ServerError};
use spillgate_core::{StoreError, StoreErrorKind};
use tokio_rustls::rustls::{AlertDescription, CertificateError, Error as TlsError};

use crate::not_redis::NotRedis;

pub(crate) fn kind_of(error: &ServerError) -> StoreErrorKind {
    // If a script calls a command that its user may not run, some versions of Redis send an error without a code.
    let beginnings = ["The user executing the script can't", "ACL failure in script"];
    match kind_of_code(error.code()) {
        StoreErrorKind::Other
            if error.details().is_some_and(|text| beginnings.iter().any(|start| text.starts_with(start))) =>
        {
            StoreErrorKind::NoPermission
        }
        kind => kind,
    }
}

/// Returns the kind of an error that begins with `code`.
fn kind_of_code(code: &str) -> StoreErrorKind {
    match code {
        "READONLY" | "NOREPLICAS" | "MISCONF" => StoreErrorKind::ReadOnly,
        "LOADING" | "MASTERDOWN" => StoreErrorKind::Loading,
        "BUSY" => StoreErrorKind::Busy,
        "OOM" => StoreErrorKind::OutOfMemory,
        "NOPERM" | "NOAUTH" | "WRONGPASS" => StoreErrorKind::NoPermission,
        "WRONGTYPE" => StoreErrorKind::WrongType,
        "MOVED" | "ASK" | "TRYAGAIN" | "CROSSSLOT" => StoreErrorKind::Moved,
        "CLUSTERDOWN" => StoreErrorKind::ClusterDown,
        "NOSCRIPT" => StoreErrorKind::NoScript,
        _ => StoreErrorKind::Other,
    }
}

/// Returns whether another node of a cluster can perhaps serve a request that failed with this kind of error.
pub(crate) fn another_node_may_serve(kind: StoreErrorKind) -> bool {
    let is_unreachable = matches!(
        kind,
        StoreErrorKind::Timeout | StoreErrorKind::Disconnected | StoreErrorKind::NotSent | StoreErrorKind::CircuitOpen
    );
    let does_not_serve = matches!(
        kind,
        StoreErrorKind::ReadOnly | StoreErrorKind::Loading | StoreErrorKind::Moved | StoreErrorKind::ClusterDown
    );
    is_unreachable || does_not_serve
}

/// Returns whether a Redis server that returns this kind of error serves no request at all.
pub(crate) fn means_node_is_down(kind: StoreErrorKind) -> bool {
    matches!(
        kind,
        StoreErrorKind::ReadOnly | StoreErrorKind::Loading | StoreErrorKind::Busy | StoreErrorKind::ClusterDown
    )
}

/// The reason why a Redis server could not be reached, as far as the error shows the reason. Choose a help text by the
/// cause, because the text of an error can change.
///
/// ```
/// use spillgate_redis::{Cause, Error};
///
/// fn help(error: &Error) -> &'static str {
///     match error.cause() {
///         Cause::CertificateDates => "renew the certificate",
///         Cause::NotACluster => "write redis:// instead of redis-cluster://",
///         _ => "check the address",
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The error shows no more than its [kind](Error::kind).
    #[default]
    Unknown,
    /// The server's certificate has another name than the host in the URL, or than
    /// [`server_name`](crate::Tls::server_name).
    CertificateName,
    /// The server's certificate has expired, or is not valid yet.
    CertificateDates,
    /// The server's certificate is not accepted for another reason. Usually, no trusted authority has signed it.
    Certificate,
    /// Redis does not accept the client's certificate, or the client has none.
    ClientCertificate,
    /// The TLS handshake failed for a reason other than a certificate. Perhaps the port does not use TLS.
    TlsHandshake,
    /// The reply is not in the protocol of Redis. Perhaps another program listens on the port, or the port uses TLS.
    NotRedis,
    /// Redis closed the connection.
    ConnectionClosed,
    /// The URL is that of a cluster, but the Redis server is not a node of a cluster.
    NotACluster,
    /// The sentinels do not know a primary with the name in the URL.
    UnknownPrimary,
    /// A sentinel refuses the login, or a command.
    SentinelPermission,
}

impl Cause {
    /// Returns the cause of an error of a socket or of TLS.
    fn of_io(error: &io::Error) -> Cause {
        let inner = error.get_ref();
        if inner.is_some_and(|inner| inner.is::<NotRedis>()) {
            return Cause::NotRedis;
        }
        match inner.and_then(|inner| inner.downcast_ref()) {
            Some(TlsError::InvalidCertificate(error)) => Cause::of_certificate(error),
            Some(TlsError::AlertReceived(alert)) if is_about_certificates(*alert) => Cause::ClientCertificate,
            Some(_) => Cause::TlsHandshake,
            None if error.kind() == io::ErrorKind::UnexpectedEof => Cause::ConnectionClosed,
            None => Cause::Unknown,
        }
    }

    fn of_certificate(error: &CertificateError) -> Cause {
        match error {
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Cause::CertificateName
            }
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => Cause::CertificateDates,
            _ => Cause::Certificate,
        }
    }

    /// Returns the cause of an error that a Redis server sent. Redis has no codes for causes, so the text of the error
    /// decides.
    fn of_server(error: &ServerError) -> Cause {
        let says = |text: &str| error.details().is_some_and(|details| details.contains(text));
        if says("cluster support disabled") {
            Cause::NotACluster
        } else if says("No such master") {
            Cause::UnknownPrimary
        } else {
            Cause::Unknown
        }
    }
}

/// Returns whether a Redis server sends this alert because of the client's certificate.
fn is_about_certificates(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::CertificateRequired
            | AlertDescription::NoCertificate
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
    )
}

/// The error of a store that could not be created, reached or examined.
///
/// These calls return it: [`RedisStore::new`](crate::RedisStore::new), [`connect`](crate::RedisStore::connect),
/// [`wait_connected`](crate::RedisStore::wait_connected), [`last_error`](crate::RedisStore::last_error),
/// [`probe`](crate::RedisStore::probe), and the [doctor](crate::doctor). An `Error` has the kind and the text of a
/// [`StoreError`], and also a [cause](Cause). A request returns a plain [`StoreError`], as in every other store.
///
/// ```
/// use spillgate_redis::{Cause, RedisStore, Settings, StoreErrorKind};
///
/// let error = RedisStore::new(&Settings::new("http://redis")).err().ok_or("not a store")?;
/// assert_eq!((error.kind(), error.cause()), (StoreErrorKind::Other, Cause::Unknown));
/// # Ok::<(), &str>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    pub(crate) kind: StoreErrorKind,
    pub(crate) cause: Cause,
    pub(crate) detail: Cow<'static, str>,
}

impl Error {
    /// Creates an error without a known cause.
    pub(crate) fn new(kind: StoreErrorKind, detail: impl Into<Cow<'static, str>>) -> Error {
        Error { kind, cause: Cause::Unknown, detail: detail.into() }
    }

    /// Returns the same error with a text in front of its detail, such as the address of the Redis server.
    pub(crate) fn at(self, place: &str) -> Error {
        Error { detail: format!("{place}: {}", self.detail).into(), ..self }
    }

    /// Returns the kind of the error. A request can fail with another kind for the same reason. For example, if Redis
    /// cannot be reached, this kind is `Disconnected` or `Timeout`, but a request fails as `NotSent` or `CircuitOpen`.
    #[must_use]
    pub const fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Returns the reason why Redis could not be reached. [`Cause::Unknown`] if the error shows only its kind.
    #[must_use]
    pub const fn cause(&self) -> Cause {
        self.cause
    }

    /// Returns the text that Redis or the system reported. The text is for logs, because it can change.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Returns the command that the user may not run, as an ACL names it. `None` if this is another error, or if Redis
    /// does not name the command.
    #[must_use]
    pub fn forbidden_command(&self) -> Option<&str> {
        self.detail.split_once("run the '")?.1.split_once("' command").map(|(command, _)| command)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.as_str(), self.detail)
    }
}

impl std::error::Error for Error {}

impl Error {
    /// Returns whether Redis, or a proxy in front of it, has forgotten or withdrawn the login of the connection.
    pub(crate) fn asks_for_login(&self) -> bool {
        // The client library writes an unknown code in quotes.
        self.kind == StoreErrorKind::NoPermission && self.detail.trim_start_matches('"').starts_with("NOAUTH")
    }

    pub(crate) fn of_redis(error: RedisError) -> Error {
        // A pipeline can return several errors. The first one is the cause of the others, or all of them say the same.
        if let Some((_, error)) = error.clone().into_server_errors().as_deref().and_then(<[_]>::first) {
            return Error { cause: Cause::of_server(error), ..Error::new(kind_of(error), error.to_string()) };
        }
        let kind = match error.kind() {
            // After a reply that cannot be read, the start of the next reply is unknown. So the store closes the
            // connection.
            RedisErrorKind::Io | RedisErrorKind::Parse => StoreErrorKind::Disconnected,
            RedisErrorKind::Client => StoreErrorKind::Overloaded,
            _ => StoreErrorKind::Other,
        };
        let cause = io_error(&error).map_or(Cause::Unknown, Cause::of_io);
        Error { cause, ..Error::new(kind, error.to_string()) }
    }
}

/// Returns the error of the socket that is inside an error of the client library. The library wraps some errors of
/// sockets in an `Arc`.
fn io_error(error: &RedisError) -> Option<&io::Error> {
    let source = std::error::Error::source(error)?;
    let shared = source.downcast_ref::<Arc<dyn std::error::Error + Send + Sync>>();
    shared.map_or(source.downcast_ref(), |shared| shared.downcast_ref())
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error { cause: Cause::of_io(&error), ..Error::new(StoreErrorKind::Disconnected, error.to_string()) }
    }
}

/// Drops the cause, because a request does not need it.
impl From<Error> for StoreError {
    fn from(error: Error) -> StoreError {
        StoreError::new(error.kind, error.detail)
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Error {
        Error::new(error.kind(), error.into_detail())
    }
}

#[cfg(test)]
mod tests;
