//! Tests of HTTP/2 connections within one process. The handler of `/wait` waits until the test gives it a permit.
//!
//! A client over the network could not cause these situations reliably.

use std::convert::Infallible;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64};

use h2::client::{ResponseFuture, SendRequest};
use http::StatusCode;
use http_body::Frame;
use parking_lot::Mutex;
use spillgate_grpc::AnswerBody;
use spillgate_service::metrics::Metrics;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadBuf, duplex};
use tokio::sync::Semaphore;

use super::*;
use crate::listener::context::Pools;
use crate::listener::io::Transport;

const PATIENCE: Duration = Duration::from_secs(60);
const STREAMS_MAX: usize = 10 * WAITING_MAX;
const POOL_BYTES: usize = 4 << 20;
const LONG_BYTES: usize = 900 << 10;

/// A stream that counts how often it is written to.
struct Writes {
    inner: DuplexStream,
    count: Arc<AtomicU64>,
}

impl AsyncRead for Writes {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for Writes {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.count.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// A body that panics when it is read.
struct Broken;

impl Body for Broken {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut task::Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        panic!("this test wants a panic");
    }
}

/// The client's end of a connection.
///
/// The server answers a call of `/wait` after the test adds a permit to `permits`. It answers `/broken` with a body
/// that panics, and `/long` and `/too_long` with long bodies. It answers all other paths at once.
struct Served {
    client: DuplexStream,
    permits: Arc<Semaphore>,
    /// The arrival times of the calls of `/wait` that have begun.
    begun: Arc<Mutex<Vec<Instant>>>,
    /// The test sets this flag to true to shut down the connection.
    shut_down: Arc<AtomicBool>,
    writes: Arc<AtomicU64>,
    metrics: Arc<Metrics>,
    activity: Arc<Activity>,
}

/// Returns a connection, and the future that serves it. The future returns whether the connection ended without an
/// error.
fn served(shutdown_requested: bool) -> (Served, impl Future<Output = bool>) {
    let (client, inner) = duplex(1 << 20);
    let (permits, writes) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicU64::new(0)));
    let (begun, shut_down) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(shutdown_requested)));
    let metrics = Arc::new(Metrics::new());
    let limits = Limits { unread: POOL_BYTES, in_flight: 64 << 20, ..Limits::default() };
    let activity = Arc::new(Activity::new(&metrics, &Pools::new(&limits, &metrics), PATIENCE));
    let io = Transport::new(Writes { inner, count: Arc::clone(&writes) }, Arc::clone(&activity.turn));
    let seen = Arc::clone(&activity);
    let (gate, waited, shutdown_requested) = (Arc::clone(&permits), Arc::clone(&begun), Arc::clone(&shut_down));
    let ended = async move {
        let answer = |Read { stream: (request, mut respond), arrived, bytes }: Read, _: Option<Time>| {
            let (gate, waited) = (Arc::clone(&gate), Arc::clone(&waited));
            let (hold, activity) = (HeldBytes::of_call(&activity, bytes), Arc::clone(&activity));
            async move {
                if request.uri().path() == "/wait" {
                    waited.lock().push(arrived);
                    gate.acquire().await.expect("the semaphore stays open").forget();
                }
                let body = match request.uri().path() {
                    "/broken" => AnswerBody::Other(tonic::body::Body::new(Broken)),
                    "/long" => AnswerBody::Message(vec![7; LONG_BYTES].into()),
                    "/too_long" => AnswerBody::Message(vec![7; 5 << 20].into()),
                    _ => AnswerBody::End,
                };
                send_answer(Response::new(body), &mut respond, hold, &activity).await;
            }
        };
        let mut streams = Streams {
            state: State::Greeting { handshake: Builder::new().handshake(io), shutdown_requested: false },
            read: VecDeque::new(),
            kept: 0,
            peak: PEAK_FREE,
            has_queue: false,
            runner: Runner::new(),
            answer,
            now: || None,
            activity: &activity,
            streams_max: STREAMS_MAX,
            ping_timeout: PATIENCE,
        };
        let mut active_at = Instant::now();
        poll_fn(|cx| {
            if shutdown_requested.swap(false, Ordering::Relaxed) {
                streams.graceful_shutdown();
            }
            streams.activity.turn.begin();
            streams.poll(cx, &mut active_at)
        })
        .await
    };
    (Served { client, permits, begun, shut_down, writes, metrics, activity: seen }, ended)
}

impl Served {
    async fn client(self) -> (SendRequest<Bytes>, Arc<Semaphore>, Arc<AtomicU64>) {
        let (client, connection) = h2::client::handshake(self.client).await.expect("the greeting succeeds");
        tokio::spawn(connection);
        (client, self.permits, self.writes)
    }
}

