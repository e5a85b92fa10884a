//! Turns a request into the call of a script: chooses the script, its keys and its arguments, and reads the reply.
//!
//! This file uses no Redis client library, so a program can send the call over its own connections.
//!
//! These scripts serve the requests. `T` is the time in which a bucket gets one unit back:
//!
//! | request | script |
//! |---|---|
//! | one take on a bucket, queue, fixed window, or counter of one segment | `take_bucket`, `take_window`, `take_counter` |
//! | one take on a log | `take_log`, `take_zset` |
//! | several takes like those in the first row, each on a different state, all enforced | `take_all` |
//! | any other request, such as a peek, a refund, a lease or a charged refusal | `decide` |
//! | a request that another script could not decide, for example because the state has a penalty, or another `T` than the quota | `decide`, in a second call |

use smallvec::{SmallVec, smallvec};
use spillgate_core::{
    Algorithm, Anchor, Binding, Decision, Hit, MAX_HITS, Op, OpKind, Quota, State, StoreError, StoreErrorKind, Time,
    Verdict, decide,
};

use crate::command::args::{HitArgs, algorithm, epoch_window_us};
use crate::command::bytes::{Reader, Writer};
use crate::command::key::RedisKey;
use crate::command::script::Script;
use crate::command::state_codec;
use crate::settings::LogForm;

/// The longest window that begins at multiples of its length: 2^51 us (71 years).
const MAX_EPOCH_WINDOW_NS: u64 = (1 << 51) * 1000;

/// The initial capacity for the argument of one take.
const TAKE_BYTES: usize = 40;

/// Returns whether the scripts can serve `op` on `quota`.
///
/// A window that begins at multiples of its length, or that has segments, can be at most 71 years long. The length of
/// the window and of each segment must be a whole number of microseconds, because the scripts compute in microseconds.
///
/// ```
/// use std::time::Duration;
/// use spillgate_core::{OpKind, Quota};
/// use spillgate_redis::supports;
///
/// let window = |length| Quota::fixed_window(5, length).build();
/// assert!(supports(&window(Duration::from_micros(1_500))?, OpKind::Take));
/// assert!(!supports(&window(Duration::from_nanos(1_500))?, OpKind::Take));
/// # Ok::<(), spillgate_core::QuotaError>(())
/// ```
#[must_use]
pub fn supports(quota: &Quota, op: OpKind) -> bool {
    let representable = match quota.algorithm() {
        Algorithm::FixedWindow(Anchor::Epoch) | Algorithm::SlidingWindowCounter { .. } => {
            quota.interval_ns().is_multiple_of(1000) && quota.window_ns() <= MAX_EPOCH_WINDOW_NS
        }
        Algorithm::FixedWindow(Anchor::FirstHit)
        | Algorithm::TokenBucket
        | Algorithm::LeakyBucket
        | Algorithm::SlidingWindowLog
        | Algorithm::Concurrency => true,
    };
    representable && quota.supports(op)
}

/// Checks the number of hits. The store calls this function before it splits a request by slots, so that the bound
/// holds for the whole request.
///
/// # Errors
/// [`StoreErrorKind::Malformed`] for too many hits.
pub(crate) fn check_number(hits: &[Hit<'_>]) -> Result<(), StoreError> {
    if hits.len() > MAX_HITS { Err(StoreError::malformed("too many hits")) } else { Ok(()) }
}

/// A request whose states are all in one slot, as one call of a script.
///
/// A request in several slots becomes one call for each slot. In such a request, turn hits with [`Binding::Quota`] into
/// shadow hits: one of these hits that passes is enough to admit the request, and that hit may be in another slot.
/// [`Verdict::of`] computes the verdict on the whole request.
///
/// ```
/// use spillgate_core::{Binding, Decision, Hit, Op, Quota, Time};
/// use spillgate_redis::{Decoded, ScriptCall};
///
/// let quota = Quota::per_second(10).build()?;
/// let hits = [Hit::new(7, &quota, Op::take(4), Binding::Enforce)];
/// let mut call = ScriptCall::new(None, &hits)?;
/// // Send `EVALSHA call.script().sha() <number of keys> <keys> <arguments>`.
/// // For a new bucket, the reply is only the time.
/// let reply = [0, 0, 0, 0, 9, 0, 0, 0, 0];
/// let mut decisions = [Decision::default()];
/// let Decoded::Verdict(verdict) = call.decode(&reply, &mut decisions)? else { panic!("decided") };
/// assert_eq!((verdict.now, decisions[0].remaining), (Time::from_nanos(9_000_000_000), 6));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ScriptCall<'r, 'q> {
    hits: &'r [Hit<'q>],
    log: LogForm,
    /// The key of each state, once.
    keys: SmallVec<[RedisKey; 4]>,
    /// For each hit, the position of its state in `keys`.
    state_of: SmallVec<[usize; 4]>,
    /// The script that decides. [`decode`](ScriptCall::decode) may replace it by the general script.
    script: &'static Script,
    /// The time of the decision, the arguments of the hits, and the [latest time](ScriptCall::not_after). Both times
    /// can be empty.
    arguments: [Vec<u8>; 3],
}

