//! Tests of the figures of a reading: callers, counts, top callers, and merged readings.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use spillgate_insight::{CallerName, LimitInsight, Options, Reading, Take};
use spillgate_limiter::{Decision, KeyHasher, Quota, Reason, Time, Wait};
use spillgate_testkit::Random;

use super::is_all;
use super::traffic::BEGIN_NS;

/// The decision of a limit that allows everything, or refuses everything.
fn decision(allowed: bool) -> Decision {
    if allowed { Decision::allow(10, 5) } else { Decision::refuse(10, Reason::Exceeded, Wait::After(1_000_000)) }
}

/// Returns hashes of keys as a store gets them: well mixed, and unknown to callers.
fn keys(random: &mut Random) -> impl Fn(u64) -> u128 + use<> {
    let secret = random.below(u64::MAX);
    let hasher = KeyHasher::with_secret((u128::from(secret) << 64 | u128::from(!secret)).to_le_bytes());
    move |caller| hasher.start().key(&caller).finish()
}

#[test]
fn distinct_callers_are_estimated_within_the_stated_error() {
    let (quota, begin) = (Quota::per_second(10).constant(), Time::from_nanos(BEGIN_NS));
    let (mut runs, mut within_two, mut worst) = (0, 0, 0.0_f64);
    for seed in 1..=if is_all() { 40 } else { 6 } {
        let mut random = Random(seed);
        let key = keys(&mut random);
        for (callers, zipf) in [(3_000, false), (50_000, false), (20_000, true)] {
            let insight = LimitInsight::new(&quota, Options { callers: 1024, ..Options::default() }, begin);
            let mut known = HashSet::new();
            for request in 0..4 * callers {
                let uniform = random.below(callers);
                // The squares of random numbers come near a Zipf distribution.
                let caller = if zipf { uniform * uniform / callers } else { uniform };
                known.insert(caller);
                let refused = caller % 4 == 0;
                let now = begin.after(Duration::from_millis(request / 20));
                insight.count(now, key(caller), &Take::of(1, &decision(!refused)));
            }
            let report = insight.read(begin.after(Duration::from_secs(4 * callers / 20_000))).report();
            let hour = report.spans[2].callers;
            let refused = known.iter().filter(|caller| *caller % 4 == 0).count();
            for (estimate, truth) in [(hour.asked, known.len()), (hour.refused, refused)] {
                let error = (estimate.value / truth as f64 - 1.0).abs() / estimate.relative_error.max(1e-9);
                assert!(estimate.relative_error > 0.0 && estimate.relative_error < 0.08, "{estimate:?}");
                (runs, within_two, worst) = (runs + 1, within_two + usize::from(error <= 2.0), worst.max(error));
            }
        }
    }
    println!("| estimates of callers within twice their standard error, 95 % expected | {within_two} of {runs} |");
    println!("| largest error of an estimate, in standard errors | {worst:.2} |");
    assert!(within_two * 100 >= runs * 90 && worst < 5.0, "{within_two} of {runs}, {worst}");
}

#[test]
fn a_reading_at_the_last_nanosecond_of_an_hour_has_this_hour_only() {
    const SECOND_NS: u64 = 1_000_000_000;
    let begin_ns = BEGIN_NS - BEGIN_NS % (3_600 * SECOND_NS);
    let quota = Quota::per_second(10).constant();
    let insight = LimitInsight::new(&quota, Options::default(), Time::from_nanos(begin_ns));
    for second in 1..=3 * 3_600 {
        let end_ns = begin_ns + second * SECOND_NS;
        insight.count(Time::from_nanos(end_ns - SECOND_NS), 7, &Take::of(1, &decision(true)));
        if second % 3_600 == 0 {
            let reading = insight.read(Time::from_nanos(end_ns - 1));
            assert_eq!(reading.spans.each_ref().map(|span| span.counts.requests), [60, 600, 3_600]);
        }
    }
}

