//! Keeps the blocks and shadow switches of operators up to date. Once a second, those that have ended are removed, and
//! the lists in the shared store are read if they have changed.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

use spillgate_redis::stand_aside;
use spillgate_service::Service;
use spillgate_service::operator::Operator;
use spillgate_service::shared_store::SharedError;
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep};

const REFRESH_EVERY: Duration = Duration::from_secs(1);
/// The bounds for how long the server waits, at its start, for the first reading of the lists. In this time, the server
/// also has to connect to the store.
const FIRST_WITHIN: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];
/// While reading fails, the log has at most one line in this time.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// Starts the thread, which ends with the process. With a shared store, this function returns when the lists were read,
/// so that a blocked caller is refused from its first request on. But the server also starts without the store: this
/// function waits at most for `deadline` (the time that requests wait for the store), limited to the bounds of
/// [`FIRST_WITHIN`].
pub(super) fn start(service: &Arc<Service>, deadline: Duration) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let service = Arc::clone(service);
    let is_shared = service.limiter().store().is_shared();
    let (begun, first) = sync_channel(1);
    let keep = move || {
        stand_aside();
        runtime.block_on(async {
            let mut log = Log::default();
            loop {
                let read = service.refresh_operator().await;
                log.write(read.err(), service.operator());
                let _ = begun.try_send(());
                sleep(REFRESH_EVERY).await;
            }
        });
    };
    thread::Builder::new().name("operator-lists".into()).spawn(keep)?;
    if is_shared {
        // Without an answer in time, the server starts with empty lists, and reads them later.
        let _ = first.recv_timeout(deadline.clamp(FIRST_WITHIN[0], FIRST_WITHIN[1]));
    }
    Ok(())
}

/// What the log has reported.
#[derive(Default)]
struct Log {
    failed_at: Option<Instant>,
    unreadable: usize,
    losses: u64,
}

impl Log {
    fn write(&mut self, failed: Option<SharedError>, operator: &Operator) {
        let (unreadable, losses) = (operator.unreadable(), operator.losses());
        if losses != self.losses {
            self.losses = losses;
            tracing::warn!(
                "the store has lost blocks or shadow switches, or the last changes of them; this server keeps its copy \
                 and writes it back: did the store restart empty, evict keys or fail over?"
            );
        }
        match failed {
            Some(error) if self.failed_at.is_none_or(|at| at.elapsed() >= LOG_EVERY) => {
                self.failed_at = Some(Instant::now());
                tracing::warn!(
                    "the lists of blocks and shadow switches cannot be read from the store: {error}; their last copy stays in use"
                );
            }
            Some(_) => {}
            None if self.failed_at.take().is_some() => {
                tracing::info!("the lists of blocks and shadow switches are read again");
            }
            None => {}
        }
        if unreadable != self.unreadable {
            self.unreadable = unreadable;
            if unreadable > 0 {
                tracing::warn!(
                    entries = unreadable,
                    "the lists of blocks and shadow switches in the store have entries that cannot be read; they are left out"
                );
            }
        }
    }
}
