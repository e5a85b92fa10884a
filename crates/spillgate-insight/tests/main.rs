//! Tests of `insight` with traffic whose truth is known.
//!
//! `make show-insight` runs all traffic that [`cases`] lists, and each of the [`scenes`] 500 times. Without the
//! environment variable INSIGHT, the tests run only a part of this traffic.

mod cases;
mod clocks;
mod figures;
mod other_limit;
mod random;
mod scenes;
mod seen;
mod traffic;
mod verdicts;

use std::collections::HashMap;
use std::time::Duration;

use spillgate_insight::{LimitInsight, Options, Reading, Report, Suggestion, Take, Verdict};
use spillgate_limiter::{Algorithm, Quota, QuotaBuilder, Time};
use spillgate_testkit::Random;

use cases::{Case, cases};
use traffic::{BEGIN_NS, Truth, plan, run};

const SECOND: Duration = Duration::from_secs(1);

fn is_all() -> bool {
    std::env::var_os("INSIGHT").is_some()
}

/// The result of a case, and the truth about its callers.
struct Outcome {
    report: Report,
    truths: Vec<Truth>,
    /// The index of each caller in `truths`, by the caller's id.
    indices: HashMap<u64, usize>,
    reading: Reading,
}

/// Runs a case on servers that share one store. Requests go to the servers in turn.
fn played(case: &Case, seed: u64, servers: usize) -> Outcome {
    let mut random = Random(seed);
    let begin = Time::from_nanos(BEGIN_NS);
    let plan = plan(&case.quota, &case.callers, case.cost, case.secs, &mut random);
    let insights: Vec<_> = (0..servers).map(|_| LimitInsight::new(&case.quota, Options::default(), begin)).collect();
    let (mut indices, mut number) = (HashMap::new(), 0);
    let truths = run(&case.quota, &plan, case.reaction, &mut random, |event| {
        indices.insert(event.key as u64, event.caller);
        insights[number % servers].count(event.now, event.key, &Take::of(case.cost, &event.decision));
        number += 1;
    });
    let mut readings = insights.iter().map(|insight| insight.read(begin.after(case.secs as u32 * SECOND)));
    let mut reading = readings.next().expect("there is a server");
    readings.for_each(|other| reading.merge(&other));
    Outcome { report: reading.report(), truths, indices, reading }
}

/// Returns the share of requests and the number of callers that are refused if the case has the limit `quota` instead
/// of its own.
fn refused_by(quota: &Quota, case: &Case, seed: u64) -> (f64, usize) {
    let mut random = Random(seed);
    let plan = plan(&case.quota, &case.callers, case.cost, case.secs, &mut random);
    let truths = run(quota, &plan, case.reaction, &mut random, |_| {});
    let sum = |count: fn(&Truth) -> u64| truths.iter().map(count).sum::<u64>() as f64;
    (sum(|t| t.refused) / sum(|t| t.requests), truths.iter().filter(|t| t.refused > 0).count())
}

fn changed(quota: &Quota, suggestion: Suggestion) -> Quota {
    let window = Duration::from_nanos(quota.window_ns());
    let builder = match (suggestion.burst, quota.algorithm()) {
        (Some(burst), _) => Quota::token_bucket(suggestion.limit, window).burst(burst),
        (None, Algorithm::LeakyBucket) => Quota::leaky_bucket(suggestion.limit, window).queue(quota.capacity() - 1),
        (None, algorithm) => QuotaBuilder::new(algorithm, suggestion.limit, window),
    };
    builder.build().expect("a suggestion is valid")
}

/// Checks that a suggestion changes the limit in the right direction, and that callers pass if it is followed.
fn check_suggestion(case: &Case, seed: u64, report: &Report) {
    assert_eq!(report.suggestion.is_some(), report.evidence.is_some(), "{}", case.name);
    let Some(suggestion) = report.suggestion else { return };
    let quota = &case.quota;
    let name = format!("{} (seed {seed}): {suggestion:?}", case.name);
    let burst = suggestion.burst.unwrap_or(suggestion.limit);
    let (share, callers) = refused_by(&changed(quota, suggestion), case, seed);
    match report.verdict {
        Verdict::NeverBinding => {
            assert!(suggestion.limit <= quota.limit() && burst < quota.capacity(), "{name}");
            assert_eq!(callers, 0, "{name}: no caller is refused then");
        }
        Verdict::Bursts => {
            assert!(suggestion.limit == quota.limit() && burst > quota.capacity(), "{name}");
            assert!(callers * 50 <= case.callers.len(), "{name}: {callers} callers are refused then");
        }
        Verdict::AboveRate => {
            let (before, _) = refused_by(quota, case, seed);
            assert!(suggestion.limit > quota.limit() && burst >= quota.capacity(), "{name}");
            assert!(share <= 0.1 && share < before / 2.0, "{name}: {share} of the requests are refused then");
        }
        verdict => panic!("{name}: {verdict:?} has a suggestion"),
    }
}

