//! Traffic whose truth is known: which callers ask for what, and how they react to refusals.
//!
//! This file uses nothing of insight, so a wrong idea in insight cannot hide here. It decides requests by a limiter in
//! memory, on a virtual clock.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use spillgate_limiter::{Clock, Decision, Limiter, ManualClock, MemoryOptions, MemoryStore, Quota, Time};
use spillgate_testkit::Random;

/// When all traffic begins, in nanoseconds since the epoch.
///
/// A minute of the clock ends ten seconds later, so that even short traffic touches three minutes.
pub(crate) const BEGIN_NS: u64 = 1_800_000_050_000_000_000;

/// How often a client repeats a request at most.
const TRIES: u64 = 20;

/// What a caller asks for.
#[derive(Clone, Debug)]
pub(crate) enum Pattern {
    /// Single requests, at random times, at this multiple of the limit's rate.
    Steady(f64),
    /// Like `Steady`, but only in the part of the time from `from` to `to`. 0 is the beginning of the traffic, and 1
    /// its end.
    During { rate: f64, from: f64, to: f64 },
    /// All of these patterns at the same time.
    Sum(Vec<Pattern>),
    /// `requests` requests at once, again and again. The time between two bursts is `pause` times the time in which the
    /// limit's rate admits as many requests as one burst has.
    Bursts { requests: u64, pause: f64 },
}

/// What a client does after a refusal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Reaction {
    /// It asks again after a tenth of the time between two units, at most [`TRIES`] times.
    AtOnce,
    /// It asks again at the time that the refusal names, at most [`TRIES`] times.
    Obeys,
    /// It gives up this request.
    GivesUp,
}

/// One decided request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) now: Time,
    pub(crate) caller: usize,
    pub(crate) key: u128,
    pub(crate) decision: Decision,
}

/// What is true of one caller.
#[derive(Clone, Debug, Default)]
pub(crate) struct Truth {
    /// The smallest burst with which a bucket of the limit's rate lets all requests pass at their first try.
    pub(crate) burst: u64,
    /// The most units that first tries asked for in a window. Windows begin at multiples of their length.
    pub(crate) window: u64,
    /// The units of all requests. Retries are not counted.
    pub(crate) asked: u64,
    pub(crate) requests: u64,
    pub(crate) allowed: u64,
    pub(crate) refused: u64,
}

/// When each caller first sends each of its requests, and how many units a request costs.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    times: Vec<Vec<u64>>,
    cost: u64,
    unit_ns: u64,
    end_ns: u64,
}

/// The time between two units of `quota` at its full rate, in nanoseconds.
pub(crate) fn unit_ns(quota: &Quota) -> u64 {
    quota.window_ns().div_ceil(quota.limit())
}

/// Plans the requests of all callers for `secs` seconds. Rates and bursts are those of `quota`. Each request costs
/// `cost`.
pub(crate) fn plan(quota: &Quota, callers: &[Pattern], cost: u64, secs: u64, random: &mut Random) -> Plan {
    let (unit_ns, end_ns) = (unit_ns(quota), BEGIN_NS + secs * 1_000_000_000);
    let of_caller = |pattern| {
        let mut found = times(pattern, unit_ns * cost, end_ns, random);
        found.retain(|at_ns| *at_ns < end_ns);
        found.sort_unstable();
        found
    };
    Plan { times: callers.iter().map(of_caller).collect(), cost, unit_ns, end_ns }
}

