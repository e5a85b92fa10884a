//! Models (small programs) of the locks and of the replacement of a table. Loom, a model checker for threads, runs each
//! model in all orders of events with a bounded number of preemptions. A preemption switches away from a thread that
//! could continue.
//!
//! Ordinary tests meet only the orders that the machine happens to produce. The models use the real buckets, locks and
//! tables. Only two parts are simplified, in [`Shard`]: the pointer to the table, and the mutex of the thread that
//! replaces the table.

use std::sync::{Arc, OnceLock};

use loom::sync::Mutex;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use crate::memory::shards::{Content, Fingerprint, LockedBuckets, Obstacle, Table, Width};
use crate::sync::in_all_orders;

const WIDTH: Width = Width::Wide;
/// The time in the models, and a later time at which most entries expire.
const NOW_NS: u64 = 10;
const LATER_NS: u64 = 100;

/// Runs each closure as a thread of the model, and returns their results.
fn together<T: Send + 'static>(threads: Vec<Box<dyn FnOnce() -> T + Send>>) -> Vec<T> {
    let threads: Vec<_> = threads.into_iter().map(thread::spawn).collect();
    threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
}

/// Makes a key in the lower half (0) or the upper half (1) of all keys. In a table with two home buckets, `half` is its
/// home bucket.
fn key(half: u64, number: u64) -> Fingerprint {
    Fingerprint { high: half << 63 | 1, low: number }
}

fn table(home_buckets: usize, spill: usize) -> Table {
    Table::with_spill(WIDTH, 0, home_buckets, spill)
}

fn units(content: Content) -> u64 {
    match content {
        Content::Inline { first, .. } => first,
        Content::InSlab { .. } => unreachable!("the models do not use a slab"),
    }
}

/// Takes one unit for `key` if fewer than `limit` units are used. Returns whether the unit was admitted.
fn take_locked(locked: &mut LockedBuckets<'_>, key: Fingerprint, limit: u64) -> Result<bool, Obstacle> {
    let (position, used) = match locked.find(key)? {
        Some(position) if !locked.content(position).has_expired(NOW_NS) => (position, units(locked.content(position))),
        Some(position) => (position, 0),
        None => (locked.claim(key)?, 0),
    };
    if used < limit {
        let fits = locked.write(key, position, Content::Inline { expires_at: LATER_NS, first: used + 1, second: 0 });
        assert!(fits);
    }
    Ok(used < limit)
}

fn take(table: &Table, key: Fingerprint, limit: u64) -> Result<bool, Obstacle> {
    take_locked(&mut LockedBuckets::starting_at(table, table.home_bucket(key)), key, limit)
}

/// Returns the units that are counted for `key`, or `None` if the key is not in the table.
fn counted(table: &Table, key: Fingerprint) -> Option<u64> {
    let mut locked = LockedBuckets::starting_at(table, table.home_bucket(key));
    let position = locked.find(key).expect("the table has not moved");
    position.map(|position| units(locked.content(position)))
}

/// A table, and the new table that replaces it.
struct Shard {
    old: Table,
    new: OnceLock<Table>,
    replaced: AtomicBool,
    sweep_cursor: Mutex<()>,
}

impl Shard {
    fn new(old: Table) -> Shard {
        Shard { old, new: OnceLock::new(), replaced: AtomicBool::new(false), sweep_cursor: Mutex::new(()) }
    }

    fn load(&self) -> &Table {
        if self.replaced.load(Ordering::Acquire) { self.new.get().expect("the new table exists") } else { &self.old }
    }

    /// Replaces the table by a table with this many home buckets. Returns how many entries had expired.
    fn replace(&self, home_buckets: usize) -> usize {
        let _cursor = self.sweep_cursor.lock().expect("no thread panics");
        let (mut new, mut removed) = (table(home_buckets, 1), 0);
        self.old.move_entries_to(&mut new, NOW_NS, |_| removed += 1);
        assert!(self.new.set(new).is_ok(), "the table is replaced only once");
        self.replaced.store(true, Ordering::Release);
        removed
    }

