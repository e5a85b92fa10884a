//! The verdict on a limit: one of six statements, with a reason and, where it helps, a better limit.
//!
//! A caller has a lower and an upper figure, because a refused request can come again. The caller is judged only if
//! both figures agree. If too few refused callers can be judged, there is no verdict.

use std::time::Duration;

use serde::Serialize;

use super::model::{Counting, Model};
use super::reading::{Reading, SampledCaller, Span};
use super::suggest::Suggestion;
use super::top::HALF_LIFE_NS;
use super::{LONGEST_SPAN_NS, MINUTE_NS, SPANS_NS};
use spillgate_limiter::units::format_duration;

/// A verdict needs at least this many requests.
const MIN_REQUESTS: u64 = 100;
/// A verdict needs requests in at least this many minutes of the last hour.
const MIN_MINUTES: usize = 3;
/// If a verdict needs an hour of requests, this time is enough, because there may be minutes without requests.
const NEARLY_AN_HOUR_NS: u64 = LONGEST_SPAN_NS - 3 * MINUTE_NS;
/// The figures of callers for the last hour cover at least this time, because they are kept for halves of an hour.
const PEAKS_NS: u64 = LONGEST_SPAN_NS / 2;
/// Callers are compared with each other only if there are at least this many.
const MIN_CALLERS: usize = 10;
/// A limit is never binding if the caller that uses most of it uses less than this share of the limit.
const HARDLY_USED: f64 = 0.5;
/// One caller is an abuser if it has this share of the refused units.
const ABUSER_SHARE: f64 = 0.8;
/// An abuser was refused at least this many times what its limit allows.
const ABUSER_TIMES: f64 = 5.0;
/// There is an abuser only if at most this share of the callers is refused. There is a verdict only if at most this
/// share of the requests can never pass.
const FEW: f64 = 0.05;
/// A limit is effective if it refuses at most this share of its callers.
const REFUSES: f64 = 0.10;
/// A limit is too strict if at least this share of its callers is above the rate.
const ABOVE: f64 = 0.20;
/// A verdict on a limit that refuses many needs at least this share of the judged callers to be of one kind.
const MOST: f64 = 0.8;

/// Whether a limit works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The limit refuses few callers, and the others pass. Or it refuses none, but some use at least half of it.
    Effective,
    /// Many callers ask for more than the rate, most of the time.
    TooStrict,
    /// The refused callers keep to the rate most of the time, but sometimes they ask for too much at once.
    Bursts,
    /// No caller comes near the limit.
    NeverBinding,
    /// At least 80 % of the refused units are those of one caller.
    OneAbuser,
    /// What was seen is too little, or does not point in one direction.
    TooLittleToTell,
}

impl Verdict {
    /// Returns the verdict in words, for example `too strict`.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Verdict::Effective => "effective",
            Verdict::TooStrict => "too strict",
            Verdict::Bursts => "bursts",
            Verdict::NeverBinding => "never binding",
            Verdict::OneAbuser => "one abuser",
            Verdict::TooLittleToTell => "too little to tell",
        }
    }

    /// Returns what an operator can do.
    #[must_use]
    pub const fn advice(self) -> &'static str {
        match self {
            Verdict::Effective => "Keep it.",
            Verdict::TooStrict => "Raise the limit.",
            Verdict::Bursts => "Raise the burst, unless you want to refuse bursts.",
            Verdict::NeverBinding => "Lower the limit, so that it protects you.",
            Verdict::OneAbuser => "Keep the limit, and look at the one caller.",
            Verdict::TooLittleToTell => "Read the reason and the figures.",
        }
    }

    /// Returns how much a limit with this verdict needs the attention of an operator, from 1 to 6. Lists show the
    /// limits with the highest numbers first.
    #[must_use]
    pub const fn attention(self) -> u8 {
        match self {
            Verdict::TooStrict => 6,
            Verdict::Bursts => 5,
            Verdict::OneAbuser => 4,
            Verdict::NeverBinding => 3,
            Verdict::Effective => 2,
            Verdict::TooLittleToTell => 1,
        }
    }

    /// Returns the urgency, by which a page chooses the colour of the verdict.
    #[must_use]
    pub const fn urgency(self) -> Urgency {
        match self {
            Verdict::TooStrict => Urgency::High,
            Verdict::Bursts | Verdict::OneAbuser | Verdict::NeverBinding => Urgency::Low,
            Verdict::Effective => Urgency::None,
            Verdict::TooLittleToTell => Urgency::Unknown,
        }
    }
}

