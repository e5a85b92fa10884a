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

use super::pool::{Account, Pool};

/// The maximum number of bytes of unread answers for one connection.
pub(super) const CONNECTION_BYTES: usize = 4 << 20;
/// A connection begins no call that would make it use more bytes than this. The bytes from here to [`CONNECTION_BYTES`]
/// are for the answer to the last call, because this answer can be long.
const BEGIN_BYTES: usize = 3 << 20;
/// The bytes that each connection has in addition to the pool. Because of them, clients that read their answers are
/// served even while the pool is used up.
pub(super) const OWN_BYTES: usize = 8 << 10;
/// A connection takes bytes from the pool in blocks of this size.
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

/// Returns the account of a connection for its unread answers.
pub(super) fn account(pool: &Arc<Pool>) -> Account {
    Account::new(pool, OWN_BYTES, BLOCK_BYTES)
}

impl Account {
    /// Returns whether another call can begin. Takes a block from the pool if necessary.
    #[inline]
    pub(super) fn has_capacity(&self) -> bool {
        self.fits(CALL_BYTES, BEGIN_BYTES)
    }

    /// Returns true if no call can begin, because other connections have used up the pool.
    pub(super) fn is_starved(&self) -> bool {
        self.held() + CALL_BYTES <= BEGIN_BYTES && !self.has_capacity()
    }
}
