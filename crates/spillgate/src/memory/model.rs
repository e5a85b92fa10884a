//! The locks and the moving of tables under every order of events that matters, by loom.
//!
//! Modelled are buckets, locks over several of them, and tables that replace others; a [`Shard`]
//! stands for the pointer to the table and the mutex that is held while it changes.

use std::sync::{Arc, OnceLock};

use loom::model::Builder;
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use super::bucket::{Content, Width};
use super::fingerprint::Fingerprint;
use super::table::{Locked, Obstacle, Table};

const WIDTH: Width = Width::Wide;
/// When entries expire that do not in these models, and what the time is in them.
const LATER_NS: u64 = 100;
const NOW_NS: u64 = 10;

/// Checks all orders with at most so many preemptions: switches away from a thread that could go on.
fn check(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(model);
}

/// Runs each as a thread of the model, and returns what they return.
fn together<T: Send + 'static>(threads: Vec<Box<dyn FnOnce() -> T + Send>>) -> Vec<T> {
    let threads: Vec<_> = threads.into_iter().map(thread::spawn).collect();
    threads.into_iter().map(|thread| thread.join().expect("a thread ends")).collect()
}

/// Of a key in the lower or the upper half: home bucket 0 or 1 of two.
fn key(half: u64, number: u64) -> Fingerprint {
    Fingerprint { high: half << 63 | 1, low: number }
}

fn table(homes: usize, spill: usize) -> Table {
    Table::with_spill(WIDTH, 0, homes, spill)
}

fn units(content: Content) -> u64 {
    match content {
        Content::Inline { first, .. } => first,
        Content::Boxed { .. } => unreachable!("there is no slab here"),
    }
}

/// Puts one unit of `key` on what is counted under `locked`, up to `limit`; whether it was admitted.
fn take_locked(locked: &mut Locked<'_>, key: Fingerprint, limit: u64) -> Result<bool, Obstacle> {
    let (at, used) = match locked.find(key)? {
        Some(at) if !locked.content(at).has_expired(NOW_NS) => (at, units(locked.content(at))),
        Some(at) => (at, 0),
        None => (locked.claim(key)?, 0),
    };
    if used < limit {
        let fits = locked.write(key, at, Content::Inline { expires_at: LATER_NS, first: used + 1, second: 0 });
        assert!(fits);
    }
    Ok(used < limit)
}

fn take(table: &Table, key: Fingerprint, limit: u64) -> Result<bool, Obstacle> {
    take_locked(&mut Locked::from(table, table.home(key)), key, limit)
}

/// What is counted for `key`: `None` if it is not in the table.
fn counted(table: &Table, key: Fingerprint) -> Option<u64> {
    let mut locked = Locked::from(table, table.home(key));
    let at = locked.find(key).expect("the table has not moved");
    at.map(|at| units(locked.content(at)))
}

/// A table and the one that replaces it.
struct Shard {
    old: Table,
    new: OnceLock<Table>,
    replaced: AtomicBool,
    hand: Mutex<()>,
}

impl Shard {
    fn new(old: Table) -> Shard {
        Shard { old, new: OnceLock::new(), replaced: AtomicBool::new(false), hand: Mutex::new(()) }
    }

    fn load(&self) -> &Table {
        if self.replaced.load(Ordering::Acquire) { self.new.get().expect("it is there") } else { &self.old }
    }

    /// Replaces the table by one of `homes` home buckets; how many entries had expired.
    fn replace(&self, homes: usize) -> usize {
        let _hand = self.hand.lock().expect("no thread panics");
        let (mut new, mut gone) = (table(homes, 1), 0);
        self.old.move_to(&mut new, NOW_NS, |_| gone += 1);
        assert!(self.new.set(new).is_ok(), "replaced once");
        self.replaced.store(true, Ordering::Release);
        gone
    }

    /// One request: begins anew where it meets a table that is being replaced.
    fn request<T>(&self, attempt: impl Fn(&Table) -> Result<T, Obstacle>) -> T {
        loop {
            match attempt(self.load()) {
                Ok(done) => return done,
                Err(Obstacle::Moved) => drop(self.hand.lock().expect("no thread panics")),
                Err(obstacle) => panic!("there is room: {obstacle:?}"),
            }
        }
    }
}

