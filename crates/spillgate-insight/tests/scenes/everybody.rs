//! Traffic in which all callers are alike.

use std::ops::RangeInclusive;

use spillgate_limiter::Quota;

use super::made::{Draw, Flow, HOUR, Retry, Traffic};
use super::some::for_share;

/// Honest callers with numbers from `first`, well below the rate. Returns the sum of what they ask for, as a multiple of
/// the rate.
pub(super) fn honest(draw: &mut Draw, traffic: &mut Traffic, first: u32, number: u32, highest: f64) -> f64 {
    let times = |draw: &mut Draw| draw.between(0.1 * highest, highest);
    (first..first + number).fold(0.0, |sum, caller| {
        let times = times(draw);
        traffic.flow(caller, &Flow::steady(times));
        sum + times
    })
}

/// How many units the rate of this limit is in `secs`.
pub(super) fn units(quota: &Quota, secs: f64) -> f64 {
    quota.limit() as f64 * secs * 1e9 / quota.window_ns() as f64
}

/// A limit for requests that cost up to 500 units. `times` is as in [`Draw::quota`].
pub(super) fn mixed_quota(draw: &mut Draw, secs: f64, times: f64) -> Quota {
    let limit = draw.number(1000..=2000);
    // Half of all costs are 50 or less.
    draw.quota_of(limit, secs, times / 50.0)
}

pub(super) fn refused_once(draw: &mut Draw) -> Traffic {
    let (secs, number) = (draw.between(1200.0, HOUR), draw.callers(5..=400));
    let quota = draw.quota(secs, 0.3 * f64::from(number));
    let mut traffic = draw.traffic(&quota, secs);
    honest(draw, &mut traffic, 0, number, 0.3);
    for caller in 0..number {
        let units = (draw.between(1.5, 2.0) * quota.capacity() as f64) as u64;
        let at_secs = draw.between(0.02, 0.95) * secs;
        traffic.burst(caller, at_secs, units, &(1..=1), Retry::Never);
    }
    traffic
}

pub(super) fn visitors(draw: &mut Draw) -> Traffic {
    let (secs, number) = (draw.between(1200.0, HOUR), draw.callers(20..=5000));
    let quota = draw.quota(secs, f64::from(number) / 100.0);
    let mut traffic = draw.traffic(&quota, secs);
    for caller in 0..number {
        let units = (draw.between(1.5, 2.0) * quota.capacity() as f64) as u64;
        let at_secs = draw.between(0.0, 0.97) * secs;
        traffic.burst(caller, at_secs, units, &(1..=1), Retry::Never);
    }
    traffic
}

/// Adds bursts of one caller: `times` the capacity of the limit, with a pause that is 2.5 to 6 times the time in which
/// the rate allows them.
pub(super) fn bursts(
    draw: &mut Draw,
    traffic: &mut Traffic,
    caller: u32,
    times: f64,
    costs: RangeInclusive<u64>,
    retry: Retry,
) {
    let units = (times * traffic.quota.capacity() as f64).ceil();
    let between_secs = units * traffic.quota.window_ns() as f64 / 1e9 / traffic.quota.limit() as f64;
    let mut at_secs = draw.between(0.0, 3.0 * between_secs);
    while at_secs + 2.0 * between_secs < traffic.secs {
        traffic.burst(caller, at_secs, units as u64, &costs, retry);
        at_secs += between_secs * draw.between(2.5, 6.0);
    }
}

pub(super) fn regular_bursts(draw: &mut Draw) -> Traffic {
    let (secs, number) = (draw.between(1200.0, HOUR), draw.callers(5..=400));
    let quota = draw.quota(secs, 0.3 * f64::from(number));
    let mut traffic = draw.traffic(&quota, secs);
    let times = draw.between(1.5, 4.0);
    (0..number).for_each(|caller| bursts(draw, &mut traffic, caller, times, 1..=1, Retry::Never));
    traffic
}

pub(super) fn mixed_above(draw: &mut Draw, times: f64) -> Traffic {
    let (secs, number) = (draw.between(1500.0, HOUR), draw.callers(5..=100));
    let quota = mixed_quota(draw, secs, times * f64::from(number));
    let costs = [1..=500, 20..=500, 10..=100][draw.random.index(3)].clone();
    let mut traffic = draw.traffic(&quota, secs);
    for caller in 0..number {
        traffic.flow(caller, &Flow::steady(times).cost(costs.clone()));
    }
    traffic
}

