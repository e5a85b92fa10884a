//! Makes Redis or Valkey a store of the service: translates between the crate spillgate-redis and the traits of the
//! service.
//!
//! Another kind of store would need a file like this one, with a type that implements [`Store`], [`SharedStore`] and
//! [`SharedLists`].

use std::future::Future;
use std::time::Duration;

use spillgate::{Decision, Hit, OpKind, Quota, Store, StoreError, StoreErrorKind, StoreHealth, Timing, Verdict};
use spillgate_redis::{Cause, Error, RedisStore};
use spillgate_service::shared_store::{Asked, ListEntry, ListWrite, SharedError, SharedLists, SharedStore};

/// A store on Redis or Valkey.
#[derive(Debug)]
pub(crate) struct Redis {
    store: RedisStore,
    /// Whether the URL asks for TLS.
    is_secure: bool,
}

impl Redis {
    /// Makes the store, which is not connected yet.
    ///
    /// # Errors
    /// The URL, a certificate or a key is invalid.
    pub(crate) fn new(reached: &spillgate_redis::Settings, is_secure: bool) -> Result<Redis, Error> {
        Ok(Redis { store: RedisStore::new(reached)?, is_secure })
    }

    fn explained(&self, error: Error) -> SharedError {
        explained(error, self.is_secure)
    }
}

/// Adds to an error of Redis a text that says how to fix the error. `is_secure` says whether the URL asks for TLS.
pub(crate) fn explained(error: Error, is_secure: bool) -> SharedError {
    let (help, forbidden) = (help_to_connect(&error, is_secure), error.forbidden_command().map(str::to_owned));
    SharedError::new(error.into()).with_forbidden_command(forbidden).with_help(help)
}

impl Store for Redis {
    fn supports(&self, quota: &Quota, op: OpKind) -> bool {
        self.store.supports(quota, op)
    }

    fn has_clock(&self) -> bool {
        self.store.has_clock()
    }

    #[inline]
    fn decide(
        &self,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> impl Future<Output = Result<Verdict, StoreError>> + Send {
        self.store.decide(timing, hits, decisions)
    }
}

impl SharedStore for Redis {
    fn timeout(&self) -> Duration {
        self.store.timeout()
    }

    fn is_atomic(&self, hits: &[Hit<'_>]) -> bool {
        self.store.is_atomic(hits)
    }

    fn unsupported(&self, hits: &[Hit<'_>]) -> Option<String> {
        let hit = hits.iter().find(|hit| !self.store.supports(hit.quota, hit.op.kind()))?;
        Some(format!(
            "the store does not support {:?} on this limit ({}): windows and segments have to be whole microseconds, at most \
             71 years; with store.scripts: off only plain fixed windows are supported, without resets and refunds",
            hit.op.kind(),
            hit.quota.algorithm().as_str()
        ))
    }

    fn health(&self) -> StoreHealth {
        self.store.health()
    }

    fn failures(&self, kind: StoreErrorKind) -> u64 {
        self.store.failures(kind)
    }

    fn take_first_error(&self, kind: StoreErrorKind) -> Option<StoreError> {
        self.store.take_first_error(kind)
    }

    fn last_error(&self) -> Option<SharedError> {
        self.store.last_error().map(|error| self.explained(error))
    }

    fn wait_connected(&self) -> Asked<'_, Result<(), SharedError>> {
        Box::pin(async move { self.store.wait_connected().await.map_err(|error| self.explained(error)) })
    }

    fn probe(&self, number: u32, within: Duration) -> Asked<'_, Result<(), SharedError>> {
        Box::pin(async move { self.store.probe(number, within).await.map(drop).map_err(|error| self.explained(error)) })
    }

    fn circuit_opened(&self) -> Asked<'_, ()> {
        Box::pin(self.store.circuit_opened())
    }
}

impl SharedLists for Redis {
    fn list_version(&self, within: Duration) -> Asked<'_, Result<Option<Vec<u8>>, SharedError>> {
        Box::pin(async move { self.store.list_version(within).await.map_err(|error| self.explained(error)) })
    }

    fn read_list<'a>(
        &'a self,
        name: &'a str,
        max: usize,
        within: Duration,
    ) -> Asked<'a, Result<Vec<ListEntry>, SharedError>> {
        Box::pin(async move { self.store.read_list(name, max, within).await.map_err(|error| self.explained(error)) })
    }

    fn put_in_list<'a>(
        &'a self,
        list: (&'a str, usize),
        entry: (&'a [u8], &'a [u8]),
        version: (&'a [u8], Duration),
        within: Duration,
    ) -> Asked<'a, Result<ListWrite, SharedError>> {
        Box::pin(async move {
            let written = self.store.put_in_list(list, entry, version, within).await;
            let spillgate_redis::ListWrite { before, is_done } = written.map_err(|error| self.explained(error))?;
            Ok(ListWrite { before, is_done })
        })
    }

    fn remove_from_list<'a>(
        &'a self,
        name: &'a str,
        entries: &'a [&'a [u8]],
        version: (&'a [u8], Duration),
        within: Duration,
    ) -> Asked<'a, Result<Option<Vec<u8>>, SharedError>> {
        Box::pin(async move {
            let removed = self.store.remove_from_list(name, entries, version, within).await;
            removed.map_err(|error| self.explained(error))
        })
    }

    fn take_from_list<'a>(
        &'a self,
        name: &'a str,
        entries: &'a [&'a [u8]],
        within: Duration,
    ) -> Asked<'a, Result<Vec<Option<Vec<u8>>>, SharedError>> {
        Box::pin(async move {
            self.store.take_from_list(name, entries, within).await.map_err(|error| self.explained(error))
        })
    }
}

/// Returns how to fix an error of a connection. `is_secure` says whether the URL asks for TLS.
fn help_to_connect(error: &Error, is_secure: bool) -> &'static str {
    const NO_TLS: &str = "does that port use TLS? If not, write redis:// in the URL";
    match error.cause() {
        Cause::SentinelPermission => {
            "check the login of the sentinels: `store.sentinel_user` and `store.sentinel_password_file`"
        }
        Cause::CertificateName => {
            "set `store.tls.server_name` to a name in the certificate; if it has no name, set `store.tls.skip_name_check`"
        }
        Cause::CertificateDates => "renew the store's certificate, or correct the clock of this machine",
        Cause::Certificate => {
            "set `store.tls.ca` to a file with the certificate of the authority that signed the store's certificate. If that \
             is self-signed, use the store's certificate itself"
        }
        Cause::ClientCertificate => {
            "the store wants a certificate of this client from an authority that it trusts: set `store.tls.cert` and \
             `store.tls.key`"
        }
        Cause::TlsHandshake => NO_TLS,
        Cause::NotACluster => "that server is not a cluster: write redis:// (rediss:// with TLS)",
        Cause::UnknownPrimary => {
            "the sentinels do not know a primary of that name: SENTINEL MASTERS on one of them lists the names"
        }
        Cause::NotRedis => "check the port: another program listens there, or it uses TLS (rediss://)",
        Cause::ConnectionClosed => "check the port: it may use TLS (rediss://), or belong to another program",
        _ if error.kind() == StoreErrorKind::NoPermission => "check the login: `store.user` and `store.password_file`",
        _ if error.kind() == StoreErrorKind::Timeout && is_secure => NO_TLS,
        _ => "check the address, that the store runs, and that no firewall blocks the connection",
    }
}
