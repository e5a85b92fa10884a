mod model;
mod race;
mod random;

use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use spillgate_core::{Anchor, Binding, Decision, Denied, Hit, MAX_HITS, Op, Quota, Reason, Source};

use super::{DenyCache, Entry, HAS_ENTRIES, STATE_BYTES_MAX, Set};
use model::{Fixture, LONG, SECOND, build, take, timed, wait_ns};

#[test]
fn a_refusal_is_repeated_as_the_store_would_tell_it() {
    for quota in timed(5).map(build) {
        let mut fixture = Fixture::new(LONG);
        let refusal = fixture.exhaust(7, &quota);
        let Some(wait_ns) = refusal.retry_after.nanos() else { panic!("{refusal:?}") };
        let hits = [take(7, &quota, 1)];
        // The clock of Redis can run faster than the local clock by a thousandth. So the cache refuses only while
        // `passed * 1001 / 1000 < wait`, where `passed` is the time on the local clock.
        let until_ns = wait_ns * 1000 / 1001;
        for passed in [0, 1, until_ns / 3, until_ns - 1] {
            fixture.at_ns = 1 + passed;
            let (verdict, decisions) = fixture.known(&hits).expect("known");
            let (kernels, exact) = fixture.model.clone().decide(fixture.now(), &hits);
            assert_eq!(verdict, kernels.with_source(Source::DenyCache), "{quota:?} after {passed}");
            assert_eq!(decisions, exact, "{quota:?} after {passed}");
        }
        fixture.at_ns = 1 + until_ns + 1;
        assert!(fixture.known(&hits).is_none(), "{quota:?}");
        assert_eq!(fixture.cache.refusals(), 4);
    }
}

#[test]
fn a_take_ends_the_entry_of_its_state() {
    let (bucket, other) = (build(Quota::per_second(10).burst(20)), build(Quota::per_second(100)));
    let mut fixture = Fixture::new(LONG);
    assert!(fixture.request(&[take(7, &bucket, 18)]).0.allowed);
    let ten = [take(7, &bucket, 10)];
    for (cost, remaining, millis) in [(2, 2, 800), (1, 0, 1000)] {
        let (verdict, refused) = fixture.request(&ten);
        assert_eq!(
            (verdict.allowed, refused[0].remaining, wait_ns(&refused[0])),
            (false, remaining, millis * 1_000_000)
        );
        // A take on another state does not remove the entry.
        assert!(fixture.request(&[take(8, &bucket, 1), take(9, &other, 1)]).0.allowed);
        assert_eq!(fixture.known(&ten).expect("known").1, refused);
        let force = Hit::new(7, &bucket, Op::Force { cost }, Binding::Enforce);
        fixture.request(&[if remaining > 0 { take(7, &bucket, cost) } else { force }]);
        assert!(fixture.known(&ten).is_none());
    }
}

#[test]
fn what_a_known_state_refuses_is_refused_by_the_cache() {
    let queue = |queue| build(Quota::leaky_bucket(5, SECOND).queue(queue));
    let (quota, longer) = (queue(5), queue(8));
    let mut fixture = Fixture::new(LONG);
    let hit = |quota, cost, max_wait_ns| [Hit::new(7, quota, Op::Take { cost, max_wait_ns }, Binding::Enforce)];
    while fixture.request(&hit(&quota, 3, u64::MAX)).0.allowed {}
    for cost in [3, 4, 7] {
        for max_wait_ns in [u64::MAX, 0] {
            let hits = hit(&quota, cost, max_wait_ns);
            let (verdict, decisions) = fixture.known(&hits).expect("known");
            assert_eq!(verdict.binding, Some(0));
            assert_eq!((verdict.allowed, decisions), (false, fixture.model.clone().decide(fixture.now(), &hits).1));
        }
    }
    assert!(
        fixture.known(&hit(&longer, 8, u64::MAX)).is_some(),
        "another quota that counts in the same state refuses too"
    );
    for fits in [hit(&quota, 0, u64::MAX), hit(&longer, 3, u64::MAX), [Hit::new(7, &quota, Op::Peek, Binding::Enforce)]]
    {
        assert!(fixture.known(&fits).is_none(), "{fits:?}");
    }
    for binding in [Binding::Shadow, Binding::Quota] {
        let hits = hit(&quota, 3, u64::MAX).map(|hit| hit.with_binding(binding));
        assert!(fixture.known(&hits).is_none(), "{binding:?}");
    }
}

