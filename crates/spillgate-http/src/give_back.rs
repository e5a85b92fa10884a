//! Gives back what requests have taken whose clients hung up before the answer.
//!
//! Hang-ups put what they have taken into a queue, and one task works it off, so that a client that resets thousands of
//! requests a second costs a bounded amount of memory and of calls of the store.
//!
//! A `leaky_bucket` takes back only its last turn, because clients behind it already wait for exact times. So a turn that
//! is not the last one is remembered: it is given back if the turns behind it are given back too, before its time is over.
//! Turns that touch are remembered and given back as one, so a long row of them needs one call.
//!
//! A turn is known only by its time. As soon as it is given back, another client can get the same turn. So a turn that the
//! store may have taken back already is not given back a second time.
//!
//! | what happened to a charge | counted as |
//! |---|---|
//! | the store has confirmed that it is given back | given back |
//! | the store failed; for a turn: it may have taken the turn back, or it failed each second until the turn was over | lost, `store` |
//! | the queue was full, or too many turns were remembered, or one request has taken too much | lost, `full` |
//! | other clients waited behind the turn until its time was over | lost, `passed` |
//! | the runtime or the server ended | lost, `ended` |

mod left;

use std::collections::VecDeque;
use std::mem::size_of;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use spillgate::{Algorithm, Binding, Clock, Decision, Hit, Op, Quota, Receipt, is_local_receipt};
use spillgate_service::metrics::{HangupMetrics, LostCharge};
use spillgate_service::{Answer, Protocol, ServiceError};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::{HttpContext, HttpState};
use left::Left;

/// The most charges that wait to be given back, in all. At 5,000 hang-ups a second and 10 ms for a call of the store, about
/// 60 wait, so this is enough for a store that stands still for more than a second.
const MAX_WAITING: usize = 8_192;

/// The most turns, or rows of turns, that are remembered because other clients wait behind them.
const MAX_LEFT: usize = 4_096;

/// The most charges of one request that are kept for a hang-up: those of a full list of checks with one limit each. With
/// this bound of about 64 KiB, a small body cannot make the server remember megabytes.
const MAX_OF_REQUEST: usize = 256;

/// How many charges are taken out of the queue at once. Their calls of the store are in flight together: enough for
/// 12,800 a second if a call takes 10 ms, and few beside `max_in_flight` of the store.
const ROUND: usize = 128;

/// How often remembered turns are looked through.
const SWEEP: Duration = Duration::from_secs(1);

/// The memory of the queue, of a round, and of remembered turns. A map can use twice the memory of its entries.
pub const MAX_BYTES: usize = (MAX_WAITING + 2 * ROUND) * size_of::<Taken>()
    + 2 * (MAX_LEFT + ROUND) * (size_of::<(Place, Taken)>() + size_of::<Queue>());
const _: () = assert!(MAX_BYTES <= 6 << 20, "the bound that docs/design/65-hang-ups.md states");

/// A queue of a `leaky_bucket`: the key, the identity of the quota, and whether it is in the local store, which counts
/// while the shared store fails.
type Queue = (u128, u128, bool);

/// A queue, and when a turn in it ends, in the time of the store.
type Place = (Queue, u64);

/// What one hit has taken: its charge.
#[derive(Debug)]
struct Taken {
    key: u128,
    quota: Quota,
    cost: u64,
    receipt: Receipt,
    /// How many charges this is: more than one if turns that touch became one.
    charges: u64,
    /// When the turn begins and ends, in nanoseconds of the store's clock. The store's clock can differ from ours.
    begins_at: u64,
    ends_at: u64,
    /// When the turn ends, by our timer.
    is_over_at: Instant,
    /// The store has failed when it was asked last.
    has_failed: bool,
}

impl Taken {
    /// Returns the charge of a hit, or `None` if it has none that can be given back.
    fn of(hit: &Hit<'_>, decision: &Decision, now: Instant) -> Option<Taken> {
        let (Op::Take { cost, .. }, Some(receipt)) = (hit.op, decision.receipt) else { return None };
        let at = receipt.at.as_nanos();
        Some(Taken {
            key: hit.key,
            quota: hit.quota.clone(),
            cost,
            receipt,
            charges: 1,
            begins_at: at.saturating_add(decision.delay_ns),
            ends_at: at.saturating_add(decision.reset_after_ns),
            is_over_at: now + Duration::from_nanos(decision.reset_after_ns),
            has_failed: false,
        })
    }

    const fn is_turn(&self) -> bool {
        matches!(self.quota.algorithm(), Algorithm::LeakyBucket)
    }

