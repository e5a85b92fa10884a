//! Traffic for which a verdict or a suggestion was wrong, or easily could be.

use std::time::Duration;

use spillgate_insight::{LimitInsight, Options, Report, Take, Verdict, Who};
use spillgate_limiter::{Decision, Quota, QuotaBuilder, Reason, Time, Wait};
use spillgate_testkit::Random;

use super::cases::Case;
use super::traffic::{BEGIN_NS, Pattern, Reaction, plan, run};
use super::{Outcome, SECOND, check_ranges, check_suggestion, played};

fn case(quota: QuotaBuilder, callers: Vec<Pattern>, reaction: Reaction, secs: u64) -> Case {
    let quota = quota.build().expect("the quota is valid");
    Case { name: String::new(), quota, callers, cost: 1, reaction, secs, right: &[] }
}

fn judged(case: &Case) -> Outcome {
    let outcome = played(case, 1, 1);
    check_ranges(case, 1, &outcome, true);
    check_suggestion(case, 1, &outcome.report);
    outcome
}

fn refusal(reason: Reason) -> Decision {
    Decision::refuse(10, reason, Wait::After(1_000_000))
}

/// Returns an insight into `quota`, and the function `count(insight, secs, caller, units, decision)`, which counts a
/// take.
pub(crate) fn insight(quota: QuotaBuilder) -> (LimitInsight, impl Fn(&LimitInsight, f64, u64, u64, Decision)) {
    let quota = quota.build().expect("the quota is valid");
    let insight = LimitInsight::new(&quota, Options::default(), Time::from_nanos(BEGIN_NS));
    (insight, |insight, secs, caller, units, decision| {
        insight.count(at(secs), u128::from(caller), &Take::of(units, &decision));
    })
}

pub(crate) fn at(secs: f64) -> Time {
    Time::from_nanos(BEGIN_NS).after(Duration::from_secs_f64(secs))
}

pub(crate) fn report_at(insight: &LimitInsight, secs: f64) -> Report {
    insight.read(at(secs)).report()
}

#[test]
fn callers_near_the_rate_are_no_reason_to_lower_a_limit_with_a_large_burst() {
    let case = case(Quota::per_minute(30), vec![Pattern::Steady(0.95); 20], Reaction::Obeys, 630);
    let report = judged(&case).report;
    assert_eq!((report.verdict, report.suggestion), (Verdict::Effective, None), "{}", report.reason);
    // A queue is nearly empty too, if each request comes when the one before has left.
    let (queue, count) = insight(Quota::leaky_bucket(10, 20 * SECOND).queue(100));
    for request in 0..300 {
        (0..20).for_each(|caller| count(&queue, f64::from(request) * 2.1, caller, 1, Decision::allow(101, 100)));
    }
    let report = report_at(&queue, 630.0);
    assert_eq!((report.verdict, report.suggestion), (Verdict::Effective, None), "{}", report.reason);
}

#[test]
fn a_small_part_of_a_large_limit_is_not_rounded_to_zero() {
    let pattern = Pattern::Bursts { requests: 9, pause: 1111.0 };
    for quota in [Quota::per_minute(10_000), Quota::fixed_window(10_000, 60 * SECOND)] {
        let report = judged(&case(quota, vec![pattern.clone(); 20], Reaction::Obeys, 3700)).report;
        assert_eq!(report.verdict, Verdict::NeverBinding, "{}", report.reason);
        let limit = report.suggestion.expect("the numbers are known").limit;
        assert!((18..=40).contains(&limit), "{limit} is twice the highest count");
    }
}

#[test]
fn one_bursty_caller_of_many_is_no_reason_for_another_burst() {
    let once = Pattern::Bursts { requests: 16, pause: 30.0 };
    let callers = [vec![Pattern::Steady(0.19); 199], vec![once]].concat();
    let case = case(Quota::token_bucket(10, 20 * SECOND).burst(12), callers, Reaction::GivesUp, 1500);
    let report = judged(&case).report;
    assert_eq!((report.verdict, report.suggestion), (Verdict::Effective, None), "{}", report.reason);
}

