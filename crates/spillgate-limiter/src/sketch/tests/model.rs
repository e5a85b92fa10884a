//! Models (small programs) of sketches. Loom, a model checker for threads, runs each model in all orders of events with
//! a bounded number of preemptions. A preemption switches away from a thread that could continue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering as StdOrdering};
use std::time::Duration;

use loom::thread;
use spillgate_core::{Quota, Time};

use crate::sketch::Sketch;
use crate::sketch::rows::DEPTH;
use crate::sync::{AtomicU64, Ordering, in_all_orders};

const SECOND: u64 = 1_000_000_000;

/// Runs each closure as a thread of the model, and returns how many of them return true.
fn together(threads: Vec<Box<dyn FnOnce() -> bool + Send>>) -> usize {
    let threads: Vec<_> = threads.into_iter().map(thread::spawn).collect();
    threads.into_iter().map(|thread| thread.join().expect("no thread panics")).filter(|admitted| *admitted).count()
}

fn bucket() -> Quota {
    Quota::token_bucket(1, Duration::from_secs(1)).build().expect("the quota is valid")
}

fn counter() -> Quota {
    Quota::sliding_window_counter(1, Duration::from_secs(1)).build().expect("the quota is valid")
}

#[test]
fn two_threads_on_a_key_admit_exactly_the_limit() {
    for quota in [bucket, counter] {
        in_all_orders(3, move || {
            let sketch = Arc::new(Sketch::with_cells(&quota(), 0));
            let take = || {
                let sketch = Arc::clone(&sketch);
                Box::new(move || sketch.take_now(Time::from_nanos(5 * SECOND), &quota(), 7, 1).allowed) as Box<_>
            };
            assert_eq!(together(vec![take(), take()]), 1);
        });
    }
}

#[test]
fn keys_with_the_same_cells_and_other_locks_never_lower_a_cell() {
    in_all_orders(3, || {
        let quota = Quota::token_bucket(2, Duration::from_secs(1)).build().expect("the quota is valid");
        let sketch = Arc::new(Sketch::with_cells(&quota, 0));
        let lock = |key: u128| sketch.locks.index_of(sketch.mixer.mix(key));
        let other = (8..).find(|key| lock(*key) != lock(7)).expect("there are two locks");
        let take = |key| {
            let (sketch, quota) = (Arc::clone(&sketch), quota.clone());
            Box::new(move || {
                let at = Time::from_nanos(5 * SECOND);
                sketch.take_now(at, &quota, key, 1).allowed
            }) as Box<_>
        };
        assert!((1..=2).contains(&together(vec![take(7), take(other)])));
        // At least one take was admitted, and both keys have the same cells. So at most one of the two units is left.
        let at = Time::from_nanos(5 * SECOND);
        let more = (0..2).filter(|_| sketch.take_now(at, &quota, 7, 1).allowed).count();
        assert!(more <= 1, "the key 7 was admitted three times");
    });
}

/// A request in the window 6 reads the counts of the window 5, while another request begins the window 7. The windows 5
/// and 7 use the same cells, so the first request could miss the units of the window 5.
#[test]
fn a_window_that_begins_meanwhile_admits_no_more_to_the_window_before() {
    in_all_orders(3, || {
        let quota = counter();
        let sketch = Arc::new(Sketch::with_cells(&quota, 0));
        assert!(sketch.take_now(Time::from_nanos(6 * SECOND - 1), &quota, 7, 1).allowed);
        let take = |key, ns| {
            let (sketch, quota) = (Arc::clone(&sketch), quota.clone());
            Box::new(move || sketch.take_now(Time::from_nanos(ns), &quota, key, 1).allowed) as Box<_>
        };
        let _ = together(vec![take(7, 6 * SECOND), take(8, 7 * SECOND)]);
        let crate::sketch::Cells::Windows(windows) = &sketch.cells else { unreachable!("a counter has windows") };
        assert_eq!(windows.estimate(&sketch.mixer, sketch.mixer.mix(7), 6), 0, "nothing was counted in the window 6");
    });
}

/// The cells of one key without a lock, as in `unlocked.rs`.
fn unlocked_cells() -> Arc<[AtomicU64; DEPTH]> {
    Arc::new(std::array::from_fn(|_| AtomicU64::new(0)))
}

/// Returns whether loom finds an order in which two threads are admitted, although only one may be.
fn breaks(take: fn(&[AtomicU64; DEPTH]) -> bool) -> bool {
    let broken = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&broken);
    in_all_orders(2, move || {
        let cells = unlocked_cells();
        let take = || {
            let cells = Arc::clone(&cells);
            Box::new(move || take(&cells)) as Box<_>
        };
        if together(vec![take(), take()]) > 1 {
            seen.store(true, StdOrdering::Relaxed);
        }
    });
    broken.load(StdOrdering::Relaxed)
}

fn raise_all(cells: &[AtomicU64; DEPTH]) {
    for cell in cells {
        cell.fetch_max(1, Ordering::AcqRel);
    }
}

#[test]
fn the_variants_without_locks_admit_too_much() {
    assert!(breaks(|cells| {
        let free = cells.iter().any(|cell| cell.load(Ordering::Acquire) == 0);
        if free {
            raise_all(cells);
        }
        free
    }));
    assert!(breaks(|cells| {
        let Some(smallest) = cells.iter().find(|cell| cell.load(Ordering::Acquire) == 0) else { return false };
        let won = smallest.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if won {
            raise_all(cells);
        }
        won
    }));
}
