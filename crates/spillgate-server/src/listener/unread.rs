//! Counts the memory of HTTP/2 answers that clients have not read, and bounds it.
//!
//! Without a bound, a client that sends calls and reads no answers could use up all memory. The unread answers of one
//! connection can use at most [`CONNECTION_BYTES`]. All connections together can use the bytes of the [`Pool`]. In
//! addition, each connection can use its own [`OWN_BYTES`].
//!
//! The memory of a call is counted from the beginning of the call until its answer is written. While a connection
//! cannot use the bytes for another call, its next calls do not begin. They wait until the client has read answers. If
//! the client reads nothing, the connection is closed as idle.
//!
//! The length of an answer is known only after the answer was built. An answer that does not fit is dropped, because it
//! would use memory while it waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The maximum number of bytes of unread answers for one connection.
pub(super) const CONNECTION_BYTES: usize = 4 << 20;
/// A connection begins no call that would make it use more bytes than this. The bytes from here to [`CONNECTION_BYTES`]
/// are for the answer to the last call, because this answer can be long.
const BEGIN_BYTES: usize = 3 << 20;
/// The bytes that each connection has in addition to the pool. Because of them, clients that read their answers are
/// served even while the pool is used up.
const OWN_BYTES: usize = 32 << 10;
/// A connection takes bytes from the pool in blocks of this size. It keeps a block for a while, because all cores share
/// the counter of the pool, and each access to this counter is slow.
const BLOCK_BYTES: usize = 64 << 10;
/// After an answer of more bytes than this, the connection returns its unused blocks at once, so that the unused blocks
/// of many connections do not use up the pool.
pub(super) const LONG_BYTES: usize = 8 << 10;
/// Each call reserves this much for its answer, so that a short answer always fits.
pub(super) const SHORT_BYTES: usize = 512;
/// The memory of h2 for a call and a short answer, in bytes. `make show-unread-answers` measures it.
pub(super) const CALL_BYTES: usize = 2304 + SHORT_BYTES;
/// The memory of h2 for one more frame, in bytes.
pub(super) const FRAME_BYTES: usize = 256;

/// The bytes that all connections share, in addition to the [`OWN_BYTES`] of each.
#[derive(Debug)]
pub(super) struct Pool(AtomicUsize);

impl Pool {
    pub(super) fn new(bytes: usize) -> Pool {
        Pool(AtomicUsize::new(bytes))
    }

    /// Takes `bytes` from the pool, if the pool has this many bytes. Returns whether they were taken.
    fn draw(&self, bytes: usize) -> bool {
        let less = |left: usize| left.checked_sub(bytes);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

/// The unread answers of one connection.
#[derive(Debug)]
pub(super) struct Unread {
    /// The bytes in use.
    pub(super) held: AtomicUsize,
    /// The bytes that were taken from the pool.
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

    /// Returns whether another call can begin. Takes a block from the pool if necessary.
    #[inline]
    pub(super) fn has_capacity(&self) -> bool {
        self.fits(CALL_BYTES, BEGIN_BYTES)
    }

    /// Returns true if no call can begin, because other connections have used up the pool.
    pub(super) fn is_starved(&self) -> bool {
        self.held.load(Ordering::Relaxed) + CALL_BYTES <= BEGIN_BYTES && !self.has_capacity()
    }

    /// Returns whether the connection can use `bytes` more. Its bytes in use and `bytes` must together be at most
    /// `most`. Bytes that the connection lacks are taken from the pool.
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
