//! The driver of a connection: writes the queued commands, reads the replies, and delivers them.
//!
//! After the login, a task polls the driver of each connection, so no request has to write to the socket itself.
//!
//! Each time the driver is polled, it first writes what is queued, and then reads what has come:
//!
//! | event | what the driver does |
//! |---|---|
//! | a command was queued | writes all queued commands, as far as the socket accepts them |
//! | bytes have come | delivers each complete reply, and keeps the rest for later |
//! | the socket refuses a write | stops writing, and still reads, because Redis may have sent the reason |
//! | Redis closes the socket, or sends an invalid reply | ends the queue with the reason, and ends itself |

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::connection::queue::{Queue, hung_up};
use crate::connection::resp::{self, LengthScanner};

/// The initial size of the buffer for replies. The buffer grows if a reply is longer.
const READ_BYTES: usize = 16 << 10;

/// Runs until the connection ends. Dropping it ends the connection.
pub(crate) struct Driver<S> {
    /// The socket, or the TLS stream on it.
    stream: S,
    /// The commands to write, and the callers that wait.
    shared: Arc<Queue>,
    /// The commands that are being written. The driver swaps this buffer with the buffer of the queue, so that no new
    /// buffer is allocated.
    writing: Vec<u8>,
    /// The number of bytes of `writing` that the socket has accepted.
    written: usize,
    has_ended: bool,
    /// Whether the socket still accepts bytes.
    is_writable: bool,
    /// The buffer for replies. It never shrinks.
    read: Vec<u8>,
    /// The position in `read` of the first byte that was not delivered yet.
    start: usize,
    /// The position in `read` after the last byte that has come.
    end: usize,
    /// Finds the end of the reply at `start`.
    scanner: LengthScanner,
}

impl<S> Driver<S> {
    pub(crate) fn new(stream: S, shared: Arc<Queue>) -> Driver<S> {
        let read = vec![0; READ_BYTES];
        Driver {
            stream,
            shared,
            writing: Vec::new(),
            written: 0,
            has_ended: false,
            is_writable: true,
            read,
            start: 0,
            end: 0,
            scanner: LengthScanner::default(),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Future for Driver<S> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let driver = self.get_mut();
        // A caller can poll the driver again after the connection has ended.
        if driver.has_ended {
            return Poll::Ready(());
        }
        driver.shared.driver.register(context.waker());
        if driver.is_writable && matches!(driver.poll_write(context), Poll::Ready(Err(_))) {
            driver.is_writable = false;
        }
        let why = match ready!(driver.poll_read(context)) {
            Ok(()) => hung_up(),
            Err(error) => error,
        };
        driver.has_ended = true;
        driver.shared.end(why);
        Poll::Ready(())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Driver<S> {
    /// Writes all queued commands. The result is ready when everything is written. Commands that are queued during a
    /// write are sent in the next write.
    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.written == self.writing.len() {
                self.written = 0;
                self.shared.swap_commands(&mut self.writing);
                if self.writing.is_empty() {
                    return Pin::new(&mut self.stream).poll_flush(context);
                }
            }
            match ready!(Pin::new(&mut self.stream).poll_write(context, &self.writing[self.written..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                more => self.written += more,
            }
        }
    }

    /// Reads and delivers replies. The result is ready when Redis has closed the connection.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            self.make_space();
            let mut free = ReadBuf::new(&mut self.read[self.end..]);
            ready!(Pin::new(&mut self.stream).poll_read(context, &mut free))?;
            match free.filled().len() {
                0 => return Poll::Ready(Ok(())),
                more => self.end += more,
            }
            self.deliver()?;
        }
    }

    /// Makes free space in the buffer for the next read. If the buffer is full, a partial reply is moved to the front.
    /// If the partial reply fills the whole buffer, the size of the buffer is doubled. The scanner bounds the length of
    /// a reply, so the buffer has a bound too.
    fn make_space(&mut self) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.read.len() && self.start > 0 {
            self.read.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        } else if self.end == self.read.len() {
            self.read.resize(2 * self.end, 0);
        }
    }

    /// Delivers all replies that are complete.
    ///
    /// # Errors
    /// The bytes are not a reply, or no command waits for a reply. After such an error, later replies cannot be found.
    fn deliver(&mut self) -> io::Result<()> {
        let mut replies = 0;
        loop {
            let rest = &self.read[self.start..self.end];
            let Some(length) = self.scanner.length(rest)? else {
                self.shared.count_replies(replies);
                return Ok(());
            };
            self.shared.deliver(resp::value(&rest[..length])?)?;
            self.start += length;
            replies += 1;
        }
    }
}

/// The callers that still wait get an error, whatever ended the driver.
impl<S> Drop for Driver<S> {
    fn drop(&mut self) {
        self.shared.end(hung_up());
    }
}
