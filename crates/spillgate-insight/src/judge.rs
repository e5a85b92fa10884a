//! Chooses the verdict on a limit, and writes its reason.
//!
//! A caller has a lower and an upper figure, because a refused request can come again. A caller is above the rate, or
//! keeps to it, only if both figures say so. Callers count by their refused units, so that one caller with most of them
//! counts more than many that were refused once.

use super::kinds::{Kind, Kinds, Minutes, kind_of};
use super::model::{Counting, Model};
use super::reading::{Reading, SampledCaller, Span, TopCaller};
use super::refused::{MOST, Refused, capital};
use super::suggest::Suggested;
use super::verdict::{Verdict, Who};
use super::words::{percent, rounded_time};
use super::{LONGEST_SPAN_NS, MINUTE_NS, SPANS_NS};

/// What to look at if requests do not come.
const ELSEWHERE: &str = "If you know that requests come, they match another rule or none, or a block refuses them: an explanation of such a request says it.";
/// A verdict needs at least this many requests.
const MIN_REQUESTS: u64 = 100;
/// A verdict needs requests in at least this many minutes of the last hour.
const MIN_MINUTES: usize = 3;
/// If a verdict needs an hour of requests, this time is enough, because there may be minutes without requests.
const NEARLY_AN_HOUR_NS: u64 = LONGEST_SPAN_NS - 3 * MINUTE_NS;
/// A limit is never binding if the caller that uses most of it uses less than this share of the limit.
const HARDLY_USED: f64 = 0.5;
/// A caller whose refused units are this many times what the limit could allow is above the rate, however its requests
/// are divided into new ones and retries.
const HEAVY_TIMES: f64 = 5.0;
/// Clients of a crowd that retry at once ask for several times the rate, although each wants little. So for many
/// callers, more is needed to say that they are above the rate.
const HEAVY_TIMES_OF_MANY: f64 = 10.0;
/// A caller that got at most this share of the rate asks in batches, or for a short time. Even if a limit admits only one
/// request at a time, a caller whose single requests come at random, at the rate of the limit, gets half of the rate.
const LITTLE: f64 = 0.4;
/// A caller outside the sample is above the rate if it got at least this share of the rate, ...
const USES_RATE: f64 = 0.9;
/// ... and asked for at least this many times the rate.
const ASKS_TIMES: f64 = 1.2;
/// There are verdicts on the other requests only if at most this share of all requests can never pass.
const NEVER_PASSES: f64 = 0.05;
/// A limit is effective if it refuses at most this share of its callers, and of the units.
const REFUSES_LITTLE: f64 = 0.10;

/// A verdict with its reason, and with a better limit if there is one.
pub(super) struct Judged {
    pub(super) verdict: Verdict,
    pub(super) who: Who,
    pub(super) reason: String,
    pub(super) suggested: Option<Suggested>,
}

/// Everything that the verdict is made of.
struct Judge<'a> {
    reading: &'a Reading,
    span: &'a Span,
    minutes: Minutes,
    /// The time in which requests came.
    watched_ns: u64,
}

impl Judged {
    fn new(verdict: Verdict, reason: String) -> Judged {
        Judged { verdict, who: Who::Nobody, reason, suggested: None }
    }

    /// Judges a limit by all that was seen in the last hour.
    pub(super) fn of(reading: &Reading) -> Judged {
        let span = &reading.spans[SPANS_NS.len() - 1];
        let minutes = Minutes::of(&span.sampled.callers);
        let watched_ns = reading.now_ns.saturating_sub(reading.since_ns).min(minutes.first as u64 * MINUTE_NS);
        let judge = Judge { reading, span, minutes, watched_ns };
        let refused = Refused::of(reading);
        let mut judged = judge.judge(refused.as_ref());
        judged.who = refused.map_or(Who::Nobody, |refused| refused.who);
        let (requests, oversized) = (span.counts.requests, span.counts.oversized_requests);
        if let Some(cost) = span.counts.oversized_units.checked_div(oversized) {
            let most = reading.limit.burst;
            let never = format!(
                "{oversized} of {requests} requests cost more than {most}, so they can never pass. On average, they cost {cost}."
            );
            judged.reason = format!("{never} {}", judged.reason).trim_end().to_owned();
        }
        // A limit in shadow mode lets pass what it refuses here.
        let counts = &span.counts;
        let condition = match counts.unenforced_requests {
            _ if reading.limit.limit == 0 => "",
            0 => "",
            passed if passed >= counts.refused_requests => "If it refused: ",
            _ => "If it had refused all the time: ",
        };
        judged.reason.insert_str(0, condition);
        judged
    }
}

