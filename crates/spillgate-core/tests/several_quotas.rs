//! Several quotas on one state.
//!
//! A state has several quotas when the same limit has different values in different places. One server tries new limits
//! while the others use the old ones, a reload reaches one server after the other, or callers send the limit with each
//! call. A hit under one quota must never lower what was counted under another quota.
//!
//! `T` is the time between two units of a bucket at the full rate. The depth of a bucket is its capacity.

use std::time::Duration;

use crate::support::{
    Cost, Gap, ask, ask_copy, ask_late, bucket, builder, cases, costs, gaps, take, tiny_quotas, within_bound,
};
use proptest::prelude::*;
use spillgate_core::{Algorithm, Anchor, Denied, Op, Quota, QuotaBuilder, Receipt, State};

/// A time in 2026, far from the earliest and the latest time.
const NOW: u64 = 1_770_000_000_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Take,
    Peek,
    Force,
    /// A refund of the last take, by its receipt.
    RefundLast,
    RefundAny,
}

impl Kind {
    fn op(self, cost: u64, receipt: Option<Receipt>) -> Op {
        match self {
            Kind::Take => take(cost),
            Kind::Peek => Op::Peek,
            Kind::Force => Op::Force { cost },
            Kind::RefundLast => Op::Refund { cost, receipt },
            Kind::RefundAny => Op::Refund { cost, receipt: None },
        }
    }
}

/// A hit: the time since the previous hit, the index of the quota, the cost, the kind, and how late the hit is, in
/// thousandths of the largest lateness in the test.
type Step = (Gap, usize, Cost, Kind, u64);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    steps_of(prop_oneof![6 => Just(Kind::Take), 1 => Just(Kind::Peek), 2 => Just(Kind::Force)])
}

fn steps_with_refunds() -> impl Strategy<Value = Vec<Step>> {
    let refunds = prop_oneof![Just(Kind::RefundLast), Just(Kind::RefundAny)];
    steps_of(prop_oneof![6 => Just(Kind::Take), 1 => Just(Kind::Peek), 1 => Just(Kind::Force), 3 => refunds])
}

fn steps_of(kinds: impl Strategy<Value = Kind>) -> impl Strategy<Value = Vec<Step>> {
    let late = prop_oneof![Just(0), Just(1000), 0..=1000u64];
    prop::collection::vec((gaps(), 0..3usize, costs(), kinds, late), 1..60)
}

/// The steps of an attacker. The attacker takes all that is left under one quota, and then all that is left under
/// another quota. Between the takes, the attacker does not wait, or waits until units are free again.
fn greedy_steps() -> impl Strategy<Value = Vec<Step>> {
    let gaps =
        prop_oneof![3 => Just(Gap::Ns(0)), 2 => (0..=1i64).prop_map(Gap::Retry), 1 => (-1..=0i64).prop_map(Gap::Edge)];
    let costs = prop_oneof![3 => Just(Cost::Remaining), 2 => Just(Cost::One), 1 => Just(Cost::RemainingAndOne)];
    let late = prop_oneof![Just(0), Just(1000)];
    prop::collection::vec((gaps, 0..3usize, costs, Just(Kind::Take), late), 1..80)
}

fn algorithms() -> impl Strategy<Value = Algorithm> {
    prop_oneof![4 => Just(Algorithm::TokenBucket), 6 => crate::support::algorithms()]
        .prop_filter("queues with different T do not share a state", |algorithm| *algorithm != Algorithm::LeakyBucket)
}

/// Two or three quotas on one state. Some limits are small, and some are very different from each other. Some quotas
/// charge refusals.
fn quotas() -> impl Strategy<Value = Vec<Quota>> {
    let limit = || prop_oneof![1..=5u64, 1..=1000u64, Just(100_000)];
    let sizes = prop::collection::vec((limit(), prop_oneof![Just(0), 1..30u64], any::<bool>()), 2..=3);
    (algorithms(), sizes, crate::support::windows_ns()).prop_filter_map(
        "no such quota",
        |(algorithm, sizes, window_ns)| {
            let quotas = sizes.into_iter().map(|(limit, depth, charged)| {
                let denied = if charged { Denied::Charged } else { Denied::Free };
                builder(algorithm, limit, window_ns, depth).denied(denied).build().ok()
            });
            quotas.collect::<Option<Vec<Quota>>>()
        },
    )
}

