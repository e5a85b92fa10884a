//! A worker: a thread with a runtime of its own, and the connections that it serves.
//!
//! A connection never leaves its worker. Therefore workers share no locks and do not wake each other.

use spillgate_service::metrics::Closed;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};

use super::context::Context;
use super::{Accepted, serve};
use crate::runtime::block_on;

/// Serves connections until the acceptor ends. Then waits until the last connection has ended, but at most for
/// `limits.drain`. Returns the number of connections that had to be cut.
pub(super) fn run(runtime: Runtime, mut accepted: mpsc::UnboundedReceiver<Accepted>, context: &Context) -> usize {
    block_on(runtime, async {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                next = accepted.recv() => match next {
                    Some(next) => drop(connections.spawn(serve::serve(next, context.clone()))),
                    None => break,
                },
                Some(ended) = connections.join_next() => note(&ended, context),
            }
        }
        let all = async {
            while let Some(ended) = connections.join_next().await {
                note(&ended, context);
            }
        };
        if tokio::time::timeout(context.limits.drain, all).await.is_err() {
            let cut = connections.len();
            context.metrics.closed(Closed::Drained).inc_by(cut as u64);
            connections.shutdown().await;
            return cut;
        }
        0
    })
}

/// Counts the panic if the connection ended with a panic. A panic ends only its own connection.
fn note(ended: &Result<(), JoinError>, context: &Context) {
    if ended.as_ref().is_err_and(JoinError::is_panic) {
        context.metrics.panics.inc();
    }
}
