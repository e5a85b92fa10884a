//! Counts the memory of requests that are being read, decided or waited for, and bounds it.
//!
//! Without a bound, clients could fill the memory with requests that never become complete, or that wait. Each request
//! is counted from the moment when its head was read until its answer is made: the head, the body as far as it was
//! read, and what the server needs beside them. The bytes are taken from the connection's account before the request
//! begins. If they do not fit, nothing is decided for the request, and its client can send it again.
//!
//! HTTP/2 needs a bound for what arrives at once too, because h2 reads all frames that the socket has before it shows
//! the first stream. So a connection reads at most [`TURN_BYTES`](super::turn::TURN_BYTES) in one turn.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{HeaderMap, Request};
use spillgate_service::metrics::{Counter, Metrics};

use super::pool::{Account, Pool};

/// The bytes that each connection has in addition to the pool: enough for a usual request that waits. Because of them,
/// a client that sends one request after the other is served even while the pool is used up.
pub(super) const OWN_BYTES: usize = 24 << 10;
/// A connection takes bytes from the pool in blocks of this size. It is small, because a connection keeps one block for
/// a while, and all connections together must not use up the pool with blocks that they do not need.
const BLOCK_BYTES: usize = 16 << 10;
/// The memory of a request that waits, without its header fields and its body: its task and its future. A request
/// over HTTP takes this much, and a call over gRPC less.
/// `make show-memory-of-clients` measures it.
const REQUEST_BYTES: usize = 13 << 10;
/// The memory of a header field beside its name and its value: its entry in the header map, and its place in the index.
const FIELD_BYTES: usize = 120;
/// The memory of a byte of a body. The body itself takes one, and what was parsed of it takes the others.
const BODY_FACTOR: usize = 4;
const LACKS: usize = 1 << (usize::BITS - 1);
const NO_REQUEST: usize = usize::MAX;

/// This part of the pool, one sixteenth, is only for the tables of connections, so that they can still grow when requests
/// have used up the rest.
const TABLES_PART: usize = 16;

/// Makes the pool of all connections.
pub(super) fn pool(bytes: usize, metrics: &Metrics) -> Pool {
    Pool::new(bytes, bytes / TABLES_PART, metrics.in_flight.clone())
}

/// The requests in flight of one connection.
#[derive(Debug)]
pub(super) struct InFlight {
    account: Account,
    refused: Counter,
    /// The bytes that the body of the request that is polled now has taken in this poll, with the bit [`LACKS`] if it
    /// did not fit. [`NO_REQUEST`] between the polls.
    polled: AtomicUsize,
}

impl InFlight {
    pub(super) fn new(pool: &Arc<Pool>, refused: Counter) -> InFlight {
        let account = Account::new(pool, OWN_BYTES, BLOCK_BYTES);
        InFlight { account, refused, polled: AtomicUsize::new(NO_REQUEST) }
    }

    /// Takes the bytes of a request whose head was read. Returns them, or `None` if they do not fit.
    #[inline]
    pub(super) fn begin<B>(&self, request: &Request<B>) -> Option<usize> {
        let uri = request.uri();
        let of_uri =
            uri.path().len() + uri.query().map_or(0, str::len) + uri.authority().map_or(0, |a| a.as_str().len());
        let bytes = REQUEST_BYTES + of_uri + head_bytes(request.headers());
        if self.take(bytes) {
            return Some(bytes);
        }
        self.refused(1);
        None
    }

    /// Takes the bytes for a piece of a body. Returns whether they fit.
    ///
    /// Usually the request that is polled now reads its body, and has the bytes until it ends. But some bodies are read
    /// by tasks of their own: those of reflection over gRPC, and of writes on the admin listener. Such a body has the
    /// bytes of its last piece itself, in `of_body`. Its reader has a bound of its own for the pieces before. In addition,
    /// such a body takes the bytes `queue`, for what arrives while its task does not read.
    #[inline]
    pub(super) fn read(&self, length: usize, of_body: &mut usize, queue: usize) -> bool {
        let (mut bytes, polled) = (BODY_FACTOR * length, self.polled.load(Ordering::Relaxed));
        if polled == NO_REQUEST {
            self.end(mem::take(of_body));
            bytes += queue;
        }
        let fits = self.take(bytes);
        if !fits {
            self.refused(1);
        }
        if polled == NO_REQUEST {
            *of_body = if fits { bytes } else { 0 };
        } else {
            self.polled.store(if fits { polled + bytes } else { polled | LACKS }, Ordering::Relaxed);
        }
        fits
    }

    /// Takes bytes. Returns whether they fit.
    #[inline]
    pub(super) fn take(&self, bytes: usize) -> bool {
        self.account.take(bytes)
    }

    /// Takes bytes for the tables of the connection, which may also use what is kept for them. Returns whether they fit.
    pub(super) fn take_for_tables(&self, bytes: usize) -> bool {
        self.account.take_reserved(bytes)
    }

