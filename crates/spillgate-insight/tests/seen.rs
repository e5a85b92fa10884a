//! Verdicts and sentences about whom a limit refuses: one caller, a few, or many.

use std::time::Duration;

use spillgate_insight::{CallerName, LimitInsight, Options, Reading, Report, Take, Verdict, Who};
use spillgate_limiter::{Decision, Limiter, ManualClock, MemoryOptions, MemoryStore, Quota, QuotaBuilder};
use spillgate_limiter::{Reason, Wait};

use super::SECOND;
use super::cases::Case;
use super::played;
use super::traffic::{Pattern, Reaction};
use super::verdicts::at;

const MINUTE: Duration = Duration::from_secs(60);

/// Traffic in which each caller sends requests at fixed times. Callers have names.
struct Scene {
    limiter: Limiter<MemoryStore, ManualClock>,
    quota: Quota,
    insight: LimitInsight,
    /// The second of each request, and its caller.
    requests: Vec<(u64, String)>,
}

impl Scene {
    fn new(quota: QuotaBuilder, options: Options) -> Scene {
        let quota = quota.build().expect("the quota is valid");
        let limiter = Limiter::with_clock(MemoryStore::new(MemoryOptions::default()), ManualClock::at(at(0.0)));
        let insight = LimitInsight::new(&quota, options, at(0.0));
        Scene { limiter, quota, insight, requests: Vec::new() }
    }

    fn named(quota: QuotaBuilder) -> Scene {
        Scene::new(quota, Options { names: true, ..Options::default() })
    }

    fn ask(&mut self, caller: impl ToString, times: impl IntoIterator<Item = u64>) -> &mut Scene {
        let caller = caller.to_string();
        self.requests.extend(times.into_iter().map(|secs| (secs, caller.clone())));
        self
    }

    fn reading(&mut self, secs: u64) -> Reading {
        self.requests.sort();
        for (secs, caller) in std::mem::take(&mut self.requests) {
            self.limiter.clock().set(at(secs as f64));
            let key = self.limiter.hit(&self.quota, caller.as_str(), 1).key;
            let decision = self.limiter.take_now(&self.quota, caller.as_str(), 1);
            let name = || CallerName::of(["user=", &caller]);
            self.insight.count_named(at(secs as f64), key, &Take::of(1, &decision), name);
        }
        self.insight.read(at(secs as f64))
    }

    fn report(&mut self, secs: u64) -> Report {
        self.reading(secs).report()
    }
}

fn every(step: usize, secs: u64) -> impl Iterator<Item = u64> {
    (0..secs).step_by(step)
}

/// `times` requests in each second.
fn often(times: usize, secs: u64) -> impl Iterator<Item = u64> {
    (0..secs).flat_map(move |second| std::iter::repeat_n(second, times))
}

#[track_caller]
fn assert_seen(report: &Report, verdict: Verdict, who: Who) {
    assert_eq!((report.verdict, report.who), (verdict, who), "{}", report.reason);
}

#[test]
fn one_caller_is_seen_however_few_callers_there_are_and_if_everybody_was_refused_once() {
    let bucket = || Quota::token_bucket(60, MINUTE).burst(20);
    for callers in [1, 2, 3, 5, 9, 10, 15, 19, 20, 60] {
        for refused_once in [0, 4, callers] {
            for secs in [600, 3_500] {
                let mut scene = Scene::named(bucket());
                for caller in 1..callers {
                    scene.ask(caller, every(10, secs));
                }
                for caller in 1..callers.min(refused_once + 1) {
                    scene.ask(caller, vec![secs / 2; 25]);
                }
                let report = scene.ask("bot", often(20, secs)).report(secs);
                assert_seen(&report, Verdict::AboveRate, Who::One);
                assert!(report.reason.contains("\"user=bot\" has "), "{}", report.reason);
                assert!(report.reason.contains("This caller asked for at least 2"), "{}", report.reason);
                let others = match callers {
                    1 => "Nobody asked but this one.".to_owned(),
                    2 => "Without it: of 1 other caller, ".to_owned(),
                    _ => format!("Without it: of {} other callers, ", callers - 1),
                };
                assert!(report.reason.contains(&others), "{callers}: {}", report.reason);
                assert_eq!(report.suggestion, None);
            }
        }
    }
}

