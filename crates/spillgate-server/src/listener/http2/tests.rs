//! What a client over the network cannot bring about, or not at will.

use std::convert::Infallible;
use std::io;
use std::sync::atomic::AtomicBool;

use h2::client::{ResponseFuture, SendRequest};
use http::StatusCode;
use http_body::Frame;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadBuf, duplex};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::*;
use crate::listener::io::Transport;
use crate::listener::unread::Pool;
use crate::metrics::Metrics;
use crate::protocol::grpc::AnswerBody;

const PATIENCE: Duration = Duration::from_secs(10);
const STREAMS_MAX: usize = 10 * WAITING_MAX;
const POOL_BYTES: usize = 4 << 20;
const LONG_BYTES: usize = 900 << 10;

/// Counts what is written in one go.
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

/// A body that panics when it is asked for.
struct Broken;

impl Body for Broken {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut task::Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        panic!("as this test wants it");
    }
}

/// The other end of a connection that answers calls of `/wait` when there is a permit, calls of `/broken` by a body
/// that panics, calls of `/long` and `/too_long` by long ones, and all others at once.
struct Served {
    client: DuplexStream,
    permits: Arc<Semaphore>,
    /// When calls of `/wait` came that have begun.
    begun: Arc<Mutex<Vec<Instant>>>,
    /// Tells the connection to go.
    go: Arc<AtomicBool>,
    writes: Arc<AtomicU64>,
    metrics: Arc<Metrics>,
    activity: Arc<Activity>,
}

/// A connection, and what serves it until it ends; says whether in peace.
fn served(told_to_go: bool) -> (Served, impl Future<Output = bool>) {
    let (client, inner) = duplex(1 << 20);
    let (permits, writes) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicU64::new(0)));
    let (begun, go) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(told_to_go)));
    let metrics = Arc::new(Metrics::new());
    let activity = Arc::new(Activity::new(&metrics, &Arc::new(Pool::new(POOL_BYTES))));
    let io = Transport::new(Writes { inner, count: Arc::clone(&writes) }, Arc::clone(&activity.bytes));
    let seen = Arc::clone(&activity);
    let (gate, waited, told_to_go) = (Arc::clone(&permits), Arc::clone(&begun), Arc::clone(&go));
    let ended = async move {
        let answer = |(request, mut respond): Stream, came: Instant| {
            let (gate, waited) = (Arc::clone(&gate), Arc::clone(&waited));
            let (hold, activity) = (Hold::of_call(&activity), Arc::clone(&activity));
            async move {
                if request.uri().path() == "/wait" {
                    waited.lock().push(came);
                    gate.acquire().await.expect("it stays open").forget();
                }
                let body = match request.uri().path() {
                    "/broken" => AnswerBody::Other(tonic::body::Body::new(Broken)),
                    "/long" => AnswerBody::Message(vec![7; LONG_BYTES].into()),
                    "/too_long" => AnswerBody::Message(vec![7; 5 << 20].into()),
                    _ => AnswerBody::End,
                };
                give(Response::new(body), &mut respond, hold, &activity).await;
            }
        };
        let mut streams = Streams {
            state: State::Greeting { handshake: Builder::new().handshake(io), told_to_go: false },
            read: VecDeque::new(),
            runner: Runner::new(),
            answer,
            at_one_time: |row: &mut dyn FnMut()| row(),
            activity: &activity,
            streams_max: STREAMS_MAX,
            patience: PATIENCE,
        };
        let mut active_at = Instant::now();
        poll_fn(|cx| {
            if told_to_go.swap(false, Ordering::Relaxed) {
                streams.graceful_shutdown();
            }
            streams.poll(cx, &mut active_at)
        })
        .await
    };
    (Served { client, permits, begun, go, writes, metrics, activity: seen }, ended)
}

