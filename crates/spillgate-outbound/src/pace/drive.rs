//! The task of a queue: it asks the store for turns, and grants them when they come.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use spillgate_core::{Algorithm, Binding, Decision, Hit, Op, Quota, Store, StoreError, Verdict, Wait};
use tokio::time::{Instant, timeout_at};

use super::learned::Learned;
use super::line::{Ask, Step};
use super::{PaceError, Shared};
use spillgate_limiter::Clock;

/// One call of the store reserves the turns of at most this many callers.
const BATCH: usize = 32;
/// If a refusal names no wait, the store is asked again after this time.
const UNKNOWN: Duration = Duration::from_millis(100);
/// The level says how slow a learned pace is, and falls by one in this time. After a wait of at least this length, the
/// level is read again.
const LEVEL_IS_OLD: Duration = Duration::from_secs(1);

/// The decision of the store on one request for turns.
struct Decided {
    verdict: Verdict,
    /// When the turns end, in the time of the store: see [`Receipt::mark`](spillgate_core::Receipt). 0 if turns are not
    /// reserved.
    mark: u64,
    /// The level of a learned pace at which the turn was taken, or 0 if the pace is not learned.
    level: u64,
}

/// The task of one queue.
pub(super) struct Driver<S: Store, C: Clock> {
    shared: Arc<Shared<S, C>>,
    key: u128,
    /// The level of a learned pace that the store has shown last. `None` if it has to be read again.
    level: Option<u64>,
    has_ended: bool,
}

impl<S: Store + 'static, C: Clock + 'static> Driver<S, C> {
    pub(super) const fn new(shared: Arc<Shared<S, C>>, key: u128) -> Driver<S, C> {
        Driver { shared, key, level: None, has_ended: false }
    }

    /// Runs until no caller waits in the queue.
    pub(super) async fn run(mut self) {
        let (mut ask_at, mut batch) = (Instant::now(), self.shared.batch());
        loop {
            let step = self.shared.lines.lock().step(self.key, ask_at, batch);
            match step {
                Step::End => break,
                Step::Sleep(until, changed) => drop(timeout_at(until, changed.notified()).await),
                Step::Ask(ask) => {
                    let decided = self.ask(ask).await;
                    (ask_at, batch) = self.settle(&ask, decided);
                }
            }
        }
        self.has_ended = true;
    }

    /// Gives the answer of the store to the callers. Returns when the store may be asked again, and for how many
    /// callers in one call.
    fn settle(&mut self, ask: &Ask, decided: Result<Decided, StoreError>) -> (Instant, usize) {
        let (now, batch) = (Instant::now(), self.shared.batch());
        let mut lines = self.shared.lines.lock();
        let Decided { verdict, mark, level } = match decided {
            Ok(decided) => decided,
            Err(error) => {
                if error.kind().may_have_been_applied() {
                    lines.lose(ask.cost());
                }
                lines.refuse(self.key, ask, &PaceError::Store(error));
                return (now, batch);
            }
        };
        if verdict.allowed {
            // The delay counts from the decision, which was before `now`. So a turn can be late, but never early.
            let first = now + Duration::from_nanos(verdict.delay_ns);
            lines.reserved(self.key, ask, first, mark, level);
            return (now, batch);
        }
        // The store refused the turns of several callers together. It may still allow a turn for one caller alone.
        if ask.callers > 1 {
            return (now, 1);
        }
        let wait = match verdict.retry_after {
            Wait::After(ns) => Duration::from_nanos(ns),
            Wait::Unknown => UNKNOWN,
            Wait::Never => {
                lines.refuse(self.key, ask, &PaceError::Never);
                return (now, batch);
            }
        };
        if let Some(left) = ask.deadline.map(|deadline| deadline.saturating_duration_since(now)) {
            // A leaky bucket that refuses says when the caller can join its queue. In the queue, the caller waits once
            // more: as long as in a full queue, or as long as the caller still accepts, if that is shorter.
            let queued = self.shared.longest_queue().min(left);
            if wait + queued >= left {
                lines.refuse(self.key, ask, &PaceError::TooLate { wait: Some(wait + queued) });
                return (now, batch);
            }
        }
        if wait >= LEVEL_IS_OLD {
            self.level = None;
        }
        (now + wait, 1)
    }
}

impl<S: Store, C: Clock> Driver<S, C> {
    /// Asks the store for the turns of one or several callers. Turns whose time comes meanwhile are granted, so that a slow
    /// answer of the store makes no other call late.
    async fn ask(&mut self, ask: Ask) -> Result<Decided, StoreError> {
        let mut asking = pin!(self.shared.ask(self.key, ask, self.level));
        let (decided, level) = loop {
            let turn = self.shared.lines.lock().grant(self.key, Instant::now());
            let Some(turn) = turn else { break asking.await? };
            if let Ok(answer) = timeout_at(turn, asking.as_mut()).await {
                break answer?;
            }
        };
        self.level = level;
        Ok(decided)
    }
}