#[test]
fn the_parts_of_an_effective_limit_are_all_named() {
    let bursts = Pattern::Bursts { requests: 16, pause: 8.0 };
    let callers =
        |rate| [vec![Pattern::Steady(0.2); 92], vec![Pattern::Steady(rate); 4], vec![bursts.clone(); 4]].concat();
    let seen = |rate| judged(&case(Quota::token_bucket(10, 20 * SECOND), callers(rate), Reaction::GivesUp, 900)).report;
    let report = seen(1.3);
    assert_eq!((report.verdict, report.who), (Verdict::Effective, Who::Few), "{}", report.reason);
    let expected = "Of the refused callers, 4 ask for more than the rate, 4 ask for too much at once. The others pass.";
    assert!(report.reason.ends_with(expected), "{}", report.reason);
    assert!(report.reason.contains("and 8 of 100 callers at least once."), "{}", report.reason);
    assert_eq!(report.spans[2].callers.refused.value, 8.0);
    // If they ask for more, a quarter of all units is refused.
    let report = seen(3.0);
    assert_eq!((report.verdict, report.who), (Verdict::AboveRate, Who::Few), "{}", report.reason);
}

#[test]
fn a_queue_stays_a_queue_and_callers_that_do_not_wait_are_distinguished_from_bursts() {
    let (queue, count) = insight(Quota::leaky_bucket(10, 20 * SECOND).queue(10));
    for request in 0..80 {
        let secs = f64::from(request) * 8.4;
        for caller in 0..20 {
            count(&queue, secs, caller, 1, Decision::allow(11, 10));
            count(&queue, secs, caller, 1, refusal(Reason::WaitTooLong));
        }
    }
    let report = report_at(&queue, 680.0);
    assert_eq!((report.verdict, report.suggestion), (Verdict::Unclear, None), "{}", report.reason);
    assert!(report.reason.contains("100 % of the refused requests had room in the queue"), "{}", report.reason);
    let steady = vec![Pattern::Steady(2.0); 20];
    let report = judged(&case(Quota::leaky_bucket(10, SECOND), steady, Reaction::GivesUp, 100)).report;
    assert!(report.suggestion.is_none_or(|suggestion| suggestion.burst.is_none()), "no bucket replaces a queue");
}

#[test]
fn the_suggested_rate_is_that_of_the_time_in_which_callers_asked() {
    let late = Pattern::During { rate: 2.86, from: 0.7, to: 1.0 };
    let quota = Quota::token_bucket(5, 10 * SECOND);
    let report = judged(&case(quota, vec![late; 20], Reaction::GivesUp, 900)).report;
    assert_eq!((report.verdict, report.who), (Verdict::AboveRate, Who::Many), "{}", report.reason);
    assert_eq!(report.suggestion.map(|suggestion| suggestion.limit), Some(15), "2.86 times 5, rounded up");
}

#[test]
fn a_rate_that_can_be_made_of_retries_is_not_suggested() {
    let case = case(Quota::token_bucket(10, 20 * SECOND), vec![Pattern::Steady(1.6); 20], Reaction::AtOnce, 700);
    let outcome = judged(&case);
    assert_eq!(outcome.report.suggestion, None, "{}", outcome.report.reason);
    let highest = outcome.reading.spans[2].sampled.callers.iter().filter_map(|caller| caller.rate).fold(0.0, f64::max);
    assert!(highest > 4.0 * 0.5, "retries made {highest} units per second of 0.8");
}

#[test]
fn two_seconds_of_requests_are_too_little_however_long_the_server_ran() {
    let (limit, count) = insight(Quota::per_minute(100));
    for number in 0..200 {
        count(&limit, 600.0 + f64::from(number) / 100.0, number as u64 % 20, 1, Decision::allow(100, 95));
    }
    let report = report_at(&limit, 603.0);
    assert_eq!((report.verdict, report.suggestion), (Verdict::TooEarly, None), "{}", report.reason);
    assert!(report.reason.starts_with("There were requests in 1 of the last 60 minutes."), "{}", report.reason);
}

