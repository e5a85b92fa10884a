//! `GET /events`: sends the changes of the figures of the overview as server-sent events, once a second.
//!
//! A page that is open would otherwise have to read the whole overview again and again.
//!
//! The number of streams is bounded. A tick is one message with all changes. One task makes the ticks for all streams
//! while a stream is open, and a ring buffer keeps the last ticks. So a client that reads slowly needs no memory of its
//! own. If its next tick is not in the ring any more, its stream ends, and the client can begin again.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use parking_lot::Mutex;
use serde::Serialize;
use spillgate::Clock;
use spillgate_service::metrics::{Gauge, LimitHits};
use spillgate_service::{Readiness, Service};
use tokio::sync::{broadcast, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, sleep_until};

use super::AdminState;
use super::access::{Source, peer, source};
use super::figures::{Figures, Requests};
use super::page::busy;
use super::page::json;

/// The maximum number of open streams. Each of them uses a connection, and each tick is sent to all of them.
const STREAMS_MAX: usize = 64;
/// The maximum number of open streams of one address, so that one client cannot take them all.
const STREAMS_MAX_OF_PEER: usize = 8;
/// The time between two ticks.
pub(super) const TICK_EVERY: Duration = Duration::from_secs(1);
/// A stream ends if it is more than this number of ticks behind. The number is a power of two, because the ring needs
/// that.
const TICKS_BEHIND_MAX: usize = 16;
/// If a stream has nothing to send for this long, it sends a comment, so that proxies do not close it.
const COMMENT_EVERY: Duration = Duration::from_secs(15);
/// A stream ends after this time, and its client begins another one. So a half-open connection does not keep a stream
/// for ever.
const STREAM_LIFE: Duration = Duration::from_secs(3600);
/// Asks the client of a stream to wait for two seconds before it begins another stream.
const RETRY: &str = "retry: 2000\n\n";

/// The streams that are open. It is cheap to clone, and all clones are the same streams.
#[derive(Clone, Debug)]
pub(super) struct Streams(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    every: Duration,
    open: Mutex<Open>,
    ticks: broadcast::Sender<Bytes>,
}

#[derive(Debug, Default)]
struct Open {
    all: usize,
    /// The number of streams of each address that has an open stream.
    of_peers: HashMap<Source, usize>,
    /// The task that makes ticks. It ends when no stream is open.
    task: Option<JoinHandle<()>>,
}

/// The hits of all limits at one tick, to find those that have changed at the next tick.
#[derive(Debug)]
struct Counted {
    changes: u64,
    hits: Vec<LimitHits>,
}

/// A stream that counts as open until this value is dropped.
struct Permit {
    streams: Streams,
    source: Source,
    gauge: Gauge,
}

/// A stream of events.
struct Events {
    /// The first message. `None` after it is sent.
    first: Option<Bytes>,
    ticks: broadcast::Receiver<Bytes>,
    readiness: watch::Receiver<Readiness>,
    ends_at: Instant,
    _permit: Permit,
}

#[derive(Serialize)]
struct Tick<'a> {
    #[serde(flatten)]
    figures: Figures<'a>,
    changes: u64,
    requests: Requests,
    limits: Vec<Row>,
}

/// The number of a limit, and its hits: allowed, refused, near, refused in shadow mode, and over the limit in its soft share.
type Row = (usize, u64, u64, u64, u64, u64);

impl Streams {
    /// Makes streams that get a tick every `every`.
    pub(super) fn new(every: Duration) -> Streams {
        let ticks = broadcast::Sender::new(TICKS_BEHIND_MAX);
        Streams(Arc::new(Shared { every: every.max(Duration::from_millis(1)), open: Mutex::default(), ticks }))
    }

    /// Counts one more stream. The error is the bound that was reached, and whose streams it bounds.
    fn permit(&self, source: Source, gauge: &Gauge) -> Result<Permit, (usize, &'static str)> {
        let mut open = self.0.open.lock();
        if open.all >= STREAMS_MAX {
            return Err((STREAMS_MAX, "event streams"));
        }
        let of_peer = open.of_peers.entry(source).or_default();
        if *of_peer >= STREAMS_MAX_OF_PEER {
            return Err((STREAMS_MAX_OF_PEER, "event streams of your address"));
        }
        *of_peer += 1;
        open.all += 1;
        gauge.inc();
        Ok(Permit { streams: self.clone(), source, gauge: gauge.clone() })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.gauge.dec();
        let mut open = self.streams.0.open.lock();
        open.all -= 1;
        if let Some(of_peer) = open.of_peers.get_mut(&self.source) {
            *of_peer -= 1;
            if *of_peer == 0 {
                open.of_peers.remove(&self.source);
            }
        }
    }
}

