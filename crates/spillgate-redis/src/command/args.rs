//! Writes the arguments of one hit for the general script, `decide.lua`.
//!
//! The fields must have the order and the widths that the Lua code in `scripts/general` reads. `decide.lua` reads the
//! fields that every hit has. Each algorithm has a Lua function `read_quota`, which reads the other fields.
//!
//! Every hit begins with these fields, which have 16 bytes together:
//!
//! | bytes | field |
//! |---|---|
//! | 1 | the number of the algorithm |
//! | 1 | the position of the state in KEYS |
//! | 1 | the number of the operation |
//! | 1 | the binding: 0 enforce, 1 shadow, 2 quota |
//! | 1 | 1 if the hit is refused whatever the state is |
//! | 1 | 1 if a refusal is charged |
//! | 1 | 1 if the limit is 0, so that there is nothing to count |
//! | 9 | the length of the penalty; 0 for no penalty |
//!
//! The fields of the algorithm follow. A `fixed_window` has these fields, where `W` is the length of the window:
//!
//! 1. the cost of the operation
//! 2. the hard capacity (the limit plus its soft share) minus the sum of the costs of all takes on the state; these
//!    takes fit if at most this many units are used already
//! 3. the units that a force or a charged refusal adds
//! 4. `W` in seconds and nanoseconds
//! 5. `W` in microseconds, or 0 if a window begins at its first hit
//! 6. the time in the receipt of the take that is refunded or settled, or 0 without a receipt; then one byte, which is
//!    1 with a receipt and 0 without

use spillgate_core::{Algorithm, Anchor, Binding, Denied, Hit, Op, OpKind, Quota, Receipt};

use crate::command::bytes::Writer;
use crate::settings::LogForm;

/// One hit, with what the general script needs to know about its state.
pub(crate) struct HitArgs<'h, 'q> {
    pub(crate) hit: &'h Hit<'q>,
    /// The position of the hit's state in KEYS, from 0.
    pub(crate) state: usize,
    /// The sum of the costs of all takes on this state. Either all these takes fit, or none of them fits.
    pub(crate) cost_on_state: u64,
    pub(crate) log: LogForm,
}

