//! Makes traffic of one known kind, and lets the real limiter decide it on a virtual clock.
//!
//! Nothing here uses what insight computes, so a wrong idea of insight cannot hide here.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::RangeInclusive;
use std::time::Duration;

use spillgate_insight::{CallerName, LimitInsight, Options, Report, Take};
use spillgate_limiter::{Clock, Limiter, ManualClock, MemoryOptions, MemoryStore, Op, Quota, Reason, Receipt, Time};
use spillgate_testkit::Random;

use super::super::traffic::{BEGIN_NS, unit_ns};

/// What a program does after a refusal.
#[derive(Clone, Copy, Debug)]
pub(super) enum Retry {
    Never,
    /// It asks again after a fifth of the time between two units, until it has passed or has tried 25 times.
    AtOnce,
    /// It waits for the time between two units, then twice as long each time, seven times at most.
    Backoff,
}

/// Requests of one caller at a part of the time.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    /// How many units the caller asks for, as a multiple of the limit's rate. Retries are not counted.
    times: f64,
    from_secs: f64,
    to_secs: f64,
    cost: RangeInclusive<u64>,
    /// Whether the times between requests are random, as those of many independent people are.
    at_random: bool,
    retry: Retry,
}

impl Flow {
    /// Requests of one unit for the whole time, at about equal distances.
    pub(super) const fn steady(times: f64) -> Flow {
        let (from_secs, to_secs, cost) = (0.0, f64::INFINITY, 1..=1);
        Flow { times, from_secs, to_secs, cost, at_random: false, retry: Retry::Never }
    }

    pub(super) fn during(self, from_secs: f64, to_secs: f64) -> Flow {
        Flow { from_secs, to_secs, ..self }
    }

    pub(super) fn cost(self, cost: RangeInclusive<u64>) -> Flow {
        Flow { cost, ..self }
    }

    pub(super) fn at_random(self) -> Flow {
        Flow { at_random: true, ..self }
    }

    pub(super) fn retry(self, retry: Retry) -> Flow {
        Flow { retry, ..self }
    }
}

/// A request that a caller will send.
#[derive(Clone, Copy, Debug)]
struct Ask {
    at_ns: u64,
    caller: u32,
    cost: u64,
    tries: u32,
    retry: Retry,
    /// How long a permit is held. 0 if the limit has no permits.
    held_ns: u64,
}

/// A request that the limiter has decided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decided {
    pub(super) at_ns: u64,
    pub(super) caller: u32,
    pub(super) cost: u64,
    /// Whether this is the first try of the request.
    pub(super) first: bool,
    pub(super) allowed: bool,
    pub(super) oversized: bool,
    held_ns: u64,
}

/// The requests of all callers, before they are decided.
pub(super) struct Traffic {
    pub(super) quota: Quota,
    /// When the report is made, in seconds after the limit was first watched.
    pub(super) secs: f64,
    asks: Vec<Ask>,
    random: Random,
}

/// What insight says, and what was really decided.
pub(super) struct Outcome {
    pub(super) quota: Quota,
    pub(super) report: Report,
    pub(super) decided: Vec<Decided>,
    pub(super) end_ns: u64,
}

/// An hour in seconds.
pub(super) const HOUR: f64 = 3600.0;

pub(super) const fn nanos(secs: f64) -> u64 {
    (secs * 1e9) as u64
}

impl Traffic {
    pub(super) const fn new(quota: Quota, secs: f64, random: Random) -> Traffic {
        Traffic { quota, secs, asks: Vec::new(), random }
    }

    /// A random number from 0 to 1.
    fn share(&mut self) -> f64 {
        self.random.below(1 << 32) as f64 / f64::from(u32::MAX)
    }

    /// Small costs are as frequent as large ones: half of the costs are below the geometric mean of the two ends.
    fn cost(&mut self, range: &RangeInclusive<u64>) -> u64 {
        let (low, high) = (*range.start() as f64, *range.end() as f64);
        let cost = low * (high / low).powf(self.share());
        (cost.round() as u64).clamp(*range.start(), *range.end())
    }

    pub(super) fn flow(&mut self, caller: u32, flow: &Flow) {
        let (end, unit_secs) = (flow.to_secs.min(self.secs), unit_ns(&self.quota) as f64 / 1e9);
        let mut at = flow.from_secs;
        let mut is_first = true;
        while at < end {
            let cost = self.cost(&flow.cost);
            let between = unit_secs * cost as f64 / flow.times;
            let share = self.share();
            let (ask, next) = match (flow.at_random, is_first) {
                (true, _) => {
                    let wait = between * -(1.0 - share * 0.999_999).ln();
                    (at + wait, at + wait)
                }
                // The first request is anywhere in the first distance, so that callers do not ask in step.
                (false, true) => (at + between * share, at + between * share + between),
                (false, false) => (at + between * share / 2.0, at + between),
            };
            if ask < end {
                self.ask(caller, ask, cost, flow.retry, 0.0);
            }
            (at, is_first) = (next, false);
        }
    }

