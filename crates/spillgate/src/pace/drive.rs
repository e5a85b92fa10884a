//! The task of a queue: it asks the store for turns, and grants them when they come.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use spillgate_core::{Algorithm, Binding, Decision, Hit, Op, Quota, Store, StoreError, Verdict, Wait};
use tokio::time::{Instant, timeout_at};

use super::line::{Ask, Step};
use super::{PaceError, Shared};
use crate::Clock;

/// The turns of at most this many callers are reserved with one call of the store.
const BATCH: usize = 32;
/// A refusal that says no time is asked again after this time.
const UNKNOWN: Duration = Duration::from_millis(100);

/// The answer of the store.
struct Answer {
    verdict: Verdict,
    /// Whether a leaky bucket refuses.
    queue_refuses: bool,
}

/// The task of one queue.
pub(super) struct Driver<S: Store, C: Clock> {
    shared: Arc<Shared<S, C>>,
    key: u128,
    has_ended: bool,
}

impl<S: Store + 'static, C: Clock + 'static> Driver<S, C> {
    pub(super) const fn new(shared: Arc<Shared<S, C>>, key: u128) -> Driver<S, C> {
        Driver { shared, key, has_ended: false }
    }

    /// Runs until no caller waits in the queue.
    pub(super) async fn run(mut self) {
        let (mut ask_at, mut batch) = (Instant::now(), BATCH);
        loop {
            let step = self.shared.lines.lock().step(self.key, ask_at, batch);
            match step {
                Step::End => break,
                Step::Sleep(until, changed) => drop(timeout_at(until, changed.notified()).await),
                Step::Ask(ask) => {
                    let decided = self.shared.ask(self.key, &ask).await;
                    (ask_at, batch) = self.settle(&ask, decided);
                }
            }
        }
        self.has_ended = true;
    }

    /// Gives the answer of the store to the callers. Returns when the store may be asked again, and for how many callers
    /// at a time.
    fn settle(&self, ask: &Ask, decided: Result<Answer, StoreError>) -> (Instant, usize) {
        let now = Instant::now();
        let mut lines = self.shared.lines.lock();
        let Answer { verdict, queue_refuses } = match decided {
            Ok(answer) => answer,
            Err(error) => {
                lines.refuse(self.key, ask, PaceError::Store(error));
                return (now, BATCH);
            }
        };
        if verdict.allowed {
            // The delay counts from the time of the decision. That was before now, so no turn is early.
            let first = now + Duration::from_nanos(verdict.delay_ns);
            lines.reserved(self.key, ask, first, self.shared.interval(ask.units));
            return (now, BATCH);
        }
        // Fewer callers may still fit.
        if ask.callers > 1 {
            return (now, 1);
        }
        let wait = match verdict.retry_after {
            Wait::After(ns) => Duration::from_nanos(ns),
            Wait::Unknown => UNKNOWN,
            Wait::Never => {
                lines.refuse(self.key, ask, PaceError::Never);
                return (now, BATCH);
            }
        };
        if let Some(left) = ask.deadline.map(|deadline| deadline.saturating_duration_since(now)) {
            // A queue says when the caller could join it. The turn comes at the end of the queue, or when the caller
            // stops waiting, whichever is earlier.
            let queued = if queue_refuses { self.shared.longest_queue().min(left) } else { Duration::ZERO };
            if wait + queued >= left {
                lines.refuse(self.key, ask, PaceError::TooLate { wait: Some(wait + queued) });
                return (now, BATCH);
            }
        }
        (now + wait, 1)
    }
}

impl<S: Store, C: Clock> Drop for Driver<S, C> {
    /// A runtime that ends drops its tasks.
    fn drop(&mut self) {
        if !self.has_ended {
            self.shared.lines.lock().abandon(self.key);
        }
    }
}

impl<S: Store, C: Clock> Shared<S, C> {
    fn hits(&self, key: u128, op: Op) -> SmallVec<[Hit<'_>; 4]> {
        self.quotas.iter().map(|quota| Hit::new(key, quota, op, Binding::Enforce)).collect()
    }

    fn decisions(&self) -> SmallVec<[Decision; 4]> {
        SmallVec::from_elem(Decision::default(), self.quotas.len())
    }

    /// Asks a store that never waits. Returns whether a call may go now.
    pub(super) fn goes_now(&self, key: u128, units: u64) -> Result<bool, PaceError> {
        let decided = self.limiter.try_decide(&self.hits(key, Op::take(units)), &mut self.decisions());
        decided.map_or(Ok(false), |decided| decided.map(|verdict| verdict.allowed).map_err(PaceError::Store))
    }

    async fn ask(&self, key: u128, ask: &Ask) -> Result<Answer, StoreError> {
        let longest = ask.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let max_wait_ns = longest.map_or(u64::MAX, |longest| u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX));
        let op = Op::Take { cost: ask.units.saturating_mul(ask.callers as u64), max_wait_ns };
        let (hits, mut decisions) = (self.hits(key, op), self.decisions());
        let verdict = self.limiter.decide(&hits, &mut decisions).await?;
        let mut asked = self.quotas.iter().zip(&decisions);
        Ok(Answer { verdict, queue_refuses: asked.any(|(quota, decision)| is_queue(quota) && !decision.allowed) })
    }

    fn queue(&self) -> Option<&Quota> {
        self.quotas.iter().find(|quota| is_queue(quota))
    }

    /// Returns the time between two turns that the store has reserved at once.
    fn interval(&self, units: u64) -> Duration {
        Duration::from_nanos(self.queue().map_or(0, |quota| quota.interval_ns().saturating_mul(units)))
    }

    /// Returns how long the last one of a full queue waits.
    fn longest_queue(&self) -> Duration {
        Duration::from_nanos(self.queue().map_or(0, |quota| quota.interval_ns().saturating_mul(quota.capacity())))
    }
}

fn is_queue(quota: &Quota) -> bool {
    quota.algorithm() == Algorithm::LeakyBucket
}
