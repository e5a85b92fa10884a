//! The connections to one node. Each connection is made again whenever it ends.
//!
//! A request has no time to connect, so the pool keeps connections that are ready.
//!
//! A pool has a fixed number of entries. An entry goes through these states:
//!
//! | state | task | connection | how it ends |
//! |---|---|---|---|
//! | unused | no | no | a thread needs the entry, and starts its task |
//! | connecting | yes | no | the attempt succeeds, fails, or reaches `connect_timeout` |
//! | live | yes | yes | the connection ends, is silent or abandoned, or the node is found at another address |
//! | pausing | yes | no | the pause ends: 10 ms at first, twice as long each time, `probe_every` at most |
//!
//! Each pause is shortened at random by up to a half, so that the processes that share a node do not reconnect all at
//! once. If a connection has lasted for `probe_every` or longer, it is made again without a pause.

use std::cell::Cell;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redis::ConnectionAddr;
use spillgate_core::{Circuit, StoreErrorKind};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::connect::connector::OpenConnection;
use crate::connect::endpoint::Endpoint;
use crate::connection::Connection;
use crate::deadline;
use crate::error::Error;
use crate::node::breaker::Breaker;
use crate::node::jitter::Jitter;
use crate::settings::Settings;

/// How often a connection is tested by a PING if no request asks for an earlier test. So a dead connection without
/// traffic is found within `PING_EVERY` + [`connect_timeout`](Settings::connect_timeout).
const PING_EVERY: Duration = Duration::from_secs(5);
/// The first pause between two attempts to connect. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// A connection that is logged in.
pub(crate) struct LiveConnection {
    /// Sends commands. Many requests use this connection at the same time.
    pub(crate) connection: Connection,
    /// The node's address. An error that redirects to an empty host means this host.
    pub(crate) address: ConnectionAddr,
    /// Whether one call can contain several keys.
    has_all_slots: AtomicBool,
    /// Notified when a request on this connection had no reply. The connection is then tested.
    suspected: Notify,
    /// Notified when the node has become a replica. The connection then ends, and the next attempt may find the new
    /// primary.
    abandoned: Notify,
}

impl LiveConnection {
    /// Asks for a test of the connection. A request without a reply does not prove that the connection is dead, because
    /// the request may have had little time.
    pub(crate) fn suspect(&self) {
        self.suspected.notify_one();
    }

    /// Returns whether takes of several requests can share one call. This is false after
    /// [`lacks_slots`](LiveConnection::lacks_slots).
    pub(crate) fn has_all_slots(&self) -> bool {
        self.has_all_slots.load(Ordering::Relaxed)
    }

    /// Reports that Redis has replied CROSSSLOT. So the server is a node of a cluster, or a proxy that sends commands
    /// to several nodes. Until this connection is made again, each take is sent in a call of its own.
    pub(crate) fn lacks_slots(&self) {
        self.has_all_slots.store(false, Ordering::Relaxed);
    }

    /// Ends this connection. The commands on it fail as [`Disconnected`](StoreErrorKind::Disconnected), and the pool
    /// connects again.
    pub(crate) fn abandon(&self) {
        self.abandoned.notify_one();
    }

    /// Waits until the node no longer replies. Idle connections are tested too, so that a dead connection is found
    /// before a request uses it.
    ///
    /// The reply to a PING may take at most `time`. Replies come in order, so this reply shows that all earlier replies
    /// have come.
    async fn wait_for_silence(&self, time: Duration) {
        loop {
            let _ = timeout(PING_EVERY, self.suspected.notified()).await;
            match timeout(time, self.connection.send(&redis::cmd("PING"))).await {
                Ok(Ok(_)) => {}
                // A user who may not call PING gets an error, which is a reply too.
                Ok(Err(error)) if error.clone().into_server_errors().is_some() => {}
                // The PING got no reply, or it was not sent because the connection already waits for too many replies.
                _ => return,
            }
        }
    }
}

/// One connection of the pool, and the task that makes it again.
#[derive(Default)]
struct PoolEntry {
    /// The connection, while there is one. Requests read it without a lock.
    live: ArcSwapOption<LiveConnection>,
    /// Counts the requests of the threads whose first connection is this one. Every second one of these requests uses
    /// the second connection of its thread.
    turns: AtomicUsize,
    /// Whether a task makes the connection, and makes it again whenever it ends.
    has_task: AtomicBool,
    /// Ends the task when the pool ends.
    keeper: Mutex<Option<AbortHandle>>,
}

