//! A fixture is two keys with several quotas and a simulated time. The kernel, the memory store and Redis decide the
//! same requests on these keys.

use std::collections::BTreeMap;

use redis::Value;
use spillgate::{MemoryOptions, MemoryStore};
use spillgate_core::{Algorithm, Binding, Decision, Hit, Op, Quota, Receipt, State, Time, Verdict, decide};
use spillgate_redis::{Decoded, LogForm, RedisKey, ScriptCall, decode_state};
use spillgate_testkit::Random;

use crate::support::client::{Client, bytes, call};

/// The times at which fixtures begin, in nanoseconds. Most begin in the year 2026. The others begin at zero, or near
/// the greatest time.
const STARTS: [u64; 4] = [1_790_000_000_123_456_789, 1_790_000_000_000_000_000, 0, i64::MAX as u64 - 5_000_000_000];

pub(crate) struct Fixture<'q> {
    key: u128,
    quotas: &'q [Quota],
    log: LogForm,
    /// Most requests use this quota. The time advances by parts of its window.
    focus: &'q Quota,
    random: Random,
    now: u64,
    /// Every time is a multiple of this number. In some fixtures these are whole microseconds, as the clock of Redis
    /// has them.
    grid_ns: u64,
    kernel: BTreeMap<u128, State>,
    /// Most fixtures have a memory store. In these fixtures the clock never steps back, because the memory store may
    /// already have removed a state that is not expired at the earlier time. Such fixtures also do not start near the
    /// greatest time. The memory store keeps only the low bits of the newest time of a charge, and shortly after the
    /// greatest time these bits are the same as at time 0. So a request shortly after the greatest time would count as
    /// late.
    memory: Option<MemoryStore>,
    receipts: Vec<Receipt>,
    /// The units that the last decision left. Some of the next costs are exactly this number, or one more.
    remaining: u64,
    pub(crate) requests: u64,
    pub(crate) allowed: u64,
    pub(crate) again: u64,
}

/// A request and the kernel's decision.
struct Expected<'q> {
    now: Time,
    hits: Vec<Hit<'q>>,
    decisions: Vec<Decision>,
    verdict: Verdict,
}

impl<'q> Fixture<'q> {
    pub(crate) fn new(seed: u64, quotas: &'q [Quota], log: LogForm) -> Fixture<'q> {
        let start = if seed.is_multiple_of(7) { STARTS[seed as usize / 7 % 4] } else { STARTS[0] };
        Fixture {
            key: u128::from(seed + 1) << 110 | u128::from(seed),
            quotas,
            log,
            focus: &quotas[seed as usize % quotas.len()],
            random: Random(seed * 2 + 1),
            now: start,
            grid_ns: if seed.is_multiple_of(3) { 1000 } else { 1 },
            kernel: BTreeMap::new(),
            memory: (!seed.is_multiple_of(5) && start != STARTS[3])
                .then(|| MemoryStore::new(MemoryOptions { max_keys: 1000, ..Default::default() })),
            receipts: Vec::new(),
            remaining: 0,
            requests: 0,
            allowed: 0,
            again: 0,
        }
    }

    /// Returns the number of requests that the memory store decided too.
    pub(crate) fn in_memory(&self) -> u64 {
        if self.memory.is_some() { self.requests } else { 0 }
    }

    /// Returns the next request with the kernel's decision.
    fn ask(&mut self) -> Expected<'q> {
        let hits = self.hits();
        let quota = if self.random.one_in(8) { hits[0].quota } else { self.focus };
        self.pass_time(quota);
        self.decide(Time::from_nanos(self.now), hits)
    }

