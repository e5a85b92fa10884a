//! What insight knows about one caller of a limit.
//!
//! A caller takes the same memory, however many requests it sends.

use spillgate_core::Reason;

use super::demand::{Demand, exceeds};
use super::model::{Counting, Model};
use super::reading::{CallerId, SampledCaller, shifted};
use super::top::HALF_HOUR_NS;
use super::{MINUTE_NS, SPANS_NS, Take};

/// A caller in the sample of a limit.
///
/// Threads share the callers of a sample, so each changed cache line can cost time. Most takes change only the fields
/// before `recent_before`, which fill three cache lines. The order and the alignment of the fields are therefore fixed.
#[derive(Clone, Debug, Default)]
#[repr(C, align(64))]
pub(super) struct Caller {
    pub(super) hash: u64,
    pub(super) last_asked_ns: u64,
    /// The time of the last refusal of a request that could pass later. A request that costs too much never can.
    last_refused_ns: u64,
    /// The minutes in which the caller asked. Bit 0 is the minute of its last request.
    asked_minutes: u64,
    /// The demand if every unit counts, also the units of retries.
    upper: Demand,
    /// The demand if refused units count only once, and not again when the caller retries.
    lower: Demand,
    /// When the current window of the limit began, by the clock of the store.
    window_began_ns: u64,
    /// Since this time, each window of the limit has refused a request of this caller. The current window may not have
    /// refused one yet.
    refusing_since_ns: u64,
    /// Refused units that the caller has not asked for again yet.
    unmet: f64,
    /// Which half minute `recent` covers, counted from the epoch. Half a minute is half of the shortest span.
    recent_half: u64,
    /// The peaks of the half minute `recent_half`. When it ends, its peaks are added to those of the longer spans.
    recent: Peak,
    /// Whether a request was refused before, so that a later request may be its retry.
    returned: bool,
    /// Whether the current window has refused a request.
    window_refused: bool,
    /// The refused units of the half hour before `refused_units`.
    refused_units_before: f32,
    /// The peaks of the half minute before `recent`.
    recent_before: Peak,
    /// The units of the previous window: first as `upper` counts them, then as `lower` does. Only limits with sliding
    /// windows use them.
    window_before: [f64; 2],
    /// The refused units of the half hour that contains `last_refused_ns`.
    refused_units: f64,
    /// The time of the last refusal of a request that can never pass.
    last_oversized_ns: u64,
    /// When a refusal last had a cause that this insight cannot see: other servers took units from the same store, or
    /// the shared store failed and this server decided by its share of the limit.
    last_shared_ns: u64,
    longer: [Halves; SPANS_NS.len() - 1],
}

const HALF_NS: u64 = SPANS_NS[0] / 2;

/// The highest figures of a caller in half a span. Bursts and windows are in units.
#[derive(Clone, Copy, Debug, Default)]
struct Peak {
    burst_lower: f64,
    burst_upper: f64,
    window_lower: f64,
    window_upper: f64,
    /// In units per nanosecond.
    rate: f32,
    /// In thousandths of the limit.
    used: u16,
}

/// The peaks of the current half of a span and of the half before it. At any time, the two together cover at least half
/// of the span, and at most all of it.
#[derive(Clone, Copy, Debug, Default)]
struct Halves {
    /// The number of the current half, counted from the epoch.
    half: u32,
    /// The `window_upper` of the half before `before`, rounded up. So three halves are known of this figure, and they
    /// cover at least the whole span.
    oldest_window: f32,
    now: Peak,
    before: Peak,
}

/// Rounds up to whole units. A sum of floats has a rounding error, so a little is subtracted first. Up to 10^12 units,
/// the error is smaller than what is subtracted.
fn whole(units: f64) -> u64 {
    (units - 1e-9 - 1e-14 * units).ceil() as u64
}

impl Caller {
    pub(super) fn new(hash: u64) -> Caller {
        Caller { hash, ..Caller::default() }
    }

