//! Encodes states as words (64-bit integers), so that a store can save them and read them again.
//!
//! The words that are read may be damaged or forged. If a number in them is outside of its bounds, they are rejected.
//! So words that are accepted cannot cause a panic in a decision, nor a sum that wraps around.

use alloc::vec::Vec;

use super::{Body, State};
use crate::algorithm::{Bucket, LATEST_NS, Leases, Log, Segments, Window};
use crate::quota::MAX_SPAN_NS;

impl State {
    /// Appends the whole state to `words`. [`decode`](State::decode) reads the words back.
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

    /// Reads a state that [`encode`](State::encode) has written. This state decides like the state that was encoded.
    ///
    /// Returns `None` if the words are not exactly one state. Any words can be passed; [`State`] has an example.
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
