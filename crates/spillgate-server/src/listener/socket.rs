//! Binds and accepts sockets, over TCP and over Unix paths.
//!
//! The rest of the listener does not need to know which kind of socket it serves.

use std::fs;
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use socket2::{Domain, Protocol, Type};
use spillgate_service::Peer;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{Listen, Phase, Served, Shared};

/// The maximum number of new connections that the operating system queues for the server. The system also applies its
/// own limit (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;

/// How long to wait after an error that concerns more than one connection, such as the error that the process has no
/// free file descriptor. A retry at once would only use CPU time.
const BACKOFF: Duration = Duration::from_millis(50);

/// While connections cannot be accepted, the log says so at most once in this time. The metric counts each error.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// The permissions of a Unix socket: its owner and its group can connect.
const UNIX_MODE: u32 = 0o660;

/// A socket that listens.
#[derive(Debug)]
pub(super) enum Bound {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

/// A socket that was accepted.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// The file of a Unix socket. The file is removed when this value is dropped.
#[derive(Debug)]
pub(super) struct UnixFile(PathBuf);

impl Drop for UnixFile {
    fn drop(&mut self) {
        // If this fails, the file was probably removed already.
        let _ = fs::remove_file(&self.0);
    }
}

impl Bound {
    pub(super) fn new(listen: &Listen) -> io::Result<Bound> {
        match listen {
            Listen::Tcp(address) => {
                let socket = socket2::Socket::new(Domain::for_address(*address), Type::STREAM, Some(Protocol::TCP))?;
                socket.set_reuse_address(true)?;
                socket.set_nonblocking(true)?;
                socket.bind(&(*address).into())?;
                socket.listen(BACKLOG)?;
                Ok(Bound::Tcp(socket.into()))
            }
            Listen::Unix(path) => {
                remove_stale(path)?;
                let listener = UnixListener::bind(path)?;
                fs::set_permissions(path, fs::Permissions::from_mode(UNIX_MODE))?;
                listener.set_nonblocking(true)?;
                Ok(Bound::Unix(listener, path.clone()))
            }
        }
    }

    pub(super) fn address(&self) -> io::Result<Listen> {
        match self {
            Bound::Tcp(listener) => Ok(Listen::Tcp(listener.local_addr()?)),
            Bound::Unix(_, path) => Ok(Listen::Unix(path.clone())),
        }
    }

    pub(super) fn file(&self) -> Option<UnixFile> {
        match self {
            Bound::Tcp(_) => None,
            Bound::Unix(_, path) => Some(UnixFile(path.clone())),
        }
    }
}

/// Removes the socket file that a dead server left behind. Fails if a server listens on the file, or if the file is not
/// a socket.
fn remove_stale(path: &Path) -> io::Result<()> {
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !metadata.file_type().is_socket() {
        return Err(io::Error::new(ErrorKind::AlreadyExists, "this path has a file that is not a socket"));
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(io::Error::new(ErrorKind::AddrInUse, "another server listens on this path")),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
    }
}

/// Accepts on all listeners until the server drains.
pub(super) fn accept_all(
    runtime: &Runtime,
    acceptors: Vec<(Acceptor, Served)>,
    shared: Shared,
    phase: &watch::Receiver<Phase>,
) -> usize {
    let shared = Arc::new(shared);
    runtime.block_on(async {
        let mut loops = JoinSet::new();
        for (acceptor, served) in acceptors {
            loops.spawn(accept_loop(acceptor, served, Arc::clone(&shared), phase.clone()));
        }
        while let Some(ended) = loops.join_next().await {
            if let Err(error) = ended
                && error.is_panic()
            {
                panic::resume_unwind(error.into_panic());
            }
        }
    });
    0
}

async fn accept_loop(acceptor: Acceptor, served: Served, shared: Arc<Shared>, mut phase: watch::Receiver<Phase>) {
    let (open, mut warn_at) = (Arc::default(), None);
    loop {
        let accepted = tokio::select! {
            biased;
            _ = phase.wait_for(|phase| *phase == Phase::Draining) => break,
            accepted = poll_fn(|cx| acceptor.poll_accept(cx)) => accepted,
        };
        match accepted {
            Ok((socket, peer)) => shared.dispatch(socket, peer, &served, &open),
            Err(error) if is_of_connection(&error) => {}
            Err(error) => {
                shared.metrics.accept_errors.inc();
                let now = Instant::now();
                if warn_at.is_none_or(|at| now >= at) {
                    warn_at = Some(now + WARN_EVERY);
                    tracing::warn!(%error, "cannot accept connections; this is logged at most once a minute");
                }
                tokio::time::sleep(BACKOFF).await;
            }
        }
    }
    // The operating system can have accepted some connections already. They are served too, because closing the
    // listener would reset them. The runtime learns of new connections only when it polls its sockets. `yield_now`
    // makes the runtime poll its sockets once more.
    tokio::task::yield_now().await;
    let mut cx = Context::from_waker(Waker::noop());
    while let Poll::Ready(accepted) = acceptor.poll_accept(&mut cx) {
        match accepted {
            Ok((socket, peer)) => shared.dispatch(socket, peer, &served, &open),
            Err(error) if is_of_connection(&error) => {}
            Err(_) => break,
        }
    }
}

/// Returns whether the error concerns only one connection. Then the next connection can still be accepted.
fn is_of_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted
            | ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::Interrupted
    )
}

/// A socket that listens, registered in a runtime.
pub(super) enum Acceptor {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

impl Acceptor {
    /// Registers the socket. Must be called inside the runtime that accepts the connections.
    pub(super) fn new(bound: Bound) -> io::Result<Acceptor> {
        match bound {
            Bound::Tcp(listener) => tokio::net::TcpListener::from_std(listener).map(Acceptor::Tcp),
            Bound::Unix(listener, _) => tokio::net::UnixListener::from_std(listener).map(Acceptor::Unix),
        }
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Socket, Peer)>> {
        match self {
            Acceptor::Tcp(listener) => listener.poll_accept(cx).map(|accepted| {
                let (stream, peer) = accepted?;
                Ok((Socket::Tcp(stream.into_std()?), Peer::Tcp(peer)))
            }),
            Acceptor::Unix(listener) => {
                listener.poll_accept(cx).map(|accepted| Ok((Socket::Unix(accepted?.0.into_std()?), Peer::Unix)))
            }
        }
    }
}