#[test]
fn a_sale_that_is_over_is_not_said_to_go_on() {
    let sale = Pattern::During { rate: 2.4, from: 0.0, to: 0.05 };
    let callers = vec![Pattern::Sum(vec![Pattern::Steady(0.1), sale]); 20];
    let report = judged(&case(Quota::token_bucket(5, 10 * SECOND), callers, Reaction::GivesUp, 3240)).report;
    assert_eq!((report.verdict, report.suggestion), (Verdict::Bursts, None), "{}", report.reason);
    // Debt is paid back until some minutes after the sale. Whether these minutes count depends on what was a retry.
    let when = "in at most 8 of the 55 minutes with requests. The last of them was at least 47 minutes ago.";
    assert!(report.reason.ends_with(when), "{}", report.reason);
}

#[test]
fn costs_of_many_bytes_are_exact() {
    let quota = Quota::token_bucket(20_000_000_000, 20 * SECOND).burst(10_000_000_000);
    let callers = vec![Pattern::Bursts { requests: 2, pause: 3.0 }; 20];
    let case = Case { cost: 6_000_000_000, ..case(quota, callers, Reaction::GivesUp, 600) };
    let report = judged(&case).report;
    assert_eq!(report.verdict, Verdict::Bursts, "{}", report.reason);
    let burst = report.suggestion.and_then(|suggestion| suggestion.burst);
    assert!(burst.is_some_and(|burst| (11_000_000_000..=12_000_000_000).contains(&burst)), "{burst:?}");
}

#[test]
fn requests_that_can_never_pass_are_distinguished() {
    let (limit, count) = insight(Quota::token_bucket(10, 20 * SECOND));
    let never = || refusal(Reason::CostAboveCapacity);
    for request in 0..30 {
        (0..50).for_each(|caller| count(&limit, f64::from(request) * 125.0, caller, 1, Decision::allow(10, 9)));
    }
    count(&limit, 3_630.0, 7, u64::MAX, never());
    let one = report_at(&limit, 3_640.0);
    assert_eq!(one.verdict, Verdict::NeverBinding, "{}", one.reason);
    assert!(
        one.reason.starts_with(
            "1 of 1501 requests cost more than 10, so they can never pass. On average, they cost 9007199254740991."
        ),
        "{}",
        one.reason
    );
    assert!(one.reason.contains("No other request is refused.") && one.who == Who::Nobody, "{}", one.reason);
    assert!(one.top_refused.callers.is_empty() && one.spans[2].burst_needed.is_some_and(|b| b.highest.at_least == 1.0));
    assert_eq!(one.spans[2].callers.refused.value, 1.0);
    for request in 0..10 {
        (0..20).for_each(|caller| count(&limit, 3_640.0 + f64::from(request), caller, 15, never()));
    }
    let many = report_at(&limit, 3_650.0);
    assert_eq!((many.verdict, many.suggestion), (Verdict::NeverPasses, None), "{}", many.reason);
    assert!(many.reason.starts_with("201 of 1701 requests cost more than 10"), "{}", many.reason);
}

#[test]
fn the_rate_of_a_shared_store_counts_once() {
    let quota = Quota::token_bucket(10, 20 * SECOND);
    let case = case(quota, vec![Pattern::Steady(1.25); 20], Reaction::GivesUp, 480);
    let outcome = played(&case, 1, 2);
    check_ranges(&case, 1, &outcome, false);
    assert_eq!((outcome.report.verdict, outcome.report.suggestion), (Verdict::Unclear, None));
    let highest = outcome.report.spans[2].burst_needed.expect("a bucket has a burst").highest;
    assert_eq!(
        (highest.at_least, highest.at_most),
        (11.0, None),
        "a refusal proves that more than the burst is needed"
    );
    // One server alone cannot explain the refusals, so its report says nothing about bursts.
    let alone = LimitInsight::new(&case.quota, Options::default(), Time::from_nanos(BEGIN_NS));
    let (mut random, mut number) = (Random(1), 0);
    let plan = plan(&case.quota, &case.callers, 1, case.secs, &mut random);
    run(&case.quota, &plan, case.reaction, &mut random, |event| {
        number += 1;
        if number % 2 == 0 {
            alone.count(event.now, event.key, &Take::of(1, &event.decision));
        }
    });
    let report = report_at(&alone, 485.0);
    assert_eq!((report.verdict, report.suggestion), (Verdict::Unclear, None), "{}", report.reason);
}

