//! States as words, so that a store can write them down and read them back.
//!
//! Whoever reads believes nothing: a state that no request could have made is none, so that
//! whatever the words were, the kernel neither panics nor wraps.

use alloc::vec::Vec;

use super::{Body, Packed, State};
use crate::Time;
use crate::algorithm::{Bucket, Leases, Log, Segments, Window};
use crate::quota::MAX_SPAN_NS;

/// The latest time that a state can hold: the longest span after the latest time there is.
pub(crate) const LATEST_NS: u64 = Time::MAX.as_nanos() + MAX_SPAN_NS;

impl Packed {
    /// Whether these could be the integers of some state that does not equal none.
    #[must_use]
    pub const fn is_sound(&self) -> bool {
        let time = self.expires_at > 0 && self.expires_at <= Time::MAX.as_nanos();
        // Which of the two is a time and which are units only the quota tells; spans are the larger.
        time && self.first <= MAX_SPAN_NS && self.second <= MAX_SPAN_NS
    }
}

impl State {
    /// Appends the whole state to `words`, for [`decode`](State::decode).
    pub fn encode(&self, words: &mut Vec<u64>) {
        let tag = match self.body {
            Body::Empty => 0,
            Body::Bucket(_) => 1,
            Body::Window(_) => 2,
            Body::Segments(_) => 3,
            Body::Log(_) => 4,
            Body::Leases(_) => 5,
        };
        words.extend([tag, self.penalty_until, self.penalty_ns]);
        on_body!(&self.body, (), it => it.encode(words));
    }

    /// The state that was [encoded](State::encode): it decides everything as that one.
    ///
    /// `None` for words that are not the whole of a state: any words can be tried.
    #[must_use]
    pub fn decode(words: &[u64]) -> Option<State> {
        let (&[tag, penalty_until, penalty_ns], words) = words.split_first_chunk()?;
        let body = match tag {
            0 if words.is_empty() => Body::Empty,
            1 => Body::Bucket(Bucket::decode(words)?),
            2 => Body::Window(Window::decode(words)?),
            3 => Body::Segments(Segments::decode(words)?),
            4 => Body::Log(Log::decode(words)?),
            5 => Body::Leases(Leases::decode(words)?),
            _ => return None,
        };
        let sound = penalty_until <= LATEST_NS && penalty_ns <= MAX_SPAN_NS;
        sound.then_some(State { body, penalty_until, penalty_ns })
    }
}
