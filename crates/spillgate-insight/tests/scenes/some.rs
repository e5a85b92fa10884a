//! Traffic in which one or some of the callers are refused, and the others are honest.

use std::ops::RangeInclusive;
use std::time::Duration;

use spillgate_limiter::Quota;

use super::everybody::{honest, mixed_quota, units};
use super::made::{Draw, Flow, HOUR, Retry, Traffic};

/// What callers ask for together beside `others`, so that this share of all units is refused.
pub(super) fn for_share(refused: f64, others: f64) -> f64 {
    ((1.0 + refused * others) / (1.0 - refused)).max(2.0)
}

pub(super) fn crowd(draw: &mut Draw) -> Traffic {
    let (secs, others) = (draw.between(900.0, HOUR), draw.callers(4..=300));
    let quota = draw.quota(secs, 2.0 * f64::from(others));
    let mut traffic = draw.traffic(&quota, secs);
    let sum = honest(draw, &mut traffic, 1, others, 0.4);
    let times = for_share(draw.between(0.2, 0.6), sum);
    for _ in 0..40 {
        traffic.flow(0, &Flow::steady(times / 40.0).at_random());
    }
    traffic
}

pub(super) fn crowd_of_large_site(draw: &mut Draw) -> Traffic {
    let (secs, others) = (draw.between(900.0, HOUR), draw.callers(120..=1000));
    let quota = draw.quota(secs, 0.3 * f64::from(others));
    let mut traffic = draw.traffic(&quota, secs);
    let sum = honest(draw, &mut traffic, 1, others, 0.4);
    let times = 1.0 + draw.between(0.04, 0.07) * sum;
    for _ in 0..40 {
        traffic.flow(0, &Flow::steady(times / 40.0).at_random());
    }
    traffic
}

pub(super) fn scrapers(draw: &mut Draw) -> Traffic {
    let (secs, number) = (draw.between(900.0, HOUR), draw.number(40..=60) as u32);
    let limit = draw.number(5..=10);
    let quota = draw.quota_of(limit, secs, 200.0);
    let mut traffic = draw.traffic(&quota, secs);
    honest(draw, &mut traffic, number, 2 * number, 0.5);
    for caller in 0..number {
        let times = draw.between(2.7, 3.3);
        traffic.flow(caller, &Flow::steady(times));
    }
    traffic
}

/// These abusers have at least 93 % of the refused units. Some of the honest callers are refused once.
pub(super) fn abusers(draw: &mut Draw, number: RangeInclusive<u64>, others: RangeInclusive<u64>) -> Traffic {
    let (secs, abusers, others) = (draw.between(900.0, HOUR), draw.number(number) as u32, draw.callers(others));
    let quota = draw.quota(secs, 2.0 * f64::from(others));
    let mut traffic = draw.traffic(&quota, secs);
    let sum = honest(draw, &mut traffic, abusers, others, 0.5);
    // Beside many others, a larger share would be millions of requests.
    let most = if others > 100 { 0.4 } else { 0.9 };
    let times = for_share(draw.between(0.2, most), sum / f64::from(abusers));
    for caller in 0..abusers {
        let times = times * draw.between(0.9, 1.1);
        traffic.flow(caller, &Flow::steady(times));
    }
    let refused = (times - 1.0) * f64::from(abusers) * units(&quota, secs);
    some_refused_once(draw, &mut traffic, abusers, others, refused);
    traffic
}

/// Lets some honest callers be refused in one burst, at most 6 % of what is `refused` to others.
pub(super) fn some_refused_once(draw: &mut Draw, traffic: &mut Traffic, first: u32, number: u32, refused: f64) {
    let burst = 2 * traffic.quota.capacity();
    let most = (draw.between(0.0, 0.06) * refused / burst as f64) as u32;
    for caller in first..first + most.min(number) {
        let at_secs = draw.between(0.05, 0.9) * traffic.secs;
        traffic.burst(caller, at_secs, burst, &(1..=1), Retry::Never);
    }
}

pub(super) fn abuser_beside_crowd(draw: &mut Draw) -> Traffic {
    let (secs, others) = (draw.between(1800.0, HOUR), draw.callers(2000..=100_000));
    let quota = draw.quota(secs, 0.0);
    let mut traffic = draw.traffic(&quota, secs);
    for caller in 1..=others {
        for _ in 0..draw.number(1..=3) {
            let at_secs = draw.between(0.0, secs);
            traffic.ask(caller, at_secs, 1, Retry::Never, 0.0);
        }
    }
    let times = draw.between(3.0, 30.0).min(1.0 + 50_000.0 / units(&quota, secs)).max(3.0);
    traffic.flow(0, &Flow::steady(times));
    some_refused_once(draw, &mut traffic, 1, others, (times - 1.0) * units(&quota, secs));
    traffic
}