    /// Adds requests of at least `units` units at one time: within half of the time in which one unit comes back.
    pub(super) fn burst(&mut self, caller: u32, at_secs: f64, units: u64, cost: &RangeInclusive<u64>, retry: Retry) {
        let unit_secs = unit_ns(&self.quota) as f64 / 1e9;
        let mut sum = 0;
        while sum < units {
            let cost = self.cost(cost);
            let at_secs = at_secs + unit_secs / 2.0 * self.share();
            self.ask(caller, at_secs, cost, retry, 0.0);
            sum += cost;
        }
    }

    /// Adds one request. A permit is held for `held_secs`.
    pub(super) fn ask(&mut self, caller: u32, at_secs: f64, cost: u64, retry: Retry, held_secs: f64) {
        let at_ns = BEGIN_NS + nanos(at_secs);
        self.asks.push(Ask { at_ns, caller, cost, tries: 0, retry, held_ns: nanos(held_secs) });
    }

    /// Decides all requests in the order of time, counts them, and makes the report.
    pub(super) fn played(mut self) -> Outcome {
        let (begin, end_ns) = (Time::from_nanos(BEGIN_NS), BEGIN_NS + nanos(self.secs));
        let insight = LimitInsight::new(&self.quota, Options { names: true, ..Options::default() }, begin);
        let unit_ns = unit_ns(&self.quota);
        let mut decided = Vec::with_capacity(self.asks.len());
        let (asks, mut random) = (std::mem::take(&mut self.asks), self.random.clone());
        in_order(&self.quota, asks, end_ns, |ask, now, key, decision| {
            let take = Take::of(ask.cost, decision);
            insight.count_named(now, key, &take, || CallerName::of(["caller=", &ask.caller.to_string()]));
            decided.push(Decided {
                at_ns: ask.at_ns,
                caller: ask.caller,
                cost: ask.cost,
                first: ask.tries == 0,
                allowed: decision.allowed,
                oversized: !decision.allowed && decision.reason == Reason::CostAboveCapacity,
                held_ns: ask.held_ns,
            });
            let wait_ns = match ask.retry {
                Retry::AtOnce if ask.tries < 24 => unit_ns / 5 + random.below(unit_ns / 20 + 1),
                Retry::Backoff if ask.tries < 7 => (unit_ns + random.below(unit_ns / 4 + 1)) << ask.tries,
                Retry::Never | Retry::AtOnce | Retry::Backoff => return None,
            };
            Some(wait_ns)
        });
        let report = insight.read(Time::from_nanos(end_ns)).report();
        Outcome { quota: self.quota, report, decided, end_ns }
    }
}

/// Returns the time at which each of these requests would be refused by `quota`. Only requests that passed are asked
/// again: their callers sent them, whatever the limit was.
pub(super) fn refused_by(quota: &Quota, outcome: &Outcome, from_ns: u64) -> Vec<u64> {
    let passed = outcome.decided.iter().filter(|decided| decided.allowed && decided.at_ns >= from_ns);
    let asks = passed.map(|&Decided { at_ns, caller, cost, held_ns, .. }| Ask {
        at_ns,
        caller,
        cost,
        tries: 0,
        retry: Retry::Never,
        held_ns,
    });
    let mut refused = Vec::new();
    in_order(quota, asks.collect(), outcome.end_ns, |ask, _, _, decision| {
        if !decision.allowed {
            refused.push(ask.at_ns);
        }
        None
    });
    refused
}

/// What happens next: a retry, or the end of work that held a permit.
#[derive(Clone, Copy)]
enum Next {
    Again(Ask),
    Release(u32, Option<Receipt>),
}

