//! Checks the health of the shared store, for readiness, metrics and the log.
//!
//! It probes the store all the time. Without probes, a quiet server would notice neither an outage nor its end.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use spillgate_redis::{Circuit, Error, ErrorKind, RedisStore};
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep, timeout};

use super::store_transitions::{Change, Changes, TELL_EVERY};
use crate::service::Service;

/// The pause after a probe that was answered.
const ASK_EVERY: Duration = Duration::from_millis(250);
/// The pause after a probe that failed. The circuit breaker allows at most one request in 250 ms then.
const TRY_EVERY: Duration = Duration::from_millis(50);
/// The time to wait for a connection, and then for an answer.
const PROBE_WITHIN: Duration = Duration::from_millis(250);
/// A store counts as down after this many failed probes in a row, for each node. One probe may be lost in a short pause.
const FAILED_PROBES: usize = 2;

/// Starts the thread that checks the store, if it is a shared one. It ends with the process.
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
    told: [Told; ErrorKind::ALL.len()],
}

/// What the log knows of a class.
#[derive(Default)]
struct Told {
    failures: u64,
    at: Option<Instant>,
    /// What was said since, last.
    detail: Option<String>,
}

impl<'s> Watch<'s> {
    fn new(service: &'s Service, store: &'s RedisStore) -> Watch<'s> {
        let told = ErrorKind::ALL.map(|_| Told::default());
        Watch { service, store, changes: Changes::default(), probes: 0, told }
    }

    async fn run(mut self) {
        loop {
            let probed = self.probe().await;
            let why = probed.as_ref().err().map(|failed| failed.kind);
            let recoveries = self.changes.recoveries;
            let answers = self.changes.seen(probed.is_ok(), self.patience(), Instant::now());
            self.service.set_store_error(why.filter(|_| !answers));
            self.service.metrics().store.up.set(i64::from(answers));
            self.service.metrics().store.recoveries.inc_by(self.changes.recoveries - recoveries);
            self.tell_change(probed);
            self.tell_failures();
            match why {
                // The circuit breaker opens when an outage begins: it is noticed at once.
                None => drop(timeout(ASK_EVERY, self.store.circuit_opened()).await),
                Some(_) => sleep(TRY_EVERY).await,
            }
        }
    }

    /// Whether the store decides now: a probe is a take, so that it needs what requests need. Each is for another slot.
    async fn probe(&mut self) -> Result<(), Error> {
        let store = self.store;
        // While requests are not sent, another task is connecting already.
        let patience = if store.is_down() { Duration::ZERO } else { PROBE_WITHIN };
        let connected = timeout(patience, store.wait_connected()).await;
        self.probes = self.probes.wrapping_add(1);
        let probed = self.store.probe(self.probes, PROBE_WITHIN).await;
        // One of a cluster decides some probes, and goes on being probed: it is one no longer when it sends none elsewhere.
        // Where there is no connection, or not to each node of a cluster, the probe says it.
        if let Ok(Err(failed)) = connected
            && failed.kind == ErrorKind::Moved
        {
            return Err(failed);
        }
        probed.map(drop).map_err(|failed| match failed.kind {
            ErrorKind::CircuitOpen | ErrorKind::Disconnected | ErrorKind::NotSent => {
                store.last_error().unwrap_or(failed)
            }
            _ => failed,
        })
    }

    /// How many probes in a row may fail before a store that answered is one that does not: the first one, once requests are
    /// not asked any more. A cluster answers while some of its nodes do: most requests are decided then, and the rest would
    /// fare no better elsewhere.
    fn patience(&self) -> usize {
        let store = self.store;
        match store.circuit() {
            _ if store.is_down() => 1,
            Circuit::Closed => FAILED_PROBES * store.nodes().len(),
            Circuit::Open | Circuit::HalfOpen => usize::MAX,
        }
    }

    fn tell_change(&mut self, probed: Result<(), Error>) {
        let Some(Change { answers, after, changes }) = self.changes.news(Instant::now()) else { return };
        let why = probed.err().map(|failed| format!("{} ({failed})", failed.kind.explanation())).unwrap_or_default();
        // Changes since the last line had no line of their own.
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
                "the store cannot be reached yet: {why}; limits are answered by their on_store_failure until it can, \
                 and it is tried again all the time"
            ),
            (false, Some(_)) => tracing::warn!(
                "the store does not answer: {why}; limits are answered by their on_store_failure until it does{more}"
            ),
        }
    }

    fn tell_failures(&mut self) {
        // Causes are logged before their consequences.
        let (consequences, causes): (Vec<_>, Vec<_>) =
            self.told.iter_mut().zip(ErrorKind::ALL).partition(|(_, class)| class.is_consequence());
        for (told, class) in causes.into_iter().chain(consequences) {
            let failures = self.store.failures(class);
            told.detail =
                self.store.take_first_error(class).map(|error| error.detail.into_owned()).or(told.detail.take());
            if failures == told.failures || told.at.is_some_and(|at| at.elapsed() < TELL_EVERY) {
                continue;
            }
            let (requests, detail) = (failures - told.failures, told.detail.take().unwrap_or_default());
            *told = Told { failures, at: Some(Instant::now()), detail: None };
            let why = class.explanation();
            tracing::warn!(requests, class = class.as_str(), detail, "the store did not decide: {why}");
        }
    }
}
