//! Lets the kernel decide requests on a sketch.
//!
//! This file makes a state from the cells of a key, passes it to the kernel, and raises the cells to the new state.

use std::hint::black_box;

use smallvec::{SmallVec, smallvec};
use spillgate_core::{
    Binding, Decision, Hit, MAX_HITS, Op, OpKind, Packed, Quota, Reason, State, Store, StoreError, Time, Timing,
    Verdict, Wait, decide,
};

use super::mixer::Mixed;
use super::request::LockedRequest;
use super::windows::Counted;
use super::{Cells, Debt, Debts, Sketch, SketchError};

/// What the cells of a key say about it.
pub(super) enum Known {
    Bucket(Debt),
    Window(Counted),
}

impl Known {
    /// Returns the time at which a request of the time `now` is decided. If a later window has begun already, this is
    /// the start of that window.
    #[inline]
    pub(super) fn now(&self, now: Time) -> Time {
        match self {
            Known::Bucket(_) => now,
            Known::Window(counted) => counted.now,
        }
    }

    #[inline]
    pub(super) fn state(&self, quota: &Quota) -> State {
        match self {
            Known::Bucket(debt) => State::owing_until(quota, debt.paid_at),
            Known::Window(counted) => State::unpack(counted.state, quota),
        }
    }
}

impl Sketch {
    /// Takes `cost` units for `key` at `now`, if they fit `quota`.
    ///
    /// `key` is a hash that depends on a secret, as [`KeyHasher`](crate::KeyHasher) makes it. The example of [`Sketch`]
    /// uses a limiter, which makes this hash.
    #[must_use]
    #[inline]
    pub fn take_now(&self, now: Time, quota: &Quota, key: u128, cost: u64) -> Decision {
        self.hit_now(now, &Hit::new(key, quota, Op::take(cost), Binding::Enforce))
    }

    /// Decides one hit at `now`. A hit that the sketch does not [support](Store::supports) is refused.
    #[must_use]
    #[inline]
    pub fn hit_now(&self, now: Time, hit: &Hit<'_>) -> Decision {
        self.decide_one(|| now, hit)
    }

    /// Decides one hit at the time that `clock` returns.
    #[inline]
    pub(crate) fn decide_one(&self, clock: impl FnOnce() -> Time, hit: &Hit<'_>) -> Decision {
        let mut decision = Decision::default();
        if !self.supports(hit.quota, hit.op.kind()) {
            return Decision::refuse(hit.quota.capacity(), Reason::Unsupported, Wait::Never);
        }
        let key = self.mixer.mix(hit.key);
        self.fetch(key);
        let now = clock();
        let _lock = self.locks.lock(self.locks.index_of(key));
        let known = self.load(key, now);
        let (state, at) = (known.state(hit.quota), known.now(now));
        // A usual take is decided on the packed form of the state, which is faster.
        if let Some(mut packed) = state.pack(hit.quota)
            && packed.decide(hit, at, &mut decision)
        {
            if decision.allowed {
                self.raise(key, &known, packed, hit.quota);
            }
        } else {
            self.decide_state(at, hit, (key, &known), state, &mut decision);
        }
        decision.without_receipt()
    }

    /// Decides a hit for which the packed form of the state is not enough.
    #[inline(never)]
    fn decide_state(
        &self,
        now: Time,
        hit: &Hit<'_>,
        (key, known): (Mixed, &Known),
        mut state: State,
        decision: &mut Decision,
    ) {
        let _ = decide(
            std::slice::from_mut(&mut state),
            &[0],
            std::slice::from_ref(hit),
            now,
            std::slice::from_mut(decision),
        );
        self.store(key, known, &state, hit.quota);
    }