/// One take that can share a call with other takes, in the form that the script reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EncodedTake<'r> {
    /// One of the scripts in [`Script::EACH`].
    pub(crate) script: &'static Script,
    /// The time of the decision in nine bytes. Empty if the script has to read the clock of Redis.
    pub(crate) time: &'r [u8],
    pub(crate) key: &'r [u8],
    /// All arguments for one script have the same length.
    pub(crate) argument: &'r [u8],
}

/// States, each with its [key](Hit::state_key).
pub(crate) type KeyedStates = SmallVec<[(u128, State); 4]>;

/// What a reply means. [`ScriptCall`] has an example. A reply has no other meanings, so this enum is exhaustive.
#[derive(Debug)]
pub enum Decoded {
    /// The request is decided.
    Verdict(Verdict),
    /// The script did nothing, because it cannot decide with the state that it found, for example a state with a
    /// penalty. The call is now a call of the general script `decide`, and must be sent again.
    CallAgain,
}

impl<'r, 'q> ScriptCall<'r, 'q> {
    /// Returns the call for `hits` in a store that keeps logs as lists. If `now` is `None`, the script reads the clock
    /// of Redis.
    ///
    /// # Errors
    /// [`StoreErrorKind::Malformed`] for too many hits, or for a quota that the scripts do not [support](supports).
    pub fn new(now: Option<Time>, hits: &'r [Hit<'q>]) -> Result<ScriptCall<'r, 'q>, StoreError> {
        ScriptCall::with(now, hits, LogForm::Packed)
    }

    /// Returns the same call as [`new`](ScriptCall::new), but `log` says how logs are stored.
    ///
    /// # Errors
    /// The same errors as [`new`](ScriptCall::new) returns.
    pub fn with(now: Option<Time>, hits: &'r [Hit<'q>], log: LogForm) -> Result<ScriptCall<'r, 'q>, StoreError> {
        check_number(hits)?;
        if !hits.iter().all(|hit| supports(hit.quota, OpKind::Peek)) {
            return Err(StoreError::malformed("a quota that scripts cannot serve"));
        }
        let mut keys: SmallVec<[RedisKey; 4]> = SmallVec::new();
        let mut state_of = SmallVec::new();
        for hit in hits {
            let name = RedisKey::with(hit, log);
            let known = keys.iter().position(|key| *key == name);
            state_of.push(known.unwrap_or(keys.len()));
            if known.is_none() {
                keys.push(name);
            }
        }
        let mut time = Writer::default();
        if let Some(now) = now {
            time.time(now.as_nanos());
        }
        let mut request = ScriptCall {
            hits,
            log,
            keys,
            state_of,
            script: Script::DECIDE,
            arguments: [time.0, Vec::new(), Vec::new()],
        };
        (request.script, request.arguments[1]) = request.take_script().unwrap_or_else(|| request.general_script());
        Ok(request)
    }

    /// Returns the script to run. [`Decoded::CallAgain`] and [`not_after`](ScriptCall::not_after) change the script.
    #[must_use]
    pub fn script(&self) -> &'static Script {
        self.script
    }

    pub(crate) fn hits(&self) -> &'r [Hit<'q>] {
        self.hits
    }

    /// Returns the KEYS of the script: the key of each state, once.
    #[must_use]
    pub fn keys(&self) -> &[RedisKey] {
        &self.keys
    }

    /// Returns the ARGV of the script: two arguments, or three after [`not_after`](ScriptCall::not_after).
    pub fn arguments(&self) -> impl Iterator<Item = &[u8]> {
        let [.., latest] = &self.arguments;
        self.arguments.iter().map(Vec::as_slice).take(2 + usize::from(!latest.is_empty()))
    }

    /// Returns the request as a take that can share a call with other takes. `None` if the request cannot share a call.
    /// The keys of a shared call can be in several slots.
    pub(crate) fn take(&self) -> Option<EncodedTake<'_>> {
        let ([key], [time, argument, _]) = (&self.keys[..], &self.arguments) else { return None };
        let (script, key) = (self.script, key.as_bytes());
        Script::EACH.contains(&script).then_some(EncodedTake { script, time, key, argument })
    }

    /// Sets the latest time at which the script may change a state. If the time of the decision is later, the script
    /// does nothing and returns an empty reply, and [`decode`](ScriptCall::decode) returns an error. The call becomes a
    /// call of the general script.
    pub fn not_after(&mut self, latest: Time) {
        (self.script, self.arguments[1]) = self.general_script();
        let mut time = Writer::default();
        time.time(latest.as_nanos());
        self.arguments[2] = time.0;
    }

    /// Returns a script for takes, with its argument. `None` if no such script can serve the request.
    fn take_script(&self) -> Option<(&'static Script, Vec<u8>)> {
        if let [hit] = self.hits {
            let mut out = Writer(Vec::with_capacity(TAKE_BYTES));
            return Some((write_take(hit, self.log, &mut out)?, out.0));
        }
        // Each hit must be on a state of its own, and each refused hit must refuse the request.
        let distinct = self.keys.len() == self.hits.len() && !self.hits.is_empty();
        if !distinct || self.hits.iter().any(|hit| hit.binding != Binding::Enforce) {
            return None;
        }
        let mut out = Writer::default();
        for hit in self.hits {
            let mut take = Writer(Vec::with_capacity(TAKE_BYTES));
            write_take(hit, self.log, &mut take)?;
            if hit.quota.algorithm() == Algorithm::SlidingWindowLog {
                return None;
            }
            out.byte(algorithm(hit.quota, self.log));
            out.byte(u8::try_from(take.0.len()).ok()?);
            out.0.extend(take.0);
        }
        Some((Script::TAKE_ALL, out.0))
    }

    /// Returns the general script, which serves every request, with its argument.
    fn general_script(&self) -> (&'static Script, Vec<u8>) {
        let mut out = Writer::default();
        for (i, hit) in self.hits.iter().enumerate() {
            let (state, cost_on_state) = (self.state_of[i], self.cost_on_state(i));
            HitArgs { hit, state, cost_on_state, log: self.log }.write(&mut out);
        }
        (Script::DECIDE, out.0)
    }

    /// Sums the costs of all takes on the state of hit `i`.
    fn cost_on_state(&self, i: usize) -> u64 {
        let same = self.hits.iter().zip(&self.state_of).filter(|(_, state)| **state == self.state_of[i]);
        Hit::cost_of_takes(same.map(|(hit, _)| hit))
    }

    /// Decides the request from the reply of the script. The reply has the states as they were before the request, and
    /// the kernel computes the decisions from these states.
    ///
    /// # Errors
    /// The reply is not a reply of this script, or the verdict of the script differs from that of the kernel.
    ///
    /// # Panics
    /// If `decisions` is not as long as the hits.
    pub fn decode(&mut self, reply: &[u8], decisions: &mut [Decision]) -> Result<Decoded, StoreError> {
        let broken =
            || StoreError::new(StoreErrorKind::Garbled, format!("{} did not answer with states", self.script.name));
        let parts = self.read(reply).ok_or_else(broken)?;
        let quotas = || parts.raws.iter().zip(&parts.quotas);
        let is_done =
            self.script == Script::DECIDE || quotas().all(|(raw, quota)| state_codec::is_plain(raw, quota, parts.now));
        let Some(mut states) = self.states(&parts) else {
            return if is_done { Err(broken()) } else { Ok(self.call_again()) };
        };
        // If `is_done` is false, the script has changed nothing. This is correct if the kernel changes no state either,
        // for example because it refuses the take. If the kernel changes a state, the general script must decide.
        let before = (!is_done).then(|| states.clone());
        let verdict = decide(&mut states, &self.state_of, self.hits, parts.now, decisions);
        if before.is_some_and(|before| before != states) {
            return Ok(self.call_again());
        }
        if parts.allowed.is_some_and(|allowed| allowed != verdict.allowed) {
            return Err(StoreError::new(StoreErrorKind::Garbled, "script and kernel do not agree"));
        }
        Ok(Decoded::Verdict(verdict))
    }

    /// Turns the call into a call of the general script, which can decide every state. So a request needs at most two
    /// calls.
    pub(crate) fn call_again(&mut self) -> Decoded {
        (self.script, self.arguments[1]) = self.general_script();
        Decoded::CallAgain
    }

    /// Computes the decisions again, for a request that this slot allowed and another slot refused.
    ///
    /// # Errors
    /// The same errors as [`decode`](ScriptCall::decode) returns.
    pub(crate) fn decode_refused(&self, reply: &[u8], decisions: &mut [Decision]) -> Result<(), StoreError> {
        let parts = self.read(reply).and_then(|parts| Some((parts.now, self.states(&parts)?)));
        let Some((now, mut states)) = parts else {
            return Err(StoreError::new(
                StoreErrorKind::Garbled,
                format!("{} did not answer with states", self.script.name),
            ));
        };
        decisions.copy_from_slice(&decide_refused(&mut states, &self.state_of, self.hits, now));
        Ok(())
    }

    /// Returns the time of the decision, and each state after the decision with its key. `None` if the reply does not
    /// show them.
    pub(crate) fn states_after(&self, reply: &[u8]) -> Option<(Time, KeyedStates)> {
        let parts = self.read(reply)?;
        let mut states = self.states(&parts)?;
        let mut decisions: SmallVec<[Decision; 4]> = smallvec![Decision::default(); self.hits.len()];
        decide(&mut states, &self.state_of, self.hits, parts.now, &mut decisions);
        let first = |i| self.state_of.iter().position(|state| *state == i);
        let keyed = |(i, state)| Some((self.hits[first(i)?].state_key(), state));
        Some((parts.now, states.into_iter().enumerate().map(keyed).collect::<Option<_>>()?))
    }

    /// Returns for each state that the request made, the position of a hit on it.
    pub(crate) fn made(&self, reply: &[u8]) -> SmallVec<[usize; 4]> {
        let absent = self.read(reply).map(|parts| parts.raws.iter().map(|raw| raw.is_empty()).collect());
        let absent: SmallVec<[bool; 4]> = absent.unwrap_or_default();
        if !absent.contains(&true) {
            return SmallVec::new();
        }
        let Some((_, after)) = self.states_after(reply) else { return SmallVec::new() };
        let is_made = |state: &usize| absent[*state] && after[*state].1 != State::default();
        (0..absent.len()).filter(is_made).filter_map(|state| self.state_of.iter().position(|of| *of == state)).collect()
    }

    /// Decodes the states in the reply. `None` if the bytes of a state are invalid.
    fn states(&self, parts: &ReplyParts<'_, '_>) -> Option<SmallVec<[State; 4]>> {
        parts.raws.iter().zip(&parts.quotas).map(|(raw, quota)| state_codec::decode(raw, quota, self.hits)).collect()
    }

    /// Splits a reply into its parts. `None` if the reply is too short or too long.
    fn read<'b>(&self, reply: &'b [u8]) -> Option<ReplyParts<'b, 'q>> {
        let mut reader = Reader(reply);
        let now = Time::from_nanos(reader.time()?);
        let general = self.script == Script::DECIDE;
        let allowed = if general { Some(reader.integer(1)? == 1) } else { None };
        let mut parts = ReplyParts { now, allowed, raws: SmallVec::new(), quotas: SmallVec::new() };
        for i in 0..self.keys.len() {
            let first = self.state_of.iter().position(|state| *state == i)?;
            parts.quotas.push(self.hits[first].quota);
            let length = match self.script {
                script if script == Script::TAKE_ALL => reader.integer(1)?,
                _ if general => reader.integer(4)?,
                _ => reader.0.len() as u64,
            };
            parts.raws.push(reader.take(usize::try_from(length).ok()?)?);
        }
        reader.0.is_empty().then_some(parts)
    }
}

