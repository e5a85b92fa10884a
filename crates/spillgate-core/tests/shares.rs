//! The share of a quota that each of several servers may admit, if each server counts by itself.
//!
//! The tests check the table in the documentation of `Quota::share`, the sum of all shares, and extreme quotas. The
//! last test is about `Quota::with_limit`.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::support::{algorithms, ask, cases, quotas_with_extras, take};
use proptest::prelude::*;
use spillgate_core::{
    Algorithm, Anchor, Denied, MAX_UNITS, OnStoreFailure, Op, OpKind, Quota, QuotaBuilder, State, Wait,
};

const SECOND: Duration = Duration::from_secs(1);
const MAX_SPAN_NS: u64 = 1 << 62;

fn built(builder: QuotaBuilder) -> Quota {
    builder.build().expect("valid")
}

fn share(quota: &Quota, nodes: u32) -> Quota {
    quota.share(NonZeroU32::new(nodes).expect("at least one node"))
}

#[test]
fn shares_are_those_of_the_table() {
    let bucket = |limit, burst| built(Quota::token_bucket(limit, SECOND).burst(burst));
    let share_of = |quota: &Quota, nodes| {
        let share = share(quota, nodes);
        (share.capacity(), share.interval_ns())
    };
    assert_eq!(share_of(&bucket(3, 10), 3), (3, 1_000_000_002), "T is multiplied by m");
    assert_eq!(share_of(&bucket(3, 10), 10), (1, 3_333_333_340));
    assert_eq!(share_of(&bucket(3, 10), 11), (1, 3_666_666_674), "at least one unit at once");
    let queue = |length| built(Quota::leaky_bucket(10, SECOND).queue(length));
    assert_eq!(share_of(&queue(7), 2), (4, 200_000_000), "three units that wait and the unit that is served");
    assert_eq!(share_of(&queue(7), 8), (1, 800_000_000), "no unit can wait");
    assert_eq!(share_of(&queue(0), 2), (1, 200_000_000));
    let windows = [
        Algorithm::FixedWindow(Anchor::Epoch),
        Algorithm::FixedWindow(Anchor::FirstHit),
        Algorithm::SlidingWindowLog,
        Algorithm::SlidingWindowCounter { segments: 1 },
        Algorithm::SlidingWindowCounter { segments: 10 },
    ];
    for algorithm in windows {
        let quota = built(QuotaBuilder::new(algorithm, 10, SECOND));
        let share_of = |nodes| {
            let share = share(&quota, nodes);
            assert_eq!((share.algorithm(), share.limit()), (algorithm, share.capacity()));
            assert_eq!(share.interval_ns() * (quota.window_ns() / quota.interval_ns()), share.window_ns());
            (share.limit(), share.window_ns() / 1_000_000)
        };
        assert_eq!([1, 2, 3, 10].map(share_of), [(10, 1000), (5, 1000), (3, 1000), (1, 1000)], "{algorithm:?}");
        assert_eq!([11, 20, 21, 101].map(share_of), [(1, 2000), (1, 2000), (1, 3000), (1, 11_000)], "{algorithm:?}");
    }
    let concurrency = built(Quota::concurrency(10).lease(SECOND));
    assert_eq!([1, 3, 10, 11].map(|nodes| share(&concurrency, nodes).capacity()), [10, 3, 1, 0]);
}

#[test]
fn a_share_keeps_everything_except_amounts() {
    let quota = Quota::fixed_window(9, SECOND).soft_ppm(500_000).denied(Denied::Charged).penalty(SECOND * 5);
    let quota = built(quota.on_store_failure(OnStoreFailure::Deny));
    let share = share(&quota, 4);
    assert_eq!((share.capacity(), share.hard_capacity()), (2, 3), "the hard capacity is still 1.5 times the capacity");
    assert_eq!((share.denied(), share.penalty_ns()), (Denied::Charged, 5_000_000_000));
    assert_eq!(share.on_store_failure(), OnStoreFailure::Deny);
    let concurrency = built(Quota::concurrency(9).lease(SECOND * 7));
    assert_eq!(concurrency.share(NonZeroU32::new(2).expect("2 is not 0")).lease_ns(), 7_000_000_000);
}

#[test]
fn the_share_of_a_limit_of_0_is_0() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::SlidingWindowLog, Algorithm::LeakyBucket] {
        let none = built(QuotaBuilder::new(algorithm, 0, SECOND));
        assert_eq!(share(&none, 7), none);
    }
}

#[test]
fn a_longer_window_has_an_identity_of_its_own() {
    let minute = built(Quota::fixed_window(2, Duration::from_secs(60)));
    let two_minutes = built(Quota::fixed_window(100, Duration::from_secs(120)));
    let (longer, same) = (share(&minute, 4), share(&minute, 2));
    assert_eq!((longer.window_ns(), share(&two_minutes, 4).window_ns()), (120_000_000_000, 120_000_000_000));
    assert_ne!(longer.identity(), share(&two_minutes, 4).identity(), "these two shares must not count in one state");
    assert_ne!(longer.identity(), minute.identity());
    assert_eq!(same.identity(), minute.identity());
    assert_eq!(share(&two_minutes, 4).identity(), two_minutes.identity());
    let bucket = built(Quota::per_second(5));
    assert_eq!(
        share(&bucket, 50).identity(),
        bucket.identity(),
        "buckets with different T share a state, because the debt is converted"
    );
}