pub(super) async fn events<C: Clock + 'static>(State(state): State<Arc<AdminState<C>>>, request: Request) -> Response {
    let permit = match state.streams.permit(source(peer(&request)), &state.service.metrics().event_streams) {
        Ok(permit) => permit,
        Err((most, what)) => {
            let detail = format!("{most} {what} are open already, and this is the maximum");
            return busy(detail, "close a page of this server, and try again; /overview has the same figures");
        }
    };
    let (ticks, readiness) = (state.streams.0.ticks.subscribe(), state.service.watch_readiness());
    let first = Some(format!("{RETRY}{}", begin(&state)).into());
    let events = Events { first, ticks, readiness, ends_at: Instant::now() + STREAM_LIFE, _permit: permit };
    let body = stream::unfold(events, async |mut events| {
        let message = events.next().await?;
        Some((Ok::<_, Infallible>(message), events))
    });
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    (headers, Body::from_stream(body)).into_response()
}

impl Events {
    /// Returns the next message. `None` ends the stream: because the server drains, because the client has read too
    /// slowly, or because the stream is old.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        tokio::select! {
            biased;
            _ = self.readiness.wait_for(|readiness| *readiness == Readiness::Draining) => None,
            () = sleep_until(self.ends_at) => None,
            tick = self.ticks.recv() => tick.ok(),
            () = sleep(COMMENT_EVERY) => Some(Bytes::from_static(b":\n\n")),
        }
    }
}

/// Returns a tick with all limits, with which a stream begins. Starts the task that makes ticks, if it does not run.
fn begin<C: Clock + 'static>(state: &Arc<AdminState<C>>) -> String {
    let counted = Counted::now(&state.service);
    let tick = tick(state, &counted, None);
    let mut open = state.streams.0.open.lock();
    // A task that panicked is finished too.
    if open.task.as_ref().is_none_or(JoinHandle::is_finished) {
        open.task = Some(tokio::spawn(send_ticks(Arc::clone(state), counted)));
    }
    tick
}

/// Sends ticks to all streams, until no stream is open. `last` is what the first tick is compared with.
async fn send_ticks<C: Clock + 'static>(state: Arc<AdminState<C>>, mut last: Counted) {
    let Shared { every, open, ticks } = &*state.streams.0;
    let mut interval = interval_at(Instant::now() + *every, *every);
    // If the task was late, it does not send several ticks at once.
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        {
            let mut open = open.lock();
            if open.all == 0 {
                // A stream that begins now waits for the lock, and then starts another task.
                open.task = None;
                return;
            }
        }
        let counted = Counted::now(&state.service);
        let mut message = String::new();
        if counted.changes != last.changes {
            message = format!("event: changed\ndata: {{\"changes\":{}}}\n\n", counted.changes);
        }
        message.push_str(&tick(&state, &counted, Some(&last)));
        last = counted;
        // If all streams have just ended, sending fails.
        let _ = ticks.send(message.into());
    }
}

impl Counted {
    fn now<C: Clock>(service: &Service<C>) -> Counted {
        let loaded = service.rules();
        Counted { changes: service.changes(&loaded), hits: loaded.tracked_hits().collect() }
    }
}

/// Returns the event with the current figures, and with the limits whose hits have changed since the `last` tick.
fn tick<C: Clock>(state: &AdminState<C>, now: &Counted, last: Option<&Counted>) -> String {
    // After a reload, a number can belong to another limit, so all limits are sent.
    let last = last.filter(|last| last.changes == now.changes).map_or(&[][..], |last| &last.hits);
    let changed = now.hits.iter().enumerate().filter(|(id, hits)| last.get(*id) != Some(hits));
    let row = |(id, hits): (usize, &LimitHits)| {
        let LimitHits { allowed, refused, shadow_refused, soft_over, near } = *hits;
        (id, allowed, refused, near, shadow_refused, soft_over)
    };
    let tick = Tick {
        figures: Figures::of(state),
        changes: now.changes,
        requests: state.service.totals().into(),
        limits: changed.map(row).collect(),
    };
    format!("event: tick\ndata: {}\n\n", json(&tick))
}
