//! Traffic whose truth is known: which callers ask for what, and how they react to refusals.
//!
//! This file uses nothing of insight, so a wrong idea in insight cannot hide here. It decides requests by a limiter in
//! memory, on a virtual clock.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use spillgate::{Clock, Decision, Limiter, ManualClock, MemoryOptions, MemoryStore, Quota, Time};
use spillgate_testkit::Random;

/// When all traffic begins, in nanoseconds since the epoch.
pub(crate) const BEGIN_NS: u64 = 1_800_000_000_000_000_000;

/// How often a client asks again for the same.
const TRIES: u64 = 20;

/// What a caller asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pattern {
    /// Single requests, at random times, at this multiple of the limit's rate.
    Steady(f64),
    /// This many requests at once, again and again. The time between two bursts is this many times the time in which the
    /// limit's rate makes up for one.
    Bursts { requests: u64, pause: f64 },
}

/// What a client does after a refusal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Reaction {
    /// It asks again after a tenth of the time between two units, at most [`TRIES`] times.
    AtOnce,
    /// It asks again when the refusal said, at most [`TRIES`] times.
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
    /// The smallest burst with which a bucket of the limit's rate lets all requests pass when they first came.
    pub(crate) burst: u64,
    pub(crate) requests: u64,
    pub(crate) allowed: u64,
    pub(crate) refused: u64,
}

/// The time between two units of `quota` at its full rate, in nanoseconds.
pub(crate) fn unit_ns(quota: &Quota) -> u64 {
    quota.window_ns().div_ceil(quota.limit())
}

/// Runs the callers for `secs` seconds, and calls `event` for each decided request, in the order of time. Returns the truth
/// about each caller.
pub(crate) fn run(
    quota: &Quota,
    callers: &[Pattern],
    reaction: Reaction,
    secs: u64,
    random: &mut Random,
    mut event: impl FnMut(Event),
) -> Vec<Truth> {
    let unit_ns = unit_ns(quota);
    let end_ns = BEGIN_NS + secs * 1_000_000_000;
    let clock = ManualClock::at(Time::from_nanos(BEGIN_NS));
    let limiter = Limiter::with_clock(MemoryStore::new(MemoryOptions::default()), clock.clone());
    let mut first: HashMap<usize, Vec<u64>> = HashMap::new();
    // Requests by time. The number keeps requests of one time in their order.
    let mut asked = BinaryHeap::new();
    let mut number = 0_u64;
    for (caller, pattern) in callers.iter().enumerate() {
        for at_ns in times(*pattern, unit_ns, end_ns, random) {
            first.entry(caller).or_default().push(at_ns);
            asked.push(Reverse((at_ns, number, caller, 0)));
            number += 1;
        }
    }
    let mut truths = vec![Truth::default(); callers.len()];
    while let Some(Reverse((at_ns, _, caller, tries))) = asked.pop() {
        if at_ns >= end_ns {
            break;
        }
        clock.set(Time::from_nanos(at_ns));
        let hit = limiter.hit(quota, caller as u64, 1);
        let (_, [decision]) = limiter.decide_all_now([hit]).expect("the memory store decides");
        let truth = &mut truths[caller];
        truth.requests += 1;
        truth.allowed += u64::from(decision.allowed);
        truth.refused += u64::from(!decision.allowed);
        event(Event { now: clock.now(), caller, key: hit.key, decision });
        let again_ns = match reaction {
            _ if decision.allowed || tries == TRIES => continue,
            Reaction::GivesUp => continue,
            Reaction::AtOnce => unit_ns / 10 + random.below(unit_ns / 20 + 1),
            Reaction::Obeys => decision.retry_after.nanos().unwrap_or(unit_ns),
        };
        asked.push(Reverse((at_ns + again_ns, number, caller, tries + 1)));
        number += 1;
    }
    for (caller, times) in first {
        truths[caller].burst = burst(&times, unit_ns);
    }
    truths
}

/// The times at which a caller with this pattern first sends each of its requests.
fn times(pattern: Pattern, unit_ns: u64, end_ns: u64, random: &mut Random) -> Vec<u64> {
    let mut times = Vec::new();
    match pattern {
        Pattern::Steady(rate) => {
            // Times at random within equal parts, so that a slow caller needs no large burst by chance.
            let part_ns = (unit_ns as f64 / rate) as u64;
            let mut at_ns = BEGIN_NS + random.below(part_ns);
            while at_ns < end_ns {
                times.push(at_ns + random.below(part_ns / 2 + 1));
                at_ns += part_ns;
            }
        }
        Pattern::Bursts { requests, pause } => {
            let between_ns = (pause * (requests * unit_ns) as f64) as u64;
            let mut at_ns = BEGIN_NS + random.below(between_ns);
            // The last burst has to end before the traffic does.
            while at_ns + 2 * requests * unit_ns < end_ns {
                times.extend((0..requests).map(|_| at_ns + random.below(unit_ns / 4 + 1)));
                at_ns += between_ns;
            }
        }
    }
    times.retain(|at_ns| *at_ns < end_ns);
    times.sort_unstable();
    times
}

/// The highest debt of a bucket that gets all requests at these times, in whole units. Exact integers.
fn burst(times: &[u64], unit_ns: u64) -> u64 {
    let (mut paid_ns, mut highest_ns) = (0, 0);
    for at_ns in times {
        paid_ns = u64::max(paid_ns, *at_ns) + unit_ns;
        highest_ns = highest_ns.max(paid_ns - at_ns);
    }
    highest_ns.div_ceil(unit_ns)
}
