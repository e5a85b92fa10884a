//! States as Redis keeps them.
//!
//! | state | bytes |
//! |---|---|
//! | bucket | TAT, T (both 5 bytes of seconds, 4 of nanoseconds): 18 |
//! | fixed window | start (5 + 4), count (7): 16 |
//! | counter of n segments | start of the newest (5 bytes of seconds, 3 of microseconds), n + 1 counts, newest first, of 5 bytes, or of 7 where one is 2^40 or more: 18 where n = 1 |
//!
//! After it comes until when the key is shut out (5 + 4), if it ever was; alone, where nothing counts.
//!
//! Logs are lists and leases hashes (`log.lua`, `leases.lua`). Of them a script tells no more than its request asks
//! for, and of that a state is made that decides it as the whole would:
//!
//! | told | bytes |
//! |---|---|
//! | log | times (34 bits of seconds, 30 of nanoseconds), each with its units (3), oldest first |
//! | leases | newest id (5 + 4); places (3) and end (5 + 4) of all leases but the following; of each that a hit names, id, life, end (5 + 4), places (3) |

use smallvec::SmallVec;
use spillgate_core::{Algorithm, Hit, Quota, State, Time};

use crate::bytes::Reader;
use crate::hit::receipt;

const PENALTY: usize = 9;
const WINDOW: usize = 16;

/// Of a log's time and units.
const LOG_ENTRY: usize = 11;
/// Of a lease that is named.
const LEASE: usize = 30;
const LONGEST_LIFE_NS: u64 = 1 << 62;

/// Counts below this are kept in five bytes.
pub(crate) const NARROW_COUNT: u64 = 1 << 40;

/// The length of a counter's state with so many counts of `width` bytes.
const fn counter(counts: usize, width: usize) -> usize {
    8 + counts * width
}

/// The state that a key's value is, under a quota of the state's [identity](Quota::identity); `None` if it is none.
/// Logs and leases are no strings, and none.
#[must_use]
pub fn state(raw: &[u8], quota: &Quota) -> Option<State> {
    match quota.algorithm() {
        Algorithm::SlidingWindowLog | Algorithm::Concurrency => None,
        _ => told(raw, quota, &[]),
    }
}

/// The state that a script told of, for those `hits`.
pub(crate) fn told(raw: &[u8], quota: &Quota, hits: &[Hit<'_>]) -> Option<State> {
    let mut words: SmallVec<[u64; 8]> = SmallVec::from_slice(&[0, 0]);
    let mut reader = Reader(raw);
    if raw.len() > PENALTY {
        words[0] = body(&mut reader, quota, hits, &mut words)?;
    }
    if !reader.0.is_empty() {
        words[1] = reader.time()?;
    }
    if reader.0.is_empty() { State::decode(&words) } else { None }
}

/// Reads the words of a body, and returns which kind of state they are (`State::encode`).
fn body(reader: &mut Reader<'_>, quota: &Quota, hits: &[Hit<'_>], words: &mut SmallVec<[u64; 8]>) -> Option<u64> {
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
        Algorithm::SlidingWindowLog => {
            while reader.0.len() >= LOG_ENTRY {
                let (time, units) = (reader.integer(8)?, reader.integer(3)?);
                words.extend([(time >> 30) * 1_000_000_000 + (time & ((1 << 30) - 1)), units]);
            }
            Some(4)
        }
        Algorithm::Concurrency => {
            leases(reader, hits, words)?;
            Some(5)
        }
    }
}

fn leases(reader: &mut Reader<'_>, hits: &[Hit<'_>], words: &mut SmallVec<[u64; 8]>) -> Option<()> {
    let (last_id, places, end) = (reader.time()?, reader.integer(3)?, reader.time()?);
    words.push(last_id);
    while reader.0.len() >= LEASE {
        words.extend([reader.time()?, reader.time()?, reader.time()?, reader.integer(3)?]);
    }
    if places > 0 {
        // The others as one lease: its id is one that no hit names, its life so long that no clock cuts it.
        let is_named = |id: u64| hits.iter().filter_map(receipt).any(|receipt| receipt.mark == id);
        let id = (0..=last_id).find(|id| !is_named(*id))?;
        words.extend([id, LONGEST_LIFE_NS, end, places]);
    }
    Some(())
}

/// Whether the scripts for takes go by this state: there is none, or it has no penalty, narrow counts, the T of `quota`,
/// and no more debt than that (what no longer counts may have any T).
pub(crate) fn is_plain(raw: &[u8], quota: &Quota, now: Time) -> bool {
    let length = match quota.algorithm() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket => return raw.is_empty() || is_plain_bucket(raw, quota, now),
        Algorithm::FixedWindow(_) => WINDOW,
        Algorithm::SlidingWindowCounter { segments } => counter(usize::from(segments) + 1, 5),
        Algorithm::SlidingWindowLog => return raw.len().is_multiple_of(LOG_ENTRY),
        Algorithm::Concurrency => return false,
    };
    raw.is_empty() || raw.len() == length
}

fn is_plain_bucket(raw: &[u8], quota: &Quota, now: Time) -> bool {
    let mut reader = Reader(raw);
    let (Some(tat), Some(interval), []) = (reader.time(), reader.time(), reader.0) else { return false };
    let debt = tat.saturating_sub(now.as_nanos());
    let known = interval == quota.interval_ns() && debt <= 2 * quota.hard_capacity() * quota.interval_ns();
    debt == 0 || known
}
