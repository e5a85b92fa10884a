//! The certificates of the listeners: read at the start, read again while the server runs, and watched for their ends.
//!
//! The pair of `tls.cert` and `tls.key` is one unit, and `tls.client_ca` another. Each is taken whole or not at all, so a
//! mistake in one does not keep the other out, and the server always has a pair that fits.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::Duration;

use spillgate::{Clock as _, SystemClock};
use spillgate_service::metrics::Metrics;
use tokio::time::Instant;

use crate::command::open::listener_tls::{self, Authorities, Pair};
use crate::command::terminal::Problem;
use crate::listener::{Tls, Validity};
use crate::settings::Settings;

const CLIENT_CA: &str = "tls.client_ca";
const DAY: i64 = 86_400;
/// An operator is warned this long before a certificate ends.
const WARN_BEFORE: i64 = 14 * DAY;
/// Some certificates live only for hours and are renewed at two thirds of their life. So a certificate has to have less
/// than this part of its life left before anybody is warned.
const LAST_PART: i64 = 4;
const CHECK_EVERY: Duration = Duration::from_secs(3600);
const WARN_EVERY: Duration = Duration::from_secs(86_400);

/// The certificates of the listeners. Clones are the same certificates.
#[derive(Clone)]
pub(super) struct Certificates(Arc<Inner>);

struct Inner {
    cert: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
    tls: Arc<Tls>,
    metrics: Arc<Metrics>,
    clock: SystemClock,
    /// From when until when the certificate of the listeners is valid. See [`Validity`].
    begin: AtomicI64,
    end: AtomicI64,
    /// When the first authority of clients ends. [`i64::MAX`] if there is none.
    first_end_of_ca: AtomicI64,
}

impl Certificates {
    /// Reads the files that the settings name. Returns `None` if no listener has TLS. A certificate that has ended is only a
    /// warning, so that a server starts even if nobody has renewed it.
    pub(super) fn open(settings: &Settings, metrics: &Arc<Metrics>) -> Result<Option<Certificates>, Problem> {
        let tls = &settings.tls;
        let (Some(cert), Some(key)) = (tls.cert.clone(), tls.key.clone()) else { return Ok(None) };
        let pair = listener_tls::pair(&cert, &key)?;
        let ca = tls.client_ca.as_deref().map(|path| listener_tls::authorities(path, CLIENT_CA)).transpose()?;
        let (validity, first_end_of_ca) = (pair.validity, ca.as_ref().map_or(i64::MAX, |ca| ca.first_end));
        let opened = Tls::new(pair.key, ca.map(|ca| ca.roots), tls.client_names.clone(), tls.allows_plain);
        let opened = opened.map_err(|error| refused(&error))?;
        let certificates = Certificates(Arc::new(Inner {
            cert,
            key,
            client_ca: tls.client_ca.clone(),
            tls: Arc::new(opened),
            metrics: Arc::clone(metrics),
            clock: SystemClock::start(),
            begin: AtomicI64::new(i64::MIN),
            end: AtomicI64::new(i64::MAX),
            first_end_of_ca: AtomicI64::new(i64::MAX),
        }));
        certificates.note_pair(validity);
        if first_end_of_ca != i64::MAX {
            certificates.note_ca(first_end_of_ca);
        }
        for warning in certificates.warnings() {
            tracing::warn!("{warning}");
        }
        Ok(Some(certificates))
    }

    /// Returns what handshakes use.
    pub(super) fn tls(&self) -> &Arc<Tls> {
        &self.0.tls
    }

    /// Returns the files of the certificate and of its key, and that of the authorities of clients.
    pub(super) fn files(&self) -> ([&Path; 2], Option<&Path>) {
        ([&self.0.cert, &self.0.key], self.0.client_ca.as_deref())
    }

    /// Takes the certificate and the key of the listeners, or neither. `pem` is what their files say. Returns whether they are
    /// other than before. A certificate that is not valid at this moment is not taken.
    pub(super) fn take_pair(&self, [cert, key]: [&[u8]; 2]) -> Result<bool, Problem> {
        let Pair { key, validity } = listener_tls::pair_of((&self.0.cert, cert), (&self.0.key, key))?;
        let (now, cert) = (self.now(), self.0.cert.display());
        if now > validity.end {
            let help = "renew it. Until then the listeners use the certificate that they have";
            return Err(Problem::new(format!("a certificate in {cert} ended {} ago", days(now - validity.end)), help));
        }
        if now < validity.begin {
            let help = "correct the clock of this machine, or wait. Until then the listeners use the certificate that they have";
            let message =
                format!("a certificate in {cert} is not valid before {} from now", days(validity.begin - now));
            return Err(Problem::new(message, help));
        }
        let is_new = self.0.tls.replace_pair(key).map_err(|error| refused(&error))?;
        self.note_pair(validity);
        if is_new {
            tracing::info!("the listeners have a new certificate, which ends in {}", days(validity.end - now));
        }
        Ok(is_new)
    }