    fn hits(&mut self) -> Vec<Hit<'q>> {
        let several = if self.random.below(10) < 6 { 1 } else { 1 + self.random.below(4) };
        (0..several).map(|_| self.hit()).collect()
    }

    /// Returns the kernel's decision. First compares it with the memory store's decision, if the fixture has one.
    fn decide(&mut self, now: Time, hits: Vec<Hit<'q>>) -> Expected<'q> {
        let mut keys: Vec<u128> = hits.iter().map(Hit::state_key).collect();
        keys.sort_unstable();
        keys.dedup();
        let state_of: Vec<usize> = hits.iter().map(|hit| keys.partition_point(|key| *key < hit.state_key())).collect();
        let mut states: Vec<State> = keys.iter().map(|key| self.kernel.remove(key).unwrap_or_default()).collect();
        let mut decisions = vec![Decision::default(); hits.len()];
        let verdict = decide(&mut states, &state_of, &hits, now, &mut decisions);
        self.kernel.extend(keys.into_iter().zip(states));
        if let Some(memory) = &self.memory {
            let mut in_memory = vec![Decision::default(); hits.len()];
            let reported = memory.decide_now(now, &hits, &mut in_memory).expect("the request is well formed");
            assert_eq!((reported, &in_memory), (verdict, &decisions), "{hits:?} at {now:?}, request {}", self.requests);
        }
        self.requests += 1;
        self.allowed += u64::from(verdict.allowed);
        self.remaining = decisions[0].remaining;
        self.receipts.extend(decisions.iter().filter_map(|decision| decision.receipt));
        self.receipts.drain(..self.receipts.len().saturating_sub(6));
        Expected { now, hits, decisions, verdict }
    }

    fn hit(&mut self) -> Hit<'q> {
        let quota = if self.random.one_in(3) { self.random.pick(self.quotas) } else { self.focus };
        let binding = *self.random.pick(&[Binding::Enforce, Binding::Enforce, Binding::Shadow, Binding::Quota]);
        let key = self.key ^ u128::from(self.random.one_in(4)) << 64;
        Hit::new(key, quota, self.op(quota), binding)
    }

    fn op(&mut self, quota: &Quota) -> Op {
        let capacity = quota.hard_capacity();
        let cost = match self.random.below(24) {
            0 => 0,
            1 => capacity,
            2 => capacity + 1,
            3 => u64::MAX,
            4 | 5 => self.remaining.min(capacity),
            6 => self.remaining.min(capacity) + 1,
            7 => self.random.below(capacity),
            8..12 => 1 + capacity / 3,
            n => 1 + n % 3,
        };
        let receipt = if self.receipts.is_empty() { None } else { Some(*self.random.pick(&self.receipts)) };
        let max_wait_ns = *self.random.pick(&[0, u64::MAX, u64::MAX, quota.interval_ns(), 200_000_000]);
        match (self.random.below(24), receipt) {
            (0, _) => Op::Peek,
            (1, _) => Op::Force { cost },
            (2, _) => Op::Refund { cost, receipt: None },
            (3 | 4, Some(_)) => Op::Refund { cost, receipt },
            (5, Some(receipt)) => Op::Renew { receipt },
            (7 | 8, Some(receipt)) => Op::settle(self.random.below(6), cost, receipt),
            (6, _) if self.random.one_in(3) => Op::Reset,
            _ => Op::Take { cost, max_wait_ns },
        }
    }

    /// Advances the time, mostly by a part of the window. Sometimes it goes back instead, as if a request were late or
    /// the clock had been set back.
    fn pass_time(&mut self, quota: &Quota) {
        let window = quota.window_ns().max(quota.lease_ns());
        let part = match self.random.below(10) {
            0..3 => 0,
            3 => 1,
            4 => self.random.below(3000),
            5..8 => self.random.below(window.div_ceil(5)),
            8 => self.random.below(window),
            _ => quota.interval_ns(),
        };
        let now = match self.random.below(40) {
            0 | 1 => self.now.saturating_sub(part),
            2 => self.now.saturating_sub(2 * part),
            3 if self.random.one_in(4) => self.now.saturating_sub(window.saturating_mul(3)),
            4 => self.now + window + part,
            5 if self.random.one_in(4) => STARTS[0],
            _ => self.now + part,
        };
        let least = if self.memory.is_some() { self.now } else { 0 };
        self.now = (now - now % self.grid_ns).clamp(least, Time::MAX.as_nanos());
    }

    fn check(&self, expected: &Expected<'_>, verdict: Verdict, decisions: &[Decision], stored: &[Value]) {
        let reported =
            |what: &str| format!("{what}: {:?} at {:?}, request {}", expected.hits, expected.now, self.requests);
        assert_eq!(verdict, expected.verdict, "{}", reported("verdict"));
        assert_eq!(decisions, expected.decisions, "{}", reported("decisions"));
        for (hit, stored) in expected.hits.iter().zip(stored) {
            let stored = stored_state(stored, hit.quota, self.log).expect("the value is a state");
            assert_eq!(words(&stored), words(&self.kernel[&hit.state_key()]), "{}", reported("state"));
        }
    }
}