/// The connections to one node. Each thread alternates between two of them, and uses another one if these are not
/// ready. A thread that [stands aside](stand_aside) has the last connection.
pub(crate) struct Pool {
    /// The node, and how it is found.
    pub(crate) endpoint: Endpoint,
    /// Opens after missing replies, or if the node says that it is down. Also opens after a failed attempt to connect,
    /// unless there is another connection. Any other reply, or a new connection, closes it.
    pub(crate) breaker: Breaker,
    /// [`Settings::connections`] entries, and one for all threads that stand aside.
    entries: Box<[PoolEntry]>,
    /// Wakes the requests that wait for a connection.
    connected: Notify,
    /// Shortens the pauses between attempts to connect.
    jitter: Jitter,
    /// If a request has waited this long without a reply, the breaker counts a failure. The value is 7/8 of the timeout
    /// and not the whole timeout, because some time passes before a request is sent.
    usual_wait: Duration,
    /// The longest time that an attempt to connect, or the reply to a PING, can take.
    connect_timeout: Duration,
    /// The longest pause between two attempts to connect: [`Settings::probe_every`].
    longest_pause: Duration,
    /// The zero of the breaker's clock, which counts nanoseconds.
    start: Instant,
    /// See [`Pool::last_error`].
    last_error: ArcSwapOption<Error>,
    /// Where the node was found last. Connections to other addresses end.
    found: watch::Sender<Option<ConnectionAddr>>,
}

impl Pool {
    /// Returns a pool without connections. The first request makes the first connection.
    ///
    /// `settings` must be within bounds, so that there is at least one entry beside the last one.
    pub(crate) fn new(endpoint: Endpoint, settings: &Settings) -> Pool {
        Pool {
            endpoint,
            breaker: Breaker::new(settings.max_failures, settings.probe_every, Jitter::new()),
            entries: (0..=settings.connections).map(|_| PoolEntry::default()).collect(),
            connected: Notify::new(),
            jitter: Jitter::new(),
            usual_wait: settings.timeout - settings.timeout / 8,
            connect_timeout: settings.connect_timeout,
            longest_pause: settings.probe_every,
            start: Instant::now(),
            last_error: ArcSwapOption::empty(),
            found: watch::Sender::new(None),
        }
    }

    /// Returns the time `now` in nanoseconds on the clock of the breaker. It is never zero.
    pub(crate) fn at_ns(&self, now: Instant) -> u64 {
        u64::try_from(now.duration_since(self.start).as_nanos()).unwrap_or(u64::MAX).max(1)
    }

    /// Returns the connection whose turn it is, or any other one if that connection is not ready. If no connection is
    /// ready, the function waits for one until the deadline.
    ///
    /// # Errors
    /// Nothing was sent, so [`may_have_been_applied`](StoreErrorKind::may_have_been_applied) is false for the kind. The
    /// kind is [`NotSent`](StoreErrorKind::NotSent), or that of the last error, such as
    /// [`NoPermission`](StoreErrorKind::NoPermission).
    pub(crate) async fn live(self: &Arc<Pool>, deadline: Instant) -> Result<Arc<LiveConnection>, Error> {
        let own = self.turn();
        if let Some(live) = self.entries[own].live.load_full() {
            return Ok(live);
        }
        let begun = Instant::now();
        loop {
            // Register for the notification before checking, so that a connection made in between cannot be missed.
            let connected = self.connected.notified();
            self.keep(own);
            if let Some(live) = self.any_live() {
                return Ok(live);
            }
            if deadline::wait_until(deadline, pin!(connected)).await.is_none() {
                self.no_reply(begun);
                // The last error, for example a failed login, tells more than `NotSent`. But the request was not sent,
                // so an error that means "may have been applied" must not be returned.
                let why = self.last_error().filter(|last_error| !last_error.kind.may_have_been_applied());
                let none = || Error::new(StoreErrorKind::NotSent, "no connection before the deadline");
                return Err(why.unwrap_or_else(none));
            }
        }
    }