impl Judge<'_> {
    fn judge(&self, refused: Option<&Refused<'_>>) -> Judged {
        let (model, counts) = (&self.reading.limit, &self.span.counts);
        if model.limit == 0 {
            return Judged::new(Verdict::Unclear, "The limit is 0: it refuses every request, whoever asks.".into());
        }
        let sampled = &self.span.sampled;
        if counts.requests >= MIN_REQUESTS && sampled.callers.is_empty() {
            // The counts cover some minutes more than the callers.
            let reason = if sampled.threshold == u64::MAX {
                "There were no requests in the last hour."
            } else {
                "No caller is in the sample, because there were far more callers before."
            };
            return Judged::new(Verdict::TooEarly, reason.into());
        }
        if counts.requests < MIN_REQUESTS {
            let watched_ns = self.reading.now_ns.saturating_sub(self.reading.since_ns);
            let seen = match counts.requests {
                0 if watched_ns < LONGEST_SPAN_NS => {
                    format!(
                        "No request was counted since insight of this limit began, {} ago. {ELSEWHERE}",
                        rounded_time(watched_ns)
                    )
                }
                0 => format!("No request was counted in the last hour. {ELSEWHERE}"),
                1 => "There was 1 request.".to_owned(),
                requests => format!("There were {requests} requests."),
            };
            let reason = format!("{seen} A verdict needs {MIN_REQUESTS} requests.");
            return Judged::new(Verdict::TooEarly, with_seen(refused, &reason));
        }
        if self.minutes.asked < MIN_MINUTES {
            let asked = self.minutes.asked;
            let reason = format!(
                "There were requests in {asked} of the last 60 minutes. A verdict needs requests in {MIN_MINUTES} of them."
            );
            return Judged::new(Verdict::TooEarly, with_seen(refused, &reason));
        }
        if counts.oversized_requests as f64 > NEVER_PASSES * counts.requests as f64 {
            return Judged::new(Verdict::NeverPasses, String::new());
        }
        let Some(of_refused) = refused else {
            // That a limit is hardly used can be said after an hour only.
            return self.needs_windows(LONGEST_SPAN_NS).unwrap_or_else(|| self.unrefused());
        };
        let mut judged = self.refusing(of_refused);
        judged.reason = with_seen(refused, &judged.reason);
        judged
    }

    /// Returns the verdict if requests have come for less time than `needed_ns`. Then it can turn out that a verdict needs
    /// `longest_ns`, and the reason says so at once, so that nobody waits for a time that moves.
    fn needs(&self, needed_ns: u64, longest_ns: u64) -> Option<Judged> {
        if needed_ns > LONGEST_SPAN_NS {
            let needed = rounded_time(needed_ns);
            let reason = format!("This limit needs {needed} of requests, and insight keeps 1h.");
            return Some(Judged::new(Verdict::Unclear, reason));
        }
        let needed_ns = needed_ns.min(NEARLY_AN_HOUR_NS);
        let (needed, watched) = (rounded_time(needed_ns), rounded_time(self.watched_ns));
        let longest = rounded_time(longest_ns.clamp(needed_ns, NEARLY_AN_HOUR_NS));
        let to = if longest == needed { String::new() } else { format!(" to {longest}") };
        (self.watched_ns < needed_ns).then(|| {
            Judged::new(
                Verdict::TooEarly,
                format!("Requests came for {watched}. A verdict needs requests for {needed}{to}."),
            )
        })
    }

    /// A time as long as two windows contains one whole window, wherever windows begin.
    fn needs_windows(&self, longest_ns: u64) -> Option<Judged> {
        let windows_ns = match self.reading.limit.window_ns {
            window_ns @ 0..=LONGEST_SPAN_NS => (2 * window_ns).min(LONGEST_SPAN_NS),
            window_ns => window_ns,
        };
        self.needs(windows_ns, longest_ns)
    }

    /// Judges a limit that refused requests. The reason does not repeat what was refused.
    fn refusing(&self, refused: &Refused<'_>) -> Judged {
        let (model, counts) = (&self.reading.limit, &self.span.counts);
        if model.rate <= 0.0 {
            let reason = "Permits have no rate, so their refusals are counted but not judged.";
            return Judged::new(Verdict::Unclear, reason.into());
        }
        let kinds = self.kinds(refused);
        let callers = if refused.asked.value > 0.0 { refused.refused.value / refused.asked.value } else { 1.0 };
        let is_little = callers <= REFUSES_LITTLE && refused.share <= REFUSES_LITTLE;
        let is_heavy = kinds.heavy >= MOST * kinds.all && kinds.heavy > 0.0;
        if is_little {
            match self.needs_windows(model.judged_ns) {
                None => return Judged::new(Verdict::Effective, self.effective(refused)),
                Some(too_early) if !is_heavy => return too_early,
                Some(_) => {}
            }
        }
        if is_heavy {
            return self.above(refused);
        }
        if let Some(too_early) = self.needs_windows(model.judged_ns).or_else(|| self.needs(model.judged_ns, 0)) {
            return too_early;
        }
        let unwaited = counts.unwaited_requests as f64
            / counts.refused_requests.saturating_sub(counts.oversized_requests).max(1) as f64;
        if unwaited > 1.0 - MOST {
            let reason = format!(
                "{} % of the refused requests had room in the queue, but did not wait for their turn.",
                percent(unwaited)
            );
            return Judged::new(Verdict::Unclear, reason);
        }
        self.by_kinds(refused, &kinds)
    }

    fn by_kinds(&self, refused: &Refused<'_>, kinds: &Kinds) -> Judged {
        let judged = kinds.judged();
        if kinds.all == 0.0 {
            return Judged::new(Verdict::Unclear, "No refused caller is in the sample.".into());
        }
        if judged == 0.0 && matches!(refused.top, [_]) {
            let reason = format!("This caller cannot be judged: {}.", self.unknown_because(refused, true));
            return Judged::new(Verdict::Unclear, reason);
        }
        if judged == 0.0 {
            let reason =
                format!("None of the refused callers can be judged: {}.", self.unknown_because(refused, false));
            return Judged::new(Verdict::Unclear, reason);
        }
        if 2.0 * judged < kinds.all {
            let reason = format!(
                "{} can be judged. Of the others, {}.",
                capital(&refused.part(judged / kinds.all)),
                self.unknown_because(refused, false)
            );
            return Judged::new(Verdict::Unclear, reason);
        }
        let Minutes { asked, above: (_, above), last_above: (_, last_above), .. } = self.minutes;
        // Who asks for more than the rate now is not said to do so for a short time.
        let for_short = above > 0 && 2 * above < asked && last_above > 1;
        if kinds.above >= MOST * judged && !(refused.who == Who::Many && for_short) {
            return self.above(refused);
        }
        let short = kinds.above_for_short + if for_short { kinds.above } else { 0.0 };
        if kinds.bursty + kinds.spare + short >= MOST * judged {
            return self.bursts(refused, kinds, short > (1.0 - MOST) * judged);
        }
        let reason = format!(
            "{} ask for more than the rate most of the time, and {} ask for too much at once or for a short time: this points in \
             no one direction.",
            capital(&refused.part(kinds.above / kinds.all)),
            refused.part((kinds.bursty + kinds.spare + kinds.above_for_short) / kinds.all)
        );
        Judged::new(Verdict::Unclear, reason)
    }

    /// Says why callers that decide the verdict cannot be judged: only reasons that one of them has. `one` says whether it
    /// is a single caller.
    fn unknown_because(&self, refused: &Refused<'_>, one: bool) -> String {
        let callers = &self.span.sampled.callers;
        let decides = |caller: &&SampledCaller| match refused.top {
            [] => refused.weight(caller) > 0.0,
            top => top.iter().any(|top| top.id == caller.id),
        };
        let mut found = [false; 4];
        found[3] = refused.top.iter().any(|top| callers.iter().all(|caller| caller.id != top.id));
        for caller in callers.iter().filter(decides).filter(|caller| self.kind_of(refused, caller) == Kind::Unknown) {
            found[match (caller.burst.1, caller.above_upper) {
                (None, _) => 2,
                (Some(_), true) => 1,
                (Some(_), false) => 0,
            }] = true;
        }
        let reasons = if one {
            [
                "it is still busy",
                "its retries cannot be distinguished from new requests",
                "a part of its units was counted elsewhere: by other servers, before the start, or while the store failed",
                "it is not in the sample",
            ]
        } else {
            [
                "some are still busy",
                "the retries of some cannot be distinguished from new requests",
                "a part of the units of some was counted elsewhere: by other servers, before the start, or while the store failed",
                "some are not in the sample",
            ]
        };
        let reasons = reasons.into_iter().zip(found).filter_map(|(reason, found)| found.then_some(reason));
        reasons.collect::<Vec<_>>().join(", and ")
    }

    /// The verdict that the callers with most of the refused units are above the rate.
    fn above(&self, refused: &Refused<'_>) -> Judged {
        let time = rounded_time(refused.covered_ns);
        let times = refused.top.iter().map(|top| refused.asked_units(top) as f64 / self.allowed_units(refused));
        let times = times.reduce(f64::min).unwrap_or(0.0);
        let reason = match refused.who {
            Who::One if times >= ASKS_TIMES => {
                format!(
                    "This caller asked for at least {} times the rate of the limit, on average over {time}.",
                    floor(times)
                )
            }
            Who::Few if times >= ASKS_TIMES => {
                format!(
                    "Each of these callers asked for at least {} times the rate of the limit, on average over {time}.",
                    floor(times)
                )
            }
            Who::One => "This caller asks for more than the rate, most of the time.".to_owned(),
            Who::Few => "These callers ask for more than the rate, most of the time.".to_owned(),
            _ => {
                let often = match self.minutes.above.0 {
                    0 => String::new(),
                    above => format!(
                        ", many of them in at least {above} of the {} minutes with requests",
                        self.minutes.asked
                    ),
                };
                format!(
                    "Callers with most of the refused units that can be judged ask for more than the rate in most of the minutes in \
                     which they ask{often}."
                )
            }
        };
        let suggested = if refused.who == Who::Many {
            Suggested::higher(&self.reading.limit, &self.span.sampled.callers, |caller| refused.weight(caller))
        } else {
            None
        };
        Judged { suggested, ..Judged::new(Verdict::AboveRate, reason) }
    }

    /// The verdict that the refused callers keep to the rate. `short` says whether many are above it for a short time.
    fn bursts(&self, refused: &Refused<'_>, kinds: &Kinds, short: bool) -> Judged {
        if kinds.spare > (1.0 - MOST) * kinds.judged() {
            let got = format!("got at most {} % of what the rate allows", percent(LITTLE));
            let reason = match refused.who {
                Who::One => format!(
                    "This caller {got}: it asks for too much at once or for a short time, or it repeats refused requests."
                ),
                _ => format!(
                    "{} {got}: they ask for too much at once or for a short time, or they repeat refused requests.",
                    capital(&refused.part(kinds.spare / kinds.all))
                ),
            };
            return Judged::new(Verdict::Bursts, reason);
        }
        if short {
            let Minutes { asked, above: (_, at_most), last_above: (last_above, _), .. } = self.minutes;
            let last = match last_above {
                0 => String::new(),
                1 => " The last of them was at least 1 minute ago.".to_owned(),
                minutes => format!(" The last of them was at least {minutes} minutes ago."),
            };
            let reason = format!(
                "Callers with most of the refused units asked for more than the rate, but in at most {at_most} of the {asked} minutes with \
                 requests.{last}"
            );
            return Judged::new(Verdict::Bursts, reason);
        }
        let reason = "Callers with most of the refused units that can be judged keep to the rate, but ask for more at once than the \
                      limit allows.";
        let sampled = &self.span.sampled;
        let weight = |caller: &SampledCaller| refused.weight(caller);
        let suggested = Suggested::longer_burst(&self.reading.limit, sampled, weight);
        Judged { suggested, ..Judged::new(Verdict::Bursts, reason.into()) }
    }

    /// Returns a sentence about the few callers that are refused by a limit that works.
    fn effective(&self, refused: &Refused<'_>) -> String {
        let callers = self.span.sampled.callers.iter().filter(|caller| refused.weight(caller) > 0.0);
        let kinds: Vec<_> = callers.map(|caller| self.kind_of(refused, caller)).collect();
        if kinds.is_empty() {
            return format!("None of {} callers in the sample is refused.", self.span.sampled.callers.len());
        }
        let count = |of: &[Kind]| kinds.iter().filter(|kind| of.contains(kind)).count();
        let parts = [
            (count(&[Kind::Above]), "for more than the rate"),
            (count(&[Kind::AboveForShort, Kind::Bursty, Kind::Spare]), "for too much at once"),
            (count(&[Kind::Unknown]), "for an amount that is not exactly known"),
        ];
        let say = |(part, what): &(usize, &str)| format!("{part} {} {what}", if *part == 1 { "asks" } else { "ask" });
        let parts: Vec<_> = parts.iter().filter(|(part, _)| *part > 0).map(say).collect();
        let of = if self.span.sampled.threshold == u64::MAX {
            "the refused callers"
        } else {
            "the refused callers in the sample"
        };
        format!("Of {of}, {}. The others pass.", parts.join(", "))
    }

    /// Returns the units that the rate of the limit allows a caller in the time of the figures, without its burst.
    fn allowed_units(&self, refused: &Refused<'_>) -> f64 {
        self.reading.limit.rate * refused.covered_ns.max(1) as f64
    }

    /// Returns of which kind the callers are that decide the verdict: those with most of the refused units if they are
    /// one or a few, and otherwise all refused callers of the sample.
    fn kinds(&self, refused: &Refused<'_>) -> Kinds {
        let callers = &self.span.sampled.callers;
        let mut kinds = Kinds::default();
        if refused.top.is_empty() {
            for caller in callers {
                let units = refused.weight(caller);
                let allowed = self.allowed_since_first(refused, caller);
                let is_heavy = is_often(caller) && caller.refused_units as f64 >= HEAVY_TIMES_OF_MANY * allowed;
                kinds.add(units, if is_heavy { Kind::Above } else { self.kind_of(refused, caller) }, is_heavy);
            }
            return kinds;
        }
        for top in refused.top {
            let sampled = callers.iter().find(|caller| caller.id == top.id);
            let allowed =
                sampled.map_or(self.allowed(refused, u64::MAX, 1), |caller| self.allowed_since_first(refused, caller));
            let is_heavy = sampled.is_none_or(is_often) && top.units as f64 >= HEAVY_TIMES * allowed;
            let kind = match sampled {
                _ if is_heavy => Kind::Above,
                Some(caller) => match self.kind_of(refused, caller) {
                    Kind::Unknown if self.is_heavy_while_asking(refused, caller, top.units) => Kind::Above,
                    kind => kind,
                },
                None => self.kind_outside(refused, top),
            };
            kinds.add(top.units as f64, kind, is_heavy);
        }
        kinds
    }

    /// Returns the most units that the limit can admit in a part of the time of the figures, if its burst was whole
    /// `bursts` times.
    fn allowed(&self, refused: &Refused<'_>, part_ns: u64, bursts: u32) -> f64 {
        let Model { burst, rate, .. } = self.reading.limit;
        f64::from(bursts) * burst + rate * part_ns.min(refused.covered_ns) as f64
    }

    /// Returns the most units that the limit can admit since the first request of a caller of the sample.
    fn allowed_since_first(&self, refused: &Refused<'_>, caller: &SampledCaller) -> f64 {
        self.allowed(refused, u64::from(u64::BITS - caller.asked_minutes.leading_zeros()) * MINUTE_NS, 1)
    }

    /// Returns whether so many units were refused that the caller is above the rate in the minutes in which it asks,
    /// whichever of its requests were retries. A caller that got little of the rate is not.
    fn is_heavy_while_asking(&self, refused: &Refused<'_>, caller: &SampledCaller, units: u64) -> bool {
        let minutes = refused.asked_minutes(caller);
        // The limit has its whole burst again after a minute without requests.
        let bursts = (minutes & !(minutes << 1)).count_ones();
        let allowed = self.allowed(refused, u64::from(minutes.count_ones()) * MINUTE_NS, bursts);
        let got = self.reading.top_allowed.units_of(caller.id) as f64;
        minutes.count_ones() as usize >= MIN_MINUTES
            && units as f64 >= HEAVY_TIMES * allowed
            && got > self.little_of_rate(refused, caller)
    }

    /// Returns what a refused caller of the sample asks for.
    fn kind_of(&self, refused: &Refused<'_>, caller: &SampledCaller) -> Kind {
        let Model { burst, rate, judged_ns, .. } = self.reading.limit;
        let kind = kind_of(caller, burst);
        if kind != Kind::Unknown || !caller.paid_lower || caller.burst.1.is_none() {
            return kind;
        }
        let (little, got) = (self.little_of_rate(refused, caller), self.got_at_most(caller));
        let is_long = little >= LITTLE * rate * judged_ns as f64;
        if is_long && got <= little { Kind::Spare } else { Kind::Unknown }
    }

    /// Returns the most units that this limit allowed a caller, whether another limit refused their requests or not.
    fn got_at_most(&self, caller: &SampledCaller) -> f64 {
        let allowed = &self.reading.top_allowed;
        allowed.units_at_most(caller.id).saturating_add(allowed.refused_elsewhere) as f64
    }

    /// Returns how many units are little for a caller of the sample, compared with the rate since its first request.
    fn little_of_rate(&self, refused: &Refused<'_>, caller: &SampledCaller) -> f64 {
        // The caller may have asked at the end of its first minute.
        let first = (u64::BITS - refused.asked_minutes(caller).leading_zeros()).saturating_sub(2);
        LITTLE * self.reading.limit.rate * (u64::from(first) * MINUTE_NS) as f64
    }

    /// Returns the kind of a caller that is not in the sample.
    fn kind_outside(&self, refused: &Refused<'_>, top: &TopCaller) -> Kind {
        let allowed = self.allowed_units(refused);
        let got = self.reading.top_allowed.units_of(top.id) as f64;
        let is_above = got >= USES_RATE * allowed && refused.asked_units(top) as f64 >= ASKS_TIMES * allowed;
        if is_above && refused.covered_ns >= self.reading.limit.judged_ns { Kind::Above } else { Kind::Unknown }
    }

    /// Judges a limit that refused nothing.
    fn unrefused(&self) -> Judged {
        let (model, span) = (&self.reading.limit, self.span);
        let callers = &span.sampled.callers;
        let others = self.others_share();
        // The store has counted what each caller used, whether the caller is in the sample or not.
        let used = span.used as f64 / model.capacity as f64;
        let none =
            if span.counts.refused_requests == 0 { "No caller is refused." } else { "No other request is refused." };
        let highest = |shares: &mut dyn Iterator<Item = f64>| shares.fold(used, f64::max);
        let at_least = highest(&mut callers.iter().map(|caller| used_share(caller, model).0)).max(others.0);
        let at_most = highest(&mut callers.iter().map(|caller| used_share(caller, model).1)).max(others.1);
        let percent = |share: f64| (share * 100.0).ceil().min(100.0);
        if at_least >= HARDLY_USED {
            let windows = callers.iter().filter_map(|caller| caller.window);
            let in_window = windows.fold(0, |most, window| most.max(window.0)) as f64 / model.limit as f64;
            let when = match at_least {
                _ if in_window >= at_least => "in one window",
                _ if others.0 >= at_least => "on average",
                _ => "at once",
            };
            return Judged::new(
                Verdict::Effective,
                format!("{none} A caller used {} % of its limit {when}.", percent(at_least)),
            );
        }
        if at_most >= HARDLY_USED {
            let counted_elsewhere = callers.iter().any(|caller| caller.burst.1.is_none());
            let slides = model.counting == Counting::Sliding;
            let reasons = [
                (
                    counted_elsewhere,
                    "a part of their units was counted by other servers, before the start, or while the store failed",
                ),
                (others.1 >= HARDLY_USED, "they are not in the sample"),
                (slides, "their window slides, and insight counts in windows that do not"),
            ];
            let reasons: Vec<_> = reasons.iter().filter(|(holds, _)| *holds).map(|(_, reason)| *reason).collect();
            let because = if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join(", or ")) };
            let reason =
                format!("{none} How much of the limit they use is not exactly known of some callers{because}.");
            return Judged::new(Verdict::Unclear, reason);
        }
        if let Some(mut too_early) = self.needs(LONGEST_SPAN_NS, 0) {
            too_early.reason = format!("{none} Nobody used half of the limit yet. {}", too_early.reason);
            return too_early;
        }
        // This figure covers the whole hour, and up to half an hour more.
        if callers.iter().any(|caller| caller.longer_window as f64 >= HARDLY_USED * model.limit as f64) {
            let covered = rounded_time(self.reading.now_ns.saturating_sub(self.reading.top_allowed.since_ns));
            let reason =
                format!("{none} In the last {covered}, nobody used half of the limit, but some may have before.");
            return Judged::new(Verdict::TooEarly, format!("{reason} A verdict needs an hour."));
        }
        let (seen, percent_used) = (rounded_time(self.watched_ns), percent(used));
        let percent = percent(at_most);
        let has_all = span.sampled.threshold == u64::MAX;
        let counts_all = has_all || model.has_windows() || model.counting == Counting::Permits;
        let reason = if counts_all {
            format!(
                "{none} In the last {seen}, no caller used more than {percent} % of its limit, in a window or at once."
            )
        } else {
            format!(
                "{none} In the last {seen}, none of {} callers in the sample used more than {percent} % of its limit, in a window or \
                 at once. No other caller used more than {percent_used} % at once, or half of its rate on average.",
                callers.len()
            )
        };
        // What a bucket holds does not say how many units of a caller outside the sample go through it in a window.
        let is_known = counts_all || model.has_own_burst();
        let suggested = is_known.then(|| Suggested::lower(model, callers, span.used, &seen)).flatten();
        Judged { suggested, ..Judged::new(Verdict::NeverBinding, reason) }
    }

    /// Returns the largest part of its rate that a caller outside the sample can use: a lower and an upper bound, from
    /// the list of the callers with the most units. Both are 0 if the sample has every caller, or if the limit has no
    /// rate.
    fn others_share(&self) -> (f64, f64) {
        let Reading { limit, now_ns, top_allowed, .. } = self.reading;
        if self.span.sampled.threshold == u64::MAX || limit.rate <= 0.0 {
            return (0.0, 0.0);
        }
        let (at_least, at_most) = top_allowed.highest();
        let allowed = limit.rate * now_ns.saturating_sub(top_allowed.since_ns).max(1) as f64;
        (at_least as f64 / allowed, at_most as f64 / allowed)
    }
}

/// Returns a reason after the sentences that say what was refused, and to whom.
fn with_seen(refused: Option<&Refused<'_>>, reason: &str) -> String {
    let Some(refused) = refused else { return reason.to_owned() };
    let seen = format!("{} {}", refused.sentence(), refused.top_sentences());
    format!("{} {reason}", seen.trim_end())
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
    let at_least = caller.burst.0 as f64 / model.capacity as f64;
    // The upper figure can still have units that were refused more than an hour ago. The limit has counted what was used.
    let at_most = caller.burst.1.map_or(f64::INFINITY, |_| caller.used_share().max(at_least));
    (window[0].max(at_least), window[1].max(at_most))
}

/// Returns whether a caller asked in enough minutes.
fn is_often(caller: &SampledCaller) -> bool {
    caller.asked_minutes.count_ones() as usize >= MIN_MINUTES
}

/// Cuts a number to one digit after the point, or to none if it is large.
fn floor(number: f64) -> f64 {
    // A time can have one nanosecond more than whole minutes, and 20 times must not become 19 times by that.
    let number = number + 1e-9;
    if number < 10.0 { (number * 10.0).floor() / 10.0 } else { number.floor() }
}
