//! The certificates of the listeners: read at the start, read again while the server runs, and watched for their ends.
//!
//! The pair of `tls.cert` and `tls.key` is one unit, and `tls.client_ca` another. Each is taken whole or not at all, so a
//! mistake in one does not keep the other out, and the server always has a pair that fits. What is in use already is taken
//! without a look at its dates: a server that starts with an ended certificate has warned of it, and no file has changed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use spillgate::{Clock as _, SystemClock};
use spillgate_service::metrics::Metrics;
use spillgate_service::reloads::Cause;
use tokio::time::Instant;

use crate::command::open::listener_tls::{self, Authorities, Pair};
use crate::command::terminal::Problem;
use crate::listener::{Tls, Validity};
use crate::settings::Settings;

pub(super) const CERT: &str = "tls.cert";
pub(super) const KEY: &str = "tls.key";
pub(super) const CLIENT_CA: &str = "tls.client_ca";
const DAY: i64 = 86_400;
/// An operator is warned this long before a certificate ends.
const WARN_BEFORE: i64 = 14 * DAY;
/// Some certificates live only for hours and are renewed at two thirds of their life. So a certificate has to have less
/// than this part of its life left before anybody is warned.
const LAST_PART: i64 = 4;
/// The last part of a certificate that lives for an hour is 15 minutes.
const CHECK_EVERY: Duration = Duration::from_secs(300);
/// The same warning is repeated after this time.
const WARN_EVERY: Duration = Duration::from_secs(86_400);
/// A file can have hundreds of authorities that have ended. At most this many of its certificates are warned of.
const WARNED_MAX: usize = 3;

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
    of_pair: Mutex<Dates>,
    /// Empty if there are no authorities of clients.
    of_client_ca: Mutex<Dates>,
}

/// The certificates of a file are in use now, and were not before.
pub(super) struct New {
    /// What the log has warned of.
    pub(super) warnings: Vec<String>,
}

/// Whether a certificate is valid at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    NotYet,
    Valid,
    Ended,
}

impl Standing {
    const fn of(Validity { begin, end }: Validity, now: i64) -> Standing {
        if now > end {
            Standing::Ended
        } else if now < begin {
            Standing::NotYet
        } else {
            Standing::Valid
        }
    }
}

impl Certificates {
    /// Reads the files that the settings name. Returns `None` if no listener has TLS. A certificate that has ended is only a
    /// warning, so that a server starts even if nobody has renewed it.
    pub(super) fn open(settings: &Settings, metrics: &Arc<Metrics>) -> Result<Option<Certificates>, Problem> {
        let tls = &settings.tls;
        let (Some(cert), Some(key)) = (tls.cert.clone(), tls.key.clone()) else { return Ok(None) };
        let pair = listener_tls::pair(&cert, &key)?;
        let ca = tls.client_ca.as_deref().map(|path| listener_tls::authorities(path, CLIENT_CA)).transpose()?;
        let (ca_validities, roots) = ca.map(|ca| (ca.validities, ca.roots)).unzip();
        let opened = Tls::new(pair.key, roots, tls.client_names.clone(), tls.allows_plain);
        let opened = opened.map_err(|error| refused(&error))?;
        let certificates = Certificates(Arc::new(Inner {
            cert,
            key,
            client_ca: tls.client_ca.clone(),
            tls: Arc::new(opened),
            metrics: Arc::clone(metrics),
            clock: SystemClock::start(),
            of_pair: Mutex::default(),
            of_client_ca: Mutex::default(),
        }));
        certificates.note_pair(pair.validities);
        if let Some(validities) = ca_validities {
            certificates.note_client_ca(validities);
        }
        certificates.warn();
        Ok(Some(certificates))
    }

    /// Returns what handshakes use.
    pub(super) fn tls(&self) -> &Arc<Tls> {
        &self.0.tls
    }

    /// Returns the files of the certificate and of its key.
    pub(super) fn pair_files(&self) -> [&Path; 2] {
        [&self.0.cert, &self.0.key]
    }

