//! What a limit has refused, and to whom: the figures of all callers, of the few with most of the refused units, and of
//! the others.
//!
//! Units are those of the lists of top callers, which have all callers and not only those of the sample. So all figures
//! are of the time that these lists cover. Only if most refusals are older, or no units were refused, the figures are
//! numbers of callers and of requests in the last hour.

use super::reading::{Reading, SampledCaller, TopCaller, TopCallers};
use super::report::Estimate;
use super::verdict::Who;
use super::words::{between, percent, rounded_time};
use super::{MINUTE_NS, SPANS_NS};

/// One caller or a few have refused if they have this share of the refused units.
pub(super) const MOST: f64 = 0.8;
/// More callers than this are many.
const FEW: usize = 10;

/// If the lists of top callers have less than this share of the units that were refused in the hour, most refusals are
/// older than the lists.
const MOST_ARE_OLDER: f64 = 0.1;

/// What was refused, and to whom.
pub(super) struct Refused<'a> {
    pub(super) who: Who,
    reading: &'a Reading,
    /// The time that the figures cover.
    pub(super) covered_ns: u64,
    /// Whether units are known. If not, all refused callers count the same.
    has_units: bool,
    /// The units that the figures cover. If units are not known: the requests, without those that can never pass.
    all: u64,
    /// Callers that asked.
    pub(super) asked: Estimate,
    /// Callers that were refused at least once.
    pub(super) refused: Estimate,
    /// The share of the units that were refused. If units are not known: of the requests.
    pub(super) share: f64,
    /// For `one` and `few`: the callers that have most of the refused units.
    pub(super) top: &'a [TopCaller],
}