    /// Returns the position of the connection to use, which alternates between the two connections of this thread.
    /// While Redis decides the requests on one connection, the thread adds requests to the other connection.
    ///
    /// With four connections, thread 0 uses entries 0 and 1, thread 1 uses 2 and 3, and thread 2 uses 0 and 1 like thread
    /// 0. If there is only one connection, all threads share it.
    fn turn(&self) -> usize {
        let (thread, connections) = (thread(), self.connections());
        if thread == ASIDE {
            return connections;
        }
        let first = 2 * thread % connections;
        (first + self.entries[first].turns.fetch_add(1, Ordering::Relaxed) % 2) % connections
    }

    /// Returns the number of connections for threads that do not stand aside.
    fn connections(&self) -> usize {
        self.entries.len() - 1
    }

    /// Returns the first connection that is ready, for a thread whose own connection is not ready.
    pub(crate) fn any_live(&self) -> Option<Arc<LiveConnection>> {
        self.entries.iter().find_map(|entry| entry.live.load_full())
    }

    pub(crate) fn is_live(&self) -> bool {
        self.entries.iter().any(|entry| entry.live.load().is_some())
    }

    /// Reports that no reply came. If the request waited for about the whole timeout, the breaker counts a failure. If
    /// the request waited for a shorter time, the missing reply says nothing about the node.
    ///
    /// `since` is when the request was sent, or when it began to wait for a connection.
    pub(crate) fn no_reply(&self, since: Instant) {
        let now = Instant::now();
        if now.duration_since(since) < self.usual_wait {
            return self.breaker.inconclusive();
        }
        self.notify_if_opened(self.breaker.failed(self.at_ns(now)));
    }

    /// Reports that the node itself says that it is down. The breaker opens at once, even after fewer failures than
    /// [`max_failures`](Settings::max_failures).
    pub(crate) fn is_down(&self, why: &Error) {
        self.last_error.store(Some(Arc::new(why.clone())));
        self.open();
    }

    fn open(&self) {
        self.notify_if_opened(self.breaker.open(self.at_ns(Instant::now())));
    }

    /// If the breaker has just opened, wakes the task that watches the store.
    fn notify_if_opened(&self, has_opened: bool) {
        if has_opened {
            self.endpoint.connector.circuit_opened.notify_one();
        }
    }

    /// Reports that the node has replied. If the breaker was open, it closes, and the last error is removed.
    pub(crate) fn replied(&self) {
        if self.breaker.succeeded() {
            self.last_error.store(None);
        }
    }

    /// Waits until the deadline for all connections of the pool. At the deadline, one connection is enough.
    ///
    /// A runtime with one thread needs only one connection to begin, so it does not wait for the others.
    pub(crate) async fn wait_connected(self: &Arc<Pool>, mut deadline: Instant) -> Result<(), Error> {
        while Handle::current().runtime_flavor() != RuntimeFlavor::CurrentThread {
            let connected = self.connected.notified();
            (0..self.connections()).for_each(|position| self.keep(position));
            if self.entries[..self.connections()].iter().all(|entry| entry.live.load().is_some()) {
                break;
            }
            if timeout_at(deadline, connected).await.is_err() {
                deadline = Instant::now();
                break;
            }
        }
        self.live(deadline).await.map(drop)
    }

    /// Starts the [`Keeper`] of this entry, unless it runs already. The keeper runs on the runtime of the caller that
    /// starts it. When that runtime ends, the next caller starts the keeper again.
    fn keep(self: &Arc<Pool>, position: usize) {
        let entry = &self.entries[position];
        if entry.has_task.load(Ordering::Relaxed) || entry.has_task.swap(true, Ordering::AcqRel) {
            return;
        }
        let keeper = Keeper { pool: Arc::clone(self), position };
        let task = Handle::current().spawn(keeper.run());
        *entry.keeper.lock().unwrap_or_else(PoisonError::into_inner) = Some(task.abort_handle());
    }

    /// Returns the error of the last attempt to connect, or the error that opened the circuit. `None` if there was no
    /// such error, or if the store has connected to the node or closed the circuit after it.
    pub(crate) fn last_error(&self) -> Option<Error> {
        // Each other error is stored before it opens the circuit.
        let late = || self.endpoint.named(Error::new(StoreErrorKind::Timeout, "no answer before the deadline"));
        let is_open = self.breaker.circuit() != Circuit::Closed;
        self.last_error.load().as_deref().cloned().or_else(|| is_open.then(late))
    }