#[test]
fn a_few_callers_are_named_and_counted_without_them() {
    let mut scene = Scene::named(Quota::token_bucket(60, MINUTE).burst(20));
    for caller in 0..10 {
        scene.ask(caller, every(5, 900));
    }
    scene.ask(3, vec![400; 25]);
    let report = scene.ask("a", often(3, 900)).ask("b", often(4, 900)).report(900);
    assert_seen(&report, Verdict::AboveRate, Who::Few);
    let others = "Without them: of 10 other callers, 1 was refused at least once, with 0.3 % of their units.";
    assert!(report.reason.contains(others), "{}", report.reason);
    assert!(
        report.reason.contains("2 callers have 99.9 % of the refused units, and \"user=b\" has the most: 6"),
        "{}",
        report.reason
    );
    assert!(
        report.reason.contains("Each of these callers asked for at least 3 times the rate of the limit"),
        "{}",
        report.reason
    );
    // Five of six are not few.
    let mut scene = Scene::named(Quota::token_bucket(60, MINUTE).burst(20));
    (0..5).for_each(|caller| _ = scene.ask(caller, often(3, 900)));
    assert_seen(&scene.ask(6, every(5, 900)).report(900), Verdict::AboveRate, Who::Many);
}

#[test]
fn brute_force_on_a_login_is_one_caller_above_the_rate() {
    for quota in [
        Quota::fixed_window(5, 15 * MINUTE),
        Quota::sliding_window_log(5, 15 * MINUTE),
        Quota::token_bucket(5, 15 * MINUTE),
        Quota::fixed_window(10, 60 * MINUTE),
        Quota::fixed_window(5, MINUTE).penalty(15 * MINUTE),
        Quota::fixed_window(20, 24 * 60 * MINUTE),
    ] {
        for secs in [240, 3_000] {
            let mut scene = Scene::named(quota);
            for user in 0..30 {
                scene.ask(user, [user, user + 60, user + 130, user + 190]);
            }
            let report = scene.ask("bot", often(1, secs)).report(secs);
            assert_seen(&report, Verdict::AboveRate, Who::One);
            assert!(report.causes.is_some_and(|causes| causes.contains("brute force")), "{:?}", report.causes);
        }
    }
}

#[test]
fn nobody_is_to_be_blocked_without_a_warning() {
    // Forty people behind one address.
    let mut scene = Scene::named(Quota::token_bucket(60, MINUTE));
    (0..40).for_each(|person| _ = scene.ask("office", (person..1_200).step_by(20)));
    (0..20).for_each(|person| _ = scene.ask(person, every(20, 1_200)));
    let report = scene.report(1_200);
    assert_seen(&report, Verdict::AboveRate, Who::One);
    for who in [Who::One, Who::Few] {
        let (advice, causes) = (Verdict::AboveRate.advice(who), Verdict::AboveRate.causes(who).unwrap_or_default());
        assert!(advice.contains("make sure that it is not many people behind one address"), "{advice}");
        assert!(causes.contains("can be") && causes.contains("retries"), "{causes}");
    }
}

#[test]
fn fifty_scrapers_beside_a_hundred_calm_users_are_no_reason_for_a_number() {
    let mut scene = Scene::named(Quota::token_bucket(20, 20 * SECOND));
    (0..100).for_each(|user| _ = scene.ask(user, every(10, 900)));
    (100..150).for_each(|user| _ = scene.ask(user, often(3, 900)));
    let report = scene.report(900);
    assert_seen(&report, Verdict::AboveRate, Who::Many);
    assert_eq!((report.suggestion, report.evidence), (None, None));
    assert!(
        report.reason.contains("and 50 of 150 callers at least once. 100 callers were never refused."),
        "{}",
        report.reason
    );
}