pub(super) fn brute_force(draw: &mut Draw, addresses: RangeInclusive<u64>) -> Traffic {
    let (secs, limit) = (draw.between(1800.0, HOUR), draw.number(5..=10));
    let (addresses, users) = (draw.callers(addresses), draw.callers(20..=400));
    let quota = Quota::token_bucket(limit, Duration::from_secs(60)).build().expect("the quota is valid");
    let mut traffic = draw.traffic(&quota, secs);
    let from = draw.between(0.0, secs - 1200.0);
    for caller in 0..addresses {
        let times = if addresses == 1 { draw.between(6.0, 60.0) } else { draw.between(3.0, 8.0) };
        traffic.flow(caller, &Flow::steady(times).during(from, secs));
    }
    for caller in addresses..addresses + users {
        let mut at_secs = draw.between(0.0, secs - 60.0);
        // Wrong passwords, a few seconds apart.
        for _ in 0..draw.number(1..=3) {
            traffic.ask(caller, at_secs, 1, Retry::Never, 0.0);
            at_secs += draw.between(3.0, 15.0);
        }
    }
    traffic
}

pub(super) fn mixed_abuser(draw: &mut Draw) -> Traffic {
    let (secs, others) = (draw.between(1500.0, HOUR), draw.callers(4..=300));
    let quota = mixed_quota(draw, secs, f64::from(others));
    let mut traffic = draw.traffic(&quota, secs);
    // Costs of up to a quarter of the limit, at a tenth of the rate: nobody else is refused.
    (1..=others).for_each(|caller| traffic.flow(caller, &Flow::steady(0.1).cost(1..=250)));
    let times = for_share(draw.between(0.2, 0.8), 0.1 * f64::from(others));
    traffic.flow(0, &Flow::steady(times).cost(1..=500));
    traffic
}

/// A program that works off its batches in a loop: while a batch lasts, it asks again and again.
pub(super) fn retrying_program(draw: &mut Draw) -> Traffic {
    let (secs, others) = (draw.between(1500.0, HOUR), draw.callers(4..=150));
    let quota = draw.quota(secs, 1.5 * f64::from(others));
    let mut traffic = draw.traffic(&quota, secs);
    let sum = honest(draw, &mut traffic, 1, others, 0.3);
    let busy = draw.between(0.35, 0.7);
    let times = draw.between(5.0, 20.0).max(for_share(0.25, sum) / busy);
    let between_secs = secs / draw.between(3.0, 12.0);
    let mut at_secs = draw.between(0.0, between_secs * (1.0 - busy));
    while at_secs < secs {
        traffic.flow(0, &Flow::steady(times).during(at_secs, at_secs + busy * between_secs));
        at_secs += between_secs;
    }
    traffic
}

pub(super) fn few_above(draw: &mut Draw) -> Traffic {
    let (secs, others, above) = (draw.between(900.0, HOUR), draw.callers(80..=400), draw.number(2..=4) as u32);
    let quota = draw.quota(secs, 0.5 * f64::from(others));
    let mut traffic = draw.traffic(&quota, secs);
    let sum = honest(draw, &mut traffic, above, others, 0.5);
    let times = 1.0 + (draw.between(0.03, 0.08) * sum / f64::from(above)).clamp(0.2, 2.0);
    (0..above).for_each(|caller| traffic.flow(caller, &Flow::steady(times)));
    traffic
}

pub(super) fn few_bursts(draw: &mut Draw) -> Traffic {
    let (secs, number, few) = (draw.between(1200.0, HOUR), draw.callers(100..=400), draw.number(3..=8) as u32);
    let quota = draw.quota(secs, 0.5 * f64::from(number));
    let mut traffic = draw.traffic(&quota, secs);
    honest(draw, &mut traffic, 0, number, 0.5);
    for caller in 0..few {
        let at_secs = draw.between(0.02, 0.9) * secs;
        traffic.burst(caller, at_secs, 2 * quota.capacity(), &(1..=1), Retry::Never);
    }
    traffic
}