    pub(crate) fn found(&self) -> Option<ConnectionAddr> {
        self.found.borrow().clone()
    }

    /// Ends all connections for good.
    pub(crate) fn end(&self) {
        for entry in &self.entries {
            if let Some(keeper) = entry.keeper.lock().unwrap_or_else(PoisonError::into_inner).take() {
                keeper.abort();
            }
        }
    }
}

/// The task of one connection: makes the connection, and makes it again whenever it ends.
struct Keeper {
    pool: Arc<Pool>,
    position: usize,
}

/// Runs when the task ends, because its pool or its runtime has ended.
impl Drop for Keeper {
    fn drop(&mut self) {
        self.entry().live.store(None);
        self.entry().has_task.store(false, Ordering::Release);
        // One of the requests that wait has to start a new task.
        self.pool.connected.notify_waiters();
    }
}

impl Keeper {
    fn entry(&self) -> &PoolEntry {
        &self.pool.entries[self.position]
    }

    /// Connects, serves the connection until it ends, and begins again. Only an abort of the task ends this loop.
    async fn run(self) {
        let pool = &self.pool;
        let mut pause = FIRST_PAUSE;
        loop {
            let connected = timeout(pool.connect_timeout, pool.endpoint.connect()).await;
            let late = || pool.endpoint.named(Error::new(StoreErrorKind::Timeout, "not connected in time"));
            match connected.unwrap_or_else(|_| Err(late())) {
                Ok(connected) => {
                    let since = Instant::now();
                    self.serve(connected).await;
                    // A connection that lasted long is made again at once.
                    if since.elapsed() >= pool.longest_pause {
                        pause = FIRST_PAUSE;
                        continue;
                    }
                }
                Err(failed) => {
                    pool.last_error.store(Some(Arc::new(failed)));
                    // While there is another connection, a failed attempt does not open the breaker.
                    if !pool.is_live() {
                        pool.open();
                    }
                }
            }
            sleep(pool.jitter.of(pause)).await;
            pause = (pause * 2).min(pool.longest_pause);
        }
    }

    /// Makes the connection available until it ends or is no longer usable.
    ///
    /// The function returns in four cases: the driver ends, the connection is abandoned, a PING gets no reply, or
    /// another entry has found the node at another address.
    async fn serve(&self, OpenConnection { connection, driver, address }: OpenConnection) {
        let pool = &self.pool;
        let has_all_slots = AtomicBool::new(pool.endpoint.connector.has_all_slots);
        connection.count_calls(&pool.endpoint.connector.calls);
        let (suspected, abandoned) = (Notify::new(), Notify::new());
        let live = Arc::new(LiveConnection { connection, address, has_all_slots, suspected, abandoned });
        pool.found.send_replace(Some(live.address.clone()));
        let mut found = pool.found.subscribe();
        self.entry().live.store(Some(Arc::clone(&live)));
        pool.breaker.succeeded();
        pool.last_error.store(None);
        pool.connected.notify_waiters();
        tokio::select! {
            () = driver => {}
            () = live.abandoned.notified() => {}
            () = live.wait_for_silence(pool.connect_timeout) => {}
            _ = found.wait_for(|at| at.as_ref() != Some(&live.address)) => {}
        }
        self.entry().live.store(None);
    }
}

/// The number of all threads that stand aside.
const ASIDE: usize = usize::MAX;

thread_local! {
    static THREAD: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Makes this thread use one connection to each node that only such threads use, in place of two that it may share with
/// other threads.
///
/// A connection lives on the runtime of the thread that uses it first. If this is the runtime of another thread, each
/// request and each reply wakes that thread, and Redis gets more and smaller calls. So a program that decides on several
/// threads with runtimes of their own calls this on the threads that seldom ask the store, such as one that
/// [probes](crate::RedisStore::probe) it.
pub fn stand_aside() {
    THREAD.set(Some(ASIDE));
}

/// Returns the number of this thread. Threads are numbered in the order in which they first call this function.
fn thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    THREAD.with(|thread| {
        let number = thread.get().unwrap_or_else(|| NEXT.fetch_add(1, Ordering::Relaxed));
        thread.set(Some(number));
        number
    })
}