/// How soon an operator should look at a limit with a [`Verdict`]. Each urgency has a colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// The limit refuses callers that it probably should let pass.
    High,
    /// The limit works, but there is something to look at.
    Low,
    /// There is nothing to do.
    None,
    /// It is not known whether the limit works.
    Unknown,
}

/// A verdict with its reason, and with a better limit if there is one.
pub(super) struct Judged {
    pub(super) verdict: Verdict,
    pub(super) reason: String,
    pub(super) suggestion: Option<Suggestion>,
}

/// How many callers of a sample are of each kind.
#[derive(Clone, Copy, Debug, Default)]
struct Kinds {
    all: usize,
    /// Refused, although the request could pass at another time.
    refused: usize,
    /// Refused, and above the rate by both figures.
    above: usize,
    /// Refused, within the rate by both figures, and without debt by now.
    bursty: usize,
}

/// What is known of the minutes of the last hour in which there were requests.
#[derive(Clone, Copy, Debug, Default)]
struct Minutes {
    /// The number of minutes with requests.
    asked: usize,
    /// How many minutes ago the first minute with requests was.
    first: usize,
    /// The number of minutes in which the limit was too low for many callers.
    strict: usize,
    /// How many minutes ago the limit was last too low for many callers.
    last_strict: usize,
}

impl Judged {
    fn new(verdict: Verdict, reason: String) -> Judged {
        Judged { verdict, reason, suggestion: None }
    }

    fn too_little(reason: String) -> Judged {
        Judged::new(Verdict::TooLittleToTell, reason)
    }

    /// Judges a limit by all that was seen in the last hour.
    pub(super) fn of(reading: &Reading) -> Judged {
        let model = &reading.limit;
        let span = &reading.spans[SPANS_NS.len() - 1];
        let (requests, oversized) = (span.counts.requests, span.counts.oversized_requests);
        if model.limit == 0 {
            return Judged::too_little("The limit is 0: it refuses every request, whoever asks.".into());
        }
        let mut judged = if oversized as f64 > FEW * requests as f64 {
            Judged::too_little("There is no verdict, because these are more than 5 % of all requests.".into())
        } else {
            fitting(reading, span)
        };
        if oversized > 0 {
            let most = model.burst;
            let never = format!("{oversized} of {requests} requests cost more than {most}, so they can never pass.");
            judged.reason = format!("{never} {}", judged.reason);
        }
        judged
    }
}

