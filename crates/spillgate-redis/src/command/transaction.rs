//! A request without scripts, for servers and proxies that refuse them: a transaction of plain commands.
//!
//! Only takes and looks on fixed windows can be put so, each hit by itself, in order: a counter is raised, and judged by
//! what it was. Of a request that is refused all counters are raised nevertheless, so a counter may run over its limit;
//! but what was admitted in a window never does. A window lasts from its counter's first unit until the counter expires,
//! on the server's clock; or it is one of those since the epoch, and its number is part of the counter's name. That
//! number goes by the server's time as it was told here a second ago at most, since a counter has to be named before the
//! server is asked; without that, the time is asked for first.
//!
//! A server that has INCREX raises a counter only up to its limit: then a take that is refused counts nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::{Pipeline, Value};
use smallvec::SmallVec;
use spillgate_core::{
    Algorithm, Anchor, Decision, Hit, MAX_UNITS, Op, OpKind, Quota, State, StoreError, Time, Verdict, decide,
};
use tokio::time::Instant;

use crate::command::Encoder;
use crate::command::bytes::Reader;
use crate::command::key::RedisKey;
use crate::command::request::Decoded;
use crate::command::request::KeyedStates;

/// The commands that a store without scripts calls: all that its user has to be allowed, on keys `sg:*`.
pub const TRANSACTION_COMMANDS: [&str; 7] = ["EXEC", "GET", "INCRBY", "MULTI", "PEXPIRE", "PTTL", "TIME"];

/// The commands that [`FixedWindow::Native`](crate::FixedWindow::Native) calls, to be allowed beside those of scripts, or
/// of a store without.
pub const NATIVE_COMMANDS: [&str; 6] = ["EXEC", "GET", "INCREX", "MULTI", "PTTL", "TIME"];

const MILLISECOND_NS: u64 = 1_000_000;
/// So long a window's counter outlives it, or a window if that is shorter: for those who are told the time late.
const LATE_NS: u64 = 60_000_000_000;
/// So long the server's time counts as it was told: in a second two clocks drift apart by less than a millisecond.
const TOLD_MAX_AGE_NS: u64 = 1_000_000_000;

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

/// A server's time, as near as its last answer. What was told too long ago counts as not told: clocks drift apart.
#[derive(Debug)]
pub(crate) struct ServerClock {
    start: Instant,
    /// Nanoseconds that the server's time is ahead of the time since `start`.
    ahead_ns: AtomicU64,
    /// When that was told, in nanoseconds since `start`; 0 while nobody has told.
    told_ns: AtomicU64,
}

impl ServerClock {
    pub(crate) fn new() -> ServerClock {
        ServerClock { start: Instant::now(), ahead_ns: AtomicU64::new(0), told_ns: AtomicU64::new(0) }
    }

    fn now(&self) -> Option<Time> {
        self.at(self.passed_ns())
    }

    fn at(&self, passed_ns: u64) -> Option<Time> {
        // What is read after this is as new, at least.
        let told_ns = self.told_ns.load(Ordering::Acquire);
        let counts = told_ns > 0 && passed_ns.saturating_sub(told_ns) <= TOLD_MAX_AGE_NS;
        counts.then(|| Time::from_nanos(self.ahead_ns.load(Ordering::Relaxed).saturating_add(passed_ns)))
    }

    fn told(&self, now: Time) {
        let passed_ns = self.passed_ns();
        self.ahead_ns.store(now.as_nanos().saturating_sub(passed_ns), Ordering::Relaxed);
        self.told_ns.store(passed_ns.max(1), Ordering::Release);
    }

    fn passed_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// The counter that a hit counts in.
#[derive(Debug)]
struct Counter {
    name: RedisKey,
    /// What is added; 0 to look.
    cost: u64,
    /// Up to this, by INCREX.
    most: u64,
    life_ms: u64,
    /// When the window began, if its number says so.
    start: Option<u64>,
}

/// A request as one transaction.
#[derive(Debug)]
pub(crate) struct Transaction<'f, 'r, 'q> {
    pub(crate) encoder: &'f Encoder,
    pub(crate) by_increx: bool,
    pub(crate) hits: &'r [Hit<'q>],
    /// Of each hit. None while the server has not told lately the time that they need: then it is asked for that alone.
    counters: SmallVec<[Counter; 2]>,
}