    /// Decides all `hits` of one request at `now`. The answer to `hits[i]` is written to `decisions[i]`.
    ///
    /// # Errors
    /// The error is [`Malformed`](spillgate_core::StoreErrorKind::Malformed) if `hits` and `decisions` have different
    /// lengths, if there are more than [`MAX_HITS`] hits, or if the sketch does not [support](Store::supports) a hit.
    pub fn decide_now(&self, now: Time, hits: &[Hit<'_>], decisions: &mut [Decision]) -> Result<Verdict, StoreError> {
        if hits.len() != decisions.len() {
            return Err(StoreError::malformed("hits and decisions differ in length"));
        }
        if hits.len() > MAX_HITS {
            return Err(StoreError::malformed("more hits than one request can have"));
        }
        if hits.iter().any(|hit| !self.supports(hit.quota, hit.op.kind())) {
            return Err(StoreError::malformed("the sketch does not support this operation on this limit"));
        }
        if let ([hit], [decision]) = (hits, &mut *decisions) {
            *decision = self.hit_now(now, hit);
            return Ok(Verdict::of(hits, decisions, now));
        }
        let sketches: SmallVec<[&Sketch; 4]> = smallvec![self; hits.len()];
        let request = LockedRequest::new(&sketches, now, hits);
        let (verdict, states) = request.decide(true, decisions);
        request.store(&states);
        Ok(verdict)
    }

    /// Reads the cells of a key and ignores them, so that the processor fetches their memory while this thread reads
    /// the clock and takes the lock.
    #[inline]
    fn fetch(&self, key: Mixed) {
        match &self.cells {
            Cells::Buckets(Debts { rows, .. }) => drop(black_box(rows.places(key).map(|place| rows.get(place)))),
            Cells::Windows(windows) => windows.fetch(&self.mixer, key),
        }
    }

    /// Reads the cells of a key. The caller has the lock of the key.
    #[inline]
    pub(super) fn load(&self, key: Mixed, now: Time) -> Known {
        match &self.cells {
            Cells::Buckets(debts) => Known::Bucket(debts.of(key, now)),
            Cells::Windows(windows) => Known::Window(windows.load(&self.mixer, key, now)),
        }
    }

    /// Raises the cells of a key to `state`, which has more units than the cells. The caller has the lock of the key.
    #[inline]
    fn raise(&self, key: Mixed, known: &Known, state: Packed, quota: &Quota) {
        match (&self.cells, known) {
            (Cells::Buckets(debts), Known::Bucket(debt)) => debts.raise(debt, state.expires_at, quota),
            (Cells::Windows(windows), Known::Window(counted)) => windows.raise(&self.mixer, key, counted, state.first),
            _ => {}
        }
    }

    /// Raises the cells of a key to `state`, if `state` has more units than the cells. The caller has the lock of the
    /// key.
    pub(super) fn store(&self, key: Mixed, known: &Known, state: &State, quota: &Quota) {
        let packed = match known {
            // A share (a server's part of a limit) can be a bucket whose state has no packed form. Here only the time
            // at which its debt is paid is needed.
            Known::Bucket(_) => Packed { expires_at: state.expires_at(quota), ..Packed::default() },
            Known::Window(_) => state.pack(quota).unwrap_or_default(),
        };
        let more = match known {
            Known::Bucket(debt) => packed.expires_at > debt.paid_at,
            Known::Window(counted) => packed.first > counted.state.first,
        };
        if more {
            self.raise(key, known, packed, quota);
        }
    }
}

impl Store for Sketch {
    /// Returns whether the sketch supports the operation for `quota`. A sketch supports takes, peeks and forces.
    /// `quota` must have the same algorithm as the quota for which the sketch was made. Buckets and queues must also
    /// have the same rate, and windows the same length.
    #[inline]
    fn supports(&self, quota: &Quota, op: OpKind) -> bool {
        // A debt of another rate would have to be converted to this rate. The result can be smaller, but the debt in a
        // cell cannot become smaller.
        let same = quota.algorithm() == self.algorithm && quota.interval_ns() == self.interval_ns;
        same && matches!(op, OpKind::Take | OpKind::Peek | OpKind::Force) && SketchError::check(quota).is_ok()
    }

    /// Decides as [`decide_now`](Sketch::decide_now) does. The caller must pass the time in `timing.now`.
    async fn decide(
        &self,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        self.decide_at(timing, hits, decisions)
    }

    fn try_decide(
        &self,
        timing: Timing,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Option<Result<Verdict, StoreError>> {
        Some(self.decide_at(timing, hits, decisions))
    }
}

impl Sketch {
    fn decide_at(&self, timing: Timing, hits: &[Hit<'_>], decisions: &mut [Decision]) -> Result<Verdict, StoreError> {
        let now = timing.now.ok_or(StoreError::malformed("a sketch has no clock, so pass the time"))?;
        self.decide_now(now, hits, decisions)
    }
}
