//! Signals: SIGTERM and SIGINT drain, SIGHUP reads the rules again.

use std::io;
use std::sync::Arc;

use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::reload::Reloads;
use super::snapshot::Saver;
use crate::command::terminal::{EXIT_UNAVAILABLE, Problem};
use crate::listener::Handle;
use crate::service::{Readiness, Service};

/// SIGHUP, which ends a process that does not follow it: taken before anything else is done, and answered once the
/// server is there. SIGTERM and SIGINT are left as they are meanwhile: they end what has not begun.
pub(super) struct HangUps {
    runtime: Runtime,
    hang_up: Signal,
}

impl HangUps {
    pub(super) fn new() -> io::Result<HangUps> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let guard = runtime.enter();
        let hang_up = signal(SignalKind::hangup())?;
        drop(guard);
        Ok(HangUps { runtime, hang_up })
    }
}

/// The signals that are followed; taken before anybody is told that the server is there.
pub(super) struct Signals {
    runtime: Runtime,
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
        Ok(Signals { runtime, terminate, interrupt, hang_up })
    }

    /// Drains at the first end, ends without it at the second, asks for a reload at each hang-up.
    pub(super) fn follow(
        mut self,
        service: Arc<Service>,
        handle: Handle,
        saver: Arc<Saver>,
        reloads: Reloads,
    ) -> Result<(), Problem> {
        let work = move || {
            self.runtime.block_on(async {
                let mut draining = false;
                loop {
                    tokio::select! {
                        Some(()) = self.terminate.recv() => {}
                        Some(()) = self.interrupt.recv() => {}
                        Some(()) = self.hang_up.recv() => {
                            reloads.ask();
                            continue;
                        }
                    }
                    if draining {
                        tracing::warn!("told to end again: requests in flight are cut");
                        saver.finish();
                        service.rules().log_refusals();
                        std::process::exit(EXIT_UNAVAILABLE.into());
                    }
                    draining = true;
                    tracing::info!("draining: no new connections, requests in flight are answered");
                    service.set_readiness(Readiness::Draining);
                    handle.drain();
                }
            });
        };
        let spawned = std::thread::Builder::new().name("signals".into()).spawn(work);
        spawned.map(drop).map_err(|error| Problem::no_resources(&error))
    }
}