/// Checks the ranges of all callers, and returns how many ranges there were. `whole` says whether one server saw all
/// requests.
fn check_ranges(case: &Case, seed: u64, outcome: &Outcome, whole: bool) -> usize {
    let span = &outcome.reading.spans[2];
    assert_eq!(span.sampled.callers.len(), outcome.indices.len(), "{}: every caller is known", case.name);
    let capacity = case.quota.capacity();
    for caller in &span.sampled.callers {
        let truth = &outcome.truths[outcome.indices[&caller.id.0]];
        let name = format!("{} (seed {seed}): {truth:?}, {caller:?}", case.name);
        let (lower, upper) = caller.burst;
        // Sums of floats can be wrong by this much.
        let error = truth.burst / 1_000_000_000_000;
        assert!(lower <= truth.burst + error && upper.is_none_or(|upper| truth.burst <= upper + error), "{name}");
        assert_eq!(caller.refused, truth.refused > 0, "{name}");
        if whole {
            assert!(upper.is_some(), "{name}: the server saw everything");
            assert!(caller.refused || lower == truth.burst && upper == Some(truth.burst), "{name}: it is exact");
        }
        let is_bucket = case.quota.algorithm() == Algorithm::TokenBucket;
        assert!(!caller.refused || !is_bucket || lower > capacity, "{name}: a refusal proves more than the burst");
        if case.quota.algorithm() == (Algorithm::FixedWindow(spillgate::Anchor::Epoch)) {
            let (lower, upper) = caller.window.expect("it asked for units");
            assert!(lower <= truth.window && truth.window <= upper, "{name}");
        }
    }
    span.sampled.callers.len()
}

/// Returns whether insight said what it saw.
fn is_given(verdict: Verdict) -> bool {
    !matches!(verdict, Verdict::TooEarly | Verdict::Unclear)
}

/// How many runs of a sweep had which outcome.
#[derive(Clone, Default)]
struct Sums {
    runs: usize,
    given: usize,
    right: usize,
    ranges: usize,
    suggested: usize,
    /// Wrong verdicts, as text.
    wrong: Vec<String>,
}

/// Runs every `step`th case with each seed on this many servers. Each seed runs in a thread of its own.
fn sweep(seeds: u64, step: usize, servers: usize) -> Sums {
    let cases = &cases();
    let of_seed = |seed| {
        let mut sums = Sums::default();
        for case in cases.iter().step_by(step) {
            let outcome = played(case, seed, servers);
            let Report { verdict, who, reason, .. } = &outcome.report;
            let (given, right) = (is_given(*verdict), case.right.contains(&(*verdict, *who)));
            sums.runs += 1;
            sums.given += usize::from(given);
            sums.right += usize::from(right);
            if given && !right {
                sums.wrong.push(format!("{} (seed {seed}): {verdict:?}, {who:?}: {reason}", case.name));
            }
            sums.ranges += check_ranges(case, seed, &outcome, servers == 1);
            check_suggestion(case, seed, &outcome.report);
            sums.suggested += usize::from(outcome.report.suggestion.is_some());
        }
        sums
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=seeds).map(|seed| scope.spawn(move || of_seed(seed))).collect();
        threads.into_iter().fold(Sums::default(), |a, thread| {
            let b = thread.join().expect("no check fails");
            Sums {
                runs: a.runs + b.runs,
                given: a.given + b.given,
                right: a.right + b.right,
                ranges: a.ranges + b.ranges,
                suggested: a.suggested + b.suggested,
                wrong: [a.wrong, b.wrong].concat(),
            }
        })
    })
}

#[test]
fn nineteen_of_twenty_verdicts_are_right_and_bursts_are_in_their_ranges() {
    let Sums { runs, given, right, ranges, suggested, wrong } = if is_all() { sweep(3, 1, 1) } else { sweep(1, 37, 1) };
    println!("| verdicts given, of all runs | {given} of {runs} |");
    println!("| verdicts right, of those given | {right} of {given} |");
    println!("| bursts in the range of the reading | {ranges} of {ranges} |");
    println!("| suggestions under which the callers pass | {suggested} of {suggested} |");
    assert!(given * 100 >= runs * 70, "a verdict is given in {given} of {runs} runs");
    assert!(right * 100 >= given * 95, "{right} of {given} verdicts are right: {wrong:#?}");
}

#[test]
fn nineteen_of_twenty_verdicts_on_two_servers_with_one_store_are_right() {
    let Sums { runs, given, right, ranges, wrong, .. } = if is_all() { sweep(2, 1, 2) } else { sweep(1, 53, 2) };
    println!("| two servers with one store: verdicts given, of all runs | {given} of {runs} |");
    println!("| two servers with one store: verdicts right, of those given | {right} of {given} |");
    println!("| two servers with one store: bursts in the range of the reading | {ranges} of {ranges} |");
    assert!(given > 0 && right * 100 >= given * 95, "{right} of {given} verdicts are right: {wrong:#?}");
}
