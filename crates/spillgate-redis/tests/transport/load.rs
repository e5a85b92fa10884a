//! Tasks that ask all the time, each about a key of its own, and doubt every answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use spillgate_redis::{ErrorKind, RedisStore};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::{PATIENCE, a_day, take};

/// What became of the requests of one task, or of all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) asked: u64,
    pub(crate) admitted: u64,
    /// Failures after which the server may have charged.
    pub(crate) in_doubt: u64,
    pub(crate) failed: u64,
    /// The longest wait for an answer, but for what the machine itself lost.
    pub(crate) longest: Duration,
}

/// What a fault may do to states.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum States {
    Last,
    /// The server forgets them when it ends.
    MayBeLost,
}

pub(crate) struct Load {
    tasks: Vec<JoinHandle<Tally>>,
    stop: Arc<AtomicBool>,
    decided: Arc<AtomicU64>,
    stalled: JoinHandle<Duration>,
}

impl Load {
    /// Each request has `within`; a task that failed pauses for a millisecond.
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

    /// Requests that were decided so far.
    pub(crate) fn decided(&self) -> u64 {
        self.decided.load(Ordering::Relaxed)
    }

    /// The sum over all tasks, every one of which comes to an end.
    pub(crate) async fn end(self) -> Tally {
        self.stop.store(true, Ordering::Relaxed);
        let mut sum = Tally::default();
        for task in self.tasks {
            let tally = timeout(PATIENCE, task).await.expect("every request is answered").expect("no answer is wrong");
            sum.asked += tally.asked;
            sum.admitted += tally.admitted;
            sum.in_doubt += tally.in_doubt;
            sum.failed += tally.failed;
            sum.longest = sum.longest.max(tally.longest);
        }
        let stalled = timeout(PATIENCE, self.stalled).await.expect("it ends").expect("it does not panic");
        // On its way a request is kept from going on more than once.
        sum.longest = sum.longest.saturating_sub(4 * stalled);
        assert_eq!(sum.asked, sum.admitted + sum.failed);
        sum
    }
}

/// How long a task that only sleeps was kept from going on: a busy machine does that to every task.
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

/// Asks until told to stop. No two tasks have the same key or limit: an answer to somebody else's request, or one of an
/// earlier request, would not add up. Nor would a take that was charged twice.
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
        tally.asked += 1;
        let start = Instant::now();
        let answer = take(store, u128::from(i) << 96 | u128::from(i), &quota, within).await;
        tally.longest = tally.longest.max(start.elapsed());
        match answer {
            Ok((verdict, decision)) => {
                tally.admitted += 1;
                decided.fetch_add(1, Ordering::Relaxed);
                let used = limit - decision.remaining;
                let most = tally.admitted + tally.in_doubt;
                let least = if states == States::Last { tally.admitted } else { 1 };
                assert!(verdict.allowed && decision.limit == limit, "task {i}: {decision:?}");
                assert!((least..=most).contains(&used), "task {i}: {used} used, {tally:?}");
                tokio::task::yield_now().await;
            }
            Err(failed) => {
                tally.failed += 1;
                tally.in_doubt += u64::from(failed.kind.may_have_been_applied());
                sleep(Duration::from_millis(1)).await;
            }
        }
    }
    tally
}

/// Failures that the store counted.
pub(crate) fn counted(store: &RedisStore) -> u64 {
    ErrorKind::ALL.iter().map(|class| store.failures(*class)).sum()
}