impl<'f, 'r, 'q> Transaction<'f, 'r, 'q> {
    /// # Errors
    /// [`StoreError::Malformed`] for a time that is passed, or what plain commands do not serve.
    pub(crate) fn new(
        now: Option<Time>,
        hits: &'r [Hit<'q>],
        encoder: &'f Encoder,
        by_increx: bool,
    ) -> Result<Transaction<'f, 'r, 'q>, StoreError> {
        if now.is_some() {
            return Err(StoreError::Malformed("plain commands go by the server's clock"));
        }
        if !hits.iter().all(|hit| supports(hit.quota, hit.op.kind())) {
            return Err(StoreError::Malformed("a hit that plain commands cannot serve"));
        }
        Ok(Transaction { encoder, by_increx, hits, counters: counters(hits, &encoder.clock) })
    }

    /// The name of the first counter: all are in one slot.
    pub(crate) fn key(&self) -> Option<RedisKey> {
        self.hits.first().map(RedisKey::of)
    }

    /// The names of all counters that are asked.
    pub(crate) fn counters(&self) -> impl Iterator<Item = RedisKey> {
        self.counters.iter().map(|counter| counter.name)
    }

    /// Whether it takes anything.
    pub(crate) fn takes(&self) -> bool {
        self.counters.iter().any(|counter| counter.cost > 0)
    }

    /// Appends the commands, of which the last one's answer counts.
    pub(crate) fn write(&self, out: &mut Pipeline) {
        out.cmd("MULTI").ignore();
        for counter in &self.counters {
            let name = counter.name.as_bytes();
            if counter.cost > 0 && self.by_increx {
                out.cmd("INCREX").arg(name).arg("BYINT").arg(counter.cost).arg("UBOUND").arg(counter.most);
                out.arg("PX").arg(counter.life_ms).arg("ENX").ignore();
            } else if counter.cost > 0 {
                out.cmd("INCRBY").arg(name).arg(counter.cost).ignore();
                out.cmd("PEXPIRE").arg(name).arg(counter.life_ms).arg("NX").ignore();
            } else {
                out.cmd("GET").arg(name).ignore();
            }
            out.cmd("PTTL").arg(name).ignore();
        }
        out.cmd("TIME").ignore();
        out.cmd("EXEC");
    }

    /// Decides each hit by what its counter was before, as the kernel would.
    ///
    /// # Errors
    /// The reply is none of these commands.
    pub(crate) fn decode(&mut self, reply: &[u8], decisions: &mut [Decision]) -> Result<Decoded, StoreError> {
        let broken = || StoreError::Unavailable("the transaction did not answer with counters".into());
        // The time comes last.
        let (counts, time) = reply.split_at_checked(reply.len().saturating_sub(16)).ok_or_else(broken)?;
        let now = read_time(time).ok_or_else(broken)?;
        self.encoder.clock.told(now);
        if self.counters.len() < self.hits.len() {
            self.counters = counters(self.hits, &self.encoder.clock);
            return Ok(Decoded::CallAgain);
        }
        let mut reader = Reader(counts);
        for ((hit, counter), decision) in self.hits.iter().zip(&self.counters).zip(&mut *decisions) {
            *decision = counter
                .read(hit, self.by_increx, now, &mut reader)
                .and_then(|reading| reading.decide(hit))
                .ok_or_else(broken)?;
        }
        if reader.0.is_empty() { Ok(Decoded::Verdict(Verdict::of(self.hits, decisions, now))) } else { Err(broken()) }
    }

    /// As of [`ScriptCall::states_after`](crate::ScriptCall).
    pub(crate) fn states_after(&self, reply: &[u8]) -> Option<(Time, KeyedStates)> {
        let (counts, time) = reply.split_at_checked(reply.len().checked_sub(16)?)?;
        let (now, mut reader) = (read_time(time)?, Reader(counts));
        let mut states = KeyedStates::new();
        for (hit, counter) in self.hits.iter().zip(&self.counters) {
            let reading = counter.read(hit, self.by_increx, now, &mut reader)?;
            // Of several hits on one state the last one tells.
            states.retain(|(state_key, _)| *state_key != hit.state_key());
            states.push((hit.state_key(), window(reading.start, reading.after)?));
        }
        Some((now, states))
    }
}

