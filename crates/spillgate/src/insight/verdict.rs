//! The verdict on a limit: one of six statements, with a reason and, where it helps, a better limit.
//!
//! Two figures of a caller can disagree, because a refused request can come again. A caller is judged only if both agree.
//! If too few refused callers can be judged, there is no verdict.

use std::time::Duration;

use serde::Serialize;

use super::model::Model;
use super::reading::{Reading, SampledCaller, Span};
use super::report::quantile;
use super::top::HALF_LIFE_NS;
use super::{LONGEST_SPAN_NS, SPANS_NS};
use crate::units::format_duration;

/// No verdict is given on fewer requests.
const MIN_REQUESTS: u64 = 100;
/// Callers are compared with each other only if there are this many.
const MIN_CALLERS: usize = 10;
/// A limit is never binding if its highest caller uses less than this share.
const HARDLY_USED: f64 = 0.5;
/// One caller is an abuser if it has this share of the refused units.
const ABUSER_SHARE: f64 = 0.8;
/// An abuser was refused at least this many times what its limit allows.
const ABUSER_TIMES: f64 = 5.0;
/// An abuser is one of few: the other refused callers are at most this share of all.
const FEW: f64 = 0.05;
/// A limit is effective if the share of callers above the rate is at most the first number, and too strict if the share is at
/// least the second.
const ABOVE: (f64, f64) = (0.10, 0.20);
/// This share of the judged callers has to be of one kind.
const MOST: f64 = 0.8;

/// Whether a limit works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It refuses few callers, which ask for more than the rate, and the others pass. Or no caller needs to be refused.
    Effective,
    /// Many callers ask for more than the rate, all the time.
    TooStrict,
    /// The refused callers keep to the rate, but they ask for more than the burst at once.
    Bursts,
    /// No caller comes near the limit.
    NeverBinding,
    /// Nearly all refused units are of one caller.
    OneAbuser,
    /// What was seen is too little, or does not point in one direction.
    TooLittleToTell,
}

/// A change of the numbers of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Suggestion {
    /// The units in each window.
    pub limit: u64,
    /// The burst. If it is given, the algorithm is the token bucket.
    pub burst: Option<u64>,
}

impl Suggestion {
    /// Makes a suggestion. With a burst, the algorithm is the token bucket.
    #[must_use]
    pub const fn new(limit: u64, burst: Option<u64>) -> Suggestion {
        Suggestion { limit, burst }
    }
}

/// A verdict with its reason.
pub(super) struct Judged {
    pub(super) verdict: Verdict,
    pub(super) reason: String,
    pub(super) suggestion: Option<Suggestion>,
}

/// How many callers of a sample are of each kind.
#[derive(Clone, Copy, Debug, Default)]
struct Kinds {
    all: usize,
    refused: usize,
    /// Refused, and above the rate by both figures.
    above: usize,
    /// Refused, within the rate by both figures, and not busy any more.
    bursty: usize,
}

impl Judged {
    fn new(verdict: Verdict, reason: String) -> Judged {
        Judged { verdict, reason, suggestion: None }
    }

    fn too_little(reason: String) -> Judged {
        Judged::new(Verdict::TooLittleToTell, reason)
    }

    fn suggest(self, limit: f64, burst: Option<f64>) -> Judged {
        let suggestion = Suggestion { limit: rounded_up(limit), burst: burst.map(rounded_up) };
        Judged { suggestion: Some(suggestion), ..self }
    }