#[test]
fn shares_beyond_the_bounds_of_a_quota_are_0() {
    let most = u32::MAX;
    let year = Duration::from_secs(365 * 86_400);
    for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket, Algorithm::SlidingWindowLog] {
        let quota = built(QuotaBuilder::new(algorithm, 1, year));
        assert_eq!(share(&quota, most).capacity(), 0);
        let refused = ask(&mut State::default(), &share(&quota, most), take(1), 5);
        assert_eq!((refused.allowed, refused.retry_after), (false, Wait::Never));
    }
    // The time between two units and the window have a longest possible length. A share that needs exactly this length
    // admits one unit, and a share that needs more has a limit of 0.
    let at_most = |ns: u64, nodes| share(&built(Quota::token_bucket(1, Duration::from_nanos(ns))), nodes).capacity();
    assert_eq!([at_most(MAX_SPAN_NS / 4, 2), at_most(MAX_SPAN_NS / 4 + 1, 2)], [1, 0]);
    let soft = built(Quota::token_bucket(1, Duration::from_nanos(MAX_SPAN_NS / 8)).soft_ppm(1_000_000));
    assert_eq!(
        (share(&soft, 2).hard_capacity(), share(&soft, 4).hard_capacity()),
        (2, 1),
        "the hard capacity is reduced before the capacity"
    );
    let window = |ns: u64| share(&built(Quota::fixed_window(1, Duration::from_nanos(ns))), 2).capacity();
    assert_eq!([window(MAX_SPAN_NS / 2), window(MAX_SPAN_NS / 2 + 1)], [1, 0]);
}

proptest! {
    #![proptest_config(cases(500))]

    /// In the long run, all shares together admit no more than the quota. In a single instant, they admit at most the
    /// capacity of the quota, or one unit for each server if that is more. In a queue, each server also admits the unit
    /// that is being served.
    #[test]
    fn shares_sum_to_no_more_than_the_quota(quota in quotas_with_extras(), nodes in prop_oneof![1..=9u32, 1..=5_000u32]) {
        let share = share(&quota, nodes);
        let (nodes, wide) = (u128::from(nodes), u128::from);
        let served = if quota.algorithm() == Algorithm::LeakyBucket { nodes } else { 0 };
        prop_assert!(nodes * wide(share.capacity()) <= wide(quota.capacity()).max(nodes) + served);
        if share.limit() == 0 {
            // The limit is 0, because the share would be less than one unit in 73 years.
            prop_assert!(nodes * wide(quota.window_ns()) > wide(MAX_SPAN_NS / 2));
        } else if matches!(quota.algorithm(), Algorithm::TokenBucket | Algorithm::LeakyBucket) {
            prop_assert_eq!(wide(share.interval_ns()), nodes * wide(quota.interval_ns()));
        } else {
            // Together, the shares have at most the rate of the quota, for the soft limit and for the hard limit.
            for (of_share, of_quota) in
                [(share.capacity(), quota.capacity()), (share.hard_capacity(), quota.hard_capacity())]
            {
                let (shares, whole) = (nodes * wide(of_share), wide(of_quota));
                prop_assert!(shares * wide(quota.window_ns()) <= whole * wide(share.window_ns()));
            }
        }
    }

    /// Whatever the numbers are, a share stays within the bounds that `QuotaBuilder` sets for every quota, and every
    /// operation under the share gets an answer.
    #[test]
    fn any_share_of_any_quota_answers(
        algorithm in prop_oneof![4 => algorithms(), 1 => Just(Algorithm::Concurrency)],
        limit in prop_oneof![0..=9u64, Just(65_536), Just(MAX_UNITS)],
        window_ns in prop_oneof![1..100u64, Just(128 * 1_000_000_000), Just(MAX_SPAN_NS)],
        nodes in prop_oneof![1..=9u32, any::<u32>().prop_map(|n| n.max(1)), Just(u32::MAX)],
        soft_ppm in prop_oneof![Just(0), Just(500_000), Just(u32::MAX)],
        now in prop_oneof![Just(0), Just((1 << 63) - 1)],
        costs in prop::collection::vec(prop_oneof![0..=3u64, Just(u64::MAX)], 1..10),
    ) {
        let builder = QuotaBuilder::new(algorithm, limit, Duration::from_nanos(window_ns)).soft_ppm(soft_ppm);
        let Ok(quota) = builder.build() else { return Ok(()) };
        let share = share(&quota, nodes);
        prop_assert!(share.capacity() <= quota.capacity() && share.hard_capacity() <= quota.hard_capacity());
        prop_assert!(share.capacity() <= share.hard_capacity());
        prop_assert!(share.window_ns() <= MAX_SPAN_NS);
        if matches!(algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket) {
            let depth = u128::from(share.hard_capacity()) * u128::from(share.interval_ns());
            prop_assert!(depth * 2 <= u128::from(MAX_SPAN_NS));
        }
        let mut state = State::default();
        for cost in costs {
            let ops = [take(cost), Op::Force { cost }, Op::Peek, Op::Refund { cost, receipt: None }];
            for op in ops.into_iter().filter(|op| op.kind() != OpKind::Force || quota.supports(OpKind::Force)) {
                let decision = ask(&mut state, &share, op, now);
                prop_assert!(decision.remaining <= decision.limit);
            }
        }
    }
}

proptest! {
    #[test]
    fn a_quota_with_its_own_numbers_is_the_same_quota(quota in quotas_with_extras()) {
        let is_bucket = quota.algorithm() == Algorithm::TokenBucket;
        let burst = is_bucket.then_some(quota.capacity()).filter(|burst| *burst > 0);
        prop_assert_eq!(quota.with_limit(quota.limit(), burst), Ok(quota));
    }
}