async fn ask(client: &mut SendRequest<Bytes>, path: &str) -> ResponseFuture {
    let request = Request::get(format!("http://test{path}")).body(()).expect("the request is valid");
    *client = client.clone().ready().await.expect("the server is ready");
    client.send_request(request, true).expect("the request can be sent").0
}

async fn is_answered(response: ResponseFuture) {
    assert_eq!(response.await.expect("the server answers").status(), StatusCode::OK);
}

#[tokio::test]
async fn answers_to_calls_that_were_read_together_leave_in_one_write() {
    let (server, ended) = served(false);
    let asking = async {
        let (mut client, _, writes) = server.client().await;
        for _ in 0..2 {
            is_answered(ask(&mut client, "/").await).await;
        }
        let before = writes.load(Ordering::Relaxed);
        let mut answers = Vec::new();
        for _ in 0..100 {
            answers.push(ask(&mut client, "/").await);
        }
        for answer in answers {
            is_answered(answer).await;
        }
        writes.load(Ordering::Relaxed) - before
    };
    tokio::select! {
        writes = asking => assert_eq!(writes, 1),
        without_error = ended => panic!("the connection ended too early; it ended without an error: {without_error}"),
    }
}

#[tokio::test]
async fn a_decision_that_waits_holds_up_no_other_and_answers_come_in_any_order() {
    let (server, ended) = served(false);
    let asking = async {
        let (mut client, permits, _) = server.client().await;
        let (first, second) = (ask(&mut client, "/wait").await, ask(&mut client, "/wait").await);
        for _ in 0..100 {
            is_answered(ask(&mut client, "/").await).await;
        }
        permits.add_permits(2);
        is_answered(second).await;
        is_answered(first).await;
    };
    tokio::select! {
        () = asking => {}
        without_error = ended => panic!("the connection ended too early; it ended without an error: {without_error}"),
    }
}

/// Sends `calls` calls of `/wait` together. Waits until the server has begun the first [`WAITING_MAX`] calls, which are
/// the first batch.
async fn ask_rows(client: &mut SendRequest<Bytes>, begun: &Mutex<Vec<Instant>>, calls: usize) -> Vec<ResponseFuture> {
    is_answered(ask(client, "/").await).await;
    let mut answers = Vec::new();
    for _ in 0..calls {
        answers.push(ask(client, "/wait").await);
    }
    while begun.lock().is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(begun.lock().len(), WAITING_MAX);
    answers
}

#[tokio::test(start_paused = true)]
async fn other_tasks_have_a_turn_after_each_row_and_a_call_arrives_when_it_is_read() {
    let (server, ended) = served(false);
    let asking = async {
        let begun = Arc::clone(&server.begun);
        let (mut client, permits, _) = server.client().await;
        let answers = ask_rows(&mut client, &begun, 3 * WAITING_MAX).await;
        let other = ask(&mut client, "/").await;
        for batches in 2..=3 {
            tokio::time::advance(Duration::from_millis(1)).await;
            assert_eq!(begun.lock().len(), batches * WAITING_MAX);
        }
        let arrivals = begun.lock().clone();
        assert!(arrivals.iter().all(|time| *time == arrivals[0]), "all calls arrived together");
        is_answered(other).await;
        permits.add_permits(3 * WAITING_MAX);
        for answer in answers {
            is_answered(answer).await;
        }
    };
    tokio::select! {
        biased;
        () = asking => {}
        without_error = ended => panic!("the connection ended too early; it ended without an error: {without_error}"),
    }
}

#[tokio::test]
async fn calls_that_are_reset_before_they_begin_neither_stay_in_h2_nor_in_the_server() {
    const ROUNDS: usize = 6;
    let (server, ended) = served(false);
    let asking = async {
        let (activity, metrics) = (Arc::clone(&server.activity), Arc::clone(&server.metrics));
        // No call begins while unread answers take all that the connection can have.
        activity.unread.hold(4 << 20);
        let (mut client, ..) = server.client().await;
        for round in 1..=ROUNDS {
            let mut answers = Vec::new();
            for _ in 0..STREAMS_MAX {
                answers.push(ask(&mut client, "/wait").await);
            }
            let all_are_read = async {
                while activity.begun.load(Ordering::Relaxed) < (round * STREAMS_MAX) as u64 {
                    tokio::task::yield_now().await;
                }
            };
            timeout(PATIENCE, all_are_read).await.expect("the server reads all calls, so that it counts them");
        }
        activity.unread.release(4 << 20);
        metrics.in_flight.get()
    };
    tokio::select! {
        bytes = asking => assert!(bytes < 3 * STREAMS_MAX as i64 * (12 << 10), "{bytes} bytes are taken"),
        without_error = ended => panic!("the connection ended too early; it ended without an error: {without_error}"),
    }
}