    const fn queue(&self) -> Queue {
        (self.key, self.quota.identity(), is_local_receipt(self.receipt))
    }

    /// Adds a turn that ends where this one begins. The store gives both back as if one take had taken both.
    const fn add_before(&mut self, before: &Taken) {
        self.cost += before.cost;
        self.charges += before.charges;
        self.begins_at = before.begins_at;
        self.has_failed |= before.has_failed;
    }

    /// Returns how many charges are over at this time of the store. The store gives back only the time that is left of a row
    /// of turns, so nobody gets these. The number is exact if all turns of the row have the same length.
    fn passed(&self, now_ns: u64) -> u64 {
        if now_ns >= self.ends_at {
            return self.charges;
        }
        let (over, all) = (now_ns.saturating_sub(self.begins_at), self.ends_at - self.begins_at);
        let passed = u128::from(self.charges) * u128::from(over) / u128::from(all.max(1));
        u64::try_from(passed).unwrap_or(self.charges)
    }

    /// Whether a single take could cost as much as both turns together, so that each store accepts the cost.
    const fn fits_with(&self, other: &Taken) -> bool {
        self.cost.saturating_add(other.cost) <= self.quota.capacity()
    }
}

/// What a request has taken. If it is dropped before [`keep`](Pending::keep), the client has hung up, and all is given back.
pub(super) struct Pending<'a, C: Clock + 'static> {
    state: &'a HttpState<C>,
    taken: Vec<Taken>,
    /// How many charges were not kept, because there were too many.
    beyond: u64,
}

impl<'a, C: Clock + 'static> Pending<'a, C> {
    /// Starts with nothing, and allocates nothing.
    pub(super) const fn new(state: &'a HttpState<C>) -> Pending<'a, C> {
        Pending { state, taken: Vec::new(), beyond: 0 }
    }

    /// Adds what a hit has taken.
    pub(super) fn add_hit(&mut self, hit: &Hit<'_>, decision: &Decision) {
        self.push(Taken::of(hit, decision, Instant::now()));
    }

    /// Adds what an answer has taken.
    pub(super) fn add(&mut self, answer: &Answer<'_>) {
        let now = Instant::now();
        answer.hits().for_each(|(hit, decision)| self.push(Taken::of(hit, decision, now)));
    }

    fn push(&mut self, taken: Option<Taken>) {
        let Some(taken) = taken else { return };
        if self.taken.len() < MAX_OF_REQUEST {
            self.taken.push(taken);
        } else {
            self.beyond += 1;
        }
    }

    /// The client gets its answer, so everything stays charged.
    pub(super) fn keep(mut self) {
        self.taken.clear();
        self.beyond = 0;
    }
}

impl<C: Clock + 'static> Drop for Pending<'_, C> {
    fn drop(&mut self) {
        if self.beyond > 0 {
            self.state.0.hangups().lost(LostCharge::Full).inc_by(self.beyond);
        }
        if !self.taken.is_empty() {
            HttpContext::give_back(&self.state.0, std::mem::take(&mut self.taken));
        }
    }
}

/// What clients that hung up have taken, and is not given back yet.
#[derive(Debug, Default)]
pub(super) struct Hangups {
    /// Never locked while a task waits for anything.
    queue: Mutex<Waiting>,
    /// Wakes the task.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    charges: VecDeque<Taken>,
    left: Left,
    /// Whether there is a task that works the queue off.
    is_served: bool,
}

/// What became of a refund.
#[derive(Clone, Copy, Debug)]
enum Refunded {
    /// The store has answered: the time that is left until the counter is empty, and the time of the store.
    Answered { debt_ns: u64, now_ns: u64 },
    /// The store has failed, and has changed nothing.
    NotApplied,
    /// The store has failed, and may have given the charge back.
    Unknown,
}