/// Judges a limit by the requests that can pass at some time.
fn fitting(reading: &Reading, span: &Span) -> Judged {
    let model = &reading.limit;
    let (counts, callers) = (&span.counts, &span.sampled.callers);
    if counts.requests < MIN_REQUESTS || callers.is_empty() {
        let seen = match counts.requests {
            1 => "There was 1 request".to_owned(),
            requests => format!("There were {requests} requests"),
        };
        return Judged::too_little(format!("{seen}. A verdict needs {MIN_REQUESTS}."));
    }
    let minutes = Minutes::of(callers);
    if minutes.asked < MIN_MINUTES {
        let asked = minutes.asked;
        return Judged::too_little(format!(
            "There were requests in {asked} of the last 60 minutes. A verdict needs {MIN_MINUTES}."
        ));
    }
    let refused = counts.refused_requests - counts.oversized_requests.min(counts.refused_requests);
    if refused > 0 && model.rate <= 0.0 {
        return Judged::too_little("Permits have no rate, so refusals are counted but not judged.".into());
    }
    let kinds = Kinds::of(callers);
    let refuses_few = kinds.all >= MIN_CALLERS && kinds.refused as f64 <= FEW * kinds.all as f64;
    if let Some(reason) = abuser(reading).filter(|_| refused > 0 && refuses_few) {
        return Judged::new(Verdict::OneAbuser, reason);
    }
    // A time as long as two windows contains one whole window, wherever windows begin.
    let windows_ns = match model.window_ns {
        window_ns @ 0..=LONGEST_SPAN_NS => (2 * window_ns).min(LONGEST_SPAN_NS),
        window_ns => window_ns,
    };
    let watched_ns = reading.now_ns.saturating_sub(reading.since_ns).min(minutes.first as u64 * MINUTE_NS);
    let needed = |needed_ns: u64| {
        if needed_ns > LONGEST_SPAN_NS {
            let needed = rounded_time(needed_ns);
            return Some(format!("This limit needs {needed} of requests, and insight keeps 1h."));
        }
        let needed_ns = needed_ns.min(NEARLY_AN_HOUR_NS);
        let (needed, watched) = (rounded_time(needed_ns), rounded_time(watched_ns));
        (watched_ns < needed_ns).then(|| format!("Requests came for {watched}. A verdict needs {needed}."))
    };
    if let Some(reason) = needed(windows_ns) {
        return Judged::too_little(reason);
    }
    if refused == 0 {
        return unrefused(reading, span, watched_ns);
    }
    if kinds.all >= MIN_CALLERS && kinds.refused as f64 <= REFUSES * kinds.all as f64 {
        return Judged::new(Verdict::Effective, kinds.effective());
    }
    if let Some(reason) = needed(model.judged_ns) {
        return Judged::too_little(reason);
    }
    let unwaited = counts.unwaited_requests as f64 / refused as f64;
    if unwaited > 1.0 - MOST {
        return Judged::too_little(format!(
            "{} % of the refused requests had room in the queue, but did not wait for their turn.",
            percent(unwaited)
        ));
    }
    refusing(span, model, &kinds, &minutes)
}

/// Judges a limit that refused nothing. `watched_ns` is the time in which requests came.
fn unrefused(reading: &Reading, span: &Span, watched_ns: u64) -> Judged {
    let model = &reading.limit;
    let callers = &span.sampled.callers;
    let others = others_share(reading, span);
    // The store has counted what each caller used, whether the caller is in the sample or not.
    let used = span.used as f64 / model.capacity as f64;
    let none = if span.counts.refused_requests == 0 { "No caller is refused." } else { "No other request is refused." };
    let highest = |shares: &mut dyn Iterator<Item = f64>| shares.fold(used, f64::max);
    let at_least = highest(&mut callers.iter().map(|caller| used_share(caller, model).0)).max(others.0);
    let at_most = highest(&mut callers.iter().map(|caller| used_share(caller, model).1)).max(others.1);
    let percent = |share: f64| (share * 100.0).ceil().min(100.0);
    if at_least >= HARDLY_USED {
        let percent = percent(at_least);
        return Judged::new(
            Verdict::Effective,
            format!("{none} A caller used {percent} % of its limit, in a window or at once."),
        );
    }
    if at_most >= HARDLY_USED {
        return Judged::too_little(format!(
            "{none} How much of the limit they use is not exactly known of some callers: they use several servers, are not in the \
             sample, or their window slides."
        ));
    }
    let (seen, percent_used) = (rounded_time(watched_ns.min(PEAKS_NS)), percent(used));
    let percent = percent(at_most);
    let counts_all = span.sampled.threshold == u64::MAX || model.has_windows() || model.counting == Counting::Permits;
    let reason = if counts_all {
        format!("{none} In the last {seen}, no caller used more than {percent} % of its limit, in a window or at once.")
    } else {
        format!(
            "{none} In the last {seen}, none of {} callers in the sample used more than {percent} % of its limit, in a window or at \
             once. No other caller used more than {percent_used} % at once, or half of its rate on average.",
            callers.len()
        )
    };
    // What a bucket holds does not say how many units of a caller outside the sample go through it in a window.
    let others = if span.sampled.threshold == u64::MAX { 0 } else { span.used };
    let is_known = counts_all || model.has_own_burst();
    let suggestion = is_known.then(|| Suggestion::lower(model, callers, others as f64)).flatten();
    Judged { suggestion, ..Judged::new(Verdict::NeverBinding, reason) }
}

