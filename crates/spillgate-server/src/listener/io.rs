//! The layer between a socket and HTTP.
//!
//! This layer counts the bytes that are read, closes a socket without losing answers, and gives bodies a time limit.
//! Without this layer, a slow client could keep a connection forever, and a quick close could lose an answer.

use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use h2::RecvStream;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};
use tower::BoxError;

use super::activity::Activity;
use super::connection::CLOSE_TIMEOUT;
use super::turn::{Turn, wake_after_others};

/// The maximum number of bytes that are read and discarded after the last answer. This number is enough for an HTTP/2
/// client: it can send only the bytes of bodies that the server's flow-control window allows, and some request heads.
/// If a client sends more, its socket is reset.
const DISCARDED_BYTES: usize = 1024 * 1024;
/// One read discards at most this many bytes.
const DISCARDED_AT_ONCE_BYTES: usize = 4 * 1024;

/// A stream that counts the bytes it reads, and closes without losing what was written. While the client reads nothing,
/// so that the socket accepts no more, nothing is read from it either.
///
/// If a socket is closed while the client still writes, the system answers with a reset. A client that gets a reset can
/// drop answers that it has received and not read. Therefore the server shuts down its side first. Then it reads until
/// the client has closed its side, but not longer than [`CLOSE_TIMEOUT`] and not more than [`DISCARDED_BYTES`]. Then it
/// closes the socket.
#[derive(Debug)]
pub(super) struct Transport<T> {
    inner: T,
    turn: Arc<Turn>,
    /// Bytes that were read from the socket already, and that the next read returns again.
    again: Bytes,
    /// `None` until the server has shut down its side.
    ending: Option<Ending>,
}

/// The last part of a connection, after the server has shut down its side.
#[derive(Debug)]
struct Ending {
    /// The end of [`CLOSE_TIMEOUT`], after which the server reads no more.
    timeout: Pin<Box<Sleep>>,
    /// The bytes that were read and discarded since the server has shut down its side.
    bytes: usize,
}

impl<T> Transport<T> {
    pub(super) fn new(inner: T, turn: Arc<Turn>) -> Transport<T> {
        Transport { inner, turn, again: Bytes::new(), ending: None }
    }

    /// Makes the next read return these bytes again.
    pub(super) fn read_again(&mut self, bytes: &[u8]) {
        self.again = Bytes::copy_from_slice(bytes);
    }

