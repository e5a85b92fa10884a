//! States as Redis keeps them.
//!
//! | state | bytes |
//! |---|---|
//! | bucket | TAT, T (both 5 bytes of seconds, 4 of nanoseconds), b (1, at the very end): 19 |
//! | fixed window | start (5 + 4), count (7): 16 |
//! | counter of n segments | start of the newest (5 bytes of seconds, 3 of microseconds), n + 1 counts, newest first, of 5 bytes, or of 7 where one is 2^40 or more or a penalty with its length follows: 18 where n = 1 |
//!
//! If the key was ever shut out, three things follow: until when, for how long (both 5 + 4), and one byte, which is b of a
//! bucket. The body is then always there; it is zeros where nothing counts. The length of a value tells which parts it has.
//!
//! States that older servers wrote are read too. They have no b and no length of a penalty, and a penalty alone has no body.
//! Windows and counters without a penalty are as they were. For a bucket of ours, and for a string under a penalty, an older
//! server has an error, and answers by `on_store_failure`.
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

use crate::command::args::receipt;
use crate::command::bytes::Reader;

/// Until when a key is shut out, as older servers wrote it.
const OLD_PENALTY: usize = 9;
/// The same, for how long, and one byte more.
const PENALTY: usize = 19;
const WINDOW: usize = 16;
/// Without a penalty.
const BUCKET: usize = 19;
/// Of a debt that nothing is known of: no clock cuts it.
const ANY_DEBT: u64 = 63;

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
pub fn decode_state(raw: &[u8], quota: &Quota) -> Option<State> {
    match quota.algorithm() {
        Algorithm::SlidingWindowLog | Algorithm::Concurrency => None,
        Algorithm::TokenBucket
        | Algorithm::LeakyBucket
        | Algorithm::FixedWindow(_)
        | Algorithm::SlidingWindowCounter { .. } => decode(raw, quota, &[]),
    }
}

/// The state that a script told of, for those `hits`.
pub(crate) fn decode(raw: &[u8], quota: &Quota, hits: &[Hit<'_>]) -> Option<State> {
    let mut words: SmallVec<[u64; 8]> = SmallVec::from_slice(&[0, 0, 0]);
    let mut reader = Reader(raw);
    if raw.len() > OLD_PENALTY {
        words[0] = body(&mut reader, quota, hits, &mut words)?;
        let body = &raw[..raw.len() - reader.0.len()];
        if body.iter().all(|byte| *byte == 0) {
            words.truncate(3);
            words[0] = 0;
        }
    }
    let left = reader.0.len();
    if left >= OLD_PENALTY {
        words[1] = reader.time()?;
        words[2] = if left == PENALTY { reader.time()? } else { LONGEST_LIFE_NS };
    }
    let is_bucket = matches!(quota.algorithm(), Algorithm::TokenBucket | Algorithm::LeakyBucket);
    if is_bucket && words[0] != 0 {
        words.push(if reader.0.is_empty() { ANY_DEBT } else { reader.integer(1)? });
    } else if left == PENALTY {
        reader.integer(1)?;
    }
    if reader.0.is_empty() { State::decode(&words) } else { None }
}

/// Reads the words of a body, and returns which kind of state they are (`State::encode`).
fn body(reader: &mut Reader<'_>, quota: &Quota, hits: &[Hit<'_>], words: &mut SmallVec<[u64; 8]>) -> Option<u64> {
    match quota.algorithm() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            // The rest of its words is behind the penalty.
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
            let width = if [0, OLD_PENALTY, PENALTY].contains(&length.wrapping_sub(wide)) { 7 } else { 5 };
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

/// Whether the scripts for takes go by this state: there is none, or it has no penalty, narrow counts, T and b of
/// `quota`, and no more debt than 2^b (what no longer counts may have any of them).
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
    let (Some(tat), Some(interval), Some(bits)) = (reader.time(), reader.time(), reader.integer(1)) else {
        return false;
    };
    let debt = tat.saturating_sub(now.as_nanos());
    let known = interval == quota.interval_ns() && bits == quota.debt_bits().into() && debt <= 1 << bits;
    raw.len() == BUCKET && (debt == 0 || known)
}
