//! A socket with TLS, for the layer that counts bytes and notices clients that read nothing.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// The most bytes of an answer that are encrypted before the socket has taken them.
pub(super) const BUFFER_BYTES: usize = 16 << 10;

/// A socket with TLS that accepts a write only after the socket has taken the writes before.
///
/// Without this, TLS accepts writes into its buffer, and nobody notices that the client reads nothing.
#[derive(Debug)]
pub(super) struct Encrypted(pub(super) TlsStream<TcpStream>);

impl AsyncRead for Encrypted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let polled = ready!(Pin::new(&mut self.0).poll_read(cx, buf));
        // Many clients close the socket without the last message of TLS. Each protocol notices a request that is not whole.
        Poll::Ready(match polled {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            polled => polled,
        })
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(Pin::new(&mut self.0).poll_flush(cx))?;
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(Pin::new(&mut self.0).poll_flush(cx))?;
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }
}