impl<C: Clock + 'static> HttpContext<C> {
    fn hangups(&self) -> &HangupMetrics {
        &self.service.metrics().hangups
    }

    fn give_back(context: &Arc<HttpContext<C>>, taken: Vec<Taken>) {
        let (beyond, is_served) = {
            let mut queue = context.left.queue.lock();
            let room = MAX_WAITING.saturating_sub(queue.charges.len());
            let beyond = taken.len().saturating_sub(room);
            queue.charges.extend(taken.into_iter().take(room));
            (beyond, std::mem::replace(&mut queue.is_served, true))
        };
        context.hangups().lost(LostCharge::Full).inc_by(beyond as u64);
        context.left.changed.notify_one();
        if !is_served {
            let task = Task { context: Arc::clone(context), swept_at: Instant::now(), in_hand: 0, has_ended: false };
            // Without a runtime, the task is dropped, and the next hang-up starts another one.
            if let Ok(runtime) = Handle::try_current() {
                runtime.spawn(task.run());
            }
        }
    }

    async fn refund(&self, taken: &Taken) -> Refunded {
        let op = Op::Refund { cost: taken.cost, receipt: Some(taken.receipt) };
        let hits = [Hit::new(taken.key, &taken.quota, op, Binding::Shadow)];
        let mut decisions = [Decision::default()];
        match self.service.hit(Protocol::Http, None, &hits, &mut decisions).await {
            Ok(verdict) => Refunded::Answered { debt_ns: decisions[0].reset_after_ns, now_ns: verdict.now.as_nanos() },
            Err(ServiceError::Store(error)) if error.kind().may_have_been_applied() => Refunded::Unknown,
            Err(_) => Refunded::NotApplied,
        }
    }
}

impl<C: Clock> Drop for HttpContext<C> {
    fn drop(&mut self) {
        let Waiting { charges, left, .. } = self.left.queue.get_mut();
        let rest: u64 = charges.iter().map(|taken| taken.charges).sum();
        self.service.metrics().hangups.lost(LostCharge::Ended).inc_by(rest + left.charges());
    }
}

/// The task that works the queue off. There is at most one, on the runtime of the first client that hung up. If this
/// runtime ends, the next hang-up starts the task on another one.
struct Task<C: Clock + 'static> {
    context: Arc<HttpContext<C>>,
    swept_at: Instant,
    /// How many charges are in flight.
    in_hand: u64,
    /// The task has found nothing to do, so another one may have started.
    has_ended: bool,
}

enum Next {
    Give(Vec<Taken>),
    Sleep,
    End,
}

impl<C: Clock + 'static> Task<C> {
    async fn run(mut self) {
        loop {
            match self.next() {
                Next::Give(round) => self.give(round).await,
                Next::Sleep => drop(timeout(SWEEP, self.context.left.changed.notified()).await),
                Next::End => return,
            }
        }
    }

    /// Takes a round of charges out of the queue.
    fn next(&mut self) -> Next {
        let now = Instant::now();
        let mut queue = self.context.left.queue.lock();
        let Waiting { charges, left, is_served } = &mut *queue;
        if now.saturating_duration_since(self.swept_at) >= SWEEP {
            self.swept_at = now;
            left.sweep(now, self.context.hangups());
        }
        let mut round = Vec::new();
        for taken in charges.drain(..charges.len().min(ROUND)) {
            if taken.is_turn() {
                left.add(taken, self.context.hangups());
            } else {
                round.push(taken);
            }
        }
        left.take_due(&mut round);
        self.in_hand = round.iter().map(|taken| taken.charges).sum();
        if !round.is_empty() {
            return Next::Give(round);
        }
        if !left.is_empty() {
            return Next::Sleep;
        }
        // Nothing waits, so the memory of a flood is given back too.
        charges.shrink_to_fit();
        *is_served = false;
        self.has_ended = true;
        Next::End
    }

    /// Asks the store for each charge, and waits for all answers.
    async fn give(&mut self, round: Vec<Taken>) {
        let mut calls = JoinSet::new();
        for taken in round {
            let context = Arc::clone(&self.context);
            calls.spawn(async move {
                let refunded = context.refund(&taken).await;
                (taken, refunded)
            });
        }
        while let Some(done) = calls.join_next().await {
            // Only a handler that panics gives no answer.
            let Ok((taken, refunded)) = done else { continue };
            let hangups = self.context.hangups();
            self.in_hand -= taken.charges;
            if taken.is_turn() {
                self.context.left.queue.lock().left.answered(taken, refunded, hangups);
                continue;
            }
            match refunded {
                Refunded::Answered { .. } => hangups.given_back.inc_by(taken.charges),
                Refunded::NotApplied | Refunded::Unknown => hangups.lost(LostCharge::Store).inc_by(taken.charges),
            }
        }
        let hangups = self.context.hangups();
        hangups.lost(LostCharge::Store).inc_by(std::mem::take(&mut self.in_hand));
        self.context.left.queue.lock().left.shrink(hangups);
    }
}

impl<C: Clock + 'static> Drop for Task<C> {
    fn drop(&mut self) {
        if !self.has_ended {
            // The store may have given back some of the charges in flight, so nobody tries them again.
            self.context.hangups().lost(LostCharge::Ended).inc_by(self.in_hand);
            self.context.left.queue.lock().is_served = false;
        }
    }
}
