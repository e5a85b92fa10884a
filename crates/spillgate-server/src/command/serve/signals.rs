//! Handles signals. SIGTERM and SIGINT start a drain: the server accepts no new connections, and answers the requests
//! in flight. SIGHUP makes the server read its files again.
//!
//! If the settings have a delay, the server first leaves: it says that it is not ready, and asks its clients to make new
//! connections, but still accepts them. A proxy that learns late of the end loses no request in this time.
//!
//! The next SIGTERM or SIGINT ends the delay. The one after it ends the server at once, so that a drain can always be cut
//! short.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use spillgate_service::reload_requests::ReloadRequests;
use spillgate_service::{Readiness, Service};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;

use super::log;
use super::snapshot::Saver;
use crate::command::terminal::{EXIT_UNAVAILABLE, Problem};
use crate::listener::Handle;

/// SIGXFSZ, of Linux and the BSDs: a write went over the limit on the size of files (`ulimit -f`). Without a handler, this
/// signal ends the process. With one, the write fails, as on a full disk.
const FILE_TOO_LARGE: SignalKind = SignalKind::from_raw(25);

/// The target of the log lines about signals.
pub(super) const TARGET: &str = module_path!();

/// How long the second SIGTERM or SIGINT waits for the last snapshot.
const SNAPSHOT_WITHIN: Duration = Duration::from_secs(5);

/// The handler of SIGHUP. It is installed first, because without a handler SIGHUP ends the process. After a SIGHUP
/// during the start, the server reads its files again when it is ready. SIGTERM and SIGINT still end the process during
/// the start.
pub(super) struct HangUps {
    runtime: Runtime,
    hang_up: Signal,
}

impl HangUps {
    pub(super) fn new() -> io::Result<HangUps> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let guard = runtime.enter();
        let hang_up = signal(SignalKind::hangup())?;
        // The handler stays although nobody listens.
        drop(signal(FILE_TOO_LARGE)?);
        drop(guard);
        Ok(HangUps { runtime, hang_up })
    }
}

/// How the server ends after SIGTERM or SIGINT.
pub(super) struct Ending {
    /// How long the server still accepts connections.
    pub(super) delay: Duration,
    pub(super) handle: Handle,
    pub(super) saver: Arc<Saver>,
}

/// The handlers of all signals. They are installed before the server reports that it is ready.
pub(super) struct Signals {
    runtime: Runtime,
    received: Received,
}

struct Received {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    pub(super) fn new(HangUps { runtime, hang_up }: HangUps) -> io::Result<Signals> {
        let guard = runtime.enter();
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        drop(guard);
        Ok(Signals { runtime, received: Received { terminate, interrupt, hang_up } })
    }

    /// Starts the thread that handles the signals. The first SIGTERM or SIGINT starts the end of the server. Each SIGHUP
    /// requests a reload.
    pub(super) fn follow(self, service: Arc<Service>, ending: Ending, reloads: ReloadRequests) -> Result<(), Problem> {
        let (Signals { runtime, mut received }, Ending { delay, handle, saver }) = (self, ending);
        let work = move || {
            runtime.block_on(async {
                received.next_end(None, &reloads).await;
                service.set_readiness(Readiness::Draining);
                if !delay.is_zero() {
                    tracing::info!(?delay, "leaving: not ready any more, new connections are still accepted");
                    handle.leave();
                    received.next_end(Some(delay), &reloads).await;
                }
                tracing::info!("draining: no new connections, requests in flight are answered");
                handle.drain();
                received.next_end(None, &reloads).await;
                tracing::warn!("one more SIGTERM or SIGINT: requests in flight are cut");
                saver.finish(SNAPSHOT_WITHIN);
                service.rules().log_refusals();
                log::flush();
                std::process::exit(EXIT_UNAVAILABLE.into());
            });
        };
        let spawned = std::thread::Builder::new().name("signals".into()).spawn(work);
        spawned.map(drop).map_err(|error| Problem::no_resources(&error))
    }
}

impl Received {
    /// Waits for the next SIGTERM or SIGINT, but not longer than `within`. Meanwhile, each SIGHUP requests a reload.
    async fn next_end(&mut self, within: Option<Duration>, reloads: &ReloadRequests) {
        let mut over = pin!(sleep(within.unwrap_or_default()));
        loop {
            tokio::select! {
                Some(()) = self.terminate.recv() => return,
                Some(()) = self.interrupt.recv() => return,
                Some(()) = self.hang_up.recv() => reloads.request(),
                () = &mut over, if within.is_some() => return,
            }
        }
    }
}
