//! The scenes: traffic whose truth is known, and what a good operator would say about it.
//!
//! The lists of acceptable verdicts were written before anybody saw what insight says.

use std::time::Duration;

use spillgate_limiter::Quota;

use super::Verdict::{self, AboveRate, Bursts, Effective, NeverBinding, NeverPasses, TooEarly};
use super::Who::{self, Few, Many, Nobody, One};
use super::made::{Draw, Flow, Retry, Traffic};

/// One kind of traffic.
pub(super) struct Scene {
    pub(super) name: &'static str,
    /// Why a good operator says so.
    pub(super) why: &'static str,
    /// What is acceptable. To say that it is too early or unclear is never wrong, only not given.
    pub(super) right: &'static [(Verdict, Who)],
    /// Whether most runs have to be given one of these verdicts.
    pub(super) must: bool,
    pub(super) make: fn(&mut Draw) -> Traffic,
}

/// A line has the name of a scene, what makes it, its acceptable verdicts, whether it must be given one, and why.
macro_rules! scenes {
    ($($name:literal $make:expr, [$($right:expr),+], $must:expr, $why:literal;)+) => {
        pub(super) const SCENES: &[Scene] =
            &[$(Scene { name: $name, why: $why, right: &[$($right),+], must: $must, make: $make }),+];
    };
}

const HOUR: f64 = 3600.0;

scenes! {
    "a crowd behind one address" crowd, [(AboveRate, One)], true,
        "one key has all refusals, whether a crowd or an abuser is behind it";
    "a crowd behind one address of a large site" crowd_of_large_site, [(Effective, One), (AboveRate, One)], true,
        "less than a tenth is refused: the limit holds back one key, and nobody else notices it";
    "scrapers beside calm users" scrapers, [(AboveRate, Many)], true,
        "a third of the callers ask for three times the rate; the others were never refused";
    "one abuser beside honest callers" |draw| abusers(draw, 1..=1, 4..=1000), [(AboveRate, One)], true,
        "one caller has at least 93 % of the refused units, whoever else was refused once";
    "one abuser beside a crowd of honest callers" abuser_beside_crowd, [(AboveRate, One), (Effective, One)], true,
        "the same; if little is refused in all, the limit does its work";
    "one abuser, 10 to 19 callers in all" |draw| abusers(draw, 1..=1, 9..=18), [(AboveRate, One)], true,
        "a small number of callers does not change who is refused";
    "two abusers" |draw| abusers(draw, 2..=2, 4..=1000), [(AboveRate, Few)], true,
        "two callers share nearly all refused units";
    "three to eight abusers" |draw| abusers(draw, 3..=8, 30..=1000), [(AboveRate, Few)], true,
        "a handful of callers share nearly all refused units";
    "brute force on a login from one address" |draw| brute_force(draw, 1..=1), [(AboveRate, One)], true,
        "one address tries all the time; the others log in once or twice";
    "brute force on a login from many addresses" |draw| brute_force(draw, 20..=60), [(AboveRate, Many)], true,
        "each of many addresses tries more often than the limit allows";
    "each caller refused in one burst" refused_once, [(Bursts, Many)], true,
        "nobody is above the rate, and one burst of each caller was too large";
    "callers that come for one burst only" visitors, [(Bursts, Many)], true,
        "each asks for less than the rate in an hour, but for all of it at once";
    "regular bursts" regular_bursts, [(Bursts, Many)], true,
        "all bursts are too large, and there is time enough between them";
    "mixed costs, 1.2 times the rate" |draw| mixed_above(draw, 1.2), [(AboveRate, Many)], false,
        "everybody asks for more than the rate all the time: no burst would be enough";
    "mixed costs, above the rate" |draw| mixed_above(draw, 2.5), [(AboveRate, Many)], true,
        "everybody asks for more than twice the rate";
    "mixed costs, batches" mixed_batches, [(Bursts, Many)], true,
        "expensive requests come together, but seldom";
    "mixed costs, one abuser" mixed_abuser, [(AboveRate, One)], true,
        "one caller asks for many times the rate, in units";
    "callers below the rate that retry without waiting" |draw| retries(draw, Retry::AtOnce), [(Bursts, Many)], false,
        "what they ask for is below the rate; their retries only look like more";
    "callers above the rate that retry without waiting" |draw| above(draw, Retry::AtOnce), [(AboveRate, Many)], true,
        "the first tries alone are above the rate";
    "one program that retries without waiting" retrying_program, [(AboveRate, One), (Bursts, One)], true,
        "one caller has all refusals, for half of the time";
    "callers below the rate that back off" |draw| retries(draw, Retry::Backoff), [(Bursts, Many)], false,
        "what they ask for is below the rate";
    "callers above the rate that back off" |draw| above(draw, Retry::Backoff), [(AboveRate, Many)], true,
        "the first tries alone are above the rate";
    "a sale" sale, [(Bursts, Many), (AboveRate, Many)], true,
        "everybody was above the rate for 20 minutes, and far below it for the rest of the hour";
    "a quiet hour after a busy one" quiet_after_busy, [(NeverBinding, Nobody)], true,
        "in the hour that insight remembers, nobody came near the limit";
    "a busy hour after a quiet one" busy_after_quiet, [(AboveRate, Many)], true,
        "in the hour that insight remembers, everybody was above the rate";
    "9 to 20 callers above the rate" |draw| everybody(draw, 9..=20), [(AboveRate, Many)], true,
        "it is the same with a few callers";
    "9 to 20 callers below the rate" near_the_rate, [(Effective, Nobody)], true,
        "nobody is refused, and a lower limit would refuse somebody";
    "9 to 20 callers far below the rate" |draw| never_used(draw, 9..=20), [(NeverBinding, Nobody)], true,
        "nobody came near the limit for more than an hour";
    "three minutes after the start, calm" |draw| early(draw, false), [(TooEarly, Nobody), (Effective, Nobody)], false,
        "nobody knows yet what the callers need";
    "three minutes after the start, an abuser" |draw| early(draw, true), [(TooEarly, One), (AboveRate, One)], false,
        "what one caller does can be seen at once, or later";
    "a limit never used by half" |draw| never_used(draw, 5..=1000), [(NeverBinding, Nobody)], true,
        "nobody came near the limit for more than an hour";
    "little use, but less than an hour of it" short_and_calm, [(TooEarly, Nobody)], false,
        "the busy hour of the day may be still to come";
    "everybody above the rate" |draw| everybody(draw, 3..=150), [(AboveRate, Many)], true,
        "the limit is too low for all of its callers";
    "a single caller, above the rate" |draw| everybody(draw, 1..=1), [(AboveRate, One)], true,
        "whoever it is, it is one";
    "many oversized requests" |draw| oversized(draw, 0.08, 0.4), [(NeverPasses, Nobody)], true,
        "nothing else is refused, and these requests can never pass";
    "a few oversized requests" |draw| oversized(draw, 0.005, 0.03), [(Effective, Nobody)], true,
        "the other requests come near the limit, and none of them is refused";
    "a few callers above a limit that many keep" few_above, [(Effective, Few), (AboveRate, Few)], true,
        "less than a tenth of the units and callers are refused: the limit does its work";
    "a few bursts beside many calm callers" few_bursts, [(Effective, Few), (Bursts, Few)], true,
        "a few callers were refused once, and the limit does its work";
    "permits, one caller with too many calls" |draw| permits(draw, Load::OneAbove), [(TooEarly, One), (Effective, One)], false,
        "permits have no rate, so nobody is above it";
    "permits, more than half in use" |draw| permits(draw, Load::High), [(Effective, Nobody)], true,
        "nobody is refused, and some come near the limit";
    "permits, few in use" |draw| permits(draw, Load::Low), [(NeverBinding, Nobody)], true,
        "nobody came near the limit for more than an hour";
}