#[test]
fn a_server_that_started_lately_does_not_raise_the_suggested_rate() {
    let (quota, begin) = (Quota::token_bucket(10, 20 * SECOND).constant(), Time::from_nanos(BEGIN_NS));
    let mut readings = [0, 1500].map(|started_secs| {
        let started = begin.after(Duration::from_secs(started_secs));
        let insight = LimitInsight::new(&quota, Options::default(), started);
        let mut random = Random(started_secs + 1);
        let callers = vec![Pattern::During { rate: 1.6, from: started_secs as f64 / 1800.0, to: 1.0 }; 20];
        let plan = plan(&quota, &callers, 1, 1800, &mut random);
        run(&quota, &plan, Reaction::GivesUp, &mut random, |event| {
            // The servers have stores of their own, so their callers differ.
            insight.count(event.now, event.key ^ u128::from(started_secs), &Take::of(1, &event.decision));
        });
        insight.read(begin.after(Duration::from_secs(1800)))
    });
    let [first, second] = &mut readings;
    first.merge(second);
    let report = first.report();
    assert_eq!(report.verdict, Verdict::AboveRate, "{}", report.reason);
    assert!(
        report.suggestion.is_some_and(|suggestion| (16..=18).contains(&suggestion.limit)),
        "{:?}",
        report.suggestion
    );
    assert_eq!(report.watched_ns, 300_000_000_000, "since the latest start");
}

#[test]
fn one_caller_above_the_rate_is_seen_at_both_sides_of_a_half_hour() {
    for begin_secs in [0.0, 550.0] {
        let (limit, count) = insight(Quota::token_bucket(10, SECOND));
        // 70 refused units per second are 7 times the rate.
        for second in 0..1250 {
            let secs = begin_secs + f64::from(second);
            (0..100).for_each(|caller| count(&limit, secs, caller, 1, Decision::allow(10, 9)));
            count(&limit, secs, 1000, 70, refusal(Reason::Exceeded));
        }
        let report = report_at(&limit, begin_secs + 1250.0);
        assert_eq!((report.verdict, report.who), (Verdict::AboveRate, Who::One), "{begin_secs}: {}", report.reason);
    }
}

#[test]
fn a_heavy_caller_outside_the_sample_is_not_cut_off() {
    let quota = Quota::fixed_window(100, 20 * SECOND).constant();
    let insight = LimitInsight::new(&quota, Options { callers: 64, ..Options::default() }, Time::from_nanos(BEGIN_NS));
    let mut random = Random(5);
    for second in 0..200 {
        for _ in 0..100 {
            let key = u128::from(random.below(u64::MAX));
            insight.count(at(f64::from(second)), key, &Take::of(1, &Decision::allow(100, 99)));
        }
        if second % 20 == 0 {
            insight.count(at(f64::from(second)), u128::from(u64::MAX), &Take::of(88, &Decision::allow(100, 12)));
        }
    }
    let report = report_at(&insight, 200.0);
    assert_eq!((report.verdict, report.suggestion), (Verdict::Effective, None), "{}", report.reason);
    assert!(report.reason.ends_with("A caller used 88 % of its limit at once."), "{}", report.reason);
}

#[test]
fn a_limit_that_refuses_few_of_many_callers_is_effective() {
    let quota = Quota::per_second(10).constant();
    let insight = LimitInsight::new(&quota, Options { callers: 64, ..Options::default() }, Time::from_nanos(BEGIN_NS));
    let mut random = Random(5);
    for number in 0..20_000 {
        let (key, secs) = (u128::from(random.below(u64::MAX)), f64::from(number) / 100.0);
        insight.count(at(secs), key, &Take::of(1, &Decision::allow(10, 9)));
    }
    insight.count(at(199.0), u128::from(u64::MAX), &Take::of(1, &refusal(Reason::Exceeded)));
    let report = report_at(&insight, 200.0);
    assert_eq!(report.verdict, Verdict::Effective, "{}", report.reason);
    assert!(report.reason.contains("None of ") && report.reason.ends_with("is refused."), "{}", report.reason);
}

