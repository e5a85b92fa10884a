//! What insight has counted for one limit at one time. Readings of several servers can be merged.
//!
//! A reading has figures of single callers, because merging needs them. A [`Report`](super::Report) has percentiles and
//! estimates instead.

use std::fmt;
use std::str::FromStr;

use super::model::{Counting, Model};
use super::top::HALF_HOUR_NS;
use super::waits::Waits;
use super::{MINUTE_NS, SPANS_NS};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The counts and callers of one limit, as insight knows them at one time.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Reading {
    pub(super) limit: Model,
    /// The time of the reading, in nanoseconds since the epoch.
    pub now_ns: u64,
    /// When the counting began, in nanoseconds since the epoch. In a merged reading, this is when the last of the
    /// servers began.
    pub since_ns: u64,
    /// When the first of the servers began to count, in nanoseconds since the epoch.
    pub first_since_ns: u64,
    /// The figures of the last minute, the last ten minutes and the last hour.
    pub spans: [Span; SPANS_NS.len()],
    /// The callers with the most allowed units.
    pub top_allowed: TopCallers,
    /// The callers with the most refused units.
    pub top_refused: TopCallers,
    /// Whether a report names callers, in its lists and in its sentences.
    #[serde(default)]
    pub(super) hides_callers: bool,
}

/// What insight has counted in a span of time that ended with the reading.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Span {
    /// Numbers of requests and units, for a time that is at most one sixth longer than the span.
    pub counts: Counts,
    /// How long refused callers have to wait.
    pub waits: Waits,
    /// The most units of the limit that any caller used at one time, whether the caller is in the sample or not. It
    /// covers the same time as `counts`.
    pub used: u64,
    /// The callers, or a fair sample of them if there are many.
    pub sampled: Sampled,
}

/// Numbers of requests and units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Counts {
    /// Requests on which this limit decided.
    pub requests: u64,
    /// Requests that this limit refused.
    pub refused_requests: u64,
    /// Units that requests asked for.
    pub units: u64,
    /// Units that this limit refused.
    pub refused_units: u64,
    /// Refused requests that cost more than the limit allows at once. They can never pass.
    pub oversized_requests: u64,
    /// Requests that a queue refused although it was not full: their turn would come later than they can wait.
    pub unwaited_requests: u64,
    /// The units of `oversized_requests`.
    pub oversized_units: u64,
    /// Of `refused_requests`, those that the limit only would have refused: it was in shadow mode, or it was in quota mode
    /// and the request passed.
    // A server of an older version does not say it.
    #[serde(default)]
    pub unenforced_requests: u64,
    /// Requests that this limit allowed and another limit refused. They take nothing of this limit,
    /// except in a store without scripts.
    #[serde(default)]
    pub refused_elsewhere_requests: u64,
}

/// The sampled callers of a limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Sampled {
    /// The sample has every caller of the span whose hash is below this number. If the number is the largest one, the
    /// sample has every caller.
    pub threshold: u64,
    /// The callers in the sample, in no particular order.
    pub callers: Vec<SampledCaller>,
}

/// A caller in the sample of a limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SampledCaller {
    /// The hash of the caller's key.
    pub id: CallerId,
    /// Whether the limit refused a request of the caller.
    pub refused: bool,
    /// The refused units of the current and the previous half hour, whatever the span is. Units of requests that can
    /// never pass do not count.
    pub refused_units: u64,
    /// Whether each refused request cost more than the limit allows at once.
    pub only_oversized: bool,
    /// The minutes in which the caller asked. Bit 0 is the minute of the reading, and bit 1 is the minute before.
    pub asked_minutes: u64,
    /// The minutes in which the caller was above the rate, if refused units count once.
    pub above_minutes: u64,
    /// The minutes in which the caller was above the rate, if all units count.
    pub above_minutes_upper: u64,
    /// Whether the caller was above the rate, if refused units count once.
    pub above_lower: bool,
    /// Whether the caller was above the rate, if all units count.
    pub above_upper: bool,
    /// Whether the rate of the limit has paid back all units that the caller asked for.
    pub paid: bool,
    /// The same, if refused units count only once. It is false if other servers may have taken units since the caller
    /// was last idle.
    #[serde(default)]
    pub paid_lower: bool,
    /// The burst that lets all requests of the caller pass: a lower and an upper bound. The upper bound is `None` if
    /// other servers also took units.
    pub burst: (u64, Option<u64>),
    /// The highest count of a window: a lower and an upper bound. `None` if no units were asked for, or if the limit
    /// has permits.
    pub window: Option<(u64, u64)>,
    /// The upper bound of `window`, for a longer time: it covers at least an hour, and at most an hour and a half.
    pub longer_window: u64,
    /// The highest rate of the caller while it was busy for long enough to be judged, in units per second. Retries
    /// count too. It is 0 if the caller was never busy for long enough, and `None` if other servers also took units.
    pub rate: Option<f64>,
    /// The most that the caller used of its limit at one time, in thousandths of the limit.
    pub used_permille: u16,
}

