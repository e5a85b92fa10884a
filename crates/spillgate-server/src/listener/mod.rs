//! Where connections come from and who serves them.
//!
//! One thread accepts; each accepted socket goes to the worker with the fewest connections and
//! stays there. A worker is a thread with a runtime of its own: nothing of a connection ever
//! crosses to another core, and the answers that are there at once leave in one write. The admin
//! listener has one more such thread for itself.

mod connection;
mod grpc;
mod http;
mod http2;
mod io;
mod runner;
mod socket;
mod unread;
mod worker;

use std::io as std_io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc as queue, watch};

use crate::metrics::{Closed, Metrics};
use crate::protocol::grpc::Grpc;
use crate::protocol::http::HttpState;
use crate::service::Peer;
use crate::settings::{Limits, Listen};

use socket::{Acceptor, Bound, Socket, UnixFile};
use unread::Pool;

/// What a listener's connections speak.
#[derive(Clone, Debug)]
pub enum App {
    /// gRPC over HTTP/2 without TLS.
    Grpc(Grpc),
    /// Checks and proxies' sub-requests, over HTTP/1.1 or HTTP/2 without TLS.
    Http(HttpState),
    /// The same for operators. Requests carry `axum::extract::ConnectInfo<Peer>`.
    Admin(axum::Router),
}

/// Listeners that are bound, before anything is served.
#[derive(Debug)]
pub struct Server {
    limits: Limits,
    workers: usize,
    metrics: Arc<Metrics>,
    bound: Vec<(Bound, App)>,
}

impl Server {
    /// A server within `limits`, on `workers` threads: one for each core if `None`.
    #[must_use]
    pub fn new(limits: Limits, workers: Option<usize>, metrics: Arc<Metrics>) -> Server {
        let cores = || thread::available_parallelism().map_or(1, usize::from);
        Server { limits, workers: workers.unwrap_or_else(cores).max(1), metrics, bound: Vec::new() }
    }

    /// Binds `listen` to serve `app`; returns where it listens, with the port that was chosen for port 0.
    ///
    /// # Errors
    /// The address is taken, not ours, or not permitted.
    pub fn bind(&mut self, listen: &Listen, app: App) -> std_io::Result<Listen> {
        let bound = Bound::new(listen)?;
        let address = bound.address()?;
        self.bound.push((bound, app));
        Ok(address)
    }

    /// Serves all that is bound, on threads of its own, until it is told to [drain](Handle::drain).
    ///
    /// # Errors
    /// The system refuses threads or descriptors.
    pub fn start(self) -> std_io::Result<Running> {
        let (exits, exited) = mpsc::channel();
        let drain = watch::Sender::new(false);
        let pool = Arc::new(Pool::new(self.limits.unread));
        let mut workers = Vec::with_capacity(self.workers);
        let start_worker = |name: String| -> std_io::Result<Worker> {
            let (sender, receiver) = queue::unbounded_channel();
            let (runtime, context) = (runtime()?, worker::Context::new(self.limits, &self.metrics, &pool, &drain));
            spawn(name, exits.clone(), move || worker::run(&runtime, receiver, &context))?;
            Ok(Worker { sender, connections: Arc::default() })
        };
        for index in 0..self.workers {
            workers.push(start_worker(format!("worker-{index}"))?);
        }
        let admin = if self.bound.iter().any(|(_, app)| matches!(app, App::Admin(_))) {
            Some(start_worker("admin".to_owned())?)
        } else {
            None
        };
        let threads = workers.len() + usize::from(admin.is_some()) + 1;
        let files = self.bound.iter().filter_map(|(bound, _)| bound.file()).collect();
        let shared = Shared { workers, admin, bound: self.limits.connections, metrics: self.metrics };
        let (runtime, drained) = (runtime()?, drain.subscribe());
        let acceptors = {
            let _inside = runtime.enter();
            let acceptors = self.bound.into_iter().map(|(bound, app)| Ok((Acceptor::new(bound)?, app)));
            acceptors.collect::<std_io::Result<Vec<_>>>()?
        };
        spawn("acceptor".into(), exits, move || socket::accept_all(&runtime, acceptors, shared, &drained))?;
        let handle = Handle { drain: Arc::new(drain) };
        Ok(Running { handle, exited, threads, _files: files })
    }
}

/// Tells a running server to end.
#[derive(Clone, Debug)]
pub struct Handle {
    drain: Arc<watch::Sender<bool>>,
}

