mod model;
mod race;
mod random;

use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use spillgate_core::{Anchor, Binding, Decision, Denied, Hit, MAX_HITS, Op, Quota, Reason, Source};

use super::{DenyCache, Entry, KEEPS, STATE_BYTES_MAX, Set};
use model::{LONG, SECOND, World, build, take, timed, wait_ns};

#[test]
fn a_refusal_is_repeated_as_the_store_would_tell_it() {
    for quota in timed(5).map(build) {
        let mut world = World::new(LONG);
        let told = world.exhaust(7, &quota);
        let Some(wait_ns) = told.retry_after.nanos() else { panic!("{told:?}") };
        let hits = [take(7, &quota, 1)];
        // Up to a thousandth before the wait is over.
        let until_ns = wait_ns * 1000 / 1001;
        for passed in [0, 1, until_ns / 3, until_ns - 1] {
            world.at_ns = 1 + passed;
            let (verdict, decisions) = world.known(&hits).expect("known");
            let (kernels, exact) = world.model.clone().decide(world.now(), &hits);
            assert_eq!(verdict, kernels.with_source(Source::DenyCache), "{quota:?} after {passed}");
            assert_eq!(decisions, exact, "{quota:?} after {passed}");
        }
        world.at_ns = 1 + until_ns + 1;
        assert!(world.known(&hits).is_none(), "{quota:?}");
        assert_eq!(world.cache.answered(), 4);
    }
}

#[test]
fn a_take_ends_the_entry_of_its_state() {
    let (bucket, other) = (build(Quota::per_second(10).burst(20)), build(Quota::per_second(100)));
    let mut world = World::new(LONG);
    assert!(world.ask(&[take(7, &bucket, 18)]).0.allowed);
    let ten = [take(7, &bucket, 10)];
    for (cost, remaining, millis) in [(2, 2, 800), (1, 0, 1000)] {
        let (verdict, refused) = world.ask(&ten);
        assert_eq!(
            (verdict.allowed, refused[0].remaining, wait_ns(&refused[0])),
            (false, remaining, millis * 1_000_000)
        );
        // One of another state does not.
        assert!(world.ask(&[take(8, &bucket, 1), take(9, &other, 1)]).0.allowed);
        assert_eq!(world.known(&ten).expect("known").1, refused);
        let force = Hit::new(7, &bucket, Op::Force { cost }, Binding::Enforce);
        world.ask(&[if remaining > 0 { take(7, &bucket, cost) } else { force }]);
        assert!(world.known(&ten).is_none());
    }
}

#[test]
fn whatever_a_known_state_refuses_is_answered() {
    let queue = |queue| build(Quota::leaky_bucket(5, SECOND).queue(queue));
    let (quota, longer) = (queue(5), queue(8));
    let mut world = World::new(LONG);
    let hit = |quota, cost, max_wait_ns| [Hit::new(7, quota, Op::Take { cost, max_wait_ns }, Binding::Enforce)];
    while world.ask(&hit(&quota, 3, u64::MAX)).0.allowed {}
    for cost in [3, 4, 7] {
        for max_wait_ns in [u64::MAX, 0] {
            let hits = hit(&quota, cost, max_wait_ns);
            let (verdict, decisions) = world.known(&hits).expect("known");
            assert_eq!(verdict.binding, Some(0));
            assert_eq!((verdict.allowed, decisions), (false, world.model.clone().decide(world.now(), &hits).1));
        }
    }
    assert!(world.known(&hit(&longer, 8, u64::MAX)).is_some(), "another quota of the state");
    for fits in [hit(&quota, 0, u64::MAX), hit(&longer, 3, u64::MAX), [Hit::new(7, &quota, Op::Peek, Binding::Enforce)]]
    {
        assert!(world.known(&fits).is_none(), "{fits:?}");
    }
    for binding in [Binding::Shadow, Binding::Quota] {
        let hits = hit(&quota, 3, u64::MAX).map(|hit| hit.with_binding(binding));
        assert!(world.known(&hits).is_none(), "{binding:?}");
    }
}