/// The callers with the most units of the current and the previous half hour.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TopCallers {
    /// The beginning of the time that all counts cover, in nanoseconds since the epoch: that of the previous half hour,
    /// or when the counting began if that is later.
    pub since_ns: u64,
    /// The units of all callers.
    pub units: u64,
    /// In the list of allowed units: the units of requests that this limit allowed and another limit refused. Their
    /// callers got nothing, so they are not in `units`, although a store without scripts charges them.
    #[serde(default)]
    pub refused_elsewhere: u64,
    /// Each count is too low by at most this many units. Every caller with more units than this is in the list.
    pub missing: u64,
    /// The callers, those with the most units first.
    pub callers: Vec<TopCaller>,
}

/// A caller that takes many units.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TopCaller {
    /// The hash of the caller's key.
    pub id: CallerId,
    /// The caller's name, if names are kept. A long name is cut.
    pub name: Option<String>,
    /// A lower bound of the units of this caller.
    pub units: u64,
}

/// The hash of a caller's key. It is shown as 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallerId(pub u64);

impl Reading {
    pub(super) fn new(limit: Model, since_ns: u64, now_ns: u64) -> Reading {
        let top = TopCallers { since_ns: top_since_ns(since_ns, now_ns), ..TopCallers::default() };
        Reading {
            limit,
            now_ns,
            since_ns,
            first_since_ns: since_ns,
            spans: Default::default(),
            top_allowed: top.clone(),
            top_refused: top,
            hides_callers: false,
        }
    }

    /// Lowers the counts of windows that are older than an hour. If nothing was refused, the store has counted the windows
    /// of the last hour too, for all callers.
    pub(super) fn shorten_windows(&mut self) {
        let [.., hour] = &mut self.spans;
        if self.limit.has_windows() && hour.counts.refused_requests == 0 {
            for caller in &mut hour.sampled.callers {
                let at_most = caller.window.map_or(0, |window| window.1).max(hour.used);
                caller.longer_window = caller.longer_window.min(at_most);
            }
        }
    }

    /// Makes reports without callers: they are in no list and in no sentence. The reading keeps their hashes, which
    /// [`merge`](Reading::merge) needs.
    pub fn hide_callers(&mut self) {
        self.hides_callers = true;
    }

    /// Adds the reading of another server with the same limit.
    ///
    /// Callers with the same id become one. The servers must therefore hash keys with the same secret.
    ///
    /// Each server subtracts the whole rate of the limit from the debt of a caller. So the debts of a caller at several
    /// servers cannot be added, but its counts of windows can. The merged burst has the higher of the two lower bounds.
    /// It has an upper bound only if the caller asks for little.
    pub fn merge(&mut self, other: &Reading) {
        let now_ns = self.now_ns.max(other.now_ns);
        let later = |reading: &Reading| now_ns / MINUTE_NS - reading.now_ns / MINUTE_NS;
        let minutes = [later(self), later(other)];
        self.now_ns = now_ns;
        self.since_ns = self.since_ns.max(other.since_ns);
        self.first_since_ns = self.first_since_ns.min(other.first_since_ns);
        for (span, other) in self.spans.iter_mut().zip(&other.spans) {
            span.counts.merge(&other.counts);
            span.waits.merge(&other.waits);
            span.used = span.used.max(other.used);
            span.sampled.merge(&other.sampled, &self.limit, minutes);
        }
        self.top_allowed.merge(&other.top_allowed);
        self.top_refused.merge(&other.top_refused);
        self.hides_callers |= other.hides_callers;
    }
}