impl<S: Store, C: Clock> Drop for Driver<S, C> {
    /// A runtime that ends drops its tasks. The callers that wait in the queue of a dropped task get an error.
    fn drop(&mut self) {
        if !self.has_ended {
            self.shared.lines.lock().abandon(self.key);
        }
    }
}

impl<S: Store, C: Clock> Shared<S, C> {
    /// Asks the store for turns, at this level of a learned pace. Also returns the level that the store has shown.
    async fn ask(&self, key: u128, ask: Ask, level: Option<u64>) -> Result<(Decided, Option<u64>), StoreError> {
        let longest = ask.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let max_wait_ns = match longest {
            _ if self.turn_ns == 0 => 0,
            None => u64::MAX,
            Some(longest) => u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX),
        };
        let op = Op::Take { cost: ask.cost(), max_wait_ns };
        let level = match (&self.learned, level) {
            (None, _) => 0,
            (Some(_), Some(level)) => level,
            (Some(learned), None) => {
                let mut decisions = [Decision::default()];
                self.limiter.decide(&[learned.peek(key)], &mut decisions).await?;
                Learned::level_in(&decisions)
            }
        };
        let bucket = self.bucket(level);
        let (hits, mut decisions) = (self.hits(key, op, bucket.as_ref(), level), self.decisions());
        let verdict = self.limiter.decide(&hits, &mut decisions).await?;
        let shown = self.learned.is_some().then(|| Learned::level_in(&decisions));
        let receipt = decisions.first().filter(|_| self.turn_ns > 0).and_then(|queue| queue.receipt);
        Ok((Decided { verdict, mark: receipt.map_or(0, |receipt| receipt.mark), level }, shown))
    }

    /// Returns for how many callers one call of the store asks. Turns that are not reserved are for now. So if they have
    /// to come one after the other, because of a learned pace or of a queue beside other quotas, each call asks for one.
    fn batch(&self) -> usize {
        let one_by_one = self.learned.is_some() || self.turn_ns == 0 && self.quotas.iter().any(is_queue);
        if one_by_one { 1 } else { BATCH }
    }

    /// Returns the bucket of a learned pace at this level. `None` if the pace is not learned.
    fn bucket(&self, level: u64) -> Option<Quota> {
        self.learned.as_ref().map(|learned| learned.bucket(level))
    }

    fn hits<'q>(&'q self, key: u128, op: Op, bucket: Option<&'q Quota>, level: u64) -> SmallVec<[Hit<'q>; 4]> {
        let own = self.quotas.iter().map(|quota| Hit::new(key, quota, op, Binding::Enforce));
        let learned = self.learned.as_ref().zip(bucket).map(|(learned, bucket)| learned.hits(key, bucket, level));
        own.chain(learned.into_iter().flatten()).collect()
    }

    fn decisions(&self) -> SmallVec<[Decision; 4]> {
        SmallVec::from_elem(Decision::default(), self.quotas.len() + if self.learned.is_some() { 3 } else { 0 })
    }

    /// Asks a store that answers without waiting. Returns the level if the store has allowed the call. Returns `None`
    /// if the call was refused, or if the store would have to wait; the caller then joins a queue.
    pub(super) fn goes_now(&self, key: u128, units: u64) -> Result<Option<u64>, PaceError> {
        let mut level = 0;
        if let Some(learned) = &self.learned {
            let mut decisions = [Decision::default()];
            let Some(read) = self.limiter.try_decide(&[learned.peek(key)], &mut decisions) else { return Ok(None) };
            read.map_err(PaceError::Store)?;
            level = Learned::level_in(&decisions);
        }
        let bucket = self.bucket(level);
        let hits = self.hits(key, Op::take(units), bucket.as_ref(), level);
        let Some(decided) = self.limiter.try_decide(&hits, &mut self.decisions()) else { return Ok(None) };
        decided.map(|verdict| verdict.allowed.then_some(level)).map_err(PaceError::Store)
    }

    /// Returns how long the last caller in a full leaky bucket waits. 0 if turns are not reserved.
    fn longest_queue(&self) -> Duration {
        let capacity = self.quotas.first().map_or(0, Quota::capacity);
        Duration::from_nanos(self.turn_ns.saturating_mul(capacity))
    }
}

pub(super) fn is_queue(quota: &Quota) -> bool {
    quota.algorithm() == Algorithm::LeakyBucket
}