/// Returns the kernel's decisions about `hits` in a request that is refused for another reason, for example by a hit in
/// another slot. To get them, the kernel decides `hits` and one more take, which never fits.
pub(crate) fn decide_refused(
    states: &mut SmallVec<[State; 4]>,
    state_of: &[usize],
    hits: &[Hit<'_>],
    now: Time,
) -> SmallVec<[Decision; 4]> {
    let mut decisions: SmallVec<[Decision; 4]> = smallvec![Decision::default(); hits.len() + 1];
    if let Some(first) = hits.first() {
        let never = Hit::new(0, first.quota, Op::take(u64::MAX), Binding::Enforce);
        let hits: SmallVec<[Hit<'_>; 4]> = hits.iter().copied().chain([never]).collect();
        let state_of: SmallVec<[usize; 4]> = state_of.iter().copied().chain([states.len()]).collect();
        states.push(State::default());
        decide(states, &state_of, &hits, now, &mut decisions);
    }
    decisions.pop();
    decisions
}

struct ReplyParts<'b, 'q> {
    /// The time of the decision.
    now: Time,
    /// The verdict of the general script. `None` if another script replied.
    allowed: Option<bool>,
    /// The bytes of each state as it was before the request.
    raws: SmallVec<[&'b [u8]; 4]>,
    /// For each state, the quota of the first hit on it.
    quotas: SmallVec<[&'q Quota; 4]>,
}

/// Appends the argument of the script for this one take. `None` if no script for takes serves this take.
fn write_take(hit: &Hit<'_>, log: LogForm, out: &mut Writer) -> Option<&'static Script> {
    let (quota, capacity) = (hit.quota, hit.quota.hard_capacity());
    let Op::Take { cost: cost @ 1.., max_wait_ns } = hit.op else { return None };
    if cost > capacity || !quota.refusal_is_free() {
        return None;
    }
    match quota.algorithm() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            let interval_ns = quota.interval_ns();
            let queue = quota.algorithm() == Algorithm::LeakyBucket;
            let longest_wait_ns = if queue { max_wait_ns } else { u64::MAX };
            out.time(cost * interval_ns);
            out.time(((capacity - cost) * interval_ns).min(longest_wait_ns));
            out.time(1 << quota.debt_bits());
            out.time(interval_ns);
            out.byte(quota.debt_bits());
            Some(Script::TAKE_BUCKET)
        }
        Algorithm::FixedWindow(anchor) => {
            out.units(cost);
            out.units(capacity - cost);
            out.time(quota.window_ns());
            out.units(epoch_window_us(anchor, quota.window_ns()));
            Some(Script::TAKE_WINDOW)
        }
        Algorithm::SlidingWindowCounter { segments: 1 } if capacity < state_codec::NARROW_COUNT => {
            out.units(cost);
            out.units(capacity - cost);
            out.units(quota.window_ns() / 1000);
            Some(Script::TAKE_COUNTER)
        }
        Algorithm::SlidingWindowLog => {
            out.units(cost);
            out.units(capacity - cost);
            out.time(quota.window_ns());
            Some(if log == LogForm::Zset { Script::TAKE_ZSET } else { Script::TAKE_LOG })
        }
        Algorithm::SlidingWindowCounter { .. } | Algorithm::Concurrency => None,
    }
}