    pub(super) fn count(&mut self, model: &Model, now_ns: u64, take: &Take) {
        // A late take counts as if it came at the time of the newest take.
        let now_ns = now_ns.max(self.last_asked_ns);
        if now_ns / MINUTE_NS != self.last_asked_ns / MINUTE_NS {
            self.begin_minute(now_ns);
        }
        let elapsed_ns = now_ns - self.last_asked_ns;
        self.upper.pass(model, elapsed_ns);
        self.lower.pass(model, elapsed_ns);
        self.last_asked_ns = now_ns;
        self.asked_minutes |= 1;
        if take.is_oversized(model) {
            // This request can never pass, so it says nothing about the burst or the rate that the caller needs.
            self.last_oversized_ns = now_ns;
            return;
        }
        if model.window_ns > 0 {
            let store_ns = if take.store_ns > 0 { take.store_ns } else { now_ns };
            // A late take from the previous window must not begin a window.
            if store_ns.abs_diff(self.window_began_ns) >= model.window_ns {
                self.begin_window(model, now_ns, store_ns);
            }
        }
        let units = take.units as f64;
        let repeated = self.unmet.min(units);
        let of_share = take.is_of_share(model);
        let refused = take.refused && !of_share;
        let upper_rate = self.upper.add(model, now_ns, units, refused, 0);
        // The lower demand counts refused units only once. A window admits at most its limit, so this demand alone can
        // never show that a caller is above the rate. With windows, a caller therefore counts as above the rate under two
        // conditions: each window refuses one of its requests, and the caller uses nearly all of the rate.
        let refusing_since_ns = if model.has_windows() { self.refusing_since_ns } else { 0 };
        self.lower.add(model, now_ns, units - repeated, refused, refusing_since_ns);
        self.unmet -= repeated;
        if take.may_return {
            self.unmet += units;
            self.returned = true;
        }
        let mut peak = self.peak_of(model, units, upper_rate);
        peak.used = take.used_permille(model);
        if take.refused {
            if now_ns / HALF_HOUR_NS != self.last_refused_ns / HALF_HOUR_NS {
                self.begin_half_hour(now_ns);
            }
            self.last_refused_ns = now_ns;
            self.refused_units += units;
            if of_share {
                self.last_shared_ns = now_ns;
            } else {
                self.window_refused = true;
                self.refused(model, take, &mut peak);
            }
        }
        let half = now_ns / HALF_NS;
        if half > self.recent_half {
            self.end_half(half);
        }
        self.recent.raise(peak);
    }

    /// Returns the figures of this moment, in which the caller asks for `units`.
    fn peak_of(&self, model: &Model, units: f64, rate: f64) -> Peak {
        // A refusal proves that the caller needed at least one unit more than the limit's burst. A higher figure is no
        // proof: a retry may have come together with a new request.
        let proved = |need: f64| if self.returned { need.min(model.burst + 1.0) } else { need }.max(units);
        // A sliding window that ends now contains the current aligned window so far, and at most all of the previous
        // one.
        let before = if model.counting == Counting::Sliding { self.window_before[0] } else { 0.0 };
        Peak {
            burst_lower: proved(self.lower.debt),
            burst_upper: self.upper.debt,
            window_lower: proved(self.lower.window_units),
            window_upper: self.upper.window_units + before,
            rate: rate as f32,
            used: 0,
        }
    }

    /// Checks whether the requests that this server has seen explain the refusal.
    fn refused(&mut self, model: &Model, take: &Take, peak: &mut Peak) {
        if take.reason != Reason::Exceeded {
            return;
        }
        let seen = if model.has_windows() { peak.window_upper } else { peak.burst_upper };
        if model.rate > 0.0 && !exceeds(seen, model.burst - 1e-6 * model.burst) {
            self.last_shared_ns = self.last_asked_ns;
        }
        // A bucket refuses only a request that would use more than its burst, no matter which servers took the other
        // units.
        if model.counting == Counting::Bucket && model.refuses_free {
            peak.burst_lower = peak.burst_lower.max(model.burst + 1.0);
        }
    }

