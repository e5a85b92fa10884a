//! Decodes states: the bytes that Redis stores, and the bytes in the reply of a script.
//!
//! The scripts and the kernel must agree on every byte.
//!
//! Buckets, windows and counters are strings in Redis. A bucket stores its debt (the used units) as a time. `TAT` is
//! the time when all debt is paid, and `T` is the time in which the debt of one unit is paid. No debt exceeds `2^b` ns.
//! The strings have these lengths in bytes:
//!
//! | state | bytes |
//! |---|---|
//! | bucket | `TAT` and `T` (each has 5 bytes of seconds and 4 of nanoseconds), `b` (1 byte, at the very end): 9 + 9 + 1 = 19 |
//! | fixed window | start (5 + 4), count (7): 9 + 7 = 16 |
//! | counter of `n` segments | start of the newest segment (5 bytes of seconds, 3 of microseconds), then `n` + 1 counts, newest first. A count has 5 bytes: 8 + 2 * 5 = 18 for `n` = 1. All counts have 7 bytes if one of them is 2^40 or more, or if a penalty with its length follows |
//!
//! The fields in the table are the body of a string. If a key has ever had a penalty, three more fields follow the
//! body: the end of the penalty, the length of the penalty (both 5 + 4), and one byte. For a bucket this byte is `b`,
//! which is then missing in the body. For other states the byte has no meaning. The body is all zeros if nothing is
//! used. The length of the string shows which fields it has.
//!
//! spillgate servers of older versions use the same keys, and their states are read too. In these states, buckets have
//! no `b`, and penalties have no length. A state with a penalty has no body if nothing is used. Windows and counters
//! without a penalty have not changed. A server of an older version cannot read a bucket of this version, or a string
//! with a penalty. For such a state, it answers as its setting `on_store_failure` says.
//!
//! Logs are lists or sorted sets, and leases are hashes (`log.lua`, `leases.lua`). A script returns only the part of
//! such a state that its request needs. From this part the kernel computes the same decision as from the whole state:
//!
//! | reply | bytes |
//! |---|---|
//! | log | times (34 bits of seconds, 30 of nanoseconds), each with its units (3), oldest first |
//! | leases | newest id (5 + 4); for all leases that no hit names, the sum of their permits (3) and the time when the last of them ends (5 + 4); for each lease that a hit names, its id, life and end (5 + 4 each) and its permits (3) |

use smallvec::SmallVec;
use spillgate_core::{Algorithm, Hit, Quota, State, Time};

use crate::command::args::receipt;
use crate::command::bytes::Reader;

/// The number of bytes of a penalty that an older version wrote: only its end.
const OLD_PENALTY: usize = 9;
/// The number of bytes of the end and the length of a penalty, and of the byte after them.
const PENALTY: usize = 19;
/// The number of bytes of a fixed window without a penalty.
const WINDOW: usize = 16;
/// The number of bytes of a bucket without a penalty.
const BUCKET: usize = 19;
/// The `b` of a bucket that was stored without `b`. It is so large that no debt is cut.
const ANY_DEBT: u64 = 63;

/// The number of bytes of a time and its units in a log.
const LOG_ENTRY: usize = 11;
/// The number of bytes of a lease in a reply.
const LEASE: usize = 30;
/// The length of a penalty, or the life of a lease, if Redis has not sent it: 146 years. When the clock is set back,
/// the kernel shortens a penalty or lease that would last longer than its length. With 146 years as the length, the
/// kernel shortens nothing.
const LONGEST_LIFE_NS: u64 = 1 << 62;

/// Counts below this number are stored in five bytes.
pub(crate) const NARROW_COUNT: u64 = 1 << 40;

/// Returns the number of bytes of a counter's state with `counts` counts of `width` bytes.
const fn counter(counts: usize, width: usize) -> usize {
    8 + counts * width
}

/// Decodes the value of a key. `quota` must have the [identity](Quota::identity) of the state. The result is `None` if
/// the value is invalid, and also for a log or a lease, because these states are not strings.
///
/// ```
/// use std::time::Duration;
/// use spillgate_core::Quota;
/// use spillgate_redis::decode_state;
///
/// let quota = Quota::fixed_window(5, Duration::from_secs(60)).build()?;
/// // The window began at second 120, and 3 units are used.
/// let value = [0, 0, 0, 0, 120, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3];
/// assert!(decode_state(&value, &quota).is_some());
/// assert!(decode_state(b"hello", &quota).is_none());
/// # Ok::<(), spillgate_core::QuotaError>(())
/// ```
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

/// Decodes one state in the reply of a script. `hits` are the hits of the request.
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

/// Reads the words of a body. Returns the number that `State::encode` uses for this kind of state.
fn body(reader: &mut Reader<'_>, quota: &Quota, hits: &[Hit<'_>], words: &mut SmallVec<[u64; 8]>) -> Option<u64> {
    match quota.algorithm() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            // In a string with a penalty, the last word of a bucket comes after the penalty.
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

/// Reads the leases of a reply. For the leases that no hit names, a reply has only a sum. This sum becomes one lease
/// with an id that no hit names.
fn leases(reader: &mut Reader<'_>, hits: &[Hit<'_>], words: &mut SmallVec<[u64; 8]>) -> Option<()> {
    let (last_id, permits, end) = (reader.time()?, reader.integer(3)?, reader.time()?);
    words.push(last_id);
    while reader.0.len() >= LEASE {
        words.extend([reader.time()?, reader.time()?, reader.time()?, reader.integer(3)?]);
    }
    if permits > 0 {
        let is_named = |id: u64| hits.iter().filter_map(receipt).any(|receipt| receipt.mark == id);
        let id = (0..=last_id).find(|id| !is_named(*id))?;
        words.extend([id, LONGEST_LIFE_NS, end, permits]);
    }
    Some(())
}

/// Returns whether the scripts for takes can read this state. They can read an empty state. They cannot read a state
/// with a penalty, with a count of 2^40 or more in a counter, or with leases. A bucket must have the `T` and `b` of
/// `quota` and a debt of at most `2^b` ns. A bucket without debt can have any `T` and `b`.
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