/// Returns the largest part of its rate that a caller outside the sample can use: a lower and an upper bound, from the
/// list of the callers with the most units. Both are 0 if the sample has every caller, or if the limit has no rate.
fn others_share(reading: &Reading, span: &Span) -> (f64, f64) {
    if span.sampled.threshold == u64::MAX || reading.limit.rate <= 0.0 {
        return (0.0, 0.0);
    }
    let (at_least, at_most) = reading.top_allowed.highest;
    let allowed = reading.limit.rate * counted_ns(reading);
    (at_least as f64 / allowed, at_most as f64 / allowed)
}

/// Returns the time by which the units in a list of top callers are divided to get a rate. All counts are halved when a
/// half-life begins. So at a steady rate, the list has as many units as came in one whole half-life, and in the current
/// one until now.
fn counted_ns(reading: &Reading) -> f64 {
    let counted_ns = HALF_LIFE_NS + reading.now_ns % HALF_LIFE_NS;
    reading.now_ns.saturating_sub(reading.first_since_ns).min(counted_ns) as f64
}

/// Returns a lower and an upper bound of how much of the limit a caller uses, in a window or at once: 1 is the whole
/// limit.
fn used_share(caller: &SampledCaller, model: &Model) -> (f64, f64) {
    if model.counting == Counting::Permits {
        return (caller.used_share(), caller.used_share());
    }
    let (at_least, at_most) = caller.window.unwrap_or((0, 0));
    let window = [at_least, at_most].map(|units| units as f64 / model.limit as f64);
    if model.has_windows() {
        return window.into();
    }
    let (at_least, at_most) = caller.burst;
    let at_most = at_most.map_or(f64::INFINITY, |units| units as f64);
    let burst = [at_least as f64, at_most].map(|units| units / model.capacity as f64);
    (window[0].max(burst[0]), window[1].max(burst[1]))
}

/// Judges a limit that refused many callers.
fn refusing(span: &Span, model: &Model, kinds: &Kinds, minutes: &Minutes) -> Judged {
    let callers = &span.sampled.callers;
    let share = |part: usize| part as f64 / kinds.all as f64;
    let refused_percent = percent(span.counts.refused_requests as f64 / span.counts.requests.max(1) as f64);
    let judged = kinds.above + kinds.bursty;
    if kinds.refused == 0 {
        return Judged::too_little(format!(
            "{refused_percent} % of the requests are refused, but of no caller in the sample."
        ));
    }
    if 2 * judged < kinds.refused {
        let refused = kinds.refused;
        return Judged::too_little(format!(
            "{refused_percent} % of the requests are refused. Of {refused} refused callers in the sample, {judged} can be judged: \
             the others are still busy, use several servers, were refused while the store failed, or their retries cannot be distinguished \
             from new requests."
        ));
    }
    if kinds.bursty as f64 >= MOST * judged as f64 {
        let of_judged = percent(kinds.bursty as f64 / judged as f64);
        let mut reason = format!(
            "{of_judged} % of the refused callers keep to the rate, but ask for more at once than the limit allows."
        );
        let suggestion = Suggestion::longer_burst(model, callers, span.sampled.threshold == u64::MAX);
        if let Some(burst) = suggestion.and_then(|suggestion| suggestion.burst) {
            reason += &format!(" A burst of {burst} is enough for what 99 of 100 of them asked for.");
        }
        return Judged { suggestion, ..Judged::new(Verdict::Bursts, reason) };
    }
    if kinds.all < MIN_CALLERS {
        return Judged::too_little(format!(
            "{refused_percent} % of the requests are refused. {} too few to say whether the limit is too strict.",
            if kinds.all == 1 { "1 caller is".to_owned() } else { format!("{} callers are", kinds.all) }
        ));
    }
    let above = percent(share(kinds.above));
    if kinds.above as f64 >= MOST * judged as f64 && share(kinds.above) >= ABOVE && minutes.strict > 0 {
        let Minutes { asked, strict, last_strict, .. } = minutes;
        let when = format!("in {strict} of the {asked} minutes with requests");
        if 2 * strict < *asked {
            let last = match last_strict {
                0 => "The minute of this reading is one of them.".to_owned(),
                1 => "The last one was 1 minute ago.".to_owned(),
                minutes => format!("The last one was {minutes} minutes ago."),
            };
            let reason =
                format!("{above} % of the callers asked for more than the rate, but many of them only {when}. {last}");
            return Judged::new(Verdict::Bursts, reason);
        }
        let reason = format!("{above} % of the callers ask for more than the rate, many of them {when}.");
        let suggestion = Suggestion::higher(model, callers);
        return Judged { suggestion, ..Judged::new(Verdict::TooStrict, reason) };
    }
    Judged::too_little(format!(
        "{refused_percent} % of the requests are refused. {above} % of the callers are above the rate, and {} % need a larger burst: \
         this points in no one direction.",
        percent(share(kinds.bursty))
    ))
}

