//! What insight knows of one caller of a limit.
//!
//! A caller is everything that has one key, for example one user. Its figures take the same memory however much it asks.

use super::demand::Demand;
use super::model::Model;
use super::reading::{CallerId, SampledCaller};
use super::{SPANS_NS, Take};

/// A caller in the sample of a limit.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) hash: u64,
    pub(super) last_asked_ns: u64,
    last_refused_ns: u64,
    /// Counts every unit that was asked for.
    upper: Demand,
    /// Counts refused units once.
    lower: Demand,
    /// Refused units that no later request has taken up yet.
    unmet: f64,
    /// Whether a refused request of this caller may have come again.
    returned: bool,
    /// The peaks of the shortest span. They are added to those of the longer spans when a half of it ends.
    recent: Halves,
    longer: [Halves; SPANS_NS.len() - 1],
}

/// Half of the shortest span.
const HALF_NS: u64 = SPANS_NS[0] / 2;

/// The highest figures of half a span, in units, and in thousandths of the limit.
#[derive(Clone, Copy, Debug, Default)]
struct Peak {
    burst_lower: u32,
    burst_upper: u32,
    window_lower: u32,
    window_upper: u32,
    asked: u32,
    used: u16,
}

/// The figures of this half of a span and of the half before. So the peaks of a span are those of its last half at
/// least, and of all of it at most.
#[derive(Clone, Copy, Debug, Default)]
struct Halves {
    /// The number of the half that is now, since the epoch.
    half: u64,
    now: Peak,
    before: Peak,
}

/// Returns the smallest whole number of units that is enough. The sums have rounding errors, which are far below 1e-9.
///
/// `f64::ceil` would be a call of a function, because not every processor has an instruction for it.
fn whole(units: f64) -> u32 {
    let units = units - 1e-9;
    let below = units as u32;
    below.saturating_add(u32::from(units > f64::from(below)))
}

impl Caller {
    pub(super) fn new(hash: u64) -> Caller {
        Caller {
            hash,
            last_asked_ns: 0,
            last_refused_ns: 0,
            upper: Demand::default(),
            lower: Demand::default(),
            unmet: 0.0,
            returned: false,
            recent: Halves::default(),
            longer: Default::default(),
        }
    }

    /// Counts a take.
    pub(super) fn count(&mut self, model: &Model, now_ns: u64, take: &Take) {
        let units = take.units as f64;
        self.last_asked_ns = self.last_asked_ns.max(now_ns);
        let upper = self.upper.add(model, now_ns, units, take.refused);
        let repeated = self.unmet.min(units);
        let lower = self.lower.add(model, now_ns, units - repeated, take.refused);
        self.unmet -= repeated;
        if take.refused {
            self.last_refused_ns = self.last_refused_ns.max(now_ns);
        }
        if take.may_return {
            self.unmet += units;
            self.returned = true;
        }
        // The first refusal of a caller proves that it needed more than the burst. Later refusals may have another
        // cause: a retry that came together with a new request.
        let proved = |need: f64| if self.returned { need.min(model.burst + 1.0) } else { need }.max(units);
        let peak = Peak {
            burst_lower: whole(proved(lower.burst)),
            burst_upper: whole(upper.burst),
            window_lower: whole(proved(lower.window.at_least)),
            window_upper: whole(upper.window.at_most),
            asked: u32::try_from(take.units).unwrap_or(u32::MAX),
            used: take.used_permille(),
        };
        let half = now_ns / HALF_NS;
        if half > self.recent.half {
            self.end_half();
        }
        self.recent.add(half, peak);
    }

    #[cold]
    fn end_half(&mut self) {
        let ended_ns = self.recent.half * HALF_NS;
        for (halves, span_ns) in self.longer.iter_mut().zip(&SPANS_NS[1..]) {
            halves.add(ended_ns / (span_ns / 2), self.recent.now);
        }
    }

    /// Returns the peaks of the span with the index `span`, which ends at `now_ns`.
    fn peak(&self, now_ns: u64, span: usize) -> Peak {
        let half_ns = SPANS_NS[span] / 2;
        match span.checked_sub(1) {
            None => self.recent.at(now_ns / half_ns),
            Some(index) => {
                let mut halves = self.longer[index];
                halves.add(self.recent.half * HALF_NS / half_ns, self.recent.now);
                halves.at(now_ns / half_ns)
            }
        }
    }

    /// Returns what the caller did in the span with the index `span`, which ends at `now_ns`. Returns `None` if there was
    /// no request.
    pub(super) fn read(&self, model: &Model, now_ns: u64, span: usize) -> Option<SampledCaller> {
        let span_ns = SPANS_NS[span];
        let within = |then_ns: u64| then_ns > 0 && then_ns > now_ns.saturating_sub(span_ns);
        if !within(self.last_asked_ns) {
            return None;
        }
        let peak = self.peak(now_ns, span);
        let windows = model.window_ns > 0 && peak.window_upper > 0;
        Some(SampledCaller {
            id: CallerId(self.hash),
            refused: within(self.last_refused_ns),
            above_lower: within(self.lower.above_ns),
            above_upper: within(self.upper.above_ns),
            paid: self.upper.is_paid(model, now_ns),
            burst: (peak.burst_lower.min(peak.burst_upper), peak.burst_upper),
            window: windows.then_some((peak.window_lower.min(peak.window_upper), peak.window_upper)),
            asked: peak.asked,
            used_permille: peak.used,
        })
    }
}

impl Halves {
    fn add(&mut self, half: u64, peak: Peak) {
        if half > self.half {
            self.before = if half == self.half + 1 { self.now } else { Peak::default() };
            (self.half, self.now) = (half, Peak::default());
        }
        self.now.raise(peak);
    }

    fn at(&self, half: u64) -> Peak {
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
}

impl Peak {
    fn raise(&mut self, other: Peak) {
        self.burst_lower = self.burst_lower.max(other.burst_lower);
        self.burst_upper = self.burst_upper.max(other.burst_upper);
        self.window_lower = self.window_lower.max(other.window_lower);
        self.window_upper = self.window_upper.max(other.window_upper);
        self.asked = self.asked.saturating_add(other.asked);
        self.used = self.used.max(other.used);
    }
}