#[test]
fn a_log_that_was_shown_in_part_decides_the_takes_that_it_was_shown_for() {
    let (log, larger) = (build(Quota::sliding_window_log(5, SECOND)), build(Quota::sliding_window_log(8, SECOND)));
    let mut fixture = Fixture::new(LONG);
    for _ in 0..5 {
        fixture.request(&[take(7, &log, 1)]);
        fixture.at_ns += 1000;
    }
    assert!(!fixture.request(&[take(7, &log, 3)]).0.allowed);
    for hits in [[take(7, &log, 3)], [take(7, &larger, 6)]] {
        let (_, decisions) = fixture.known(&hits).expect("known");
        assert_eq!(decisions, fixture.model.clone().decide(fixture.now(), &hits).1);
    }
    assert!(
        fixture.known(&[take(7, &log, 1)]).is_none(),
        "the server did not show the unit whose expiry lets this take fit"
    );
    assert!(fixture.known(&[take(7, &log, 1), take(7, &log, 2)]).is_none());
    // If one request has both takes, Redis shows the whole log.
    assert!(!fixture.request(&[take(7, &log, 1), take(7, &log, 2)]).0.allowed);
    assert!((1..4).all(|cost| fixture.known(&[take(7, &log, cost)]).is_some()));
}

#[test]
fn a_request_that_does_more_than_being_refused_is_asked() {
    let free = build(Quota::token_bucket(5, SECOND));
    let charged = build(Quota::token_bucket(5, SECOND * 2).denied(Denied::Charged));
    let punished = build(Quota::token_bucket(5, SECOND * 3).penalty(SECOND));
    let mut fixture = Fixture::new(LONG);
    fixture.exhaust(7, &free);
    let beside = |quota, op, binding| [take(7, &free, 1), Hit::new(8, quota, op, binding)];
    for binding in [Binding::Enforce, Binding::Shadow, Binding::Quota] {
        for op in [Op::take(2), Op::Peek, Op::take(0)] {
            let (verdict, decisions) = fixture.known(&beside(&free, op, binding)).expect("known");
            assert_eq!((verdict.allowed, verdict.binding, verdict.source), (false, Some(0), Source::DenyCache));
            assert_eq!(verdict.retry_after, decisions[0].retry_after);
            assert_eq!(decisions[1], Decision::default().with_reason(Reason::NotAsked));
            assert!(
                fixture.known(&beside(&charged, op, binding)).is_none(),
                "the limit of {op:?} charges refusals, so the server decides"
            );
            assert!(
                fixture.known(&beside(&punished, op, binding)).is_none(),
                "the limit of {op:?} has a penalty, so the server decides"
            );
        }
        for op in [Op::Force { cost: 1 }, Op::Refund { cost: 1, receipt: None }, Op::Reset] {
            assert!(fixture.known(&beside(&free, op, binding)).is_none(), "{op:?}");
        }
    }
}

#[test]
fn a_sibling_is_reported_as_the_store_showed_it_until_this_node_takes_from_it() {
    let narrow = build(Quota::fixed_window(1, LONG).anchor(Anchor::FirstHit));
    for wide in timed(100).map(build).into_iter().chain([build(Quota::concurrency(100))]) {
        let mut fixture = Fixture::new(LONG);
        let hits = |key| [take(key, &narrow, 1), take(8, &wide, 1)];
        assert!(fixture.request(&hits(7)).0.allowed && !fixture.request(&hits(7)).0.allowed);
        for _ in 0..3 {
            let (verdict, decisions) = fixture.known(&hits(7)).expect("known");
            let (kernels, exact) = fixture.model.clone().decide(fixture.now(), &hits(7));
            assert_eq!((verdict, decisions), (kernels.with_source(Source::DenyCache), exact), "{wide:?}");
            fixture.at_ns += 1_700_000_000;
        }
        // A request on the keys 9 and 8 is allowed. It changes the state of key 8, so the cache removes the entry of
        // this state. The state of key 7, which refuses, is still known.
        assert!(fixture.request(&hits(9)).0.allowed);
        let (verdict, decisions) = fixture.known(&hits(7)).expect("known");
        assert_eq!((verdict.allowed, verdict.binding), (false, Some(0)));
        assert_eq!(decisions[1], Decision::default().with_reason(Reason::NotAsked));
    }
}

