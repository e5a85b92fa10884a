//! What refused callers ask for, each by itself and all together, and in which minutes.

use super::reading::SampledCaller;

/// In a minute, many callers were above the rate if there were at least this many times as many as in any other.
const MANY_ABOVE: f64 = 0.2;

/// What a refused caller asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    /// More than the rate in most of the minutes in which it asked.
    Above,
    /// More than the rate, but not in most of these minutes.
    AboveForShort,
    /// Never more than the rate, but too much at once.
    Bursty,
    /// It got so little of the rate that it was refused for what it asked at once or for a short time, or for repeating
    /// this.
    Spare,
    Unknown,
}

/// How many refused units those callers have that are of each kind, among the callers that decide the verdict.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kinds {
    pub(super) all: f64,
    pub(super) above: f64,
    pub(super) above_for_short: f64,
    pub(super) bursty: f64,
    pub(super) spare: f64,
    /// The units of callers with many times what the limit could allow. These callers are also in `above`.
    pub(super) heavy: f64,
}

/// What is known of the minutes of the last hour in which there were requests.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Minutes {
    /// The number of minutes with requests.
    pub(super) asked: usize,
    /// How many minutes ago the first minute with requests was.
    pub(super) first: usize,
    /// The number of minutes in which many callers were above the rate: a lower and an upper bound.
    pub(super) above: (usize, usize),
    /// How many minutes ago the last of them was: a lower and an upper bound.
    pub(super) last_above: (usize, usize),
}

/// Returns what a refused caller of the sample asks for, by its demand. Minutes in which it is not known whether the
/// caller was above the rate count in neither direction.
pub(super) fn kind_of(caller: &SampledCaller, burst: f64) -> Kind {
    let minutes = |minutes: u64| 2 * (minutes & caller.asked_minutes).count_ones();
    let asked = caller.asked_minutes.count_ones();
    // With windows, the lower figure only says that each window refused. So the caller must also have asked for enough.
    let asked_more = caller.burst.1.is_none_or(|units| units as f64 > burst);
    if caller.above_lower && minutes(caller.above_minutes) >= asked && asked_more {
        return Kind::Above;
    }
    match (caller.above_upper, caller.paid) {
        (true, _) if minutes(caller.above_minutes_upper) < asked => Kind::AboveForShort,
        (false, true) => Kind::Bursty,
        _ => Kind::Unknown,
    }
}

impl Kinds {
    pub(super) fn add(&mut self, units: f64, kind: Kind, is_heavy: bool) {
        self.all += units;
        match kind {
            Kind::Above => self.above += units,
            Kind::AboveForShort => self.above_for_short += units,
            Kind::Bursty => self.bursty += units,
            Kind::Spare => self.spare += units,
            Kind::Unknown => {}
        }
        if is_heavy {
            self.heavy += units;
        }
    }

    /// Returns the units of callers that can be judged.
    pub(super) fn judged(&self) -> f64 {
        self.above + self.above_for_short + self.bursty + self.spare
    }
}

impl Minutes {
    pub(super) fn of(callers: &[SampledCaller]) -> Minutes {
        let mut minutes = Minutes::default();
        let above = |of: fn(&SampledCaller) -> u64| {
            let in_minute = |minute: usize| {
                let is_above = |caller: &&SampledCaller| (of(caller) & caller.asked_minutes) >> minute & 1 == 1;
                callers.iter().filter(|caller| caller.refused).filter(is_above).count()
            };
            let counts: Vec<usize> = (0..u64::BITS as usize).map(in_minute).collect();
            let enough = (MANY_ABOVE * counts.iter().max().copied().unwrap_or(0) as f64).max(1.0);
            move |minute: usize| counts[minute] as f64 >= enough
        };
        let (lower, upper) = (above(|caller| caller.above_minutes), above(|caller| caller.above_minutes_upper));
        for minute in (0..u64::BITS as usize).rev() {
            if !callers.iter().any(|caller| caller.asked_minutes >> minute & 1 == 1) {
                continue;
            }
            minutes.first = minutes.first.max(minute);
            minutes.asked += 1;
            if lower(minute) {
                minutes.above.0 += 1;
                minutes.last_above.1 = minute;
            }
            if upper(minute) {
                minutes.above.1 += 1;
                minutes.last_above.0 = minute;
            }
        }
        minutes
    }
}