/// Units that were charged or given back: the time, the number of units, and the index of the quota.
struct Event {
    at: u64,
    units: Units,
    quota: usize,
}

#[derive(Clone, Copy)]
enum Units {
    Admitted(u64),
    /// Charged by a force or by a refusal.
    Charged,
    Refunded(u64),
}

/// Checks the bound in every interval. Only the quotas that charged in the interval count.
///
/// `s` is the length of the interval, `R` is the number of units that were given back in the interval, and `d` is the
/// largest lateness of a request. The bounds are:
///
/// * For buckets: `D + (s + 2 * d)/T + R`, with the largest depth `D` and the smallest `T` of the quotas.
/// * For windows, counters and logs: the bound of the largest limit, plus `R`.
/// * For leases: the largest limit plus `R`, if `s` is shorter than a lease.
fn assert_bound_of_the_largest(quotas: &[Quota], events: &[Event], late_most_ns: u64) -> Result<(), TestCaseError> {
    for (i, first) in events.iter().enumerate() {
        let (mut admitted, mut refunded, mut depth, mut interval_ns) = (0u128, 0u128, 0, u64::MAX);
        let charging = events[i..].iter().find(|event| !matches!(event.units, Units::Refunded(_)));
        let mut largest = &quotas[charging.unwrap_or(first).quota];
        for event in &events[i..] {
            let quota = &quotas[event.quota];
            match event.units {
                Units::Admitted(units) => admitted += u128::from(units),
                Units::Charged => {}
                Units::Refunded(units) => {
                    refunded += u128::from(units);
                    continue;
                }
            }
            depth = depth.max(quota.hard_capacity());
            interval_ns = interval_ns.min(quota.interval_ns());
            largest = if quota.limit() > largest.limit() { quota } else { largest };
            let (s, sum) = (event.at - first.at, admitted.saturating_sub(refunded));
            let holds = match quota.algorithm() {
                Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                    sum.saturating_sub(depth.into()) * u128::from(interval_ns) <= u128::from(s + 2 * late_most_ns)
                }
                // Two leases are held at the same time if their starts are less than a lease duration apart.
                Algorithm::Concurrency => s >= quota.lease_ns() || sum <= depth.into(),
                _ => within_bound(largest, s, sum),
            };
            prop_assert!(holds, "{} units in {} ns are more than the bound of {:?}", sum, s, quotas);
        }
    }
    Ok(())
}

