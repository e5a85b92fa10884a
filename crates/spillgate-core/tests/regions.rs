//! One limit in several regions: the quota of a region, the greatest debt of a shared bucket, the share that a region
//! always has, and spans.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::support::{ask, cases, quotas_with_extras, take};
use proptest::prelude::*;
use spillgate_core::{
    AcrossRegions, Algorithm, Anchor, Denied, Op, Quota, QuotaBuilder, QuotaError, Regions, State, Time,
};

const SECOND: Duration = Duration::from_secs(1);
const NOW: u64 = 1_790_000_000_000_000_000;

fn built(builder: QuotaBuilder) -> Quota {
    builder.build().expect("valid")
}

fn regions(n: u8) -> Regions {
    Regions::new(n).expect("2 to 8")
}

fn shared(quota: &Quota, n: u8) -> Quota {
    quota.across(AcrossRegions::Shared(regions(n))).expect("it can be shared")
}

/// Returns the debt of the state at `NOW` in nanoseconds.
fn debt(state: &State) -> u64 {
    state.debt().map_or(0, |(paid_at, _)| paid_at.saturating_sub(NOW))
}

#[test]
fn only_plain_limits_are_shared() {
    let bucket = || Quota::token_bucket(10, SECOND);
    let refused = [
        (Quota::leaky_bucket(10, SECOND), "a queue"),
        (Quota::concurrency(10), "a concurrency limit"),
        (Quota::sliding_window_log(10, SECOND), "a sliding window log"),
        (Quota::sliding_window_counter(10, SECOND).segments(2), "a counter with several segments"),
        (Quota::fixed_window(10, SECOND).anchor(Anchor::FirstHit), "a window that begins at its first hit"),
        (bucket().soft_ppm(1), "a soft limit"),
        (bucket().penalty(SECOND), "a limit with a penalty"),
        (bucket().denied(Denied::Charged), "a limit whose refusals are charged"),
    ];
    for (builder, what) in refused {
        let error = built(builder).across(AcrossRegions::Shared(regions(2))).expect_err(what);
        assert_eq!(error, QuotaError::NotShared { what });
        assert!(error.to_string().ends_with("use across_regions: split or each"), "{error}");
    }
    for builder in [bucket(), Quota::fixed_window(10, SECOND), Quota::sliding_window_counter(10, SECOND)] {
        let quota = shared(&built(builder), 8);
        assert_eq!(quota.across_regions(), AcrossRegions::Shared(regions(8)));
    }
}

#[test]
fn split_is_the_share_of_a_region() {
    let quota = built(Quota::token_bucket(10, SECOND));
    let split = quota.across(AcrossRegions::Split(regions(3))).expect("it can be split");
    assert_eq!((split.capacity(), split.interval_ns()), (3, 300_000_000));
    assert_eq!(split.across_regions().as_str(), "split");
    let again = split.with_limit(split.limit(), Some(3)).expect("the same numbers");
    assert_eq!(
        (again.capacity(), again.interval_ns(), again.across_regions()),
        (3, 300_000_000, split.across_regions())
    );
    let permits = built(Quota::concurrency(3));
    assert_eq!(permits.across(AcrossRegions::Split(regions(3))).map(|share| share.capacity()), Ok(1));
    let error = permits.across(AcrossRegions::Split(regions(4))).expect_err("a region would have no permit");
    assert_eq!(error, QuotaError::NothingToSplit { limit: 3, regions: 4 });
    assert!(
        built(Quota::concurrency(0)).across(AcrossRegions::Split(regions(4))).is_ok(),
        "it refuses everything anyway"
    );
}

/// The greatest debt is (R*B + max(B, R)) * T + R * 5 s.
#[test]
fn the_greatest_debt_of_a_shared_bucket_is_that_of_its_regions() {
    for (burst, n, units) in [(10, 3, 40), (1, 2, 4), (2, 8, 24), (100, 8, 900)] {
        let alone = built(Quota::token_bucket(10, SECOND).burst(burst));
        let quota = shared(&alone, n);
        assert_eq!(quota.max_debt_ns(), units * 100_000_000 + u64::from(n) * 5_000_000_000);
        assert_eq!(alone.max_debt_ns(), 2 * burst * 100_000_000);
        assert_eq!(quota.identity(), alone.identity(), "a limit that is shared from now on keeps its counts");
        let mut state = State::default();
        for _ in 0..3 {
            let _ = ask(&mut state, &quota, Op::Force { cost: units + 50 * u64::from(n) }, NOW);
            assert_eq!(debt(&state), quota.max_debt_ns());
        }
        let mut words = Vec::new();
        state.encode(&mut words);
        assert_eq!(State::decode(&words).as_ref(), Some(&state));
        assert_eq!(state.pack(&quota).map(|packed| State::unpack(packed, &quota)).as_ref(), Some(&state));
        // The debt is paid by time alone, and is not cut before.
        let decision = ask(&mut state, &quota, take(1), NOW + quota.max_debt_ns() - burst * 100_000_000);
        assert!(!decision.allowed && debt(&state) == quota.max_debt_ns());
    }
}