/// What a transaction shows of one counter.
struct Reading {
    before: u64,
    after: u64,
    /// Of its window.
    start: u64,
    /// The time in it that the hit is decided at.
    at: u64,
}

impl Reading {
    fn decide(&self, hit: &Hit<'_>) -> Option<Decision> {
        let mut decisions = [Decision::default()];
        decide(&mut [window(self.start, self.before)?], &[0], &[*hit], Time::from_nanos(self.at), &mut decisions);
        let [decision] = decisions;
        // A refusal counts, and nothing can be given back.
        let remaining = decision.remaining.min(decision.limit.saturating_sub(self.after));
        Some(decision.with_remaining(remaining).without_receipt())
    }
}

fn window(start: u64, units: u64) -> Option<State> {
    if units > 0 { State::decode(&[2, 0, 0, start, units.min(MAX_UNITS)]) } else { Some(State::default()) }
}

impl Counter {
    /// `None` where the windows are numbered and nobody has told the time lately.
    fn of(hit: &Hit<'_>, clock: &ServerClock) -> Option<Counter> {
        let (quota, window_ns, most) = (hit.quota, hit.quota.window_ns(), hit.quota.hard_capacity());
        let cost = match hit.op {
            Op::Take { cost, .. } if cost <= most => cost,
            _ => 0,
        };
        if quota.algorithm() == Algorithm::FixedWindow(Anchor::FirstHit) {
            let life_ms = window_ns / MILLISECOND_NS;
            return Some(Counter { name: RedisKey::of_counter(hit, 0), cost, most, life_ms, start: None });
        }
        let number = clock.now()?.as_nanos() / window_ns;
        let life_ms = (window_ns + window_ns.min(LATE_NS)).div_ceil(MILLISECOND_NS);
        let (name, start) = (RedisKey::of_counter(hit, number), Some(number * window_ns));
        Some(Counter { name, cost, most, life_ms, start })
    }

    fn read(&self, hit: &Hit<'_>, by_increx: bool, now: Time, reader: &mut Reader<'_>) -> Option<Reading> {
        let window_ns = hit.quota.window_ns();
        let after = reader.integer(8)?;
        // INCREX tells what it has added; PEXPIRE, whether these are the counter's first units.
        let second = if self.cost > 0 { reader.integer(8)? } else { 0 };
        let before = after.checked_sub(if by_increx { second } else { self.cost })?;
        // Whole milliseconds, after the last of which the counter is gone; negative for one without an end, or none.
        let left_ms = reader.integer(8)?.cast_signed().max(0).unsigned_abs() + 1;
        let (start, at) = match self.start {
            // The server may have passed to another window since it told the time.
            Some(start) => (start, now.as_nanos().clamp(start, start + window_ns - 1)),
            None => {
                let left_ns = left_ms.saturating_mul(MILLISECOND_NS).min(window_ns);
                (now.as_nanos().saturating_sub(window_ns - left_ns), now.as_nanos())
            }
        };
        Some(Reading { before, after, start, at })
    }
}

fn counters(hits: &[Hit<'_>], clock: &ServerClock) -> SmallVec<[Counter; 2]> {
    let counters: Option<_> = hits.iter().map(|hit| Counter::of(hit, clock)).collect();
    counters.unwrap_or_default()
}

/// All numbers in the answer, each in eight bytes; of a key that is not there 0.
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

/// Seconds and microseconds.
fn read_time(bytes: &[u8]) -> Option<Time> {
    let mut reader = Reader(bytes);
    let (seconds, us) = (reader.integer(8)?, reader.integer(8)?);
    let now = Duration::from_secs(seconds).checked_add(Duration::from_micros(us))?;
    u64::try_from(now.as_nanos()).ok().map(Time::from_nanos)
}

#[cfg(test)]
mod tests;
