//! Random reservations in memory and on Redis never use more than the bound, and none is settled twice.
//!
//! Each task has its own keys and its own clock, so the time of every decision is known and the bound can be checked
//! exactly. The environment variable `RESERVATIONS` sets the number of operations for each store.

#![allow(clippy::print_stdout, reason = "the test prints what it has counted")]

use std::sync::Arc;

use super::*;
use spillgate::{KeyHasher, Limiter, ManualClock, OpKind, Reservation, Reservations, StoreError};
use spillgate_testkit::Random;
use tokio::task::JoinSet;

const TASKS: u64 = 8;
/// The number of keys of each task.
const KEYS: u64 = 50;
const LIFE: Duration = Duration::from_secs(2);
const LIMIT: u64 = 100;
/// After each quarter of the operations, the size of the store is read.
const QUARTERS: u64 = 4;
/// The windows of the limits. One is longer than the life of a reservation, and one is shorter.
const WINDOWS: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(1)];

/// A store that gets its time from the caller.
#[derive(Debug)]
struct AtTime<S>(Arc<S>);

impl<S: Store> Store for AtTime<S> {
    fn supports(&self, quota: &Quota, op: OpKind) -> bool {
        self.0.supports(quota, op)
    }

    async fn decide(
        &self,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        self.0.decide(timing, hits, decisions).await
    }

    fn try_decide(
        &self,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Option<Result<Verdict, StoreError>> {
        self.0.try_decide(timing, hits, decisions)
    }
}

/// A reservation, and what has happened to it.
struct Made {
    at_ns: u64,
    /// The number of the operation that made it.
    number: u64,
    estimate: u64,
    /// The number of the operation that settled it, and the units that were used.
    settled: Option<(u64, u64)>,
}

impl Made {
    /// Returns the units that count for the bound. A commit above the estimate may exceed the bound, but only by the
    /// units above the estimate. So these units do not count.
    fn used(&self) -> u64 {
        self.settled.map_or(self.estimate, |(_, used)| used.min(self.estimate))
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    reserved: u64,
    refused: u64,
    committed: u64,
    cancelled: u64,
    dropped: u64,
    crashed: u64,
    late: u64,
    repeated: u64,
}

impl Counts {
    fn of(self) -> [(&'static str, u64); 8] {
        [
            ("reserved", self.reserved),
            ("refused", self.refused),
            ("committed", self.committed),
            ("cancelled", self.cancelled),
            ("dropped", self.dropped),
            ("crashed", self.crashed),
            ("settled too late", self.late),
            ("settled again", self.repeated),
        ]
    }
}

type Open<S> = (usize, u64, Reservation<AtTime<S>, ManualClock>);

struct Task<S: Store + 'static> {
    store: Arc<S>,
    /// Whether the store cancels a dropped reservation before the next operation.
    drops_at_once: bool,
    clock: ManualClock,
    window: Duration,
    /// The number of the current operation.
    number: u64,
    reservations: Reservations<AtTime<S>, ManualClock>,
    random: Random,
    first_key: u64,
    /// For each key, its reservations in the order of time.
    made: Vec<Vec<Made>>,
    open: Vec<Open<S>>,
    /// Reservations that were settled, or whose life has ended.
    closed: Vec<Open<S>>,
    counts: Counts,
}

impl<S: Store + 'static> Task<S> {
    fn new(store: S, drops_at_once: bool, quota: &Quota, number: u64) -> Task<S> {
        let (store, clock) = (Arc::new(store), ManualClock::at(Time::from_nanos(1_790_000_000_000_000_000)));
        let limiter = Limiter::with_keys(AtTime(Arc::clone(&store)), clock.clone(), KeyHasher::with_secret([9; 16]));
        Task {
            store,
            drops_at_once,
            clock,
            window: Duration::from_nanos(quota.window_ns()),
            number: 0,
            reservations: Reservations::new(limiter, quota.clone()).life(LIFE),
            random: Random(number),
            first_key: number * KEYS,
            made: (0..KEYS).map(|_| Vec::new()).collect(),
            open: Vec::new(),
            closed: Vec::new(),
            counts: Counts::default(),
        }
    }

