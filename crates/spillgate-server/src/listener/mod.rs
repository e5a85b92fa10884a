//! Accepts connections and serves them: gRPC, HTTP and admin, over TCP with or without TLS, and over Unix sockets.
//!
//! One thread accepts sockets. Each socket goes to the worker with the fewest connections and stays there. A worker is
//! a thread with a runtime of its own, so a connection never moves to another thread. This thread answers all calls
//! that have arrived on the connection, and then writes together all answers that are ready. The admin and the health
//! listener have a worker of their own, so that their requests never delay decisions.

mod activity;
mod connection;
mod context;
mod grpc;
mod held_bytes;
mod http;
mod http2;
mod in_flight;
mod io;
mod listen;
mod pool;
mod runner;
mod serve;
mod sizes;
mod socket;
mod tls;
mod turn;
mod unread;
mod worker;

use std::io as std_io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc as queue, watch};

use context::{Context, Pools};
pub use listen::{Limits, Listen};
pub use serve::App;
pub use sizes::worst_case;
use socket::{Acceptor, Bound, Socket, UnixFile};
use spillgate_redis::stand_aside;
use spillgate_service::Peer;
use spillgate_service::metrics::{Closed, Metrics};
pub(crate) use tls::Validity;
pub use tls::{ClientPattern, Tls};
use tls::{InProgress, Secured};

/// At most this part of a listener's connections are in their handshake.
const HANDSHAKES_PART: usize = 4;

/// What a listener serves.
#[derive(Debug)]
struct Served {
    app: App,
    tls: Option<Arc<Secured>>,
}

/// A server whose listeners are bound, but which does not serve yet.
#[derive(Debug)]
pub struct Server {
    limits: Limits,
    workers: usize,
    metrics: Arc<Metrics>,
    bound: Vec<(Bound, Served)>,
}

impl Server {
    /// Returns a server with these `limits`, on this many `workers` (threads). `None` means one worker for each core.
    #[must_use]
    pub fn new(limits: Limits, workers: Option<usize>, metrics: Arc<Metrics>) -> Server {
        let cores = || thread::available_parallelism().map_or(1, usize::from);
        Server { limits, workers: workers.unwrap_or_else(cores).max(1), metrics, bound: Vec::new() }
    }

    /// Binds the address `listen`, to serve `app` there. Returns the bound address. If the port in `listen` is 0, the
    /// returned address has the port that the system chose.
    ///
    /// # Errors
    /// The address is in use, does not belong to this machine, or is not permitted.
    pub fn bind(&mut self, listen: &Listen, app: App) -> std_io::Result<Listen> {
        self.bind_served(listen, Served { app, tls: None })
    }

    /// Binds the address `listen` as [`bind`](Server::bind) does, and serves `app` there with TLS. If `wants_certificates` is
    /// true, clients have to show a certificate that `tls` accepts. A Unix socket has no TLS.
    ///
    /// # Errors
    /// The errors of [`bind`](Server::bind).
    pub fn bind_tls(
        &mut self,
        listen: &Listen,
        app: App,
        tls: &Arc<Tls>,
        wants_certificates: bool,
    ) -> std_io::Result<Listen> {
        // The other connections are open, or a flood of clients that never end their handshake would shut out everybody.
        let handshakes = self.limits.connections_of(&app) / HANDSHAKES_PART;
        let tls = Secured::new(Arc::clone(tls), &app, wants_certificates, handshakes);
        self.bind_served(listen, Served { app, tls: Some(Arc::new(tls)) })
    }

    fn bind_served(&mut self, listen: &Listen, served: Served) -> std_io::Result<Listen> {
        let bound = Bound::new(listen)?;
        let address = bound.address()?;
        self.bound.push((bound, served));
        Ok(address)
    }

