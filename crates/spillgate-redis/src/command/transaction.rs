//! A request without scripts: one transaction of plain commands.
//!
//! Some servers and proxies refuse scripts. For them a request can only take from fixed windows, or peek at them. Each
//! hit is judged by itself, in order: its counter is raised, and the kernel decides by the count before.
//!
//! The counters of a refused request are raised too. A counter may therefore pass its limit, but the units that were
//! admitted in a window never do.
//!
//! There are two kinds of windows. A window by the first hit lasts from its counter's first unit until the counter
//! expires, on the server's clock. A window since the epoch has a number, which is part of the counter's key. That number
//! follows from the [server's time](ServerClock), which must be known before the commands are sent. If it is not known,
//! a first transaction asks for the time only.
//!
//! Two hits, one take of 2 units and one peek, look like this on the wire:
//!
//! ```text
//! > MULTI
//! > INCRBY sg:{kP2d7}+Qm..  2        > PEXPIRE sg:{kP2d7}+Qm..  120000 NX     > PTTL sg:{kP2d7}+Qm..
//! > GET sg:{kP2d7}+B7..              > PTTL sg:{kP2d7}+B7..
//! > TIME
//! > EXEC
//! < [5, 0, 93210, "17", 40218, ["1790000000", "123456"]]
//! ```
//!
//! The take found 3 used units, and the peek found 17.

use std::time::Duration;

use redis::{Pipeline, Value};
use smallvec::SmallVec;
use spillgate_core::{
    Algorithm, Anchor, Decision, Hit, MAX_UNITS, Op, OpKind, Quota, State, StoreError, StoreErrorKind, Time, Verdict,
    decide,
};

use crate::command::bytes::Reader;
use crate::command::key::RedisKey;
use crate::command::request::{Decoded, KeyedStates};
use crate::command::server_clock::ServerClock;

/// The commands that a store without scripts calls. Its user needs no others, on keys `sg:*`. Use them in an ACL as
/// [`SCRIPT_COMMANDS`](crate::SCRIPT_COMMANDS) shows it.
pub const TRANSACTION_COMMANDS: [&str; 7] = ["EXEC", "GET", "INCRBY", "MULTI", "PEXPIRE", "PTTL", "TIME"];

/// PEXPIRE and PTTL count in this unit.
const MILLISECOND_NS: u64 = 1_000_000;
/// How much longer than its window a numbered counter lives, at most; never more than one window length. A client whose
/// reported time is late by less than this still finds the counter.
const LATE_NS: u64 = 60_000_000_000;
/// Bytes of the server's time at the end of a reply: seconds and microseconds.
const TIME_BYTES: usize = 16;

/// Whether plain commands can serve `op` on `quota`.
pub(crate) fn supports(quota: &Quota, op: OpKind) -> bool {
    let counts = match quota.algorithm() {
        Algorithm::FixedWindow(Anchor::FirstHit) => quota.window_ns().is_multiple_of(MILLISECOND_NS),
        Algorithm::FixedWindow(Anchor::Epoch) => true,
        Algorithm::TokenBucket
        | Algorithm::LeakyBucket
        | Algorithm::SlidingWindowLog
        | Algorithm::SlidingWindowCounter { .. }
        | Algorithm::Concurrency => false,
    };
    counts && quota.refusal_is_free() && matches!(op, OpKind::Take | OpKind::Peek)
}

/// The counter of one hit.
#[derive(Debug)]
struct Counter {
    /// The key of this window's counter.
    key: RedisKey,
    /// The units to add; 0 to only read.
    cost: u64,
    /// How long a new counter lives.
    life_ms: u64,
    /// When the window began, in nanoseconds since the epoch; `None` for a window by the first hit.
    start: Option<u64>,
}

/// A request as one transaction.
#[derive(Debug)]
pub(crate) struct Transaction<'c, 'r, 'q> {
    /// Learns the server's time from each reply.
    clock: &'c ServerClock,
    /// The request.
    hits: &'r [Hit<'q>],
    /// One for each hit. Empty while the server's time is needed and not known: then the transaction only asks for it.
    counters: SmallVec<[Counter; 2]>,
}