#[test]
fn a_caller_that_always_waits_for_its_turn_is_not_above_the_rate() {
    for limit in 1..=171 {
        let (bucket, count) = insight(Quota::token_bucket(limit, SECOND));
        (0..limit).for_each(|_| count(&bucket, 0.0, 7, 1, Decision::allow(limit, 0)));
        let unit_ns = 1_000_000_000_u64.div_ceil(limit);
        for turn in 1..=12 * limit {
            let now = Time::from_nanos(BEGIN_NS + turn * unit_ns);
            bucket.count(now, 7, &Take::of(1, &Decision::allow(limit, 0)));
        }
        let reading = bucket.read(at(12.0));
        let caller = &reading.spans[2].sampled.callers[0];
        assert!(!caller.above_lower && !caller.above_upper, "limit {limit}: nothing was refused");
    }
}

#[test]
fn an_idle_list_of_top_callers_gets_empty() {
    let (limit, count) = insight(Quota::token_bucket(10, SECOND));
    let mut random = Random(3);
    for _ in 0..1000 {
        count(&limit, 0.0, random.below(u64::MAX), 1, Decision::allow(10, 9));
    }
    let top = limit.read(at(20.0 * 600.0)).top_allowed;
    assert_eq!((top.units, top.missing, top.callers.len()), (0, 0, 0));
}

#[test]
fn a_peak_of_a_caller_outside_the_sample_is_not_cut_off() {
    for (quota, peak, number) in [
        (Quota::fixed_window(100, 20 * SECOND), 90, None),
        (Quota::fixed_window(100, 20 * SECOND), 40, Some(80)),
        (Quota::token_bucket(100, 20 * SECOND), 40, None),
        (Quota::token_bucket(100, 20 * SECOND).burst(50), 20, Some(40)),
    ] {
        let quota = quota.build().expect("the quota is valid");
        let insight = LimitInsight::new(&quota, Options { callers: 64, ..Options::default() }, at(0.0));
        let mut random = Random(5);
        let capacity = quota.capacity();
        for step in 0..182 {
            for _ in 0..300 {
                let key = u128::from(random.below(u64::MAX / 2));
                insight.count(at(f64::from(step) * 20.0), key, &Take::of(1, &Decision::allow(capacity, capacity - 1)));
            }
            if step == 20 {
                let take = Take::of(peak, &Decision::allow(capacity, capacity - peak));
                insight.count(at(f64::from(step) * 20.0), u128::from(u64::MAX), &take);
            }
        }
        let report = report_at(&insight, 3640.0);
        assert!(report.spans[2].callers.asked.relative_error > 0.0, "the sample does not have all callers");
        if 2 * peak >= capacity {
            assert_eq!((report.verdict, report.suggestion), (Verdict::Effective, None), "{}", report.reason);
            continue;
        }
        assert_eq!(report.verdict, Verdict::NeverBinding, "{}", report.reason);
        let suggested = report.suggestion.map(|suggestion| suggestion.burst.unwrap_or(suggestion.limit));
        assert_eq!(suggested, number, "{quota:?}: {}", report.reason);
        let percent = peak * 100 / capacity;
        let used = format!("more than {percent} % ");
        assert!(report.reason.contains(&used) && report.reason.contains(" In the last 58m, no"), "{}", report.reason);
    }
}