impl Served {
    async fn client(self) -> (SendRequest<Bytes>, Arc<Semaphore>, Arc<AtomicU64>) {
        let (client, connection) = h2::client::handshake(self.client).await.expect("a greeting");
        tokio::spawn(connection);
        (client, self.permits, self.writes)
    }
}

async fn ask(client: &mut SendRequest<Bytes>, path: &str) -> ResponseFuture {
    let request = Request::get(format!("http://test{path}")).body(()).expect("a request");
    *client = client.clone().ready().await.expect("the server is there");
    client.send_request(request, true).expect("it can be sent").0
}

async fn is_answered(response: ResponseFuture) {
    assert_eq!(response.await.expect("an answer").status(), StatusCode::OK);
}

#[tokio::test]
async fn what_was_read_together_leaves_in_one_write() {
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
        in_peace = ended => panic!("the connection ended, in peace: {in_peace}"),
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
        in_peace = ended => panic!("the connection ended, in peace: {in_peace}"),
    }
}

/// Asks for `/wait` that often at once, and waits for the end of the first row.
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
async fn others_have_a_turn_after_each_row_and_a_call_comes_when_it_is_read() {
    let (server, ended) = served(false);
    let asking = async {
        let begun = Arc::clone(&server.begun);
        let (mut client, permits, _) = server.client().await;
        let answers = ask_rows(&mut client, &begun, 3 * WAITING_MAX).await;
        let other = ask(&mut client, "/").await;
        for rows in 2..=3 {
            tokio::time::advance(Duration::from_millis(1)).await;
            assert_eq!(begun.lock().len(), rows * WAITING_MAX);
        }
        let came = begun.lock().clone();
        assert!(came.iter().all(|then| *then == came[0]), "they came together");
        is_answered(other).await;
        permits.add_permits(3 * WAITING_MAX);
        for answer in answers {
            is_answered(answer).await;
        }
    };
    tokio::select! {
        biased;
        () = asking => {}
        in_peace = ended => panic!("the connection ended, in peace: {in_peace}"),
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_calls_lie_read_than_may_be_open() {
    let (server, ended) = served(false);
    let asking = async {
        let begun = Arc::clone(&server.begun);
        let (mut client, ..) = server.client().await;
        let _answers = ask_rows(&mut client, &begun, 2 * STREAMS_MAX).await;
        while begun.lock().len() < 2 * STREAMS_MAX {
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        begun.lock().clone()
    };
    tokio::select! {
        biased;
        came = asking => assert_eq!(came.iter().filter(|then| **then == came[0]).count(), STREAMS_MAX),
        in_peace = ended => panic!("the connection ended, in peace: {in_peace}"),
    }
}

#[tokio::test]
async fn a_call_that_is_taken_back_before_its_row_is_not_begun() {
    let (server, ended) = served(false);
    let asking = async {
        let begun = Arc::clone(&server.begun);
        let (mut client, permits, _) = server.client().await;
        let mut answers = ask_rows(&mut client, &begun, 4 * WAITING_MAX).await;
        answers.truncate(2 * WAITING_MAX);
        // Those that are kept begin before it is heard of the others.
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
        begun = asking => assert_eq!(begun, 2 * WAITING_MAX, "calls have begun"),
        in_peace = ended => panic!("the connection ended, in peace: {in_peace}"),
    }
}

#[tokio::test]
async fn a_connection_that_goes_answers_all_that_it_has_read() {
    let (server, ended) = served(false);
    let asking = async {
        let (begun, go) = (Arc::clone(&server.begun), Arc::clone(&server.go));
        let (mut client, permits, _) = server.client().await;
        let answers = ask_rows(&mut client, &begun, 3 * WAITING_MAX).await;
        go.store(true, Ordering::Relaxed);
        permits.add_permits(3 * WAITING_MAX);
        for answer in answers {
            is_answered(answer).await;
        }
    };
    let ((), in_peace) = tokio::join!(biased; asking, ended);
    assert!(in_peace);
}

#[tokio::test]
async fn a_body_that_panics_is_counted_and_ends_its_call_alone() {
    let (server, ended) = served(false);
    let asking = async {
        let metrics = Arc::clone(&server.metrics);
        let (mut client, ..) = server.client().await;
        let (broken, whole) = (ask(&mut client, "/broken").await, ask(&mut client, "/").await);
        is_answered(whole).await;
        let failed = async { broken.await?.into_body().data().await.expect("a body or a failure") };
        assert_eq!(failed.await.expect_err("it has no body").reason(), Some(Reason::INTERNAL_ERROR));
        assert_eq!(metrics.panics.get(), 1);
    };
    tokio::select! {
        () = asking => {}
        in_peace = ended => panic!("the connection ended, in peace: {in_peace}"),
    }
}

#[tokio::test]
async fn long_answers_that_nobody_reads_hold_up_the_next_calls() {
    const CALLS: usize = 20;
    let (server, ended) = served(false);
    let asking = async {
        let activity = Arc::clone(&server.activity);
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(0).initial_connection_window_size(1 << 30);
        let (mut client, mut connection) = builder.handshake::<_, Bytes>(server.client).await.expect("a greeting");
        let mut pings = connection.ping_pong().expect("the first time");
        let (listen, listening) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            tokio::select! {
                _ = &mut connection => return,
                _ = listening => connection.set_initial_window_size(1 << 30).expect("a window"),
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
            assert!((3 << 20..=4 << 20).contains(&held), "{held} bytes");
        }
        listen.send(()).expect("the connection stands");
        for answer in answers {
            let mut body = answer.await.expect("an answer").into_body();
            let mut bytes = 0;
            while let Some(data) = body.data().await {
                bytes += data.expect("it is whole").len();
            }
            assert_eq!(bytes, LONG_BYTES);
        }
        while activity.unread.held() > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = asking => {}
        in_peace = ended => panic!("the connection ended, in peace: {in_peace}"),
    }
}

#[tokio::test]
async fn an_answer_above_what_a_connection_may_hold_ends_its_call_alone() {
    let (server, ended) = served(false);
    let asking = async {
        let (mut client, ..) = server.client().await;
        let (long, whole) = (ask(&mut client, "/too_long").await, ask(&mut client, "/").await);
        is_answered(whole).await;
        let failed = async { long.await?.into_body().data().await.expect("a body or a failure") };
        assert_eq!(failed.await.expect_err("it has no body").reason(), Some(Reason::ENHANCE_YOUR_CALM));
    };
    tokio::select! {
        () = asking => {}
        in_peace = ended => panic!("the connection ended, in peace: {in_peace}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_answers_no_ping_is_left() {
    let (mut server, ended) = served(false);
    let born = Instant::now();
    let greeting = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\0\x04\x01\0\0\0\0";
    server.client.write_all(greeting).await.expect("the server reads");
    assert!(!ended.await, "this is no way to go");
    // One look found the greeting, the second one silence, the third one no answer.
    let lived = Instant::now() - born;
    assert!(lived >= 2 * PING_EVERY + PATIENCE && lived < 3 * PING_EVERY + PATIENCE, "{lived:?}");
    let mut said = Vec::new();
    server.client.read_to_end(&mut said).await.expect("what the server said");
    let ping = b"\0\0\x08\x06\0\0\0\0\0";
    assert_eq!(said.windows(ping.len()).filter(|window| window == ping).count(), 1);
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
    assert!(ended.is_err(), "it is kept");
}

#[tokio::test(start_paused = true)]
async fn who_is_told_to_go_while_greeting_goes() {
    let (server, ended) = served(true);
    let leaving = async {
        let (_client, connection) = h2::client::handshake(server.client).await.expect("a greeting");
        connection.await.expect("it ends in peace");
    };
    let both = async { tokio::join!(leaving, ended) };
    timeout(PATIENCE, both).await.expect("both have gone");
}
