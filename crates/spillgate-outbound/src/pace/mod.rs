//! Waits until a program may make a call, instead of refusing the call.
//!
//! A program that calls the API of another service must keep the limits of that service. A [`Pacer`] has one queue for
//! each key, and lets the first caller of a queue go when the limits allow the call.

mod drive;
mod error;
#[cfg_attr(not(feature = "client"), allow(dead_code, reason = "only clients learn a pace"))]
pub(crate) mod learned;
mod line;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use spillgate_core::{Algorithm, Quota, Store};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::time::{Instant, timeout_at};

pub use error::PaceError;

use drive::{Driver, is_queue};
use learned::Learned;
use line::{Answer, Lines};
use spillgate_limiter::{Clock, Key, Limiter, MemoryStore, SystemClock};

/// The default of [`Pacer::max_waiters`].
const MAX_WAITERS: usize = 100_000;

/// Lets callers wait for their turn.
///
/// ```
/// use spillgate::{Limiter, Quota};
/// use spillgate::pace::Pacer;
///
/// // One call every 100 ms, and at most 1,000 in an hour:
/// const PER_SECOND: Quota = Quota::leaky_bucket(10, std::time::Duration::from_secs(1)).constant();
/// const PER_HOUR: Quota = Quota::per_hour(1_000).constant();
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?.block_on(async {
/// let pacer = Pacer::new(Limiter::in_memory(), PER_SECOND).and(PER_HOUR);
/// for _ in 0..3 {
///     pacer.acquire("api.example.com").await?;
///     // Call the API here.
/// }
/// # Ok::<(), spillgate::pace::PaceError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Which quota
///
/// * A [`leaky_bucket`](Quota::leaky_bucket) alone lets the calls go at an even rate. The pacer reserves the turns of
///   waiting callers in the store. So several programs on one Redis share one queue, in the order in which the store
///   decides. At most `c + s/T` units leave in any interval of length `s`, where `c` is the largest call, and `T` is the
///   time between two units.
/// * With any other quota, or with several, the first caller of the queue waits as long as the refusal says. Then the
///   pacer asks the store again. The callers of several programs go in the order in which their requests reach the store.
///
/// With several quotas, one request takes units from all of them when the call goes. If one quota refuses, the request
/// takes nothing from the others. So callers wait only for a quota that has too few units, and each quota keeps its bound.
///
/// # Order and cancellation
///
/// Within a program, the callers of one key go in the order in which they came. A caller may drop its future at any
/// time. The time that was reserved for this caller goes to the next callers of the same key, if it is long enough for
/// them. What nobody can use is lost: then the other service gets fewer calls than it allows. [`lost`](Pacer::lost)
/// counts such units.
///
/// All clones of a pacer share its queues.
pub struct Pacer<S = MemoryStore, C = SystemClock> {
    shared: Arc<Shared<S, C>>,
}

pub(crate) struct Shared<S, C> {
    limiter: Arc<Limiter<S, C>>,
    quotas: Vec<Quota>,
    /// `None` if the quotas alone set the pace.
    learned: Option<Learned>,
    max_waiters: usize,
    /// The time between two units of a leaky bucket whose turns are reserved. 0 if turns are not reserved: then each call
    /// is decided when it goes.
    ///
    /// Turns are reserved only if the leaky bucket is alone. Another quota would count a call when its turn is reserved,
    /// and not when the call goes. With windows, too many calls could then go in one window.
    turn_ns: u64,
    lines: Mutex<Lines>,
}

impl<S: Store + 'static, C: Clock + 'static> Pacer<S, C> {
    /// Makes a pacer with one quota.
    ///
    /// # Panics
    /// Panics if the quota is a concurrency limit, which has no turns, or if its refusals cost units or start a penalty.
    #[must_use]
    pub fn new(limiter: impl Into<Arc<Limiter<S, C>>>, quota: Quota) -> Pacer<S, C> {
        Pacer::with(limiter.into(), Vec::new(), None, MAX_WAITERS).and(quota)
    }

    /// Makes a pacer whose pace is learned from answers.
    #[cfg(feature = "client")]
    pub(crate) fn learning(limiter: Arc<Limiter<S, C>>, learned: Learned) -> Pacer<S, C> {
        Pacer::with(limiter, Vec::new(), Some(learned), MAX_WAITERS)
    }

    /// Returns the same pacer with another learned pace.
    #[cfg(feature = "client")]
    pub(crate) fn with_learned(&self, learned: Learned) -> Pacer<S, C> {
        let Shared { limiter, quotas, max_waiters, .. } = &*self.shared;
        Pacer::with(Arc::clone(limiter), quotas.clone(), Some(learned), *max_waiters)
    }

    /// Adds a quota. Its window or its algorithm must differ from those of the other quotas, so that it counts
    /// separately.
    ///
    /// # Panics
    /// Panics in these cases:
    ///
    /// * The quota is a concurrency limit.
    /// * Its refusals cost units or start a penalty. A pacer asks until the quota allows, so its own refusals would use
    ///   up the quota. [`Quota::with_free_refusals`] makes a quota without such refusals.
    /// * The pacer already has a quota with the same algorithm and window, so both would be one counter.
    /// * The pacer would have two leaky buckets. The slower one would space out all calls. Use a token bucket instead
    ///   of it.
    #[must_use]
    pub fn and(self, quota: Quota) -> Pacer<S, C> {
        assert!(quota.algorithm() != Algorithm::Concurrency, "a concurrency limit has no turns; use Limiter::hold");
        assert!(quota.refusal_is_free(), "a pacer is refused often, so refusals must be free; use with_free_refusals");
        let mut quotas = self.shared.quotas.clone();
        let counts_twice = quotas.iter().any(|other| other.identity() == quota.identity());
        assert!(!counts_twice, "two quotas with the same algorithm and window are one counter; keep the smaller one");
        quotas.push(quota);
        let queues = quotas.iter().filter(|quota| is_queue(quota)).count();
        assert!(queues <= 1, "two leaky buckets would space out all calls by the slower one; make it a token bucket");
        Pacer::with(Arc::clone(&self.shared.limiter), quotas, self.shared.learned.clone(), self.shared.max_waiters)
    }

    /// Sets how many callers can wait at the same time, for all keys together. The default is 100,000.
    #[must_use]
    pub fn max_waiters(self, max_waiters: usize) -> Pacer<S, C> {
        let Shared { limiter, quotas, learned, .. } = &*self.shared;
        Pacer::with(Arc::clone(limiter), quotas.clone(), learned.clone(), max_waiters)
    }

    fn with(
        limiter: Arc<Limiter<S, C>>,
        quotas: Vec<Quota>,
        learned: Option<Learned>,
        max_waiters: usize,
    ) -> Pacer<S, C> {
        let turn_ns = match &*quotas {
            [queue] if is_queue(queue) && learned.is_none() => queue.interval_ns(),
            _ => 0,
        };
        let lines = Mutex::new(Lines::new(turn_ns));
        Pacer { shared: Arc::new(Shared { limiter, quotas, learned, max_waiters, turn_ns, lines }) }
    }

    /// Waits until a call for `key` may go.
    ///
    /// The future may be dropped at any time.
    ///
    /// # Errors
    /// Too many callers wait, no wait would help, the store failed, or the runtime has ended or has no timers.
    ///
    /// # Panics
    /// Panics if the caller has to wait outside a runtime of tokio.
    pub fn acquire(&self, key: impl Key) -> impl Future<Output = Result<(), PaceError>> + Send + 'static {
        self.acquire_units(key, 1, None)
    }

    /// Waits until a call for `key` may go, but at most for `longest`.
    ///
    /// The error comes as soon as it is known that the wait would be longer.
    ///
    /// # Errors
    /// As for [`acquire`](Pacer::acquire), and [`TooLate`](PaceError::TooLate) if the turn does not come in time.
    ///
    /// # Panics
    /// As for [`acquire`](Pacer::acquire), and if the caller has to wait in a runtime without timers.
    pub fn acquire_within(
        &self,
        key: impl Key,
        longest: Duration,
    ) -> impl Future<Output = Result<(), PaceError>> + Send + 'static {
        self.acquire_units(key, 1, Some(longest))
    }

    /// Waits until a call that takes `units` units may go, for example the tokens of a language model.
    ///
    /// With `longest`, the caller waits at most that long.
    ///
    /// # Errors
    /// As for [`acquire_within`](Pacer::acquire_within).
    ///
    /// # Panics
    /// As for [`acquire_within`](Pacer::acquire_within), or without `longest`, as for [`acquire`](Pacer::acquire).
    pub fn acquire_units(
        &self,
        key: impl Key,
        units: u64,
        longest: Option<Duration>,
    ) -> impl Future<Output = Result<(), PaceError>> + Send + 'static {
        let key = self.shared.limiter.keys().start().key(&key).finish();
        let turn = self.turn(key, units, longest);
        async move { turn.await.map(drop) }
    }

    /// Waits for a turn. Returns the level of a learned pace, or 0 if the pace is not learned.
    pub(crate) fn turn(
        &self,
        key: u128,
        units: u64,
        longest: Option<Duration>,
    ) -> impl Future<Output = Result<u64, PaceError>> + Send + 'static {
        let shared = Arc::clone(&self.shared);
        async move {
            let deadline = longest.and_then(|longest| Instant::now().checked_add(longest));
            let mut waiting = match Waiting::join(shared, key, units, deadline)? {
                Joined::Goes(level) => return Ok(level),
                Joined::Waits(waiting) => waiting,
            };
            let replied = match deadline {
                Some(deadline) => {
                    timeout_at(deadline, &mut waiting.reply).await.map_err(|_| PaceError::TooLate { wait: None })?
                }
                None => (&mut waiting.reply).await,
            };
            waiting.is_answered = true;
            replied.unwrap_or(Err(PaceError::Stopped)).map(|granted| granted.level)
        }
    }

    /// Returns how many callers wait now, for all keys together.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.shared.lines.lock().waiting()
    }

    /// Returns how many reserved units no caller got, for example because all callers went away. A call of
    /// [`acquire`](Pacer::acquire) takes one unit.
    ///
    /// If the answer of the store was lost, for example because of a timeout, the store may have reserved the units of
    /// the request. These units count as lost too, also if the store gives some of them back later.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.shared.lines.lock().lost()
    }
}

