//! What insight says about another limit, against a run of the same requests on this limit.

use std::collections::BTreeSet;
use std::time::Duration;

use spillgate_insight::{LimitInsight, Options, OtherLimit, Take};
use spillgate_limiter::{Clock as _, Limiter, ManualClock, MemoryOptions, MemoryStore, Quota, QuotaBuilder, Time};
use spillgate_testkit::Random;

use super::traffic::BEGIN_NS;

const MINUTE: Duration = Duration::from_secs(60);
const CALLERS: u64 = 12;

/// A request: how long after the beginning it comes, its caller, and its units.
type Asked = (Duration, u64, u64);

/// Twenty minutes of callers, some of which ask for much more than others, in bursts or evenly.
fn traffic(seed: u64) -> Vec<Asked> {
    let mut random = Random(seed);
    let mut asked = Vec::new();
    for caller in 0..CALLERS {
        let mut at = Duration::from_millis(random.below(30_000));
        while at < 20 * MINUTE {
            for _ in 0..=random.below(1 + 2 * caller) {
                asked.push((at, caller, 1 + random.below(2)));
            }
            at += Duration::from_millis(500 + random.below(4_000 * (CALLERS - caller)));
        }
    }
    asked.sort();
    asked
}

/// Returns the callers that a limit refuses, and its insight at the end.
fn run(quota: &Quota, asked: &[Asked]) -> (BTreeSet<u64>, LimitInsight, Time) {
    let clock = ManualClock::at(Time::from_nanos(BEGIN_NS));
    let limiter = Limiter::with_clock(MemoryStore::new(MemoryOptions::default()), clock.clone());
    let insight = LimitInsight::new(quota, Options::default(), clock.now());
    let (mut refused, mut passed) = (BTreeSet::new(), Duration::ZERO);
    for (at, caller, units) in asked {
        clock.advance(*at - passed);
        passed = *at;
        let decision = limiter.take_now(quota, *caller, *units);
        insight.count(clock.now(), limiter.hit(quota, *caller, *units).key, &Take::of(*units, &decision));
        if !decision.allowed {
            refused.insert(*caller);
        }
    }
    (refused, insight, clock.now())
}