impl<'c, 'r, 'q> Transaction<'c, 'r, 'q> {
    /// The transaction for `hits`, in the windows of the server's time, as far as that is known.
    ///
    /// # Errors
    /// [`ErrorKind::Malformed`](crate::ErrorKind::Malformed) if `now` is given, or for a hit that plain commands cannot serve.
    pub(crate) fn new(
        now: Option<Time>,
        hits: &'r [Hit<'q>],
        clock: &'c ServerClock,
    ) -> Result<Transaction<'c, 'r, 'q>, StoreError> {
        if now.is_some() {
            return Err(StoreError::malformed("plain commands go by the server's clock"));
        }
        if !hits.iter().all(|hit| supports(hit.quota, hit.op.kind())) {
            return Err(StoreError::malformed("a hit that plain commands cannot serve"));
        }
        Ok(Transaction { clock, hits, counters: counters(hits, clock) })
    }

    /// A key in the slot of all counters. It need not be one of the counters.
    pub(crate) fn key(&self) -> Option<RedisKey> {
        self.hits.first().map(RedisKey::of)
    }

    /// The keys of all counters.
    pub(crate) fn counters(&self) -> impl Iterator<Item = RedisKey> {
        self.counters.iter().map(|counter| counter.key)
    }

    /// Appends the commands. Only the reply to the last one, EXEC, is used.
    pub(crate) fn write(&self, out: &mut Pipeline) {
        out.cmd("MULTI").ignore();
        for counter in &self.counters {
            let key = counter.key.as_bytes();
            if counter.cost > 0 {
                out.cmd("INCRBY").arg(key).arg(counter.cost).ignore();
                out.cmd("PEXPIRE").arg(key).arg(counter.life_ms).arg("NX").ignore();
            } else {
                out.cmd("GET").arg(key).ignore();
            }
            out.cmd("PTTL").arg(key).ignore();
        }
        out.cmd("TIME").ignore();
        out.cmd("EXEC");
    }

    /// Decides each hit by its counter's count before, as the kernel would.
    ///
    /// # Errors
    /// The reply is not a reply to these commands.
    pub(crate) fn decode(&mut self, reply: &[u8], decisions: &mut [Decision]) -> Result<Decoded, StoreError> {
        let broken = || StoreError::new(StoreErrorKind::Garbled, "the transaction did not answer with counters");
        let (counts, time) = reply.split_at_checked(reply.len().saturating_sub(TIME_BYTES)).ok_or_else(broken)?;
        let now = read_time(time).ok_or_else(broken)?;
        self.clock.report(now);
        if self.counters.len() < self.hits.len() {
            self.counters = counters(self.hits, self.clock);
            return Ok(Decoded::CallAgain);
        }
        let mut reader = Reader(counts);
        for ((hit, counter), decision) in self.hits.iter().zip(&self.counters).zip(&mut *decisions) {
            let reading = counter.read(hit, now, &mut reader);
            *decision = reading.and_then(|reading| reading.decide(hit)).ok_or_else(broken)?;
        }
        if reader.0.is_empty() { Ok(Decoded::Verdict(Verdict::of(self.hits, decisions, now))) } else { Err(broken()) }
    }

    /// The time of the decision, and each state after it with its key. `None` if the reply does not show them.
    pub(crate) fn states_after(&self, reply: &[u8]) -> Option<(Time, KeyedStates)> {
        let (counts, time) = reply.split_at_checked(reply.len().checked_sub(TIME_BYTES)?)?;
        let (now, mut reader) = (read_time(time)?, Reader(counts));
        let mut states = KeyedStates::new();
        for (hit, counter) in self.hits.iter().zip(&self.counters) {
            let reading = counter.read(hit, now, &mut reader)?;
            // If several hits are on one state, the last one shows the state after all of them.
            states.retain(|(state_key, _)| *state_key != hit.state_key());
            states.push((hit.state_key(), window(reading.start, reading.after)?));
        }
        Some((now, states))
    }
}

/// What the reply shows of one counter.
struct Reading {
    /// The used units before this hit.
    before: u64,
    /// The used units after it, also those of a refused take.
    after: u64,
    /// When its window began.
    start: u64,
    /// The time, within that window, at which the hit is decided.
    at: u64,
}