    async fn run(mut self, operations: u64) -> Task<S> {
        for _ in 0..operations {
            let longest_us = self.window.as_micros() as u64 / 800;
            let pause = match self.random.below(100) {
                0 => LIFE,
                1..6 => LIFE / 4,
                _ => Duration::from_micros(self.random.below(longest_us)),
            };
            self.number += 1;
            self.clock.advance(pause);
            self.expire().await;
            match self.random.below(10) {
                0..5 => self.reserve().await,
                5..8 => self.settle().await,
                8 => self.settle_again().await,
                _ => self.lose(),
            }
        }
        self
    }

    async fn reserve(&mut self) {
        // With fewer keys, a short window is as busy as a long one.
        let keys = if self.window < LIFE { KEYS / 5 } else { KEYS };
        let (key, estimate) = (self.random.below(keys), 1 + self.random.below(LIMIT / 2));
        let (decision, reservation) =
            self.reservations.reserve(self.first_key + key, estimate).await.expect("the store answers");
        assert_eq!(decision.allowed, reservation.is_some());
        let Some(reservation) = reservation else { return self.counts.refused += 1 };
        self.counts.reserved += 1;
        let at_ns = spillgate::Clock::now(&self.clock).as_nanos();
        self.made[key as usize].push(Made { at_ns, number: self.number, estimate, settled: None });
        self.open.push((self.made[key as usize].len() - 1, key, reservation));
    }

    async fn settle(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let (index, key, mut reservation) = self.open.swap_remove(self.random.index(self.open.len()));
        let made = &mut self.made[key as usize][index];
        // A fifth of the commits are larger than their estimates.
        let used = match self.random.below(5) {
            0 => made.estimate + self.random.below(20),
            _ => self.random.below(made.estimate + 1),
        };
        let settled = if self.random.one_in(4) {
            self.counts.cancelled += 1;
            made.settled = Some((self.number, 0));
            reservation.cancel().await
        } else {
            self.counts.committed += 1;
            made.settled = Some((self.number, used));
            reservation.commit(used).await
        };
        assert!(settled.expect("the store answers").is_some(), "it was open");
        self.close((index, key, reservation));
    }

    async fn settle_again(&mut self) {
        if self.closed.is_empty() {
            return;
        }
        let index = self.random.index(self.closed.len());
        let used = self.random.below(100);
        let reservation = &mut self.closed[index].2;
        let settled = if used == 0 { reservation.cancel().await } else { reservation.commit(used).await };
        assert_eq!(settled, Ok(None), "it was settled twice");
        self.counts.repeated += 1;
    }

    /// Drops a reservation, or loses it as a crash does.
    fn lose(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let (index, key, reservation) = self.open.swap_remove(self.random.index(self.open.len()));
        if self.drops_at_once && self.random.one_in(2) {
            self.made[key as usize][index].settled = Some((self.number, 0));
            self.counts.dropped += 1;
            return drop(reservation);
        }
        self.counts.crashed += 1;
        std::mem::forget(reservation);
    }

    /// Tries to settle the reservations whose life has ended.
    async fn expire(&mut self) {
        let end_ns = spillgate::Clock::now(&self.clock).as_nanos() - LIFE.as_nanos() as u64;
        while let Some(position) =
            self.open.iter().position(|(index, key, _)| self.made[*key as usize][*index].at_ns <= end_ns)
        {
            let (index, key, mut reservation) = self.open.swap_remove(position);
            let used = self.random.below(60);
            assert_eq!(reservation.commit(used).await, Ok(None), "its life has ended");
            self.counts.late += 1;
            self.close((index, key, reservation));
        }
    }

    fn close(&mut self, closed: Open<S>) {
        if self.closed.len() < 500 {
            return self.closed.push(closed);
        }
        let index = self.random.index(self.closed.len());
        self.closed[index] = closed;
    }