#[tokio::test]
async fn a_call_that_is_reset_before_its_row_is_not_begun() {
    let (server, ended) = served(false);
    let asking = async {
        let begun = Arc::clone(&server.begun);
        let (mut client, permits, _) = server.client().await;
        let mut answers = ask_rows(&mut client, &begun, 4 * WAITING_MAX).await;
        answers.truncate(2 * WAITING_MAX);
        // The calls that are kept begin before the server reads the resets of the other calls.
        while begun.lock().len() < 2 * WAITING_MAX {
            tokio::task::yield_now().await;
        }
        permits.add_permits(4 * WAITING_MAX);
        for answer in answers {
            is_answered(answer).await;
        }
        is_answered(ask(&mut client, "/").await).await;
        begun.lock().len()
    };
    tokio::select! {
        biased;
        begun = asking => assert_eq!(begun, 2 * WAITING_MAX, "only the calls that were not reset have begun"),
        without_error = ended => panic!("the connection ended too early; it ended without an error: {without_error}"),
    }
}

#[tokio::test]
async fn a_connection_that_shuts_down_answers_all_calls_that_it_has_read() {
    let (server, ended) = served(false);
    let asking = async {
        let (begun, shut_down) = (Arc::clone(&server.begun), Arc::clone(&server.shut_down));
        let (mut client, permits, _) = server.client().await;
        let answers = ask_rows(&mut client, &begun, 3 * WAITING_MAX).await;
        shut_down.store(true, Ordering::Relaxed);
        permits.add_permits(3 * WAITING_MAX);
        for answer in answers {
            is_answered(answer).await;
        }
    };
    let ((), without_error) = tokio::join!(biased; asking, ended);
    assert!(without_error);
}

#[tokio::test]
async fn a_body_that_panics_is_counted_and_ends_its_call_alone() {
    let (server, ended) = served(false);
    let asking = async {
        let metrics = Arc::clone(&server.metrics);
        let (mut client, ..) = server.client().await;
        let (broken, whole) = (ask(&mut client, "/broken").await, ask(&mut client, "/").await);
        is_answered(whole).await;
        let failed = async { broken.await?.into_body().data().await.expect("the answer has a body or fails") };
        assert_eq!(failed.await.expect_err("the answer fails").reason(), Some(Reason::INTERNAL_ERROR));
        assert_eq!(metrics.panics.get(), 1);
    };
    tokio::select! {
        () = asking => {}
        without_error = ended => panic!("the connection ended too early; it ended without an error: {without_error}"),
    }
}

#[tokio::test]
async fn long_answers_that_are_not_read_hold_up_the_next_calls() {
    const CALLS: usize = 20;
    let (server, ended) = served(false);
    let asking = async {
        let activity = Arc::clone(&server.activity);
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(0).initial_connection_window_size(1 << 30);
        let (mut client, mut connection) =
            builder.handshake::<_, Bytes>(server.client).await.expect("the greeting succeeds");
        let mut pings = connection.ping_pong().expect("ping_pong was not called before");
        let (listen, listening) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            tokio::select! {
                _ = &mut connection => return,
                _ = listening => connection.set_initial_window_size(1 << 30).expect("the new window size is valid"),
            }
            drop(connection.await);
        });
        let mut answers = Vec::new();
        for _ in 0..CALLS {
            answers.push(ask(&mut client, "/long").await);
        }
        for _ in 0..3 {
            pings.ping(Ping::opaque()).await.expect("the server answers");
            let held = activity.unread.held();
            assert!((3 << 20..=4 << 20).contains(&held), "the unread answers use {held} bytes");
        }
        listen.send(()).expect("the connection is open");
        for answer in answers {
            let mut body = answer.await.expect("the server answers").into_body();
            let mut bytes = 0;
            while let Some(data) = body.data().await {
                bytes += data.expect("the answer is complete").len();
            }
            assert_eq!(bytes, LONG_BYTES);
        }
        while activity.unread.held() > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = asking => {}
        without_error = ended => panic!("the connection ended too early; it ended without an error: {without_error}"),
    }
}