    /// Takes the authorities of clients, all or none. `pem` is what their file says. Returns whether they are other than before.
    /// If so, the connections of clients with certificates end soon.
    pub(super) fn take_client_ca(&self, pem: &[u8]) -> Result<bool, Problem> {
        let Some(path) = &self.0.client_ca else { return Ok(false) };
        let Authorities { roots, first_end, last_end } = listener_tls::authorities_of(path, CLIENT_CA, pem)?;
        let now = self.now();
        if now > last_end {
            let message = format!("the last certificate in {} ended {} ago", path.display(), days(now - last_end));
            return Err(Problem::new(message, "renew it. Until then the listeners use the authorities that they have"));
        }
        let is_new = self.0.tls.replace_roots(roots).map_err(|error| refused(&error))?;
        self.note_ca(first_end);
        if is_new {
            tracing::info!(
                "the authorities of clients have changed, so connections of clients with certificates end now, and these \
                 clients connect again"
            );
        }
        Ok(is_new)
    }

    /// Starts the thread that warns of certificates that end soon. It ends with the process.
    pub(super) fn follow_ends(&self) -> io::Result<()> {
        let certificates = self.clone();
        let work = move || {
            // The start has warned already.
            let mut warned_at = Instant::now();
            loop {
                thread::park_timeout(CHECK_EVERY);
                if warned_at.elapsed() >= WARN_EVERY {
                    let warnings = certificates.warnings();
                    if !warnings.is_empty() {
                        warned_at = Instant::now();
                    }
                    for warning in warnings {
                        tracing::warn!("{warning}");
                    }
                }
            }
        };
        thread::Builder::new().name("certificates".into()).spawn(work).map(drop)
    }

    fn note_pair(&self, Validity { begin, end }: Validity) {
        self.0.begin.store(begin, Ordering::Relaxed);
        self.0.end.store(end, Ordering::Relaxed);
        self.0.metrics.tls.certificate_end.set(end);
    }

    fn note_ca(&self, first_end: i64) {
        self.0.first_end_of_ca.store(first_end, Ordering::Relaxed);
        self.0.metrics.tls.client_ca_end.set(first_end);
    }

    fn warnings(&self) -> Vec<String> {
        let (begin, end) = (self.0.begin.load(Ordering::Relaxed), self.0.end.load(Ordering::Relaxed));
        let of_pair = warning(&self.0.cert.display().to_string(), Validity { begin, end }, self.now());
        let of_ca = self.0.client_ca.as_ref().and_then(|path| {
            // An authority lives for years, so its life so far does not matter.
            let validity = Validity { begin: i64::MIN, end: self.0.first_end_of_ca.load(Ordering::Relaxed) };
            warning(&path.display().to_string(), validity, self.now())
        });
        of_pair.into_iter().chain(of_ca).collect()
    }

    /// Returns the time in seconds since 1970.
    fn now(&self) -> i64 {
        i64::try_from(self.0.clock.now().as_nanos() / 1_000_000_000).unwrap_or(i64::MAX)
    }
}

/// Returns the warning about a certificate of the file `name`, if there is a reason.
fn warning(name: &str, Validity { begin, end }: Validity, now: i64) -> Option<String> {
    let (left, life) = (end.saturating_sub(now), end.saturating_sub(begin));
    if left < 0 {
        return Some(format!("a certificate in {name} ended {} ago, so its use fails: renew it", days(-left)));
    }
    if now < begin {
        return Some(format!(
            "a certificate in {name} is not valid before {} from now, so clients refuse it: correct the clock of this machine, or \
             use another certificate",
            days(begin - now)
        ));
    }
    (left < WARN_BEFORE && left < life / LAST_PART)
        .then(|| format!("a certificate in {name} ends in {}: renew it in its file", days(left)))
}

fn days(seconds: i64) -> String {
    match seconds / DAY {
        0 => "less than a day".to_owned(),
        1 => "1 day".to_owned(),
        days => format!("{days} days"),
    }
}

/// Returns the problem of certificates that are right, but with which the library does not work.
fn refused(error: &tokio_rustls::rustls::Error) -> Problem {
    Problem::new(format!("the certificates of the listeners cannot be used: {error}"), "make them again, or use others")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_is_warned_when_little_of_a_certificates_life_is_left() {
        let of = |begin, end, now| warning("a.pem", Validity { begin: begin * DAY, end: end * DAY }, now * DAY);
        assert_eq!(of(0, 90, 76), None, "14 days are left");
        assert!(of(0, 90, 77).is_some_and(|text| text.contains("a.pem ends in 13 days: renew it")));
        assert_eq!(of(0, 8, 5), None, "more than a quarter is left");
        assert!(of(0, 8, 7).is_some_and(|text| text.contains("ends in 1 day:")));
        assert!(of(0, 90, 92).is_some_and(|text| text.contains("ended 2 days ago")));
        assert!(of(5, 90, 3).is_some_and(|text| text.contains("is not valid before 2 days from now")));
        let ca = Validity { begin: i64::MIN, end: i64::MAX };
        assert_eq!(warning("a.pem", ca, 0), None);
        assert!(warning("a.pem", Validity { end: 13 * DAY, ..ca }, 0).is_some());
    }
}