    /// Serves all bound listeners, on new threads, until [`Handle::drain`] is called.
    ///
    /// # Errors
    /// The system refuses to create threads or to open file descriptors.
    pub fn start(self) -> std_io::Result<Running> {
        let (exits, exited) = mpsc::channel();
        let phase = watch::Sender::new(Phase::Serving);
        let pools = Pools::new(&self.limits, &self.metrics);
        let mut workers = Vec::with_capacity(self.workers);
        let start_worker = |name: String, begin: fn()| -> std_io::Result<Worker> {
            let (sender, receiver) = queue::unbounded_channel();
            let (runtime, context) = (runtime()?, Context::new(self.limits, &self.metrics, &pools, &phase));
            spawn(name, exits.clone(), move || {
                begin();
                worker::run(runtime, receiver, &context)
            })?;
            Ok(Worker { sender, connections: Arc::default() })
        };
        for index in 0..self.workers {
            workers.push(start_worker(format!("worker-{index}"), || {})?);
        }
        let admin = if self.bound.iter().any(|(_, served)| served.app.is_for_operators()) {
            Some(start_worker("admin".to_owned(), stand_aside)?)
        } else {
            None
        };
        let threads = workers.len() + usize::from(admin.is_some()) + 1;
        let files = self.bound.iter().filter_map(|(bound, _)| bound.file()).collect();
        let shared = Shared { workers, admin, limits: self.limits, metrics: self.metrics };
        let (runtime, phases) = (runtime()?, phase.subscribe());
        let acceptors = {
            let _inside = runtime.enter();
            let acceptors = self.bound.into_iter().map(|(bound, served)| Ok((Acceptor::new(bound)?, served)));
            acceptors.collect::<std_io::Result<Vec<_>>>()?
        };
        spawn("acceptor".into(), exits, move || socket::accept_all(&runtime, acceptors, shared, &phases))?;
        let handle = Handle { phase: Arc::new(phase) };
        Ok(Running { handle, exited, threads, _files: files })
    }
}

/// How far a server is on its way to its end. It never goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// The server serves.
    Serving,
    /// The server has asked the clients of its open connections to end them, and still accepts new ones.
    Leaving,
    /// The server accepts no more connections, and ends the open ones.
    Draining,
}

/// Ends a running server.
#[derive(Clone, Debug)]
pub struct Handle {
    phase: Arc<watch::Sender<Phase>>,
}

impl Handle {
    /// Asks the clients of all open connections to end them, and still accepts new ones, until [`drain`](Handle::drain).
    ///
    /// A proxy learns late that a server ends. Until then it connects again, and its requests must be answered. So a
    /// connection that begins from now on is served as always.
    pub fn leave(&self) {
        self.go_on_to(Phase::Leaving);
    }

    /// Stops accepting connections. Each open connection ends as soon as its requests in flight are answered. A
    /// connection that is still open after `limits.drain` is cut.
    ///
    /// Set the readiness to draining first, so that health checks send new clients to other servers.
    pub fn drain(&self) {
        self.go_on_to(Phase::Draining);
    }

    fn go_on_to(&self, phase: Phase) {
        self.phase.send_if_modified(|now| {
            let is_later = phase > *now;
            *now = phase.max(*now);
            is_later
        });
    }
}

/// A running server.
#[derive(Debug)]
pub struct Running {
    handle: Handle,
    exited: mpsc::Receiver<Exit>,
    threads: usize,
    /// The files of Unix sockets, removed when the server ends.
    _files: Vec<UnixFile>,
}

impl Running {
    /// Returns the handle that ends this server.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Blocks until the server has drained.
    ///
    /// # Errors
    /// A thread died. The error is returned at once, because a server without this thread would look healthy but not
    /// serve.
    pub fn wait(self) -> Result<Drained, ServeError> {
        let mut drained = Drained { connections_cut: 0 };
        for _ in 0..self.threads {
            match self.exited.recv() {
                Ok(Exit { outcome: Some(cut), .. }) => drained.connections_cut += cut,
                Ok(Exit { thread, outcome: None }) => return Err(ServeError::ThreadDied { thread }),
                Err(_) => break,
            }
        }
        Ok(drained)
    }
}

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Connections that were still open when the time for the drain was over.
    pub connections_cut: usize,
}

/// Why a server ended without a drain.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A thread of the server panicked.
    #[error("the thread {thread} died; see the panic above")]
    ThreadDied {
        /// The name of the thread.
        thread: String,
    },
}

/// A worker, as the acceptor thread sees it.
struct Worker {
    sender: queue::UnboundedSender<Accepted>,
    connections: Arc<AtomicUsize>,
}

/// The values that the acceptor thread needs.
struct Shared {
    workers: Vec<Worker>,
    /// The worker of the admin and the health listener. Requests of operators can take long. Because they have this
    /// worker, no other client has to wait for them.
    admin: Option<Worker>,
    /// The bounds on the connections of each listener. Each listener has its own number of connections, so a flood on
    /// one listener cannot shut out the clients of another listener.
    limits: Limits,
    metrics: Arc<Metrics>,
}

