//! The arguments of one hit, in the form that the general script reads.
//!
//! Each field here must match a `read_quota` function of the Lua in `scripts/general`, in the same order and width.
//!
//! The fields that every hit has, 16 bytes:
//!
//! | bytes | field |
//! |---|---|
//! | 1 | the number of the algorithm |
//! | 1 | the position of the state in KEYS |
//! | 1 | the number of the operation |
//! | 1 | the binding: 0 enforce, 1 shadow, 2 quota |
//! | 1 | 1 if the hit is refused in any state |
//! | 1 | 1 if a refusal is charged |
//! | 1 | 1 if the limit is 0, so that there is nothing to count |
//! | 9 | the length of the penalty; 0 for no penalty |
//!
//! The fields of the algorithm follow. A `fixed_window` has: the cost, the most used units beside which it fits, the
//! units of a force, W, W in microseconds, and the receipt.

use spillgate_core::{Algorithm, Anchor, Binding, Denied, Hit, Op, OpKind, Quota, Receipt};

use crate::command::bytes::Writer;
use crate::settings::LogForm;

/// A hit, the state it counts in, and the sum of the costs of all takes on that state.
pub(crate) struct HitArgs<'h, 'q> {
    /// The hit itself.
    pub(crate) hit: &'h Hit<'q>,
    /// The position of its state in KEYS, from 0.
    pub(crate) state: usize,
    /// The sum of the costs of all takes on that state. They fit together or not at all.
    pub(crate) cost_on_state: u64,
    /// How logs are stored.
    pub(crate) log: LogForm,
}

