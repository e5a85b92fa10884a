//! Tests of insight with clocks that are set back, and with stores that have clocks of their own.

use std::time::Duration;

use spillgate_insight::{LimitInsight, Options, Report, Take, Verdict};
use spillgate_limiter::{Decision, Quota, Time};
use spillgate_testkit::Random;

use super::SECOND;
use super::traffic::{Pattern, Reaction, plan, run};
use super::verdicts::{at, insight};

#[test]
fn the_counting_begins_again_if_the_clock_is_set_back() {
    for back_secs in [180.0, 1800.0, 28_800.0] {
        let (limit, count) = insight(Quota::token_bucket(10, SECOND));
        // Twenty callers before the clock is set back, and two after it. The two are in different parts of the sample.
        for second in 0..300 {
            (0..20).for_each(|caller| count(&limit, 30_000.0 + f64::from(second), caller, 5, Decision::allow(10, 5)));
        }
        let begin = 30_300.0 - back_secs;
        for second in 0..300 {
            (0..2).for_each(|caller| count(&limit, begin + f64::from(second), caller, 5, Decision::allow(10, 5)));
        }
        let reading = limit.read(at(begin + 300.0));
        let report = reading.report();
        assert_eq!(reading.since_ns, at(begin).as_nanos(), "{back_secs}");
        assert_eq!((report.spans[2].counts.requests, report.spans[2].callers.asked.value), (600, 2.0), "{back_secs}");
        assert_eq!(report.spans[2].burst_needed.map(|burst| burst.highest.at_most), Some(Some(5.0)), "{back_secs}");
        let top = &report.top_allowed;
        assert!(top.callers.len() == 2 && top.units <= 3000 && top.units >= 1500, "{back_secs}: {top:?}");
        assert_eq!(report.verdict, Verdict::Effective, "{back_secs}: {}", report.reason);
    }
}

#[test]
fn a_reading_erases_nothing() {
    let (limit, count) = insight(Quota::token_bucket(10, SECOND));
    (0..20).for_each(|caller| count(&limit, 5_000.0, caller, 1, Decision::allow(10, 9)));
    for secs in [5_001.0, 4_000.0, 0.0, 4_999.0] {
        let reading = limit.read(at(secs));
        assert_eq!(reading.now_ns, at(secs.max(5_000.0)).as_nanos());
        assert_eq!((reading.since_ns, reading.spans[0].counts.requests), (at(0.0).as_nanos(), 20), "{secs}");
        assert_eq!(reading.spans[0].sampled.callers.len(), 20, "{secs}");
    }
}

#[test]
fn a_take_can_be_late_by_two_minutes() {
    let (limit, count) = insight(Quota::token_bucket(10, SECOND));
    for second in 0..300 {
        count(&limit, f64::from(second), 1, 1, Decision::allow(10, 9));
        count(&limit, f64::from(second - 120).max(0.0), 2, 1, Decision::allow(10, 9));
    }
    let reading = limit.read(at(300.0));
    assert_eq!((reading.since_ns, reading.spans[2].counts.requests), (at(0.0).as_nanos(), 600));
    count(&limit, 178.0, 3, 1, Decision::allow(10, 9));
    assert_eq!(limit.read(at(178.0)).spans[2].counts.requests, 1, "the clock was set back");
}

#[test]
fn threads_that_had_no_request_for_long_notice_a_clock_that_was_set_back() {
    let (limit, count) = insight(Quota::token_bucket(10, SECOND));
    std::thread::scope(|scope| {
        scope.spawn(|| (0..20).for_each(|caller| count(&limit, 30_000.0, caller, 1, Decision::allow(10, 9))));
    });
    count(&limit, 600.0, 1, 1, Decision::allow(10, 9));
    count(&limit, 601.0, 1, 1, Decision::allow(10, 9));
    let reading = limit.read(at(602.0));
    assert_eq!(reading.now_ns, at(602.0).as_nanos());
    assert!(reading.spans[2].counts.requests <= 2 && reading.spans[2].sampled.callers.len() == 1, "{reading:?}");
}