    /// Makes one request. The request starts again if it meets a table that is being replaced.
    fn request<T>(&self, attempt: impl Fn(&Table) -> Result<T, Obstacle>) -> T {
        loop {
            match attempt(self.load()) {
                Ok(done) => return done,
                Err(Obstacle::Moved) => drop(self.sweep_cursor.lock().expect("no thread panics")),
                Err(obstacle) => panic!("only `Moved` is expected, but the request met {obstacle:?}"),
            }
        }
    }
}

/// Takes one unit for each of two keys, and keeps the locks of both until the end.
fn take_both(table: &Table, mut keys: [Fingerprint; 2]) -> Result<(), Obstacle> {
    keys.sort_by_key(|key| key.high);
    let mut low = LockedBuckets::starting_at(table, table.home_bucket(keys[0]));
    take_locked(&mut low, keys[0], u64::MAX)?;
    let home = table.home_bucket(keys[1]);
    if low.contains(table, home) {
        take_locked(&mut low, keys[1], u64::MAX)?;
    } else {
        take_locked(&mut LockedBuckets::starting_at(table, home), keys[1], u64::MAX)?;
    }
    Ok(())
}

#[test]
fn two_threads_on_a_new_key_admit_exactly_the_limit() {
    in_all_orders(3, || {
        let shared = Arc::new(table(1, 0));
        let worker = |table: Arc<Table>| -> Box<dyn FnOnce() -> usize + Send> {
            Box::new(move || (0..2).filter(|_| take(&table, key(0, 1), 3).expect("the bucket has a free slot")).count())
        };
        let admitted = together(vec![worker(shared.clone()), worker(shared.clone())]);
        assert_eq!(admitted.iter().sum::<usize>(), 3);
        assert_eq!(counted(&shared, key(0, 1)), Some(3));
    });
}

#[test]
fn three_threads_on_one_key_admit_exactly_the_limit() {
    in_all_orders(1, || {
        let shared = Arc::new(table(1, 0));
        let worker = |table: Arc<Table>| -> Box<dyn FnOnce() -> bool + Send> {
            Box::new(move || take(&table, key(0, 1), 2).expect("the bucket has a free slot"))
        };
        let admitted = together((0..3).map(|_| worker(shared.clone())).collect());
        assert_eq!(admitted.iter().filter(|&&admitted| admitted).count(), 2);
    });
}

#[test]
fn requests_over_the_same_two_buckets_neither_deadlock_nor_lose_units() {
    in_all_orders(3, || {
        let shared = Arc::new(table(2, 0));
        let worker = |table: Arc<Table>, keys| -> Box<dyn FnOnce() + Send> {
            Box::new(move || take_both(&table, keys).expect("the bucket has a free slot"))
        };
        let (lower, upper) = (key(0, 1), key(1, 1));
        together(vec![worker(shared.clone(), [lower, upper]), worker(shared.clone(), [upper, lower])]);
        assert_eq!([counted(&shared, lower), counted(&shared, upper)], [Some(2), Some(2)]);
    });
}

#[test]
fn a_chain_into_the_next_bucket_and_a_request_that_starts_there_do_not_deadlock() {
    in_all_orders(2, || {
        let shared = Arc::new(table(2, 1));
        let full = WIDTH.slots() as u64;
        (0..=full).for_each(|number| assert_eq!(take(&shared, key(0, number), 9), Ok(true)));
        let worker = |table: Arc<Table>, keys| -> Box<dyn FnOnce() + Send> {
            Box::new(move || take_both(&table, keys).expect("the bucket has a free slot"))
        };
        let (spilled, upper) = (key(0, full), key(1, 1));
        together(vec![worker(shared.clone(), [spilled, upper]), worker(shared.clone(), [upper, spilled])]);
        assert_eq!([counted(&shared, spilled), counted(&shared, upper)], [Some(3), Some(2)]);
    });
}

