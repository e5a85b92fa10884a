//! What another limit would have done to the callers that were seen.
//!
//! A caller certainly passes or is certainly refused only if its whole range of demand says so, so the answer is a range
//! of callers.

use serde::Serialize;

use super::SPANS_NS;
use super::model::{Counting, Model};
use super::reading::{Reading, SampledCaller};
use super::report::{Estimate, Range};
use super::suggest::{Suggestion, share_of};
use super::words::rounded_time;

/// What another limit would have done to the callers, if they had asked for the same. What callers ask for is known for
/// the last 30 to 60 minutes.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct OtherLimit {
    /// The other limit, in units in each window. A bucket cannot have every rate, so it can be a little higher than
    /// what was asked for.
    pub limit: u64,
    /// How many callers it would have refused at least once.
    pub refused_callers: Range,
    /// The same in sentences, with what the limit of today did.
    pub text: String,
}

impl Reading {
    /// Returns what `limit` units in each window would have changed. A burst of its own stays as it is. `None` if
    /// nobody can know: for permits, for queues, for a limit of 0, and without callers. Also if `limit` is not valid.
    ///
    /// ```
    /// use spillgate::insight::{LimitInsight, Options, Take};
    /// use spillgate::{Clock, Limiter, ManualClock, MemoryOptions, MemoryStore, Quota, Time};
    ///
    /// const API: Quota = Quota::per_minute(10).constant();
    /// let clock = ManualClock::at(Time::from_nanos(1_800_000_000_000_000_000));
    /// let limiter = Limiter::with_clock(MemoryStore::new(MemoryOptions::default()), clock.clone());
    /// let insight = LimitInsight::new(&API, Options::default(), clock.now());
    /// for user in [7, 7, 7, 8_u64] {
    ///     for _ in 0..5 {
    ///         let decision = limiter.take_now(&API, user, 1);
    ///         insight.count(clock.now(), limiter.hit(&API, user, 1).key, &Take::of(1, &decision));
    ///     }
    /// }
    /// let other = insight.read(clock.now()).with_limit(20).unwrap();
    /// assert_eq!(other.refused_callers.at_most, Some(0.0));
    /// # assert_eq!(insight.read(clock.now()).with_limit(4).unwrap().refused_callers.at_least, 2.0);
    /// ```
    #[must_use]
    pub fn with_limit(&self, limit: u64) -> Option<OtherLimit> {
        let model = &self.limit;
        let hour = &self.spans[SPANS_NS.len() - 1];
        if matches!(model.counting, Counting::Queue | Counting::Permits) || model.limit == 0 || limit == 0 {
            return None;
        }
        let own_burst = model.has_own_burst().then_some(model.capacity);
        let limit = Suggestion::valid(model, limit, own_burst)?.limit;
        let other = Other::new(model, limit);
        let of = |is: &dyn Fn(&SampledCaller) -> bool| Estimate::of(&hour.sampled, is);
        let (asked, refused) = (of(&|_| true), of(&|caller| caller.refused));
        if asked.value == 0.0 {
            return None;
        }
        let (least, most) = (of(&|caller| other.refuses(caller)), of(&|caller| !other.passes(caller)));
        // Both are estimates of one sample, so they have their order also after rounding.
        let (least, most) = (least.value.round(), most.value.round());
        let about = if asked.relative_error > 0.0 { "about " } else { "" };
        let range = if least == most { format!("{least}") } else { format!("{least} to {most}") };
        let mut text = format!(
            "With a limit of {limit}, {about}{range} of {} callers would be refused at least once. In the last {}, it was {}.",
            asked.value.round(),
            rounded_time(self.now_ns.saturating_add(1).saturating_sub(self.since_ns).min(SPANS_NS[SPANS_NS.len() - 1])),
            refused.value.round(),
        );
        let weight = |caller: &SampledCaller| caller.refused_units as f64;
        if limit > model.limit && hour.sampled.callers.iter().any(|caller| caller.refused_units > 0) {
            let share = share_of(&hour.sampled.callers, weight, |caller| other.passes(caller));
            text += &format!(" Callers with {share} % of the refused units would not be refused at all.");
        }
        let refused_callers = Range { at_least: least, at_most: Some(most) };
        Some(OtherLimit { limit, refused_callers, text })
    }
}

/// The limit of a model with another number of units.
struct Other<'a> {
    model: &'a Model,
    limit: f64,
    /// The most that can be used at one time.
    burst: f64,
}

impl Other<'_> {
    fn new(model: &Model, limit: u64) -> Other<'_> {
        let limit = limit as f64;
        // A soft limit admits a share of its limit more.
        let burst = if model.has_own_burst() { model.burst } else { model.burst / model.limit as f64 * limit };
        Other { model, limit, burst }
    }

    /// Returns whether the other limit certainly refuses none of the caller's requests.
    fn passes(&self, caller: &SampledCaller) -> bool {
        // Other servers have also seen requests of this caller, so its demand is not known.
        let Some(burst) = caller.burst.1 else { return false };
        if self.model.has_windows() {
            return caller.window.is_none_or(|(_, upper)| upper as f64 <= self.burst);
        }
        if self.limit >= self.model.limit as f64 && burst as f64 <= self.burst {
            return true;
        }
        // Any time `t` touches at most `t` / window + 2 windows.
        let window = caller.longer_window as f64;
        2.0 * window <= self.burst && window <= self.limit
    }

    /// Returns whether the other limit certainly refuses a request of the caller.
    fn refuses(&self, caller: &SampledCaller) -> bool {
        let of_window = caller.window.map_or(0.0, |(lower, _)| lower as f64);
        if self.model.has_windows() {
            return of_window > self.burst;
        }
        // A higher rate needs a lower burst, but a window never gets more than the burst and the units of one window.
        (self.limit <= self.model.limit as f64 && caller.burst.0 as f64 > self.burst)
            || of_window > self.burst + self.limit
    }
}
