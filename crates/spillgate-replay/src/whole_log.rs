//! The verdict on a limit over the whole log.
//!
//! Insight judges one hour. The verdict of one hour is not that of the log: a limit can refuse many requests in one hour
//! of a day, and a quiet hour says little about a limit that refuses in another one. So this module weighs the verdicts
//! of all hours.

use spillgate::insight::{Verdict, Who};
use spillgate::text::{percent, thousands};

use super::report::{LimitReport, VerdictHours, WholeLog};

/// If a limit refuses a greater part of all requests than one in this number, the hours with refusals decide.
const REFUSES_MUCH: u64 = 10;
/// A caller is named in the verdict if it has at least this part of all refusals.
const MAIN_CALLER: f64 = 0.5;
/// One caller or a few callers have the refusals if they have at least this part of them: four of five.
const MOST: (u64, u64) = (4, 5);
/// With fewer refusals, the part of one caller says nothing.
const REFUSALS_MIN: u64 = 10;

impl LimitReport {
    /// Adds the verdict over the whole log, from the other figures of the report.
    #[must_use]
    pub fn judged(mut self) -> LimitReport {
        self.whole_log = self.verdict().map(|verdict| {
            let who = self.who();
            let same =
                self.period.as_ref().filter(|period| (period.report.verdict, period.report.who) == (verdict, who));
            WholeLog {
                verdict,
                who,
                reason: self.reason(verdict),
                suggestion: same.and_then(|period| period.report.suggestion),
                suggested_rules: same.and_then(|period| period.suggested_rules.clone()),
            }
        });
        self
    }

    /// Returns the caller with most of the refusals, and its refusals, if one caller has at least half of them.
    #[must_use]
    pub fn main_caller(&self) -> Option<(&str, u64)> {
        let says_something = self.callers.counted > 1 && self.refused_requests >= REFUSALS_MIN;
        let top = self.callers.top_refused.first().filter(|_| says_something)?;
        let part = top.counts.refused as f64 / self.refused_requests.max(1) as f64;
        (part >= MAIN_CALLER).then_some((&top.caller, top.counts.refused))
    }

    /// Returns whose requests are refused in the whole log. It is counted here, because the callers of one hour can be
    /// others than those of the next hour.
    fn who(&self) -> Who {
        let (most, of) = MOST;
        let has_most = |refused: &u64| refused.saturating_mul(of) >= self.refused_requests.saturating_mul(most);
        let sums = self.callers.top_refused.iter().scan(0_u64, |sum, caller| {
            *sum = sum.saturating_add(caller.counts.refused);
            Some(*sum)
        });
        let with_most = sums.zip(1_u64..).find(|(sum, _)| has_most(sum)).map(|(_, callers)| callers);
        match with_most {
            _ if self.refused_requests == 0 => Who::Nobody,
            Some(1) => Who::One,
            // The list has ten callers at most.
            Some(callers) if 2 * callers <= self.callers.counted => Who::Few,
            _ => Who::Many,
        }
    }

    fn verdict(&self) -> Option<Verdict> {
        let all = self.allowed_requests.saturating_add(self.refused_requests);
        if self.refused_requests == 0 && self.hours.iter().any(|hours| hours.verdict == Verdict::Effective) {
            return Some(Verdict::Effective);
        }
        let refuses_much = self.refused_requests > all / REFUSES_MUCH;
        let mut weights: Vec<(Verdict, u64)> = Vec::new();
        for hours in &self.hours {
            let verdict = self.counted_as(hours.verdict);
            let weight = if refuses_much { hours.refused_requests } else { hours.requests };
            match weights.iter_mut().find(|(known, _)| *known == verdict) {
                Some((_, sum)) => *sum += weight,
                None => weights.push((verdict, weight)),
            }
        }
        // Of equal weights, the first one wins: `hours` begins with the most important verdict.
        weights.into_iter().rev().max_by_key(|(_, weight)| *weight).map(|(verdict, _)| verdict)
    }

    /// A limit that refuses requests in some hours binds, so the hours in which it refuses nothing are those of an
    /// effective limit.
    const fn counted_as(&self, verdict: Verdict) -> Verdict {
        match verdict {
            Verdict::NeverBinding if self.refused_requests > 0 => Verdict::Effective,
            verdict => verdict,
        }
    }