/// Decides requests in the order of time. `each` returns how long its caller waits until it asks again.
fn in_order(
    quota: &Quota,
    mut asks: Vec<Ask>,
    end_ns: u64,
    mut each: impl FnMut(&Ask, Time, u128, &spillgate_limiter::Decision) -> Option<u64>,
) {
    asks.sort_by_key(|ask| ask.at_ns);
    let clock = ManualClock::at(Time::from_nanos(BEGIN_NS));
    let limiter = Limiter::with_clock(MemoryStore::new(MemoryOptions::default()), clock.clone());
    let mut asks = asks.into_iter().peekable();
    // The second number is the index in `later`. It keeps what happens at one time in its order.
    let (mut heap, mut later) = (BinaryHeap::new(), Vec::new());
    loop {
        let first_later = heap.peek().map(|&Reverse((at_ns, _))| at_ns);
        let ask = match (asks.peek().map(|ask| ask.at_ns), first_later) {
            (Some(ask_ns), Some(later_ns)) if ask_ns < later_ns => asks.next(),
            (Some(_), None) => asks.next(),
            _ => None,
        };
        let ask = match (ask, ask.is_none().then(|| heap.pop()).flatten()) {
            (Some(ask), _) => ask,
            (None, Some(Reverse((at_ns, index)))) => match later[index] {
                Next::Again(ask) => ask,
                Next::Release(caller, receipt) => {
                    clock.set(Time::from_nanos(at_ns));
                    let _ = limiter.refund_now(quota, u64::from(caller), 1, receipt);
                    continue;
                }
            },
            (None, None) => break,
        };
        if ask.at_ns >= end_ns {
            break;
        }
        clock.set(Time::from_nanos(ask.at_ns));
        // In a queue, each caller waits for its turn, however late it comes.
        let take = Op::Take { cost: ask.cost, max_wait_ns: u64::MAX };
        let hit = limiter.hit(quota, u64::from(ask.caller), ask.cost).with_op(take);
        let (_, [decision]) = limiter.decide_all_now([hit]).expect("the memory store decides");
        let wait_ns = each(&ask, clock.now(), hit.key, &decision);
        let next = match wait_ns {
            Some(wait_ns) if !decision.allowed => {
                Next::Again(Ask { at_ns: ask.at_ns + wait_ns, tries: ask.tries + 1, ..ask })
            }
            _ if decision.allowed && ask.held_ns > 0 => Next::Release(ask.caller, decision.receipt),
            _ => continue,
        };
        let at_ns = if let Next::Again(again) = next { again.at_ns } else { ask.at_ns + ask.held_ns };
        heap.push(Reverse((at_ns, later.len())));
        later.push(next);
    }
}

/// Draws the sizes and limits of one run.
pub(super) struct Draw {
    pub(super) random: Random,
    /// The most callers of this run.
    pub(super) most_callers: u64,
}

impl Draw {
    pub(super) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.random.below(1 << 32) as f64 / f64::from(u32::MAX)
    }

    pub(super) fn number(&mut self, range: RangeInclusive<u64>) -> u64 {
        range.start() + self.random.below(range.end() - range.start() + 1)
    }

    /// A number of callers. Small numbers are as frequent as large ones.
    pub(super) fn callers(&mut self, range: RangeInclusive<u64>) -> u32 {
        let (low, high) = (*range.start(), (*range.end()).min(self.most_callers.max(*range.start())));
        let ratio = high as f64 / low as f64;
        let share = self.between(0.0, 1.0);
        (low as f64 * ratio.powf(share)) as u32
    }

    /// A limit of 5 to 20 units in a window, with any algorithm that has a rate. At least 30 of its windows are in
    /// `secs`, and `times` callers that ask exactly at its rate send at most about 20,000 requests, if that is possible.
    pub(super) fn quota(&mut self, secs: f64, times: f64) -> Quota {
        let limit = self.number(5..=20);
        self.quota_of(limit, secs, times)
    }

    pub(super) fn quota_of(&mut self, limit: u64, secs: f64, times: f64) -> Quota {
        let fits = |window: &&u64| **window as f64 * 30.0 <= secs;
        let windows: Vec<u64> = [2, 5, 10, 20, 30, 60].iter().filter(fits).copied().collect();
        let cheap = |window: &&u64| times * limit as f64 * secs / **window as f64 <= 20_000.0;
        let cheap: Vec<u64> = windows.iter().filter(cheap).copied().collect();
        let window_secs = if cheap.is_empty() { windows[windows.len() - 1] } else { *self.random.pick(&cheap) };
        let window = Duration::from_secs(window_secs);
        let builder = match self.random.below(8) {
            0 => Quota::fixed_window(limit, window),
            1 => Quota::fixed_window(limit, window).anchor(spillgate_limiter::Anchor::FirstHit),
            2 => Quota::sliding_window_log(limit, window),
            3 => Quota::sliding_window_counter(limit, window),
            4 => Quota::sliding_window_counter(limit, window).segments(5),
            5 => Quota::leaky_bucket(limit, window),
            _ => Quota::token_bucket(limit, window),
        };
        builder.build().expect("the quota is valid")
    }

    /// Begins traffic under this limit, for `secs` seconds.
    pub(super) fn traffic(&mut self, quota: &Quota, secs: f64) -> Traffic {
        Traffic::new(quota.clone(), secs, Random(self.random.below(u64::MAX) | 1))
    }
}