/// Makes all steps, and returns what was charged or given back. Only buckets get late requests. All other algorithms
/// count a late request as if it came at the newest time, so late requests would add no new case.
fn charged(quotas: &[Quota], steps: &[Step], late_most_ns: u64) -> Vec<Event> {
    let (mut state, mut now, mut newest, mut wait_ns) = (State::default(), NOW, NOW, 0);
    let (mut events, mut receipt) = (Vec::new(), None);
    for (gap, quota, cost, kind, late) in steps {
        let quota = quota % quotas.len();
        now = gap.after(&quotas[quota], now, wait_ns);
        let late_ns = if quotas[quota].algorithm() == Algorithm::TokenBucket { late_most_ns * late / 1000 } else { 0 };
        let asked_at = now - late_ns;
        newest = newest.max(asked_at);
        let cost = cost.units(&quotas[quota], ask_copy(&state, &quotas[quota], Op::Peek, now).remaining);
        let op = kind.op(cost, receipt);
        let before = state.clone();
        let decision = ask_late(&mut state, &quotas[quota], op, asked_at, newest);
        wait_ns = decision.retry_after.nanos().unwrap_or(wait_ns);
        receipt = decision.receipt.or(receipt);
        let units = match op {
            Op::Refund { .. } => Units::Refunded(cost),
            _ if decision.receipt.is_some() => Units::Admitted(cost),
            _ => Units::Charged,
        };
        if state != before {
            events.push(Event { at: now, units, quota });
        }
    }
    events
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn several_quotas_keep_the_bound_of_the_largest(
        quotas in quotas(),
        steps in prop_oneof![steps().boxed(), greedy_steps().boxed(), steps_with_refunds().boxed()],
        late_most_ns in prop_oneof![Just(0), 0..1000u64, 0..=SECOND_NS],
    ) {
        let events = charged(&quotas, &steps, late_most_ns);
        assert_bound_of_the_largest(&quotas, &events, late_most_ns)?;
    }

    /// After any hit, at least as many units are used under each quota as before the hit. For windows, counters and
    /// logs, this is also checked at a later time. For buckets, it is also checked after late hits.
    #[test]
    fn no_hit_lowers_what_was_counted_under_another_quota(quotas in quotas(), steps in steps(), later in 0..2000u64) {
        let (mut state, mut now, mut wait_ns) = (State::default(), NOW, 0);
        for (gap, quota, cost, kind, late) in steps {
            let quota = &quotas[quota % quotas.len()];
            now = gap.after(quota, now, wait_ns);
            let late_ns = if quota.algorithm() == Algorithm::TokenBucket { SECOND_NS * late / 1000 } else { 0 };
            let later_ns = (u128::from(quota.window_ns()) * u128::from(later) / 1000) as u64;
            let until = if quota.algorithm() == Algorithm::TokenBucket { now } else { now + later_ns };
            let left = |state: &State| -> Vec<u64> {
                let asked = quotas.iter().flat_map(|quota| [(quota, now), (quota, until)]);
                asked.map(|(quota, at)| ask_copy(state, quota, Op::Peek, at).remaining).collect()
            };
            let before = left(&state);
            let cost = cost.units(quota, ask_copy(&state, quota, Op::Peek, now).remaining);
            let op = kind.op(cost, None);
            wait_ns = ask_late(&mut state, quota, op, now - late_ns, now).retry_after.nanos().unwrap_or(wait_ns);
            let after = left(&state);
            prop_assert!(after.iter().zip(&before).all(|(after, before)| after <= before), "{op:?} must not raise what remains: {before:?}, then {after:?}");
        }
    }

    /// A refusal that is not charged leaves the state as a peek leaves it. The waits are exact under every quota.
    #[test]
    fn what_another_quota_refuses_changes_nothing_and_its_wait_is_exact(quotas in quotas(), steps in steps()) {
        let (mut state, mut now, mut wait_ns) = (State::default(), NOW, 0);
        for (gap, quota, cost, _, _) in steps {
            let quota = &quotas[quota % quotas.len()];
            now = gap.after(quota, now, wait_ns);
            for other in &quotas {
                let mut peeked = state.clone();
                let left = ask(&mut peeked, other, Op::Peek, now).remaining;
                for cost in [left + 1, other.capacity()] {
                    let mut asked = peeked.clone();
                    let decision = ask(&mut asked, other, take(cost), now);
                    if decision.allowed || other.denied() == Denied::Charged {
                        continue;
                    }
                    prop_assert_eq!(&asked, &peeked);
                    let Some(wait_ns) = decision.retry_after.nanos() else { continue };
                    prop_assert!(ask_copy(&peeked, other, take(cost), now + wait_ns).allowed);
                    prop_assert!(!ask_copy(&peeked, other, take(cost), now + wait_ns - 1).allowed);
                }
            }
            let cost = cost.units(quota, ask_copy(&state, quota, Op::Peek, now).remaining);
            wait_ns = ask(&mut state, quota, take(cost), now).retry_after.nanos().unwrap_or(wait_ns);
        }
    }

    /// The kernel reduces a debt that is larger than its bound, because only a clock that was set back leaves such a
    /// debt. A debt that comes from requests must never be reduced, even if requests are late.
    #[test]
    fn no_debt_of_requests_is_reduced(
        quotas in quotas().prop_filter("buckets", |quotas| quotas[0].algorithm() == Algorithm::TokenBucket),
        steps in steps(), late_ns in 0..=SECOND_NS,
    ) {
        let (mut state, mut now, mut wait_ns) = (State::default(), NOW, 0);
        for (gap, quota, cost, kind, late) in steps {
            let quota = &quotas[quota % quotas.len()];
            now = gap.after(quota, now, wait_ns);
            let cost = cost.units(quota, ask_copy(&state, quota, Op::Peek, now).remaining);
            let op = if matches!(kind, Kind::Force) { Op::Force { cost } } else { take(cost) };
            let asked_at = now - late_ns * late / 1000;
            wait_ns = ask_late(&mut state, quota, op, asked_at, now).retry_after.nanos().unwrap_or(wait_ns);
            let paid_at = state.expires_at(quota);
            for other in quotas.iter().filter(|_| paid_at > now) {
                let mut peeked = state.clone();
                ask(&mut peeked, other, Op::Peek, now - late_ns);
                prop_assert_eq!(peeked.expires_at(other), paid_at);
            }
        }
    }

    /// A force adds debt only up to `2 * B * T`, where `B` (the burst) and `T` are those of its own quota. If the debt
    /// is already that large, the state does not change.
    #[test]
    fn a_force_counts_up_to_the_greatest_debt_of_its_own_quota(
        first in (1..1000u64, 1..30u64), second in (1..1000u64, 1..30u64), used in 0..=30u64, costs in prop::array::uniform2(0..50u64),
    ) {
        let [first, second] = [first, second].map(|(limit, burst)| bucket(limit, 1, burst));
        let used = used.min(first.capacity());
        let mut state = State::default();
        ask(&mut state, &first, Op::Force { cost: used }, NOW);
        let mut units = used;
        for cost in costs {
            let before = state.clone();
            let decision = ask(&mut state, &second, Op::Force { cost }, NOW);
            let after = (units + cost).min(2 * second.capacity());
            prop_assert!(decision.allowed);
            if after > units {
                units = after;
                prop_assert_eq!(state.expires_at(&second), NOW + units * second.interval_ns());
            } else {
                prop_assert_eq!(&state, &before);
            }
        }
    }

    /// A limit is lowered and restored several times. All takes together get exactly as many units as the larger limit
    /// allows.
    #[test]
    fn a_limit_cut_and_restored_admits_nothing_extra(
        algorithm in algorithms(), limit in 2..500u64, window_ns in crate::support::windows_ns(), cycles in 1..6usize, cost in 1..5u64,
    ) {
        let [large, small] = [limit, 1].map(|limit| builder(algorithm, limit, window_ns, 0).build().ok());
        let (Some(large), Some(small)) = (large, small) else { return Ok(()) };
        let (mut state, mut admitted) = (State::default(), 0);
        for _ in 0..cycles {
            while ask(&mut state, &large, take(1), NOW).allowed {
                admitted += 1;
            }
            for op in [take(1), Op::Peek, Op::Force { cost }] {
                ask(&mut state, &small, op, NOW);
            }
        }
        prop_assert_eq!(admitted, limit);
    }
}