impl HitArgs<'_, '_> {
    /// Appends all fields of the hit.
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
        self.write_quota(out);
    }

    /// Appends the fields that the function `read_quota` of the algorithm reads.
    pub(crate) fn write_quota(&self, out: &mut Writer) {
        match self.hit.quota.algorithm() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => self.write_bucket(out),
            Algorithm::FixedWindow(anchor) => self.write_window(anchor, out),
            Algorithm::SlidingWindowCounter { segments } => self.write_counter(segments, out),
            Algorithm::SlidingWindowLog => self.write_log(out),
            Algorithm::Concurrency => self.write_leases(out),
        }
    }

    /// Returns the number of the operation in `decide.lua`. The operation 0 has no effect and is never refused.
    fn op(&self) -> u8 {
        match self.hit.op {
            Op::Refund { cost: 0, .. } => 0,
            Op::Force { cost: 0 } if self.hit.quota.supports(OpKind::Force) => 0,
            Op::Take { cost: 0, .. } => 7,
            Op::Settle { change: 0, .. } if !self.hit.quota.supports(OpKind::Renew) => 0,
            Op::Settle { change: 1.., .. } if !self.hit.quota.supports(OpKind::Renew) => 9,
            op => match op.kind() {
                OpKind::Take => 1,
                OpKind::Peek => 2,
                OpKind::Force => 3,
                OpKind::Refund => 4,
                OpKind::Renew => 5,
                OpKind::Reset => 6,
                OpKind::Settle => 8,
            },
        }
    }

    /// Returns whether the hit is refused in every state. A take is refused in every state if the sum of the costs of
    /// all takes on its state is above the hard capacity. A force or a renewal is refused in every state if the quota
    /// does not support it.
    fn is_never(&self) -> bool {
        let quota = self.hit.quota;
        let above = self.hit.op.kind() == OpKind::Take && self.cost_on_state > quota.hard_capacity();
        above || matches!(self.hit.op.kind(), OpKind::Force | OpKind::Renew) && !quota.supports(self.hit.op.kind())
    }

    /// Returns the units that the operation itself takes or gives back.
    fn cost(&self) -> u64 {
        match self.hit.op {
            Op::Take { cost, .. } | Op::Force { cost } | Op::Refund { cost, .. } => cost,
            Op::Settle { change, .. } => change.min(0).unsigned_abs(),
            Op::Peek | Op::Renew { .. } | Op::Reset => 0,
        }
    }

    /// Returns the units that are charged even if they do not fit: by a force, a settlement or a charged refusal.
    fn due(&self) -> u64 {
        match self.hit.op {
            Op::Force { cost } => cost,
            Op::Settle { change, .. } => change.max(0).unsigned_abs(),
            _ => self.cost().min(self.hit.quota.capacity()),
        }
    }

    fn max_used(&self) -> u64 {
        max_used(self.hit, self.cost_on_state)
    }

    /// Appends the fields of a token bucket or a leaky bucket (a queue). Amounts are in nanoseconds, because a bucket
    /// stores its debt (the used units) as a time. Each used unit adds `T`, the time in which the debt of one unit is
    /// paid.
    fn write_bucket(&self, out: &mut Writer) {
        let quota = self.hit.quota;
        let interval_ns = quota.interval_ns();
        let queue = quota.algorithm() == Algorithm::LeakyBucket;
        let longest_wait_ns = match self.hit.op {
            Op::Take { cost: 1.., max_wait_ns } if queue => max_wait_ns,
            _ => u64::MAX,
        };
        // The units that a refund or a settlement gives back are written as units. The script converts them to debt
        // with the `T` in the stored state. Only Redis knows this `T`, and it can differ from the `T` of the quota.
        let is_refund = matches!(self.hit.op.kind(), OpKind::Refund | OpKind::Settle);
        out.time(if is_refund { self.cost() } else { self.cost().saturating_mul(interval_ns) });
        out.time((self.max_used() * interval_ns).min(longest_wait_ns));
        out.time(self.due().saturating_mul(interval_ns));
        out.time(quota.max_debt_ns());
        out.time(interval_ns);
        out.byte(quota.debt_bits());
        out.time(receipt(self.hit).map_or(0, |receipt| receipt.mark));
        out.time(receipt(self.hit).map_or(0, |receipt| receipt.at.as_nanos()));
        out.byte(u8::from(queue));
    }

    /// Appends the fields of a fixed window, which the top of this file lists.
    fn write_window(&self, anchor: Anchor, out: &mut Writer) {
        let window_ns = self.hit.quota.window_ns();
        self.write_units(out);
        out.time(window_ns);
        out.units(epoch_window_us(anchor, window_ns));
        out.time(receipt(self.hit).map_or(0, |receipt| receipt.at.as_nanos()));
        out.byte(u8::from(receipt(self.hit).is_some()));
    }

    /// Appends the fields of a sliding window counter. A receipt determines the segment in which the units were taken.
    fn write_counter(&self, segments: u8, out: &mut Writer) {
        let segment_ns = self.hit.quota.interval_ns();
        self.write_units(out);
        out.units(segment_ns / 1000);
        out.byte(segments);
        let at = receipt(self.hit).map_or(0, |receipt| receipt.at.as_nanos());
        out.time_us(at - at % segment_ns);
        out.byte(u8::from(receipt(self.hit).is_some()));
    }

    /// Appends the fields of a log. The fourth field is the hard capacity plus 1: a force or a charged refusal leaves
    /// at most this many units in the log.
    fn write_log(&self, out: &mut Writer) {
        self.write_units(out);
        out.units(self.hit.quota.hard_capacity() + 1);
        out.time(self.hit.quota.window_ns());
        out.time(receipt(self.hit).map_or(0, |receipt| receipt.at.as_nanos()));
        out.byte(u8::from(receipt(self.hit).is_some()));
    }

    /// Appends the fields of a concurrency limit. A receipt names the lease.
    fn write_leases(&self, out: &mut Writer) {
        out.units(self.cost());
        out.units(self.max_used());
        out.time(self.hit.quota.lease_ns());
        out.time(receipt(self.hit).map_or(0, |receipt| receipt.mark));
        out.byte(u8::from(receipt(self.hit).is_some()));
    }

    /// Appends the three fields that windows, counters and logs share: `cost`, `max_used` and `due`.
    fn write_units(&self, out: &mut Writer) {
        out.units(self.cost());
        out.units(self.max_used());
        out.units(self.due());
    }
}

/// Returns the largest number of used units at which the takes on the state of the hit still fit. `cost_on_state` is
/// the sum of the costs of these takes. For an operation that is not a take, the result is the whole hard capacity.
pub(crate) fn max_used(hit: &Hit<'_>, cost_on_state: u64) -> u64 {
    let cost = if hit.op.kind() == OpKind::Take { cost_on_state } else { 0 };
    hit.quota.hard_capacity().saturating_sub(cost)
}

/// Returns the receipt of the take that the hit refunds, renews or settles.
pub(crate) fn receipt(hit: &Hit<'_>) -> Option<Receipt> {
    match hit.op {
        Op::Refund { receipt, .. } => receipt,
        Op::Renew { receipt } | Op::Settle { receipt, .. } => Some(receipt),
        _ => None,
    }
}

/// Returns the number that `decide.lua` and `take/all.lua` use for the algorithm.
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

/// Returns the length of the window in microseconds if windows begin at multiples of their length, otherwise 0.
pub(crate) fn epoch_window_us(anchor: Anchor, window_ns: u64) -> u64 {
    match anchor {
        Anchor::Epoch => window_ns / 1000,
        Anchor::FirstHit => 0,
    }
}
