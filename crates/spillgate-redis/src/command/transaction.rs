//! Sends a request without scripts, as one transaction of plain commands.
//!
//! Some Redis servers and proxies refuse scripts. Without scripts a request can only take from fixed windows, or peek
//! at them. Each hit is decided independently, in order: a take increments the counter of its window, and the kernel
//! decides the hit from the count before the increment.
//!
//! A refused take increments its counter too, unless its cost is above the limit. So a counter may exceed the limit,
//! but the admitted units of a window never do.
//!
//! There are two kinds of windows:
//!
//! * A first-hit window begins with the first unit of its counter. It ends when the counter expires on Redis.
//! * An epoch window has a number, which is part of the key of the counter. The store computes this number from the
//!   [time of Redis](ServerClock). If the store does not know this time, it first sends a transaction that only asks
//!   for the time.
//!
//! A request with two hits, one take of 2 units and one peek, sends these commands:
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
//! The count after the take is 5, so 3 units were used before the take. The peek found 17 used units.

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

/// The commands that a store without scripts calls. Its Redis user needs only the right to call these commands on keys
/// `sg:*`. [`SCRIPT_COMMANDS`](crate::SCRIPT_COMMANDS) shows how to write such an ACL rule.
pub const TRANSACTION_COMMANDS: [&str; 7] = ["EXEC", "GET", "INCRBY", "MULTI", "PEXPIRE", "PTTL", "TIME"];

/// PEXPIRE and PTTL count in this unit.
const MILLISECOND_NS: u64 = 1_000_000;
/// The counter of an epoch window of length `W` lives for `W + min(W, LATE_NS)`. So the store still finds the counter
/// if its estimate of the time of Redis is behind by less than `min(W, LATE_NS)`.
const LATE_NS: u64 = 60_000_000_000;
/// The number of bytes of the time of Redis at the end of a reply: eight for seconds, and eight for microseconds.
const TIME_BYTES: usize = 16;

/// Returns whether plain commands can serve `op` on `quota`.
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
    key: RedisKey,
    /// The units to add. 0 means that the counter is only read.
    cost: u64,
    /// How long a new counter lives, in milliseconds.
    life_ms: u64,
    /// When the window began, in nanoseconds since the epoch. `None` for a first-hit window.
    start: Option<u64>,
}

/// A request as one transaction.
#[derive(Debug)]
pub(crate) struct Transaction<'c, 'r, 'q> {
    /// Stores the time of Redis from each reply.
    clock: &'c ServerClock,
    hits: &'r [Hit<'q>],
    /// One counter for each hit. If the time of Redis is needed and not known, there are no counters, and the
    /// transaction only asks for the time.
    counters: SmallVec<[Counter; 2]>,
}

impl<'c, 'r, 'q> Transaction<'c, 'r, 'q> {
    /// Returns the transaction for `hits`. If it needs the time of Redis and `clock` does not know this time, the
    /// transaction only asks for the time.
    ///
    /// # Errors
    /// [`StoreErrorKind::Malformed`] if `now` is given, or for a hit that plain commands cannot serve.
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

    /// Returns a key in the slot of all counters. This key need not be the key of a counter.
    pub(crate) fn key(&self) -> Option<RedisKey> {
        self.hits.first().map(RedisKey::of)
    }

    pub(crate) fn hits(&self) -> &'r [Hit<'q>] {
        self.hits
    }

    pub(crate) fn counters(&self) -> impl Iterator<Item = RedisKey> {
        self.counters.iter().map(|counter| counter.key)
    }

    /// Appends the commands. Only the reply to EXEC, the last command, is used.
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

    /// Decides each hit with the kernel, from the count of its counter as it was before the hit.
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

    /// Returns for each counter that the request made, the position of the hit that made it. A refused request makes its
    /// counters too.
    pub(crate) fn made(&self, reply: &[u8]) -> SmallVec<[usize; 4]> {
        let (counts, time) = reply.split_at(reply.len().saturating_sub(TIME_BYTES));
        let Some(now) = read_time(time) else { return SmallVec::new() };
        let mut reader = Reader(counts);
        let mut made = SmallVec::new();
        for (i, (hit, counter)) in self.hits.iter().zip(&self.counters).enumerate() {
            match counter.read(hit, now, &mut reader) {
                Some(Reading { before: 0, after: 1.., .. }) => made.push(i),
                Some(_) => {}
                None => break,
            }
        }
        made
    }

    /// Returns the time of the decision, and each state after the decision with its key. `None` if the reply does not
    /// show them.
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