fn words(state: &State) -> Vec<u64> {
    let mut words = Vec::new();
    state.encode(&mut words);
    words
}

/// Returns the commands that read the states of `hits`.
pub(crate) fn reads(hits: &[Hit<'_>], log: LogForm) -> Vec<redis::Cmd> {
    let read = |hit: &Hit<'_>| {
        let name = RedisKey::with(hit, log);
        match hit.quota.algorithm() {
            Algorithm::SlidingWindowLog if log == LogForm::Zset => {
                redis::cmd("ZRANGE").arg(name.as_bytes()).arg(0).arg(-1).arg("WITHSCORES").clone()
            }
            Algorithm::SlidingWindowLog => redis::cmd("LRANGE").arg(name.as_bytes()).arg(0).arg(-1).clone(),
            Algorithm::Concurrency => redis::cmd("HGETALL").arg(name.as_bytes()).clone(),
            _ => redis::cmd("GET").arg(name.as_bytes()).clone(),
        }
    };
    hits.iter().map(read).collect()
}

pub(crate) fn stored_state(reply: &Value, quota: &Quota, log: LogForm) -> Option<State> {
    match (quota.algorithm(), reply) {
        (Algorithm::SlidingWindowLog, Value::Array(parts)) if log == LogForm::Zset => stored_zset(parts),
        (Algorithm::SlidingWindowLog, Value::Array(elements)) => stored_log(elements),
        (Algorithm::Concurrency, Value::Map(fields)) => stored_leases(fields),
        (Algorithm::Concurrency, Value::Array(parts)) => {
            let pairs = parts.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone()));
            stored_leases(&pairs.collect::<Vec<_>>())
        }
        _ => decode_state(bytes(reply), quota),
    }
}