impl Handle {
    /// No connection is accepted any more, and each one that is open ends once its requests in
    /// flight are answered. What is still open after `limits.drain` is cut.
    ///
    /// Whoever answers health checks is to be told before.
    pub fn drain(&self) {
        self.drain.send_replace(true);
    }
}

/// A server at work.
#[derive(Debug)]
pub struct Running {
    handle: Handle,
    exited: mpsc::Receiver<Exit>,
    threads: usize,
    /// Removed when the server ends.
    _files: Vec<UnixFile>,
}

impl Running {
    /// What ends it.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Blocks until the server has drained.
    ///
    /// # Errors
    /// A thread died: at once, since a server without it would look healthy and serve nobody.
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
    /// Connections that were still busy when the time to drain was up.
    pub connections_cut: usize,
}

/// Why a server ended that was not told to.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A thread of the server panicked.
    #[error("the thread {thread} died; see the panic above")]
    ThreadDied {
        /// Its name.
        thread: String,
    },
}

/// One worker as the acceptor sees it.
struct Worker {
    sender: queue::UnboundedSender<Accepted>,
    connections: Arc<AtomicUsize>,
}

/// What the acceptor knows.
struct Shared {
    workers: Vec<Worker>,
    /// Serves operators alone: what they ask may take long, and no client has to wait for it.
    admin: Option<Worker>,
    /// The most connections of one listener: a flood at one cannot shut out the clients of another.
    bound: usize,
    metrics: Arc<Metrics>,
}

impl Shared {
    /// Hands a socket to the worker with the fewest connections; one too many is closed at once.
    /// `open` counts the connections of the listener.
    fn dispatch(&self, socket: Socket, peer: Peer, app: &App, open: &Arc<AtomicUsize>) {
        let worker = match app {
            App::Admin(_) => self.admin.as_ref(),
            App::Grpc(_) | App::Http(_) => {
                self.workers.iter().min_by_key(|worker| worker.connections.load(Ordering::Relaxed))
            }
        };
        let Some(worker) = worker else { return };
        if open.load(Ordering::Relaxed) >= self.bound {
            self.metrics.closed(Closed::Bound).inc();
            return;
        }
        let place =
            Place { counts: [Arc::clone(open), Arc::clone(&worker.connections)], metrics: Arc::clone(&self.metrics) };
        place.taken();
        // A worker that is gone ends the server; the socket closes with it.
        let _ = worker.sender.send(Accepted { socket, peer, app: app.clone(), place });
    }
}

/// A connection on its way to its worker.
struct Accepted {
    socket: Socket,
    peer: Peer,
    app: App,
    place: Place,
}

/// One of the places below the connection bound; given back when dropped.
struct Place {
    /// Of the listener and of the worker.
    counts: [Arc<AtomicUsize>; 2],
    metrics: Arc<Metrics>,
}

impl Place {
    fn taken(&self) {
        for count in &self.counts {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.metrics.connections.inc();
        self.metrics.connections_accepted.inc();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for count in &self.counts {
            count.fetch_sub(1, Ordering::Relaxed);
        }
        self.metrics.connections.dec();
    }
}

/// How a thread ended: with the connections it had to cut, or by a panic.
#[derive(Debug)]
struct Exit {
    thread: String,
    outcome: Option<usize>,
}

/// Reports the end of its thread, however it ends.
struct Report {
    exits: mpsc::Sender<Exit>,
    exit: Exit,
}

impl Drop for Report {
    fn drop(&mut self) {
        let exit = Exit { thread: std::mem::take(&mut self.exit.thread), outcome: self.exit.outcome };
        // Nobody waits any more: then nobody needs to know.
        let _ = self.exits.send(exit);
    }
}

fn spawn(name: String, exits: mpsc::Sender<Exit>, work: impl FnOnce() -> usize + Send + 'static) -> std_io::Result<()> {
    let mut report = Report { exits, exit: Exit { thread: name.clone(), outcome: None } };
    thread::Builder::new().name(name).spawn(move || {
        // All of the report comes along, so that it tells of a panic as well.
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
        spawn("worker-0".into(), exits.clone(), || panic!("as this test wants it")).unwrap();
        let handle = Handle { drain: Arc::new(watch::Sender::new(false)) };
        // The other thread never ends: nobody may wait for it.
        let running = Running { handle, exited, threads: 2, _files: Vec::new() };
        let ServeError::ThreadDied { thread } = running.wait().unwrap_err();
        assert_eq!(thread, "worker-0");
        drop(exits);
    }
}