    /// Counts requests that were refused.
    pub(super) fn refused(&self, requests: usize) {
        self.refused.inc_by(requests as u64);
    }

    /// Begins a poll of a request. What its body takes until [`end_poll`](InFlight::end_poll) belongs to this request. A
    /// function around the poll would copy its result, which is a whole answer.
    #[inline]
    pub(super) fn begin_poll(&self) {
        self.polled.store(0, Ordering::Relaxed);
    }

    /// Ends a poll of a request, and adds the bytes that it has taken to `bytes`. Returns whether its body fitted.
    #[inline]
    pub(super) fn end_poll(&self, bytes: &mut usize) -> bool {
        let taken = self.polled.load(Ordering::Relaxed);
        self.polled.store(NO_REQUEST, Ordering::Relaxed);
        *bytes += taken & !LACKS;
        taken & LACKS == 0
    }

    /// Gives the bytes of a request back.
    #[inline]
    pub(super) fn end(&self, bytes: usize) {
        self.account.release(bytes);
    }

    /// Returns unused blocks to the pool, but keeps one for the next requests.
    #[inline]
    pub(super) fn end_turn(&self) {
        self.account.return_unused(1);
    }

    /// Returns all unused blocks to the pool.
    pub(super) fn return_unused(&self) {
        self.account.return_unused(0);
    }
}

/// Returns the memory of header fields.
#[inline]
fn head_bytes(headers: &HeaderMap) -> usize {
    let texts: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    // The map has capacity for more fields than it has, but not for repeated fields.
    texts + FIELD_BYTES * (headers.capacity() + 2 * (headers.len() - headers.keys_len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_flight(bytes: usize) -> (InFlight, Metrics) {
        let metrics = Metrics::new();
        let pool = Arc::new(pool(bytes, &metrics));
        (InFlight::new(&pool, metrics.in_flight_refused.clone()), metrics)
    }

    #[test]
    fn a_request_is_counted_with_its_head_and_its_body_until_it_ends() {
        let (in_flight, metrics) = in_flight(1 << 20);
        let request = Request::get("/v1/check").header("a", "b".repeat(10_000)).body(()).unwrap();
        let mut bytes = in_flight.begin(&request).unwrap();
        assert!(bytes > 10_000 + REQUEST_BYTES && bytes < 10_000 + 2 * REQUEST_BYTES, "{bytes}");
        in_flight.begin_poll();
        assert!(in_flight.read(10_000, &mut 0, 0) && in_flight.end_poll(&mut bytes));
        assert!(bytes > 50_000 && in_flight.account.held() == bytes, "{bytes}");
        assert!(metrics.in_flight.get() > 30_000);
        in_flight.end(bytes);
        in_flight.return_unused();
        assert_eq!((in_flight.account.held(), metrics.in_flight.get()), (0, 0));
    }

    #[test]
    fn what_does_not_fit_is_counted_as_refused_and_takes_nothing() {
        let (in_flight, metrics) = in_flight(0);
        let small = Request::get("/v1/check").body(()).unwrap();
        let mut bytes = in_flight.begin(&small).expect("each connection has bytes of its own");
        in_flight.begin_poll();
        assert!(!in_flight.read(OWN_BYTES, &mut 0, 0) && !in_flight.end_poll(&mut bytes));
        in_flight.begin_poll();
        assert!(in_flight.end_poll(&mut bytes), "the next request is not concerned");
        in_flight.end(bytes);
        let large = Request::get("/v1/check").header("a", "b".repeat(OWN_BYTES)).body(()).unwrap();
        assert_eq!(in_flight.begin(&large), None);
        assert_eq!((metrics.in_flight_refused.get(), in_flight.account.held()), (2, 0));
    }
    #[test]
    fn a_body_that_a_task_of_its_own_reads_has_its_bytes_itself_and_concerns_no_other_request() {
        let (in_flight, metrics) = in_flight(0);
        let request = Request::get("/v1/check").body(()).unwrap();
        let mut of_body = 0;
        for _ in 0..1000 {
            assert!(in_flight.read(1000, &mut of_body, 500), "only the last piece and the queue are counted");
        }
        assert_eq!((of_body, in_flight.account.held()), (BODY_FACTOR * 1000 + 500, BODY_FACTOR * 1000 + 500));
        assert!(!in_flight.read(OWN_BYTES, &mut of_body, 0));
        assert_eq!((of_body, in_flight.account.held(), metrics.in_flight_refused.get()), (0, 0, 1));
        let mut bytes = in_flight.begin(&request).unwrap();
        let of_head = bytes;
        in_flight.begin_poll();
        assert!(in_flight.end_poll(&mut bytes), "the other request has lacked nothing");
        assert_eq!(bytes, of_head, "the other request has read nothing");
    }
}
