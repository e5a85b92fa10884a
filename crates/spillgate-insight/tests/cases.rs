//! Traffic whose right verdicts are known, because the traffic was made to be of one kind.

use std::time::Duration;

use spillgate_insight::{Verdict, Who};
use spillgate_limiter::{Anchor, Quota};

use super::SECOND;
use super::traffic::{Pattern, Reaction, unit_ns};

/// What is right to say of some traffic. Several verdicts can be right: how many units are refused decides between two
/// of them, and this depends on retries.
pub(crate) type Right = &'static [(Verdict, Who)];

const ABOVE: Right = &[(Verdict::AboveRate, Who::Many)];
const FEW_ABOVE: Right = &[(Verdict::AboveRate, Who::Few), (Verdict::Effective, Who::Few)];
const ONE_ABOVE: Right = &[(Verdict::AboveRate, Who::One)];
const BURSTS: Right = &[(Verdict::Bursts, Who::Many)];
const EFFECTIVE: Right = &[(Verdict::Effective, Who::Nobody)];
const NEVER_BINDING: Right = &[(Verdict::NeverBinding, Who::Nobody)];

/// One kind of traffic, and the verdicts that are right for it.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) quota: Quota,
    pub(crate) callers: Vec<Pattern>,
    pub(crate) cost: u64,
    pub(crate) reaction: Reaction,
    pub(crate) secs: u64,
    pub(crate) right: Right,
}

/// How the callers that stay within their limits ask: all equally often, or a few of them much more often.
#[derive(Clone, Copy)]
enum Spread {
    Uniform,
    Zipf,
}

fn within(count: usize, spread: Spread, highest: f64) -> impl Iterator<Item = Pattern> {
    (0..count).map(move |rank| match spread {
        Spread::Uniform => Pattern::Steady(highest),
        Spread::Zipf => Pattern::Steady((highest / (1 + rank % 50) as f64).max(0.02)),
    })
}

/// Returns limits. Each has a name, its quota, and the units that one request costs.
fn quotas() -> Vec<(&'static str, Quota, u64)> {
    let built = |builder: spillgate::QuotaBuilder| builder.build().expect("the quota is valid");
    let second = SECOND;
    vec![
        ("bucket 10/s, burst 10", built(Quota::token_bucket(10, second)), 1),
        ("bucket 100/min, burst 20", built(Quota::token_bucket(100, 60 * second).burst(20)), 1),
        ("bucket of 10^10 in 10s, cost 10^9", built(Quota::token_bucket(10_000_000_000, 10 * second)), 1_000_000_000),
        ("window 20/s", built(Quota::fixed_window(20, second)), 1),
        ("window 20/s from the first hit", built(Quota::fixed_window(20, second).anchor(Anchor::FirstHit)), 1),
        ("counter 20/s", built(Quota::sliding_window_counter(20, second)), 1),
        ("counter 20/s of one segment", built(Quota::sliding_window_counter(20, second).segments(1)), 1),
        ("log 20/s", built(Quota::sliding_window_log(20, second)), 1),
    ]
}

const REACTIONS: [Reaction; 3] = [Reaction::Obeys, Reaction::GivesUp, Reaction::AtOnce];

