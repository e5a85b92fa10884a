//! What another limit would have done to the callers that were seen.
//!
//! A caller certainly passes or is certainly refused only if its whole range of demand says so, so the answer is a range
//! of callers.

use std::cmp::Reverse;

use serde::Serialize;

use super::SPANS_NS;
use super::model::{Counting, Model};
use super::reading::{Reading, SampledCaller};
use super::report::{Estimate, Range};
use super::suggest::Suggestion;
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
    /// Which callers it would have refused or not refused, by name or hash and with their refused units, and what is not
    /// known. Then the same for the number of all callers, with what the limit of today did.
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
        let other = Other::new(self, limit);
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
        let total = format!(
            "In all, {about}{range} of {} would be refused at least once. In the last {}, it was {}.",
            callers(asked.value.round() as usize),
            rounded_time(self.now_ns.saturating_add(1).saturating_sub(self.since_ns).min(SPANS_NS[SPANS_NS.len() - 1])),
            refused.value.round(),
        );
        let changes =
            if limit == model.limit { format!("{limit} is the limit now.") } else { self.changes(&other, limit) };
        let mut text = vec![changes, total];
        if hour.counts.unenforced_requests > 0 {
            text.push("Requests over the limit that it let pass in shadow count as refused here.".to_owned());
        }
        if hour.counts.oversized_requests > 0 {
            text.push(format!("Requests that cost more than {} at once are not counted here.", model.capacity));
        }
        if asked.relative_error > 0.0 {
            let sampled = hour.sampled.callers.len();
            text.push(format!(
                "All names and units are those of a sample: {sampled} of about {} callers.",
                asked.value.round()
            ));
        }
        let refused_callers = Range { at_least: least, at_most: Some(most) };
        Some(OtherLimit { limit, refused_callers, text: text.join(" ") })
    }

    /// Says for which callers of the sample the other limit changes something, and for which nobody can know.
    fn changes(&self, other: &Other<'_>, limit: u64) -> String {
        let sampled = &self.spans[SPANS_NS.len() - 1].sampled.callers;
        let chosen = |is: &dyn Fn(&SampledCaller) -> bool| Chosen::of(sampled.iter().filter(|caller| is(caller)));
        let is_unknown = |caller: &SampledCaller| !other.passes(caller) && !other.refuses(caller);
        let was_refused = |caller: &SampledCaller| caller.refused_units > 0;
        let instead = format!("With {limit} instead of {}", self.limit.limit);
        if limit < self.limit.limit {
            let more = chosen(&|caller| !caller.refused && other.refuses(caller));
            let unknown = chosen(&|caller| !caller.refused && is_unknown(caller));
            let now = match more.0.len() {
                0 if unknown.0.is_empty() => "no other callers would be refused than today".to_owned(),
                0 => "no other caller would be refused for certain".to_owned(),
                number => {
                    format!(
                        "{} that {} not refused would be refused{}",
                        callers(number),
                        was(number),
                        more.named(self, false)
                    )
                }
            };
            return format!("{instead}, {now}.{}", unknown.unknown(self));
        }
        let before = chosen(&was_refused);
        let time = rounded_time(self.now_ns.saturating_add(1).saturating_sub(self.top_refused.since_ns));
        if before.0.is_empty() && sampled.iter().any(|caller| caller.refused) {
            return format!(
                "{instead}, nobody can know what changes: the refused requests are older than {time}, cost more than the \
                 limit allows at once, or have no units."
            );
        }
        if before.0.is_empty() {
            return format!("{instead}, nothing changes: in the last {time}, the limit refused nobody.");
        }
        let passing = chosen(&|caller| was_refused(caller) && other.passes(caller));
        let unknown = chosen(&|caller| was_refused(caller) && is_unknown(caller));
        let passes = match passing.0.len() {
            0 => format!("no caller of the {} refused in the last {time} would pass for certain", before.0.len()),
            number => format!(
                "{} refused in the last {time} would not be refused{}. These are {} of {}",
                part_of_callers(number, before.0.len()),
                passing.named(self, false),
                passing.units(),
                refused_units(before.units())
            ),
        };
        format!("{instead}, {passes}.{}", unknown.unknown(self))
    }
}

/// Callers of a sample, those with the most refused units first.
struct Chosen<'a>(Vec<&'a SampledCaller>);