#[test]
fn a_log_that_was_shown_in_part_answers_for_what_it_was_shown_for() {
    let (log, larger) = (build(Quota::sliding_window_log(5, SECOND)), build(Quota::sliding_window_log(8, SECOND)));
    let mut world = World::new(LONG);
    for _ in 0..5 {
        world.ask(&[take(7, &log, 1)]);
        world.at_ns += 1000;
    }
    assert!(!world.ask(&[take(7, &log, 3)]).0.allowed);
    for answered in [[take(7, &log, 3)], [take(7, &larger, 6)]] {
        let (_, decisions) = world.known(&answered).expect("known");
        assert_eq!(decisions, world.model.clone().decide(world.now(), &answered).1);
    }
    assert!(world.known(&[take(7, &log, 1)]).is_none(), "whose unit that makes room was not shown");
    assert!(world.known(&[take(7, &log, 1), take(7, &log, 2)]).is_none());
    // Asked about together they are shown all of it.
    assert!(!world.ask(&[take(7, &log, 1), take(7, &log, 2)]).0.allowed);
    assert!((1..4).all(|cost| world.known(&[take(7, &log, cost)]).is_some()));
}

#[test]
fn a_request_that_does_more_than_being_refused_is_asked() {
    let free = build(Quota::token_bucket(5, SECOND));
    let charged = build(Quota::token_bucket(5, SECOND * 2).denied(Denied::Charged));
    let punished = build(Quota::token_bucket(5, SECOND * 3).penalty(SECOND));
    let mut world = World::new(LONG);
    world.exhaust(7, &free);
    let beside = |quota, op, binding| [take(7, &free, 1), Hit::new(8, quota, op, binding)];
    for binding in [Binding::Enforce, Binding::Shadow, Binding::Quota] {
        for op in [Op::take(2), Op::Peek, Op::take(0)] {
            let (verdict, decisions) = world.known(&beside(&free, op, binding)).expect("known");
            assert_eq!((verdict.allowed, verdict.binding, verdict.source), (false, Some(0), Source::DenyCache));
            assert_eq!(verdict.retry_after, decisions[0].retry_after);
            assert_eq!(decisions[1], Decision::default().with_reason(Reason::NotAsked));
            assert!(world.known(&beside(&charged, op, binding)).is_none(), "{op:?} that may be charged");
            assert!(world.known(&beside(&punished, op, binding)).is_none(), "{op:?} that may be punished");
        }
        for op in [Op::Force { cost: 1 }, Op::Refund { cost: 1, receipt: None }, Op::Reset] {
            assert!(world.known(&beside(&free, op, binding)).is_none(), "{op:?}");
        }
    }
}

#[test]
fn a_sibling_is_reported_as_the_store_showed_it_until_this_node_takes_from_it() {
    let narrow = build(Quota::fixed_window(1, LONG).anchor(Anchor::FirstHit));
    for wide in timed(100).map(build).into_iter().chain([build(Quota::concurrency(100))]) {
        let mut world = World::new(LONG);
        let hits = |key| [take(key, &narrow, 1), take(8, &wide, 1)];
        assert!(world.ask(&hits(7)).0.allowed && !world.ask(&hits(7)).0.allowed);
        for _ in 0..3 {
            let (verdict, decisions) = world.known(&hits(7)).expect("known");
            let (kernels, exact) = world.model.clone().decide(world.now(), &hits(7));
            assert_eq!((verdict, decisions), (kernels.with_source(Source::DenyCache), exact), "{wide:?}");
            world.at_ns += 1_700_000_000;
        }
        // Others are admitted, and the refusing state is known nevertheless.
        assert!(world.ask(&hits(9)).0.allowed);
        let (verdict, decisions) = world.known(&hits(7)).expect("known");
        assert_eq!((verdict.allowed, verdict.binding), (false, Some(0)));
        assert_eq!(decisions[1], Decision::default().with_reason(Reason::NotAsked));
    }
}

