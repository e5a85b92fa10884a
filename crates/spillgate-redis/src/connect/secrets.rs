//! The logins and certificates of the store, which are read again before each new connection.
//!
//! Passwords and certificates are rotated while a program runs. A store that kept the first ones could never connect
//! again after a rotation.
//!
//! Reading can block, for example on a network disk, so it runs on a thread for blocking calls. If it takes too long, the
//! connection is made with what was read last, and no further read begins until the late one has ended. So at most one
//! thread is blocked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use redis::RedisConnectionInfo;
use spillgate_core::StoreErrorKind;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::connect::tls::TlsClient;
use crate::connect::url::Url;
use crate::error::{Cause, Error};
use crate::settings::{Reread, Settings, Tls};

/// What a connection needs to log in.
pub(crate) struct Secrets {
    /// The user for the Redis servers, with the password and the database.
    pub(crate) user: RedisConnectionInfo,
    /// The user for the sentinels, with the password.
    pub(crate) sentinel_user: RedisConnectionInfo,
    /// `None` for connections without TLS. A Unix socket never uses TLS.
    pub(crate) tls: Option<Arc<TlsClient>>,
    /// What `tls` was made from. Without this, each read would parse all certificates.
    read_tls: Tls,
}

impl Secrets {
    fn new(user: RedisConnectionInfo, tls: Option<Arc<TlsClient>>, settings: &Settings) -> Secrets {
        let mut sentinel_user = RedisConnectionInfo::default();
        if let Some(password) = &settings.sentinel_password {
            sentinel_user = sentinel_user.set_password(password);
        }
        if let Some(name) = &settings.sentinel_user {
            sentinel_user = sentinel_user.set_username(name);
        }
        Secrets { user, sentinel_user, tls, read_tls: settings.tls.clone() }
    }

    /// Returns the secrets of settings that were read later. Whether TLS is used stays as it was, so that a wrong URL
    /// cannot turn it off.
    fn later(&self, settings: &Settings) -> Result<Secrets, Error> {
        let tls = match &self.tls {
            Some(_) if settings.tls != self.read_tls => Some(Arc::new(TlsClient::new(&settings.tls)?)),
            tls => tls.clone(),
        };
        Ok(Secrets::new(Url::parse(&settings.url)?.user, tls, settings))
    }
}

/// The secrets that new connections use, and how they are read again.
pub(crate) struct CurrentSecrets {
    now: ArcSwap<Secrets>,
    reread: Option<Reread>,
    /// How long a connection waits for a read.
    within: Duration,
    /// Locked while a read runs, even if nobody waits for it any more.
    reading: Arc<Mutex<()>>,
    /// Whether the read that runs has taken too long. If so, nobody waits for it.
    is_late: AtomicBool,
    /// Why the last read failed. `None` if it did not.
    failed: ArcSwapOption<String>,
}

impl CurrentSecrets {
    pub(crate) fn new(user: RedisConnectionInfo, tls: Option<TlsClient>, settings: &Settings) -> CurrentSecrets {
        CurrentSecrets {
            now: ArcSwap::from_pointee(Secrets::new(user, tls.map(Arc::new), settings)),
            reread: settings.reread.clone(),
            // An eighth of the time for a connection leaves enough for the connection itself.
            within: settings.connect_timeout / 8,
            reading: Arc::default(),
            is_late: AtomicBool::new(false),
            failed: ArcSwapOption::empty(),
        }
    }

    /// Returns what was read last.
    pub(crate) fn now(&self) -> Arc<Secrets> {
        self.now.load_full()
    }

    /// Reads the secrets again, if the settings say how. If that fails or takes too long, the secrets stay as they are.
    pub(crate) async fn reread(self: &Arc<CurrentSecrets>) {
        let Some(reread) = self.reread.clone() else { return };
        let reading = Arc::clone(&self.reading);
        let lock = if self.is_late.load(Ordering::Acquire) {
            reading.try_lock_owned().ok()
        } else {
            timeout(self.within, reading.lock_owned()).await.ok()
        };
        let Some(lock) = lock else { return };
        let this = Arc::clone(self);
        let read = spawn_blocking(move || {
            let _lock = lock;
            let later =
                reread.call().and_then(|settings| this.now().later(&settings).map_err(|error| error.to_string()));
            match later {
                Ok(later) => {
                    this.now.store(Arc::new(later));
                    this.failed.store(None);
                }
                Err(why) => this.failed.store(Some(Arc::new(why))),
            }
            this.is_late.store(false, Ordering::Release);
        });
        let failed = match timeout(self.within, read).await {
            Ok(Ok(())) => return,
            Ok(Err(_)) => "the read panicked",
            Err(_) => {
                self.is_late.store(true, Ordering::Release);
                "the files are not read in time"
            }
        };
        self.failed.store(Some(Arc::new(failed.to_owned())));
    }

    /// Adds to the error of a login or a handshake why the secrets could not be read again, because this is the likely
    /// reason.
    pub(crate) fn explained(&self, error: Error) -> Error {
        let is_about_secrets = error.kind == StoreErrorKind::NoPermission
            || matches!(error.cause, Cause::Certificate | Cause::CertificateDates | Cause::ClientCertificate);
        match self.failed.load().as_deref() {
            Some(why) if is_about_secrets => {
                Error { detail: format!("{}; what was read earlier was sent: {why}", error.detail).into(), ..error }
            }
            _ => error,
        }
    }
}