/// One server has a limit of 1000 an hour. Another server still has a limit of 10 an hour, and gets one of every 41
/// requests. Together, they admit at most the 1000 units of a full bucket, and 1000 units for each hour.
#[test]
fn a_fleet_of_two_limits_admits_the_larger_one() {
    let (large, small) = (bucket(1000, 3600, 1000), bucket(10, 3600, 10));
    let (mut state, mut admitted, mut now) = (State::default(), [0, 0], NOW);
    let hour = |state: &mut State, now: u64| {
        let mut admitted = [0, 0];
        for i in 0..10_000u64 {
            let (which, quota) = if i % 41 == 40 { (1, &small) } else { (0, &large) };
            admitted[which] += u64::from(ask(state, quota, take(1), now + i * 360_000_000).allowed);
        }
        admitted
    };
    for i in 0..2 {
        let then = hour(&mut state, now);
        admitted = [admitted[0] + then[0], admitted[1] + then[1]];
        let most = 1000 + (i + 1) * 1000;
        assert!(admitted[0] + admitted[1] <= most, "{admitted:?} units were admitted in {} hours", i + 1);
        now += 3600 * SECOND_NS;
    }
    assert!(admitted[0] >= 1990, "the first server admits its whole limit: {admitted:?}");
}

/// In the worst case, as many units are admitted as the bound allows: first the largest depth at once, and then one
/// unit after each `T` of the quota with the largest rate. In between, takes under the smaller quota are refused and
/// change nothing.
#[test]
fn several_quotas_reach_the_bound_of_the_largest() {
    let (large, small) = (bucket(10, 1, 7), bucket(3, 1, 2));
    let (mut state, mut admitted) = (State::default(), 0);
    for now in (0..=2_000_000_000).step_by(20_000_000) {
        while ask(&mut state, &large, take(1), NOW + now).allowed {
            admitted += 1;
        }
        for op in [take(1), take(2), Op::Peek, Op::Force { cost: 0 }] {
            let decision = ask(&mut state, &small, op, NOW + now);
            assert!(!decision.allowed || op == Op::Force { cost: 0 });
        }
        assert_eq!(admitted, 7 + now / 100_000_000);
    }
}