#[test]
fn few_callers_are_counted_exactly_in_each_span() {
    let (quota, begin) = (Quota::per_second(10).constant(), Time::from_nanos(BEGIN_NS));
    let insight = LimitInsight::new(&quota, Options::default(), begin);
    let key = keys(&mut Random(7));
    for (caller, secs) in [(1, 0), (2, 1800), (3, 3500), (4, 3595), (4, 3596)] {
        insight.count(begin.after(Duration::from_secs(secs)), key(caller), &Take::of(2, &decision(caller != 4)));
    }
    let report = insight.read(begin.after(Duration::from_secs(3599))).report();
    let figures = report.spans.each_ref().map(|span| {
        assert_eq!(span.callers.asked.relative_error, 0.0);
        (span.callers.asked.value as u64, span.callers.refused.value as u64, span.counts.requests)
    });
    assert_eq!(figures, [(1, 1, 2), (2, 1, 3), (4, 1, 5)]);
    let later = insight.read(begin.after(Duration::from_secs(7195))).report();
    assert_eq!(later.spans.each_ref().map(|span| span.callers.asked.value as u64), [0, 0, 1]);
    assert_eq!(later.spans[0].counts.requests, 0);
}

#[test]
fn every_caller_with_more_than_a_share_of_the_units_is_listed_and_its_count_is_close() {
    const KEPT: u64 = 48;
    let (quota, begin) = (Quota::per_second(10).constant(), Time::from_nanos(BEGIN_NS));
    let (mut listed, mut largest_missing) = (0, 0.0_f64);
    for seed in 1..=if is_all() { 30 } else { 5 } {
        let mut random = Random(seed);
        let key = keys(&mut random);
        for skew in [1, 2, 3] {
            let insight = LimitInsight::new(&quota, Options::default(), begin);
            let mut units: HashMap<u64, u64> = HashMap::new();
            for _ in 0..200_000 {
                // The larger the skew, the more requests the first callers send.
                let caller = (0..skew).map(|_| random.below(100_000)).fold(100_000, |a, b| a * b / 100_000);
                let cost = 1 + random.below(3);
                *units.entry(caller).or_default() += cost;
                insight.count(begin, key(caller), &Take::of(cost, &decision(true)));
            }
            let top = insight.read(begin).top_allowed;
            let all: u64 = units.values().sum();
            assert_eq!(top.units, all);
            assert!(top.missing <= all / KEPT, "{} of {all} are missing", top.missing);
            largest_missing = largest_missing.max(top.missing as f64 / all as f64);
            let found: HashMap<u64, u64> = top.callers.iter().map(|caller| (caller.id.0, caller.units)).collect();
            for (caller, units) in &units {
                let counted = found.get(&(key(*caller) as u64)).copied();
                assert!(counted.is_some() || *units <= all / KEPT, "a caller with {units} of {all} is not listed");
                if let Some(counted) = counted {
                    assert!(counted <= *units && *units <= counted + top.missing, "{counted} of {units}");
                    listed += 1;
                }
            }
        }
    }
    println!("| callers that were listed with a count that is close enough | {listed} of {listed} |");
    println!("| largest error of a count, as a part of all units (at most 1/48 = 0.0208) | {largest_missing:.4} |");
}

#[test]
fn units_are_those_of_the_current_and_the_previous_half_hour() {
    let (quota, begin) = (Quota::per_second(10).constant(), Time::from_nanos(BEGIN_NS));
    let insight = LimitInsight::new(&quota, Options { names: true, ..Options::default() }, begin);
    let key = keys(&mut Random(3));
    let count = |caller: u64, units, at: Time| {
        let name = || CallerName::of(["user=", if caller == 1 { "old" } else { "new" }]);
        insight.count_named(at, key(caller), &Take::of(units, &decision(false)), name);
    };
    count(1, 1_000, begin);
    let half = begin.after(Duration::from_secs(1800));
    count(2, 20, half);
    count(1, 7, half);
    let shown = |secs| {
        let top = insight.read(half.after(Duration::from_secs(secs))).top_refused;
        let shown: Vec<_> = top.callers.iter().map(|caller| (caller.name.clone(), caller.units)).collect();
        (top.since_ns, top.units, shown)
    };
    let [old, new] = ["user=old", "user=new"].map(|name| Some(name.to_owned()));
    // The half hour of `half` has begun 50 s before it.
    assert_eq!(shown(1700), (BEGIN_NS, 1_027, vec![(old.clone(), 1_007), (new.clone(), 20)]), "nothing is halved");
    let half_ns = half.as_nanos() - 50_000_000_000;
    assert_eq!(shown(1750), (half_ns, 27, vec![(new, 20), (old, 7)]), "the first half hour is gone");
    assert_eq!(shown(3550), (half_ns + 1_800_000_000_000, 0, vec![]), "both are gone");
}