#[test]
fn the_callers_that_another_limit_would_refuse_are_in_the_range() {
    type Kind = (&'static str, fn(u64) -> QuotaBuilder);
    let kinds: [Kind; 5] = [
        ("fixed window", |limit| Quota::fixed_window(limit, MINUTE)),
        ("sliding window log", |limit| Quota::sliding_window_log(limit, MINUTE)),
        ("sliding window counter", |limit| Quota::sliding_window_counter(limit, MINUTE)),
        ("token bucket", |limit| Quota::token_bucket(limit, MINUTE)),
        ("token bucket with a burst", |limit| Quota::token_bucket(limit, MINUTE).burst(30)),
    ];
    let (mut said, mut narrow) = (0, 0);
    for (name, kind) in kinds {
        for seed in 1..5 {
            let asked = traffic(seed);
            let (_, insight, now) = run(&kind(60).build().expect("it is valid"), &asked);
            for limit in [12, 30, 60, 120, 240, 600] {
                let Some(OtherLimit { limit, refused_callers: range, text, .. }) = insight.read(now).with_limit(limit)
                else {
                    panic!("nothing is said about {name} with {limit}");
                };
                let (refused, ..) = run(&kind(limit).build().expect("it is valid"), &asked);
                let (least, most) = (range.at_least, range.at_most.expect("one server knows all"));
                assert!(
                    (least..=most).contains(&(refused.len() as f64)),
                    "{name} with {limit}, seed {seed}: {} callers, but {text}",
                    refused.len()
                );
                said += 1;
                narrow += u32::from(most - least < CALLERS as f64 / 2.0);
            }
        }
    }
    assert!(2 * narrow > said, "only {narrow} of {said} ranges are narrow");
}

#[test]
fn nothing_is_said_about_a_limit_of_which_nobody_can_know() {
    let asked = traffic(1);
    let of = |builder: QuotaBuilder, limit| {
        let (_, insight, now) = run(&builder.build().expect("it is valid"), &asked[..50]);
        insight.read(now).with_limit(limit)
    };
    assert_eq!(of(Quota::leaky_bucket(60, MINUTE).queue(5), 120), None);
    assert_eq!(of(Quota::fixed_window(0, MINUTE), 120), None);
    assert_eq!(of(Quota::fixed_window(60, MINUTE), 0), None);
    assert_eq!(of(Quota::fixed_window(60, MINUTE), u64::MAX), None, "it is no valid limit");
    let nobody = LimitInsight::new(&Quota::per_minute(60).constant(), Options::default(), Time::from_nanos(BEGIN_NS));
    assert_eq!(nobody.read(Time::from_nanos(BEGIN_NS)).with_limit(120), None, "nobody has asked");
}

/// The callers have no names here, so the text has their hashes.
#[test]
fn the_text_names_the_callers_that_another_limit_changes() {
    const API: Quota = Quota::fixed_window(10, MINUTE).anchor(spillgate_limiter::Anchor::FirstHit).constant();
    // Caller 1 is refused, and waits for a window that it does not fill. Caller 2 is never refused.
    let mut asked: Vec<Asked> = (0..14).map(|at| (Duration::from_secs(at), 1, 1)).collect();
    asked.extend((0..8).map(|at| (Duration::from_secs(20 + at), 2, 1)));
    let (_, insight, now) = run(&API, &asked);
    let mut reading = insight.read(now);
    let text = |reading: &spillgate_insight::Reading, limit| reading.with_limit(limit).expect("it is known").text;
    let refused = reading.top_refused.callers[0].id;
    let passed = reading.top_allowed.callers.iter().find(|caller| caller.id != refused).expect("there are two").id;
    let more = text(&reading, 20);
    let passes = format!(" would not be refused: hash {refused} (4 refused units). These are 4 of 4 refused units.");
    assert!(
        more.starts_with("With 20 instead of 10, the one caller refused in the last ") && more.contains(&passes),
        "{more}"
    );
    let unknown = text(&reading, 12);
    let named = format!("For 1 caller, it depends: hash {refused} (4 refused units; 11 to 14 in 1m). The lower number");
    assert!(unknown.contains("no caller of the 1 refused in the last ") && unknown.contains(&named), "{unknown}");
    let less = text(&reading, 5);
    assert!(
        less.starts_with(&format!(
            "With 5 instead of 10, 1 caller that was not refused would be refused: hash {passed}."
        )),
        "{less}"
    );
    reading.hide_callers();
    for limit in [5, 12, 20] {
        let text = text(&reading, limit);
        assert!(!text.contains(&refused.to_string()) && !text.contains(&passed.to_string()), "{text}");
    }
}

/// What a caller got was no retry. So if it got more than another limit admits, that limit refuses it, even if nobody knows
/// what its refused requests were.
#[test]
fn a_limit_below_what_a_caller_got_refuses_it_for_certain() {
    // For ten minutes, the caller asks for 20 units in each minute, one at a time, and gets 10 of them.
    let asked: Vec<Asked> = (0..200).map(|at| (Duration::from_secs(3 * at), 1, 1)).collect();
    for quota in [Quota::token_bucket(10, MINUTE).burst(2), Quota::fixed_window(10, MINUTE)] {
        let (refused, insight, now) = run(&quota.build().expect("it is valid"), &asked);
        assert_eq!(refused.len(), 1);
        let reading = insight.read(now);
        let of = |limit| reading.with_limit(limit).expect("it is known");
        assert_eq!(of(5).refused_callers.at_least, 1.0, "{}", of(5).text);
        assert!(of(10).text.starts_with("10 is the limit now. In all, "), "{}", of(10).text);
    }
}

#[test]
fn a_limit_that_is_not_lower_refuses_nobody_whom_this_one_did_not_refuse() {
    let asked: Vec<Asked> = (0..200).map(|at| (Duration::from_secs(3 * at), at % 3, 1)).collect();
    let (refused, insight, now) = run(&Quota::token_bucket(10, MINUTE).burst(10).build().expect("it is valid"), &asked);
    assert_eq!(refused.len(), 0);
    for limit in [10, 11, 500] {
        let other = insight.read(now).with_limit(limit).expect("it is known");
        assert_eq!(other.refused_callers.at_most, Some(0.0), "{}", other.text);
    }
}
