//! What is held of answers over HTTP/2 until their clients read them: at most [`CONNECTION_BYTES`] for one connection,
//! and for all together what the [`Pool`] has.
//!
//! A call counts from when it begins until its answer is written. A connection that has no more room begins no further
//! call: those wait until the client has read. One that reads nothing is closed when it is idle.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Buf, Bytes};

use super::connection::Activity;

/// The most that is held for one connection.
const CONNECTION_BYTES: usize = 4 << 20;
/// No call begins above this: the rest is for the answer to the last one, which may be long.
const BEGIN_BYTES: usize = 3 << 20;
/// What each connection has without asking the pool, so that those who read go on when the pool is used up.
const OWN_BYTES: usize = 32 << 10;
/// What a connection draws from the pool at a time. It keeps that for a while: the pool is a word that all cores share.
const BLOCK_BYTES: usize = 64 << 10;
/// What h2 holds for a call and a short answer. Measured: see `scripts/show-unread-answers.sh`.
const CALL_BYTES: usize = 2304;
/// What h2 holds for one more frame.
const FRAME_BYTES: usize = 256;

/// What all connections may hold together, besides what each has of its own.
#[derive(Debug)]
pub(super) struct Pool(AtomicUsize);

impl Pool {
    pub(super) fn new(bytes: usize) -> Pool {
        Pool(AtomicUsize::new(bytes))
    }

    fn draw(&self) -> bool {
        let less = |left: usize| left.checked_sub(BLOCK_BYTES);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

/// What one connection holds.
#[derive(Debug)]
pub(super) struct Unread {
    held: AtomicUsize,
    /// Of the pool.
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

    /// Whether another call may begin.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        let held = self.held.load(Ordering::Relaxed);
        let room = OWN_BYTES + self.drawn.load(Ordering::Relaxed);
        held + CALL_BYTES <= room || self.draw(held)
    }

    #[cold]
    fn draw(&self, held: usize) -> bool {
        while held < BEGIN_BYTES && self.pool.draw() {
            let drawn = self.drawn.fetch_add(BLOCK_BYTES, Ordering::Relaxed) + BLOCK_BYTES;
            if held + CALL_BYTES <= OWN_BYTES + drawn {
                return true;
            }
        }
        false
    }

    /// Gives back to the pool what was not needed of late.
    pub(super) fn give_back(&self) {
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

/// What is held for a call, or for a frame; given back when dropped.
pub(super) struct Hold {
    activity: Arc<Activity>,
    bytes: usize,
}

impl Hold {
    /// Of a call that begins.
    pub(super) fn of_call(activity: &Arc<Activity>) -> Hold {
        Hold::new(activity, CALL_BYTES)
    }

    /// Of a frame behind the first one.
    pub(super) fn of_frame(activity: &Arc<Activity>) -> Hold {
        Hold::new(activity, FRAME_BYTES)
    }

    fn new(activity: &Arc<Activity>, bytes: usize) -> Hold {
        activity.unread.held.fetch_add(bytes, Ordering::Relaxed);
        Hold { activity: Arc::clone(activity), bytes }
    }

    /// Holds `data` until it is written; `None` if that is more than the connection may hold.
    pub(super) fn with(mut self, data: Bytes) -> Option<Piece> {
        let held = self.activity.unread.held.fetch_add(data.len(), Ordering::Relaxed);
        self.bytes += data.len();
        (held + data.len() <= CONNECTION_BYTES).then_some(Piece { data, _hold: Some(self) })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.activity.unread.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A piece of an answer, which h2 drops when it has written it.
pub(super) struct Piece {
    data: Bytes,
    _hold: Option<Hold>,
}

impl Piece {
    pub(super) const END: Piece = Piece { data: Bytes::new(), _hold: None };
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.data.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.data.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.data.advance(count);
    }
}