#[test]
fn minutes_that_only_one_end_of_a_range_shows_are_no_fact() {
    // All callers ask for 1.2 times the rate all the time, with costs that do not divide the limit.
    for quota in [Quota::token_bucket(20, 20 * SECOND), Quota::fixed_window(20, 20 * SECOND)] {
        for cost in [3, 7] {
            let quota = quota.build().expect("the quota is valid");
            let callers = vec![Pattern::Steady(1.2); 20];
            let case = Case {
                name: String::new(),
                quota,
                callers,
                cost,
                reaction: Reaction::GivesUp,
                secs: 1_500,
                right: &[],
            };
            for seed in 1..=5 {
                let report = played(&case, seed, 1).report;
                assert!(report.verdict != Verdict::Bursts, "cost {cost}, seed {seed}: {}", report.reason);
            }
        }
    }
}

#[test]
fn a_lower_limit_needs_a_whole_hour_and_refuses_nothing_of_it() {
    let bucket = || Quota::token_bucket(100, MINUTE);
    for (secs, verdict) in [(180, Verdict::TooEarly), (1_800, Verdict::TooEarly), (3_700, Verdict::NeverBinding)] {
        let mut scene = Scene::named(bucket());
        (0..20).for_each(|user| _ = scene.ask(user, every(60, secs)));
        let report = scene.report(secs);
        assert_seen(&report, verdict, Who::Nobody);
        assert_eq!(report.suggestion.is_some(), verdict == Verdict::NeverBinding, "{}", report.reason);
    }
    // A busy time is part of the hour, wherever half hours begin.
    for busy_secs in (0..1_800).step_by(300) {
        let mut scene = Scene::named(bucket());
        (0..20).for_each(|user| _ = scene.ask(user, every(60, 5_400)));
        (0..20).for_each(|user| _ = scene.ask(user, (busy_secs..busy_secs + 300).step_by(2)));
        for secs in (busy_secs + 300..busy_secs + 3_600).step_by(600) {
            let report = scene.report(secs.max(3_500));
            let limit = report.suggestion.map_or(u64::MAX, |suggestion| suggestion.limit);
            assert!(limit >= 60, "{busy_secs} {secs}: 31 requests in a minute, {limit}");
        }
    }
}

#[test]
fn a_share_that_is_not_exactly_known_is_a_range() {
    let mut scene = Scene::named(Quota::fixed_window(1, MINUTE));
    for second in 0..600 {
        // Each second has another honest caller, who asks twice.
        scene.ask(format!("honest {second}"), [second, second]);
    }
    let report = scene.ask("bot", often(20, 600)).report(600);
    assert_seen(&report, Verdict::AboveRate, Who::One);
    assert!(report.top_refused.missing > 0 && report.top_allowed.missing > 0);
    assert!(report.reason.contains("\"user=bot\" has between 95.1 and 9"), "{}", report.reason);
    assert!(report.reason.contains("600 were refused at least once, with between "), "{}", report.reason);
}