/// Returns all traffic: each kind with each quota, each reaction, and callers that ask equally often or not.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (quota_name, quota, cost) in quotas() {
        // Long enough for a verdict: 25 refills of a burst, three windows or 75 seconds, whichever is longest.
        let refill_secs = (quota.capacity() * unit_ns(&quota)).div_ceil(1_000_000_000);
        let window_secs = quota.window_ns().div_ceil(1_000_000_000);
        let secs = (25 * refill_secs).max(3 * window_secs).max(75);
        let at_once = quota.capacity() / cost;
        for reaction in REACTIONS {
            for (spread_name, spread) in [("uniform", Spread::Uniform), ("zipf", Spread::Zipf)] {
                let mut add = |kind: &str, right, secs, callers: Vec<Pattern>| {
                    let name = format!("{kind}, {quota_name}, {reaction:?}, {spread_name}");
                    cases.push(Case { name, quota: quota.clone(), callers, cost, reaction, secs, right });
                };
                for (share, above) in [(30, 1.5), (50, 3.0)] {
                    let strict = within(100 - share, spread, 0.7).chain(vec![Pattern::Steady(above); share]);
                    add("above the rate", ABOVE, secs, strict.collect());
                }
                let late = Pattern::During { rate: 1.6, from: 0.5, to: 1.0 };
                let base = Pattern::During { rate: 0.5, from: 0.5, to: 1.0 };
                let strict = [vec![late; 40], vec![base; 60]].concat();
                // The second half of this time touches three minutes of the clock, which a verdict needs.
                let late_secs = (2 * secs).max(200);
                add("above the rate, late start", ABOVE, late_secs, strict);
                for few in [3, 6] {
                    let steady = within(100 - few, spread, 0.5).chain(vec![Pattern::Steady(2.5); few]);
                    add("a few above the rate", FEW_ABOVE, secs, steady.collect());
                }
                for (share, times) in [(20, 2), (60, 4)] {
                    let pattern = Pattern::Bursts { requests: times * at_once, pause: 3.0 };
                    let bursts = within(100 - share, spread, 0.3).chain(vec![pattern; share]);
                    add("bursts", BURSTS, secs, bursts.collect());
                }
                let bursts = Pattern::Bursts { requests: 2 * at_once, pause: 4.0 };
                let busy = Pattern::Sum(vec![Pattern::Steady(0.2), bursts]);
                let bursts = within(60, spread, 0.3).chain(vec![busy; 40]);
                add("bursts of steady callers", BURSTS, secs, bursts.collect());
                let near = Pattern::Bursts { requests: at_once * 6 / 5, pause: 1.4 };
                add("bursts near the rate", BURSTS, secs, vec![near; 60]);
                // "Never binding" needs an hour of requests.
                for highest in [0.05, 0.1] {
                    add("never binding", NEVER_BINDING, 3700, within(12, spread, highest).collect());
                }
                let late = vec![Pattern::During { rate: 0.1, from: 0.5, to: 1.0 }; 12];
                add("never binding, late start", NEVER_BINDING, 7400, late);
                add("nearly at the rate", EFFECTIVE, secs, within(100, spread, 0.85).collect());
                for abuse in [20.0, 60.0] {
                    let abuser = within(99, spread, 0.4).chain([Pattern::Steady(abuse)]);
                    add("one caller above the rate", ONE_ABOVE, secs, abuser.collect());
                }
            }
        }
    }
    cases.extend(sales());
    cases
}

/// Sales: many callers are above the rate, but only for a short time.
fn sales() -> Vec<Case> {
    let window = Duration::from_secs(10);
    let quotas = [
        ("bucket 5/10s", Quota::token_bucket(5, window)),
        ("window 5/10s", Quota::fixed_window(5, window)),
        ("counter 5/10s", Quota::sliding_window_counter(5, window)),
    ];
    let caller = |above: f64, from: f64| {
        Pattern::Sum(vec![Pattern::Steady(0.1), Pattern::During { rate: above, from, to: from + 0.12 }])
    };
    let mut cases = Vec::new();
    for (quota_name, quota) in quotas {
        let quota = quota.build().expect("the quota is valid");
        for reaction in REACTIONS {
            for (above, from) in [(2.4, 0.1), (4.0, 0.7)] {
                let name = format!("a sale, {quota_name}, {reaction:?}");
                let (quota, callers) = (quota.clone(), vec![caller(above, from); 60]);
                cases.push(Case { name, quota, callers, cost: 1, reaction, secs: 1800, right: BURSTS });
            }
        }
    }
    cases
}
