//! The conformance suite: readable traces that every store has to answer correctly.
//!
//! A store may decide with code of its own, for example with a script that runs in Redis, and this code could decide
//! differently from the kernel. A failed trace shows the line where the answers differ.
//!
//! A trace is a text file in `tests/traces/`. A line that begins with `quota` declares a quota. Any other line
//! that is not indented is a request and its expected answer. An indented line is a hit of the request above it:
//!
//! ```text
//! quota algorithm=token_bucket limit=10 window=1s burst=2      # used by a hit that names no quota
//! quota name=daily algorithm=fixed_window limit=150 window=1d
//!
//! t=0ms key=a cost=1 -> allow remaining=1 receipt=r1           # r1 names the receipt of the take
//! t=0ms key=a cost=2 -> refuse retry_after=100ms
//! t=1ms key=a refund cost=1 receipt=r1 -> allow remaining=2
//! t=1s -> refuse retry_after=never binds=2                     # several hits: one indented line for each
//!   key=a cost=1 -> allow remaining=2
//!   key=a quota=daily cost=151 -> refuse retry_after=never reason=cost_above_capacity
//! ```
//!
//! * A request has a time `t` and hits. A hit has a `key`, the name of a `quota`, a `binding` and an operation. The
//!   [`Binding`] is `enforce`, `shadow` or `quota`.
//! * The usual operation is a take: `cost=n`, with `max_wait` if the caller waits in a queue. Other operations are
//!   `peek`, `force cost=n`, `refund cost=n` with `receipt=r`, `renew receipt=r`, `settle change=n receipt=r`, and
//!   `reset`. If no cost is given, it is 1 unit.
//! * A decision is `allow` or `refuse`. `remaining`, `limit`, `reset_after` and `reason` are checked only if the trace
//!   gives them. `delay`, `retry_after` and `soft_over` are always checked: if the trace does not give one of them, the
//!   decision must not have it.
//! * A verdict is `allow` or `refuse` with `retry_after`, `delay` and `binds`. `binds` is the number of the hit that
//!   determines the answer, counted from 1. On a line with a single hit, the decision is also the verdict.
//! * A duration is one value or a sum, such as `250ms`, `1s-1ns` or `1d+1h`. `t=max` is [`Time::MAX`]. `#` starts a
//!   comment.
//!
//! Hits that can be [merged](Hit::merged) are merged before they are decided, as in production.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use crate::{Algorithm, Anchor, Binding, Decision, Denied, Hit, Op, Quota, QuotaBuilder, Receipt, State};
use crate::{Time, Verdict, Wait};

/// A trace: a name for reports, and a text. [`run`] has an example.
#[derive(Clone, Copy, Debug)]
pub struct Trace {
    /// The name of the file without `.trace`.
    pub name: &'static str,
    /// The text of the file.
    pub text: &'static str,
}

macro_rules! traces {
    ($($name:literal),* $(,)?) => {
        &[$(Trace { name: $name, text: include_str!(concat!("../tests/traces/", $name, ".trace")) }),*]
    };
}

/// All traces. A store that supports only some algorithms chooses its traces by name.
pub const TRACES: &[Trace] = traces![
    "token_bucket",
    "fixed_window_epoch",
    "fixed_window_first_hit",
    "sliding_window_log",
    "sliding_window_counter",
    "sliding_window_segments",
    "leaky_bucket",
    "concurrency",
    "bucket_and_key_library",
    "clock_steps",
    "late_requests",
    "quota_change",
    "two_limits",
    "shadow_and_quota_mode",
    "what_is_charged",
    "penalty",
    "refund_force_reset",
    "settle",
    "soft_limit",
    "limit_zero",
];

/// The error of a trace: a store gave another answer than expected, or the trace is invalid. [`run`] has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceError {
    trace: &'static str,
    line: usize,
    message: String,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.trace:{}: {}", self.trace, self.line, self.message)
    }
}

impl core::error::Error for TraceError {}

/// The simplest store: it keeps its states in a map and calls [`decide`](crate::decide). Every other store is compared
/// with it.
///
/// This store never forgets a state, so it is only for tests. [`run_all`] has an example.
#[derive(Debug, Default)]
pub struct Reference {
    states: BTreeMap<u128, State>,
}

