//! If a log has only whole seconds, the replay computes a different burst for a caller. These tests check how large the
//! difference can be.

use proptest::prelude::*;
use spillgate::Quota;
use spillgate::insight::{LimitInsight, Options, Take};
use spillgate::{Clock as _, Limiter, ManualClock, MemoryOptions, MemoryStore, Time};

const BEGIN_NS: u64 = 1_772_366_400_000_000_000;

/// Returns the burst that one caller needs with requests at these times, if no request is a retry.
fn burst_needed(quota: &Quota, times_ms: &[u64]) -> f64 {
    let clock = ManualClock::at(Time::from_nanos(BEGIN_NS));
    let limiter = Limiter::with_clock(MemoryStore::new(MemoryOptions::default()), clock.clone());
    let insight = LimitInsight::new(quota, Options::default(), clock.now());
    for ms in times_ms {
        clock.set(Time::from_nanos(BEGIN_NS + ms * 1_000_000));
        let decision = limiter.take_now(quota, 1_u64, 1);
        insight.count(clock.now(), limiter.hit(quota, 1_u64, 1).key, &Take::of(1, &decision));
    }
    let report = insight.read(clock.now()).report();
    report.spans[2].burst_needed.and_then(|needed| needed.highest.at_most).expect("the caller has asked")
}

proptest! {
    #[test]
    fn whole_seconds_change_a_burst_needed_by_the_rate_of_one_second_at_most(
        limit in 1_u64..2_000,
        window_s in 1_u64..100,
        algorithm in 0_usize..4,
        gaps_ms in prop::collection::vec(prop_oneof![0_u64..50, 0_u64..3_000, 0_u64..20_000], 1..60),
    ) {
        let window = std::time::Duration::from_secs(window_s);
        let quota = [Quota::token_bucket, Quota::fixed_window, Quota::sliding_window_log, Quota::leaky_bucket][algorithm](limit, window);
        let Ok(quota) = quota.build() else { return Ok(()) };
        let mut now_ms = 0;
        let exact: Vec<u64> = gaps_ms.iter().map(|gap| { now_ms += gap; now_ms }).collect();
        let cut: Vec<u64> = exact.iter().map(|ms| ms / 1_000 * 1_000).collect();
        // The replay says that a burst can be wrong by this number of units.
        let error = (limit as f64 / window_s as f64).ceil();
        let (exact, cut) = (burst_needed(&quota, &exact), burst_needed(&quota, &cut));
        prop_assert!((exact - cut).abs() <= error, "{exact} and {cut}, at most {error}");
    }
}