/// Honest callers with numbers from `first`, well below the rate. Returns the sum of what they ask for, as a multiple of
/// the rate.
fn honest(draw: &mut Draw, traffic: &mut Traffic, first: u32, number: u32, highest: f64) -> f64 {
    let times = |draw: &mut Draw| draw.between(0.1 * highest, highest);
    (first..first + number).fold(0.0, |sum, caller| {
        let times = times(draw);
        traffic.flow(caller, &Flow::steady(times));
        sum + times
    })
}

/// What callers ask for together beside `others`, so that this share of all units is refused.
fn for_share(refused: f64, others: f64) -> f64 {
    ((1.0 + refused * others) / (1.0 - refused)).max(2.0)
}

fn crowd(draw: &mut Draw) -> Traffic {
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

fn crowd_of_large_site(draw: &mut Draw) -> Traffic {
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

fn scrapers(draw: &mut Draw) -> Traffic {
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
fn abusers(draw: &mut Draw, number: std::ops::RangeInclusive<u64>, others: std::ops::RangeInclusive<u64>) -> Traffic {
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
fn some_refused_once(draw: &mut Draw, traffic: &mut Traffic, first: u32, number: u32, refused: f64) {
    let burst = 2 * traffic.quota.capacity();
    let most = (draw.between(0.0, 0.06) * refused / burst as f64) as u32;
    for caller in first..first + most.min(number) {
        let at_secs = draw.between(0.05, 0.9) * traffic.secs;
        traffic.burst(caller, at_secs, burst, &(1..=1), Retry::Never);
    }
}

/// How many units the rate of this limit is in `secs`.
fn units(quota: &Quota, secs: f64) -> f64 {
    quota.limit() as f64 * secs * 1e9 / quota.window_ns() as f64
}

fn abuser_beside_crowd(draw: &mut Draw) -> Traffic {
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

fn brute_force(draw: &mut Draw, addresses: std::ops::RangeInclusive<u64>) -> Traffic {
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

fn refused_once(draw: &mut Draw) -> Traffic {
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

fn visitors(draw: &mut Draw) -> Traffic {
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
fn bursts(
    draw: &mut Draw,
    traffic: &mut Traffic,
    caller: u32,
    times: f64,
    costs: std::ops::RangeInclusive<u64>,
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

fn regular_bursts(draw: &mut Draw) -> Traffic {
    let (secs, number) = (draw.between(1200.0, HOUR), draw.callers(5..=400));
    let quota = draw.quota(secs, 0.3 * f64::from(number));
    let mut traffic = draw.traffic(&quota, secs);
    let times = draw.between(1.5, 4.0);
    (0..number).for_each(|caller| bursts(draw, &mut traffic, caller, times, 1..=1, Retry::Never));
    traffic
}

/// A limit for requests that cost up to 500 units. `times` is as in [`Draw::quota`].
fn mixed_quota(draw: &mut Draw, secs: f64, times: f64) -> Quota {
    let limit = draw.number(1000..=2000);
    // Half of all costs are 50 or less.
    draw.quota_of(limit, secs, times / 50.0)
}

fn mixed_above(draw: &mut Draw, times: f64) -> Traffic {
    let (secs, number) = (draw.between(1500.0, HOUR), draw.callers(5..=100));
    let quota = mixed_quota(draw, secs, times * f64::from(number));
    let costs = [1..=500, 20..=500, 10..=100][draw.random.index(3)].clone();
    let mut traffic = draw.traffic(&quota, secs);
    for caller in 0..number {
        traffic.flow(caller, &Flow::steady(times).cost(costs.clone()));
    }
    traffic
}

fn mixed_batches(draw: &mut Draw) -> Traffic {
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

fn mixed_abuser(draw: &mut Draw) -> Traffic {
    let (secs, others) = (draw.between(1500.0, HOUR), draw.callers(4..=300));
    let quota = mixed_quota(draw, secs, f64::from(others));
    let mut traffic = draw.traffic(&quota, secs);
    // Costs of up to a quarter of the limit, at a tenth of the rate: nobody else is refused.
    (1..=others).for_each(|caller| traffic.flow(caller, &Flow::steady(0.1).cost(1..=250)));
    let times = for_share(draw.between(0.2, 0.8), 0.1 * f64::from(others));
    traffic.flow(0, &Flow::steady(times).cost(1..=500));
    traffic
}

fn retries(draw: &mut Draw, retry: Retry) -> Traffic {
    let (secs, number) = (draw.between(1200.0, HOUR), draw.callers(5..=150));
    let limit = draw.number(5..=10);
    let quota = draw.quota_of(limit, secs, 5.0 * f64::from(number));
    let mut traffic = draw.traffic(&quota, secs);
    let times = draw.between(1.3, 2.5);
    (0..number).for_each(|caller| bursts(draw, &mut traffic, caller, times, 1..=1, retry));
    traffic
}

fn above(draw: &mut Draw, retry: Retry) -> Traffic {
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

/// A program that works off its batches in a loop: while a batch lasts, it asks again and again.
fn retrying_program(draw: &mut Draw) -> Traffic {
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

fn sale(draw: &mut Draw) -> Traffic {
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

fn quiet_after_busy(draw: &mut Draw) -> Traffic {
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

fn busy_after_quiet(draw: &mut Draw) -> Traffic {
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

fn everybody(draw: &mut Draw, number: std::ops::RangeInclusive<u64>) -> Traffic {
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

fn near_the_rate(draw: &mut Draw) -> Traffic {
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

fn never_used(draw: &mut Draw, number: std::ops::RangeInclusive<u64>) -> Traffic {
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

fn early(draw: &mut Draw, is_abused: bool) -> Traffic {
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

fn short_and_calm(draw: &mut Draw) -> Traffic {
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

fn oversized(draw: &mut Draw, least: f64, most: f64) -> Traffic {
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

fn few_above(draw: &mut Draw) -> Traffic {
    let (secs, others, above) = (draw.between(900.0, HOUR), draw.callers(80..=400), draw.number(2..=4) as u32);
    let quota = draw.quota(secs, 0.5 * f64::from(others));
    let mut traffic = draw.traffic(&quota, secs);
    let sum = honest(draw, &mut traffic, above, others, 0.5);
    let times = 1.0 + (draw.between(0.03, 0.08) * sum / f64::from(above)).clamp(0.2, 2.0);
    (0..above).for_each(|caller| traffic.flow(caller, &Flow::steady(times)));
    traffic
}

fn few_bursts(draw: &mut Draw) -> Traffic {
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

/// How many calls of each caller run at one time, compared with the limit.
#[derive(Clone, Copy)]
enum Load {
    OneAbove,
    High,
    Low,
}

fn permits(draw: &mut Draw, load: Load) -> Traffic {
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
