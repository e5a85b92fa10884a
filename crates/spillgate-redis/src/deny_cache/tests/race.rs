//! Two threads add one state, which refuses takes, to the cache again and again. Meanwhile, a third thread changes this
//! state on a simulated Redis.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use smallvec::smallvec;
use spillgate_core::{Anchor, Binding, Decision, Hit, Op, Quota, Time};

use super::model::{LONG, Model, SECOND, build, take};
use crate::command::ObservedStates;
use crate::deny_cache::{DenyCache, HAS_ENTRIES};

/// The number of requests that each thread sends.
const TURNS: u64 = 300_000;

#[test]
fn a_reply_from_before_a_change_is_not_kept_whatever_threads_do_meanwhile() {
    let quota = build(Quota::fixed_window(1, LONG).anchor(Anchor::FirstHit));
    let cache = DenyCache::new(4, LONG, true);
    let at = cache.start + Duration::from_nanos(1);
    let hits = [take(7, &quota, 1)];
    let mut model = Model::default();
    model.decide(Time::from_nanos(TURNS), &hits);
    let (verdict, refused) = model.decide(Time::from_nanos(TURNS), &hits);
    assert!(!verdict.allowed);
    // `changes` simulates Redis: it counts the changes of the state. After `n` changes, Redis shows the state with the
    // time `TURNS + n`. So this time says how many changes the shown state includes.
    let changes = AtomicU64::new(0);
    let time = |changes| Time::from_nanos(TURNS + changes);
    let keep = || {
        let mut kept = 0;
        for _ in 0..TURNS {
            let mut guard = cache.guard(&hits, at);
            let now = time(changes.load(Ordering::SeqCst));
            let states = smallvec![(hits[0].state_key(), model.0[&hits[0].state_key()].clone())];
            guard.learn(&refused, vec![ObservedStates { now, replied_at: at, states }]);
            kept += guard.learnt.len();
        }
        kept
    };
    let change = || {
        let change = [Hit::new(7, &quota, Op::Reset, Binding::Enforce)];
        for _ in 0..TURNS {
            let guard = cache.guard(&change, at);
            let changed = time(changes.fetch_add(1, Ordering::SeqCst) + 1);
            drop(guard);
            for _ in 0..5 {
                let known = cache.refuse(&hits, &mut [Decision::default()], at);
                assert!(
                    known.is_none_or(|verdict| verdict.now >= changed),
                    "the cache refuses with {known:?}, but the state was changed at {changed:?}"
                );
            }
        }
    };
    let kept = thread::scope(|scope| {
        let keepers = [scope.spawn(keep), scope.spawn(keep)];
        scope.spawn(change);
        keepers.map(|keeper| keeper.join().expect("the thread does not panic"))
    });
    assert!(kept.iter().all(|kept| *kept > 0), "{kept:?}");
    drop(cache.guard(&hits, at));
    assert_eq!(cache.generations[0].load(Ordering::SeqCst) & HAS_ENTRIES, 0, "nothing is kept any more");
}

#[test]
fn a_request_without_a_kept_state_takes_no_lock() {
    let cache = Arc::new(DenyCache::new(4, LONG, true));
    let (done, is_done) = mpsc::channel();
    let (lock, other) = (cache.entries_of(0), Arc::clone(&cache));
    // The main thread has the lock. If the new thread waits for the lock, the test fails.
    thread::spawn(move || {
        let quota = build(Quota::fixed_window(1, LONG));
        drop(other.guard(&[take(7, &quota, 1)], other.start));
        done.send(()).expect("the main thread receives the message");
    });
    is_done.recv_timeout(SECOND * 60).expect("the new thread ends without the lock");
    drop(lock);
}