#[test]
fn refusals_by_a_share_of_the_limit_say_nothing_about_the_limit() {
    for quota in [
        Quota::token_bucket(10, 20 * SECOND),
        Quota::fixed_window(10, 20 * SECOND),
        Quota::sliding_window_log(10, 20 * SECOND),
    ] {
        // A server that decides by half of each limit refuses callers that ask at most nine times in a window.
        let half = QuotaBuilder::new(quota.build().expect("it is valid").algorithm(), 5, 20 * SECOND);
        for pattern in [Pattern::Steady(0.8), Pattern::Bursts { requests: 9, pause: 1.2 }] {
            let half = half.build().expect("the quota is valid");
            let whole = quota.build().expect("the quota is valid");
            let insight = LimitInsight::new(&whole, Options::default(), at(0.0));
            let (mut random, mut refused) = (Random(7), 0);
            let plan = plan(&whole, &vec![pattern.clone(); 20], 1, 420, &mut random);
            run(&half, &plan, Reaction::GivesUp, &mut random, |event| {
                refused += usize::from(!event.decision.allowed);
                insight.count(event.now, event.key, &Take::of(1, &event.decision));
            });
            assert!(refused > 1_000, "{refused}");
            let report = report_at(&insight, 430.0);
            assert_eq!((report.verdict, report.suggestion), (Verdict::Unclear, None), "{}", report.reason);
            assert!(report.reason.contains("None of the refused callers can be judged: "), "{}", report.reason);
        }
    }
    let (limit, count) = insight(Quota::token_bucket(10, 20 * SECOND));
    count(&limit, 1.0, 1, 8, Decision::refuse(5, Reason::CostAboveCapacity, Wait::NONE));
    let counts = report_at(&limit, 2.0).spans[2].counts;
    assert_eq!((counts.refused_requests, counts.oversized_requests), (1, 0), "the whole limit allows eight units");
}

#[test]
fn a_limit_an_hour_keeps_its_verdict_if_requests_are_few() {
    let (limit, count) = insight(Quota::per_hour(1000));
    let mut random = Random(1);
    for minute in 0..180 {
        for (second, _) in [(5.0, 0), (5.0, 1), (35.0, 0), (35.0, 1)] {
            if random.below(2) == 0 {
                count(&limit, f64::from(minute) * 60.0 + second, random.below(20), 1, Decision::allow(1000, 900));
            }
        }
        let report = report_at(&limit, f64::from(minute) * 60.0 + 59.0);
        let expected = match minute {
            ..=56 => Verdict::TooEarly,
            57..60 => continue,
            _ => Verdict::NeverBinding,
        };
        assert_eq!(report.verdict, expected, "{minute}: {}", report.reason);
    }
}

#[test]
fn a_longer_burst_is_enough_for_callers_outside_the_sample() {
    let limit = 10;
    for (quota, algorithm_admits) in
        [(Quota::fixed_window(limit, 10 * SECOND), 2 * limit), (Quota::token_bucket(limit, 10 * SECOND), limit)]
    {
        let quota = quota.build().expect("the quota is valid");
        let insight = LimitInsight::new(&quota, Options { callers: 64, ..Options::default() }, at(0.0));
        let mut random = Random(5);
        let keys: Vec<_> = (0..200).map(|_| u128::from(random.below(u64::MAX))).collect();
        for step in 0..8 {
            for key in &keys {
                for unit in 0..12 {
                    let take = match unit {
                        ..10 => Take::of(1, &Decision::allow(limit, 9 - unit)),
                        _ => Take::of(1, &refusal(Reason::Exceeded)),
                    };
                    insight.count(at(f64::from(step) * 50.0), *key, &take);
                }
            }
        }
        let report = report_at(&insight, 399.0);
        assert_eq!(report.verdict, Verdict::Bursts, "{}", report.reason);
        assert!(report.spans[2].callers.asked.relative_error > 0.0, "the sample does not have all callers");
        let burst = report.suggestion.and_then(|suggestion| suggestion.burst);
        assert_eq!(burst, Some(algorithm_admits.max(12)), "{}", report.reason);
    }
}

/// Bursts of 15 units at a limit of 10, in which each refused request is repeated `tries` times. Returns the report.
fn report_of_retried_bursts(callers: u64, tries: u64, pause_secs: f64) -> Report {
    let (limit, count) = insight(Quota::token_bucket(10, 20 * SECOND));
    let mut secs = 0.0;
    while secs < 1700.0 {
        for caller in 0..callers {
            (0..10).for_each(|_| count(&limit, secs, caller, 1, Decision::allow(10, 0)));
            for again in 0..=tries {
                let secs = secs + again as f64 / tries.max(1) as f64;
                (0..5).for_each(|_| count(&limit, secs, caller, 1, refusal(Reason::Exceeded)));
            }
        }
        secs += pause_secs;
    }
    report_at(&limit, 1770.0)
}

