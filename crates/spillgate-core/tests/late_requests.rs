//! Late requests: they are decided after other requests that read the clock later.
//!
//! Threads and servers overtake each other, so every store gets late requests. The kernel must not forgive units
//! because of them.
//!
//! `T` is the time between two units of a token bucket at the full rate. The debt of a bucket is a time: `T` for each
//! unit that is not refilled yet. If a quota with another time `T'` charges the bucket, the debt is converted: it is
//! multiplied by `T'/T`.

use std::time::Duration;

use crate::support::{Cost, ask, ask_copy, ask_late, bucket, cases, costs, quotas_with_extras, take};
use proptest::prelude::*;
use spillgate_core::{Binding, Decision, Hit, Op, Quota, Reason, State, Time, decide, decide_late};

/// A time in 2026, far from the earliest and the latest time.
const NOW: u64 = 1_770_000_000_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// Callers take in turns under a slow quota and a fast quota, which share a bucket and have different `T`. The requests
/// under the slow quota have the time `NOW`. The requests under the fast quota have an earlier time, so they are late
/// and see a longer debt. The additional part of the debt is paid before `NOW`. If the conversion to the shorter `T`
/// also shortened this part, each conversion would forgive some of the debt that is left at `NOW`.
#[test]
fn late_requests_of_a_faster_quota_forgive_nothing() {
    let slow = Quota::token_bucket(1, Duration::from_nanos(1_000_000)).burst(10).build().expect("a quota");
    let fast = Quota::token_bucket(1000, Duration::from_nanos(1_000_000)).burst(10).build().expect("a quota");
    assert_eq!(slow.identity(), fast.identity());
    for late_ns in [0, 1, 5_000, 9_000] {
        let (mut state, mut admitted) = (State::default(), 0);
        for i in 0..2000 {
            let (quota, at) = if i % 2 == 0 { (&slow, NOW) } else { (&fast, NOW - late_ns) };
            admitted += u64::from(ask_late(&mut state, quota, take(1), at, NOW).allowed);
        }
        assert!((9..=10).contains(&admitted), "{admitted} units were admitted, with requests {late_ns} ns late");
        // Without the newest time, the kernel forgives units. This loop shows why a store has to pass the newest time.
        let (mut state, mut admitted) = (State::default(), 0);
        for i in 0..2000 {
            let (quota, at) = if i % 2 == 0 { (&slow, NOW) } else { (&fast, NOW - late_ns) };
            admitted += u64::from(ask(&mut state, quota, take(1), at).allowed);
        }
        assert!(late_ns < 5_000 || admitted > 100, "{admitted} units were admitted, with requests {late_ns} ns late");
    }
}

/// One late request takes a unit under a fast quota and a unit under a slow quota, on the same state. Each unit has to
/// count once.
#[test]
fn a_late_request_under_two_quotas_of_one_state_counts_no_unit_twice() {
    let window = Duration::from_nanos(1 << 61);
    let build = |limit, burst| Quota::token_bucket(limit, window).burst(burst).build().expect("a quota");
    for (fast, slow, used) in [(bucket(1000, 1, 100), bucket(1, 1, 10), 5), (build(1 << 52, 9), build(5, 4), 1)] {
        let now = if slow.interval_ns() > SECOND_NS { Time::MAX.as_nanos() } else { NOW };
        for quotas in [[&fast, &slow], [&slow, &fast]] {
            let mut states = [State::default()];
            ask(&mut states[0], &slow, take(used), now);
            let hits = quotas.map(|quota| Hit::new(1, quota, take(1), Binding::Enforce));
            let mut decisions = [Decision::default(); 2];
            let late = Time::from_nanos(now - SECOND_NS);
            let verdict = decide_late(&mut states, &[0, 0], &hits, late, Time::from_nanos(now), &mut decisions);
            assert!(verdict.allowed);
            assert_eq!(ask(&mut states[0], &slow, Op::Peek, now).remaining, slow.capacity() - used - 2);
        }
    }
}

/// The wait of a late request starts at its own time, and not at the newest time.
#[test]
fn a_late_request_gets_a_wait_from_its_own_time() {
    let (slow, fast) = (bucket(1, 1, 5), bucket(10, 1, 5));
    let mut state = State::default();
    assert!(ask(&mut state, &slow, take(5), NOW).allowed);
    let late = ask_late(&mut state, &fast, take(1), NOW - 300, NOW);
    assert_eq!(
        (late.allowed, late.retry_after.nanos(), late.reset_after_ns),
        (false, Some(SECOND_NS + 300), 5 * SECOND_NS + 300)
    );
    // If a request is more than a second earlier than the newest time, the kernel assumes that the clock was set back,
    // and ignores the newest time.
    let back = ask_late(&mut state, &fast, take(1), NOW - 2 * SECOND_NS, NOW);
    assert_eq!((back.allowed, back.retry_after.nanos()), (false, Some(3 * SECOND_NS)));
}

/// Decides a request with two hits. The first hit is a take under a fast quota, from a bucket that a slow quota has
/// charged before. The second hit is a take from a queue.
fn ask_bucket_and_queue(states: &mut [State; 2], late_ns: u64, max_wait_ns: u64) -> [Decision; 2] {
    let (fast, queue) = (bucket(10, 1, 5), queue());
    let wait = Op::Take { cost: 1, max_wait_ns };
    let hits = [Hit::new(1, &fast, take(1), Binding::Enforce), Hit::new(1, &queue, wait, Binding::Enforce)];
    let mut decisions = [Decision::default(); 2];
    let (now, newest) = (Time::from_nanos(NOW - late_ns), Time::from_nanos(NOW));
    decide_late(states, &[0, 1], &hits, now, newest, &mut decisions);
    decisions
}

