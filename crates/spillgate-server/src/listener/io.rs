//! What goes between a socket and HTTP: bytes are counted, and bodies have to come in time.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// A stream whose bytes read are counted.
#[derive(Debug)]
pub(super) struct Counted<T> {
    inner: T,
    bytes: Arc<AtomicU64>,
}

impl<T> Counted<T> {
    pub(super) fn new(inner: T, bytes: Arc<AtomicU64>) -> Counted<T> {
        Counted { inner, bytes }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Counted<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(cx, buf);
        self.bytes.fetch_add((buf.filled().len() - before) as u64, Ordering::Relaxed);
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Counted<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }
}

/// The body of a stream of h2.
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
                // Who reads this bounds what is held; the client may send as much again.
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

/// A request's body that has to be here in time. The timer exists only for bodies that are not
/// here yet when they are first asked for.
#[derive(Debug)]
pub(super) struct TimedBody<B> {
    inner: B,
    allowed: Duration,
    timer: Option<Pin<Box<Sleep>>>,
}

impl<B> TimedBody<B> {
    pub(super) fn new(inner: B, allowed: Duration) -> TimedBody<B> {
        TimedBody { inner, allowed, timer: None }
    }
}

impl<B> Body for TimedBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.inner).poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let timer = this.timer.get_or_insert_with(|| Box::pin(sleep(this.allowed)));
        match timer.as_mut().poll(cx) {
            Poll::Ready(()) => {
                let late = io::Error::new(io::ErrorKind::TimedOut, "the request's body did not come in time");
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
