//! Checks the health of the shared store, for readiness, metrics and the log.
//!
//! It probes the store all the time. Without probes, a server without traffic would notice neither an outage nor its end.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use spillgate_redis::{Circuit, Error, ErrorKind, RedisStore};
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep, timeout};

use super::store_transitions::{Change, Changes, LOG_EVERY};
use crate::service::Service;

/// The pause after a probe that was answered.
const PROBE_EVERY: Duration = Duration::from_millis(250);
/// The pause after a probe that failed. While the circuit breaker is open, the breaker sends at most one request in 250
/// ms anyway.
const RETRY_EVERY: Duration = Duration::from_millis(50);
/// The time to wait for a connection, and then for an answer.
const PROBE_WITHIN: Duration = Duration::from_millis(250);
/// The store counts as down after this many failed probes in a row, times the number of its nodes. One lost probe may only mean
/// a short pause.
const FAILED_PROBES: usize = 2;

/// Starts the thread that checks the store, if the store is shared. The thread ends with the process.
pub(super) fn start(service: &Arc<Service>) -> io::Result<()> {
    if service.limiter().store().redis().is_none() {
        return Ok(());
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let service = Arc::clone(service);
    let watch = move || {
        runtime.block_on(async {
            if let Some(store) = service.limiter().store().redis() {
                Watch::new(&service, store).run().await;
            }
        });
    };
    thread::Builder::new().name("store-watch".into()).spawn(watch).map(drop)
}

struct Watch<'s> {
    service: &'s Service,
    store: &'s RedisStore,
    changes: Changes,
    probes: u32,
    logged: [Logged; ErrorKind::ALL.len()],
}

/// What the log has reported about the failures of one kind.
#[derive(Default)]
struct Logged {
    /// The number of failures that are in the log.
    failures: u64,
    /// The number of failures in the previous round.
    seen: u64,
    /// The time of the last line.
    at: Option<Instant>,
    /// The text of the newest error that is not in the log yet.
    detail: Option<String>,
}

impl Logged {
    /// Returns how many of the `failures` so far the log may report now.
    ///
    /// A failure that is a consequence is reported one round later. The circuit breaker can refuse a request before the
    /// request that opened the breaker is counted, and the log must have the cause first.
    fn reportable(&mut self, failures: u64, is_consequence: bool) -> u64 {
        let seen = std::mem::replace(&mut self.seen, failures);
        if is_consequence { seen } else { failures }
    }
}

impl<'s> Watch<'s> {
    fn new(service: &'s Service, store: &'s RedisStore) -> Watch<'s> {
        let logged = ErrorKind::ALL.map(|_| Logged::default());
        Watch { service, store, changes: Changes::default(), probes: 0, logged }
    }

    async fn run(mut self) {
        loop {
            let probed = self.probe().await;
            let why = probed.as_ref().err().map(|failed| failed.kind());
            let recoveries = self.changes.recoveries;
            let answers = self.changes.record(probed.is_ok(), self.failures_until_down(), Instant::now());
            self.service.set_store_error(why.filter(|_| !answers));
            self.service.metrics().store.up.set(i64::from(answers));
            self.service.metrics().store.recoveries.inc_by(self.changes.recoveries - recoveries);
            self.log_change(probed);
            self.log_failures();
            match why {
                // The circuit breaker opens when an outage begins. The next probe then starts at once.
                None => drop(timeout(PROBE_EVERY, self.store.circuit_opened()).await),
                Some(_) => sleep(RETRY_EVERY).await,
            }
        }
    }

    /// Asks the store for one decision. A probe is a take, so it needs the same permissions as requests. Each probe is for
    /// another slot, so that in a cluster the probes reach all nodes.
    async fn probe(&mut self) -> Result<(), Error> {
        let store = self.store;
        // While the circuit is open, another task is connecting already.
        let wait = if store.is_down() { Duration::ZERO } else { PROBE_WITHIN };
        let connected = timeout(wait, store.wait_connected()).await;
        self.probes = self.probes.wrapping_add(1);
        let probed = self.store.probe(self.probes, PROBE_WITHIN).await;
        // A URL can name one node of a cluster by mistake. That node decides some probes itself, so the error of the
        // connection counts here. The error ends when the node redirects no probe any more. All other connection errors show in the
        // result of the probe.
        if let Ok(Err(failed)) = connected
            && failed.kind() == ErrorKind::Moved
        {
            return Err(failed);
        }
        probed.map(drop).map_err(|failed| match failed.kind() {
            ErrorKind::CircuitOpen | ErrorKind::Disconnected | ErrorKind::NotSent => {
                store.last_error().unwrap_or(failed)
            }
            _ => failed,
        })
    }

    /// Returns how many failed probes in a row make the store count as down.
    ///
    /// One is enough when no request is sent to the store any more. While only some nodes of a cluster are down, no
    /// number is enough, so that the server stays ready. Most requests are still decided, and another server could not
    /// decide the other requests either.
    fn failures_until_down(&self) -> usize {
        let store = self.store;
        match store.circuit() {
            _ if store.is_down() => 1,
            Circuit::Closed => FAILED_PROBES * store.nodes().len(),
            Circuit::Open | Circuit::HalfOpen => usize::MAX,
        }
    }

    fn log_change(&mut self, probed: Result<(), Error>) {
        let Some(Change { answers, after, changes }) = self.changes.next_line(Instant::now()) else { return };
        let why = probed.err().map(|failed| format!("{} ({failed})", failed.kind().explanation())).unwrap_or_default();
        // Some changes since the last line had no line of their own.
        let more = if changes > 1 {
            format!(" (this has changed {changes} times since the last line)")
        } else {
            String::new()
        };
        match (answers, after) {
            (true, None) => tracing::info!("the store answers"),
            (true, Some(after)) => {
                tracing::info!("the store decides again after {:.1} s{more}", after.as_secs_f64());
            }
            (false, None) => tracing::warn!(
                "the store cannot be reached yet: {why}; limits are answered by their on_store_failure until it can be \
                 reached, and the server keeps trying"
            ),
            (false, Some(_)) => tracing::warn!(
                "the store does not answer: {why}; limits are answered by their on_store_failure until it does{more}"
            ),
        }
    }

    fn log_failures(&mut self) {
        // Causes are logged before their consequences.
        let (consequences, causes): (Vec<_>, Vec<_>) =
            self.logged.iter_mut().zip(ErrorKind::ALL).partition(|(_, class)| class.is_consequence());
        for (logged, class) in causes.into_iter().chain(consequences) {
            let failures = logged.reportable(self.store.failures(class), class.is_consequence());
            logged.detail = self
                .store
                .take_first_error(class)
                .map(|error| error.into_detail().into_owned())
                .or(logged.detail.take());
            if failures == logged.failures || logged.at.is_some_and(|at| at.elapsed() < LOG_EVERY) {
                continue;
            }
            let (requests, detail) = (failures - logged.failures, logged.detail.take().unwrap_or_default());
            (logged.failures, logged.at) = (failures, Some(Instant::now()));
            let why = class.explanation();
            tracing::warn!(requests, class = class.as_str(), detail, "the store did not decide: {why}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Logged;

    #[test]
    fn a_consequence_is_reported_one_round_later_than_a_cause() {
        let (mut cause, mut consequence) = (Logged::default(), Logged::default());
        let mut round = |failures| [cause.reportable(failures, false), consequence.reportable(failures, true)];
        assert_eq!([round(0), round(3), round(5), round(5)], [[0, 0], [3, 0], [5, 3], [5, 5]]);
    }
}
