//! Tests of the kinds of errors.

use std::io;

use tokio_rustls::rustls::{AlertDescription, Error as TlsError};

use super::{Cause, Error, StoreErrorKind, kind_of_code};
use crate::not_redis::NotRedis;

#[test]
fn errors_of_servers_are_classed_by_their_first_word() {
    let classed = [
        ("READONLY", StoreErrorKind::ReadOnly),
        ("NOREPLICAS", StoreErrorKind::ReadOnly),
        ("MISCONF", StoreErrorKind::ReadOnly),
        ("LOADING", StoreErrorKind::Loading),
        ("MASTERDOWN", StoreErrorKind::Loading),
        ("BUSY", StoreErrorKind::Busy),
        ("OOM", StoreErrorKind::OutOfMemory),
        ("NOPERM", StoreErrorKind::NoPermission),
        ("NOAUTH", StoreErrorKind::NoPermission),
        ("WRONGTYPE", StoreErrorKind::WrongType),
        ("MOVED", StoreErrorKind::Moved),
        ("ASK", StoreErrorKind::Moved),
        ("TRYAGAIN", StoreErrorKind::Moved),
        ("CLUSTERDOWN", StoreErrorKind::ClusterDown),
        ("NOSCRIPT", StoreErrorKind::NoScript),
        ("ERR", StoreErrorKind::Other),
    ];
    for (code, kind) in classed {
        assert_eq!(kind_of_code(code), kind, "{code}");
    }
}

#[test]
fn the_cause_of_an_error_survives_the_client_library() {
    let not_redis = || io::Error::new(io::ErrorKind::InvalidData, NotRedis);
    let alert = || io::Error::other(TlsError::AlertReceived(AlertDescription::CertificateRequired));
    let causes: [(fn() -> io::Error, Cause); 4] = [
        (not_redis, Cause::NotRedis),
        (alert, Cause::ClientCertificate),
        (|| io::ErrorKind::UnexpectedEof.into(), Cause::ConnectionClosed),
        (|| io::ErrorKind::ConnectionRefused.into(), Cause::Unknown),
    ];
    for (error, cause) in causes {
        assert_eq!(Error::from(error()).cause(), cause);
        assert_eq!(Error::of_redis(error().into()).cause(), cause);
        assert_eq!(Error::of_redis(error().into()).kind(), StoreErrorKind::Disconnected);
    }
}

#[test]
fn the_forbidden_command_is_named() {
    let named = Error::new(
        StoreErrorKind::NoPermission,
        "NOPERM: User web has no permissions to run the 'script|load' command",
    );
    assert_eq!(named.forbidden_command(), Some("script|load"));
    assert_eq!(Error::new(StoreErrorKind::NoPermission, "WRONGPASS: invalid username").forbidden_command(), None);
}
