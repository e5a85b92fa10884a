//! The burst and the rate that a caller needs. The burst is the highest debt of a bucket that has the limit's rate, and no
//! depth.
//!
//! Requests that were refused can come again, and such a retry looks like a new request. So a caller has two figures. The
//! upper figure counts every unit that was asked for. The lower figure counts units that were refused only once: a later
//! request takes them up. The truth is between them.

use super::MINUTE_NS;
use super::model::{Counting, Model};

/// One of the two figures of a caller: what it needs, if its requests are counted in one of the two ways.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Demand {
    /// The debt of the bucket at the time `at_ns`, in units.
    debt: f64,
    at_ns: u64,
    /// The first request after the caller was last idle.
    busy_since_ns: u64,
    /// The units since then.
    units: f64,
    /// The minutes in which the caller was above the rate. Bit 0 is the minute of its last request.
    pub(super) above_minutes: u64,
    window: Window,
}

/// What a caller asked for in a window of the limit, in units.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    begin_ns: u64,
    count: f64,
    /// The count of the window before. Only limits with sliding windows use it.
    before: f64,
    /// The begin of the first window of those that follow each other, and of which each but this one has refused.
    refusing_since_ns: u64,
    has_refused: bool,
}

/// Which of the two figures of a caller a demand is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Figure {
    Lower,
    Upper,
}

/// What a demand is after a request, in units.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Need {
    /// The debt of the bucket.
    pub(super) burst: f64,
    /// The count of the window. 0 if the limit has no window.
    pub(super) window: WindowCount,
    /// Units per nanosecond since the caller became busy. 0 until it was busy for long enough.
    pub(super) rate: f64,
}

/// The count of a window that ends now, between two figures. They are equal unless the window slides.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct WindowCount {
    pub(super) at_least: f64,
    pub(super) at_most: f64,
}

impl Demand {
    /// Adds `units` at the time `now_ns`, which is not before the last one, and returns what the caller needs to get them.
    /// `refused` says whether the limit refused the request, and `figure` which of the two figures this is.
    pub(super) fn add(&mut self, model: &Model, now_ns: u64, units: f64, refused: bool, figure: Figure) -> Need {
        let debt = self.debt_at(model, now_ns);
        if debt <= 0.0 && self.is_idle(model, now_ns) {
            (self.busy_since_ns, self.units) = (now_ns, 0.0);
        }
        self.debt = debt + units;
        self.at_ns = now_ns;
        self.units += units;
        let window = self.window.add(model, now_ns, units, refused);
        let exceeds = if model.has_windows() { refused } else { exceeds(self.debt, model.burst) };
        // Windows admit their limit and no more, so units that are counted once never exceed the rate. Instead, each window has to
        // refuse, and little of the rate may be left unused.
        let above_since_ns = match figure {
            Figure::Lower if model.has_windows() => self.window.refusing_since_ns.max(self.busy_since_ns),
            _ => self.busy_since_ns,
        };
        if exceeds && model.rate > 0.0 && now_ns - above_since_ns >= model.judged_ns {
            self.above_minutes |= minutes(above_since_ns, now_ns);
        }
        let busy_ns = now_ns - self.busy_since_ns;
        let rate = if busy_ns > 0 && busy_ns >= model.judged_ns { self.units / float(busy_ns) } else { 0.0 };
        Need { burst: self.debt, window, rate }
    }

    /// Returns whether the caller, which has no debt now, has left much of the rate unused since it became busy. A window can
    /// admit a little less than the rate, so a caller of a limit with windows may leave one limit unused.
    fn is_idle(&self, model: &Model, now_ns: u64) -> bool {
        !model.has_windows() || float(now_ns - self.busy_since_ns) * model.rate - self.units > model.burst
    }

    /// Returns whether the bucket is empty at the time `now_ns`: the rate has made up for all that was asked.
    pub(super) fn is_paid(&self, model: &Model, now_ns: u64) -> bool {
        self.debt_at(model, now_ns.max(self.at_ns)) <= 0.0
    }

    fn debt_at(&self, model: &Model, now_ns: u64) -> f64 {
        (self.debt - float(now_ns - self.at_ns) * model.rate).max(0.0)
    }
}

impl Window {
    fn add(&mut self, model: &Model, now_ns: u64, units: f64, refused: bool) -> WindowCount {
        let length_ns = model.window_ns;
        if length_ns == 0 {
            return WindowCount::default();
        }
        if self.begin_ns == 0 || now_ns - self.begin_ns >= length_ns {
            let begin_ns = if model.counting == Counting::FirstHit { now_ns } else { now_ns - now_ns % length_ns };
            let later_ns = begin_ns - self.begin_ns;
            self.before = if later_ns == length_ns { self.count } else { 0.0 };
            // A window from the first hit can begin a little after the end of the one before.
            let follows = later_ns < 2 * length_ns;
            if !(follows && self.has_refused) {
                self.refusing_since_ns = begin_ns;
            }
            (self.begin_ns, self.count, self.has_refused) = (begin_ns, 0.0, false);
        }
        self.count += units;
        self.has_refused |= refused;
        // A window that ends now has all of the aligned window that has begun, and a part of the one before.
        let part = if model.counting == Counting::Sliding { self.before } else { 0.0 };
        WindowCount { at_least: self.count, at_most: self.count + part }
    }
}

/// Returns whether `units` are more than `limit`. A sum of floats can be wrong by a small part of itself.
pub(super) fn exceeds(units: f64, limit: f64) -> bool {
    units > limit + 1e-9 * limit.max(1.0)
}

/// Returns the minutes from the one time to the other. Bit 0 is the last minute.
fn minutes(from_ns: u64, to_ns: u64) -> u64 {
    let earlier = to_ns / MINUTE_NS - from_ns / MINUTE_NS;
    if earlier >= 63 { u64::MAX } else { (2 << earlier) - 1 }
}

/// Returns a duration of less than 292 years as a float. The processor converts signed integers faster than unsigned ones.
fn float(ns: u64) -> f64 {
    ns.min(i64::MAX as u64) as i64 as f64
}