    /// Begins a half hour with the first refusal in it.
    #[cold]
    fn begin_half_hour(&mut self, now_ns: u64) {
        let follows = now_ns / HALF_HOUR_NS == self.last_refused_ns / HALF_HOUR_NS + 1;
        self.refused_units_before = if follows { self.refused_units as f32 } else { 0.0 };
        self.refused_units = 0.0;
    }

    /// Returns the refused units of the half hour that contains `now_ns` and of the half hour before it.
    fn refused_units_at(&self, now_ns: u64) -> u64 {
        let units = match (now_ns / HALF_HOUR_NS).checked_sub(self.last_refused_ns / HALF_HOUR_NS) {
            Some(0) | None => self.refused_units + f64::from(self.refused_units_before),
            Some(1) => self.refused_units,
            Some(_) => 0.0,
        };
        units.round() as u64
    }

    #[cold]
    fn begin_minute(&mut self, now_ns: u64) {
        let later = now_ns / MINUTE_NS - self.last_asked_ns / MINUTE_NS;
        let minutes = [&mut self.asked_minutes, &mut self.upper.above_minutes, &mut self.lower.above_minutes];
        minutes.into_iter().for_each(|minutes| *minutes = shifted(*minutes, later));
    }

    /// Begins a window of the limit. `store_ns` is the time of the store, whose clock may differ from the clock of this
    /// insight.
    #[cold]
    fn begin_window(&mut self, model: &Model, now_ns: u64, store_ns: u64) {
        let length_ns = model.window_ns;
        let since_begin_ns = if model.counting == Counting::FirstHit { 0 } else { store_ns % length_ns };
        let began_ns = store_ns - since_begin_ns;
        // If another store decides now, its clock can be earlier, so its window can begin before the previous one.
        let later_ns = began_ns.checked_sub(self.window_began_ns).unwrap_or(u64::MAX);
        let units = [&mut self.upper, &mut self.lower].map(|demand| std::mem::take(&mut demand.window_units));
        self.window_before = if later_ns == length_ns { units } else { [0.0; 2] };
        // With `first_hit`, a window can begin a little after the previous one has ended.
        let follows = later_ns / 2 < length_ns;
        if !(follows && self.window_refused) {
            self.refusing_since_ns = now_ns.saturating_sub(since_begin_ns);
        }
        (self.window_began_ns, self.window_refused) = (began_ns, false);
    }

    #[cold]
    fn end_half(&mut self, half: u64) {
        let ended_ns = self.recent_half * HALF_NS;
        for (halves, span_ns) in self.longer.iter_mut().zip(&SPANS_NS[1..]) {
            halves.add(half_of(ended_ns, *span_ns), self.recent);
        }
        let ended = std::mem::take(&mut self.recent);
        self.recent_before = if half == self.recent_half + 1 { ended } else { Peak::default() };
        self.recent_half = half;
    }

    /// Returns the peaks of the span `SPANS_NS[span]`, which ends at `now_ns`.
    fn halves(&self, span: usize) -> Halves {
        match span.checked_sub(1) {
            None => Halves {
                half: self.recent_half as u32,
                oldest_window: 0.0,
                now: self.recent,
                before: self.recent_before,
            },
            Some(index) => {
                let mut halves = self.longer[index];
                halves.add(half_of(self.recent_half * HALF_NS, SPANS_NS[span]), self.recent);
                halves
            }
        }
    }

