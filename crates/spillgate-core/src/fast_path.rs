//! The fast path: it decides a single take on a packed state (a state in three integers).
//!
//! Most requests are a single take. Without the fast path, a store would have to unpack the state into its general form
//! and pack it again. These two steps cost more than the decision itself.

use crate::algorithm::{Bucket, Segments, Window};
use crate::packed::Packed;
use crate::{Algorithm, Decision, Hit, Op, Quota, Reason, Time, Wait};

/// Decides a take on a state of one algorithm. The steps are those of [`decide`](crate::decide): adopt, judge, charge,
/// report.
macro_rules! take {
    ($state:expr, $fresh:expr, $quota:expr, $now:expr, $cost:expr, $max_wait_ns:expr, $delay_ns:expr, $decision:expr) => {{
        let (quota, now): (&Quota, u64) = ($quota, $now.as_nanos());
        let mut state = $state;
        let mut known = state.adopt(quota, now);
        if !known {
            state = $fresh;
        }
        let refusal = if $cost > quota.hard_capacity() {
            Some((Reason::CostAboveCapacity, Wait::Never))
        } else {
            state.refusal(quota, $cost, $max_wait_ns, now)
        };
        *$decision = Decision { limit: quota.capacity(), ..Decision::default() };
        if let Some((reason, wait)) = refusal {
            $decision.allowed = false;
            $decision.reason = reason;
            $decision.retry_after = wait;
        } else {
            known = true;
            $decision.delay_ns = $delay_ns(&state, quota, now);
            $decision.receipt = Some(state.charge(quota, $cost, now));
        }
        let usage = state.usage(quota, now);
        $decision.remaining = usage.remaining;
        $decision.reset_after_ns = usage.reset_after_ns;
        $decision.soft_over = $decision.allowed && usage.over;
        known.then_some(state)
    }};
}

impl Packed {
    /// Decides one hit like [`decide`](crate::decide), but reads and writes the packed form of the state.
    ///
    /// Returns false and changes nothing if the hit needs the general form. The general form is needed for:
    ///
    /// * all operations except a take of at least one unit;
    /// * quotas whose refusal of a take can change the state (see [`Quota::refusal_is_free`]), and quotas with a limit
    ///   of 0;
    /// * states that have no packed form;
    /// * buckets that are not full, if the quota that charged them last has another `T` (the time between two units) or
    ///   another bound of the debt ([`Quota::debt_bits`]).
    ///
    /// [`Packed`] has an example.
    #[must_use]
    #[inline]
    pub fn decide(&mut self, hit: &Hit<'_>, now: Time, decision: &mut Decision) -> bool {
        let quota = hit.quota;
        let Op::Take { cost: cost @ 1.., max_wait_ns } = hit.op else { return false };
        if !quota.refusal_is_free() || quota.limit() == 0 {
            return false;
        }
        let packed = match quota.algorithm() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                let first = quota.bucket_word();
                let charged_by_another = self.first != first && self.expires_at > now.as_nanos();
                if charged_by_another || !quota.packs() {
                    return false;
                }
                let (known, fresh) = (Bucket::owing_until(self.expires_at, quota), Bucket::new(quota));
                let state = take!(known, fresh, quota, now, cost, max_wait_ns, Bucket::delay_ns, decision);
                state.map(|state| Packed { expires_at: state.expires_at(quota), first, second: 0 })
            }
            Algorithm::FixedWindow(_) => {
                let (known, fresh) = (Window::unpack(*self, quota), Window::default());
                let state = take!(known, fresh, quota, now, cost, max_wait_ns, no_delay, decision);
                state.map(|state| state.pack(quota))
            }
            Algorithm::SlidingWindowCounter { segments: 1 } => {
                let (known, fresh) = (Segments::unpack(*self, quota), Segments::new(1));
                let state = take!(known, fresh, quota, now, cost, max_wait_ns, no_delay, decision);
                state.and_then(|state| state.pack(quota))
            }
            Algorithm::SlidingWindowCounter { .. } | Algorithm::SlidingWindowLog | Algorithm::Concurrency => {
                return false;
            }
        };
        *self = packed.unwrap_or_default();
        true
    }
}

fn no_delay<S>(_: &S, _: &Quota, _: u64) -> u64 {
    0
}