    /// Returns the file of the authorities of clients.
    pub(super) fn client_ca_file(&self) -> Option<&Path> {
        self.0.client_ca.as_deref()
    }

    /// Returns whether the certificate of the listeners in this text is valid now. `pem` is what the file of `tls.cert` says.
    /// What cannot be read counts as valid, because time does not mend it.
    pub(super) fn pair_standing(&self, pem: &[u8]) -> Standing {
        let first = listener_tls::validities(pem).next();
        first.map_or(Standing::Valid, |validity| Standing::of(validity, self.now()))
    }

    /// Does the same for the authorities in the file of `tls.client_ca`, of which the last one counts.
    pub(super) fn client_ca_standing(&self, pem: &[u8]) -> Standing {
        let last_end = listener_tls::validities(pem).map(|validity| validity.end).max();
        last_end.map_or(Standing::Valid, |end| Standing::of(Validity { begin: i64::MIN, end }, self.now()))
    }

    /// Takes the certificate and the key of the listeners, or neither. The texts are what their files say. Returns `None` if they
    /// are those of before. A new certificate that is not valid at this moment is not taken. Of those of the authorities below it
    /// only the log warns, because many clients have them.
    pub(super) fn take_pair(&self, [cert, key]: [&[u8]; 2], cause: Cause) -> Result<Option<New>, Problem> {
        let Pair { key, validities } = listener_tls::pair_of((&self.0.cert, cert), (&self.0.key, key))?;
        if self.0.tls.has_pair(&key) {
            return Ok(None);
        }
        let (now, first, name) = (self.now(), validities[0], self.0.cert.display());
        let refuse = |message: String, help: &str| {
            let help = format!("{help}. Until then the listeners use the certificate that they have");
            Err(Problem::new(message, help).in_file(&self.0.cert))
        };
        match Standing::of(first, now) {
            Standing::Valid => {}
            Standing::Ended => {
                return refuse(
                    format!("the first certificate in {name} ended {} ago", days(now - first.end)),
                    "renew it",
                );
            }
            Standing::NotYet => {
                let message =
                    format!("the first certificate in {name} is not valid before {} from now", days(first.begin - now));
                return refuse(message, "correct the clock of this machine, or wait");
            }
        }
        self.0.tls.replace_pair(key).map_err(|error| refused(&error).in_file(&self.0.cert))?;
        self.note_pair(validities);
        let cause = cause.as_str();
        tracing::info!(cause, "the listeners have a new certificate, which ends in {}", days(first.end - now));
        Ok(Some(New { warnings: self.warn_of(&self.0.of_pair) }))
    }

    /// Takes the authorities of clients, all or none. `pem` is what the file at `path` says. Returns `None` if they are those of
    /// before. Otherwise the connections of clients with certificates end soon.
    pub(super) fn take_client_ca(&self, path: &Path, pem: &[u8], cause: Cause) -> Result<Option<New>, Problem> {
        let Authorities { roots, validities } = listener_tls::authorities_of(path, CLIENT_CA, pem)?;
        if self.0.tls.has_roots(&roots) {
            // A renewed authority with its key of before has another end.
            self.note_client_ca(validities);
            return Ok(None);
        }
        let (now, last_end) = (self.now(), validities.iter().map(|one| one.end).max().unwrap_or(i64::MAX));
        if now > last_end {
            let message = format!("the last certificate in {} ended {} ago", path.display(), days(now - last_end));
            let help = "renew it. Until then the listeners use the authorities that they have";
            return Err(Problem::new(message, help).in_file(path));
        }
        self.0.tls.replace_roots(roots).map_err(|error| refused(&error).in_file(path))?;
        self.note_client_ca(validities);
        tracing::info!(
            cause = cause.as_str(),
            "the authorities of clients have changed, so connections of clients with certificates end now, and these \
             clients connect again"
        );
        Ok(Some(New { warnings: self.warn_of(&self.0.of_client_ca) }))
    }