#[tokio::test]
async fn an_answer_larger_than_a_connection_may_keep_ends_its_call_alone() {
    let (server, ended) = served(false);
    let asking = async {
        let (mut client, ..) = server.client().await;
        let (long, whole) = (ask(&mut client, "/too_long").await, ask(&mut client, "/").await);
        is_answered(whole).await;
        let failed = async { long.await?.into_body().data().await.expect("the answer has a body or fails") };
        assert_eq!(failed.await.expect_err("the answer fails").reason(), Some(Reason::ENHANCE_YOUR_CALM));
    };
    tokio::select! {
        () = asking => {}
        without_error = ended => panic!("the connection ended too early; it ended without an error: {without_error}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_answers_no_ping_is_closed() {
    let (mut server, ended) = served(false);
    let opened_at = Instant::now();
    let greeting = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\0\x04\x01\0\0\0\0";
    server.client.write_all(greeting).await.expect("the server reads");
    assert!(!ended.await, "the connection ends with an error");
    // The first check of the server saw the greeting. The second check saw no new bytes and sent a PING. The third
    // check saw no answer to the PING.
    let lived = Instant::now() - opened_at;
    assert!(
        lived >= 2 * PING_EVERY + PATIENCE && lived < 3 * PING_EVERY + PATIENCE,
        "the connection ended after {lived:?}"
    );
    let mut sent = Vec::new();
    server.client.read_to_end(&mut sent).await.expect("the bytes of the server can be read");
    let ping = b"\0\0\x08\x06\0\0\0\0\0";
    assert_eq!(sent.windows(ping.len()).filter(|window| window == ping).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_answers_every_ping_is_kept() {
    let (server, ended) = served(false);
    let asking = async {
        let (mut client, ..) = server.client().await;
        is_answered(ask(&mut client, "/").await).await;
        client
    };
    let (_client, ended) = tokio::join!(asking, timeout(20 * PING_EVERY, ended));
    assert!(ended.is_err(), "the connection is kept");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_asked_to_close_while_it_greets_closes() {
    let (server, ended) = served(true);
    let leaving = async {
        let (_client, connection) = h2::client::handshake(server.client).await.expect("the greeting succeeds");
        connection.await.expect("the connection ends without an error");
    };
    let both = async { tokio::join!(leaving, ended) };
    timeout(PATIENCE, both).await.expect("the client and the server have ended");
}

/// Takes the bytes that requests may take, except `left` of them.
fn use_up(activity: &Activity, left: usize) {
    while activity.in_flight.take(4 << 10) {}
    activity.in_flight.end(left);
}

/// Sends `calls` calls together, and returns how many of them the server refused. It answers no other.
async fn count_refused(client: &mut SendRequest<Bytes>, path: &str, calls: usize) -> usize {
    let mut answers = Vec::new();
    for _ in 0..calls {
        answers.push(ask(client, path).await);
    }
    let mut refused = 0;
    for answer in answers {
        let answer = tokio::time::timeout(PATIENCE, answer).await;
        refused += usize::from(matches!(answer, Ok(Err(error)) if error.reason() == Some(Reason::REFUSED_STREAM)));
    }
    refused
}

#[tokio::test]
async fn a_connection_whose_streams_are_refused_keeps_its_begun_calls() {
    let (server, ended) = served(false);
    let asking = async {
        let (activity, metrics, begun) =
            (Arc::clone(&server.activity), Arc::clone(&server.metrics), Arc::clone(&server.begun));
        let (mut client, permits, _) = server.client().await;
        let waiting = ask(&mut client, "/wait").await;
        while begun.lock().is_empty() {
            tokio::task::yield_now().await;
        }
        use_up(&activity, 0);
        assert_eq!(count_refused(&mut client, "/", 50).await, 50);
        assert_eq!(metrics.in_flight_refused.get(), 50);
        permits.add_permits(1);
        is_answered(waiting).await;
    };
    tokio::select! {
        () = asking => {}
        without_error = ended => panic!("the connection ended too early; it ended without an error: {without_error}"),
    }
}

#[tokio::test]
async fn a_connection_whose_tables_do_not_fit_ends_and_counts_each_lost_call() {
    let (server, ended) = served(false);
    let metrics = Arc::clone(&server.metrics);
    let asking = async {
        let (activity, begun) = (Arc::clone(&server.activity), Arc::clone(&server.begun));
        let (mut client, ..) = server.client().await;
        let _waiting = [ask(&mut client, "/wait").await, ask(&mut client, "/wait").await];
        while begun.lock().len() < 2 {
            tokio::task::yield_now().await;
        }
        use_up(&activity, 0);
        while activity.in_flight.take_for_tables(4 << 10) {}
        count_refused(&mut client, "/", 50).await
    };
    tokio::select! {
        refused = asking => panic!("the connection is open, and refused {refused} calls"),
        without_error = ended => assert!(!without_error),
    }
    assert_eq!(metrics.in_flight_refused.get(), 52);
}

#[tokio::test(start_paused = true)]
async fn each_stream_whose_queue_does_not_fit_is_counted_as_refused() {
    let (server, ended) = served(false);
    let asking = async {
        let (activity, metrics) = (Arc::clone(&server.activity), Arc::clone(&server.metrics));
        let (mut client, ..) = server.client().await;
        is_answered(ask(&mut client, "/").await).await;
        use_up(&activity, 600 << 10);
        assert_eq!(count_refused(&mut client, "/wait", WAITING_MAX + 8).await, 8);
        metrics.in_flight_refused.get()
    };
    tokio::select! {
        refused = asking => assert_eq!(refused, 8),
        without_error = ended => panic!("the connection ended too early; it ended without an error: {without_error}"),
    }
}
