//! `GET /events`: a stream of server-sent events. Once a second, it sends the current figures, and the limits whose
//! counts have changed.
//!
//! Without such a stream, an open page would have to read the whole overview again and again.
//!
//! A tick is one message with all changes. While a stream is open, one task makes the ticks for all streams, and a ring
//! buffer keeps the last ticks. So a client that reads slowly needs no buffer of its own. If the next tick of a stream
//! is not in the ring any more, the stream ends, and its client can begin another one. The number of streams is
//! bounded.

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
use super::access::{Source, Tokens, peer, source};
use super::figures::{Figures, Requests};
use super::page::busy;
use super::page::json;
use super::places::{Full, Place, Places};

/// The maximum number of open streams. Each stream uses a connection, and each tick is sent to all streams.
const STREAMS_MAX: usize = 64;
/// The maximum number of open streams of one address, so that one client cannot use up [`STREAMS_MAX`].
const STREAMS_MAX_OF_PEER: usize = 8;
/// What a stream takes at most, with its first tick. The tick has about 60 bytes for each limit of the rules, so this is
/// enough for a thousand limits.
const STREAM_BYTES: usize = 128 << 10;

/// What all open event streams take at most, in bytes, if the rules have at most a thousand limits.
pub const EVENT_STREAMS_BYTES: usize = STREAMS_MAX * STREAM_BYTES;

/// The time between two ticks.
pub(super) const TICK_EVERY: Duration = Duration::from_secs(1);
/// A stream ends if its client is more than this number of ticks behind. The ring buffer needs a power of two.
const TICKS_BEHIND_MAX: usize = 16;
/// A stream that has sent nothing for this long sends a comment, so that no proxy closes it as unused.
const COMMENT_EVERY: Duration = Duration::from_secs(15);
/// A stream ends after this time, and its client begins another one. So a half-open connection, whose client is gone,
/// does not keep a stream for ever.
const STREAM_LIFE: Duration = Duration::from_secs(3600);
/// The beginning of each stream. It asks the client to wait for two seconds (2000 ms) after the end of the stream,
/// before the client begins another one.
const RETRY: &str = "retry: 2000\n\n";

/// All open streams. A clone of this value is cheap, and stands for the same streams.
#[derive(Clone, Debug)]
pub(super) struct Streams(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    every: Duration,
    places: Places<Source>,
    /// The task that makes the ticks. It ends at the first tick at which no stream is open.
    task: Mutex<Option<JoinHandle<()>>>,
    ticks: broadcast::Sender<Bytes>,
}

/// The counts of hits at one tick. The next tick has only the limits whose counts have changed since then.
#[derive(Debug)]
struct Counted {
    changes: u64,
    hits: Vec<LimitHits>,
}

/// The permit of one stream. The stream counts as open until its permit is dropped.
struct Permit {
    _place: Place<Source>,
    gauge: Gauge,
}

/// The messages of one stream.
struct Events {
    /// The first message. `None` after it was sent.
    first: Option<Bytes>,
    ticks: broadcast::Receiver<Bytes>,
    readiness: watch::Receiver<Readiness>,
    tokens: watch::Receiver<Tokens>,
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

/// The number of a limit, and the counts of its hits: `allowed`, `refused`, `near`, `shadow_refused` and `soft_over`.
type Row = (usize, u64, u64, u64, u64, u64);

impl Streams {
    /// Makes a value without open streams. Later streams get a tick at the interval `every`.
    pub(super) fn new(every: Duration) -> Streams {
        let (places, ticks) = (Places::new(STREAMS_MAX, STREAMS_MAX_OF_PEER), broadcast::Sender::new(TICKS_BEHIND_MAX));
        Streams(Arc::new(Shared { every: every.max(Duration::from_millis(1)), places, task: Mutex::default(), ticks }))
    }

    /// Counts one more open stream. If a bound is reached, the error is this bound, and a text that says what it
    /// bounds.
    fn permit(&self, source: Source, gauge: &Gauge) -> Result<Permit, (usize, &'static str)> {
        let place = self.0.places.take(source).map_err(|full| match full {
            Full::All(most) => (most, "event streams"),
            Full::OfCaller(most) => (most, "event streams of your address"),
        })?;
        gauge.inc();
        Ok(Permit { _place: place, gauge: gauge.clone() })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.gauge.dec();
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
    let tokens = state.access.watch_tokens();
    let events = Events { first, ticks, readiness, tokens, ends_at: Instant::now() + STREAM_LIFE, _permit: permit };
    let body = stream::unfold(events, async |mut events| {
        let message = events.next().await?;
        Some((Ok::<_, Infallible>(message), events))
    });
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    (headers, Body::from_stream(body)).into_response()
}

impl Events {
    /// Returns the next message. `None` ends the stream. A stream ends if the server drains, if an admin token is
    /// replaced, if the client has read too slowly, or if the stream has lasted for [`STREAM_LIFE`].
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        tokio::select! {
            biased;
            _ = self.readiness.wait_for(|readiness| *readiness == Readiness::Draining) => None,
            _ = self.tokens.changed() => None,
            () = sleep_until(self.ends_at) => None,
            tick = self.ticks.recv() => tick.ok(),
            () = sleep(COMMENT_EVERY) => Some(Bytes::from_static(b":\n\n")),
        }
    }
}

/// Returns the first tick of a stream, which has all limits. Starts the task that makes the ticks, unless it runs
/// already.
fn begin<C: Clock + 'static>(state: &Arc<AdminState<C>>) -> String {
    let counted = Counted::now(&state.service);
    let tick = tick(state, &counted, None);
    let mut task = state.streams.0.task.lock();
    // A task that panicked is finished too.
    if task.as_ref().is_none_or(JoinHandle::is_finished) {
        *task = Some(tokio::spawn(send_ticks(Arc::clone(state), counted)));
    }
    tick
}

/// Sends ticks to all streams, until no stream is open. The first tick has what has changed since `last`.
async fn send_ticks<C: Clock + 'static>(state: Arc<AdminState<C>>, mut last: Counted) {
    let Shared { every, places, task, ticks } = &*state.streams.0;
    let mut interval = interval_at(Instant::now() + *every, *every);
    // If the task is late, the next tick comes a whole interval later. By default, all missed ticks would be made at
    // once.
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        {
            let mut task = task.lock();
            if places.open() == 0 {
                // A stream that begins at this moment waits for the lock, finds no task, and starts another one.
                *task = None;
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
        // Sending fails only if all streams have just ended. The next turn of this loop then ends the task.
        let _ = ticks.send(message.into());
    }
}

impl Counted {
    fn now<C: Clock>(service: &Service<C>) -> Counted {
        let loaded = service.rules();
        Counted { changes: service.changes(&loaded), hits: loaded.tracked_hits().collect() }
    }
}

/// Returns a tick: the current figures, and the limits whose hits have changed since the tick `last`. Without `last`,
/// the tick has all limits.
fn tick<C: Clock>(state: &AdminState<C>, now: &Counted, last: Option<&Counted>) -> String {
    // After a reload, the number of a limit can belong to another limit. Then all limits are sent.
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