    /// Judges a limit by all that was seen in the last hour.
    pub(super) fn of(reading: &Reading) -> Judged {
        let model = &reading.limit;
        let span = &reading.spans[SPANS_NS.len() - 1];
        let watched_ns = reading.now_ns.saturating_sub(reading.since_ns).min(LONGEST_SPAN_NS);
        if model.limit == 0 {
            return Judged::too_little("The limit is 0: it refuses every request, whoever asks.".into());
        }
        if span.counts.requests < MIN_REQUESTS || span.sampled.callers.is_empty() {
            let seen = span.counts.requests;
            return Judged::too_little(format!("There were {seen} requests. A verdict needs {MIN_REQUESTS}."));
        }
        let needed_ns = if span.counts.refused_requests == 0 { model.window_ns } else { model.judged_ns };
        if needed_ns > LONGEST_SPAN_NS {
            let (needed, most) = (rounded_time(needed_ns), rounded_time(LONGEST_SPAN_NS));
            return Judged::too_little(format!("This limit needs {needed} of requests, and insight keeps {most}."));
        }
        if watched_ns < needed_ns {
            let (needed, watched) = (rounded_time(needed_ns), rounded_time(watched_ns));
            return Judged::too_little(format!("The limit was watched for {watched}. A verdict needs {needed}."));
        }
        if span.counts.refused_requests == 0 {
            return unrefused(span, model);
        }
        if model.rate <= 0.0 {
            return Judged::too_little("Permits have no rate, so refusals are counted but not judged.".into());
        }
        refusing(reading, span)
    }
}

/// Judges a limit that refused nothing.
fn unrefused(span: &Span, model: &Model) -> Judged {
    let used = span.sampled.callers.iter().map(|caller| caller.used_permille).max().unwrap_or(0);
    let used = f64::from(used) / 1000.0;
    let percent = (used * 100.0).ceil();
    if used >= HARDLY_USED {
        return Judged::new(
            Verdict::Effective,
            format!("No caller is refused. The highest caller uses {percent} % of its limit."),
        );
    }
    let reason = format!("No caller is refused. The highest caller uses only {percent} % of its limit.");
    let judged = Judged::new(Verdict::NeverBinding, reason);
    let twice = |most: u64| (2.0 * used * most as f64).max(1.0);
    if model.has_own_burst() {
        judged.suggest(model.limit as f64, Some(twice(model.capacity)))
    } else {
        judged.suggest(twice(model.limit), None)
    }
}

/// Judges a limit that refused some requests.
fn refusing(reading: &Reading, span: &Span) -> Judged {
    let model = &reading.limit;
    let callers = &span.sampled.callers;
    let kinds = Kinds::of(callers);
    let share = |part: usize| part as f64 / kinds.all as f64;
    let percent = |share: f64| (share * 1000.0).round() / 10.0;
    let refused_percent = percent(span.counts.refused_units as f64 / span.counts.units.max(1) as f64);

    let refuses_few = kinds.all >= MIN_CALLERS && share(kinds.refused) <= FEW;
    if let Some(reason) = abuser(reading).filter(|_| refuses_few) {
        return Judged::new(Verdict::OneAbuser, reason);
    }
    let judged = kinds.above + kinds.bursty;
    if 2 * judged < kinds.refused || kinds.refused == 0 {
        let refused = kinds.refused;
        return Judged::too_little(format!(
            "{refused_percent} % of the units are refused. Of {refused} refused callers in the sample, {judged} can be judged: \
             the others are still busy, or their retries cannot be distinguished from new requests."
        ));
    }
    if kinds.bursty as f64 >= MOST * judged as f64 {
        let needed = needed_burst(callers);
        let burst = rounded_up(needed);
        let reason = format!(
            "{} % of the refused callers keep to the rate, but ask for more at once than the burst. A burst of {burst} lets 99 of \
             100 callers pass.",
            percent(kinds.bursty as f64 / judged as f64)
        );
        return Judged::new(Verdict::Bursts, reason).suggest(model.limit as f64, Some(needed));
    }
    let above = percent(share(kinds.above));
    if kinds.all < MIN_CALLERS {
        return Judged::too_little(format!(
            "{refused_percent} % of the units are refused. {} callers are too few to say whether the limit is too strict.",
            kinds.all
        ));
    }
    if share(kinds.refused) <= ABOVE.0 {
        return Judged::new(
            Verdict::Effective,
            format!("{above} % of the callers ask for more than the rate, and are refused. The others pass."),
        );
    }
    if kinds.above as f64 >= MOST * judged as f64 && share(kinds.above) >= ABOVE.1 {
        let reason = format!("{above} % of the callers ask for more than the rate, all the time.");
        let (limit, burst) = needed_rate(reading, callers);
        return Judged::new(Verdict::TooStrict, reason).suggest(limit, burst);
    }
    Judged::too_little(format!(
        "{refused_percent} % of the units are refused. {above} % of the callers are above the rate, and {} % need a larger burst: \
         this points in no one direction.",
        percent(share(kinds.bursty))
    ))
}