impl Shared {
    /// Gives a socket to the worker with the fewest connections. `open` is the number of connections of the listener.
    /// If the listener already has the maximum number of connections, the socket is closed at once.
    fn dispatch(&self, socket: Socket, peer: Peer, Served { app, tls }: &Served, open: &Arc<AtomicUsize>) {
        let worker = if app.is_for_operators() {
            self.admin.as_ref()
        } else {
            self.workers.iter().min_by_key(|worker| worker.connections.load(Ordering::Relaxed))
        };
        let Some(worker) = worker else { return };
        // Handshakes have a bound of their own, so clients that never end them cannot fill the listener.
        let begun = tls.as_ref().map(|secured| secured.begin(peer, &self.metrics));
        if matches!(begun, Some(None)) {
            self.metrics.closed(Closed::Bound).inc();
            return;
        }
        // A handshake that has made way for this one has not given its place back yet.
        let closing = tls.as_ref().map_or(0, |secured| secured.closing());
        let tls = tls.clone().zip(begun.flatten());
        if open.load(Ordering::Relaxed) >= self.limits.connections_of(app) + closing {
            self.metrics.closed(Closed::Bound).inc();
            return;
        }
        let permit =
            Permit { counts: [Arc::clone(open), Arc::clone(&worker.connections)], metrics: Arc::clone(&self.metrics) };
        permit.count();
        // If the worker has died, the server ends, and the socket is closed.
        let _ = worker.sender.send(Accepted { socket, peer, app: app.clone(), tls, permit });
    }
}

/// A connection on its way to its worker.
struct Accepted {
    socket: Socket,
    peer: Peer,
    app: App,
    /// For a listener with TLS: its handshake, which is in progress.
    tls: Option<(Arc<Secured>, InProgress)>,
    permit: Permit,
}

/// Counts a connection for its listener and its worker, until this value is dropped.
struct Permit {
    /// The numbers of connections of the listener and of the worker.
    counts: [Arc<AtomicUsize>; 2],
    metrics: Arc<Metrics>,
}

impl Permit {
    fn count(&self) {
        for count in &self.counts {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.metrics.connections.inc();
        self.metrics.connections_accepted.inc();
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        for count in &self.counts {
            count.fetch_sub(1, Ordering::Relaxed);
        }
        self.metrics.connections.dec();
    }
}

/// How a thread ended. `outcome` is the number of connections that the thread had to cut, or `None` after a panic.
#[derive(Debug)]
struct Exit {
    thread: String,
    outcome: Option<usize>,
}

/// Reports that a thread has ended. The report is sent when this value is dropped, also after a panic.
struct Report {
    exits: mpsc::Sender<Exit>,
    exit: Exit,
}

impl Drop for Report {
    fn drop(&mut self) {
        let exit = Exit { thread: std::mem::take(&mut self.exit.thread), outcome: self.exit.outcome };
        // If the receiver is gone, the server has ended already.
        let _ = self.exits.send(exit);
    }
}

fn spawn(name: String, exits: mpsc::Sender<Exit>, work: impl FnOnce() -> usize + Send + 'static) -> std_io::Result<()> {
    let mut report = Report { exits, exit: Exit { thread: name.clone(), outcome: None } };
    thread::Builder::new().name(name).spawn(move || {
        // A closure captures only the fields that it uses. Because of this line, the closure uses and owns the whole
        // report. Therefore the report is dropped when the closure ends, also after a panic, and the drop sends it.
        let report = &mut report;
        report.exit.outcome = Some(work());
    })?;
    Ok(())
}

fn runtime() -> std_io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_panics_ends_the_server_with_its_name() {
        let (exits, exited) = mpsc::channel();
        spawn("worker-0".into(), exits.clone(), || panic!("this test wants a panic")).unwrap();
        let handle = Handle { phase: Arc::new(watch::Sender::new(Phase::Serving)) };
        // The server has a second thread, which never ends. `wait` must not wait for that thread.
        let running = Running { handle, exited, threads: 2, _files: Vec::new() };
        let ServeError::ThreadDied { thread } = running.wait().unwrap_err();
        assert_eq!(thread, "worker-0");
        drop(exits);
    }
}