    /// Starts the thread that warns of certificates that end soon. It ends with the process.
    pub(super) fn follow_ends(&self) -> io::Result<()> {
        let certificates = self.clone();
        let work = move || loop {
            thread::park_timeout(CHECK_EVERY);
            certificates.warn();
        };
        thread::Builder::new().name("certificates".into()).spawn(work).map(drop)
    }

    fn note_pair(&self, validities: Vec<Validity>) {
        let name = self.0.cert.display().to_string();
        self.0.metrics.tls.certificate_end.set(self.0.of_pair.lock().replace(name, validities));
    }

    fn note_client_ca(&self, mut validities: Vec<Validity>) {
        // An authority lives for years, so its life so far does not matter.
        validities.iter_mut().for_each(|validity| validity.begin = i64::MIN);
        let name = self.0.client_ca.as_ref().map_or_else(String::new, |path| path.display().to_string());
        self.0.metrics.tls.client_ca_end.set(self.0.of_client_ca.lock().replace(name, validities));
    }

    /// Warns of certificates that need an operator, if that is due.
    fn warn(&self) {
        for dates in [&self.0.of_pair, &self.0.of_client_ca] {
            self.warn_of(dates);
        }
    }

    fn warn_of(&self, dates: &Mutex<Dates>) -> Vec<String> {
        let warnings = dates.lock().warnings(self.now(), Instant::now());
        for warning in &warnings {
            tracing::warn!("{warning}");
        }
        warnings
    }

    /// Returns the time in seconds since 1970.
    fn now(&self) -> i64 {
        i64::try_from(self.0.clock.now().as_nanos() / 1_000_000_000).unwrap_or(i64::MAX)
    }
}

/// Why an operator is warned of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    NotYetValid,
    EndsSoon,
    Ended,
}

impl Trouble {
    fn of(validity: Validity, now: i64) -> Option<Trouble> {
        let (left, life) = (validity.end.saturating_sub(now), validity.end.saturating_sub(validity.begin));
        match Standing::of(validity, now) {
            Standing::Ended => Some(Trouble::Ended),
            Standing::NotYet => Some(Trouble::NotYetValid),
            Standing::Valid => (left < WARN_BEFORE && left < life / LAST_PART).then_some(Trouble::EndsSoon),
        }
    }
}

/// From when until when the certificates of a file are valid, and what was said of them.
#[derive(Default)]
struct Dates {
    name: String,
    validities: Vec<Validity>,
    /// What was said last of each certificate, and when.
    said: Vec<Option<(Trouble, Instant)>>,
}

impl Dates {
    /// Takes the dates of the certificates that the file has now. Returns when the first of them ends.
    fn replace(&mut self, name: String, validities: Vec<Validity>) -> i64 {
        if validities != self.validities {
            *self = Dates { name, said: vec![None; validities.len()], validities };
        }
        self.validities.iter().map(|validity| validity.end).min().unwrap_or(i64::MAX)
    }

    /// Returns the warnings that are due. `now` is the time in seconds since 1970, and `at` the same moment.
    fn warnings(&mut self, now: i64, at: Instant) -> Vec<String> {
        let mut due = Vec::new();
        let is_alone = self.validities.len() == 1;
        let troubles = self.validities.iter().zip(&mut self.said).enumerate();
        let troubles = troubles.filter_map(|(index, (validity, said))| {
            let trouble = Trouble::of(*validity, now);
            if trouble.is_none() {
                *said = None;
            }
            trouble.map(|trouble| (index + 1, validity, trouble, said))
        });
        for (number, validity, trouble, said) in troubles.take(WARNED_MAX) {
            if said.is_some_and(|(last, when)| last == trouble && at.duration_since(when) < WARN_EVERY) {
                continue;
            }
            *said = Some((trouble, at));
            let which = if is_alone { "the certificate".to_owned() } else { format!("certificate {number}") };
            let name = &self.name;
            due.push(match trouble {
                Trouble::Ended => {
                    format!("{which} in {name} ended {} ago, so its use fails: renew it", days(now - validity.end))
                }
                Trouble::NotYetValid => format!(
                    "{which} in {name} is not valid before {} from now, so clients refuse it: correct the clock of this \
                     machine, or use another certificate",
                    days(validity.begin - now)
                ),
                Trouble::EndsSoon => {
                    format!("{which} in {name} ends in {}: renew it in its file", days(validity.end - now))
                }
            });
        }
        due
    }
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

