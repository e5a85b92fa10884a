//! Looks after the shared store: keeps asking it, so that it is known whether it answers and that it does again, and
//! tells the log, at most so often, what fails.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use spillgate_redis::{Circuit, Failure};
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep, timeout};

use crate::service::{Service, Shared};

/// How often a store that answers is asked.
const ASK_EVERY: Duration = Duration::from_millis(250);
/// How often one that does not is tried; its breaker lets one question pass in 250 ms at most.
const TRY_EVERY: Duration = Duration::from_millis(50);
/// How long a connection is waited for before the log is told.
const CONNECT_WITHIN: Duration = Duration::from_millis(250);
/// A line about one class of failures is written at most so often.
const TELL_EVERY: Duration = Duration::from_secs(10);
/// Probes in a row without an answer, for each node, that make a store one that does not answer.
const FAILED_PROBES: usize = 2;

/// Starts the thread that looks after the store, if it is a shared one. It ends with the process.
pub(super) fn start(service: &Arc<Service>) -> io::Result<()> {
    if service.limiter().store().shared().is_none() {
        return Ok(());
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let service = Arc::clone(service);
    let watch = move || {
        runtime.block_on(async {
            if let Some(shared) = service.limiter().store().shared() {
                Watch::new(&service, shared).run().await;
            }
        });
    };
    thread::Builder::new().name("store-watch".into()).spawn(watch).map(drop)
}

struct Watch<'s> {
    service: &'s Service,
    shared: &'s Shared,
    /// Since when it has answered, or not; `None` before the first probe.
    since: Option<(bool, Instant)>,
    probes: u32,
    failed_probes: usize,
    told: [Told; Failure::ALL.len()],
}

/// What the log knows of a class.
#[derive(Clone, Copy, Default)]
struct Told {
    failures: u64,
    at: Option<Instant>,
}

impl<'s> Watch<'s> {
    fn new(service: &'s Service, shared: &'s Shared) -> Watch<'s> {
        Watch { service, shared, since: None, probes: 0, failed_probes: 0, told: [Told::default(); Failure::ALL.len()] }
    }

    async fn run(mut self) {
        loop {
            let answers = self.probe().await;
            self.service.store_answers(answers);
            self.service.metrics().store.up.set(i64::from(answers));
            self.tell_change(answers);
            self.tell_failures();
            sleep(if answers { ASK_EVERY } else { TRY_EVERY }).await;
        }
    }

    /// Whether the store answers. A cluster does while some of its nodes do: most requests are decided then, and the rest
    /// would fare no better elsewhere.
    async fn probe(&mut self) -> bool {
        let store = self.shared.store();
        let all_connected = timeout(CONNECT_WITHIN, store.connected()).await.is_ok_and(|connected| connected.is_ok());
        let nodes = store.nodes();
        let connected = nodes.iter().filter(|node| node.is_connected).count();
        self.probes = self.probes.wrapping_add(1);
        let answers = (all_connected || connected > 0) && self.shared.answers(self.probes).await;
        self.failed_probes = if answers { 0 } else { self.failed_probes.saturating_add(1) };
        // It may have been the turn of a node that does not.
        let excused = match store.circuit() {
            Circuit::Closed => self.failed_probes < FAILED_PROBES * connected.max(1),
            Circuit::HalfOpen => nodes.len() > 1,
            Circuit::Open => false,
        };
        answers || excused && self.since.is_some_and(|(answered, _)| answered)
    }

    fn tell_change(&mut self, answers: bool) {
        let now = Instant::now();
        let before = self.since;
        if before.is_some_and(|(answered, _)| answered == answers) {
            return;
        }
        self.since = Some((answers, now));
        let why =
            || self.shared.store().trouble().map_or_else(|| "no answer".to_owned(), |trouble| trouble.to_string());
        match (answers, before) {
            (true, None) => tracing::info!("the store answers"),
            (true, Some((_, since))) => {
                self.service.metrics().store.recoveries.inc();
                tracing::info!("the store decides again after {:.1} s", now.duration_since(since).as_secs_f64());
            }
            (false, None) => tracing::warn!(
                why = why(),
                "the store cannot be reached yet: limits are answered by their on_store_failure until it can, \
                 and it is tried again all the time"
            ),
            (false, Some(_)) => tracing::warn!(
                why = why(),
                "the store does not answer: limits are answered by their on_store_failure until it does"
            ),
        }
    }

    fn tell_failures(&mut self) {
        for (told, class) in self.told.iter_mut().zip(Failure::ALL) {
            let failures = self.shared.store().failures(class);
            if failures == told.failures || told.at.is_some_and(|at| at.elapsed() < TELL_EVERY) {
                continue;
            }
            let count = failures - told.failures;
            *told = Told { failures, at: Some(Instant::now()) };
            let detail = self.shared.take_detail(class).unwrap_or_default();
            tracing::warn!(class = class.name(), count, detail, "the store did not decide");
        }
    }
}