impl HitArgs<'_, '_> {
    /// Appends what `decide.lua` reads of one hit.
    pub(crate) fn write(&self, out: &mut Writer) {
        let quota = self.hit.quota;
        out.byte(algorithm(quota, self.log));
        out.byte(u8::try_from(self.state).unwrap_or(u8::MAX));
        out.byte(self.op());
        out.byte(match self.hit.binding {
            Binding::Enforce => 0,
            Binding::Shadow => 1,
            Binding::Quota => 2,
        });
        out.byte(u8::from(self.is_never()));
        out.byte(u8::from(quota.denied() == Denied::Charged));
        out.byte(u8::from(quota.limit() == 0));
        out.time(quota.penalty_ns());
        match quota.algorithm() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => self.write_bucket(out),
            Algorithm::FixedWindow(anchor) => self.write_window(anchor, out),
            Algorithm::SlidingWindowCounter { segments } => self.write_counter(segments, out),
            Algorithm::SlidingWindowLog => self.write_log(out),
            Algorithm::Concurrency => self.write_leases(out),
        }
    }

    /// The number of the operation in `decide.lua`. 0 has no effect and is never refused.
    fn op(&self) -> u8 {
        match self.hit.op {
            Op::Refund { cost: 0, .. } => 0,
            Op::Force { cost: 0 } if self.hit.quota.supports(OpKind::Force) => 0,
            Op::Take { cost: 0, .. } => 7,
            op => match op.kind() {
                OpKind::Take => 1,
                OpKind::Peek => 2,
                OpKind::Force => 3,
                OpKind::Refund => 4,
                OpKind::Renew => 5,
                OpKind::Reset => 6,
            },
        }
    }

    /// Whether the hit is refused in any state: its cost is above the capacity, or the quota has no such operation.
    fn is_never(&self) -> bool {
        let quota = self.hit.quota;
        let above = self.hit.op.kind() == OpKind::Take && self.cost_on_state > quota.hard_capacity();
        above || matches!(self.hit.op.kind(), OpKind::Force | OpKind::Renew) && !quota.supports(self.hit.op.kind())
    }

    /// The units that the operation itself takes or refunds.
    fn cost(&self) -> u64 {
        match self.hit.op {
            Op::Take { cost, .. } | Op::Force { cost } | Op::Refund { cost, .. } => cost,
            Op::Peek | Op::Renew { .. } | Op::Reset => 0,
        }
    }

    /// The units that are charged whether they fit or not: by a force, or by a refusal that is charged.
    fn due(&self) -> u64 {
        match self.hit.op {
            Op::Force { cost } => cost,
            _ => self.cost().min(self.hit.quota.capacity()),
        }
    }

    /// The used units beside which the takes on this state fit.
    fn max_used(&self) -> u64 {
        max_used(self.hit, self.cost_on_state)
    }

    /// The fields of a bucket or a queue. All amounts are in nanoseconds of debt, because a bucket stores debt as time.
    fn write_bucket(&self, out: &mut Writer) {
        let quota = self.hit.quota;
        let interval_ns = quota.interval_ns();
        let queue = quota.algorithm() == Algorithm::LeakyBucket;
        let longest_wait_ns = match self.hit.op {
            Op::Take { cost: 1.., max_wait_ns } if queue => max_wait_ns,
            _ => u64::MAX,
        };
        // A refund is counted in the state's T, which only the script knows.
        let is_refund = self.hit.op.kind() == OpKind::Refund;
        out.time(if is_refund { self.cost() } else { self.cost().saturating_mul(interval_ns) });
        out.time((self.max_used() * interval_ns).min(longest_wait_ns));
        out.time(self.due().saturating_mul(interval_ns));
        out.time(2 * quota.hard_capacity() * interval_ns);
        out.time(interval_ns);
        out.byte(quota.debt_bits());
        out.time(receipt(self.hit).map_or(0, |receipt| receipt.mark));
        out.byte(u8::from(queue));
    }

    /// The fields of a fixed window. `window_us` is 0 if windows begin at the first hit.
    fn write_window(&self, anchor: Anchor, out: &mut Writer) {
        let window_ns = self.hit.quota.window_ns();
        self.write_units(out);
        out.time(window_ns);
        out.units(epoch_window_us(anchor, window_ns));
        out.time(receipt(self.hit).map_or(0, |receipt| receipt.at.as_nanos()));
        out.byte(u8::from(receipt(self.hit).is_some()));
    }

    /// The fields of a counter. A receipt names the segment in which the units were taken.
    fn write_counter(&self, segments: u8, out: &mut Writer) {
        let segment_ns = self.hit.quota.interval_ns();
        self.write_units(out);
        out.units(segment_ns / 1000);
        out.byte(segments);
        let at = receipt(self.hit).map_or(0, |receipt| receipt.at.as_nanos());
        out.time_us(at - at % segment_ns);
        out.byte(u8::from(receipt(self.hit).is_some()));
    }

    /// The fields of a log. The fourth one is the most units that a force or a charged refusal leaves in the log: its
    /// capacity and one.
    fn write_log(&self, out: &mut Writer) {
        self.write_units(out);
        out.units(self.hit.quota.hard_capacity() + 1);
        out.time(self.hit.quota.window_ns());
        out.time(receipt(self.hit).map_or(0, |receipt| receipt.at.as_nanos()));
        out.byte(u8::from(receipt(self.hit).is_some()));
    }

    /// The fields of a concurrency limit. A receipt names the lease.
    fn write_leases(&self, out: &mut Writer) {
        out.units(self.cost());
        out.units(self.max_used());
        out.time(self.hit.quota.lease_ns());
        out.time(receipt(self.hit).map_or(0, |receipt| receipt.mark));
        out.byte(u8::from(receipt(self.hit).is_some()));
    }

    /// Cost, the most used units that fit, and the units of a charged refusal or a force.
    fn write_units(&self, out: &mut Writer) {
        out.units(self.cost());
        out.units(self.max_used());
        out.units(self.due());
    }
}

/// The most units that may already be used so that the takes on the hit's state fit. The sum of their costs is
/// `cost_on_state`. For a peek, the whole capacity.
pub(crate) fn max_used(hit: &Hit<'_>, cost_on_state: u64) -> u64 {
    let cost = if hit.op.kind() == OpKind::Take { cost_on_state } else { 0 };
    hit.quota.hard_capacity().saturating_sub(cost)
}

/// The receipt of what is refunded or renewed.
pub(crate) fn receipt(hit: &Hit<'_>) -> Option<Receipt> {
    match hit.op {
        Op::Refund { receipt, .. } => receipt,
        Op::Renew { receipt } => Some(receipt),
        _ => None,
    }
}

/// The number of the quota's algorithm in `decide.lua` and in `take/all.lua`, counted from 1.
pub(crate) fn algorithm(quota: &Quota, log: LogForm) -> u8 {
    match quota.algorithm() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket => 1,
        Algorithm::FixedWindow(_) => 2,
        Algorithm::SlidingWindowCounter { .. } => 3,
        Algorithm::SlidingWindowLog if log == LogForm::Zset => 6,
        Algorithm::SlidingWindowLog => 4,
        Algorithm::Concurrency => 5,
    }
}

/// W in microseconds if windows begin at multiples of W, otherwise 0.
pub(crate) fn epoch_window_us(anchor: Anchor, window_ns: u64) -> u64 {
    match anchor {
        Anchor::Epoch => window_ns / 1000,
        Anchor::FirstHit => 0,
    }
}