#[test]
fn a_cost_that_never_fits_beside_a_known_refusal_is_decided_by_the_store() {
    let (narrow, wide) = (build(Quota::fixed_window(1, LONG)), build(Quota::fixed_window(5, LONG)));
    let mut fixture = Fixture::new(LONG);
    fixture.exhaust(7, &narrow);
    assert!(fixture.known(&[take(7, &narrow, 1), take(8, &wide, 5)]).is_some());
    assert!(
        fixture.known(&[take(7, &narrow, 1), take(8, &wide, 6)]).is_none(),
        "a take of 6 units never fits: ask the server"
    );
    assert!(
        fixture.known(&[take(7, &narrow, 1), take(8, &wide, 3), take(8, &wide, 3)]).is_none(),
        "two takes of 3 units never fit together: ask the server"
    );
    assert!(!fixture.request(&[take(7, &narrow, 1), take(8, &wide, 1)]).0.allowed);
    assert!(fixture.known(&[take(7, &narrow, 1), take(8, &wide, 6)]).is_some(), "the states of both keys are known");
}

#[test]
fn a_refusal_that_may_end_before_its_time_is_not_repeated() {
    let mut fixture = Fixture::new(LONG);
    let quotas = [
        build(Quota::token_bucket(5, SECOND).denied(Denied::Charged)),
        build(Quota::token_bucket(5, SECOND * 2).penalty(SECOND)),
        build(Quota::concurrency(5)),
        build(Quota::token_bucket(0, SECOND)),
    ];
    for quota in &quotas {
        fixture.exhaust(7, quota);
        assert!(fixture.known(&[take(7, quota, 1)]).is_none(), "{quota:?}");
    }
    // A refusal by this quota lasts less than a microsecond. In practice, it often ends before the reply comes, but the
    // cache keeps it.
    let short = build(Quota::token_bucket(1, Duration::from_nanos(900)).burst(1));
    let hits = [take(9, &short, 1)];
    while fixture.request(&hits).0.allowed {}
    assert!(fixture.known(&hits).is_some(), "a refusal of less than a microsecond is kept");
    fixture.at_ns += 899;
    assert!(fixture.known(&hits).is_none());
}

#[test]
fn an_entry_lasts_no_longer_than_it_may() {
    let quota = build(Quota::fixed_window(1, LONG).anchor(Anchor::FirstHit));
    let hits = [take(7, &quota, 1)];
    let thousandth = LONG.as_nanos() as u64 / 1001 * 1000;
    for (max_age, lasts) in [(SECOND, SECOND), (SECOND / 50, SECOND / 50), (LONG * 2, Duration::from_nanos(thousandth))]
    {
        let mut fixture = Fixture::new(max_age);
        fixture.model.decide(fixture.now(), &hits);
        let (verdict, decisions) = fixture.model.decide(fixture.now(), &hits);
        let (sent, cache) = (fixture.at(), Rc::clone(&fixture.cache));
        let learn = |replied_at| {
            cache.guard(&hits, sent).learn(&decisions, fixture.seen(&hits, &verdict, replied_at).into_iter().collect())
        };
        // The reply comes long after the request was sent. The age of the entry is counted from the time of sending.
        learn(sent + lasts / 2);
        fixture.at_ns += lasts.as_nanos() as u64 - 1000;
        assert!(fixture.known(&hits).is_some(), "{max_age:?}");
        fixture.at_ns += 2000;
        assert!(fixture.known(&hits).is_none(), "{max_age:?}");
        let seen = fixture.seen(&hits, &verdict, sent + lasts);
        cache.guard(&hits, sent).learn(&decisions, seen.into_iter().collect());
        assert!(fixture.known(&hits).is_none(), "a reply that comes too late is not used");
    }
}

#[test]
fn a_state_that_is_large_is_not_kept() {
    let many = build(Quota::sliding_window_counter(3, SECOND * 128).segments(128));
    let log = build(Quota::sliding_window_log(1000, LONG));
    let mut fixture = Fixture::new(LONG);
    fixture.exhaust(7, &many);
    assert!(fixture.known(&[take(7, &many, 1)]).is_some());
    fixture.exhaust(8, &log);
    assert!(fixture.known(&[take(8, &log, 1)]).is_some());
    for _ in 0..2 {
        fixture.at_ns += 1;
        assert!(!fixture.request(&[take(8, &log, 500), take(8, &log, 501)]).0.allowed);
    }
    let held = |set: &Set| set.lock().unwrap().iter().map(|it| it.state.heap_bytes()).max();
    let largest = fixture.cache.sets.iter().filter_map(held).max();
    assert!(largest.is_some_and(|bytes| (1000..STATE_BYTES_MAX).contains(&bytes)), "{largest:?}");
}