pub(super) fn mixed_batches(draw: &mut Draw) -> Traffic {
    let (secs, number) = (draw.between(1500.0, HOUR), draw.callers(5..=300));
    let quota = mixed_quota(draw, secs, 0.5 * f64::from(number));
    let mut traffic = draw.traffic(&quota, secs);
    let times = draw.between(1.5, 3.0);
    for caller in 0..number {
        traffic.flow(caller, &Flow::steady(0.1).cost(1..=100));
        bursts(draw, &mut traffic, caller, times, 20..=500, Retry::Never);
    }
    traffic
}

pub(super) fn retries(draw: &mut Draw, retry: Retry) -> Traffic {
    let (secs, number) = (draw.between(1200.0, HOUR), draw.callers(5..=150));
    let limit = draw.number(5..=10);
    let quota = draw.quota_of(limit, secs, 5.0 * f64::from(number));
    let mut traffic = draw.traffic(&quota, secs);
    let times = draw.between(1.3, 2.5);
    (0..number).for_each(|caller| bursts(draw, &mut traffic, caller, times, 1..=1, retry));
    traffic
}

pub(super) fn above(draw: &mut Draw, retry: Retry) -> Traffic {
    let (secs, number) = (draw.between(1200.0, HOUR), draw.callers(5..=30));
    let limit = draw.number(5..=10);
    let quota = draw.quota_of(limit, secs, 40.0 * f64::from(number));
    let mut traffic = draw.traffic(&quota, secs);
    let times = draw.between(1.5, 3.0);
    for caller in 0..number {
        let times = times * draw.between(0.9, 1.1);
        traffic.flow(caller, &Flow::steady(times).retry(retry));
    }
    traffic
}

pub(super) fn sale(draw: &mut Draw) -> Traffic {
    let number = draw.callers(9..=150);
    let quota = draw.quota(HOUR, f64::from(number));
    let mut traffic = draw.traffic(&quota, HOUR);
    let from = draw.between(0.0, 2400.0);
    for caller in 0..number {
        let times = draw.between(0.05, 0.15);
        traffic.flow(caller, &Flow::steady(times));
        traffic.flow(caller, &Flow::steady(2.0 - times).during(from, from + 1200.0));
    }
    traffic
}

pub(super) fn quiet_after_busy(draw: &mut Draw) -> Traffic {
    let (busy, quiet, number) = (draw.between(1800.0, HOUR), draw.between(4400.0, 5400.0), draw.callers(9..=100));
    let quota = draw.quota(HOUR, 2.0 * f64::from(number));
    let mut traffic = draw.traffic(&quota, busy + quiet);
    let times = draw.between(1.5, 3.0);
    for caller in 0..number {
        traffic.flow(caller, &Flow::steady(times).during(0.0, busy));
        traffic.flow(caller, &Flow::steady(0.08).during(busy, f64::INFINITY));
    }
    traffic
}

pub(super) fn busy_after_quiet(draw: &mut Draw) -> Traffic {
    let (quiet, busy, number) = (draw.between(HOUR, 5400.0), draw.between(4400.0, 5000.0), draw.callers(9..=50));
    let quota = draw.quota(HOUR, 2.0 * f64::from(number));
    let mut traffic = draw.traffic(&quota, quiet + busy);
    let times = draw.between(1.5, 3.0);
    for caller in 0..number {
        traffic.flow(caller, &Flow::steady(0.08).during(0.0, quiet));
        traffic.flow(caller, &Flow::steady(times).during(quiet, f64::INFINITY));
    }
    traffic
}

pub(super) fn everybody(draw: &mut Draw, number: RangeInclusive<u64>) -> Traffic {
    let (secs, number) = (draw.between(900.0, HOUR), draw.callers(number));
    let quota = draw.quota(secs, 3.0 * f64::from(number));
    let mut traffic = draw.traffic(&quota, secs);
    let times = draw.between(1.6, 4.0);
    for caller in 0..number {
        let times = times * draw.between(0.9, 1.1);
        traffic.flow(caller, &Flow::steady(times));
    }
    traffic
}

