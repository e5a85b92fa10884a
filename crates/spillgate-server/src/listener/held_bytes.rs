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

/// Counts the memory of a call until this value is dropped, or until it is that of the first piece of its answer.
pub(super) struct HeldBytes {
    /// `None` only while this value ends.
    unread: Option<Unread>,
    /// The part of these bytes that is reserved for an answer that does not exist yet.
    spare: usize,
    /// The memory of the request, as [`InFlight`](super::in_flight::InFlight) counts it.
    in_flight: usize,
}

/// Counts bytes as unread until this value is dropped. It is small, because h2 copies it with each frame.
struct Unread {
    activity: Arc<Activity>,
    bytes: usize,
}

impl HeldBytes {
    /// Counts the memory of a call that begins. Its request has taken the bytes `in_flight`.
    pub(super) fn of_call(activity: &Arc<Activity>, in_flight: usize) -> HeldBytes {
        HeldBytes::new(activity, CALL_BYTES, SHORT_BYTES, in_flight)
    }

    /// Counts the memory of a frame of an answer, if it is not the first frame. The first frame uses the `HeldBytes` of
    /// the call.
    pub(super) fn of_frame(activity: &Arc<Activity>) -> HeldBytes {
        HeldBytes::new(activity, FRAME_BYTES, 0, 0)
    }

    fn new(activity: &Arc<Activity>, bytes: usize, spare: usize, in_flight: usize) -> HeldBytes {
        activity.unread.hold(bytes);
        HeldBytes { unread: Some(Unread { activity: Arc::clone(activity), bytes }), spare, in_flight }
    }

    /// Begins a poll of the request, whose reads are counted until [`end_poll`](HeldBytes::end_poll).
    #[inline]
    pub(super) fn begin_poll(&self) {
        if let Some(unread) = &self.unread {
            unread.activity.in_flight.begin_poll();
        }
    }

    /// Ends a poll of the request. Returns whether what it has read fitted.
    #[inline]
    pub(super) fn end_poll(&mut self) -> bool {
        self.unread.as_ref().is_none_or(|unread| unread.activity.in_flight.end_poll(&mut self.in_flight))
    }

    /// The answer is made, so the request is no longer in flight.
    #[inline]
    pub(super) fn end_request(&mut self) {
        if let Some(unread) = &self.unread {
            unread.activity.in_flight.end(mem::take(&mut self.in_flight));
        }
    }

    /// Counts `data` until it is written. Returns `None` if `data` would exceed one of two bounds: the bound of this
    /// connection, or the bound of all connections together.
    pub(super) fn with(mut self, data: Bytes) -> Option<Piece> {
        let more = data.len().saturating_sub(self.spare);
        self.end_request();
        let mut unread = self.unread.take()?;
        if more > 0 {
            if !unread.activity.unread.fits(more, CONNECTION_BYTES) {
                return None;
            }
            unread.activity.unread.hold(more);
            unread.bytes += more;
        }
        unread.activity.unread_pieces.fetch_add(1, Ordering::Relaxed);
        Some(Piece { data, unread: Some(unread) })
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.end_request();
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.activity.unread.release(self.bytes);
        if self.bytes > LONG_BYTES {
            self.activity.unread.return_unused(0);
        }
    }
}

/// A piece of an answer. After h2 has written the piece, h2 drops it, and its bytes are no longer counted.
pub(super) struct Piece {
    data: Bytes,
    unread: Option<Unread>,
}

impl Piece {
    pub(super) const END: Piece = Piece { data: Bytes::new(), unread: None };
}

impl Drop for Piece {
    fn drop(&mut self) {
        if let Some(unread) = &self.unread {
            unread.activity.unread_pieces.fetch_sub(1, Ordering::Relaxed);
        }
    }
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