/// Takes one unit each of two keys under the locks of both, or of neither.
fn take_both(table: &Table, mut keys: [Fingerprint; 2]) -> Result<(), Obstacle> {
    keys.sort_by_key(|key| key.high);
    let mut low = Locked::from(table, table.home(keys[0]));
    take_locked(&mut low, keys[0], u64::MAX)?;
    let home = table.home(keys[1]);
    if low.holds(table, home) {
        take_locked(&mut low, keys[1], u64::MAX)?;
    } else {
        take_locked(&mut Locked::from(table, home), keys[1], u64::MAX)?;
    }
    Ok(())
}

#[test]
fn two_threads_on_a_new_key_admit_exactly_the_limit() {
    check(3, || {
        let shared = Arc::new(table(1, 0));
        let worker = |table: Arc<Table>| -> Box<dyn FnOnce() -> usize + Send> {
            Box::new(move || (0..2).filter(|_| take(&table, key(0, 1), 3).expect("room")).count())
        };
        let admitted = together(vec![worker(shared.clone()), worker(shared.clone())]);
        assert_eq!(admitted.iter().sum::<usize>(), 3);
        assert_eq!(counted(&shared, key(0, 1)), Some(3));
    });
}

#[test]
fn three_threads_on_one_key_admit_exactly_the_limit() {
    check(1, || {
        let shared = Arc::new(table(1, 0));
        let worker = |table: Arc<Table>| -> Box<dyn FnOnce() -> bool + Send> {
            Box::new(move || take(&table, key(0, 1), 2).expect("room"))
        };
        let admitted = together((0..3).map(|_| worker(shared.clone())).collect());
        assert_eq!(admitted.iter().filter(|&&admitted| admitted).count(), 2);
    });
}

#[test]
fn requests_over_the_same_two_buckets_neither_deadlock_nor_lose_units() {
    check(3, || {
        let shared = Arc::new(table(2, 0));
        let worker = |table: Arc<Table>, keys| -> Box<dyn FnOnce() + Send> {
            Box::new(move || take_both(&table, keys).expect("room"))
        };
        let (lower, upper) = (key(0, 1), key(1, 1));
        together(vec![worker(shared.clone(), [lower, upper]), worker(shared.clone(), [upper, lower])]);
        assert_eq!([counted(&shared, lower), counted(&shared, upper)], [Some(2), Some(2)]);
    });
}

#[test]
fn a_chain_into_the_next_bucket_and_a_request_that_begins_there_do_not_deadlock() {
    check(2, || {
        let shared = Arc::new(table(2, 1));
        let full = WIDTH.slots() as u64;
        (0..=full).for_each(|number| assert_eq!(take(&shared, key(0, number), 9), Ok(true)));
        let worker = |table: Arc<Table>, keys| -> Box<dyn FnOnce() + Send> {
            Box::new(move || take_both(&table, keys).expect("room"))
        };
        let (behind, upper) = (key(0, full), key(1, 1));
        together(vec![worker(shared.clone(), [behind, upper]), worker(shared.clone(), [upper, behind])]);
        assert_eq!([counted(&shared, behind), counted(&shared, upper)], [Some(3), Some(2)]);
    });
}

#[test]
fn requests_lose_and_double_nothing_while_their_table_is_replaced() {
    check(3, || {
        let shared = Arc::new(Shard::new(table(1, 0)));
        assert_eq!(take(&shared.old, key(0, 1), 9), Ok(true));
        let taker = |shard: Arc<Shard>| -> Box<dyn FnOnce() -> usize + Send> {
            Box::new(move || (0..2).filter(|_| shard.request(|table| take(table, key(0, 1), 2))).count())
        };
        let mover = |shard: Arc<Shard>| -> Box<dyn FnOnce() -> usize + Send> { Box::new(move || shard.replace(1)) };
        assert_eq!(together(vec![taker(shared.clone()), mover(shared.clone())]), [1, 0]);
        assert_eq!(counted(shared.load(), key(0, 1)), Some(2));
        assert!(Locked::from(&shared.old, 0).find(key(0, 1)).is_err(), "nobody gets the old one any more");
    });
}

#[test]
fn a_new_key_is_found_after_the_table_that_it_came_into_was_replaced() {
    check(2, || {
        let shared = Arc::new(Shard::new(table(2, 0)));
        let taker = |shard: Arc<Shard>, half| -> Box<dyn FnOnce() + Send> {
            Box::new(move || assert!(shard.request(|table| take(table, key(half, 1), 1))))
        };
        let mover =
            |shard: Arc<Shard>| -> Box<dyn FnOnce() + Send> { Box::new(move || assert_eq!(shard.replace(1), 0)) };
        together(vec![taker(shared.clone(), 0), taker(shared.clone(), 1), mover(shared.clone())]);
        assert_eq!([0, 1].map(|half| counted(shared.load(), key(half, 1))), [Some(1), Some(1)]);
    });
}