#[test]
fn no_unit_is_lost_or_counted_twice_while_the_table_is_replaced() {
    in_all_orders(3, || {
        let shared = Arc::new(Shard::new(table(1, 0)));
        assert_eq!(take(&shared.old, key(0, 1), 9), Ok(true));
        let taker = |shard: Arc<Shard>| -> Box<dyn FnOnce() -> usize + Send> {
            Box::new(move || (0..2).filter(|_| shard.request(|table| take(table, key(0, 1), 2))).count())
        };
        let mover = |shard: Arc<Shard>| -> Box<dyn FnOnce() -> usize + Send> { Box::new(move || shard.replace(1)) };
        assert_eq!(together(vec![taker(shared.clone()), mover(shared.clone())]), [1, 0]);
        assert_eq!(counted(shared.load(), key(0, 1)), Some(2));
        assert!(
            LockedBuckets::starting_at(&shared.old, 0).find(key(0, 1)).is_err(),
            "no request can lock a bucket of the old table any more"
        );
    });
}

#[test]
fn a_new_key_is_found_after_its_table_was_replaced() {
    in_all_orders(2, || {
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
    in_all_orders(2, || {
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
fn two_new_keys_that_need_the_last_slot_are_both_found() {
    in_all_orders(3, || {
        let shared = Arc::new(table(1, 1));
        let free = WIDTH.slots() as u64 - 1;
        (0..free).for_each(|number| assert_eq!(take(&shared, key(0, number), 1), Ok(true)));
        let worker = |table: Arc<Table>, number| -> Box<dyn FnOnce() + Send> {
            Box::new(move || assert_eq!(take(&table, key(0, number), 1), Ok(true)))
        };
        together(vec![worker(shared.clone(), free), worker(shared.clone(), free + 1)]);
        assert_eq!([free, free + 1].map(|number| counted(&shared, key(0, number))), [Some(1), Some(1)]);
        assert_eq!(shared.overflows(), [1, 0], "one of the two keys is in the bucket after its home bucket");
    });
}

#[test]
fn a_spilled_key_and_a_key_at_home_that_need_the_same_slot_both_get_one() {
    in_all_orders(3, || {
        let shared = Arc::new(table(2, 1));
        let full = WIDTH.slots() as u64;
        (0..full).for_each(|number| assert_eq!(take(&shared, key(0, number), 1), Ok(true)));
        let worker = |table: Arc<Table>, key| -> Box<dyn FnOnce() + Send> {
            Box::new(move || assert_eq!(take(&table, key, 1), Ok(true)))
        };
        let (spilled, upper) = (key(0, full), key(1, 1));
        together(vec![worker(shared.clone(), spilled), worker(shared.clone(), upper)]);
        assert_eq!([counted(&shared, spilled), counted(&shared, upper)], [Some(1), Some(1)]);
        assert_eq!(shared.overflows(), [1, 0, 0]);
    });
}

#[test]
fn an_expired_entry_is_swept_or_reused_but_never_both() {
    in_all_orders(3, || {
        let shared = Arc::new(table(1, 1));
        (0..=WIDTH.slots() as u64).for_each(|number| assert_eq!(take(&shared, key(0, number), 1), Ok(true)));
        let spilled = key(0, WIDTH.slots() as u64);
        let mut locked = LockedBuckets::starting_at(&shared, 0);
        let position = locked.find(spilled).expect("the table has not moved").expect("the key was claimed");
        assert!(locked.write(spilled, position, Content::Inline { expires_at: NOW_NS, first: 7, second: 0 }));
        drop(locked);
        let taker = |table: Arc<Table>| -> Box<dyn FnOnce() -> usize + Send> {
            Box::new(move || usize::from(take(&table, spilled, 1).expect("the bucket has a free slot")))
        };
        let sweeper = |table: Arc<Table>| -> Box<dyn FnOnce() -> usize + Send> {
            Box::new(move || {
                let mut removed = 0;
                LockedBuckets::starting_at(&table, 0)
                    .remove_expired(NOW_NS, |_| removed += 1)
                    .expect("the table has not moved");
                removed
            })
        };
        let done = together(vec![taker(shared.clone()), sweeper(shared.clone())]);
        assert_eq!(done[0], 1);
        assert!(done[1] <= 1);
        assert_eq!(counted(&shared, spilled), Some(1), "the take is counted, the expired units are not");
        assert_eq!(shared.overflows(), [1, 0]);
    });
}