/// Reads a time: five bytes of seconds and four bytes of nanoseconds (`I5I4` in the scripts).
fn time(bytes: &[u8]) -> u64 {
    number(&bytes[..5]) * 1_000_000_000 + number(&bytes[5..9])
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

fn stored_log(elements: &[Value]) -> Option<State> {
    let mut words = vec![0, 0, 0];
    for element in elements.iter().map(bytes) {
        if element.len() == 18 {
            (words[1], words[2]) = (time(element), time(&element[9..]));
            continue;
        }
        words[0] = 4;
        let packed = number(element);
        let at = (packed >> 30) * 1_000_000_000 + (packed & ((1 << 30) - 1));
        match words.len() {
            n if n > 3 && words[n - 2] == at => words[n - 1] += 1,
            _ => words.extend([at, 1]),
        }
    }
    State::decode(&words)
}

/// Reads a log in a sorted set. Each time of the log is stored twice: as the score, and in the name of the member.
fn stored_zset(parts: &[Value]) -> Option<State> {
    let mut words = vec![0, 0, 0];
    let text = |value| std::str::from_utf8(bytes(value)).expect("the reply is text");
    for [member, score] in parts.as_chunks::<2>().0.iter().map(|pair| [text(&pair[0]), text(&pair[1])]) {
        let time = |text: &str| text.replace('.', "").parse::<u64>().expect("the text is a time");
        if let Some(until) = member.strip_prefix("until ") {
            assert_eq!((score, words[1]), ("-inf", 0));
            let (until, span) = until.split_once(" for ").expect("the name has a time and a span");
            (words[1], words[2]) = (time(until), time(span));
            continue;
        }
        let (at, _) = member.split_once('-').expect("the name has a time and a number");
        let at = time(at);
        // A double can store whole microseconds exactly up to the year 2255.
        assert_eq!(score.parse::<f64>().expect("the text is a number"), (at / 1000) as f64, "{member}");
        words[0] = 4;
        match words.len() {
            n if n > 3 && words[n - 2] == at => words[n - 1] += 1,
            _ => words.extend([at, 1]),
        }
    }
    State::decode(&words)
}

fn stored_leases(fields: &[(Value, Value)]) -> Option<State> {
    let (mut words, mut leases) = (vec![0, 0, 0], Vec::new());
    for (name, value) in fields.iter().map(|(name, value)| (bytes(name), bytes(value))) {
        match name {
            b"until" => (words[1], words[2]) = (time(value), time(&value[9..])),
            b"about" => words = vec![5, words[1], words[2], time(&value[3..])],
            id => leases.extend([time(id), time(value), time(&value[9..]), number(&value[18..])]),
        }
    }
    words.extend(leases);
    State::decode(&words)
}

/// Sends one request of each fixture, all at the same time.
pub(crate) fn step(fixtures: &mut [Fixture<'_>], client: &mut Client) {
    let expected: Vec<Expected<'_>> = fixtures.iter_mut().map(Fixture::ask).collect();
    let requests = expected.iter().zip(fixtures.iter()).map(|(expected, fixture)| {
        ScriptCall::with(Some(expected.now), &expected.hits, fixture.log).expect("the request is well formed")
    });
    let mut requests: Vec<ScriptCall<'_, '_>> = requests.collect();
    let commands = requests.iter().zip(&expected).zip(fixtures.iter()).flat_map(|((request, expected), fixture)| {
        let mut commands = vec![call(request)];
        commands.extend(reads(&expected.hits, fixture.log));
        commands
    });
    let replies = client.ask(commands.collect::<Vec<_>>());
    let mut replies = replies.as_slice();
    for ((fixture, expected), request) in fixtures.iter_mut().zip(&expected).zip(&mut requests) {
        let (mine, rest) = replies.split_at(1 + expected.hits.len());
        replies = rest;
        let mut mine = mine.to_vec();
        let mut decisions = vec![Decision::default(); expected.hits.len()];
        let mut decoded = request.decode(bytes(&mine[0]), &mut decisions);
        if matches!(decoded, Ok(Decoded::CallAgain)) {
            fixture.again += 1;
            let mut commands = vec![call(request)];
            commands.extend(reads(&expected.hits, fixture.log));
            mine = client.ask(commands);
            decoded = request.decode(bytes(&mine[0]), &mut decisions);
        }
        let Ok(Decoded::Verdict(verdict)) = decoded else {
            panic!("the reply to {:?} at {:?} is {decoded:?}", expected.hits, expected.now)
        };
        fixture.check(expected, verdict, &decisions, &mine[1..]);
    }
}

/// Sends one request of each fixture, all at the same time. The clock of Redis sets the times of the decisions.
pub(crate) fn step_by_the_server(fixtures: &mut [Fixture<'_>], client: &mut Client) {
    let hits: Vec<Vec<Hit<'_>>> = fixtures.iter_mut().map(Fixture::hits).collect();
    let mut requests: Vec<ScriptCall<'_, '_>> = hits
        .iter()
        .zip(fixtures.iter())
        .map(|(hits, fixture)| ScriptCall::with(None, hits, fixture.log).expect("the request is well formed"))
        .collect();
    let replies = client.ask(requests.iter().map(call));
    for (((fixture, hits), request), reply) in fixtures.iter_mut().zip(&hits).zip(&mut requests).zip(replies) {
        let mut decisions = vec![Decision::default(); hits.len()];
        let mut decoded = request.decode(bytes(&reply), &mut decisions);
        if matches!(decoded, Ok(Decoded::CallAgain)) {
            fixture.again += 1;
            decoded = request.decode(bytes(&client.ask_one(call(request))), &mut decisions);
        }
        let Ok(Decoded::Verdict(verdict)) = decoded else { panic!("the reply to {hits:?} is {decoded:?}") };
        let expected = fixture.decide(verdict.now, hits.clone());
        fixture.check(&expected, verdict, &decisions, &[]);
    }
}
