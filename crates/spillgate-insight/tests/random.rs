//! Random traffic, which is of no clear kind. A verdict must not contradict what the callers really asked for.

use std::time::Duration;

use spillgate_insight::Verdict;
use spillgate_limiter::{Anchor, Quota};
use spillgate_testkit::Random;

use super::cases::Case;
use super::traffic::{Pattern, Reaction, unit_ns};
use super::{Outcome, check_ranges, check_suggestion, is_all, is_given, played};

const SECS: u64 = 800;

fn random_case(random: &mut Random) -> Case {
    let window = Duration::from_secs(20);
    let quota = match random.below(7) {
        0 => Quota::token_bucket(10, window),
        1 => Quota::token_bucket(10, window).burst(5),
        2 => Quota::fixed_window(10, window),
        3 => Quota::fixed_window(10, window).anchor(Anchor::FirstHit),
        4 => Quota::sliding_window_log(10, window),
        5 => Quota::sliding_window_counter(10, window),
        _ => Quota::sliding_window_counter(10, window).segments(1),
    };
    let reaction = [Reaction::AtOnce, Reaction::Obeys, Reaction::GivesUp][random.below(3) as usize];
    let mut between = |low: f64, high: f64| low + (high - low) * random.below(1000) as f64 / 1000.0;
    // The callers of a case are alike, so that there is often a verdict.
    let (rate, requests) = (between(0.2, 2.5), between(1.0, 30.0) as u64);
    let steady = between(0.0, 1.0);
    let callers = (0..12).map(|_| match steady {
        ..0.4 => Pattern::Bursts { requests, pause: 1.0 / (rate * between(0.9, 1.1)) },
        ..0.7 => Pattern::Steady(rate * between(0.9, 1.1)),
        _ => {
            let bursts = Pattern::Bursts { requests, pause: 2.0 / (rate * between(0.9, 1.1)) };
            Pattern::Sum(vec![Pattern::Steady(rate / 2.0), bursts])
        }
    });
    let callers: Vec<_> = callers.collect();
    let quota = quota.build().expect("the quota is valid");
    let name = format!("{:?}, {:?}, {reaction:?}", quota.algorithm(), callers[0]);
    Case { name, quota, callers, cost: 1, reaction, secs: SECS, right: &[] }
}

/// Returns the share of the callers that asked for at least `times` times the rate, over the whole time.
fn above(case: &Case, outcome: &Outcome, times: f64) -> f64 {
    let allowed = (SECS * 1_000_000_000 / unit_ns(&case.quota)) as f64;
    let above = outcome.truths.iter().filter(|truth| truth.asked as f64 >= times * allowed).count();
    above as f64 / outcome.truths.len() as f64
}

#[test]
fn at_most_one_in_twenty_verdicts_on_random_traffic_contradicts_the_truth() {
    let (mut given, mut wrong) = (0, Vec::new());
    let runs = if is_all() { 2000 } else { 60 };
    let mut random = Random(21);
    for seed in 1..=runs {
        let case = random_case(&mut random);
        let outcome = played(&case, seed, 1);
        check_ranges(&case, seed, &outcome, true);
        let report = &outcome.report;
        let contradicts = match report.verdict {
            Verdict::AboveRate => above(&case, &outcome, 0.9) < 0.2,
            Verdict::Bursts | Verdict::NeverBinding => above(&case, &outcome, 1.2) > 0.2,
            _ => false,
        };
        if report.verdict == Verdict::NeverBinding {
            check_suggestion(&case, seed, report);
        }
        given += usize::from(is_given(report.verdict));
        if contradicts {
            wrong.push(format!("{} (seed {seed}): {:?}: {}", case.name, report.verdict, report.reason));
        }
    }
    println!("| random traffic: verdicts that contradict the truth, of those given | {} of {given} |", wrong.len());
    assert!(given > 0 && wrong.len() * 20 <= given, "of {given} verdicts, the truth contradicts these: {wrong:#?}");
}