    fn reason(&self, verdict: Verdict) -> String {
        let sum = |is_it: &dyn Fn(&VerdictHours) -> bool| -> u64 {
            self.hours.iter().filter(|hours| is_it(hours)).map(|hours| hours.hours).sum()
        };
        let hours = sum(&|_| true);
        let same = sum(&|hours| self.counted_as(hours.verdict) == verdict);
        let all = self.allowed_requests.saturating_add(self.refused_requests);
        let refusing: u64 = self.hours.iter().map(|hours| hours.refusing_hours).sum();
        let mut reason = match self.refused_requests {
            0 => "The limit refuses no request of the log.".to_owned(),
            refused => {
                let in_hours = || format!(", in {} of {} hours", thousands(refusing), thousands(hours));
                let when = if hours > 1 { in_hours() } else { String::new() };
                format!("The limit refuses {} of its requests{when}.", percent(refused, all))
            }
        };
        if hours > 1 {
            let have = if same == 1 { "has" } else { "have" };
            reason += &format!(" {} of {} hours {have} this verdict.", thousands(same), thousands(hours));
        }
        if let Some((caller, refused)) = self.main_caller() {
            reason += &format!(" {caller:?} has {} of the refusals.", percent(refused, self.refused_requests));
        }
        reason
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{CallerCounts, Counts};

    fn hours(verdict: Verdict, hours: u64, requests: u64, refused_requests: u64) -> VerdictHours {
        let refusing_hours = if refused_requests > 0 { hours } else { 0 };
        let who = if refused_requests > 0 { Who::Many } else { Who::Nobody };
        VerdictHours { verdict, who, hours, requests, refused_requests, refusing_hours }
    }

    fn judged(hours: &[VerdictHours]) -> WholeLog {
        let mut limit = crate::sample::sample().runs[0].limits[1].clone();
        limit.refused_requests = hours.iter().map(|hours| hours.refused_requests).sum();
        limit.allowed_requests = hours.iter().map(|hours| hours.requests).sum::<u64>() - limit.refused_requests;
        limit.hours = hours.to_vec();
        limit.callers.top_refused = vec![CallerCounts {
            caller: "a=1".into(),
            counts: Counts { allowed: 0, refused: limit.refused_requests / 4 },
        }];
        limit.judged().whole_log.expect("there are hours")
    }

    #[test]
    fn one_hour_of_many_is_not_the_verdict_of_the_log() {
        use Verdict::*;
        let one = judged(&[hours(Bursts, 1, 1_000, 300), hours(NeverBinding, 23, 23_000, 0)]);
        assert_eq!(one.verdict, Effective);
        assert_eq!(
            one.reason,
            "The limit refuses 1.2 % of its requests, in 1 of 24 hours. 23 of 24 hours have this verdict."
        );
        // The quiet hours have most requests, but the limit refuses many of all requests in the other hour.
        let much = judged(&[hours(Bursts, 1, 9_000, 6_000), hours(NeverBinding, 23, 11_000, 0)]);
        assert_eq!((much.verdict, much.who), (Bursts, Who::Many));
        // A quiet hour does not hide that a limit refuses, although the other hour says too little.
        let little = judged(&[hours(NeverBinding, 1, 1_800, 0), hours(TooEarly, 1, 18_000, 9_000)]);
        assert_eq!((little.verdict, little.suggestion), (TooEarly, None));
        let quiet = judged(&[hours(Effective, 1, 100, 0), hours(NeverBinding, 5, 9_000, 0)]);
        assert_eq!(
            (quiet.verdict, quiet.who, &*quiet.reason),
            (Effective, Who::Nobody, "The limit refuses no request of the log. 1 of 6 hours has this verdict.")
        );
        assert_eq!(judged(&[hours(NeverBinding, 5, 9_000, 0), hours(TooEarly, 3, 200, 0)]).verdict, NeverBinding);
    }

    #[test]
    fn callers_with_four_fifths_of_the_refusals_have_them() {
        let mut limit = crate::sample::sample().runs[0].limits[0].clone();
        let mut who = |refused: &[u64], callers: u64, all: u64| {
            let caller =
                |refused: &u64| CallerCounts { caller: "a=1".into(), counts: Counts { allowed: 0, refused: *refused } };
            limit.callers.top_refused = refused.iter().map(caller).collect();
            (limit.callers.counted, limit.refused_requests) = (callers, all);
            limit.who()
        };
        assert_eq!(who(&[], 9, 0), Who::Nobody);
        assert_eq!(who(&[80, 20], 2, 100), Who::One);
        assert_eq!(who(&[79, 21], 4, 100), Who::Few);
        assert_eq!(who(&[79, 21], 3, 100), Who::Many, "two are most of three callers");
        assert_eq!(who(&[7; 10], 1_000, 100), Who::Many, "ten have 70 %");
    }

    #[test]
    fn one_caller_with_most_refusals_is_named() {
        let mut limit = crate::sample::sample().runs[0].limits[0].clone();
        assert_eq!(limit.main_caller(), None, "the first caller has a third of the refusals");
        limit.callers.top_refused[0].caller = "a=1".into();
        limit.callers.top_refused[0].counts.refused = 2_980;
        let whole = limit.judged().whole_log.expect("there are hours");
        assert_eq!(whole.who, Who::One);
        assert!(whole.reason.ends_with(" \"a=1\" has 99.3 % of the refusals."), "{}", whole.reason);
    }
}