impl<'a> Refused<'a> {
    /// Returns `None` if nothing was refused that could pass at another time.
    pub(super) fn of(reading: &'a Reading) -> Option<Refused<'a>> {
        let hour = &reading.spans[SPANS_NS.len() - 1];
        let counts = &hour.counts;
        let refused_requests = counts.refused_requests.saturating_sub(counts.oversized_requests);
        if refused_requests == 0 {
            return None;
        }
        let top = &reading.top_refused;
        let of_hour = counts.refused_units.saturating_sub(counts.oversized_units);
        let has_units = top.units > 0 && top.units as f64 >= MOST_ARE_OLDER * of_hour as f64;
        let (refused, all) = if has_units {
            let allowed = &reading.top_allowed;
            (top.units, allowed.units.saturating_add(allowed.refused_elsewhere).saturating_add(top.units))
        } else {
            (refused_requests, counts.requests.saturating_sub(counts.oversized_requests))
        };
        let mut found = Refused {
            who: Who::Many,
            reading,
            // The nanosecond of the reading belongs to the time.
            covered_ns: reading.now_ns.saturating_add(1).saturating_sub(if has_units {
                top.since_ns
            } else {
                reading.since_ns
            }),
            has_units,
            all,
            asked: Estimate::default(),
            refused: Estimate::default(),
            share: refused as f64 / all.max(1) as f64,
            top: &[],
        };
        if !has_units {
            found.covered_ns = found.covered_ns.min(SPANS_NS[SPANS_NS.len() - 1]);
        }
        found.asked = Estimate::of(&hour.sampled, |caller| found.has_asked(caller));
        found.refused = Estimate::of(&hour.sampled, |caller| found.weight(caller) > 0.0);
        found.who = if has_units { found.who_by_units() } else { found.who_by_callers() };
        if let Who::One | Who::Few = found.who
            && has_units
        {
            found.top = &top.callers[..with_most(top).unwrap_or(0)];
        }
        Some(found)
    }

    fn who_by_units(&self) -> Who {
        match with_most(&self.reading.top_refused) {
            Some(1) => Who::One,
            Some(callers) if 2.0 * callers as f64 <= self.asked.value => Who::Few,
            _ => Who::Many,
        }
    }

    fn who_by_callers(&self) -> Who {
        let with_most = (MOST * self.refused.value).ceil();
        match self.refused.value {
            1.0 => Who::One,
            _ if with_most <= FEW as f64 && 2.0 * with_most <= self.asked.value && with_most > 0.0 => Who::Few,
            _ => Who::Many,
        }
    }

    /// Returns whether a caller of the sample asked in the time that the figures cover.
    fn has_asked(&self, caller: &SampledCaller) -> bool {
        self.asked_minutes(caller) != 0
    }

    /// Returns the minutes of the time that the figures cover in which a caller of the sample asked.
    pub(super) fn asked_minutes(&self, caller: &SampledCaller) -> u64 {
        let begin_ns = self.reading.now_ns.saturating_add(1).saturating_sub(self.covered_ns);
        // If the clock was set back a little, the counting can begin after the reading.
        let earlier = (self.reading.now_ns / MINUTE_NS).saturating_sub(begin_ns / MINUTE_NS);
        let minutes = if earlier >= 63 { u64::MAX } else { (2 << earlier) - 1 };
        caller.asked_minutes & minutes
    }

    /// Returns how much a refused caller of the sample counts: its refused units. If units are not known, each refused
    /// caller counts 1.
    pub(super) fn weight(&self, caller: &SampledCaller) -> f64 {
        if self.has_units {
            return caller.refused_units as f64;
        }
        if caller.refused && !caller.only_oversized && self.has_asked(caller) { 1.0 } else { 0.0 }
    }

    /// Returns a lower bound of the units that a caller asked for.
    pub(super) fn asked_units(&self, caller: &TopCaller) -> u64 {
        caller.units.saturating_add(self.reading.top_allowed.units_of(caller.id))
    }

    /// Says how much was refused, and how many callers were refused.
    pub(super) fn sentence(&self) -> String {
        let time = rounded_time(self.covered_ns);
        let (all, what) = (self.all, if self.has_units { "units" } else { "requests" });
        let begin = format!("In the last {time}, {} % of {all} {what} were refused", percent(self.share));
        let is_exact = self.asked.relative_error == 0.0;
        if !is_exact && self.refused.value == 0.0 {
            return format!("{begin}, but of no caller in the sample.");
        }
        let about = if is_exact { "" } else { "about " };
        let (refused, asked) = (self.refused.value.round(), self.asked.value.round());
        let callers = if asked == 1.0 { "caller" } else { "callers" };
        let never = match (self.who, asked - refused) {
            (Who::Many, 1.0) => " 1 caller was never refused.".to_owned(),
            (Who::Many, never) if never > 0.0 => format!(" {about}{never} callers were never refused."),
            _ => String::new(),
        };
        let never = never.replace(" about", " About");
        format!("{begin}, and {about}{refused} of {about}{asked} {callers} at least once.{never}")
    }

    /// Names a part of the callers that decide the verdict, by what they have of the refused units.
    pub(super) fn part(&self, share: f64) -> String {
        let share = percent(share);
        match (self.has_units, self.who) {
            (false, _) => format!("{share} % of the refused callers"),
            (true, Who::Many) => format!("callers with {share} % of the refused units"),
            (true, _) => format!("of these callers, those with {share} % of their refused units"),
        }
    }

    /// Names the caller with most of the refused units, and says what was seen without the callers that have most of
    /// them. Returns an empty text if units are not known.
    pub(super) fn top_sentences(&self) -> String {
        let refused = &self.reading.top_refused;
        let Some(first) = refused.callers.first().filter(|_| self.has_units) else { return String::new() };
        let share = |units: u64, missing: u64| {
            let all = refused.units.max(1) as f64;
            between(units as f64 / all, (units.saturating_add(missing).min(refused.units)) as f64 / all)
        };
        let (name, sum) = (self.name(first), self.top.iter().fold(0, |sum: u64, top| sum.saturating_add(top.units)));
        let of_first = share(first.units, refused.missing);
        // Counts are too low by an amount that can differ for each caller.
        let second = refused.callers.get(1).map_or(0, |caller| caller.units);
        let is_sure = first.units >= second.saturating_add(refused.missing);
        let most = if is_sure { "has the most" } else { "probably has the most" };
        match self.who {
            Who::One => {
                format!("{} has {of_first} of the refused units. {}", capital(&name), self.others("it", "this one"))
            }
            Who::Few => {
                let missing = refused.missing.saturating_mul(self.top.len() as u64);
                format!(
                    "{} callers have {} of the refused units, and {name} {most}: {of_first}. {}",
                    self.top.len(),
                    share(sum, missing),
                    self.others("them", "these")
                )
            }
            _ => format!("{} {most}: {of_first} of the refused units.", capital(&name)),
        }
    }

    /// Says what was seen without the top callers.
    fn others(&self, them: &str, these: &str) -> String {
        let hour = &self.reading.spans[SPANS_NS.len() - 1];
        let is_other = |caller: &SampledCaller| self.top.iter().all(|top| top.id != caller.id);
        let asked = Estimate::of(&hour.sampled, |caller| self.has_asked(caller) && is_other(caller));
        let refused = Estimate::of(&hour.sampled, |caller| caller.refused_units > 0 && is_other(caller));
        if asked.value == 0.0 {
            let is_exact = asked.relative_error == 0.0;
            return if is_exact {
                format!("Nobody asked but {these}.")
            } else {
                "No other caller is in the sample.".to_owned()
            };
        }
        let about = if asked.relative_error > 0.0 { "about " } else { "" };
        let was = if refused.value.round() == 1.0 { "was" } else { "were" };
        let callers = if asked.value.round() == 1.0 { "other caller" } else { "other callers" };
        if refused.value == 0.0 && asked.relative_error == 0.0 {
            return format!("Without {them}: of {} {callers}, none was refused.", asked.value.round());
        }
        format!(
            "Without {them}: of {about}{} {callers}, {about}{} {was} refused at least once, with {} of their units.",
            asked.value.round(),
            refused.value.round(),
            self.share_of_others()
        )
    }

    /// Returns which share of the units of the other callers was refused.
    fn share_of_others(&self) -> String {
        let without = |list: &TopCallers| {
            let known = self.top.iter().fold(0, |sum: u64, top| sum.saturating_add(list.units_of(top.id)));
            let missing = list.missing.saturating_mul(self.top.len() as u64);
            let highest = list.units.saturating_sub(known);
            (highest.saturating_sub(missing) as f64, highest as f64)
        };
        let (refused, mut allowed) = (without(&self.reading.top_refused), without(&self.reading.top_allowed));
        // Whose units another limit refused is not known.
        allowed.1 += self.reading.top_allowed.refused_elsewhere as f64;
        let share = |refused: f64, allowed: f64| if refused > 0.0 { refused / (refused + allowed) } else { 0.0 };
        between(share(refused.0, allowed.1), share(refused.1, allowed.0))
    }

    /// Returns how a sentence names a caller.
    fn name(&self, caller: &TopCaller) -> String {
        match &caller.name {
            _ if self.reading.hides_callers => "one caller".to_owned(),
            Some(name) => quoted(name),
            None => format!("caller {}", caller.id),
        }
    }
}

/// Returns how many of the first callers of the list have most of its units: at most [`FEW`].
fn with_most(top: &TopCallers) -> Option<usize> {
    let mut sum = 0_u64;
    let position = top.callers.iter().take(FEW).position(|caller| {
        sum = sum.saturating_add(caller.units);
        sum as f64 >= MOST * top.units as f64
    })?;
    Some(position + 1)
}

/// Returns a name in quotes. A client chose the name, and in quotes it can look like no other text.
pub(super) fn quoted(name: &str) -> String {
    format!("{name:?}")
}

/// Returns the text with a capital letter at its beginning.
pub(super) fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}