/// What the reply shows about one counter.
struct Reading {
    /// The used units before this hit.
    before: u64,
    /// The used units after this hit. They include the units of refused takes.
    after: u64,
    /// When the window of the counter began.
    start: u64,
    /// The time of the decision. It is always within the window.
    at: u64,
}

impl Reading {
    /// Returns the kernel's decision about the hit, corrected for the units of refused takes.
    fn decide(&self, hit: &Hit<'_>) -> Option<Decision> {
        let mut decisions = [Decision::default()];
        decide(&mut [window(self.start, self.before)?], &[0], &[*hit], Time::from_nanos(self.at), &mut decisions);
        let [decision] = decisions;
        // A refused take is charged as well, so fewer units can remain than the kernel computes. There is no receipt,
        // because nothing can be refunded.
        let remaining = decision.remaining.min(decision.limit.saturating_sub(self.after));
        Some(decision.with_remaining(remaining).without_receipt())
    }
}

/// Returns the state of a fixed window. The 2 in its words means "fixed window" (`State::decode`).
fn window(start: u64, units: u64) -> Option<State> {
    if units > 0 { State::decode(&[2, 0, 0, start, units.min(MAX_UNITS)]) } else { Some(State::default()) }
}

impl Counter {
    /// Returns the counter of the hit. `None` for an epoch window if the time of Redis is not known.
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

    /// Reads the replies to the commands of this counter. The result is `None` if a number is missing, or if the count
    /// after a take is smaller than its cost.
    fn read(&self, hit: &Hit<'_>, now: Time, reader: &mut Reader<'_>) -> Option<Reading> {
        let window_ns = hit.quota.window_ns();
        let after = reader.integer(8)?;
        if self.cost > 0 {
            // The reply to PEXPIRE.
            reader.integer(8)?;
        }
        let before = after.checked_sub(self.cost)?;
        // PTTL returns whole milliseconds, rounded down, so 1 is added. A negative number means that the counter does
        // not exist or does not expire.
        let left_ms = reader.integer(8)?.cast_signed().max(0).unsigned_abs() + 1;
        let (start, at) = match self.start {
            // The next window may already have begun on Redis.
            Some(start) => (start, now.as_nanos().clamp(start, start + window_ns - 1)),
            None => {
                let left_ns = left_ms.saturating_mul(MILLISECOND_NS).min(window_ns);
                (now.as_nanos().saturating_sub(window_ns - left_ns), now.as_nanos())
            }
        };
        Some(Reading { before, after, start, at })
    }
}

/// Returns the counters of all hits. The list is empty if the time of Redis is needed and not known.
fn counters(hits: &[Hit<'_>], clock: &ServerClock) -> SmallVec<[Counter; 2]> {
    let counters: Option<_> = hits.iter().map(|hit| Counter::of(hit, clock)).collect();
    counters.unwrap_or_default()
}

/// Returns all numbers in the reply, in order, each in eight bytes. A key that does not exist counts as 0. The result
/// is `None` if the reply has a value that is not a number.
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

/// Reads the reply to TIME, which has seconds and microseconds.
fn read_time(bytes: &[u8]) -> Option<Time> {
    let mut reader = Reader(bytes);
    let (seconds, us) = (reader.integer(8)?, reader.integer(8)?);
    let now = Duration::from_secs(seconds).checked_add(Duration::from_micros(us))?;
    u64::try_from(now.as_nanos()).ok().map(Time::from_nanos)
}

#[cfg(test)]
mod tests;
