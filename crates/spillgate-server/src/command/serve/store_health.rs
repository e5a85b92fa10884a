//! Checks the health of the shared store (Redis or Valkey), for readiness, metrics and the log.
//!
//! A thread sends a probe (a small request) to the store several times a second. Without probes, a server without
//! traffic would notice neither an outage nor its end.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use spillgate::{Circuit, StoreErrorKind};
use spillgate_redis::stand_aside;
use spillgate_service::Service;
use spillgate_service::shared_store::{SharedError, SharedStore};
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep, timeout};

use super::store_memory::MemoryWatch;
use super::store_transitions::{Change, Changes, LOG_EVERY};

/// The pause after a probe that was answered.
const PROBE_EVERY: Duration = Duration::from_millis(250);
/// The pause after a probe that failed. The pause can be short, because the circuit breaker of each node protects a
/// node that fails: while the breaker is open, it passes one request after each wait of 125 ms to 250 ms.
const RETRY_EVERY: Duration = Duration::from_millis(50);
/// A probe waits at most this long for a connection, and then at most this long for an answer.
const PROBE_WITHIN: Duration = Duration::from_millis(250);
/// A store with `N` nodes counts as down after `FAILED_PROBES * N` failed probes in a row. One failed probe is not
/// enough, because a short pause can cause it.
const FAILED_PROBES: usize = 2;

/// The server waits at most this long at its start for the first decision of the store. The time is enough to connect to
/// a store that works. With a store that does not, the start takes this long, and `on_store_failure` decides then.
const FIRST_WITHIN: Duration = Duration::from_secs(1);

/// Lets the start of the server wait for the first decision of the store.
pub(super) struct FirstAnswer {
    answered: Option<Receiver<()>>,
    until: Instant,
}

impl FirstAnswer {
    /// Waits until the store has decided, at most for [`FIRST_WITHIN`] since the start of the thread. So the first
    /// requests of clients find a connection. Without the wait, they would be decided without a store that works.
    pub(super) fn wait(self) {
        if let Some(answered) = self.answered {
            let _ = answered.recv_timeout(self.until.saturating_duration_since(Instant::now()));
        }
    }
}

/// Starts the thread that checks the store, if the store is shared. The thread ends with the process.
pub(super) fn start(service: &Arc<Service>) -> io::Result<FirstAnswer> {
    let until = Instant::now() + FIRST_WITHIN;
    if service.limiter().store().shared().is_none() {
        return Ok(FirstAnswer { answered: None, until });
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let service = Arc::clone(service);
    let (answers, answered) = sync_channel(1);
    let watch = move || {
        stand_aside();
        runtime.block_on(async {
            if let Some(store) = service.limiter().store().shared() {
                Watch::new(&service, store, answers).run().await;
            }
        });
    };
    thread::Builder::new().name("store-watch".into()).spawn(watch)?;
    Ok(FirstAnswer { answered: Some(answered), until })
}

struct Watch<'s> {
    service: &'s Service,
    store: &'s dyn SharedStore,
    changes: Changes,
    probes: u32,
    logged: [Logged; StoreErrorKind::ALL.len()],
    memory: MemoryWatch,
    /// Gets a message when the store has decided, once there is a connection to each of its servers.
    answers: SyncSender<()>,
}

/// What the log has reported about the failures of one kind.
#[derive(Default)]
struct Logged {
    /// The number of failures that are in the log.
    failures: u64,
    /// The number of failures at the previous call of `reportable`.
    seen: u64,
    /// The time of the last log line.
    at: Option<Instant>,
    /// The text of an error that is not in the log yet.
    detail: Option<String>,
}

impl Logged {
    /// Returns how many failures the log can report now. `failures` is the number of failures so far.
    ///
    /// A consequence is a failure that an earlier failure caused, and the log must have the cause first. But the counts
    /// can have the consequence first: the circuit breaker can refuse a request before the failure that opened the
    /// breaker is counted. Therefore this function reports a consequence one call later than a cause.
    fn reportable(&mut self, failures: u64, is_consequence: bool) -> u64 {
        let seen = std::mem::replace(&mut self.seen, failures);
        if is_consequence { seen } else { failures }
    }
}

