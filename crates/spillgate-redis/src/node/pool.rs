//! The connections to one server, each made again whenever it ends.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redis::ConnectionAddr;
use spillgate_core::Circuit;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::connect::connector::OpenConnection;
use crate::connect::endpoint::Endpoint;
use crate::connection::Connection;
use crate::deadline;
use crate::error::{Error, ErrorKind};
use crate::node::breaker::Breaker;
use crate::node::jitter::Jitter;
use crate::settings::Settings;

/// So often a connection is tried that may be idle.
const PING_EVERY: Duration = Duration::from_secs(5);
/// The first pause between two attempts to connect; each next one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// A connection in use.
pub(crate) struct LiveConnection {
    pub(crate) connection: Connection,
    pub(crate) address: ConnectionAddr,
    /// Several states can be asked about in one call, as far as the server has said.
    has_all_slots: AtomicBool,
    /// A request on it had no answer.
    suspected: Notify,
    given_up: Notify,
}

impl LiveConnection {
    /// Has it tried. That a request had no answer proves nothing: its caller may have had no time.
    pub(crate) fn suspect(&self) {
        self.suspected.notify_one();
    }

    pub(crate) fn has_all_slots(&self) -> bool {
        self.has_all_slots.load(Ordering::Relaxed)
    }

    /// It stands for several servers, and each state has to be asked about by itself.
    pub(crate) fn lacks_slots(&self) {
        self.has_all_slots.store(false, Ordering::Relaxed);
    }

    pub(crate) fn give_up(&self) {
        self.given_up.notify_one();
    }

    /// Ends when nobody answers any more. An idle connection is tried too, so that it is not found dead by a request.
    async fn silence(&self, patience: Duration) {
        loop {
            let _ = timeout(PING_EVERY, self.suspected.notified()).await;
            match timeout(patience, self.connection.send(&redis::cmd("PING"))).await {
                Ok(Ok(_)) => {}
                // That the user may not do it is an answer too.
                Ok(Err(error)) if error.clone().into_server_errors().is_some() => {}
                // Nor is there one if so many are awaited already that nothing can be asked.
                _ => return,
            }
        }
    }
}

/// A place for one connection, and the task that keeps it filled.
#[derive(Default)]
struct PoolEntry {
    live: ArcSwapOption<LiveConnection>,
    /// Requests of the thread whose first place this is.
    asked: AtomicUsize,
    is_kept: AtomicBool,
    keeper: Mutex<Option<AbortHandle>>,
}

/// The links to one server: each thread has two, and may borrow the others.
pub(crate) struct Pool {
    pub(crate) endpoint: Endpoint,
    pub(crate) breaker: Breaker,
    links: Box<[PoolEntry]>,
    /// Wakes those who wait for a connection.
    filled: Notify,
    jitter: Jitter,
    /// What requests have, but for the little that is gone before they are asked.
    usual_wait: Duration,
    connect_timeout: Duration,
    longest_pause: Duration,
    /// When the clock of the breaker began.
    start: Instant,
    /// Why the server does not serve.
    trouble: ArcSwapOption<Error>,
    /// Where the server was found last: connections to another place end.
    found: watch::Sender<Option<ConnectionAddr>>,
}

impl Pool {
    pub(crate) fn new(endpoint: Endpoint, settings: &Settings) -> Pool {
        Pool {
            endpoint,
            breaker: Breaker::new(settings.max_failures, settings.probe_every, Jitter::new()),
            links: (0..settings.connections).map(|_| PoolEntry::default()).collect(),
            filled: Notify::new(),
            jitter: Jitter::new(),
            usual_wait: settings.timeout - settings.timeout / 8,
            connect_timeout: settings.connect_timeout,
            longest_pause: settings.probe_every,
            start: Instant::now(),
            trouble: ArcSwapOption::empty(),
            found: watch::Sender::new(None),
        }
    }

    /// Nanoseconds on the breaker's clock, never zero.
    pub(crate) fn at_ns(&self, now: Instant) -> u64 {
        u64::try_from(now.duration_since(self.start).as_nanos()).unwrap_or(u64::MAX).max(1)
    }

    /// The connection whose turn it is; any other while that is being made. Waits for one until the deadline.
    pub(crate) async fn live(self: &Arc<Pool>, deadline: Instant) -> Result<Arc<LiveConnection>, Error> {
        let own = self.turn();
        if let Some(live) = self.links[own].live.load_full() {
            return Ok(live);
        }
        let begun = Instant::now();
        loop {
            // Who is woken was here before the connection was.
            let filled = self.filled.notified();
            self.keep(own);
            if let Some(live) = self.any_live() {
                return Ok(live);
            }
            if deadline::wait_until(deadline, filled).await.is_none() {
                self.had_no_answer(begun);
                // Nothing was asked, and that a user may not log in has a class of its own.
                let why = self.last_error().filter(|trouble| !trouble.kind.may_have_been_applied());
                let none = || Error::new(ErrorKind::NotSent, "no connection before the deadline");
                return Err(why.unwrap_or_else(none));
            }
        }
    }

    /// One of this thread's two places, in turn: while the server decides what came by one, the thread fills the other.
    fn turn(&self) -> usize {
        let first = 2 * thread() % self.links.len();
        (first + self.links[first].asked.fetch_add(1, Ordering::Relaxed) % 2) % self.links.len()
    }

    fn any_live(&self) -> Option<Arc<LiveConnection>> {
        self.links.iter().find_map(|link| link.live.load_full())
    }

    pub(crate) fn is_live(&self) -> bool {
        self.links.iter().any(|link| link.live.load().is_some())
    }