/// Decides the requests of a plan, and calls `event` for each decided request, in the order of time. Returns the truth
/// about each caller.
pub(crate) fn run(
    quota: &Quota,
    plan: &Plan,
    reaction: Reaction,
    random: &mut Random,
    mut event: impl FnMut(Event),
) -> Vec<Truth> {
    let Plan { times, cost, unit_ns, end_ns } = plan;
    let request_ns = unit_ns * cost;
    let clock = ManualClock::at(Time::from_nanos(BEGIN_NS));
    let limiter = Limiter::with_clock(MemoryStore::new(MemoryOptions::default()), clock.clone());
    // Requests by time. The number keeps requests of one time in their order.
    let first = times.iter().enumerate().flat_map(|(caller, times)| times.iter().map(move |at_ns| (*at_ns, caller)));
    let mut asked: BinaryHeap<_> =
        first.zip(0_u64..).map(|((at_ns, caller), number)| Reverse((at_ns, number, caller, 0))).collect();
    let mut number = asked.len() as u64;
    let mut truths: Vec<Truth> = times.iter().map(|times| truth(times, *cost, *unit_ns, quota.window_ns())).collect();
    while let Some(Reverse((at_ns, _, caller, tries))) = asked.pop() {
        if at_ns >= *end_ns {
            break;
        }
        clock.set(Time::from_nanos(at_ns));
        let hit = limiter.hit(quota, caller as u64, *cost);
        let (_, [decision]) = limiter.decide_all_now([hit]).expect("the memory store decides");
        let truth = &mut truths[caller];
        truth.requests += 1;
        truth.allowed += u64::from(decision.allowed);
        truth.refused += u64::from(!decision.allowed);
        event(Event { now: clock.now(), caller, key: hit.key, decision });
        let again_ns = match reaction {
            _ if decision.allowed || tries == TRIES => continue,
            Reaction::GivesUp => continue,
            Reaction::AtOnce => request_ns / 10 + random.below(request_ns / 20 + 1),
            Reaction::Obeys => decision.retry_after.nanos().unwrap_or(request_ns),
        };
        asked.push(Reverse((at_ns + again_ns, number, caller, tries + 1)));
        number += 1;
    }
    truths
}

/// The times at which a caller with this pattern first sends each of its requests, in no order. `request_ns` is the
/// time in which the limit's rate admits one request.
fn times(pattern: &Pattern, request_ns: u64, end_ns: u64, random: &mut Random) -> Vec<u64> {
    let mut times = Vec::new();
    match pattern {
        Pattern::Steady(rate) => return steady(*rate, request_ns, BEGIN_NS, end_ns, random),
        Pattern::During { rate, from, to } => {
            let [from_ns, to_ns] = [from, to].map(|share| BEGIN_NS + ((end_ns - BEGIN_NS) as f64 * share) as u64);
            return steady(*rate, request_ns, from_ns, to_ns, random);
        }
        Pattern::Sum(patterns) => {
            patterns.iter().for_each(|pattern| times.extend(self::times(pattern, request_ns, end_ns, random)));
        }
        Pattern::Bursts { requests, pause } => {
            let between_ns = (pause * (requests * request_ns) as f64) as u64;
            let mut at_ns = BEGIN_NS + random.below(between_ns);
            // The last burst has to end before the traffic does.
            while at_ns + 2 * requests * request_ns < end_ns {
                times.extend((0..*requests).map(|_| at_ns + random.below(request_ns / 4 + 1)));
                at_ns += between_ns;
            }
        }
    }
    times
}

/// Divides the time into equal parts, and returns one random time in each. So a slow caller needs no large burst by
/// chance.
fn steady(rate: f64, request_ns: u64, from_ns: u64, to_ns: u64, random: &mut Random) -> Vec<u64> {
    let part_ns = (request_ns as f64 / rate) as u64;
    let mut at_ns = from_ns + random.below(part_ns);
    let mut times = Vec::new();
    while at_ns < to_ns {
        times.push(at_ns + random.below(part_ns / 2 + 1));
        at_ns += part_ns;
    }
    times
}

/// Computes the burst and the window of requests at these times, exactly, with integers.
fn truth(times: &[u64], cost: u64, unit_ns: u64, window_ns: u64) -> Truth {
    let (mut paid_ns, mut highest_ns) = (0, 0);
    let mut windows: HashMap<u64, u64> = HashMap::new();
    for at_ns in times {
        paid_ns = u64::max(paid_ns, *at_ns) + cost * unit_ns;
        highest_ns = highest_ns.max(paid_ns - at_ns);
        *windows.entry(at_ns / window_ns).or_default() += cost;
    }
    let (asked, window) = (windows.values().sum(), windows.values().copied().max().unwrap_or(0));
    Truth { burst: highest_ns.div_ceil(unit_ns), window, asked, ..Truth::default() }
}
