//! A state: what one key has used under the quotas that count in this state.
//!
//! One type serves all algorithms, so a store can keep states without knowing their algorithms.

use crate::algorithm::{Bucket, Leases, Log, Refusal, Segments, Usage, Window};
use crate::quota::MAX_LATE_NS;
use crate::{Algorithm, OpKind, Packed, Quota, Reason, Receipt, Time, Wait};

/// What one key has used. The default is the empty state of a new key. With time, every state becomes equal to the
/// empty state.
///
/// ```
/// use spillgate_core::{Binding, Decision, Hit, Op, Quota, State, Time, decide};
///
/// let quota = Quota::per_second(10).build()?;
/// let hits = [Hit::new(7, &quota, Op::take(4), Binding::Enforce)];
/// let (mut states, mut decisions) = ([State::default()], [Decision::default()]);
/// let _ = decide(&mut states, &[0], &hits, Time::EPOCH, &mut decisions);
/// assert_eq!(states[0].expires_at(&quota), 400_000_000); // four units, one every 100 ms
///
/// let mut words = Vec::new();
/// states[0].encode(&mut words);
/// assert_eq!(State::decode(&words).as_ref(), Some(&states[0]));
/// # Ok::<(), spillgate_core::QuotaError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct State {
    body: Body,
    /// When the penalty of the key ends, in nanoseconds since the epoch. Until then, the key is refused. 0 means no
    /// penalty.
    penalty_until: u64,
    /// The whole duration of the penalty. If more than this duration plus one second is left until `penalty_until`, the
    /// clock was set back, and `penalty_until` is reduced so that the whole duration is left. The added second is for
    /// late requests: their time can be up to one second before the start of the penalty.
    penalty_ns: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
enum Body {
    #[default]
    Empty,
    Bucket(Bucket),
    Window(Window),
    Segments(Segments),
    Log(Log),
    Leases(Leases),
}

macro_rules! on_body {
    ($body:expr, $empty:expr, $it:ident => $does:expr) => {
        match $body {
            Body::Empty => $empty,
            Body::Bucket($it) => $does,
            Body::Window($it) => $does,
            Body::Segments($it) => $does,
            Body::Log($it) => $does,
            Body::Leases($it) => $does,
        }
    };
}

mod encoding;

impl Body {
    /// Returns the empty state of a new key, in the form for the algorithm of `quota`.
    #[inline]
    fn fresh(quota: &Quota) -> Body {
        match quota.algorithm() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => Body::Bucket(Bucket::new(quota)),
            Algorithm::FixedWindow(_) => Body::Window(Window::default()),
            Algorithm::SlidingWindowCounter { segments } => Body::Segments(Segments::new(segments)),
            Algorithm::SlidingWindowLog => Body::Log(Log::default()),
            Algorithm::Concurrency => Body::Leases(Leases::default()),
        }
    }

    #[inline]
    fn belongs_to(&self, quota: &Quota) -> bool {
        let algorithm = quota.algorithm();
        match self {
            Body::Empty => true,
            Body::Bucket(_) => matches!(algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket),
            Body::Window(_) => matches!(algorithm, Algorithm::FixedWindow(_)),
            Body::Segments(it) => algorithm == Algorithm::SlidingWindowCounter { segments: it.segments() },
            Body::Log(_) => algorithm == Algorithm::SlidingWindowLog,
            Body::Leases(_) => algorithm == Algorithm::Concurrency,
        }
    }
}

impl State {
    /// Returns the state in three integers. Returns `None` if the state has a penalty, a log, several segments, leases,
    /// or a bucket that [cannot be packed](Quota::packs).
    #[must_use]
    #[inline]
    pub fn pack(&self, quota: &Quota) -> Option<Packed> {
        match &self.body {
            _ if self.penalty_until > 0 => None,
            Body::Empty => Some(Packed::default()),
            Body::Bucket(it) => it.pack(quota),
            Body::Window(it) => Some(it.pack(quota)),
            Body::Segments(it) => it.pack(quota),
            Body::Log(_) | Body::Leases(_) => None,
        }
    }

