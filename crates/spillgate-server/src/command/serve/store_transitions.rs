//! When the store went down or came back, and which of these changes the log reports.
//!
//! A store that fails every second must not fill the log.

use std::time::Duration;

use tokio::time::Instant;

/// A line that it answers is written at most so often, one that it does not, and one about a class of failures.
pub(super) const TELL_EVERY: Duration = Duration::from_secs(10);

/// The history of the probes.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Whether the store answers, and since when. For a store that is down: since the first failed probe. `None` before the
    /// first probe.
    now: Option<(bool, Instant)>,
    /// How long the state before lasted.
    before: Option<Duration>,
    failed_probes: usize,
    /// The time of the first of these failed probes.
    fails_since: Option<Instant>,
    /// How often the store has come back.
    pub(super) recoveries: u64,
    /// Changes that no line has told.
    untold: u64,
    told: Option<bool>,
    /// When lines last told that it does not answer, and that it does.
    told_at: [Option<Instant>; 2],
}

/// A change to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) answers: bool,
    /// How long it was the other way; `None` for the first thing that is known.
    pub(super) after: Option<Duration>,
    /// How often it has changed since the last line.
    pub(super) changes: u64,
}

impl Changes {
    /// Takes note of a probe, and says whether the store is one that answers: if it did, so it is until as many probes as
    /// `patience` have failed in a row.
    pub(super) fn seen(&mut self, answered: bool, patience: usize, at: Instant) -> bool {
        self.failed_probes = if answered { 0 } else { self.failed_probes.saturating_add(1) };
        self.fails_since = if answered { None } else { self.fails_since.or(Some(at)) };
        let was = self.now;
        let excused = self.failed_probes < patience && was.is_some_and(|(answers, _)| answers);
        let answers = answered || excused;
        if was.is_none_or(|(was, _)| was != answers) {
            let at = self.fails_since.unwrap_or(at);
            self.before = was.map(|(_, since)| at.duration_since(since));
            self.recoveries += u64::from(answers && was.is_some());
            self.untold += 1;
            self.now = Some((answers, at));
        }
        answers
    }

    /// What a line has to tell now.
    pub(super) fn news(&mut self, at: Instant) -> Option<Change> {
        let (answers, _) = self.now?;
        let told_at = &mut self.told_at[usize::from(answers)];
        let is_due = told_at.is_none_or(|told| at.duration_since(told) >= TELL_EVERY);
        if self.told == Some(answers) || !is_due {
            return None;
        }
        // The first thing that is known is no change, and holds up no line about one.
        *told_at = self.before.map(|_| at);
        self.told = Some(answers);
        Some(Change { answers, after: self.before, changes: std::mem::take(&mut self.untold) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(250);

    #[test]
    fn one_lost_probe_is_no_change_and_two_are() {
        let (mut changes, start) = (Changes::default(), Instant::now());
        let probes = [true, false, true, false, true, false, false, false, true];
        let seen: Vec<_> =
            (0..).zip(probes).map(|(step, answered)| changes.seen(answered, 2, start + STEP * step)).collect();
        assert_eq!(seen, [true, true, true, true, true, true, false, false, true]);
        assert_eq!(changes.recoveries, 1);
        // A store that never answered is not excused.
        assert!(!Changes::default().seen(false, 2, start));
    }

    #[test]
    fn a_store_that_comes_and_goes_has_two_lines_in_ten_seconds_that_say_how_often() {
        let (mut changes, start) = (Changes::default(), Instant::now());
        let mut lines = Vec::new();
        // Two probes that fail and one that does not, for 30 s.
        for step in 0..=120 {
            let at = start + STEP * step;
            changes.seen(step % 3 == 0, 2, at);
            lines.extend(changes.news(at).map(|change| (step, change.answers, change.changes)));
        }
        let later = [(44, false, 27), (45, true, 1), (86, false, 27), (87, true, 1)];
        let expected = [&[(0, true, 1), (2, false, 1), (3, true, 1)], &later[..]].concat();
        assert_eq!(lines, expected);
        assert_eq!(changes.recoveries, 40);
    }

    #[test]
    fn what_could_not_be_told_at_once_is_told_later() {
        let (mut changes, start) = (Changes::default(), Instant::now());
        let mut step = |answered: bool, at_ms: u64| {
            let at = start + Duration::from_millis(at_ms);
            changes.seen(answered, 2, at);
            changes.news(at).map(|change| (change.answers, change.after.map(|after| after.as_millis()), change.changes))
        };
        assert_eq!(step(true, 0), Some((true, None, 1)));
        assert_eq!([step(false, 100), step(false, 200)], [None, Some((false, Some(100), 1))]);
        assert_eq!(step(true, 300), Some((true, Some(200), 1)));
        assert_eq!([step(false, 400), step(false, 500), step(false, 10_199)], [None, None, None]);
        assert_eq!(step(false, 10_200), Some((false, Some(100), 1)));
    }
}