    /// Checks the bound of each key. Returns the units that were used.
    fn check(&self, quota: &Quota) -> u64 {
        self.made.iter().for_each(|made| assert_within_bound(quota, made));
        self.made.iter().flatten().map(Made::used).sum()
    }
}

/// Checks that in any time `s` the reservations use at most `f(s)` units, the bound of the quota. In a token bucket,
/// units that earlier reservations give back are added to this bound.
fn assert_within_bound(quota: &Quota, made: &[Made]) {
    let window_ns = u128::from(quota.window_ns());
    // The bound `f(s)`, multiplied by the window in nanoseconds, so that the numbers stay whole.
    let bound = |s_ns: u128| match quota.algorithm() {
        spillgate::Algorithm::TokenBucket | spillgate::Algorithm::SlidingWindowCounter { .. } => {
            u128::from(LIMIT) * (window_ns + s_ns)
        }
        spillgate::Algorithm::SlidingWindowLog => u128::from(LIMIT) * (s_ns / window_ns + 1) * window_ns,
        _ => u128::from(LIMIT) * (s_ns.div_ceil(window_ns) + 1) * window_ns,
    };
    for (first, begin) in made.iter().enumerate() {
        let is_open = |it: &&Made| it.settled.is_some_and(|(number, _)| number > begin.number);
        let given_back = made[..first].iter().filter(is_open).map(|it| it.estimate - it.used()).sum::<u64>();
        let is_bucket = quota.algorithm() == spillgate::Algorithm::TokenBucket;
        let more = if is_bucket { u128::from(given_back) * window_ns } else { 0 };
        let mut sum = 0;
        for it in &made[first..] {
            let s_ns = u128::from(it.at_ns - begin.at_ns);
            // Longer intervals are not checked, but all their parts of up to three windows are.
            if s_ns > 3 * window_ns {
                break;
            }
            sum += u128::from(it.used());
            assert!(sum * window_ns <= bound(s_ns) + more, "{sum} units in {s_ns} ns under {quota:?}");
        }
    }
}

fn quotas() -> Vec<(&'static str, Quota)> {
    let of_window = |window| {
        [
            ("token_bucket", build(Quota::token_bucket(LIMIT, window))),
            ("fixed_window", build(Quota::fixed_window(LIMIT, window))),
            ("sliding_window_log", build(Quota::sliding_window_log(LIMIT, window))),
            ("sliding_window_counter", build(Quota::sliding_window_counter(LIMIT, window).segments(10))),
        ]
    };
    WINDOWS.into_iter().flat_map(of_window).collect()
}

/// Runs random reservations. `empty` empties Redis, and `make` returns a store for one task. `size` returns the number
/// of keys of all stores, and the memory of Redis in bytes.
async fn reserve_at_random<S: Store + 'static>(
    (name, drops_at_once): (&str, bool),
    (empty, make): (impl Fn(), impl Fn() -> S),
    size: impl Fn(&[Task<S>]) -> (u64, u64),
) {
    let operations: u64 = std::env::var("RESERVATIONS").map_or(40_000, |text| text.parse().expect("a number"));
    for (algorithm, quota) in quotas() {
        empty();
        let mut tasks: Vec<Task<S>> =
            (0..TASKS).map(|number| Task::new(make(), drops_at_once, &quota, number)).collect();
        let mut sizes = Vec::new();
        for _ in 0..QUARTERS {
            let mut running = JoinSet::new();
            for task in tasks {
                running.spawn(task.run(operations / TASKS / QUARTERS / quotas().len() as u64));
            }
            tasks = running.join_all().await;
            sizes.push(size(&tasks));
        }
        let (mut counts, mut used) = ([("", 0); 8], 0);
        for task in &tasks {
            used += task.check(&quota);
            for (sum, (name, count)) in counts.iter_mut().zip(task.counts.of()) {
                *sum = (name, sum.1 + count);
            }
        }
        println!(
            "{name}, {algorithm} of {} s: {used} units were used; keys and bytes after each quarter: {sizes:?}",
            quota.window_ns() / 1_000_000_000
        );
        println!("{}", counts.map(|(name, count)| format!("{name} {count}")).join(", "));
        assert!(counts.iter().all(|(name, count)| *count > 0 || (*name == "dropped" && !drops_at_once)), "{counts:?}");
        let most = sizes[1..].iter().map(|(keys, _)| *keys).max().expect("there are several quarters");
        assert!(most <= 3 * sizes[0].0, "the keys grow: {sizes:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn random_reservations_keep_the_bound_in_memory() {
    let keys = |tasks: &[Task<MemoryStore>]| tasks.iter().map(|task| task.store.len() as u64).sum();
    reserve_at_random(("memory", true), (|| {}, memory), |tasks| (keys(tasks), 0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn random_reservations_keep_the_bound_on_redis() {
    let server = Server::start();
    let size = |tasks: &[Task<RedisStore>]| {
        let info: String = reply_to(&server, &["INFO", "memory"]);
        let bytes = info.lines().find_map(|line| line.strip_prefix("used_memory:")).expect("the server reports it");
        // Redis keeps keys for an hour if their time comes from the caller. So the records of crashed reservations
        // still exist here. The next test checks that they expire.
        let crashed: u64 = tasks.iter().map(|task| task.counts.crashed).sum();
        (reply_to::<u64>(&server, &["DBSIZE"]) - crashed, bytes.trim().parse().expect("a number"))
    };
    let empty = || assert_eq!(reply_to::<String>(&server, &["FLUSHALL"]), "OK");
    reserve_at_random(("Redis", false), (empty, || redis(&server)), size).await;
}

/// Each step cancels a reservation whose units have already become free with time, and reserves these units again.
async fn assert_nothing_comes_back_twice(store: impl Store + 'static) {
    let clock = ManualClock::at(Time::from_nanos(1_790_000_000_000_000_000));
    let limiter = Limiter::with_keys(AtTime(Arc::new(store)), clock.clone(), KeyHasher::with_secret([9; 16]));
    let bucket = build(Quota::token_bucket(LIMIT, SECOND));
    let reservations = Reservations::new(limiter, bucket).life(Duration::from_millis(1_500));
    let reserve = async || reservations.reserve("key", LIMIT).await.expect("the store answers").1;
    let mut open = vec![reserve().await.expect("the bucket is full")];
    for step in 1..=8 {
        clock.advance(Duration::from_millis(1_050));
        let mut made = vec![reserve().await.expect("the bucket is full again")];
        for mut reservation in open {
            assert!(reservation.cancel().await.expect("the store answers").is_some(), "its life has not ended");
            made.extend(reserve().await);
        }
        assert_eq!(made.len(), 1, "step {step}");
        open = made;
    }
}

#[tokio::test]
async fn time_and_a_settlement_never_give_back_the_same_units() {
    let server = Server::start();
    assert_nothing_comes_back_twice(memory()).await;
    assert_nothing_comes_back_twice(redis(&server)).await;
}

#[tokio::test]
async fn nothing_is_left_of_reservations_in_redis_when_their_time_is_over() {
    let server = Server::start();
    let limiter = Limiter::new(redis(&server));
    let reservations =
        Reservations::new(limiter, build(Quota::token_bucket(1_000, SECOND))).life(Duration::from_secs(5));
    for number in 0..200 {
        let (_, reservation) = reservations.reserve("key", 3).await.expect("the store answers");
        let mut reservation = reservation.expect("it fits");
        match number % 3 {
            0 => assert!(reservation.commit(2).await.expect("the store answers").is_some()),
            1 => drop(reservation),
            _ => std::mem::forget(reservation),
        }
    }
    let records = keys(&server).len();
    assert!(records > 60, "the records of crashed reservations are there: {records}");
    until_empty(&server).await;
}