    /// Returns the state that [`pack`](State::pack) turned into `packed`. `quota` must have the same
    /// [identity](Quota::identity) as the quota that packed it.
    #[must_use]
    #[inline]
    pub fn unpack(packed: Packed, quota: &Quota) -> State {
        let body = match quota.algorithm() {
            _ if packed.expires_at == 0 => Body::Empty,
            Algorithm::TokenBucket | Algorithm::LeakyBucket => Body::Bucket(Bucket::unpack(packed, quota)),
            Algorithm::FixedWindow(_) => Body::Window(Window::unpack(packed, quota)),
            Algorithm::SlidingWindowCounter { .. } => Body::Segments(Segments::unpack(packed, quota)),
            Algorithm::SlidingWindowLog | Algorithm::Concurrency => Body::Empty,
        };
        State { body, ..State::default() }
    }

    /// Returns the state of a bucket or a queue that `quota` charged last, and whose debt is paid at `paid_at`, in
    /// nanoseconds since the epoch. The debt is the time that a bucket needs to refill. `paid_at` is a time plus a
    /// debt, so it can be later than [`Time::MAX`], as [`expires_at`](State::expires_at) can.
    ///
    /// A store that keeps only this time, for example in a table that many keys share, makes a state from it.
    ///
    /// ```
    /// use spillgate_core::{Binding, Decision, Hit, Op, Quota, State, Time, decide};
    ///
    /// let quota = Quota::per_second(10).build()?; // one unit every 100 ms
    /// let hits = [Hit::new(7, &quota, Op::Peek, Binding::Enforce)];
    /// let mut decisions = [Decision::default()];
    /// let state = State::owing_until(&quota, 300_000_000);
    /// let _ = decide(&mut [state], &[0], &hits, Time::EPOCH, &mut decisions);
    /// assert_eq!(decisions[0].remaining, 7);
    /// # Ok::<(), spillgate_core::QuotaError>(())
    /// ```
    #[must_use]
    #[inline]
    pub fn owing_until(quota: &Quota, paid_at: u64) -> State {
        let is_bucket = matches!(quota.algorithm(), Algorithm::TokenBucket | Algorithm::LeakyBucket);
        // A quota with a limit of 0 has no time between two units, and no state.
        let body = if is_bucket && quota.limit() > 0 {
            Body::Bucket(Bucket::owing_until(paid_at, quota))
        } else {
            Body::Empty
        };
        State { body, ..State::default() }
    }

    /// Returns a state whose debt is paid at `paid_at`, as [`owing_until`](State::owing_until) does, but counts the debt
    /// in another time between two units than that of `quota`.
    ///
    /// This is the state of a key that a quota with another rate has charged. If no state of `quota` can be packed with
    /// `interval_ns`, the state counts in the next shorter time, so that it has at least as many used units.
    ///
    /// ```
    /// use spillgate_core::{Binding, Decision, Hit, Op, Quota, State, Time, decide};
    ///
    /// let quota = Quota::per_second(10).build()?; // one unit every 100 ms
    /// let hits = [Hit::new(7, &quota, Op::Peek, Binding::Enforce)];
    /// let mut decisions = [Decision::default()];
    /// let state = State::owing_in(&quota, 300_000_000, 50_000_000, Time::EPOCH);
    /// assert_eq!(state.debt(), Some((300_000_000, 50_000_000)));
    /// let _ = decide(&mut [state], &[0], &hits, Time::EPOCH, &mut decisions);
    /// assert_eq!(decisions[0].remaining, 4);
    /// # Ok::<(), spillgate_core::QuotaError>(())
    /// ```
    #[must_use]
    pub fn owing_in(quota: &Quota, paid_at: u64, interval_ns: u64, now: Time) -> State {
        let state = State::owing_until(quota, paid_at);
        match state.body {
            Body::Bucket(_) => {
                let bucket = Bucket::owing_in(quota, paid_at, interval_ns, now.as_nanos());
                State { body: Body::Bucket(bucket), ..state }
            }
            _ => state,
        }
    }

