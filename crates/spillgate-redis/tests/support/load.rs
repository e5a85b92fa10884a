//! A load: tasks that send requests without a pause and check every answer. Each task has its own key.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use spillgate_redis::{RedisStore, StoreErrorKind};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::support::common::{PATIENCE, a_day, take, until};

/// The outcomes of the requests of one task, or of all tasks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) sent: u64,
    pub(crate) admitted: u64,
    /// The failures after which Redis may have charged.
    pub(crate) may_have_been_applied: u64,
    pub(crate) failed: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum States {
    /// No state is lost.
    Last,
    /// Redis loses its states when it ends.
    MayBeLost,
}

pub(crate) struct Load {
    tasks: Vec<JoinHandle<Tally>>,
    stop: Arc<AtomicBool>,
    decided: Arc<AtomicU64>,
    /// For each task, the number of its requests that were answered or failed.
    ended: Arc<[AtomicU64]>,
}

impl Load {
    /// Starts the tasks. Each request has the timeout `within`, and a task pauses for a millisecond after a failure.
    pub(crate) fn start(store: &RedisStore, tasks: u64, within: Duration, states: States) -> Load {
        let (stop, decided) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let ended: Arc<[AtomicU64]> = (0..tasks).map(|_| AtomicU64::new(0)).collect();
        let task = |i: u64| {
            let (store, stop, decided, ended) =
                (store.clone(), Arc::clone(&stop), Arc::clone(&decided), Arc::clone(&ended));
            tokio::spawn(async move { ask(&store, i, within, states, &stop, &decided, &ended[i as usize - 1]).await })
        };
        let tasks = (1..=tasks).map(task).collect();
        Load { tasks, stop, decided, ended }
    }

    /// Returns the number of requests that were decided so far.
    pub(crate) fn decided(&self) -> u64 {
        self.decided.load(Ordering::Relaxed)
    }

    /// Waits until each task has finished a request that it began after this call. During a fault, this shows that no
    /// request waits for the end of the fault, whatever the speed of the machine.
    pub(crate) async fn until_each_task_goes_on(&self) {
        let counts = || self.ended.iter().map(|ended| ended.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let before = counts();
        // The first request that is finished can have begun before this call.
        let went_on = || before.iter().zip(counts()).all(|(before, now)| now >= before + 2);
        until("each task has ended a request", went_on).await;
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
        }
        assert_eq!(sum.sent, sum.admitted + sum.failed);
        sum
    }
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
    ended: &AtomicU64,
) -> Tally {
    let (limit, mut tally) = (i * 1_000_000, Tally::default());
    let quota = a_day(limit);
    while !stop.load(Ordering::Relaxed) {
        tally.sent += 1;
        let outcome = take(store, u128::from(i) << 96 | u128::from(i), &quota, within).await;
        ended.fetch_add(1, Ordering::Relaxed);
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
