//! Bounds what a connection does before the other connections of its worker have their turn, and counts what it does.
//!
//! tokio looks for bytes on other sockets only when no task is ready, or after 61 polls of tasks. A task that wakes
//! itself is ready at once, so a connection whose client sends without a pause would have 61 turns before its
//! neighbour. A connection that has used up its turn is therefore woken only after tokio has looked at all sockets.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Context;

/// How many bytes a connection reads in one turn. This also bounds the requests that h2 decodes before the server sees
/// the first of them.
pub(super) const TURN_BYTES: u64 = 16 << 10;
/// How many HTTP/2 requests of a connection begin in one turn: about a third of a millisecond with the memory store. A
/// smaller number would write the answers of a busy proxy in more pieces.
pub(super) const TURN_REQUESTS: usize = 128;
/// How many HTTP/1 requests of a connection begin in one turn. Each of their answers is a write of its own. hyper ends
/// its turn after 16 steps and wakes itself, so this number has to be smaller.
const TURN_REQUESTS_HTTP1: usize = 8;

/// What a connection has read, and what it may read in this turn.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// The number of bytes that were read since the connection began.
    bytes: AtomicU64,
    /// The value of `bytes` at which the turn ends.
    until: AtomicU64,
    /// The number of HTTP/1 requests that began in this turn.
    requests: AtomicUsize,
    /// The number of writes that the socket accepted, at least in part.
    writes: AtomicU64,
    /// Whether the socket accepted nothing of the last write, because its client reads too little.
    is_blocked: AtomicBool,
}

impl Turn {
    pub(super) fn begin(&self) {
        self.until.store(self.bytes() + TURN_BYTES, Ordering::Relaxed);
        self.requests.store(0, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Returns whether no more bytes may be read in this turn.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.bytes() >= self.until.load(Ordering::Relaxed)
    }

    /// Notes whether the socket accepted nothing of a write. Returns the same of the write before.
    #[inline]
    pub(super) fn wrote(&self, is_blocked: bool) -> bool {
        let was_blocked = self.is_blocked();
        if !is_blocked {
            self.writes.fetch_add(1, Ordering::Relaxed);
        }
        self.is_blocked.store(is_blocked, Ordering::Relaxed);
        was_blocked
    }

    /// Returns whether the socket accepted nothing of the last write.
    #[inline]
    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked.load(Ordering::Relaxed)
    }

    /// Returns the number of writes before the one that waits for the client, or `None` if no write waits.
    pub(super) fn blocked_after(&self) -> Option<u64> {
        self.is_blocked().then(|| self.writes.load(Ordering::Relaxed))
    }

    /// Counts an HTTP/1 request. Returns whether it has to wait for the next turn.
    #[inline]
    pub(super) fn defers_request(&self) -> bool {
        self.requests.fetch_add(1, Ordering::Relaxed) >= TURN_REQUESTS_HTTP1
    }
}

/// Wakes this task again after all ready tasks have run, and tokio has looked at all sockets.
pub(super) fn wake_after_others(cx: &mut Context<'_>) {
    // The first poll registers the wake-up, and nothing else is needed of this future.
    let _ = pin!(tokio::task::yield_now()).poll(cx);
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::sync::Arc;
    use std::time::Duration;

    use ::http::{Request, Response};
    use bytes::Bytes;
    use http_body_util::Full;
    use spillgate_service::metrics::Metrics;
    use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::sync::{Notify, watch};

    use super::super::activity::Activity;
    use super::super::context::{Context, Pools};
    use super::super::io::Transport;
    use super::super::{Limits, Phase, http};
    use super::*;

    const REQUEST: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
    /// The neighbour sends its request when this many requests of the busy client have begun.
    const SENT_AT: usize = 200;

    /// How many requests of the busy client have begun: in all, and when the request of the neighbour began.
    #[derive(Default)]
    struct Counts {
        busy: AtomicUsize,
        at_neighbour: AtomicUsize,
        answered: Notify,
    }

    async fn serve<I>(io: I, context: Context, answer: impl Fn() + Send + Sync + 'static)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let activity = Arc::new(Activity::new(&context.metrics, &context.pools, context.limits.receive));
        let io = Transport::new(io, Arc::clone(&activity.turn));
        let answer = move |_| {
            answer();
            async { Response::new(Full::<Bytes>::default()) }
        };
        http::serve(io, answer, &activity, &context).await;
    }

    /// Serves a busy client, whose `server` end never lacks requests, and a neighbour on a socket. Returns how many
    /// requests of the busy client began between the request of the neighbour and its handler.
    async fn overtaken(server: DuplexStream) -> usize {
        let (hour, mib) = (Duration::from_secs(3600), 1 << 20);
        let mut limits = Limits { idle: hour, receive: hour, ..Limits::default() };
        (limits.streams, limits.unread, limits.in_flight) = (1024, 64 * mib, 64 * mib);
        let (metrics, phase) = (Arc::new(Metrics::new()), watch::Sender::new(Phase::Serving));
        let context = Context::new(limits, &metrics, &Pools::new(&limits, &metrics), &phase);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let neighbour = std::net::TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
        let accepted = listener.accept().expect("the neighbour connects").0;
        accepted.set_nonblocking(true).expect("the socket is open");
        let accepted = tokio::net::TcpStream::from_std(accepted).expect("this is a runtime");
        let counts = Arc::new(Counts::default());
        let of_neighbour = Arc::clone(&counts);
        tokio::spawn(serve(accepted, context.clone(), move || {
            of_neighbour.at_neighbour.store(of_neighbour.busy.load(Ordering::Relaxed), Ordering::Relaxed);
            of_neighbour.answered.notify_one();
        }));
        let of_busy = Arc::clone(&counts);
        tokio::spawn(serve(server, context, move || {
            if of_busy.busy.fetch_add(1, Ordering::Relaxed) == SENT_AT {
                (&neighbour).write_all(REQUEST.as_bytes()).expect("the socket is open");
            }
        }));
        counts.answered.notified().await;
        counts.at_neighbour.load(Ordering::Relaxed) - SENT_AT
    }

    #[tokio::test]
    async fn a_client_that_pipelines_over_http_1_does_not_overtake_its_neighbour_for_long() {
        let (mut client, server) = duplex(1 << 22);
        client.write_all(REQUEST.repeat(20_000).as_bytes()).await.expect("the buffer has room");
        let overtaken = overtaken(server).await;
        assert!(overtaken <= 4 * TURN_REQUESTS_HTTP1, "{overtaken} requests");
    }

    #[tokio::test]
    async fn a_client_with_many_streams_does_not_overtake_its_neighbour_for_long() {
        let (client, server) = duplex(1 << 22);
        tokio::spawn(async move {
            let mut builder = h2::client::Builder::new();
            builder.initial_max_send_streams(1000);
            let (client, connection) = builder.handshake::<_, Bytes>(client).await.expect("the greeting succeeds");
            tokio::spawn(connection);
            let mut clients = Vec::new();
            for _ in 0..1000 {
                let mut client = client.clone();
                // As soon as one request is answered, the next one follows.
                clients.push(tokio::spawn(async move {
                    loop {
                        client = client.ready().await.expect("the connection is open");
                        let request = Request::get("http://test/").body(()).expect("the request is valid");
                        let answer = client.send_request(request, true).expect("the request can be sent").0;
                        answer.await.expect("the server answers");
                    }
                }));
            }
            for client in clients {
                let _ = client.await;
            }
        });
        let overtaken = overtaken(server).await;
        assert!(overtaken <= 3 * TURN_REQUESTS, "{overtaken} requests");
    }
}