    /// Notes whether the socket accepted nothing of a write. After it has accepted something again, the task is polled
    /// once more, because no read was registered meanwhile.
    #[inline]
    fn wrote(&self, cx: &Context<'_>, is_blocked: bool) {
        if self.turn.wrote(is_blocked) && !is_blocked {
            cx.waker().wake_by_ref();
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Transport<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.again.is_empty() {
            let length = self.again.len().min(buf.remaining());
            buf.put_slice(&self.again[..length]);
            self.again.advance(length);
            return Poll::Ready(Ok(()));
        }
        if self.turn.is_blocked() {
            // A client that does not read must not make the server keep more for it. The write that ends this wakes the
            // task.
            return Poll::Pending;
        }
        if self.turn.is_over() {
            wake_after_others(cx);
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(cx, buf);
        self.turn.add(buf.filled().len() - before);
        polled
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Transport<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.wrote(cx, polled.is_pending());
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.ending.is_none() {
            ready!(Pin::new(&mut this.inner).poll_shutdown(cx))?;
        }
        let ending = this.ending.get_or_insert_with(|| Ending { timeout: Box::pin(sleep(CLOSE_TIMEOUT)), bytes: 0 });
        if ending.timeout.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        let mut discarded = [0; DISCARDED_AT_ONCE_BYTES];
        while ending.bytes < DISCARDED_BYTES {
            let mut buf = ReadBuf::new(&mut discarded);
            let read = ready!(Pin::new(&mut this.inner).poll_read(cx, &mut buf));
            // After an error the client is gone. Therefore an error also ends the reading.
            if read.is_err() || buf.filled().is_empty() {
                break;
            }
            ending.bytes += buf.filled().len();
        }
        Poll::Ready(Ok(()))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.wrote(cx, polled.is_pending());
        polled
    }
}

/// The request body of an HTTP/2 stream.
#[derive(Debug)]
pub(super) struct StreamBody {
    stream: RecvStream,
    data_ended: bool,
}

impl StreamBody {
    pub(super) fn new(stream: RecvStream) -> StreamBody {
        StreamBody { stream, data_ended: false }
    }
}

impl Body for StreamBody {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        if !self.data_ended {
            if let Some(data) = ready!(self.stream.poll_data(cx)) {
                let data = data?;
                // The code that reads this body bounds how much of it is in memory. Therefore the client is allowed to
                // send one more byte for each byte that was read.
                self.stream.flow_control().release_capacity(data.len())?;
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
            self.data_ended = true;
        }
        let trailers = ready!(self.stream.poll_trailers(cx))?;
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }
}

/// The body of a request over HTTP/1 or HTTP/2.
#[derive(Debug)]
pub(super) enum RequestBody {
    Http1(Incoming),
    Http2(StreamBody),
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            RequestBody::Http1(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            RequestBody::Http2(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            RequestBody::Http1(body) => body.is_end_stream(),
            RequestBody::Http2(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            RequestBody::Http1(body) => body.size_hint(),
            RequestBody::Http2(body) => body.size_hint(),
        }
    }
}

/// A request's body with a time limit, whose memory is counted. The timer starts when a read has to wait for the first
/// time, so a body that has already arrived needs no timer.
pub(super) struct TimedBody<B> {
    inner: B,
    allowed: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    activity: Arc<Activity>,
    /// See [`InFlight::read`](super::in_flight::InFlight::read).
    in_flight: usize,
    /// What can arrive of this body while a task of its own does not read it.
    queue: usize,
}

impl<B> TimedBody<B> {
    pub(super) fn new(inner: B, allowed: Duration, activity: &Arc<Activity>) -> TimedBody<B> {
        TimedBody { inner, allowed, timer: None, activity: Arc::clone(activity), in_flight: 0, queue: 0 }
    }

    /// If a task of its own reads this body, the body also takes `queue` bytes from the first read until its end,
    /// because that task can stop reading for as long as its client wants.
    pub(super) fn with_queue(mut self, queue: usize) -> TimedBody<B> {
        self.queue = queue;
        self
    }
}

impl<B> Body for TimedBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.inner).poll_frame(cx) {
            if let Some(data) = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref())
                && !this.activity.in_flight.read(data.len(), &mut this.in_flight, this.queue)
            {
                let lacks = io::Error::new(io::ErrorKind::OutOfMemory, "the memory for requests in flight is used up");
                return Poll::Ready(Some(Err(lacks.into())));
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let timer = this.timer.get_or_insert_with(|| Box::pin(sleep(this.allowed)));
        match timer.as_mut().poll(cx) {
            Poll::Ready(()) => {
                let late = io::Error::new(io::ErrorKind::TimedOut, "the request's body did not arrive in time");
                Poll::Ready(Some(Err(late.into())))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl<B> Drop for TimedBody<B> {
    fn drop(&mut self) {
        if self.in_flight > 0 {
            self.activity.in_flight.end(self.in_flight);
        }
    }
}

/// The body of an answer that can wait for its next frame, such as a stream of events.
///
/// While the body waits, the client is not the reason that nothing is sent. So the connection counts as busy. If the
/// client reads nothing, the connection asks the body for no further frame. Then the body does not wait, and the
/// connection is closed as idle.
#[derive(Default)]
pub(super) struct WaitingBody<B> {
    inner: B,
    activity: Option<Arc<Activity>>,
    waits: bool,
}

impl<B> WaitingBody<B> {
    pub(super) fn new(inner: B, activity: &Arc<Activity>) -> WaitingBody<B> {
        WaitingBody { inner, activity: Some(Arc::clone(activity)), waits: false }
    }

    fn set_waits(&mut self, waits: bool) {
        let before = mem::replace(&mut self.waits, waits);
        let Some(activity) = self.activity.as_ref().filter(|_| before != waits) else { return };
        if waits {
            activity.open.fetch_add(1, Ordering::Relaxed);
        } else {
            activity.open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl<B: From<Bytes>> From<Bytes> for WaitingBody<B> {
    fn from(bytes: Bytes) -> WaitingBody<B> {
        WaitingBody { inner: bytes.into(), activity: None, waits: false }
    }
}

impl<B> Drop for WaitingBody<B> {
    fn drop(&mut self) {
        self.set_waits(false);
    }
}

impl<B: Body + Unpin> Body for WaitingBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(cx);
        self.set_waits(polled.is_pending());
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::pin::pin;
    use std::task::Waker;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    fn transport() -> (Transport<DuplexStream>, DuplexStream) {
        let (ours, clients) = duplex(64);
        let turn = Arc::new(Turn::default());
        turn.begin();
        (Transport::new(ours, turn), clients)
    }

    #[tokio::test]
    async fn closing_reads_what_the_client_still_writes_until_it_closes() {
        let (mut ours, mut client) = transport();
        ours.write_all(b"an answer").await.unwrap();
        let mut closing = Box::pin(ours.shutdown());
        let mut poll = || closing.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        // These bytes are more than the stream can buffer. The client can only write them if the server reads.
        for _ in 0..16 {
            assert!(poll().is_pending(), "the client has not closed its side");
            client.write_all(&[7; 64]).await.expect("no write of the client fails");
        }
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("the client reads the answer, and then the end");
        assert_eq!(answer, "an answer");
        drop(client);
        closing.await.expect("the client has closed its side");
    }

    #[tokio::test]
    async fn nothing_is_read_while_the_client_does_not_read() {
        let (mut ours, mut client) = transport();
        ours.write_all(&[7; 64]).await.unwrap();
        assert!(pin!(ours.write(&[7])).poll(&mut Context::from_waker(Waker::noop())).is_pending(), "the client reads");
        client.write_all(b"a request").await.unwrap();
        let mut request = [0; 9];
        let serving = async {
            // As h2 does, each poll reads first, and then writes.
            let mut sent = false;
            poll_fn(|cx| {
                let mut buf = ReadBuf::new(&mut request);
                let read = Pin::new(&mut ours).poll_read(cx, &mut buf);
                assert!(sent || read.is_pending(), "a request was read while the client does not read");
                sent = sent || Pin::new(&mut ours).poll_write(cx, &[8]).is_ready();
                read
            })
            .await
        };
        let mut answer = [0; 65];
        let reading = async {
            tokio::task::yield_now().await;
            client.read_exact(&mut answer).await
        };
        let (read, answered) = tokio::join!(serving, reading);
        read.expect("the connection is open");
        answered.expect("the connection is open");
        assert_eq!((&request, answer[64]), (b"a request", 8), "it is read as soon as the client has read");
    }

    #[tokio::test]
    async fn a_client_that_does_not_stop_sending_is_cut_off() {
        let (mut ours, mut client) = transport();
        let sending = tokio::spawn(async move {
            let mut sent = 0;
            while client.write_all(&[7; 64]).await.is_ok() {
                sent += 64;
            }
            sent
        });
        ours.shutdown().await.expect("closing ends after DISCARDED_BYTES");
        drop(ours);
        let sent = sending.await.expect("the sending task does not panic");
        assert!((DISCARDED_BYTES..DISCARDED_BYTES + 128).contains(&sent), "the client sent {sent} bytes");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_never_closes_its_side_is_not_waited_for_long() {
        let (mut ours, client) = transport();
        let began = tokio::time::Instant::now();
        ours.shutdown().await.expect("closing ends after CLOSE_TIMEOUT");
        assert!((CLOSE_TIMEOUT..CLOSE_TIMEOUT * 2).contains(&began.elapsed()));
        drop(client);
    }
}
