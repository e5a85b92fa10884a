//! Counts what the server has read and answered on a connection.
//!
//! The code of each protocol writes these numbers. [`watch_over`](super::connection::watch_over) reads them to decide
//! whether the connection is slow or idle.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::time::Duration;

use spillgate_service::metrics::Metrics;

use super::context::Pools;
use super::in_flight::InFlight;
use super::pool::Account;
use super::turn::Turn;
use super::unread;

/// The numbers of one connection. Each connection has numbers of its own, so that cores do not wait for each other's
/// cache lines.
pub(super) struct Activity {
    pub(super) metrics: Arc<Metrics>,
    /// What was read since the connection began, and what may be read now.
    pub(super) turn: Arc<Turn>,
    /// The number of requests that were read since the connection began.
    pub(super) begun: AtomicU64,
    /// The number of HTTP/1 requests that the handler is answering, plus the number of answers of the admin listener
    /// whose bodies wait for their next frame.
    pub(super) open: AtomicUsize,
    /// How long an answer waits for its client to read the next frame.
    pub(super) patience: Duration,
    /// The number of HTTP/2 calls that wait because their client does not read the answer.
    pub(super) stalled: AtomicUsize,
    /// The number of pieces of HTTP/2 answers that h2 has not written. A stream that h2 keeps only because its client does
    /// not read has at least one.
    pub(super) unread_pieces: AtomicUsize,
    /// The memory of HTTP/2 answers that the client has not read.
    pub(super) unread: Account,
    /// The memory of requests that are not answered.
    pub(super) in_flight: InFlight,
    /// The bytes that were read when the last HTTP/1 request was answered. All bytes that arrive later belong to the next
    /// request.
    pub(super) answered_bytes: AtomicU64,
    /// Whether the connection should end after the requests in flight, because the server ends or because the connection
    /// is old. Each HTTP/1 answer then asks the client to close its connection.
    pub(super) ends_soon: AtomicBool,
}

impl Activity {
    pub(super) fn new(metrics: &Arc<Metrics>, pools: &Pools, patience: Duration) -> Activity {
        Activity {
            metrics: Arc::clone(metrics),
            turn: Arc::default(),
            begun: AtomicU64::new(0),
            open: AtomicUsize::new(0),
            patience,
            stalled: AtomicUsize::new(0),
            unread_pieces: AtomicUsize::new(0),
            unread: unread::account(&pools.unread),
            in_flight: InFlight::new(&pools.in_flight, metrics.in_flight_refused.clone()),
            answered_bytes: AtomicU64::new(u64::MAX),
            ends_soon: AtomicBool::new(false),
        }
    }
}