impl Counts {
    pub(super) fn merge(&mut self, other: &Counts) {
        self.requests = self.requests.saturating_add(other.requests);
        self.refused_requests = self.refused_requests.saturating_add(other.refused_requests);
        self.units = self.units.saturating_add(other.units);
        self.refused_units = self.refused_units.saturating_add(other.refused_units);
        self.oversized_requests = self.oversized_requests.saturating_add(other.oversized_requests);
        self.unwaited_requests = self.unwaited_requests.saturating_add(other.unwaited_requests);
        self.oversized_units = self.oversized_units.saturating_add(other.oversized_units);
        self.unenforced_requests = self.unenforced_requests.saturating_add(other.unenforced_requests);
        self.refused_elsewhere_requests =
            self.refused_elsewhere_requests.saturating_add(other.refused_elsewhere_requests);
    }
}

impl Default for Sampled {
    fn default() -> Sampled {
        Sampled { threshold: u64::MAX, callers: Vec::new() }
    }
}

impl Sampled {
    /// Adds callers, with the threshold of the sample that they come from.
    pub(super) fn add(&mut self, threshold: u64, callers: impl Iterator<Item = SampledCaller>) {
        self.callers.extend(callers);
        self.lower_threshold(threshold);
    }

    fn lower_threshold(&mut self, threshold: u64) {
        self.threshold = self.threshold.min(threshold);
        let threshold = self.threshold;
        self.callers.retain(|caller| caller.id.0 < threshold || threshold == u64::MAX);
    }

    /// Adds the callers of another server. `later` says by how many minutes the merged reading is later than this one,
    /// and than the other one.
    fn merge(&mut self, other: &Sampled, model: &Model, later: [u64; 2]) {
        self.callers.iter_mut().for_each(|caller| caller.shift_minutes(later[0]));
        let shifted = |caller: &SampledCaller| {
            let mut caller = caller.clone();
            caller.shift_minutes(later[1]);
            caller
        };
        self.add(other.threshold, other.callers.iter().map(shifted));
        self.callers.sort_by_key(|caller| caller.id);
        self.callers.dedup_by(|caller, same| {
            caller.id == same.id && {
                same.merge(caller, model);
                true
            }
        });
    }
}

impl SampledCaller {
    fn shift_minutes(&mut self, minutes: u64) {
        self.asked_minutes = shifted(self.asked_minutes, minutes);
        self.above_minutes = shifted(self.above_minutes, minutes);
        self.above_minutes_upper = shifted(self.above_minutes_upper, minutes);
    }

    /// Removes the upper bounds of the caller's figures, because this server may not have seen all units of the caller.
    pub(super) fn share(&mut self) {
        (self.burst.1, self.rate) = (None, None);
        (self.above_upper, self.above_minutes_upper) = (true, self.asked_minutes);
        (self.paid, self.paid_lower) = (false, false);
    }

    /// Returns the most that the caller used of its limit at one time: 1 is the whole limit.
    pub(super) fn used_share(&self) -> f64 {
        f64::from(self.used_permille) / 1000.0
    }