/// The bound of the error message is the largest burst that works.
#[test]
fn too_deep_a_bucket_names_the_largest_burst() {
    let year = Duration::from_secs(31_536_000);
    let bucket = |burst| built(Quota::token_bucket(1, year).burst(burst));
    let across = AcrossRegions::Shared(regions(8));
    let Err(QuotaError::TooDeepForRegions { capacity, regions: 8 }) = bucket(30).across(across) else {
        panic!("480 years are too long");
    };
    assert!(bucket(capacity).across(across).is_ok() && bucket(capacity + 1).across(across).is_err());
    assert!(shared(&bucket(capacity), 8).max_debt_ns() <= 1 << 62);
    let long = built(Quota::token_bucket(1, year * 70).burst(1)).across(across).expect_err("no burst works");
    assert_eq!(long.to_string(), "a unit takes too long for a bucket that 8 regions share; shorten the window");
}

#[test]
fn a_region_has_a_guaranteed_share_of_a_bucket() {
    let quota = shared(&built(Quota::token_bucket(600, SECOND * 60)), 3);
    let burst = |cost| quota.guaranteed(cost).map(|share| share.capacity());
    assert_eq!(
        [0, 1, 3, 25, 26, 200, 201, 600, 601].map(burst),
        [None, Some(8), Some(24), Some(200), Some(200), Some(200), Some(201), Some(600), None,]
    );
    let few = shared(&built(Quota::token_bucket(5, SECOND)), 8);
    assert_eq!(few.guaranteed(1).map(|share| share.capacity()), Some(1), "at least one take");
    let shares = [1, 3, 600].map(|cost| quota.guaranteed(cost).expect("it has a share"));
    for share in &shares {
        assert_eq!(share.interval_ns(), 3 * quota.interval_ns());
        let same = |share: &Quota| (share.identity(), share.max_debt_ns(), share.debt_bits(), share.across_regions());
        assert_eq!(same(share), same(&shares[0]));
        assert_ne!(share.identity(), quota.identity());
    }
    assert_eq!(quota.guaranteed(1), shared(&built(Quota::token_bucket(600, SECOND * 60)), 3).guaranteed(1));
    let two = shared(&built(Quota::token_bucket(600, SECOND * 60)), 2).guaranteed(1).expect("it has a share");
    assert_eq!(two.identity(), shares[0].identity(), "a new region does not make the shares start anew");
    let windows = [Quota::fixed_window(10, SECOND), Quota::sliding_window_counter(10, SECOND)];
    assert!(windows.iter().all(|window| shared(&built(*window), 2).guaranteed(1).is_none()));
    assert!(built(Quota::token_bucket(10, SECOND)).guaranteed(1).is_none());
}

#[test]
fn a_span_is_the_window_or_a_period_in_which_a_bucket_refills() {
    let span = |quota: &Quota| quota.span(Time::from_nanos(NOW + 7));
    let window = span(&built(Quota::fixed_window(10, SECOND)));
    assert_eq!((window.start_ns, window.length_ns, window.end_ns()), (NOW, 1_000_000_000, NOW + 1_000_000_000));
    let length = |builder| span(&built(builder)).length_ns / 1_000_000_000;
    assert_eq!(length(Quota::sliding_window_counter(10, SECOND * 60)), 60);
    assert_eq!(length(Quota::token_bucket(10, SECOND)), 10, "at least 10 s");
    assert_eq!(length(Quota::token_bucket(10, SECOND).burst(1000)), 100, "B*T");
    assert_eq!(length(Quota::token_bucket(60, SECOND * 60).burst(1)), 60, "W");
    for at in [0, 1, NOW, Time::MAX.as_nanos()] {
        let span = built(Quota::token_bucket(10, SECOND)).span(Time::from_nanos(at));
        assert!(span.start_ns <= at && at < span.end_ns() && span.start_ns.is_multiple_of(span.length_ns));
    }
}

proptest! {
    #![proptest_config(cases(2000))]

    /// Whatever the numbers are, the debts of a shared bucket and of its share stay within the bound of every debt, each
    /// operation gets an answer, and a local store decides as it does for a limit of one region.
    #[test]
    fn any_shared_quota_keeps_its_bounds(
        quota in quotas_with_extras(),
        n in 2..=8u8,
        cost in prop_oneof![1..=9u64, any::<u64>()],
        nodes in 1..9u32,
        now in prop_oneof![Just(0), Just(NOW), Just(Time::MAX.as_nanos())],
    ) {
        let Ok(shared) = quota.across(AcrossRegions::Shared(regions(n))) else { return Ok(()) };
        prop_assert_eq!(shared.with_limit(quota.limit(), None).map(|same| same.across_regions()), Ok(shared.across_regions()));
        let nodes = NonZeroU32::new(nodes).expect("not 0");
        prop_assert_eq!(&shared.share(nodes), &quota.share(nodes));
        for quota in [Some(shared.clone()), shared.guaranteed(cost), shared.guaranteed(1)].into_iter().flatten() {
            if quota.algorithm() == Algorithm::TokenBucket {
                prop_assert!(quota.max_debt_ns() <= 1 << 62 && quota.max_debt_ns() <= 1 << quota.debt_bits());
            }
            let mut state = State::default();
            for op in [take(cost), Op::Force { cost }, take(1), Op::Force { cost: u64::MAX }, Op::Refund { cost, receipt: None }] {
                let decision = ask(&mut state, &quota, op, now);
                prop_assert!(decision.remaining <= decision.limit);
                let owed = state.debt().map_or(0, |(paid_at, _)| paid_at.saturating_sub(now));
                prop_assert!(owed <= quota.max_debt_ns());
            }
        }
    }
}
