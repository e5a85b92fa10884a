//! The burst and the rate that a caller needs. The burst is the highest debt of a bucket that has the limit's rate and
//! no maximum. Debt means the units that a caller asked for and that the rate has not paid back yet.
//!
//! A refused request can come again, and such a retry looks like a new request. So a caller has two figures. The upper
//! figure counts every unit that was asked for. The lower figure counts refused units only once: it assumes that the
//! next units of the caller are a retry. The truth is between the two figures.

use super::MINUTE_NS;
use super::model::Model;

/// With windows, a caller that is refused all the time can get less than the rate, because windows do not admit all of
/// it. Sliding windows admit the least, and large costs lower it further. A caller that gets this share is still busy.
const KEPT_BUSY: f64 = 0.78;

/// What a caller needs, by one of the two ways of counting.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Demand {
    /// The debt of the bucket when the caller last asked, in units.
    pub(super) debt: f64,
    /// When the caller became busy: the time of its first request after it was last idle.
    pub(super) busy_since_ns: u64,
    /// The units since `busy_since_ns`.
    units: f64,
    /// The minutes in which the caller was above the rate. Bit 0 is the minute of its last request.
    pub(super) above_minutes: u64,
    /// The units in the current window of the limit. 0 if the limit has no window.
    pub(super) window_units: f64,
}

impl Demand {
    /// Lets time pass, which pays back debt at the rate of the limit.
    pub(super) fn pass(&mut self, model: &Model, elapsed_ns: u64) {
        self.debt = self.debt_after(model, elapsed_ns);
    }

    /// Adds `units` at the time `now_ns`. Returns the units per nanosecond since the caller became busy, or 0 if it has
    /// not been busy for long enough.
    ///
    /// `refused` says whether the limit refused the request. Time before `refusing_since_ns` does not count as above
    /// the rate.
    pub(super) fn add(&mut self, model: &Model, now_ns: u64, units: f64, refused: bool, refusing_since_ns: u64) -> f64 {
        if self.debt <= 0.0 && self.is_idle(model, now_ns) {
            (self.busy_since_ns, self.units) = (now_ns, 0.0);
        }
        self.debt += units;
        self.units += units;
        if model.window_ns > 0 {
            self.window_units += units;
        }
        let exceeds = if model.has_windows() { refused } else { exceeds(self.debt, model.burst) };
        let above_since_ns = self.busy_since_ns.max(refusing_since_ns);
        if exceeds && now_ns - above_since_ns >= model.judged_ns {
            self.above_minutes |= minutes(above_since_ns, now_ns);
        }
        let busy_ns = now_ns - self.busy_since_ns;
        if busy_ns >= model.judged_ns { self.units / float(busy_ns) } else { 0.0 }
    }

    /// Returns whether a caller without debt is idle. Without windows, it always is. With windows, it is idle only if
    /// it has left more than the units of one window unused since it became busy, and more than a share of the rate.
    fn is_idle(&self, model: &Model, now_ns: u64) -> bool {
        if !model.has_windows() {
            return true;
        }
        let allowed = float(now_ns - self.busy_since_ns) * model.rate;
        allowed - self.units > model.burst && self.units < KEPT_BUSY * allowed
    }

    /// Returns whether no debt is left after `elapsed_ns` more.
    pub(super) fn is_paid(&self, model: &Model, elapsed_ns: u64) -> bool {
        self.debt_after(model, elapsed_ns) <= 0.0
    }

    fn debt_after(&self, model: &Model, elapsed_ns: u64) -> f64 {
        (self.debt - float(elapsed_ns) * model.rate).max(0.0)
    }
}

/// Returns whether `units` are more than `limit`, by more than the rounding error of a sum of floats.
pub(super) fn exceeds(units: f64, limit: f64) -> bool {
    units > limit + 1e-9 * limit.max(1.0)
}

/// Returns one bit for each minute from `from_ns` to `to_ns`. Bit 0 is the last minute. Only the last 64 minutes have a
/// bit.
fn minutes(from_ns: u64, to_ns: u64) -> u64 {
    let earlier = to_ns / MINUTE_NS - from_ns / MINUTE_NS;
    if earlier >= 63 { u64::MAX } else { (2 << earlier) - 1 }
}

/// Returns a duration of less than 292 years as a float. The processor converts signed integers faster than unsigned
/// ones.
fn float(ns: u64) -> f64 {
    ns.min(i64::MAX as u64) as i64 as f64
}