#[test]
fn a_request_of_two_keys_is_charged_once_while_its_table_is_replaced() {
    check(2, || {
        let shared = Arc::new(Shard::new(table(2, 0)));
        let (lower, upper) = (key(0, 1), key(1, 1));
        for key in [lower, upper] {
            assert_eq!(take(&shared.old, key, 9), Ok(true));
        }
        let taker = |shard: Arc<Shard>| -> Box<dyn FnOnce() + Send> {
            Box::new(move || shard.request(|table| take_both(table, [lower, upper])))
        };
        let mover =
            |shard: Arc<Shard>| -> Box<dyn FnOnce() + Send> { Box::new(move || assert_eq!(shard.replace(1), 0)) };
        together(vec![taker(shared.clone()), mover(shared.clone())]);
        assert_eq!([lower, upper].map(|key| counted(shared.load(), key)), [Some(2), Some(2)]);
    });
}

#[test]
fn two_new_keys_that_want_the_last_slot_are_both_found() {
    check(3, || {
        let shared = Arc::new(table(1, 1));
        let free = WIDTH.slots() as u64 - 1;
        (0..free).for_each(|number| assert_eq!(take(&shared, key(0, number), 1), Ok(true)));
        let worker = |table: Arc<Table>, number| -> Box<dyn FnOnce() + Send> {
            Box::new(move || assert_eq!(take(&table, key(0, number), 1), Ok(true)))
        };
        together(vec![worker(shared.clone(), free), worker(shared.clone(), free + 1)]);
        assert_eq!([free, free + 1].map(|number| counted(&shared, key(0, number))), [Some(1), Some(1)]);
        assert_eq!(shared.passed(), [1, 0], "one of them lies behind its home");
    });
}

#[test]
fn a_chain_and_a_home_that_want_the_same_slot_both_get_one() {
    check(3, || {
        let shared = Arc::new(table(2, 1));
        let full = WIDTH.slots() as u64;
        (0..full).for_each(|number| assert_eq!(take(&shared, key(0, number), 1), Ok(true)));
        let worker = |table: Arc<Table>, key| -> Box<dyn FnOnce() + Send> {
            Box::new(move || assert_eq!(take(&table, key, 1), Ok(true)))
        };
        let (behind, upper) = (key(0, full), key(1, 1));
        together(vec![worker(shared.clone(), behind), worker(shared.clone(), upper)]);
        assert_eq!([counted(&shared, behind), counted(&shared, upper)], [Some(1), Some(1)]);
        assert_eq!(shared.passed(), [1, 0, 0]);
    });
}

#[test]
fn an_expired_entry_is_forgotten_or_begins_anew_but_never_both() {
    check(3, || {
        let shared = Arc::new(table(1, 1));
        (0..=WIDTH.slots() as u64).for_each(|number| assert_eq!(take(&shared, key(0, number), 1), Ok(true)));
        let behind = key(0, WIDTH.slots() as u64);
        let mut locked = Locked::from(&shared, 0);
        let at = locked.find(behind).expect("not moved").expect("it is there");
        assert!(locked.write(behind, at, Content::Inline { expires_at: NOW_NS, first: 7, second: 0 }));
        drop(locked);
        let taker = |table: Arc<Table>| -> Box<dyn FnOnce() -> usize + Send> {
            Box::new(move || usize::from(take(&table, behind, 1).expect("room")))
        };
        let sweeper = |table: Arc<Table>| -> Box<dyn FnOnce() -> usize + Send> {
            Box::new(move || {
                let mut gone = 0;
                Locked::from(&table, 0).forget_expired(NOW_NS, |_| gone += 1).expect("not moved");
                gone
            })
        };
        let done = together(vec![taker(shared.clone()), sweeper(shared.clone())]);
        assert_eq!(done[0], 1);
        assert!(done[1] <= 1);
        assert_eq!(counted(&shared, behind), Some(1), "what was taken is counted, what had expired is not");
        assert_eq!(shared.passed(), [1, 0]);
    });
}