/// The quota `deep` has the larger depth, and the quota `fast` has the larger rate. First `fast` admits at its rate for
/// some seconds. Then `deep` admits its whole depth at once.
#[test]
fn the_largest_depth_and_the_largest_rate_may_come_from_two_quotas() {
    let (deep, fast) = (bucket(1, 1, 10), bucket(10, 1, 1));
    for seconds in [0, 1, 5, 60] {
        let (mut state, mut admitted) = (State::default(), 0);
        for tenth in 0..10 * seconds {
            assert!(ask(&mut state, &fast, take(1), NOW + tenth * SECOND_NS / 10).allowed);
            admitted += 1;
        }
        let end = NOW + seconds * SECOND_NS;
        assert!(ask(&mut state, &deep, take(10), end).allowed);
        assert_eq!(admitted + 10, 10 + seconds * 10);
        assert!([&deep, &fast].iter().all(|quota| !ask(&mut state, quota, take(1), end).allowed));
    }
}

/// Tries every sequence of three or four hits under two small quotas. The bound is kept, no hit lowers a count, and
/// waits are exact.
#[test]
fn every_small_trace_of_two_quotas() {
    let algorithms = [
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
        Algorithm::FixedWindow(Anchor::Epoch),
        Algorithm::FixedWindow(Anchor::FirstHit),
        Algorithm::SlidingWindowLog,
        Algorithm::SlidingWindowCounter { segments: 1 },
        Algorithm::SlidingWindowCounter { segments: 2 },
        Algorithm::Concurrency,
    ];
    for algorithm in algorithms {
        let mut questions = 0;
        for (a, b, length) in [(1, 4, 4), (2, 4, 3)] {
            for denied in [Denied::Free, Denied::Charged] {
                if algorithm == Algorithm::Concurrency && denied == Denied::Charged {
                    continue;
                }
                let build = |limit, other, denied| {
                    let window = Duration::from_nanos(8);
                    let builder = |limit| QuotaBuilder::new(algorithm, limit, window).denied(denied);
                    let builder = match algorithm {
                        Algorithm::TokenBucket => builder(limit).burst(other),
                        // Queues share a state only if they have the same T.
                        Algorithm::LeakyBucket => builder(2).queue(limit),
                        Algorithm::Concurrency => builder(limit).lease(window),
                        _ => builder(limit),
                    };
                    builder.build().expect("a quota")
                };
                let quotas = [build(a, b, denied), build(b, a, Denied::Free)];
                assert_eq!(quotas[0].identity(), quotas[1].identity());
                questions += explore(&quotas, &State::default(), NOW, &mut Vec::new(), length);
            }
        }
        assert!(questions > 80_000, "{algorithm:?} was asked only {questions} times");
    }
}

