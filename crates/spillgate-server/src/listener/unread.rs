//! What is held of answers over HTTP/2 until their clients read them: at most [`CONNECTION_BYTES`] for one connection,
//! and for all together what the [`Pool`] has.
//!
//! A call counts from when it begins until its answer is written. A connection that has no more room begins no further
//! call: those wait until the client has read. One that reads nothing is closed when it is idle. How long an answer is
//! shows when it is made: one that finds no room is dropped, since to wait for room is to hold it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Buf, Bytes};

use super::connection::Activity;

/// The most that is held for one connection.
const CONNECTION_BYTES: usize = 4 << 20;
/// No call begins above this: the rest is for the answer to the last one, which may be long.
const BEGIN_BYTES: usize = 3 << 20;
/// What each connection has without asking the pool, so that clients that read go on when the pool is used up.
const OWN_BYTES: usize = 32 << 10;
/// What a connection draws from the pool at a time. It keeps that for a while: the pool is a word that all cores share.
const BLOCK_BYTES: usize = 64 << 10;
/// What was held for more than this is not kept for the next answer: else clients that read would use up the pool.
const LONG_BYTES: usize = 8 << 10;
/// Each call has room for this much of an answer, so that a short one never finds none.
const SHORT_BYTES: usize = 512;
/// What h2 holds for a call and a short answer. Measured: see `scripts/show-unread-answers.sh`.
const CALL_BYTES: usize = 2304 + SHORT_BYTES;
/// What h2 holds for one more frame.
const FRAME_BYTES: usize = 256;

/// What all connections may hold together, besides what each has of its own.
#[derive(Debug)]
pub(super) struct Pool(AtomicUsize);

impl Pool {
    pub(super) fn new(bytes: usize) -> Pool {
        Pool(AtomicUsize::new(bytes))
    }

    /// Takes all of `bytes`, or nothing.
    fn draw(&self, bytes: usize) -> bool {
        let less = |left: usize| left.checked_sub(bytes);
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
        self.fits(CALL_BYTES, BEGIN_BYTES)
    }

    /// Whether no call may begin since other connections have used up the pool.
    pub(super) fn is_short(&self) -> bool {
        self.held.load(Ordering::Relaxed) + CALL_BYTES <= BEGIN_BYTES && !self.has_room()
    }

    /// Whether `bytes` more may be held, for `most` in all.
    #[inline]
    fn fits(&self, bytes: usize, most: usize) -> bool {
        let wanted = self.held.load(Ordering::Relaxed) + bytes;
        let room = OWN_BYTES + self.drawn.load(Ordering::Relaxed);
        wanted <= most && (wanted <= room || self.draw(wanted - room))
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
    /// Among `bytes`, what is there for data that is yet to come.
    spare: usize,
}

impl Hold {
    /// Of a call that begins.
    pub(super) fn of_call(activity: &Arc<Activity>) -> Hold {
        Hold::new(activity, CALL_BYTES, SHORT_BYTES)
    }

    /// Of a frame behind the first one.
    pub(super) fn of_frame(activity: &Arc<Activity>) -> Hold {
        Hold::new(activity, FRAME_BYTES, 0)
    }

    fn new(activity: &Arc<Activity>, bytes: usize, spare: usize) -> Hold {
        activity.unread.held.fetch_add(bytes, Ordering::Relaxed);
        Hold { activity: Arc::clone(activity), bytes, spare }
    }

    /// Holds `data` until it is written; `None` if the connection may not hold that much, or the pool has too little.
    pub(super) fn with(mut self, data: Bytes) -> Option<Piece> {
        let more = data.len().saturating_sub(self.spare);
        if more > 0 {
            if !self.activity.unread.fits(more, CONNECTION_BYTES) {
                return None;
            }
            self.activity.unread.held.fetch_add(more, Ordering::Relaxed);
            self.bytes += more;
        }
        Some(Piece { data, _hold: Some(self) })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.activity.unread.held.fetch_sub(self.bytes, Ordering::Relaxed);
        if self.bytes > LONG_BYTES {
            self.activity.unread.give_back();
        }
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