    /// What that says of the server: nothing, unless the request had the time that requests have here.
    pub(crate) fn had_no_answer(&self, since: Instant) {
        let now = Instant::now();
        if now.duration_since(since) < self.usual_wait {
            return self.breaker.inconclusive();
        }
        self.tell_if(self.breaker.failed(self.at_ns(now)));
        if self.breaker.circuit() == Circuit::Closed {
            return;
        }
        if self.trouble.load().is_none() {
            self.trouble.store(Some(Arc::new(Error::new(ErrorKind::Timeout, "no answer before the deadline"))));
        }
        // An answer on another connection may have closed it meanwhile.
        if self.breaker.circuit() == Circuit::Closed {
            self.trouble.store(None);
        }
    }

    /// By its own word the server serves nobody.
    pub(crate) fn is_down(&self, why: &Error) {
        self.trouble.store(Some(Arc::new(why.clone())));
        self.open();
    }

    fn open(&self) {
        self.tell_if(self.breaker.open(self.at_ns(Instant::now())));
    }

    /// Wakes whoever looks after the store.
    fn tell_if(&self, has_opened: bool) {
        if has_opened {
            self.endpoint.connector.circuit_opened.notify_one();
        }
    }

    /// The server has answered.
    pub(crate) fn answered(&self) {
        if self.breaker.succeeded() {
            self.trouble.store(None);
        }
    }

    /// Waits for the connections that threads of this runtime will ask for; one is enough when the deadline comes.
    pub(crate) async fn wait_connected(self: &Arc<Pool>, mut deadline: Instant) -> Result<(), Error> {
        while Handle::current().runtime_flavor() != RuntimeFlavor::CurrentThread {
            let filled = self.filled.notified();
            (0..self.links.len()).for_each(|place| self.keep(place));
            if self.links.iter().all(|link| link.live.load().is_some()) {
                break;
            }
            if timeout_at(deadline, filled).await.is_err() {
                deadline = Instant::now();
                break;
            }
        }
        self.live(deadline).await.map(drop)
    }

    /// Has a task keep that connection, unless there is one: the first caller's runtime runs it, and if that ends, then
    /// that of the first caller after.
    fn keep(self: &Arc<Pool>, place: usize) {
        let link = &self.links[place];
        if link.is_kept.load(Ordering::Relaxed) || link.is_kept.swap(true, Ordering::AcqRel) {
            return;
        }
        let keeper = Keeper { links: Arc::clone(self), place };
        let task = Handle::current().spawn(keeper.run());
        *link.keeper.lock().unwrap_or_else(PoisonError::into_inner) = Some(task.abort_handle());
    }

    /// Why the server does not serve, if so: the last attempt to connect failed, or the breaker is open.
    pub(crate) fn last_error(&self) -> Option<Error> {
        self.trouble.load().as_deref().cloned()
    }

    /// Where the server was found last.
    pub(crate) fn found(&self) -> Option<ConnectionAddr> {
        self.found.borrow().clone()
    }

    /// Ends all connections for good.
    pub(crate) fn end(&self) {
        for link in &self.links {
            if let Some(keeper) = link.keeper.lock().unwrap_or_else(PoisonError::into_inner).take() {
                keeper.abort();
            }
        }
    }
}

/// A link that is being kept; not any more, once this is dropped.
struct Keeper {
    links: Arc<Pool>,
    place: usize,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.link().live.store(None);
        self.link().is_kept.store(false, Ordering::Release);
        // One of those who wait has to begin anew.
        self.links.filled.notify_waiters();
    }
}

impl Keeper {
    fn link(&self) -> &PoolEntry {
        &self.links.links[self.place]
    }

    async fn run(self) {
        let links = &self.links;
        let mut pause = FIRST_PAUSE;
        loop {
            let connected = timeout(links.connect_timeout, links.endpoint.connect()).await;
            let late = || Error::new(ErrorKind::Timeout, "not connected in time");
            match connected.unwrap_or_else(|_| Err(late())) {
                Ok(connected) => {
                    let since = Instant::now();
                    self.use_up(connected).await;
                    // A connection that lasted is made again at once.
                    if since.elapsed() >= links.longest_pause {
                        pause = FIRST_PAUSE;
                        continue;
                    }
                }
                Err(failed) => {
                    links.trouble.store(Some(Arc::new(failed)));
                    // Others may serve all the same.
                    if !links.is_live() {
                        links.open();
                    }
                }
            }
            sleep(links.jitter.of(pause)).await;
            pause = (pause * 2).min(links.longest_pause);
        }
    }

    /// Lends the connection until it ends, or is no good any more.
    async fn use_up(&self, OpenConnection { connection, driver, address }: OpenConnection) {
        let links = &self.links;
        let has_all_slots = AtomicBool::new(links.endpoint.connector.has_all_slots);
        let (suspected, given_up) = (Notify::new(), Notify::new());
        let live = Arc::new(LiveConnection { connection, address, has_all_slots, suspected, given_up });
        links.found.send_replace(Some(live.address.clone()));
        let mut found = links.found.subscribe();
        self.link().live.store(Some(Arc::clone(&live)));
        links.breaker.succeeded();
        links.trouble.store(None);
        links.filled.notify_waiters();
        tokio::select! {
            () = driver => {}
            () = live.given_up.notified() => {}
            () = live.silence(links.connect_timeout) => {}
            _ = found.wait_for(|at| at.as_ref() != Some(&live.address)) => {}
        }
        self.link().live.store(None);
    }
}

/// This thread's number among those that have asked for one.
fn thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static THREAD: Cell<Option<usize>> = const { Cell::new(None) };
    }
    THREAD.with(|thread| {
        let number = thread.get().unwrap_or_else(|| NEXT.fetch_add(1, Ordering::Relaxed));
        thread.set(Some(number));
        number
    })
}
