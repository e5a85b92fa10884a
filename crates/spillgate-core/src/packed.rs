//! States in three integers, and the usual request on one of them without any other form.

use crate::algorithm::{Bucket, Segments, Window};
use crate::{Algorithm, Decision, Denied, Hit, Op, Quota, Reason, Time, Wait};

/// A state in three integers, for stores that keep many: a bucket, a window or a counter of one
/// segment, without a penalty. What they mean is the state's own matter; only the first tells others something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Packed {
    /// From when on the state equals none, or later than that by less than its window, in
    /// nanoseconds since the epoch; 0 if it equals none at any time.
    pub expires_at: u64,
    /// What a bucket keeps of the quota that charged it last (a number below 2^38), or the units in the current window.
    pub first: u64,
    /// The units in the window before (`sliding_window_counter`), else 0.
    pub second: u64,
}

/// A take on a state of this type, in the order of [`decide`](crate::decide): adopt, judge, charge, report.
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
    /// Decides one hit as [`decide`](crate::decide) does, from and to the packed form: the way of
    /// a store whose speed matters.
    ///
    /// False, and nothing is changed, for what has to go the general way: other operations than
    /// a take, quotas that charge or punish refusals or have limit 0, states that do not pack, buckets that
    /// another T or depth has charged.
    #[must_use]
    #[inline]
    pub fn decide(&mut self, hit: &Hit<'_>, now: Time, decision: &mut Decision) -> bool {
        let quota = hit.quota;
        let Op::Take { cost: cost @ 1.., max_wait_ns } = hit.op else { return false };
        if quota.denied() == Denied::Charged || quota.penalty_ns() > 0 || quota.limit() == 0 {
            return false;
        }
        let packed = match quota.algorithm() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                let first = quota.bucket_word();
                let foreign = self.first != first && self.expires_at > now.as_nanos();
                if foreign || !quota.packs() {
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
            _ => return false,
        };
        *self = packed.unwrap_or_default();
        true
    }
}

fn no_delay<S>(_: &S, _: &Quota, _: u64) -> u64 {
    0
}