    /// Returns what the caller did in the span `SPANS_NS[span]`, which ends at `now_ns`. Returns `None` if there was no
    /// request.
    pub(super) fn read(&self, model: &Model, now_ns: u64, span: usize) -> Option<SampledCaller> {
        let span_ns = SPANS_NS[span];
        let within = |then_ns: u64| then_ns > 0 && then_ns > now_ns.saturating_sub(span_ns);
        if !within(self.last_asked_ns) {
            return None;
        }
        let later = (now_ns / MINUTE_NS).saturating_sub(self.last_asked_ns / MINUTE_NS);
        // A bit for each minute of the span, and one bit more, because a span can begin within a minute.
        let of_span = (2 << (span_ns / MINUTE_NS)) - 1;
        let minutes = |minutes: u64| shifted(minutes, later) & of_span;
        let (above_lower, above_upper) = (minutes(self.lower.above_minutes), minutes(self.upper.above_minutes));
        let (refused, oversized) = (within(self.last_refused_ns), within(self.last_oversized_ns));
        let (halves, half) = (self.halves(span), half_of(now_ns, span_ns));
        let peak = halves.at(half);
        let idle_ns = now_ns.saturating_sub(self.last_asked_ns);
        // Of a caller that is always busy at several servers, only the first refusal cannot be explained.
        let is_alone = self.last_shared_ns == 0 || self.last_shared_ns < self.upper.busy_since_ns;
        let (burst, window) = (whole(peak.burst_lower), whole(peak.window_upper));
        let mut caller = SampledCaller {
            id: CallerId(self.hash),
            refused: refused || oversized,
            refused_units: self.refused_units_at(now_ns),
            only_oversized: oversized && !refused,
            asked_minutes: minutes(self.asked_minutes),
            above_minutes: above_lower,
            above_minutes_upper: above_upper,
            above_lower: above_lower != 0,
            above_upper: above_upper != 0,
            paid: self.upper.is_paid(model, idle_ns),
            paid_lower: is_alone && self.lower.is_paid(model, idle_ns),
            burst: (burst, Some(burst.max(whole(peak.burst_upper)))),
            window: (window > 0).then(|| (window.min(whole(peak.window_lower)), window)),
            longer_window: whole(halves.longer_window(half)),
            rate: Some(f64::from(peak.rate) * 1e9),
            used_permille: peak.used,
        };
        if within(self.last_shared_ns) {
            caller.share();
        }
        Some(caller)
    }
}

/// Returns the number of the half of a span that contains `at_ns`, counted from the epoch.
fn half_of(at_ns: u64, span_ns: u64) -> u32 {
    // The shortest half has 30 s, so 32 bits are enough for all times of 64 bits.
    (at_ns / (span_ns / 2)) as u32
}

/// Rounds up to a shorter float.
fn rounded_up(units: f64) -> f32 {
    let rounded = units as f32;
    if f64::from(rounded) < units { rounded.next_up() } else { rounded }
}

impl Halves {
    fn add(&mut self, half: u32, peak: Peak) {
        if half > self.half {
            let later = half - self.half;
            self.oldest_window = match later {
                1 => rounded_up(self.before.window_upper),
                2 => rounded_up(self.now.window_upper),
                _ => 0.0,
            };
            self.before = if later == 1 { self.now } else { Peak::default() };
            (self.half, self.now) = (half, Peak::default());
        }
        self.now.raise(peak);
    }

    fn at(&self, half: u32) -> Peak {
        match half.checked_sub(self.half) {
            Some(0) | None => {
                let mut both = self.before;
                both.raise(self.now);
                both
            }
            Some(1) => self.now,
            Some(_) => Peak::default(),
        }
    }

    /// Returns the highest `window_upper` of the half `half` and of the two before it.
    fn longer_window(&self, half: u32) -> f64 {
        let (now, before) = (self.now.window_upper, self.before.window_upper);
        match half.checked_sub(self.half) {
            Some(0) | None => now.max(before).max(f64::from(self.oldest_window)),
            Some(1) => now.max(before),
            Some(2) => now,
            Some(_) => 0.0,
        }
    }
}

impl Peak {
    fn raise(&mut self, other: Peak) {
        self.burst_lower = self.burst_lower.max(other.burst_lower);
        self.burst_upper = self.burst_upper.max(other.burst_upper);
        self.window_lower = self.window_lower.max(other.window_lower);
        self.window_upper = self.window_upper.max(other.window_upper);
        self.rate = self.rate.max(other.rate);
        self.used = self.used.max(other.used);
    }
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    #[test]
    fn a_caller_is_small_and_most_takes_change_three_cache_lines() {
        // A sample allocates memory for a quarter more callers than it keeps, and for an index.
        assert!(size_of::<Caller>() * 5 / 4 + 40 <= 600, "a caller has {} bytes", size_of::<Caller>());
        assert!(offset_of!(Caller, recent_before) <= 192, "{}", offset_of!(Caller, recent_before));
    }
}