    /// Returns the time at which the debt of a bucket or a queue is paid, in nanoseconds since the epoch, and the time
    /// between two units in which this debt is counted, in nanoseconds. Other states have no debt.
    #[must_use]
    pub fn debt(&self) -> Option<(u64, u64)> {
        match &self.body {
            Body::Bucket(bucket) => Some(bucket.debt_and_interval()),
            _ => None,
        }
    }

    /// Returns the time from which this state equals an empty state, in nanoseconds since the epoch.
    #[must_use]
    #[inline]
    pub fn expires_at(&self, quota: &Quota) -> u64 {
        on_body!(&self.body, 0, it => it.expires_at(quota)).max(self.penalty_until)
    }

    /// Returns the number of bytes that the state owns on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        match &self.body {
            Body::Empty | Body::Bucket(_) | Body::Window(_) => 0,
            Body::Segments(it) => it.heap_bytes(),
            Body::Log(it) => it.heap_bytes(),
            Body::Leases(it) => it.heap_bytes(),
        }
    }

    /// Prepares the state for a decision under `quota` at `now`. A state of another algorithm becomes empty. If the
    /// clock was set back, times that are too far in the future are reduced, or the state becomes empty.
    ///
    /// The caller has to store the result even if the request is refused. If it did not, each call would reduce the
    /// same times again, and the clock would never reach them.
    #[inline]
    pub(crate) fn adopt(&mut self, quota: &Quota, now: Time) {
        if quota.limit() == 0 {
            return;
        }
        let now = now.as_nanos();
        let keep = self.body.belongs_to(quota) && on_body!(&mut self.body, true, it => it.adopt(quota, now));
        if !keep {
            self.body = Body::Empty;
        }
        if self.penalty_until > 0 && self.penalty_until > now + self.penalty_ns + MAX_LATE_NS {
            self.penalty_until = now + self.penalty_ns;
        }
    }

    /// Returns why `cost` more units do not fit now, or `None` if they fit. A cost of 0 is a peek.
    #[inline]
    pub(crate) fn refusal(&self, quota: &Quota, cost: u64, max_wait_ns: u64, now: Time) -> Option<Refusal> {
        let own = if cost > quota.hard_capacity() {
            Some((Reason::CostAboveCapacity, Wait::Never))
        } else if quota.limit() == 0 {
            None
        } else {
            on_body!(&self.body, None, it => it.refusal(quota, cost, max_wait_ns, now.as_nanos()))
        };
        let penalty_ns = self.penalty_left_ns(quota, now);
        if penalty_ns == 0 {
            return own;
        }
        match own {
            Some((reason, wait)) if wait > Wait::After(penalty_ns) => Some((reason, wait)),
            _ => Some((Reason::Penalty, Wait::After(penalty_ns))),
        }
    }

    /// Returns how many nanoseconds a take that fits now has to wait for its turn (`leaky_bucket`), or else 0.
    #[inline]
    pub(crate) fn delay_ns(&self, quota: &Quota, now: Time) -> u64 {
        match &self.body {
            Body::Bucket(bucket) => bucket.delay_ns(quota, now.as_nanos()),
            Body::Empty | Body::Window(_) | Body::Segments(_) | Body::Log(_) | Body::Leases(_) => 0,
        }
    }

    /// Takes `cost` units that fit, and returns the receipt. The request is late by `late_ns`, as far as the store
    /// knows.
    #[inline]
    pub(crate) fn charge(&mut self, quota: &Quota, cost: u64, now: Time, late_ns: u64) -> Receipt {
        let none = Receipt { at: now, mark: 0 };
        let now = now.as_nanos();
        match self.body_for(quota) {
            Body::Bucket(bucket) => bucket.charge_late(quota, cost, now, late_ns),
            body => on_body!(body, none, it => it.charge(quota, cost, now)),
        }
    }

    /// Counts `cost` units even if they do not fit. Counters saturate, and the debt of a bucket (the time that it needs
    /// to refill) is bounded.
    pub(crate) fn force(&mut self, quota: &Quota, cost: u64, now: Time, late_ns: u64) {
        if cost == 0 || quota.limit() == 0 || !quota.supports(OpKind::Force) {
            return;
        }
        let now = now.as_nanos();
        match self.body_for(quota) {
            Body::Bucket(bucket) => bucket.force_late(quota, cost, now, late_ns),
            body => on_body!(body, (), it => it.force(quota, cost, now)),
        }
    }

    /// Gives `cost` units back. Units that have expired cannot be given back, except in a token bucket without a
    /// receipt.
    pub(crate) fn refund(&mut self, quota: &Quota, cost: u64, receipt: Option<Receipt>, now: Time) {
        if cost == 0 || quota.limit() == 0 {
            return;
        }
        let keep = on_body!(&mut self.body, true, it => it.refund(quota, cost, receipt, now.as_nanos()));
        if !keep {
            self.body = Body::Empty;
        }
    }

    /// Returns why the lease of `receipt` cannot be renewed, or `None` if it can be renewed.
    pub(crate) fn renewal_refusal(&self, quota: &Quota, receipt: Receipt, now: Time) -> Option<Refusal> {
        if !quota.supports(OpKind::Renew) {
            return Some((Reason::Unsupported, Wait::Never));
        }
        match &self.body {
            Body::Leases(leases) if leases.is_alive(receipt, now.as_nanos()) => None,
            _ => Some((Reason::LeaseExpired, Wait::Never)),
        }
    }

    /// Restarts the lease of `receipt`, so that it lasts its full duration from now on.
    pub(crate) fn renew(&mut self, quota: &Quota, receipt: Receipt, now: Time) {
        if let Body::Leases(leases) = &mut self.body {
            leases.renew(quota, receipt, now.as_nanos());
        }
    }

    /// Starts the penalty of `quota`. If the key already has a penalty that ends later, that penalty stays.
    pub(crate) fn punish(&mut self, quota: &Quota, now: Time) {
        let until = now.as_nanos() + quota.penalty_ns();
        if quota.limit() > 0 && quota.penalty_ns() > 0 && until > self.penalty_until {
            (self.penalty_until, self.penalty_ns) = (until, quota.penalty_ns());
        }
    }

    /// Returns how many units are left, and after how long the state equals an empty state.
    #[inline]
    pub(crate) fn usage(&self, quota: &Quota, now: Time) -> Usage {
        if quota.limit() == 0 {
            return Usage::default();
        }
        let none = Usage { remaining: quota.capacity(), ..Usage::default() };
        let usage = on_body!(&self.body, none, it => it.usage(quota, now.as_nanos()));
        match self.penalty_left_ns(quota, now) {
            0 => usage,
            left => Usage { remaining: 0, reset_after_ns: usage.reset_after_ns.max(left), ..usage },
        }
    }

    /// Returns how long the penalty still lasts, in nanoseconds. Returns 0 for a quota without a penalty.
    #[inline]
    pub(crate) fn penalty_left_ns(&self, quota: &Quota, now: Time) -> u64 {
        if quota.penalty_ns() == 0 { 0 } else { self.penalty_until.saturating_sub(now.as_nanos()) }
    }

    #[inline]
    fn body_for(&mut self, quota: &Quota) -> &mut Body {
        if matches!(self.body, Body::Empty) {
            self.body = Body::fresh(quota);
        }
        &mut self.body
    }
}
