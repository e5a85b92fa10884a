//! The burst that a caller needs: the highest debt of a bucket that has the limit's rate, and no depth.
//!
//! Requests that were refused can come again, and such a retry looks like a new request. So a caller has two figures. The
//! upper figure counts every unit that was asked for. The lower figure counts units that were refused only once: a later
//! request takes them up. The truth is between them.

use super::model::{Model, Windows};

/// One of the two figures of a caller: what it needs, if its requests are counted in one of the two ways.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Demand {
    /// The debt of the bucket at the time `at_ns`, in units.
    debt: f64,
    at_ns: u64,
    /// The first request after the caller was last idle.
    busy_since_ns: u64,
    /// The last time when the caller was above the rate. 0 if it never was.
    pub(super) above_ns: u64,
    window: Window,
}

/// What a caller asked for in a window of the limit, in units.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    begin_ns: u64,
    count: f64,
    /// The count of the window before. Only limits with sliding windows use it.
    before: f64,
}

/// What a demand is after a request, in units.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Need {
    /// The debt of the bucket.
    pub(super) burst: f64,
    /// The count of the window. 0 if the limit has no windows.
    pub(super) window: WindowCount,
}

/// The count of a window that ends now, between two figures. They are equal unless the window slides.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct WindowCount {
    pub(super) at_least: f64,
    pub(super) at_most: f64,
}

impl Demand {
    /// Adds `units` at the time `now_ns`, and returns what the caller needs to get them. `refused` says whether the limit
    /// refused the request.
    pub(super) fn add(&mut self, model: &Model, now_ns: u64, units: f64, refused: bool) -> Need {
        // Requests can arrive late. They count as of the newest time.
        let now_ns = now_ns.max(self.at_ns);
        let debt = self.debt_at(model, now_ns);
        if debt <= 0.0 && self.is_idle(model, now_ns) {
            self.busy_since_ns = now_ns;
        }
        self.debt = debt;
        self.at_ns = now_ns;
        self.debt += units;
        // A window admits its limit and no more, so units that are counted once never exceed the rate by a burst.
        let exceeds = self.debt > model.burst || model.windows != Windows::None && refused;
        if model.rate > 0.0 && exceeds && now_ns - self.busy_since_ns >= model.judged_ns {
            self.above_ns = now_ns;
        }
        Need { burst: self.debt, window: self.window.add(model, now_ns, units) }
    }

    /// Returns whether the bucket is empty. A window can admit a little less than the rate, so a caller of a limit with windows
    /// is idle only after a whole window without debt.
    fn is_idle(&self, model: &Model, now_ns: u64) -> bool {
        let spared_ns = if model.windows == Windows::None { 0 } else { model.window_ns };
        self.debt_at(model, now_ns.saturating_sub(spared_ns).max(self.at_ns)) <= 0.0
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
    fn add(&mut self, model: &Model, now_ns: u64, units: f64) -> WindowCount {
        let length_ns = model.window_ns;
        let begin_ns = match model.windows {
            Windows::None => return WindowCount::default(),
            Windows::Aligned | Windows::Sliding => now_ns - now_ns % length_ns,
            Windows::FirstHit if self.count > 0.0 && now_ns - self.begin_ns < length_ns => self.begin_ns,
            Windows::FirstHit => now_ns,
        };
        if begin_ns != self.begin_ns {
            self.before = if begin_ns - self.begin_ns == length_ns { self.count } else { 0.0 };
            (self.begin_ns, self.count) = (begin_ns, 0.0);
        }
        self.count += units;
        // A window that ends now has all of the aligned window that has begun, and a part of the one before.
        let part = if model.windows == Windows::Sliding { self.before } else { 0.0 };
        WindowCount { at_least: self.count, at_most: self.count + part }
    }
}

/// Returns a duration of less than 292 years as a float. The processor converts signed integers faster than unsigned ones.
fn float(ns: u64) -> f64 {
    ns.min(i64::MAX as u64) as i64 as f64
}
