//! Counts the memory that a call and its answer use, until the crate h2 has written the answer.
//!
//! A call can end in many ways. Each of them drops the [`HeldBytes`] of the call, and this drop subtracts the bytes of
//! the call.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Buf, Bytes};

use super::activity::Activity;
use super::unread::{CALL_BYTES, CONNECTION_BYTES, FRAME_BYTES, LONG_BYTES, SHORT_BYTES};

/// Counts the memory of a call or of a frame until this value is dropped.
pub(super) struct HeldBytes {
    activity: Arc<Activity>,
    bytes: usize,
    /// The part of `bytes` that is reserved for an answer that does not exist yet.
    spare: usize,
    /// The memory of the request, as [`InFlight`](super::in_flight::InFlight) counts it.
    in_flight: usize,
    /// Whether this value belongs to a [`Piece`].
    is_piece: bool,
}

impl HeldBytes {
    /// Counts the memory of a call that begins. Its request has taken the bytes `in_flight`.
    pub(super) fn of_call(activity: &Arc<Activity>, in_flight: usize) -> HeldBytes {
        HeldBytes::new(activity, CALL_BYTES, SHORT_BYTES, in_flight)
    }

    /// Polls the request with `poll`, and counts what it reads. Also returns whether this fitted.
    #[inline]
    pub(super) fn counted<T>(&mut self, poll: impl FnOnce() -> T) -> (T, bool) {
        self.activity.in_flight.counted(&mut self.in_flight, poll)
    }

    /// The answer is made, so the request is no longer in flight.
    #[inline]
    pub(super) fn end_request(&mut self) {
        self.activity.in_flight.end(mem::take(&mut self.in_flight));
    }

    /// Counts the memory of a frame of an answer, if it is not the first frame. The first frame uses the `HeldBytes` of
    /// the call.
    pub(super) fn of_frame(activity: &Arc<Activity>) -> HeldBytes {
        HeldBytes::new(activity, FRAME_BYTES, 0, 0)
    }

    fn new(activity: &Arc<Activity>, bytes: usize, spare: usize, in_flight: usize) -> HeldBytes {
        activity.unread.hold(bytes);
        HeldBytes { activity: Arc::clone(activity), bytes, spare, in_flight, is_piece: false }
    }

    /// Counts `data` until it is written. Returns `None` if `data` would exceed one of two bounds: the bound of this
    /// connection, or the bound of all connections together.
    pub(super) fn with(mut self, data: Bytes) -> Option<Piece> {
        let more = data.len().saturating_sub(self.spare);
        if more > 0 {
            if !self.activity.unread.fits(more, CONNECTION_BYTES) {
                return None;
            }
            self.activity.unread.hold(more);
            self.bytes += more;
        }
        self.is_piece = true;
        self.activity.unread_pieces.fetch_add(1, Ordering::Relaxed);
        Some(Piece { data, _hold: Some(self) })
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.end_request();
        self.activity.unread.release(self.bytes);
        if self.is_piece {
            self.activity.unread_pieces.fetch_sub(1, Ordering::Relaxed);
        }
        if self.bytes > LONG_BYTES {
            self.activity.unread.return_unused(0);
        }
    }
}

/// A piece of an answer. After h2 has written the piece, h2 drops it together with its [`HeldBytes`].
pub(super) struct Piece {
    data: Bytes,
    _hold: Option<HeldBytes>,
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
