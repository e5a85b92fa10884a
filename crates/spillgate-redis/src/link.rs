//! One connection that is made again whenever it ends.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redis::ConnectionAddr;
use redis::aio::MultiplexedConnection;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::breaker::Breaker;
use crate::failure::{Failed, Failure};
use crate::jitter::Jitter;
use crate::target::{Connected, Target};

/// A connection that has answered nothing for so long, though asked, is given up.
const SILENCE: Duration = Duration::from_secs(1);
/// So often a connection is tried that may be idle.
const PING_EVERY: Duration = Duration::from_secs(5);
/// The first pause between two attempts to connect; each next one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// What all connections to a server share.
pub(crate) struct Shared {
    pub(crate) target: Target,
    pub(crate) breaker: Breaker,
    pub(crate) jitter: Jitter,
    pub(crate) connect_timeout: Duration,
    pub(crate) longest_pause: Duration,
    /// When the clock of the breaker began.
    pub(crate) start: Instant,
    /// Why the last attempt to connect failed.
    pub(crate) trouble: ArcSwapOption<Failed>,
    /// Where the server was found last: connections to another place end.
    pub(crate) found: watch::Sender<Option<ConnectionAddr>>,
}

impl Shared {
    /// Nanoseconds on the breaker's clock, never zero.
    pub(crate) fn at_ns(&self, now: Instant) -> u64 {
        u64::try_from(now.duration_since(self.start).as_nanos()).unwrap_or(u64::MAX).max(1)
    }
}

/// A connection in use.
pub(crate) struct Live {
    connection: MultiplexedConnection,
    pub(crate) address: ConnectionAddr,
    /// When the first of the requests in a row that had no answer gave up; zero if the last one had one.
    silent_since_ns: AtomicU64,
    given_up: Notify,
}

impl Live {
    pub(crate) fn connection(&self) -> MultiplexedConnection {
        self.connection.clone()
    }

    pub(crate) fn answered(&self) {
        if self.silent_since_ns.load(Ordering::Relaxed) != 0 {
            self.silent_since_ns.store(0, Ordering::Relaxed);
        }
    }

    pub(crate) fn was_silent(&self, now_ns: u64) {
        let since = self.silent_since_ns.compare_exchange(0, now_ns, Ordering::Relaxed, Ordering::Relaxed);
        if since.is_err_and(|since| u128::from(now_ns.saturating_sub(since)) >= SILENCE.as_nanos()) {
            self.give_up();
        }
    }

    /// Ends when nobody answers any more, so that an idle connection is not found dead by a request.
    async fn silence(&self, patience: Duration) {
        loop {
            sleep(PING_EVERY).await;
            // That the user may not do it is an answer too.
            if timeout(patience, redis::cmd("PING").exec_async(&mut self.connection())).await.is_err() {
                return;
            }
        }
    }

    pub(crate) fn give_up(&self) {
        self.given_up.notify_one();
    }
}

/// A place for one connection, and the task that keeps it filled.
#[derive(Default)]
pub(crate) struct Link {
    live: ArcSwapOption<Live>,
    /// Wakes those who wait for a connection.
    filled: Notify,
    is_kept: AtomicBool,
    keeper: Mutex<Option<AbortHandle>>,
}

impl Link {
    pub(crate) fn is_live(&self) -> bool {
        self.live.load().is_some()
    }

    /// The connection; waits for one until the deadline.
    pub(crate) async fn live(self: &Arc<Link>, shared: &Arc<Shared>, deadline: Instant) -> Result<Arc<Live>, Failed> {
        loop {
            // Who is woken was here before the connection was.
            let filled = self.filled.notified();
            if let Some(live) = self.live.load_full() {
                return Ok(live);
            }
            self.keep(shared);
            if timeout_at(deadline, filled).await.is_err() {
                return Err(Failed::new(Failure::Disconnected, "no connection before the deadline"));
            }
        }
    }

    /// Has a task keep the connection, unless there is one: the first caller's runtime runs it, and if that ends, then
    /// that of the first caller after.
    fn keep(self: &Arc<Link>, shared: &Arc<Shared>) {
        if self.is_kept.swap(true, Ordering::AcqRel) {
            return;
        }
        let kept = Kept(Arc::clone(self));
        let task = Handle::current().spawn(kept.run(Arc::clone(shared)));
        *self.keeper.lock().unwrap_or_else(PoisonError::into_inner) = Some(task.abort_handle());
    }

    /// Ends the connection for good.
    pub(crate) fn end(&self) {
        if let Some(keeper) = self.keeper.lock().unwrap_or_else(PoisonError::into_inner).take() {
            keeper.abort();
        }
    }
}

/// A link that is being kept; not any more, once this is dropped.
struct Kept(Arc<Link>);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.live.store(None);
        self.0.is_kept.store(false, Ordering::Release);
        // One of those who wait has to begin anew.
        self.0.filled.notify_waiters();
    }
}

impl Kept {
    async fn run(self, shared: Arc<Shared>) {
        let mut pause = FIRST_PAUSE;
        loop {
            let connected = timeout(shared.connect_timeout, shared.target.connect()).await;
            let late = || Failed::new(Failure::Timeout, "not connected in time");
            match connected.unwrap_or_else(|_| Err(late())) {
                Ok(Connected { connection, driver, address }) => {
                    let since = Instant::now();
                    let (silent_since_ns, given_up) = (AtomicU64::new(0), Notify::new());
                    let live = Arc::new(Live { connection, address, silent_since_ns, given_up });
                    shared.found.send_replace(Some(live.address.clone()));
                    let mut found = shared.found.subscribe();
                    self.0.live.store(Some(Arc::clone(&live)));
                    shared.breaker.succeeded();
                    shared.trouble.store(None);
                    self.0.filled.notify_waiters();
                    tokio::select! {
                        () = driver => {}
                        () = live.given_up.notified() => {}
                        () = live.silence(shared.connect_timeout) => {}
                        _ = found.wait_for(|at| at.as_ref() != Some(&live.address)) => {}
                    }
                    self.0.live.store(None);
                    // A connection that lasted is made again at once.
                    if since.elapsed() >= shared.longest_pause {
                        pause = FIRST_PAUSE;
                        continue;
                    }
                }
                Err(failed) => {
                    shared.trouble.store(Some(Arc::new(failed)));
                    shared.breaker.open(shared.at_ns(Instant::now()));
                }
            }
            sleep(shared.jitter.of(pause)).await;
            pause = (pause * 2).min(shared.longest_pause);
        }
    }
}