#[test]
fn a_burst_that_can_be_made_of_retries_is_not_suggested() {
    let bursts = (Verdict::Bursts, Who::Many);
    for (tries, burst) in [(0, Some(15)), (7, None)] {
        let report = report_of_retried_bursts(20, tries, 150.0);
        assert_eq!((report.verdict, report.who), bursts, "{}", report.reason);
        assert_eq!(report.suggestion.and_then(|suggestion| suggestion.burst), burst, "{:?}", report.evidence);
    }
}

#[test]
fn callers_that_get_little_of_the_rate_are_not_above_it_however_often_they_retry() {
    // Retries are 2.1 times the rate, so their debt is never paid.
    for (callers, who, sentence) in [
        (20, Who::Many, "Callers with 100 % of the refused units got at most 40 % of what the rate allows: they ask"),
        (1, Who::One, "This caller got at most 40 % of what the rate allows: it asks"),
    ] {
        let report = report_of_retried_bursts(callers, 24, 120.0);
        assert_eq!((report.verdict, report.who, report.suggestion), (Verdict::Bursts, who, None), "{}", report.reason);
        assert!(report.reason.contains(sentence), "{}", report.reason);
    }
}

#[test]
fn a_server_that_sees_half_of_the_requests_does_not_say_that_callers_get_half_of_the_rate() {
    let quota = Quota::token_bucket(10, 20 * SECOND);
    // The refusals of the first hour cannot be explained by what this server sees, and later ones can.
    let case = case(quota, vec![Pattern::Steady(5.0); 20], Reaction::GivesUp, 4300);
    let alone = LimitInsight::new(&case.quota, Options::default(), Time::from_nanos(BEGIN_NS));
    let (mut random, mut number) = (Random(1), 0);
    let plan = plan(&case.quota, &case.callers, 1, case.secs, &mut random);
    run(&case.quota, &plan, case.reaction, &mut random, |event| {
        number += 1;
        if number % 2 == 0 {
            alone.count(event.now, event.key, &Take::of(1, &event.decision));
        }
    });
    let report = report_at(&alone, 4300.0);
    assert_eq!((report.verdict, report.suggestion), (Verdict::Unclear, None), "{}", report.reason);
}

#[test]
fn a_limit_that_nine_of_ten_callers_keep_is_not_raised() {
    let attack = vec![Pattern::During { rate: 4.0, from: 0.5, to: 1.0 }; 20];
    let users = vec![Pattern::Bursts { requests: 3, pause: 60.0 }; 300];
    let case = case(Quota::token_bucket(9, 60 * SECOND), [attack, users].concat(), Reaction::GivesUp, 2400);
    let report = judged(&case).report;
    assert_eq!((report.verdict, report.who), (Verdict::AboveRate, Who::Many), "{}", report.reason);
    assert_eq!(report.suggestion, None, "{:?}", report.evidence);
}

#[test]
fn who_is_above_the_rate_now_is_not_said_to_be_so_for_a_short_time() {
    for (to, verdict) in [(1.0, Verdict::AboveRate), (0.95, Verdict::Bursts)] {
        let attack = vec![Pattern::During { rate: 3.0, from: to - 0.35, to }; 40];
        let users = vec![Pattern::Bursts { requests: 2, pause: 40.0 }; 100];
        let case = case(Quota::token_bucket(6, 60 * SECOND), [attack, users].concat(), Reaction::GivesUp, 3540);
        let report = judged(&case).report;
        assert_eq!((report.verdict, report.who), (verdict, Who::Many), "{}", report.reason);
    }
}