#[test]
fn there_are_no_more_entries_than_the_capacity() {
    let quota = build(Quota::fixed_window(1, LONG));
    for capacity in [0, 1, 2, 3, 4, 5, 64, 1000] {
        let mut fixture = Fixture::new(LONG);
        fixture.cache = Rc::new(DenyCache::new(capacity, LONG, true));
        // The keys are not hashes. Either only their low bits differ, or only their high bits. The cache must spread
        // both kinds of keys over its sets.
        for key in (0..4000).chain((0..4000).map(|key| key << 64)) {
            fixture.exhaust(key, &quota);
            assert!(capacity < 2 || fixture.known(&[take(key, &quota, 1)]).is_some(), "the newest entry is kept");
        }
        let kept = fixture.entries();
        assert!(kept <= capacity && kept >= capacity / 4 * 4, "{kept} entries of {capacity}");
        let allocated: usize = fixture.cache.sets.iter().map(|set| set.lock().unwrap().capacity()).sum();
        assert!(allocated <= capacity, "memory for {allocated} entries of {capacity}");
    }
    assert!(size_of::<Entry>() <= 128, "{} bytes an entry", size_of::<Entry>());
    let fixture = Fixture::new(LONG);
    assert!(fixture.known(&vec![take(1, &quota, 1); MAX_HITS]).is_none());
}

#[test]
fn an_entry_that_is_too_old_is_removed_with_another_state_of_its_set() {
    let quota = build(Quota::fixed_window(2, LONG));
    let mut fixture = Fixture::new(SECOND);
    fixture.cache = Rc::new(DenyCache::new(4, SECOND, true));
    for key in 0..3 {
        fixture.exhaust(key, &quota);
    }
    let keeps = |fixture: &Fixture| fixture.cache.generations[0].load(Ordering::Relaxed) & HAS_ENTRIES;
    for (passed_ns, left, bit) in [(999_999_999, 3, 1), (1_000_000_000, 0, 0)] {
        fixture.at_ns = 1 + passed_ns;
        fixture.request(&[take(9, &quota, 1)]);
        assert_eq!((fixture.entries(), keeps(&fixture)), (left, bit), "after {passed_ns} ns");
    }
}

#[test]
fn a_sibling_replaces_a_refusal_that_is_over_and_no_other() {
    let (narrow, wide) = (build(Quota::fixed_window(1, SECOND)), build(Quota::fixed_window(10_000, LONG)));
    let mut fixture = Fixture::new(LONG);
    fixture.cache = Rc::new(DenyCache::new(4, LONG, true));
    let hits = |key| [take(key, &narrow, 1), take(99, &wide, 1)];
    for key in 0..4 {
        fixture.exhaust(key, &narrow);
    }
    assert!(fixture.request(&hits(4)).0.allowed && !fixture.request(&hits(4)).0.allowed);
    assert_eq!(fixture.known(&hits(4)).expect("known").1[1].reason, Reason::NotAsked);
    fixture.at_ns += 1_000_000_000;
    assert!(fixture.request(&hits(4)).0.allowed && !fixture.request(&hits(4)).0.allowed);
    assert_eq!(fixture.known(&hits(4)).expect("known").1[1].reason, Reason::Fits);
}

#[test]
fn a_change_by_this_node_ends_the_entry_and_earlier_replies_are_not_learnt() {
    let quota = build(Quota::fixed_window(2, LONG));
    for op in [Op::Reset, Op::Refund { cost: 1, receipt: None }, Op::Force { cost: 1 }] {
        let mut fixture = Fixture::new(LONG);
        let hits = [take(7, &quota, 1)];
        fixture.exhaust(7, &quota);
        assert!(fixture.known(&hits).is_some());
        let change = [Hit::new(7, &quota, op, Binding::Enforce)];
        let cache = Rc::clone(&fixture.cache);
        let mut guard = cache.guard(&hits, fixture.at());
        let (verdict, refused) = fixture.model.decide(fixture.now(), &hits);
        let seen = fixture.seen(&hits, &verdict, fixture.at());
        assert!(!verdict.allowed);
        fixture.request(&change);
        assert!(fixture.known(&hits).is_none(), "{op:?}");
        guard.learn(&refused, seen.into_iter().collect());
        drop(guard);
        assert!(fixture.known(&hits).is_none(), "a reply to a request sent before the {op:?} is not kept");
        // A guard that is dropped without a reply simulates a request that fails. It must remove the entry.
        fixture.exhaust(7, &quota);
        assert!(fixture.known(&hits).is_some(), "a reply to a request sent after the change is kept");
        drop(fixture.cache.guard(&change, fixture.at()));
        assert!(fixture.known(&hits).is_none(), "{op:?} without a reply removes the entry");
    }
}