/// Returns why one caller is an abuser, or `None` if no caller is.
fn abuser(reading: &Reading) -> Option<String> {
    let top = &reading.top_refused;
    let (units, _) = top.highest;
    let share = units as f64 / top.units.max(1) as f64;
    let times = units as f64 / (reading.limit.rate * counted_ns(reading));
    (share >= ABUSER_SHARE && times >= ABUSER_TIMES).then(|| {
        format!(
            "One caller has at least {} % of all refused units. It was refused {} times what the limit allows.",
            (share * 1000.0).floor() / 10.0,
            times.floor()
        )
    })
}

/// Returns a time as text. A time of a second or more is cut to whole seconds.
fn rounded_time(ns: u64) -> String {
    let time = Duration::from_nanos(ns);
    format_duration(if time.as_secs() > 0 { Duration::from_secs(time.as_secs()) } else { time })
}

/// Returns a share in percent, to one digit after the point.
fn percent(share: f64) -> f64 {
    (share * 1000.0).round() / 10.0
}

impl Minutes {
    fn of(callers: &[SampledCaller]) -> Minutes {
        let mut minutes = Minutes::default();
        for minute in (0..u64::BITS as usize).rev() {
            let count =
                |of: fn(&SampledCaller) -> u64| callers.iter().filter(|caller| of(caller) >> minute & 1 == 1).count();
            let asked = count(|caller| caller.asked_minutes);
            let above = count(|caller| caller.above_minutes & caller.asked_minutes);
            if asked == 0 {
                continue;
            }
            minutes.first = minutes.first.max(minute);
            minutes.asked += 1;
            if above as f64 >= ABOVE * asked as f64 {
                minutes.strict += 1;
                minutes.last_strict = minute;
            }
        }
        minutes
    }
}

impl Kinds {
    fn of(callers: &[SampledCaller]) -> Kinds {
        let mut kinds = Kinds { all: callers.len(), ..Kinds::default() };
        for caller in callers.iter().filter(|caller| caller.refused && !caller.only_oversized) {
            kinds.refused += 1;
            match (caller.above_lower, caller.above_upper, caller.paid) {
                (true, true, _) => kinds.above += 1,
                (false, false, true) => kinds.bursty += 1,
                _ => {}
            }
        }
        kinds
    }

    /// Returns a sentence about the few callers that are refused.
    fn effective(&self) -> String {
        let Kinds { all, refused, above, bursty } = *self;
        if refused == 0 {
            return format!("None of {all} callers in the sample is refused.");
        }
        let share = |part: usize| percent(part as f64 / all as f64);
        let kinds = [
            (above, "ask for more than the rate"),
            (bursty, "ask for too much at once"),
            (refused - above - bursty, "ask for an amount that is not exactly known"),
        ];
        let kinds: Vec<_> = kinds.iter().filter(|(part, _)| *part > 0).collect();
        let kinds: Vec<_> = kinds.iter().map(|(part, what)| format!("{} % {what}", share(*part))).collect();
        format!("{} % of the callers are refused: {}. The others pass.", share(refused), kinds.join(", "))
    }
}