    fn dates(validities: &[(i64, i64)]) -> Dates {
        let mut dates = Dates::default();
        let in_seconds = |(begin, end): &(i64, i64)| Validity { begin: begin.saturating_mul(DAY), end: end * DAY };
        dates.replace("a.pem".to_owned(), validities.iter().map(in_seconds).collect());
        dates
    }

    #[test]
    fn an_operator_is_warned_when_little_of_a_certificates_life_is_left() {
        let of = |begin, end, now: i64| dates(&[(begin, end)]).warnings(now * DAY, Instant::now()).pop();
        assert_eq!(of(0, 90, 76), None, "14 days are left");
        assert!(of(0, 90, 77).is_some_and(|text| text.contains("the certificate in a.pem ends in 13 days: renew it")));
        assert_eq!(of(0, 8, 5), None, "more than a quarter is left");
        assert!(of(0, 8, 7).is_some_and(|text| text.contains("ends in 1 day:")));
        assert!(of(0, 90, 92).is_some_and(|text| text.contains("ended 2 days ago")));
        assert!(of(5, 90, 3).is_some_and(|text| text.contains("is not valid before 2 days from now")));
        assert_eq!(of(i64::MIN, 20, 0), None, "an authority");
        assert!(of(i64::MIN, 13, 0).is_some());
    }

    #[test]
    fn a_warning_comes_when_its_reason_does_and_is_repeated_each_day() {
        let start = Instant::now();
        let mut dates = dates(&[(0, 90)]);
        let mut count = |hours: i64| {
            let at = start + Duration::from_secs(3_600) * u32::try_from(hours - 76 * 24).expect("it is positive");
            dates.warnings(hours * 3_600, at).len()
        };
        let days = 24;
        assert_eq!([count(76 * days), count(76 * days + 1)], [0, 1], "14 days before the end, and an hour later");
        assert_eq!([count(76 * days + 2), count(77 * days), count(77 * days + 1)], [0, 0, 1]);
        assert_eq!(
            [count(90 * days), count(90 * days + 1)],
            [1, 1],
            "the certificate has ended since the last warning"
        );
        let mut short = super::tests::dates(&[(0, 90)]);
        short.warnings(89 * DAY, start);
        let Validity { begin, .. } = short.validities[0];
        short.replace("a.pem".to_owned(), vec![Validity { begin, end: begin + 90 * DAY }]);
        assert_eq!(short.warnings(89 * DAY, start).len(), 0, "the same dates");
        short.replace("a.pem".to_owned(), vec![Validity { begin: 88 * DAY, end: 89 * DAY + 60 }]);
        assert_eq!(short.warnings(89 * DAY, start).len(), 1, "a new certificate has warnings of its own");
    }

    #[test]
    fn a_warning_names_the_certificate_and_many_of_them_are_few_lines() {
        let mut of_chain = dates(&[(0, 90), (0, 70), (0, 900)]);
        assert_eq!(of_chain.replace("a.pem".to_owned(), of_chain.validities.clone()), 70 * DAY);
        let warnings = of_chain.warnings(71 * DAY, Instant::now());
        assert_eq!(warnings, ["certificate 2 in a.pem ended 1 day ago, so its use fails: renew it"]);
        let mut of_many = dates(&[(0, 1); 500]);
        let now = Instant::now();
        assert_eq!([of_many.warnings(3 * DAY, now).len(), of_many.warnings(3 * DAY, now).len()], [WARNED_MAX, 0]);
    }
}