pub(super) fn near_the_rate(draw: &mut Draw) -> Traffic {
    let (secs, number) = (draw.between(900.0, 2.0 * HOUR), draw.callers(9..=20));
    // With a few units in a window, a sliding counter refuses callers below its rate.
    let limit = draw.number(10..=20);
    let quota = draw.quota_of(limit, secs, f64::from(number));
    let mut traffic = draw.traffic(&quota, secs);
    for caller in 0..number {
        let times = draw.between(0.6, 0.75);
        traffic.flow(caller, &Flow::steady(times));
    }
    traffic
}

pub(super) fn never_used(draw: &mut Draw, number: RangeInclusive<u64>) -> Traffic {
    let (secs, number) = (draw.between(3700.0, 2.0 * HOUR), draw.callers(number));
    let limit = draw.number(10..=20);
    let quota = draw.quota_of(limit, secs, 0.1 * f64::from(number));
    let mut traffic = draw.traffic(&quota, secs);
    let times = draw.between(0.02, 0.15);
    for caller in 0..number {
        let times = times * draw.between(0.7, 1.3);
        traffic.flow(caller, &Flow::steady(times));
    }
    traffic
}

pub(super) fn early(draw: &mut Draw, is_abused: bool) -> Traffic {
    let (secs, number) = (draw.between(180.0, 240.0), draw.callers(10..=150));
    let quota = draw.quota(secs, f64::from(number));
    let mut traffic = draw.traffic(&quota, secs);
    let highest = draw.between(0.1, 0.7);
    let sum = honest(draw, &mut traffic, 1, number, highest);
    if is_abused {
        let times = for_share(draw.between(0.2, 0.6), sum);
        traffic.flow(0, &Flow::steady(times));
    }
    traffic
}

pub(super) fn short_and_calm(draw: &mut Draw) -> Traffic {
    let (secs, number) = (draw.between(300.0, 3000.0), draw.callers(10..=300));
    let limit = draw.number(10..=20);
    let quota = draw.quota_of(limit, secs, 0.1 * f64::from(number));
    // The server can run for longer than its callers have been asking.
    let idle = if draw.random.one_in(2) { draw.between(0.0, 2.0 * HOUR) } else { 0.0 };
    let mut traffic = draw.traffic(&quota, idle + secs);
    for caller in 0..number {
        let times = draw.between(0.02, 0.15);
        traffic.flow(caller, &Flow::steady(times).during(idle, f64::INFINITY));
    }
    traffic
}

pub(super) fn oversized(draw: &mut Draw, least: f64, most: f64) -> Traffic {
    let (secs, number) = (draw.between(900.0, HOUR), draw.callers(10..=150));
    // With a few units in a window, a sliding counter refuses callers below its rate.
    let limit = draw.number(10..=20);
    let quota = draw.quota_of(limit, secs, f64::from(number));
    let mut traffic = draw.traffic(&quota, secs);
    let share = draw.between(least, most);
    for caller in 0..number {
        let times = draw.between(0.6, 0.75);
        traffic.flow(caller, &Flow::steady(times));
        let requests = times * units(&quota, secs) * share / (1.0 - share);
        for _ in 0..requests.round() as u64 {
            let (at_secs, more) = (draw.between(0.0, secs), draw.number(1..=quota.capacity()));
            traffic.ask(caller, at_secs, quota.hard_capacity() + more, Retry::Never, 0.0);
        }
    }
    traffic
}

/// How many calls of each caller run at one time, compared with the limit.
#[derive(Clone, Copy)]
pub(super) enum Load {
    OneAbove,
    High,
    Low,
}

pub(super) fn permits(draw: &mut Draw, load: Load) -> Traffic {
    let (secs, number) = (draw.between(3700.0, 2.0 * HOUR), draw.callers(10..=60));
    let limit = draw.number(10..=20);
    let quota = Quota::concurrency(limit).build().expect("the quota is valid");
    let mut traffic = draw.traffic(&quota, secs);
    for caller in 0..number {
        let at_once = match load {
            Load::OneAbove if caller == 0 => 4 * limit,
            Load::OneAbove | Load::Low => limit / 4,
            Load::High => draw.number(limit * 7 / 10..=limit),
        };
        let mut at_secs = draw.between(0.0, 60.0);
        while at_secs < secs {
            let held = draw.between(1.0, 20.0);
            (0..at_once).for_each(|_| traffic.ask(caller, at_secs, 1, Retry::Never, held));
            at_secs += draw.between(60.0, 240.0);
        }
    }
    traffic
}