impl<'s> Watch<'s> {
    fn new(service: &'s Service, store: &'s dyn SharedStore, answers: SyncSender<()>) -> Watch<'s> {
        let (changes, memory) = (Changes::default(), MemoryWatch::default());
        Watch { service, store, changes, probes: 0, logged: Default::default(), memory, answers }
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
            // Also while probes fail, because a full store may be the reason.
            self.memory.read(self.store, &self.service.metrics().store, PROBE_WITHIN).await;
            match why {
                // If a circuit breaker opens during this pause, the pause ends, so that the next probe starts at once.
                None => drop(timeout(PROBE_EVERY, self.store.circuit_opened()).await),
                Some(_) => sleep(RETRY_EVERY).await,
            }
        }
    }

    /// Asks the store for one decision. A probe is a take (it consumes one unit), so it needs the same permissions as
    /// requests. Each probe uses a key in another hash slot, so that in a cluster the probes reach all nodes.
    async fn probe(&mut self) -> Result<(), SharedError> {
        let store = self.store;
        // While the store is down, a task of the store's client connects again and again. The probe does not wait for
        // this task, because a later probe finds the new connection.
        let wait = if store.health().is_down { Duration::ZERO } else { PROBE_WITHIN };
        let connected = timeout(wait, store.wait_connected()).await;
        let is_connected = matches!(connected, Ok(Ok(())));
        self.probes = self.probes.wrapping_add(1);
        let probed = self.store.probe(self.probes, PROBE_WITHIN).await;
        // By mistake, the URL of a single server can name a node of a cluster. This node redirects the probes for slots
        // of other nodes, and decides the probes for its own slots. Therefore a probe can succeed in spite of the
        // mistake. For a while after a redirection, `wait_connected` returns the error `Moved`. Only this error of
        // `wait_connected` counts as a failed probe, because all other errors also make the probe itself fail.
        if let Ok(Err(failed)) = connected
            && failed.kind() == StoreErrorKind::Moved
        {
            return Err(failed);
        }
        if probed.is_ok() && is_connected {
            // Nobody receives later messages.
            let _ = self.answers.try_send(());
        }
        probed.map_err(|failed| match failed.kind() {
            StoreErrorKind::CircuitOpen | StoreErrorKind::Disconnected | StoreErrorKind::NotSent => {
                store.last_error().unwrap_or(failed)
            }
            _ => failed,
        })
    }

    /// Returns how many failed probes in a row make the store count as down.
    ///
    /// If all nodes of the store are down (`is_down`), one failed probe is enough. If only some nodes of a cluster are
    /// down, no number of failed probes is enough, so this server stays ready. It still decides the requests for the
    /// other nodes, and another server could not decide the requests for the failed nodes either.
    fn failures_until_down(&self) -> usize {
        let health = self.store.health();
        match health.circuit {
            _ if health.is_down => 1,
            Circuit::Closed => FAILED_PROBES * health.nodes,
            Circuit::Open | Circuit::HalfOpen => usize::MAX,
        }
    }

    fn log_change(&mut self, probed: Result<(), SharedError>) {
        let Some(Change { answers, after, changes }) = self.changes.next_line(Instant::now()) else { return };
        let why = probed.err().map(|failed| format!("{} ({failed})", failed.kind().explanation())).unwrap_or_default();
        // If the store has changed more than once since the last log line, some of these changes were not logged.
        let more = if changes > 1 {
            format!(" (since the last line, the store has changed {changes} times between up and down)")
        } else {
            String::new()
        };
        // After a failover, this is the only line that names the new primary.
        let at = self.store.primary().map(|address| format!("; the primary is {address}")).unwrap_or_default();
        match (answers, after) {
            (true, None) => tracing::info!("the store answers{at}"),
            (true, Some(after)) => {
                tracing::info!("the store decides again after {:.1} s{at}{more}", after.as_secs_f64());
            }
            (false, None) => tracing::warn!(
                "the store cannot be used yet: {why}; limits are answered by their on_store_failure until it can be \
                 used, and the server keeps trying"
            ),
            (false, Some(_)) => tracing::warn!(
                "the store does not answer: {why}; limits are answered by their on_store_failure until the store answers{more}"
            ),
        }
    }

    fn log_failures(&mut self) {
        // Causes are logged before their consequences.
        let (consequences, causes): (Vec<_>, Vec<_>) = self
            .logged
            .iter_mut()
            .zip(StoreErrorKind::ALL.iter().copied())
            .partition(|(_, class)| class.is_consequence());
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