#[test]
fn a_cost_that_never_fits_beside_a_known_refusal_is_the_stores_to_answer() {
    let (narrow, wide) = (build(Quota::fixed_window(1, LONG)), build(Quota::fixed_window(5, LONG)));
    let mut world = World::new(LONG);
    world.exhaust(7, &narrow);
    assert!(world.known(&[take(7, &narrow, 1), take(8, &wide, 5)]).is_some());
    assert!(world.known(&[take(7, &narrow, 1), take(8, &wide, 6)]).is_none(), "no wait helps");
    assert!(world.known(&[take(7, &narrow, 1), take(8, &wide, 3), take(8, &wide, 3)]).is_none(), "nor for both");
    assert!(!world.ask(&[take(7, &narrow, 1), take(8, &wide, 1)]).0.allowed);
    assert!(world.known(&[take(7, &narrow, 1), take(8, &wide, 6)]).is_some(), "the state of both is known");
}

#[test]
fn what_may_end_otherwise_than_by_time_is_not_answered() {
    let mut world = World::new(LONG);
    let quotas = [
        build(Quota::token_bucket(5, SECOND).denied(Denied::Charged)),
        build(Quota::token_bucket(5, SECOND * 2).penalty(SECOND)),
        build(Quota::concurrency(5)),
        build(Quota::token_bucket(0, SECOND)),
    ];
    for quota in &quotas {
        world.exhaust(7, quota);
        assert!(world.known(&[take(7, quota, 1)]).is_none(), "{quota:?}");
    }
    // A time that is over before the answer is there.
    let short = build(Quota::token_bucket(1, Duration::from_nanos(900)).burst(1));
    let hits = [take(9, &short, 1)];
    while world.ask(&hits).0.allowed {}
    assert!(world.known(&hits).is_some(), "899 ns are worth it at once");
    world.at_ns += 899;
    assert!(world.known(&hits).is_none());
}

#[test]
fn an_entry_lasts_no_longer_than_it_may() {
    let quota = build(Quota::fixed_window(1, LONG).anchor(Anchor::FirstHit));
    let hits = [take(7, &quota, 1)];
    let thousandth = LONG.as_nanos() as u64 / 1001 * 1000;
    for (max_age, lasts) in [(SECOND, SECOND), (SECOND / 50, SECOND / 50), (LONG * 2, Duration::from_nanos(thousandth))]
    {
        let mut world = World::new(max_age);
        world.model.decide(world.now(), &hits);
        let (verdict, decisions) = world.model.decide(world.now(), &hits);
        let (sent, cache) = (world.at(), Rc::clone(&world.cache));
        let learn = |answered| {
            cache.question(&hits, sent).learn(&decisions, world.seen(&hits, &verdict, answered).into_iter().collect())
        };
        // However late the answer comes.
        learn(sent + lasts / 2);
        world.at_ns += lasts.as_nanos() as u64 - 1000;
        assert!(world.known(&hits).is_some(), "{max_age:?}");
        world.at_ns += 2000;
        assert!(world.known(&hits).is_none(), "{max_age:?}");
        let seen = world.seen(&hits, &verdict, sent + lasts);
        cache.question(&hits, sent).learn(&decisions, seen.into_iter().collect());
        assert!(world.known(&hits).is_none(), "an answer that comes as late as that");
    }
}

#[test]
fn a_state_that_is_large_is_not_kept() {
    let many = build(Quota::sliding_window_counter(3, SECOND * 128).segments(128));
    let log = build(Quota::sliding_window_log(1000, LONG));
    let mut world = World::new(LONG);
    world.exhaust(7, &many);
    assert!(world.known(&[take(7, &many, 1)]).is_some());
    world.exhaust(8, &log);
    assert!(world.known(&[take(8, &log, 1)]).is_some());
    for _ in 0..2 {
        world.at_ns += 1;
        assert!(!world.ask(&[take(8, &log, 500), take(8, &log, 501)]).0.allowed);
    }
    let held = |set: &Set| set.entries().iter().map(|it| it.state.heap_bytes()).max();
    let largest = world.cache.sets.iter().filter_map(held).max();
    assert!(largest.is_some_and(|bytes| (1000..STATE_BYTES_MAX).contains(&bytes)), "{largest:?}");
}