impl Reference {
    /// Decides one request like [`decide`](crate::decide), with the states that earlier requests have left.
    ///
    /// # Panics
    /// If `decisions` and `hits` have different lengths.
    pub fn decide(&mut self, now: Time, hits: &[Hit<'_>], decisions: &mut [Decision]) -> Verdict {
        let mut keys: Vec<u128> = hits.iter().map(Hit::state_key).collect();
        keys.sort_unstable();
        keys.dedup();
        let state_of: Vec<usize> = hits.iter().map(|h| keys.partition_point(|k| *k < h.state_key())).collect();
        let mut states: Vec<State> = keys.iter().map(|k| self.states.remove(k).unwrap_or_default()).collect();
        let verdict = crate::decide(&mut states, &state_of, hits, now, decisions);
        self.states.extend(keys.into_iter().zip(states));
        verdict
    }
}

/// Runs every trace, and returns the number of requests that were decided.
///
/// `fresh` is called once for each trace. It makes an empty store, and returns a function that decides one request on
/// this store.
///
/// # Errors
/// Returns the first answer that differs from its trace.
///
/// ```
/// use spillgate_core::conformance::{Reference, run_all};
/// let requests = run_all(|| {
///     let mut store = Reference::default();
///     move |now, hits: &[_], decisions: &mut [_]| store.decide(now, hits, decisions)
/// })?;
/// assert!(requests > 100);
/// # Ok::<(), spillgate_core::conformance::TraceError>(())
/// ```
pub fn run_all<D>(mut fresh: impl FnMut() -> D) -> Result<usize, TraceError>
where
    D: FnMut(Time, &[Hit<'_>], &mut [Decision]) -> Verdict,
{
    TRACES.iter().try_fold(0, |sum, trace| Ok(sum + run(trace, fresh())?))
}

/// Runs one trace, and returns the number of its requests. `decide` decides one request on a store that is empty when
/// the trace begins.
///
/// # Errors
/// Returns the first answer that differs from the trace, or the first line that cannot be read.
///
/// ```
/// use spillgate_core::conformance::{Reference, Trace, run};
///
/// let text = "quota algorithm=token_bucket limit=10 window=1s\nt=0s key=a cost=4 -> allow remaining=5";
/// let mut store = Reference::default();
/// let error = run(&Trace { name: "wrong", text }, |now, hits, out| store.decide(now, hits, out)).unwrap_err();
/// assert!(error.to_string().starts_with("wrong.trace:2: hit 1: remaining: expected 5, got 6"));
/// ```
pub fn run<D>(trace: &Trace, mut decide: D) -> Result<usize, TraceError>
where
    D: FnMut(Time, &[Hit<'_>], &mut [Decision]) -> Verdict,
{
    let at_line = |line: usize, message: String| TraceError { trace: trace.name, line, message };
    let mut quotas = BTreeMap::new();
    let mut receipts = BTreeMap::new();
    let mut requests = 0;
    let mut lines = lines(trace.text).peekable();
    while let Some((number, text)) = lines.next() {
        if let Some(header) = text.strip_prefix("quota ") {
            let (name, quota) = parse_quota(header).map_err(|e| at_line(number, e))?;
            quotas.insert(name, quota);
            continue;
        }
        let mut block = vec![text];
        while let Some((_, hit)) = lines.next_if(|(_, text)| text.starts_with(' ')) {
            block.push(hit);
        }
        let request = Request::parse(trace.name, &block, &quotas, &receipts).map_err(|e| at_line(number, e))?;
        let named = request.check(&mut decide).map_err(|e| at_line(number, e))?;
        receipts.extend(named);
        requests += 1;
    }
    Ok(requests)
}

/// One request of a trace, and its expected answer.
struct Request<'t, 'q> {
    at: Time,
    hits: Vec<Hit<'q>>,
    decisions: Vec<Expected<'t>>,
    /// The expected verdict. `None` if the request has one hit, because its decision is also the verdict.
    verdict: Option<Expected<'t>>,
}

/// The expected answer. In a trace, it is on the right side of an arrow.
struct Expected<'t> {
    allowed: bool,
    fields: Vec<(&'t str, &'t str)>,
}

impl<'t, 'q> Request<'t, 'q> {
    fn parse(
        trace: &str,
        block: &[&'t str],
        quotas: &'q BTreeMap<&str, Quota>,
        receipts: &BTreeMap<&'t str, Receipt>,
    ) -> Result<Request<'t, 'q>, String> {
        let (left, right) = block[0].split_once("->").ok_or("a request needs an arrow")?;
        let (time, hit) = left.trim().split_once(' ').unwrap_or((left.trim(), ""));
        let at = match time.strip_prefix("t=").ok_or("a request starts with its time, t=")? {
            "max" => Time::MAX,
            text => Time::from_nanos(parse_ns(text)?),
        };
        let (mut hits, mut decisions) = (Vec::new(), Vec::new());
        let expected = Expected::parse(right)?;
        if !hit.trim().is_empty() {
            hits.push(parse_hit(trace, hit, quotas, receipts)?);
            decisions.push(expected);
            return Ok(Request { at, hits, decisions, verdict: None });
        }
        for line in &block[1..] {
            let (left, right) = line.split_once("->").ok_or("a hit needs an arrow")?;
            hits.push(parse_hit(trace, left, quotas, receipts)?);
            decisions.push(Expected::parse(right)?);
        }
        Ok(Request { at, hits, decisions, verdict: Some(expected) })
    }

    /// Decides the request, compares the answer, and returns the receipts that the trace names.
    fn check<D>(&self, decide: &mut D) -> Result<Vec<(&'t str, Receipt)>, String>
    where
        D: FnMut(Time, &[Hit<'_>], &mut [Decision]) -> Verdict,
    {
        let (merged, index_of) = merge(&self.hits);
        let mut answers = vec![Decision::default(); merged.len()];
        let verdict = decide(self.at, &merged, &mut answers);
        let mut named = Vec::new();
        for (i, expected) in self.decisions.iter().enumerate() {
            let answer = &answers[index_of[i]];
            expected.check_decision(answer).map_err(|e| format!("hit {}: {e}; got {answer:?}", i + 1))?;
            if let Some(name) = expected.get("receipt") {
                named.push((name, answer.receipt.ok_or("a receipt is expected, but there is no receipt")?));
            }
        }
        let binds = verdict.binding.and_then(|b| index_of.iter().position(|i| *i == b));
        match &self.verdict {
            Some(expected) => expected.check_verdict(&verdict, binds),
            None => self.decisions[0].check_same(&verdict, binds, &answers[0]),
        }
        .map_err(|e| format!("verdict: {e}; got {verdict:?}"))?;
        Ok(named)
    }
}

impl<'t> Expected<'t> {
    fn parse(text: &'t str) -> Result<Expected<'t>, String> {
        let mut fields = fields(text);
        let allowed = match fields.next() {
            Some(("allow", "")) => true,
            Some(("refuse", "")) => false,
            other => return Err(format!("expected allow or refuse after the arrow, not {other:?}")),
        };
        Ok(Expected { allowed, fields: fields.collect() })
    }

    fn get(&self, name: &str) -> Option<&'t str> {
        self.fields.iter().find(|(n, _)| *n == name).map(|(_, value)| *value)
    }

    fn check_decision(&self, got: &Decision) -> Result<(), String> {
        self.check_common(got.allowed, got.retry_after, got.delay_ns)?;
        same("soft_over", self.get("soft_over").is_some(), got.soft_over)?;
        if got.remaining > got.limit {
            return Err("remaining is above the limit".into());
        }
        for &(name, value) in &self.fields {
            match name {
                "remaining" => same(name, parse_number(value)?, got.remaining)?,
                "limit" => same(name, parse_number(value)?, got.limit)?,
                "reset_after" => same(name, parse_ns(value)?, got.reset_after_ns)?,
                "reason" => same(name, value, got.reason.as_str())?,
                "retry_after" | "delay" | "soft_over" | "receipt" => {}
                other => return Err(format!("a decision has no {other}")),
            }
        }
        Ok(())
    }

    fn check_verdict(&self, got: &Verdict, binds: Option<usize>) -> Result<(), String> {
        self.check_common(got.allowed, got.retry_after, got.delay_ns)?;
        for &(name, value) in &self.fields {
            match name {
                "binds" if value == "none" => same(name, None, binds)?,
                "binds" => same(name, Some(parse_number(value)?), binds.map(|i| i as u64 + 1))?,
                "retry_after" | "delay" => {}
                other => return Err(format!("a verdict has no {other}")),
            }
        }
        Ok(())
    }

    /// Checks that the verdict on a single enforcing hit is the same as the decision on this hit.
    fn check_same(&self, got: &Verdict, binds: Option<usize>, decision: &Decision) -> Result<(), String> {
        same("binds", Some(0), binds)?;
        same("retry_after", decision.retry_after, got.retry_after)?;
        same("delay", decision.delay_ns, got.delay_ns)?;
        same("allowed", decision.allowed, got.allowed)
    }

    fn check_common(&self, allowed: bool, retry_after: Wait, delay_ns: u64) -> Result<(), String> {
        same("allowed", self.allowed, allowed)?;
        let wait = match self.get("retry_after") {
            None => Wait::NONE,
            Some("never") => Wait::Never,
            Some("unknown") => Wait::Unknown,
            Some(text) => Wait::After(parse_ns(text)?),
        };
        same("retry_after", wait, retry_after)?;
        same("delay", self.get("delay").map_or(Ok(0), parse_ns)?, delay_ns)
    }
}

fn same<T: PartialEq + fmt::Debug>(name: &str, expected: T, got: T) -> Result<(), String> {
    if expected == got { Ok(()) } else { Err(format!("{name}: expected {expected:?}, got {got:?}")) }
}

/// Merges the hits that can be merged. Returns the merged hits, and for each original hit the index of its merged hit.
fn merge<'q>(hits: &[Hit<'q>]) -> (Vec<Hit<'q>>, Vec<usize>) {
    let mut merged: Vec<Hit<'q>> = Vec::new();
    let mut index_of = Vec::new();
    for hit in hits {
        let found = merged.iter().enumerate().find_map(|(i, other)| Some((i, other.merged(hit)?)));
        if let Some((i, sum)) = found {
            merged[i] = sum;
            index_of.push(i);
        } else {
            index_of.push(merged.len());
            merged.push(*hit);
        }
    }
    (merged, index_of)
}

/// Returns the lines with their numbers, without comments and blank lines.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let uncommented = text.lines().map(|line| line.split('#').next().unwrap_or("").trim_end());
    uncommented.enumerate().map(|(i, line)| (i + 1, line)).filter(|(_, line)| !line.is_empty())
}

/// Returns the words of a line. A word is `name=value`, or `name` alone.
fn fields(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split_whitespace().map(|word| word.split_once('=').unwrap_or((word, "")))
}

fn parse_quota(text: &str) -> Result<(&str, Quota), String> {
    let get = |name: &str| fields(text).find(|(n, _)| *n == name).map(|(_, value)| value);
    let name = get("algorithm").unwrap_or("");
    let algorithm = Algorithm::parse(name).ok_or(format!("a quota needs an algorithm, not {name:?}"))?;
    let limit = parse_number(get("limit").ok_or("a quota needs a limit")?)?;
    let mut builder = QuotaBuilder::new(algorithm, limit, parse_duration(get("window").unwrap_or("0s"))?);
    for (name, value) in fields(text) {
        builder = match (name, value) {
            ("name" | "algorithm" | "limit" | "window", _) => builder,
            ("burst", n) => builder.burst(parse_number(n)?),
            ("queue", n) => builder.queue(parse_number(n)?),
            ("segments", n) => builder.segments(u8::try_from(parse_number(n)?).map_err(|e| e.to_string())?),
            ("anchor", "epoch") => builder.anchor(Anchor::Epoch),
            ("anchor", "first_hit") => builder.anchor(Anchor::FirstHit),
            ("lease", d) => builder.lease(parse_duration(d)?),
            ("penalty", d) => builder.penalty(parse_duration(d)?),
            ("soft_ppm", n) => builder.soft_ppm(u32::try_from(parse_number(n)?).map_err(|e| e.to_string())?),
            ("denied", "free") => builder.denied(Denied::Free),
            ("denied", "charged") => builder.denied(Denied::Charged),
            other => return Err(format!("a quota has no {other:?}")),
        };
    }
    Ok((get("name").unwrap_or(""), builder.build().map_err(|e| e.to_string())?))
}

fn parse_hit<'q>(
    trace: &str,
    text: &str,
    quotas: &'q BTreeMap<&str, Quota>,
    receipts: &BTreeMap<&str, Receipt>,
) -> Result<Hit<'q>, String> {
    let (mut key, mut quota, mut binding, mut verb) = (None, "", Binding::Enforce, "take");
    let (mut cost, mut max_wait_ns, mut change, mut receipt) = (1, 0, 0, None);
    for (name, value) in fields(text) {
        match (name, value) {
            ("key", _) => key = Some(value),
            ("quota", _) => quota = value,
            ("binding", "enforce") => binding = Binding::Enforce,
            ("binding", "shadow") => binding = Binding::Shadow,
            ("binding", "quota") => binding = Binding::Quota,
            ("cost", "max") => cost = u64::MAX,
            ("cost", _) => cost = parse_number(value)?,
            ("max_wait", "max") => max_wait_ns = u64::MAX,
            ("max_wait", _) => max_wait_ns = parse_ns(value)?,
            ("change", _) => change = value.parse().map_err(|_| format!("{value} is not a change"))?,
            ("receipt", _) => receipt = Some(*receipts.get(value).ok_or(format!("no take has returned {value}"))?),
            ("peek" | "force" | "refund" | "renew" | "settle" | "reset", "") => verb = name,
            other => return Err(format!("a hit has no {other:?}")),
        }
    }
    let quota = quotas.get(quota).ok_or(format!("there is no quota {quota:?}"))?;
    let op = match verb {
        "peek" => Op::Peek,
        "force" => Op::Force { cost },
        "refund" => Op::Refund { cost, receipt },
        "renew" => Op::Renew { receipt: receipt.ok_or("renew needs a receipt")? },
        "settle" => Op::Settle { change, receipt: receipt.ok_or("settle needs a receipt")? },
        "reset" => Op::Reset,
        _ => Op::Take { cost, max_wait_ns },
    };
    let key = fingerprint(trace, key.ok_or("a hit needs a key")?);
    Ok(Hit::new(key, quota, op, binding))
}

/// Hashes a key with FNV-1a in 128 bits (Fowler, Noll and Vo). The hash spreads the few keys of a trace over a store.
fn fingerprint(trace: &str, key: &str) -> u128 {
    let bytes = trace.bytes().chain([0]).chain(key.bytes());
    bytes.fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash: u128, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    })
}

fn parse_number(text: &str) -> Result<u64, String> {
    text.replace('_', "").parse().map_err(|_| format!("{text:?} is not a whole number"))
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    parse_ns(text).map(Duration::from_nanos)
}

/// Reads a sum of durations, such as `1s-1ns`, and returns it in nanoseconds.
fn parse_ns(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a duration");
    let mut total = 0i128;
    let (mut rest, mut sign) = (text, 1);
    loop {
        let end = rest.find(['+', '-']).unwrap_or(rest.len());
        let (term, tail) = rest.split_at(end);
        let unit_at = term.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(wrong)?;
        let unit_ns: i128 = match &term[unit_at..] {
            "ns" => 1,
            "us" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            "d" => 86_400_000_000_000,
            _ => return Err(wrong()),
        };
        total += sign * i128::from(parse_number(&term[..unit_at])?) * unit_ns;
        match tail.chars().next() {
            None => return u64::try_from(total).map_err(|_| wrong()),
            Some(c) => sign = if c == '-' { -1 } else { 1 },
        }
        rest = &tail[1..];
    }
}