#[test]
fn names_and_hashes_are_left_out_if_callers_are_hidden_and_can_be_replaced() {
    let mut scene = Scene::named(Quota::token_bucket(60, MINUTE).burst(20));
    (0..5).for_each(|user| _ = scene.ask(user, every(10, 600)));
    let mut reading = scene.ask("b\u{1b}\"ot", often(20, 600)).reading(600);
    let mut report = reading.report();
    assert!(report.reason.contains(r#""user=b\u{1b}\"ot" has 100 %"#), "{}", report.reason);
    report.rename_callers(|name| format!("caller {}", name.len()));
    assert!(report.reason.contains(r#""caller 10" has 100 %"#), "{}", report.reason);
    assert_eq!(report.top_refused.callers[0].name.as_deref(), Some("caller 10"));
    // Callers without names have their hashes.
    let json = serde_json::to_value(&reading).expect("a reading becomes JSON");
    reading.top_refused.callers[0].name = None;
    let report = reading.report();
    assert!(
        report.reason.contains(&format!("Caller {} has 100 %", report.top_refused.callers[0].id)),
        "{}",
        report.reason
    );
    // A reading that hides callers has the same verdict, also after it was sent to another process.
    let mut hidden: Reading = serde_json::from_value(json).expect("a reading can be read again");
    hidden.hide_callers();
    let hidden = hidden.report();
    assert_seen(&hidden, Verdict::AboveRate, Who::One);
    assert!(hidden.reason.contains("One caller has 100 %") && !hidden.reason.contains("user="), "{}", hidden.reason);
    assert!(hidden.top_refused.callers.is_empty() && hidden.top_allowed.callers.is_empty());
}

#[test]
fn refusals_that_are_older_than_the_lists_are_counted_by_callers() {
    let quota = Quota::fixed_window(10, MINUTE);
    let mut scene = Scene::named(quota);
    (0..12).for_each(|user| _ = scene.ask(user, every(30, 3_600)));
    scene.ask(3, vec![100; 30]).ask(4, vec![100; 30]);
    // The lists cover half hours, and the third one begins at 3,550 s.
    let report = scene.report(3_600);
    assert_eq!((report.top_refused.units, report.who), (0, Who::Few), "{}", report.reason);
    assert!(
        report.reason.contains("% of ") && report.reason.contains("requests were refused, and 2 of 12 callers"),
        "{}",
        report.reason
    );
    // A peek of a post-paid limit is refused, and takes no units.
    let (limit, count) = super::verdicts::insight(Quota::fixed_window(10, MINUTE));
    for second in 0..600 {
        (0..10).for_each(|user| count(&limit, f64::from(second), user, 1, Decision::allow(10, 9)));
        count(&limit, f64::from(second), 99, 0, Decision::refuse(10, Reason::Exceeded, Wait::After(1)));
    }
    let report = super::verdicts::report_at(&limit, 600.0);
    assert_eq!(report.who, Who::One, "{}", report.reason);
    // Requests that can never pass are neither refused nor asked in this sentence.
    let never = Decision::refuse(10, Reason::CostAboveCapacity, Wait::NONE);
    (0..60).for_each(|second| count(&limit, 540.0 + f64::from(second), 99, 20, never));
    let report = super::verdicts::report_at(&limit, 600.0);
    assert!(report.reason.starts_with("60 of 6660 requests cost more than 10"), "{}", report.reason);
    assert!(report.reason.contains(" 9.1 % of 6600 requests were refused"), "{}", report.reason);
}

#[test]
fn a_reason_says_why_nobody_can_be_judged() {
    let (limit, count) = super::verdicts::insight(Quota::fixed_window(10, MINUTE));
    (0..200).for_each(|user| count(&limit, 1.0, user, 1, Decision::allow(10, 9)));
    // The counts have slots of ten minutes, so they still have these requests.
    let report = super::verdicts::report_at(&limit, 3_650.0);
    assert!(report.spans[2].counts.requests == 200 && report.spans[2].callers.asked.value == 0.0);
    assert_eq!((report.verdict, &*report.reason), (Verdict::TooEarly, "There were no requests in the last hour."));
    // After a flood of callers, the sample is too small for the few others.
    (0..400_000).for_each(|user| count(&limit, 3_660.0, user, 1, Decision::allow(10, 9)));
    for second in 0..300 {
        count(&limit, 7_500.0 + f64::from(second), 1_000_000, 1, Decision::allow(10, 9));
    }
    let report = super::verdicts::report_at(&limit, 7_800.0);
    let few = "No caller is in the sample, because there were far more callers before.";
    assert_eq!((report.verdict, &*report.reason), (Verdict::TooEarly, few));
}

#[test]
fn the_only_caller_that_is_refused_is_not_called_several() {
    // Most of sixty requests at once can be retries. Ten seconds after them, the caller is still busy.
    for (secs, verdict, sentence) in [
        (3_010, Verdict::Unclear, " This caller cannot be judged: "),
        (
            3_500,
            Verdict::Bursts,
            " This caller got at most 40 % of what the rate allows: it asks for too much at once ",
        ),
    ] {
        let mut scene = Scene::named(Quota::fixed_window(5, MINUTE));
        (0..10).for_each(|user| _ = scene.ask(user, every(20, secs)));
        scene.ask("bot", (0..secs).step_by(600).flat_map(|second| std::iter::repeat_n(second, 60)));
        let report = scene.report(secs);
        assert_seen(&report, verdict, Who::One);
        assert!(report.reason.contains(sentence), "{}", report.reason);
        assert!(!report.reason.contains("these callers"), "{}", report.reason);
    }
}

#[test]
fn requests_that_can_never_pass_are_no_reason_against_another_burst() {
    let mut scene = Scene::named(Quota::token_bucket(60, MINUTE).burst(10));
    for user in 0..10 {
        scene.ask(user, (user..900).step_by(60).flat_map(|second| std::iter::repeat_n(second, 14)));
    }
    scene.reading(899);
    let never = Decision::refuse(10, Reason::CostAboveCapacity, Wait::NONE);
    (1_000..1_030).for_each(|user| scene.insight.count(at(899.0), user, &Take::of(20, &never)));
    let report = scene.insight.read(at(899.0)).report();
    assert_seen(&report, Verdict::Bursts, Who::Few);
    assert_eq!(report.suggestion.and_then(|suggestion| suggestion.burst), Some(14), "{}", report.reason);
}

#[test]
fn the_first_of_equal_callers_only_probably_has_the_most() {
    let mut scene = Scene::named(Quota::fixed_window(1, MINUTE));
    // The last callers of the list are counted exactly, and the counts of the others are too low.
    for second in 0..600 {
        scene.ask(second, [second, second]);
    }
    let report = scene.report(600);
    assert!(report.who == Who::Many && report.top_refused.missing > 0, "{}", report.reason);
    assert!(report.reason.contains(" probably has the most: between "), "{}", report.reason);
}

#[test]
fn a_limit_without_a_rate_is_unclear_and_not_too_early() {
    for (quota, decision) in [
        (Quota::concurrency(5), Decision::refuse(5, Reason::Exceeded, Wait::Unknown)),
        (Quota::fixed_window(0, MINUTE), Decision::refuse(0, Reason::CostAboveCapacity, Wait::NONE)),
    ] {
        let (limit, count) = super::verdicts::insight(quota);
        for second in 0..600 {
            (0..10).for_each(|user| count(&limit, f64::from(second), user, 1, decision));
        }
        let report = super::verdicts::report_at(&limit, 600.0);
        assert_eq!((report.verdict, report.suggestion), (Verdict::Unclear, None), "{}", report.reason);
    }
}

/// A request that another limit refuses takes nothing of this limit. It is asked for, but not allowed.
#[test]
fn units_that_another_limit_refused_are_not_allowed_units() {
    let quota = Quota::per_minute(10).build().expect("the quota is valid");
    let insight = LimitInsight::new(&quota, Options::default(), at(0.0));
    let allowed = |passed: bool| Take::of(1, &Decision::allow(10, 9)).of_request(passed);
    (0..5).for_each(|_| insight.count(at(0.0), 7, &allowed(false)));
    (0..3).for_each(|_| insight.count(at(0.0), 7, &allowed(true)));
    let reading = insight.read(at(1.0));
    assert_eq!((reading.top_allowed.units, reading.top_refused.units), (3, 0));
    assert_eq!(reading.top_allowed.refused_elsewhere, 5);
    let counts = reading.spans[0].counts;
    assert_eq!((counts.requests, counts.refused_elsewhere_requests), (8, 5));
    // A share is that of all units that were asked for, as in the numbers of requests.
    let refused = Take::of(2, &Decision::refuse(10, Reason::Exceeded, Wait::NONE));
    insight.count(at(2.0), 7, &refused.of_request(false));
    let reason = insight.read(at(3.0)).report().reason;
    assert!(reason.contains("20 % of 10 units were refused"), "{reason}");
}
