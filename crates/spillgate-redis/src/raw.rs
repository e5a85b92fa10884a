//! States as Redis keeps them.
//!
//! | state | bytes |
//! |---|---|
//! | bucket | TAT, T (both 5 bytes of seconds, 4 of nanoseconds): 18 |
//! | fixed window | start (5 + 4), count (7): 16 |
//! | counter of n segments | start of the newest (5 bytes of seconds, 3 of microseconds), n + 1 counts, newest first, of 5 bytes, or of 7 where one is 2^40 or more: 18 where n = 1 |
//!
//! After it comes until when the key is shut out (5 + 4), if it ever was; alone, where nothing counts.

use smallvec::SmallVec;
use spillgate_core::{Algorithm, Quota, State, Time};

use crate::bytes::Reader;

const PENALTY: usize = 9;
const BUCKET: usize = 18;
const WINDOW: usize = 16;

/// Counts below this are kept in five bytes.
pub(crate) const NARROW_COUNT: u64 = 1 << 40;

/// The length of a counter's state with so many counts of `width` bytes.
const fn counter(counts: usize, width: usize) -> usize {
    8 + counts * width
}

/// The state that a key's value is, under a quota of the state's [identity](Quota::identity); `None` if it is none.
#[must_use]
pub fn state(raw: &[u8], quota: &Quota) -> Option<State> {
    let mut words: SmallVec<[u64; 8]> = SmallVec::from_slice(&[0, 0]);
    let mut reader = Reader(raw);
    if raw.len() > PENALTY {
        words[0] = body(&mut reader, quota, &mut words)?;
    }
    if !reader.0.is_empty() {
        words[1] = reader.time()?;
    }
    if reader.0.is_empty() { State::decode(&words) } else { None }
}

/// Reads the words of a body, and returns which kind of state they are (`State::encode`).
fn body(reader: &mut Reader<'_>, quota: &Quota, words: &mut SmallVec<[u64; 8]>) -> Option<u64> {
    match quota.algorithm() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            words.extend([reader.time()?, reader.time()?]);
            Some(1)
        }
        Algorithm::FixedWindow(_) => {
            words.extend([reader.time()?, reader.integer(7)?]);
            Some(2)
        }
        Algorithm::SlidingWindowCounter { segments } => {
            let (length, counts) = (reader.0.len(), usize::from(segments) + 1);
            let wide = counter(counts, 7);
            let width = if length == wide || length == wide + PENALTY { 7 } else { 5 };
            words.push(reader.time_us()?);
            for _ in 0..counts {
                words.push(reader.integer(width)?);
            }
            Some(3)
        }
        Algorithm::SlidingWindowLog | Algorithm::Concurrency => None,
    }
}

/// Whether a script for one take goes by this state: there is none, or it has no penalty, narrow counts, and the T
/// of `quota` (what no longer counts may have any).
pub(crate) fn is_plain(raw: &[u8], quota: &Quota, now: Time) -> bool {
    let length = match quota.algorithm() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket => BUCKET,
        Algorithm::FixedWindow(_) => WINDOW,
        Algorithm::SlidingWindowCounter { segments } => counter(usize::from(segments) + 1, 5),
        Algorithm::SlidingWindowLog | Algorithm::Concurrency => return false,
    };
    let mut reader = Reader(raw);
    match (raw.len() == length, quota.algorithm()) {
        (true, Algorithm::TokenBucket | Algorithm::LeakyBucket) => {
            let (tat, interval) = (reader.time(), reader.time());
            tat.is_some_and(|tat| tat <= now.as_nanos()) || interval == Some(quota.interval_ns())
        }
        (plain, _) => plain || raw.is_empty(),
    }
}