/// Runs traffic on a store whose clock is `ahead_secs` ahead of the program's clock. In every `local_every`th second, a
/// local store decides instead, with the program's clock. Returns the report and the number of requests.
fn played_with_skew(quota: &Quota, pattern: &Pattern, secs: u64, ahead_secs: i64, local_every: u64) -> (Report, u64) {
    let (mut random, mut requests) = (Random(3), 0);
    let plan = plan(quota, &vec![pattern.clone(); 20], 1, secs, &mut random);
    let program = |store: Time| Time::from_nanos(store.as_nanos().saturating_add_signed(-ahead_secs * 1_000_000_000));
    let insight = LimitInsight::new(quota, Options::default(), program(at(0.0)));
    run(quota, &plan, Reaction::GivesUp, &mut random, |event| {
        requests += 1;
        let now = program(event.now);
        let is_local = (event.now.as_nanos() / 1_000_000_000).is_multiple_of(local_every);
        let decided = if is_local { now } else { event.now };
        insight.count(now, event.key, &Take::of(1, &event.decision).decided_at(decided));
    });
    (insight.read(program(at(secs as f64))).report(), requests)
}

#[test]
fn a_store_with_another_clock_changes_no_figure_and_no_verdict() {
    for quota in [
        Quota::fixed_window(10, 20 * SECOND),
        Quota::token_bucket(10, 20 * SECOND),
        Quota::sliding_window_log(10, 20 * SECOND),
    ] {
        let quota = quota.build().expect("the quota is valid");
        for (pattern, secs, verdict) in [
            (Pattern::Steady(0.1), 3550, Verdict::NeverBinding),
            (Pattern::Bursts { requests: 20, pause: 3.0 }, 700, Verdict::Bursts),
        ] {
            let (same, _) = played_with_skew(&quota, &pattern, secs, 0, u64::MAX);
            assert_eq!(same.verdict, verdict, "{}", same.reason);
            for ahead_secs in [-3600, -60, -7, 7, 60, 3600] {
                let (report, requests) = played_with_skew(&quota, &pattern, secs, ahead_secs, u64::MAX);
                assert_eq!((report.verdict, &report.suggestion), (verdict, &same.suggestion), "{}", report.reason);
                let figures = |report: &Report| {
                    let hour = &report.spans[2];
                    (hour.counts, hour.callers, hour.burst_needed, hour.window_count)
                };
                assert_eq!(figures(&report), figures(&same), "{ahead_secs}");
                assert_eq!(report.spans[2].counts.requests, requests);
            }
        }
    }
}

#[test]
fn decisions_of_a_store_and_of_a_local_store_in_turn_lose_nothing() {
    let quota = Quota::fixed_window(10, 20 * SECOND).build().expect("the quota is valid");
    for ahead_secs in [-3600, -60, -7, 0, 7, 60, 3600] {
        for (local_every, pattern) in [(2, Pattern::Steady(0.1)), (5, Pattern::Bursts { requests: 20, pause: 3.0 })] {
            let (report, requests) = played_with_skew(&quota, &pattern, 700, ahead_secs, local_every);
            let hour = &report.spans[2];
            assert_eq!((hour.counts.requests, hour.callers.asked.value), (requests, 20.0), "{ahead_secs}");
            let allowed: &[Verdict] = match pattern {
                Pattern::Steady(_) => &[Verdict::TooEarly],
                _ => &[Verdict::Bursts, Verdict::Unclear],
            };
            assert!(allowed.contains(&report.verdict), "{ahead_secs}: {:?} {}", report.verdict, report.reason);
            assert_eq!(report.watched_ns, 700_000_000_000, "{ahead_secs}");
        }
    }
}

#[test]
fn a_clock_that_was_ahead_once_does_no_lasting_harm() {
    let (quota, begin) = (Quota::fixed_window(10, SECOND).constant(), at(0.0));
    let insight = LimitInsight::new(&quota, Options::default(), begin);
    let count = |now| insight.count(now, 7, &Take::of(1, &Decision::allow(10, 5)));
    let years = at(0.0).after(Duration::from_secs(4 * 365 * 86_400));
    (0..3).for_each(|_| count(years));
    for secs in 0..20 {
        count(at(0.0).after(Duration::from_secs(secs)));
    }
    let reading = insight.read(at(0.0).after(Duration::from_secs(20)));
    for span in &reading.spans {
        assert_eq!((span.counts.requests, span.sampled.callers.len()), (20, 1));
        assert_eq!(span.sampled.callers[0].burst, (1, Some(1)));
    }
    assert_eq!(reading.top_allowed.units, 20);
}