impl Reading {
    /// What the kernel decides about the hit on this count.
    fn decide(&self, hit: &Hit<'_>) -> Option<Decision> {
        let mut decisions = [Decision::default()];
        decide(&mut [window(self.start, self.before)?], &[0], &[*hit], Time::from_nanos(self.at), &mut decisions);
        let [decision] = decisions;
        // A refused take is charged as well, and nothing can be refunded.
        let remaining = decision.remaining.min(decision.limit.saturating_sub(self.after));
        Some(decision.with_remaining(remaining).without_receipt())
    }
}

/// The state of a fixed window; its words begin with the number of its kind (`State::decode`).
fn window(start: u64, units: u64) -> Option<State> {
    if units > 0 { State::decode(&[2, 0, 0, start, units.min(MAX_UNITS)]) } else { Some(State::default()) }
}

impl Counter {
    /// The counter of the hit. `None` if the window has a number and the server's time is not known.
    fn of(hit: &Hit<'_>, clock: &ServerClock) -> Option<Counter> {
        let (quota, window_ns) = (hit.quota, hit.quota.window_ns());
        let cost = match hit.op {
            Op::Take { cost, .. } if cost <= quota.hard_capacity() => cost,
            _ => 0,
        };
        if quota.algorithm() == Algorithm::FixedWindow(Anchor::FirstHit) {
            let life_ms = window_ns / MILLISECOND_NS;
            return Some(Counter { key: RedisKey::of_counter(hit, 0), cost, life_ms, start: None });
        }
        let number = clock.now()?.as_nanos() / window_ns;
        let life_ms = (window_ns + window_ns.min(LATE_NS)).div_ceil(MILLISECOND_NS);
        let (key, start) = (RedisKey::of_counter(hit, number), Some(number * window_ns));
        Some(Counter { key, cost, life_ms, start })
    }

    /// Reads the replies to the commands of this counter. `None` if they are not numbers that such a counter has.
    fn read(&self, hit: &Hit<'_>, now: Time, reader: &mut Reader<'_>) -> Option<Reading> {
        let window_ns = hit.quota.window_ns();
        let after = reader.integer(8)?;
        if self.cost > 0 {
            // The reply to PEXPIRE.
            reader.integer(8)?;
        }
        let before = after.checked_sub(self.cost)?;
        // PTTL counts whole milliseconds, and the counter is gone after the last one. A negative number means that the
        // counter does not exist, or does not expire.
        let left_ms = reader.integer(8)?.cast_signed().max(0).unsigned_abs() + 1;
        let (start, at) = match self.start {
            // The server may have entered the next window since it reported the time.
            Some(start) => (start, now.as_nanos().clamp(start, start + window_ns - 1)),
            None => {
                let left_ns = left_ms.saturating_mul(MILLISECOND_NS).min(window_ns);
                (now.as_nanos().saturating_sub(window_ns - left_ns), now.as_nanos())
            }
        };
        Some(Reading { before, after, start, at })
    }
}

/// The counters of all hits. None at all if the server's time is needed and not known.
fn counters(hits: &[Hit<'_>], clock: &ServerClock) -> SmallVec<[Counter; 2]> {
    let counters: Option<_> = hits.iter().map(|hit| Counter::of(hit, clock)).collect();
    counters.unwrap_or_default()
}

/// All numbers in the reply, in order, each in eight bytes. A key that does not exist counts as 0.
pub(crate) fn numbers(value: &Value) -> Option<Vec<u8>> {
    fn append(value: &Value, out: &mut Vec<u8>) -> Option<()> {
        match value {
            Value::Array(values) => values.iter().try_for_each(|value| append(value, out))?,
            Value::Int(number) => out.extend(number.to_be_bytes()),
            Value::BulkString(digits) => {
                out.extend(std::str::from_utf8(digits).ok()?.parse::<u64>().ok()?.to_be_bytes())
            }
            Value::Nil => out.extend([0; 8]),
            _ => return None,
        }
        Some(())
    }
    let mut out = Vec::new();
    append(value, &mut out).map(|()| out)
}

/// The reply to TIME: seconds and microseconds.
fn read_time(bytes: &[u8]) -> Option<Time> {
    let mut reader = Reader(bytes);
    let (seconds, us) = (reader.integer(8)?, reader.integer(8)?);
    let now = Duration::from_secs(seconds).checked_add(Duration::from_micros(us))?;
    u64::try_from(now.as_nanos()).ok().map(Time::from_nanos)
}

#[cfg(test)]
mod tests;
