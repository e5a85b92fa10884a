//! How much is sent while a region is slow.

use crate::regions::SECOND_NS;
use crate::regions::pace::Pace;

const MS: u64 = 1_000_000;

/// Ten rounds of 1,000 entries, as far as the pace allows, each in one call. Returns what may be sent afterwards.
fn second(pace: &mut Pace, second: u64, took: Option<u64>) -> usize {
    for round in 0..10 {
        let now = second * SECOND_NS + round * 100 * MS;
        let entries = pace.may_send(now).min(1000);
        pace.called(now);
        pace.sent(entries);
        pace.answered(took, now);
    }
    pace.may_send((second + 1) * SECOND_NS)
}

#[test]
fn a_slow_region_gets_half_and_then_a_tenth_more_each_second() {
    let mut pace = Pace::new(16_000, 0);
    for at in 0..5 {
        assert_eq!(second(&mut pace, at, Some((40 + at) * MS)), 16_000, "it begins at its bound");
    }
    assert_eq!(second(&mut pace, 5, Some(79 * MS)), 16_000, "below twice the fastest");
    let slow = [6, 7, 8].map(|at| second(&mut pace, at, Some(80 * MS)));
    assert_eq!(slow, [500, 250, 125]);
    let better = [9, 10, 11].map(|at| second(&mut pace, at, Some(50 * MS)));
    assert_eq!(better, [137, 150, 165]);
    // It never stops.
    let least = (12..30).map(|at| second(&mut pace, at, Some(90 * MS))).last();
    assert_eq!(least, Some(32));
    // After a minute, it is as fast as it gets.
    let later = (30..100).map(|at| second(&mut pace, at, Some(90 * MS))).last();
    assert!(later > Some(300), "{later:?}");
}

#[test]
fn failures_and_silence_are_slow_and_few_answers_say_nothing() {
    let mut pace = Pace::new(16_000, 0);
    assert_eq!(second(&mut pace, 0, Some(40 * MS)), 16_000);
    assert_eq!(second(&mut pace, 1, None), 500);
    // Calls that are under way when a second begins, and no answer in it.
    for call in 0..10 {
        pace.called(2 * SECOND_NS + call * 100 * MS);
        pace.sent(300);
    }
    assert_eq!(pace.may_send(3 * SECOND_NS), 550, "they may be answered in time");
    pace.sent(300);
    assert_eq!(pace.may_send(4 * SECOND_NS), 150);
    let mut pace = Pace::new(16_000, 0);
    second(&mut pace, 0, Some(40 * MS));
    for call in 0..7 {
        pace.called(SECOND_NS + call);
        pace.answered(Some(200 * MS), SECOND_NS + call);
    }
    assert_eq!(pace.may_send(2 * SECOND_NS), 16_000);
    // A long pause costs no time.
    assert_eq!(pace.may_send(u64::MAX), 16_000);
}

#[test]
fn near_by_a_multiple_of_the_fastest_answer_is_not_slow() {
    let mut pace = Pace::new(16_000, 0);
    assert_eq!(second(&mut pace, 0, Some(MS / 5)), 16_000);
    // A call with 32 entries takes longer than one with a single entry, and so does a busy process.
    for at in 1..10 {
        assert_eq!(second(&mut pace, at, Some(10 * MS)), 16_000);
    }
    assert_eq!(second(&mut pace, 10, Some(MS / 5 + 10 * MS)), 500);
}