impl<S, C> Clone for Pacer<S, C> {
    fn clone(&self) -> Self {
        Pacer { shared: Arc::clone(&self.shared) }
    }
}

impl<S, C> std::fmt::Debug for Pacer<S, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pacer").field("quotas", &self.shared.quotas).finish_non_exhaustive()
    }
}

/// A caller in a queue. If it is dropped before it is answered, its turn goes to the next caller.
struct Waiting<S, C> {
    shared: Arc<Shared<S, C>>,
    key: u128,
    id: u64,
    units: u64,
    reply: oneshot::Receiver<Answer>,
    is_answered: bool,
}

/// Whether a caller goes at once, or waits in a queue.
enum Joined<S, C> {
    /// There is no queue, and the call may go now. The number is the level of a learned pace, or 0.
    Goes(u64),
    Waits(Waiting<S, C>),
}

impl<S: Store + 'static, C: Clock + 'static> Waiting<S, C> {
    /// Joins the queue of `key`, if there is one or the call may not go now.
    fn join(
        shared: Arc<Shared<S, C>>,
        key: u128,
        units: u64,
        deadline: Option<Instant>,
    ) -> Result<Joined<S, C>, PaceError> {
        let mut lines = shared.lines.lock();
        if !lines.has(key)
            && let Some(level) = shared.goes_now(key, units)?
        {
            return Ok(Joined::Goes(level));
        }
        if lines.used() >= shared.max_waiters {
            return Err(PaceError::Full);
        }
        // Without a runtime, this panics before the caller joins.
        let runtime = Handle::current();
        let (sender, reply) = oneshot::channel();
        let (id, is_new) = lines.push(key, units, deadline, sender);
        if is_new {
            runtime.spawn(Driver::new(Arc::clone(&shared), key).run());
        }
        drop(lines);
        Ok(Joined::Waits(Waiting { shared, key, id, units, reply, is_answered: false }))
    }
}

impl<S, C> Drop for Waiting<S, C> {
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        // Answers are sent only while this lock is held. So no answer can come after `try_recv` has looked for one.
        let mut lines = self.shared.lines.lock();
        match self.reply.try_recv() {
            Ok(Ok(granted)) => lines.give_back(self.key, self.units, &granted),
            Err(TryRecvError::Empty) => {
                self.reply.close();
                lines.leave(self.key, self.id);
            }
            // The caller was refused, or its queue was abandoned. A newer queue of this key does not know the caller.
            Ok(Err(_)) | Err(TryRecvError::Closed) => {}
        }
    }
}