impl<'a> Chosen<'a> {
    fn of(callers: impl Iterator<Item = &'a SampledCaller>) -> Chosen<'a> {
        let mut callers: Vec<_> = callers.collect();
        callers.sort_by_key(|caller| (Reverse(caller.refused_units), caller.id));
        Chosen(callers)
    }

    fn units(&self) -> u64 {
        self.0.iter().fold(0, |units, caller| units.saturating_add(caller.refused_units))
    }

    /// Returns the first callers as text, with their refused units, and if `shows_range` with the units that they want in a
    /// window. Empty if the reading hides callers.
    fn named(&self, reading: &Reading, shows_range: bool) -> String {
        if reading.hides_callers {
            return String::new();
        }
        let named = |caller: &&SampledCaller| {
            let mut known = reading.top_refused.callers.iter().chain(&reading.top_allowed.callers);
            let name = known.find(|top| top.id == caller.id).and_then(|top| top.name.clone());
            let name = name.unwrap_or_else(|| format!("hash {}", caller.id));
            let units = caller.refused_units;
            let refused = (units > 0).then(|| refused_units(units));
            let wants = caller.window.filter(|(least, most)| shows_range && least < most);
            let wants =
                wants.map(|(least, most)| format!("{least} to {most} in {}", rounded_time(reading.limit.window_ns)));
            let known: Vec<_> = refused.into_iter().chain(wants).collect();
            if known.is_empty() { name } else { format!("{name} ({})", known.join("; ")) }
        };
        let names: Vec<_> = self.0.iter().take(NAMED).map(named).collect();
        let more = self.0.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!(": {}{more}", names.join("; "))
    }

    /// Says that nobody can know what happens to these callers. Empty if there are none.
    fn unknown(&self, reading: &Reading) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        let why = "The lower number counts a request after a refusal as a retry, the higher one as a new request";
        format!(" For {}, it depends{}. {why}.", callers(self.0.len()), self.named(reading, true))
    }
}

/// Sentences name at most this many callers.
const NAMED: usize = 3;

fn callers(number: usize) -> String {
    format!("{number} caller{}", if number == 1 { "" } else { "s" })
}

fn part_of_callers(number: usize, all: usize) -> String {
    match all {
        1 => "the one caller".to_owned(),
        2 if number == all => "both callers".to_owned(),
        _ if number == all => format!("all {}", callers(all)),
        _ => format!("{number} of the {}", callers(all)),
    }
}

fn refused_units(number: u64) -> String {
    format!("{number} refused unit{}", if number == 1 { "" } else { "s" })
}

const fn was(number: usize) -> &'static str {
    if number == 1 { "was" } else { "were" }
}

/// The limit of a reading with another number of units.
struct Other<'a> {
    reading: &'a Reading,
    model: &'a Model,
    limit: f64,
    /// The most that can be used at one time.
    burst: f64,
}

impl Other<'_> {
    fn new(reading: &Reading, limit: u64) -> Other<'_> {
        let model = &reading.limit;
        let limit = limit as f64;
        // A soft limit admits a share of its limit more.
        let burst = if model.has_own_burst() { model.burst } else { model.burst / model.limit as f64 * limit };
        Other { reading, model, limit, burst }
    }

    /// Returns whether the other limit certainly refuses none of the caller's requests.
    fn passes(&self, caller: &SampledCaller) -> bool {
        // What the requests that never can pass would need is not known.
        if caller.only_oversized {
            return false;
        }
        // Other servers have also seen requests of this caller, so its demand is not known.
        let Some(burst) = caller.burst.1 else { return false };
        // A limit that is not lower refuses nobody whom this one did not refuse.
        if !caller.refused && self.limit >= self.model.limit as f64 {
            return true;
        }
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

    /// Returns whether the caller got more units than the other limit admits in the same time. What it got was no retry.
    fn admits_less(&self, caller: &SampledCaller) -> bool {
        // What several stores allowed is added up, although each has a limit of its own.
        if caller.burst.1.is_none() || self.limit >= self.model.limit as f64 {
            return false;
        }
        let got = &self.reading.top_allowed;
        let time = self.reading.now_ns.saturating_add(1).saturating_sub(got.since_ns);
        let windows = time as f64 / self.model.window_ns.max(1) as f64;
        // At both ends, the time can touch a window that is only partly in it. A bucket has its burst instead.
        let most =
            if self.model.has_windows() { self.burst * (windows + 2.0) } else { self.limit * windows + self.burst };
        self.model.window_ns > 0 && got.units_of(caller.id) as f64 > most
    }

    /// Returns whether the other limit certainly refuses a request of the caller.
    fn refuses(&self, caller: &SampledCaller) -> bool {
        if self.admits_less(caller) {
            return true;
        }
        let of_window = caller.window.map_or(0.0, |(lower, _)| lower as f64);
        if self.model.has_windows() {
            return of_window > self.burst;
        }
        // A higher rate needs a lower burst, but a window never gets more than the burst and the units of one window.
        (self.limit <= self.model.limit as f64 && caller.burst.0 as f64 > self.burst)
            || of_window > self.burst + self.limit
    }
}