    /// Adds the figures of the same caller at another server.
    fn merge(&mut self, other: &SampledCaller, model: &Model) {
        // A window that begins at a first hit can overlap two windows of another server.
        let touched = if model.counting == Counting::FirstHit { 2 } else { 1 };
        self.window = match (self.window, other.window) {
            (Some(a), Some(b)) => Some((a.0.max(b.0), a.1.saturating_add(b.1).saturating_mul(touched))),
            (a, b) => a.or(b),
        };
        self.longer_window = self.longer_window.saturating_add(other.longer_window).saturating_mul(touched);
        self.refused_units = self.refused_units.saturating_add(other.refused_units);
        self.only_oversized = match (self.refused, other.refused) {
            (true, true) => self.only_oversized && other.only_oversized,
            _ => self.only_oversized || other.only_oversized,
        };
        self.refused |= other.refused;
        self.above_lower |= other.above_lower;
        self.above_upper |= other.above_upper;
        self.asked_minutes |= other.asked_minutes;
        self.above_minutes |= other.above_minutes;
        self.paid &= other.paid;
        self.paid_lower &= other.paid_lower;
        self.used_permille = self.used_permille.max(other.used_permille);
        self.burst.0 = self.burst.0.max(other.burst.0);
        let highest = self.window.map_or(u64::MAX, |window| window.1.saturating_mul(2));
        let rate = self.rate.zip(other.rate).map(|(a, b)| a + b);
        self.share();
        // A time `t` touches at most `t` / window + 2 windows, and each has at most half of `highest` units. So if
        // `highest` is not above the limit, no burst is above `highest`.
        if highest <= model.limit.min(model.capacity) && rate == Some(0.0) {
            (self.burst.1, self.rate) = (Some(highest), rate);
            (self.above_upper, self.above_minutes_upper) = (self.above_lower, self.above_minutes);
        }
    }
}

/// Shifts the bits of minutes for a reading that is `later` minutes later.
pub(super) fn shifted(minutes: u64, later: u64) -> u64 {
    u32::try_from(later).ok().and_then(|later| minutes.checked_shl(later)).unwrap_or(0)
}

/// Returns since when the lists of top callers count, if the counting began at `since_ns` and it is `now_ns`.
pub(super) fn top_since_ns(since_ns: u64, now_ns: u64) -> u64 {
    ((now_ns / HALF_HOUR_NS).saturating_sub(1) * HALF_HOUR_NS).max(since_ns)
}

impl TopCallers {
    /// Adds other counts, for example of another server. The callers with the most units are then first.
    pub fn merge(&mut self, other: &TopCallers) {
        self.since_ns = self.since_ns.min(other.since_ns);
        self.refused_elsewhere = self.refused_elsewhere.saturating_add(other.refused_elsewhere);
        self.add((other.units, other.missing, other.callers.iter().cloned()));
    }

    /// Adds units, by how much counts are too low, and callers. The callers with the most units are then first.
    pub(super) fn add(&mut self, (units, missing, callers): (u64, u64, impl Iterator<Item = TopCaller>)) {
        self.units = self.units.saturating_add(units);
        self.missing = self.missing.saturating_add(missing);
        self.callers.extend(callers);
        self.callers.sort_by_key(|caller| caller.id);
        self.callers.dedup_by(|caller, same| {
            caller.id == same.id && {
                same.units = same.units.saturating_add(caller.units);
                same.name = same.name.take().or_else(|| caller.name.take());
                true
            }
        });
        self.callers.sort_by_key(|caller| (std::cmp::Reverse(caller.units), caller.id));
    }

    /// Returns the units of the caller with the most: a lower and an upper bound.
    pub(super) fn highest(&self) -> (u64, u64) {
        let highest = self.callers.first().map_or(0, |caller| caller.units);
        (highest, highest.saturating_add(self.missing).min(self.units))
    }

    /// Returns an upper bound of the units of a caller.
    pub(super) fn units_at_most(&self, id: CallerId) -> u64 {
        self.units_of(id).saturating_add(self.missing)
    }

    /// Returns a lower bound of the units of a caller. It is 0 if the caller is not in the list.
    pub(super) fn units_of(&self, id: CallerId) -> u64 {
        self.callers.iter().find(|caller| caller.id == id).map_or(0, |caller| caller.units)
    }
}

impl CallerId {
    /// Returns the hash of the caller with this key. `seed` is the one of [`Options`](super::Options).
    #[must_use]
    pub fn of(key: u128, seed: u64) -> CallerId {
        CallerId(super::mixed(key, seed))
    }
}

impl fmt::Display for CallerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for CallerId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<CallerId, Self::Err> {
        u64::from_str_radix(text, 16).map(CallerId)
    }
}

impl Serialize for CallerId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CallerId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CallerId, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}