#[test]
fn there_are_no_more_entries_than_places() {
    let quota = build(Quota::fixed_window(1, LONG));
    for places in [0, 1, 2, 3, 4, 5, 64, 1000] {
        let mut world = World::new(LONG);
        world.cache = Rc::new(DenyCache::new(places, LONG, true));
        // Keys that are no hashes, too.
        for key in (0..4000).chain((0..4000).map(|key| key << 64)) {
            world.exhaust(key, &quota);
            assert!(places < 2 || world.known(&[take(key, &quota, 1)]).is_some(), "the newest is kept");
        }
        let kept = world.entries();
        assert!(kept <= places && kept >= places / 4 * 4, "{kept} entries in {places} places");
        let owned: usize = world.cache.sets.iter().map(|set| set.entries().capacity()).sum();
        assert!(owned <= places, "room for {owned} entries in {places} places");
    }
    assert!(size_of::<Entry>() <= 128, "{} bytes an entry", size_of::<Entry>());
    let world = World::new(LONG);
    assert!(world.known(&vec![take(1, &quota, 1); MAX_HITS]).is_none());
}

#[test]
fn what_is_too_old_is_forgotten_with_another_state_of_its_set() {
    let quota = build(Quota::fixed_window(2, LONG));
    let mut world = World::new(SECOND);
    world.cache = Rc::new(DenyCache::new(4, SECOND, true));
    for key in 0..3 {
        world.exhaust(key, &quota);
    }
    let keeps = |world: &World| world.cache.sets[0].generation.load(Ordering::Relaxed) & KEEPS;
    for (passed_ns, left, bit) in [(999_999_999, 3, 1), (1_000_000_000, 0, 0)] {
        world.at_ns = 1 + passed_ns;
        world.ask(&[take(9, &quota, 1)]);
        assert_eq!((world.entries(), keeps(&world)), (left, bit), "after {passed_ns} ns");
    }
}

#[test]
fn a_sibling_has_the_place_of_a_refusal_that_is_over_and_of_none_that_is_not() {
    let (narrow, wide) = (build(Quota::fixed_window(1, SECOND)), build(Quota::fixed_window(10_000, LONG)));
    let mut world = World::new(LONG);
    world.cache = Rc::new(DenyCache::new(4, LONG, true));
    let hits = |key| [take(key, &narrow, 1), take(99, &wide, 1)];
    for key in 0..4 {
        world.exhaust(key, &narrow);
    }
    assert!(world.ask(&hits(4)).0.allowed && !world.ask(&hits(4)).0.allowed);
    assert_eq!(world.known(&hits(4)).expect("known").1[1].reason, Reason::NotAsked);
    world.at_ns += 1_000_000_000;
    assert!(world.ask(&hits(4)).0.allowed && !world.ask(&hits(4)).0.allowed);
    assert_eq!(world.known(&hits(4)).expect("known").1[1].reason, Reason::Fits);
}

#[test]
fn what_this_node_changes_ends_the_entry_and_what_was_asked_before_it_is_not_learnt() {
    let quota = build(Quota::fixed_window(2, LONG));
    for op in [Op::Reset, Op::Refund { cost: 1, receipt: None }, Op::Force { cost: 1 }] {
        let mut world = World::new(LONG);
        let hits = [take(7, &quota, 1)];
        world.exhaust(7, &quota);
        assert!(world.known(&hits).is_some());
        let change = [Hit::new(7, &quota, op, Binding::Enforce)];
        let cache = Rc::clone(&world.cache);
        let mut question = cache.question(&hits, world.at());
        let (verdict, refused) = world.model.decide(world.now(), &hits);
        let seen = world.seen(&hits, &verdict, world.at());
        assert!(!verdict.allowed);
        world.ask(&change);
        assert!(world.known(&hits).is_none(), "{op:?}");
        question.learn(&refused, seen.into_iter().collect());
        drop(question);
        assert!(world.known(&hits).is_none(), "an answer from before the {op:?}");
        // Nobody waits for the end of one that fails, or is given up.
        world.exhaust(7, &quota);
        assert!(world.known(&hits).is_some(), "a question from after it");
        drop(world.cache.question(&change, world.at()));
        assert!(world.known(&hits).is_none(), "{op:?} without an answer");
    }
}