fn queue() -> Quota {
    Quota::leaky_bucket(1, Duration::from_secs(1)).queue(3).build().expect("a queue")
}

/// The delay of a late request is the time from its own time to its turn. If the caller does not accept such a long
/// delay, the request is refused.
#[test]
fn a_late_request_has_its_turn_in_a_queue_by_its_own_time() {
    for (turn_ns, late_ns) in [(0, 300), (100, 300), (SECOND_NS, 300), (0, SECOND_NS), (0, SECOND_NS - 1)] {
        let mut states = [State::default(), State::default()];
        ask(&mut states[0], &bucket(1, 1, 5), take(2), NOW);
        ask(&mut states[1], &queue(), take(1), NOW - SECOND_NS + turn_ns);
        let delay_ns = turn_ns + late_ns;

        let [_, refused] = ask_bucket_and_queue(&mut states.clone(), late_ns, delay_ns - 1);
        assert_eq!((refused.reason, refused.retry_after.nanos()), (Reason::WaitTooLong, Some(1)));
        let [charged, queued] = ask_bucket_and_queue(&mut states, late_ns, delay_ns);
        assert!(charged.allowed && queued.allowed);
        assert_eq!(queued.delay_ns, delay_ns, "{late_ns} ns late, {turn_ns} ns before its turn");
    }
}

/// A force on a limit of 0 changes no state. The other hit of the late request counts in the window that contains the
/// request's own time, not in the window that starts at the newest time.
#[test]
fn a_late_force_on_a_limit_of_0_changes_no_time() {
    let nothing = bucket(0, 1, 0);
    let window = Quota::fixed_window(5, Duration::from_secs(1)).build().expect("a window");
    let mut states = [State::default(), State::default()];
    ask(&mut states[0], &bucket(1, 1, 5), take(2), NOW);
    let owing = states[0].clone();
    let force = Hit::new(1, &nothing, Op::Force { cost: 1 }, Binding::Enforce);
    let hits = [force, Hit::new(1, &window, take(1), Binding::Enforce)];
    let mut decisions = [Decision::default(); 2];
    let (now, newest) = (Time::from_nanos(NOW - 300), Time::from_nanos(NOW));
    decide_late(&mut states, &[0, 1], &hits, now, newest, &mut decisions);
    assert_eq!(states[0], owing);
    assert_eq!((decisions[1].remaining, decisions[1].reset_after_ns), (4, 300), "in the window that ends at NOW");
}

proptest! {
    #![proptest_config(cases(400))]

    /// The first hit charges a bucket that a quota with another `T` has charged before. Whether this hit is allowed
    /// depends on the time of the request, and not on the newest time. All other hits get the same decisions as without
    /// a newest time.
    #[test]
    fn only_the_conversion_of_debt_uses_the_newest_time(
        (before, after, burst, used) in (1..1000u64, 1..1000u64, 1..20u64, 1..20u64), late_ns in 0..=SECOND_NS,
        others in prop::collection::vec((quotas_with_extras(), prop::collection::vec(costs(), 0..3), costs()), 1..4),
    ) {
        let (before, after) = (bucket(before, 1, 20), bucket(after, 1, burst));
        let mut states = vec![State::default()];
        ask(&mut states[0], &before, take(used), NOW);
        let units = |state: &State, quota: &Quota, cost: Cost| cost.units(quota, ask_copy(state, quota, Op::Peek, NOW).remaining);
        let mut hits = vec![Hit::new(1, &after, take(1), Binding::Enforce)];
        for (quota, used, cost) in &others {
            let mut state = State::default();
            for cost in used {
                let cost = units(&state, quota, *cost);
                ask(&mut state, quota, take(cost), NOW);
            }
            hits.push(Hit::new(1, quota, take(units(&state, quota, *cost)), Binding::Enforce));
            states.push(state);
        }
        let state_of: Vec<usize> = (0..hits.len()).collect();
        let (now, newest) = (Time::from_nanos(NOW - late_ns), Time::from_nanos(NOW));
        let mut plain_states = states.clone();
        let mut plain = vec![Decision::default(); hits.len()];
        let mut late = plain.clone();
        let expected = decide(&mut plain_states, &state_of, &hits, now, &mut plain);
        let verdict = decide_late(&mut states, &state_of, &hits, now, newest, &mut late);

        prop_assert_eq!((verdict.allowed, verdict.retry_after, verdict.delay_ns, verdict.now),
            (expected.allowed, expected.retry_after, expected.delay_ns, now));
        prop_assert_eq!(&late[1..], &plain[1..]);
        prop_assert_eq!((late[0].allowed, late[0].retry_after), (plain[0].allowed, plain[0].retry_after));
        prop_assert_eq!(&states[1..], &plain_states[1..]);
        // Only the debt that is left at the newest time is converted to the `T` of the charge. The debt that is paid
        // before that time is not converted.
        if verdict.allowed {
            prop_assert_eq!(states[0].expires_at(&after), NOW + (used + 1) * after.interval_ns());
        }
    }
}