fn explore(quotas: &[Quota], state: &State, now: u64, events: &mut Vec<Event>, length: u32) -> u64 {
    let mut questions = 0;
    for gap_ns in [0, 1, 3] {
        for (i, op) in
            (0..quotas.len()).flat_map(|i| [take(1), take(2), Op::Peek, Op::Force { cost: 2 }].map(|op| (i, op)))
        {
            let (mut state, now, quota) = (state.clone(), now + gap_ns, &quotas[i]);
            let left =
                |state: &State| quotas.iter().map(|quota| ask_copy(state, quota, Op::Peek, now).remaining).collect();
            let before: Vec<u64> = left(&state);
            let was = state.clone();
            let decision = ask(&mut state, quota, op, now);
            let after: Vec<u64> = left(&state);
            assert!(
                after.iter().zip(&before).all(|(after, before)| after <= before),
                "{op:?} must not raise what remains: {before:?}, then {after:?}"
            );
            if let Some(wait_ns @ 1..) = decision.retry_after.nanos().filter(|_| !decision.allowed) {
                assert!(ask_copy(&state, quota, op, now + wait_ns).allowed);
                assert!(!ask_copy(&state, quota, op, now + wait_ns - 1).allowed);
            }
            let units = match op {
                Op::Take { cost, .. } if decision.allowed => Units::Admitted(cost),
                _ => Units::Charged,
            };
            let wrote = state != was;
            if wrote {
                events.push(Event { at: now, units, quota: i });
                assert_bound_of_the_largest(quotas, events, 0)
                    .expect("at most the bound of the largest quota is admitted");
            }
            // The next level is explored only if this hit changed the state, or if time has passed and the hit is not a
            // peek. In all other cases, the next level has no new case.
            let differs = wrote || (gap_ns > 0 && op != Op::Peek);
            questions += 1 + if length > 1 && differs { explore(quotas, &state, now, events, length - 1) } else { 0 };
            if wrote {
                events.pop();
            }
        }
    }
    questions
}

/// A penalty lasts for the duration of the quota that started it, even if other quotas on the state have shorter
/// penalties.
#[test]
fn a_shorter_penalty_does_not_end_a_longer_one() {
    let quota = |penalty| {
        let builder = Quota::fixed_window(2, Duration::from_secs(1)).penalty(Duration::from_secs(penalty));
        builder.build().expect("a quota")
    };
    let (long, short) = (quota(300), quota(2));
    let mut state = State::default();
    assert!(!ask(&mut state, &long, take(3), NOW).allowed);
    for i in 1..100 {
        assert!(!ask(&mut state, &short, if i % 2 == 0 { take(1) } else { Op::Peek }, NOW + i * SECOND_NS).allowed);
    }
    assert_eq!(ask_copy(&state, &long, take(1), NOW + 299 * SECOND_NS).retry_after.nanos(), Some(SECOND_NS));
    assert!(ask(&mut state, &long, take(1), NOW + 300 * SECOND_NS).allowed);
    // If the clock is set back, a penalty does not get longer, whichever quota asks.
    let mut state = State::default();
    ask(&mut state, &long, take(3), NOW);
    assert_eq!(ask(&mut state, &short, Op::Peek, NOW - 3600 * SECOND_NS).reset_after_ns, 300 * SECOND_NS);
}

proptest! {
    #![proptest_config(cases(150))]

    /// Under several quotas, all fields of all answers equal those of the model.
    #[test]
    fn several_quotas_decide_as_the_model(
        quotas in algorithms().prop_flat_map(tiny_quotas),
        steps in prop_oneof![steps().boxed(), steps_with_refunds().boxed()],
    ) {
        let (mut state, mut model, mut now) = (State::default(), crate::support::model::Model::default(), 1_000);
        let mut receipt = None;
        for (gap, quota, cost, kind, _) in steps {
            let quota = &quotas[quota % quotas.len()];
            now = gap.after(quota, now, 0);
            let cost = cost.units(quota, ask_copy(&state, quota, Op::Peek, now).remaining).min(20);
            let op = kind.op(cost, receipt);
            let decision = ask(&mut state, quota, op, now);
            prop_assert_eq!(decision, model.ask(quota, op, now));
            receipt = decision.receipt.or(receipt);
        }
    }
}