/// Returns why one caller is an abuser. Returns `None` if there is no such caller.
fn abuser(reading: &Reading) -> Option<String> {
    let top = &reading.top_refused;
    let first = top.callers.first()?;
    let share = first.units as f64 / top.units.max(1) as f64;
    // Units lose half of their value in each half-life, so they are the sum of this time at most.
    let counted_ns = reading.now_ns.saturating_sub(reading.since_ns).min(2 * HALF_LIFE_NS) as f64;
    let times = first.units as f64 / (reading.limit.rate * counted_ns);
    (share >= ABUSER_SHARE && times >= ABUSER_TIMES).then(|| {
        format!(
            "One caller has at least {} % of all refused units. It was refused {} times what the limit allows.",
            (share * 1000.0).floor() / 10.0,
            times.floor()
        )
    })
}

/// Returns the burst that is enough for 99 of 100 callers that can be judged.
fn needed_burst(callers: &[SampledCaller]) -> f64 {
    let mut needed: Vec<f64> =
        callers.iter().filter(|caller| !caller.above_upper).map(|caller| f64::from(caller.burst.1)).collect();
    needed.sort_by(f64::total_cmp);
    quantile(&needed, 0.99).unwrap_or(1.0)
}

/// Returns the limit that is enough for nine of ten callers, and the burst if the limit has one of its own.
fn needed_rate(reading: &Reading, callers: &[SampledCaller]) -> (f64, Option<f64>) {
    // The units that callers asked for are those of the last half hour and of the one that is not over.
    let half_ns = LONGEST_SPAN_NS / 2;
    let asked_ns = (reading.now_ns - reading.since_ns).min(half_ns + reading.now_ns % half_ns);
    let model = &reading.limit;
    let windows = asked_ns as f64 / model.window_ns.max(1) as f64;
    let mut asked: Vec<f64> = callers.iter().map(|caller| f64::from(caller.asked) / windows).collect();
    asked.sort_by(f64::total_cmp);
    let limit = quantile(&asked, 0.9).unwrap_or(1.0).max(model.limit as f64 + 1.0);
    (limit, model.has_own_burst().then_some(model.capacity as f64))
}

/// Returns a time as text, in whole seconds if it has any.
fn rounded_time(ns: u64) -> String {
    let time = Duration::from_nanos(ns);
    format_duration(if time.as_secs() > 0 { Duration::from_secs(time.as_secs()) } else { time })
}

/// Rounds up to two digits that people like to write: 1234 becomes 1300.
fn rounded_up(units: f64) -> u64 {
    let units = units.ceil().max(1.0);
    let step = 10_f64.powi((units.log10().floor() as i32 - 1).max(0));
    ((units / step).ceil() * step) as u64
}

impl Kinds {
    fn of(callers: &[SampledCaller]) -> Kinds {
        let mut kinds = Kinds { all: callers.len(), ..Kinds::default() };
        for caller in callers.iter().filter(|caller| caller.refused) {
            kinds.refused += 1;
            match (caller.above_lower, caller.above_upper, caller.paid) {
                (true, true, _) => kinds.above += 1,
                (false, false, true) => kinds.bursty += 1,
                _ => {}
            }
        }
        kinds
    }
}
