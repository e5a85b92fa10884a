//! Counts the memory of HTTP/2 answers that clients have not read, and bounds it.
//!
//! Without a bound, a client that sends calls and reads no answers could use up all memory. One connection may have at
//! most [`CONNECTION_BYTES`], and all connections together what the [`Pool`] has.
//!
//! A call counts from when it begins until its answer is written. A connection without capacity begins no further
//! call: calls wait until the client has read. A connection that reads nothing is closed when it is idle. The length of
//! an answer is known only when it exists. An answer that does not fit is dropped: waiting would also keep its memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The most bytes for one connection.
pub(super) const CONNECTION_BYTES: usize = 4 << 20;
/// No call begins above this. The rest is for the answer to the last call, which may be long.
const BEGIN_BYTES: usize = 3 << 20;
/// What each connection has outside the pool. With it, clients that read their answers are served even while the pool
/// is used up.
const OWN_BYTES: usize = 32 << 10;
/// What a connection takes from the pool at a time. It keeps the block for a while: all cores share the pool's counter,
/// and each access to it is slow.
const BLOCK_BYTES: usize = 64 << 10;
/// After an answer of more bytes than this, unused blocks return to the pool at once. Otherwise clients that do read
/// would use up the pool.
pub(super) const LONG_BYTES: usize = 8 << 10;
/// Each call reserves this much for its answer, so that a short answer always fits.
pub(super) const SHORT_BYTES: usize = 512;
/// The memory of h2 for a call and a short answer, measured by `scripts/show-unread-answers.sh`.
pub(super) const CALL_BYTES: usize = 2304 + SHORT_BYTES;
/// The memory of h2 for one more frame.
pub(super) const FRAME_BYTES: usize = 256;

/// The bytes that all connections share, besides the [`OWN_BYTES`] of each.
#[derive(Debug)]
pub(super) struct Pool(AtomicUsize);

impl Pool {
    pub(super) fn new(bytes: usize) -> Pool {
        Pool(AtomicUsize::new(bytes))
    }

    /// Takes `bytes` if there are that many. Returns whether it did.
    fn draw(&self, bytes: usize) -> bool {
        let less = |left: usize| left.checked_sub(bytes);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

/// The unread answers of one connection.
#[derive(Debug)]
pub(super) struct Unread {
    /// Bytes in use.
    pub(super) held: AtomicUsize,
    /// Bytes taken from the pool.
    drawn: AtomicUsize,
    pool: Arc<Pool>,
}

impl Unread {
    pub(super) fn new(pool: &Arc<Pool>) -> Unread {
        Unread { held: AtomicUsize::new(0), drawn: AtomicUsize::new(0), pool: Arc::clone(pool) }
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Whether another call may begin. Takes a block from the pool if it has to.
    #[inline]
    pub(super) fn has_capacity(&self) -> bool {
        self.fits(CALL_BYTES, BEGIN_BYTES)
    }

    /// Whether no call may begin because other connections have used up the pool.
    pub(super) fn is_starved(&self) -> bool {
        self.held.load(Ordering::Relaxed) + CALL_BYTES <= BEGIN_BYTES && !self.has_capacity()
    }

    /// Whether `bytes` more are within `most` and within what the connection has or can take from the pool.
    #[inline]
    pub(super) fn fits(&self, bytes: usize, most: usize) -> bool {
        let wanted = self.held.load(Ordering::Relaxed) + bytes;
        let capacity = OWN_BYTES + self.drawn.load(Ordering::Relaxed);
        wanted <= most && (wanted <= capacity || self.draw(wanted - capacity))
    }

    #[cold]
    fn draw(&self, bytes: usize) -> bool {
        let blocks = bytes.next_multiple_of(BLOCK_BYTES);
        let drawn = self.pool.draw(blocks);
        if drawn {
            self.drawn.fetch_add(blocks, Ordering::Relaxed);
        }
        drawn
    }

    /// Returns unused blocks to the pool.
    pub(super) fn return_unused(&self) {
        let needed = self.held.load(Ordering::Relaxed).next_multiple_of(BLOCK_BYTES);
        let spare = self.drawn.load(Ordering::Relaxed).saturating_sub(needed);
        self.drawn.fetch_sub(spare, Ordering::Relaxed);
        self.pool.0.fetch_add(spare, Ordering::Relaxed);
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.pool.0.fetch_add(*self.drawn.get_mut(), Ordering::Relaxed);
    }
}