#[test]
fn a_caller_that_is_refused_in_shadow_mode_has_an_exact_burst() {
    let (quota, begin) = (Quota::per_second(10).burst(5).constant(), Time::from_nanos(BEGIN_NS));
    let insight = LimitInsight::new(&quota, Options::default(), begin);
    for number in 0..9 {
        let take = Take::of(1, &decision(number < 5)).of_request(true);
        insight.count(begin, 7, &take);
    }
    assert_eq!(
        insight.read(begin).spans[2].sampled.callers[0].burst,
        (9, Some(9)),
        "no caller asks again after it has passed"
    );
}

#[test]
fn threads_lose_no_count() {
    let (quota, begin) = (Quota::per_second(10).constant(), Time::from_nanos(BEGIN_NS));
    let insight = LimitInsight::new(&quota, Options::default(), begin);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let insight = &insight;
            scope.spawn(move || {
                let (mut random, key) = (Random(thread + 1), keys(&mut Random(9)));
                for request in 0..20_000 {
                    // The steps are short, because threads are not equally fast. A very late time would look like a
                    // clock that was set back.
                    let now = begin.after(Duration::from_micros(200 * request));
                    insight.count(now, key(random.below(50)), &Take::of(2, &decision(request % 2 == 0)));
                }
            });
        }
    });
    let reading = insight.read(begin.after(Duration::from_secs(20)));
    let counts = reading.spans[2].counts;
    assert_eq!((counts.requests, counts.refused_requests), (80_000, 40_000));
    assert_eq!((counts.units, counts.refused_units), (160_000, 80_000));
    assert_eq!(reading.top_allowed.units + reading.top_refused.units, 160_000);
    assert_eq!(reading.spans[2].sampled.callers.len(), 50);
}

#[test]
fn readings_of_servers_merge_and_survive_json() {
    let (quota, begin) = (Quota::per_second(10).burst(5).constant(), Time::from_nanos(BEGIN_NS));
    let mut readings = [3, 4].map(|requests| {
        let insight = LimitInsight::new(&quota, Options::default(), begin);
        for _ in 0..requests {
            insight.count(begin, 7, &Take::of(1, &decision(true)));
        }
        insight.count(begin, 100 + requests, &Take::of(1, &decision(false)));
        insight.read(begin)
    });
    let json = serde_json::to_string(&readings[1]).expect("a reading becomes JSON");
    let other: Reading = serde_json::from_str(&json).expect("a reading can be read again");
    readings[0].merge(&other);
    let report = readings[0].report();
    let hour = &report.spans[2];
    assert_eq!((hour.counts.requests, hour.counts.refused_requests, hour.callers.asked.value), (9, 2, 3.0));
    let merged = readings[0].spans[2].sampled.callers.iter().find(|caller| caller.id.0 == 7).expect("it is there");
    assert_eq!(merged.burst, (4, None), "at least that of one server. Two debts that share one rate do not add up");
    assert_eq!(merged.window, Some((4, 7)), "counts add up");
    assert_eq!(report.top_allowed.callers[0].units, 7);
    assert!(hour.waits.is_some_and(|waits| waits.median_ns >= 1_000_000));
}

#[test]
fn waits_are_those_of_a_reading_and_reading_them_changes_no_later_reading() {
    let (quota, begin) = (Quota::per_second(10).constant(), Time::from_nanos(BEGIN_NS));
    let [often, never] = [(); 2].map(|()| LimitInsight::new(&quota, Options::default(), begin));
    let mut random = Random(5);
    for step in 0..2_000 {
        let now = begin.after(Duration::from_millis(300 * step));
        let refused = Decision::refuse(10, Reason::Exceeded, Wait::After(1_000_000 << random.below(12)));
        // There are pauses of more than a minute, after which no wait is left.
        if step % 700 < 400 {
            [&often, &never].iter().for_each(|insight| insight.count(now, 7, &Take::of(1, &refused)));
        }
        if step % 7 == 0 {
            let waits = often.waits(now);
            let minute = &often.read(now).spans[0];
            assert_eq!(waits, minute.waits, "step {step}");
            assert_eq!(waits.quantile_ns(0.9).is_some(), minute.counts.refused_requests > 0, "step {step}");
        }
        if step % 500 == 499 {
            assert_eq!(often.read(now).spans.map(|span| span.waits), never.read(now).spans.map(|span| span.waits));
        }
    }
}
