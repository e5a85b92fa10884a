//! A load: tasks that send requests all the time and check every answer. Each task has a key of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use spillgate_redis::{RedisStore, StoreErrorKind};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::support::common::{PATIENCE, a_day, take};

/// The outcomes of the requests of one task, or of all tasks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) sent: u64,
    pub(crate) admitted: u64,
    /// The failures after which the server may have charged.
    pub(crate) may_have_been_applied: u64,
    pub(crate) failed: u64,
    /// The longest wait for an answer, without the time in which the machine did not run the tasks.
    pub(crate) longest: Duration,
}

/// Says whether the states outlive the faults of a test.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum States {
    /// No state is lost.
    Last,
    /// The server loses its states when it ends.
    MayBeLost,
}

pub(crate) struct Load {
    tasks: Vec<JoinHandle<Tally>>,
    stop: Arc<AtomicBool>,
    decided: Arc<AtomicU64>,
    stalled: JoinHandle<Duration>,
}

impl Load {
    /// Starts the tasks. Each request has the timeout `within`, and a task pauses for a millisecond after a failure.
    pub(crate) fn start(store: &RedisStore, tasks: u64, within: Duration, states: States) -> Load {
        let (stop, decided) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let task = |i| {
            let (store, stop, decided) = (store.clone(), Arc::clone(&stop), Arc::clone(&decided));
            tokio::spawn(async move { ask(&store, i, within, states, &stop, &decided).await })
        };
        let tasks = (1..=tasks).map(task).collect();
        let stalled = tokio::spawn(longest_stall(Arc::clone(&stop)));
        Load { tasks, stop, decided, stalled }
    }

    /// Returns the number of requests that were decided so far.
    pub(crate) fn decided(&self) -> u64 {
        self.decided.load(Ordering::Relaxed)
    }

    /// Stops the tasks, waits until all of them have ended, and returns the sum of their outcomes.
    pub(crate) async fn end(self) -> Tally {
        self.stop.store(true, Ordering::Relaxed);
        let mut sum = Tally::default();
        for task in self.tasks {
            let tally =
                timeout(PATIENCE, task).await.expect("every request is answered").expect("all answers are right");
            sum.sent += tally.sent;
            sum.admitted += tally.admitted;
            sum.may_have_been_applied += tally.may_have_been_applied;
            sum.failed += tally.failed;
            sum.longest = sum.longest.max(tally.longest);
        }
        let stalled = timeout(PATIENCE, self.stalled).await.expect("the task ends").expect("the task does not panic");
        // A busy machine can delay a request several times between its start and its answer. This function assumes
        // four times.
        sum.longest = sum.longest.saturating_sub(4 * stalled);
        assert_eq!(sum.sent, sum.admitted + sum.failed);
        sum
    }
}

/// Sleeps for 5 ms again and again, and returns the longest delay of a wakeup. A busy machine delays the other tasks in
/// the same way.
async fn longest_stall(stop: Arc<AtomicBool>) -> Duration {
    const NAP: Duration = Duration::from_millis(5);
    let mut longest = Duration::ZERO;
    while !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        sleep(NAP).await;
        longest = longest.max(start.elapsed().saturating_sub(NAP));
    }
    longest
}

/// Sends requests until the task is stopped, and checks each decision. No two tasks have the same key or limit. So the
/// checks find a reply that belongs to another request, and a take that was charged twice.
async fn ask(
    store: &RedisStore,
    i: u64,
    within: Duration,
    states: States,
    stop: &AtomicBool,
    decided: &AtomicU64,
) -> Tally {
    let (limit, mut tally) = (i * 1_000_000, Tally::default());
    let quota = a_day(limit);
    while !stop.load(Ordering::Relaxed) {
        tally.sent += 1;
        let start = Instant::now();
        let outcome = take(store, u128::from(i) << 96 | u128::from(i), &quota, within).await;
        tally.longest = tally.longest.max(start.elapsed());
        match outcome {
            Ok((verdict, decision)) => {
                tally.admitted += 1;
                decided.fetch_add(1, Ordering::Relaxed);
                let used = limit - decision.remaining;
                let most = tally.admitted + tally.may_have_been_applied;
                let least = if states == States::Last { tally.admitted } else { 1 };
                assert!(verdict.allowed && decision.limit == limit, "task {i}: {decision:?}");
                assert!((least..=most).contains(&used), "task {i}: {used} used, {tally:?}");
                tokio::task::yield_now().await;
            }
            Err(error) => {
                tally.failed += 1;
                tally.may_have_been_applied += u64::from(error.kind().may_have_been_applied());
                sleep(Duration::from_millis(1)).await;
            }
        }
    }
    tally
}

/// Returns the number of failures that the store counted.
pub(crate) fn counted(store: &RedisStore) -> u64 {
    StoreErrorKind::ALL.iter().map(|class| store.failures(*class)).sum()
}