#[test]
fn windows_that_admit_less_than_the_rate_show_who_is_above_it() {
    for (quota, cost) in [
        (Quota::sliding_window_counter(5, 10 * SECOND), 1),
        (Quota::sliding_window_counter(5, 10 * SECOND).segments(1), 1),
        (Quota::sliding_window_log(1000, 10 * SECOND), 150),
        (Quota::fixed_window(1000, 10 * SECOND), 220),
    ] {
        let case = Case { cost, ..case(quota, vec![Pattern::Steady(2.5); 20], Reaction::GivesUp, 900) };
        let report = judged(&case).report;
        assert_eq!((report.verdict, report.who), (Verdict::AboveRate, Who::Many), "{}", report.reason);
    }
    // Two bursts in three windows are refused in each window, but they are less than the rate.
    let bursts = vec![Pattern::Bursts { requests: 13, pause: 1.15 }; 20];
    for quota in [Quota::sliding_window_log(10, 10 * SECOND), Quota::sliding_window_counter(10, 10 * SECOND)] {
        let report = judged(&case(quota, bursts.clone(), Reaction::GivesUp, 900)).report;
        assert!(report.verdict != Verdict::AboveRate, "{}", report.reason);
    }
}

#[test]
fn what_was_refused_more_than_an_hour_ago_is_not_needed_in_this_hour() {
    let busy = Pattern::During { rate: 3.0, from: 0.0, to: 0.25 };
    let quiet = Pattern::During { rate: 0.08, from: 0.25, to: 1.0 };
    let callers = vec![Pattern::Sum(vec![busy, quiet]); 12];
    let windows = [Quota::fixed_window(10, 20 * SECOND), Quota::sliding_window_counter(10, 20 * SECOND)];
    let buckets = [Quota::token_bucket(10, 20 * SECOND), Quota::leaky_bucket(10, 20 * SECOND)];
    // The busy time of windows ended 75 minutes ago. The counts of single callers cover up to 90 minutes, and those of the
    // limit up to 70. That of buckets ended 90 minutes ago, but a bucket without a maximum would still be in debt.
    for (quota, secs) in windows.map(|quota| (quota, 6000)).into_iter().chain(buckets.map(|quota| (quota, 7200))) {
        let report = played(&case(quota, callers.clone(), Reaction::GivesUp, secs), 1, 1).report;
        assert_eq!(report.verdict, Verdict::NeverBinding, "{}", report.reason);
    }
}

#[test]
fn a_program_that_asks_for_many_times_the_rate_while_it_works_is_above_it() {
    let (limit, count) = insight(Quota::token_bucket(10, 60 * SECOND));
    // It works for two of each five minutes, which is too short for ten refills. It is refused 4.4 times what the limit
    // allows in all of the time, and 7 times what the limit allows in these minutes.
    for second in 0..2700_u64 {
        let (secs, second_of_work) = (second as f64, (second + 290) % 300);
        if second_of_work == 0 {
            (0..10).for_each(|_| count(&limit, secs, 7, 1, Decision::allow(10, 5)));
        }
        if second_of_work < 120 {
            let allowed = if second % 6 == 0 { Decision::allow(10, 0) } else { refusal(Reason::Exceeded) };
            [allowed, refusal(Reason::Exceeded)].into_iter().for_each(|decision| count(&limit, secs, 7, 1, decision));
        }
        if second % 60 == 0 {
            (8..30).for_each(|caller| count(&limit, secs, caller, 1, Decision::allow(10, 9)));
        }
    }
    let report = report_at(&limit, 2710.0);
    assert_eq!((report.verdict, report.who), (Verdict::AboveRate, Who::One), "{}", report.reason);
}

/// A reload of a changed limit begins its insight anew. Requests that came before are then not counted.
#[test]
fn a_reason_without_requests_says_when_the_counting_began() {
    let (insight, _) = insight(Quota::leaky_bucket(10, 20 * SECOND));
    let began = "No request was counted since insight of this limit began, 1m30s ago. If you know that ";
    assert!(report_at(&insight, 90.0).reason.starts_with(began), "{}", report_at(&insight, 90.0).reason);
    let hour = "No request was counted in the last hour. If you know that requests come, they match another ";
    assert!(report_at(&insight, 4000.0).reason.starts_with(hour), "{}", report_at(&insight, 4000.0).reason);
}
