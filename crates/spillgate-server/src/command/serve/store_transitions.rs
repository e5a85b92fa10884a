//! The changes of the store between up and down, and which of them the log reports.
//!
//! A store that fails every second must not fill the log.

use std::time::Duration;

use tokio::time::Instant;

/// The shortest time between two log lines of the same kind. The kinds are: the store is up, the store is down, and
/// each kind of failure.
pub(super) const LOG_EVERY: Duration = Duration::from_secs(10);

/// The state of the store, computed from the probes.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Whether the store is up, and the time when this state began. If the store is down, this is the time of the first
    /// failed probe. `None` before the first probe.
    now: Option<(bool, Instant)>,
    /// How long the previous state lasted.
    before: Option<Duration>,
    failed_probes: usize,
    /// If the last probes failed, the time of the first of these probes. `None` if the last probe succeeded.
    fails_since: Option<Instant>,
    /// How many times the store has come back.
    pub(super) recoveries: u64,
    /// The number of changes since the last log line.
    unlogged: u64,
    /// What the last log line said: whether the store answers.
    logged: Option<bool>,
    /// The time of the last log line that said "down", and of the last log line that said "up".
    logged_at: [Option<Instant>; 2],
}

/// A change that the log reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) answers: bool,
    /// How long the previous state lasted. `None` if no earlier state is known.
    pub(super) after: Option<Duration>,
    /// The number of changes since the last log line.
    pub(super) changes: u64,
}

impl Changes {
    /// Records the result of a probe, and returns whether the store is up. A store that was up counts as down only
    /// after `failures_until_down` failed probes in a row.
    pub(super) fn record(&mut self, answered: bool, failures_until_down: usize, at: Instant) -> bool {
        self.failed_probes = if answered { 0 } else { self.failed_probes.saturating_add(1) };
        self.fails_since = if answered { None } else { self.fails_since.or(Some(at)) };
        let was = self.now;
        let excused = self.failed_probes < failures_until_down && was.is_some_and(|(answers, _)| answers);
        let answers = answered || excused;
        if was.is_none_or(|(was, _)| was != answers) {
            let at = self.fails_since.unwrap_or(at);
            self.before = was.map(|(_, since)| at.duration_since(since));
            self.recoveries += u64::from(answers && was.is_some());
            self.unlogged += 1;
            self.now = Some((answers, at));
        }
        answers
    }

    /// Returns the change that the next log line reports, if a line is due.
    pub(super) fn next_line(&mut self, at: Instant) -> Option<Change> {
        let (answers, _) = self.now?;
        let logged_at = &mut self.logged_at[usize::from(answers)];
        let is_due = logged_at.is_none_or(|logged| at.duration_since(logged) >= LOG_EVERY);
        if self.logged == Some(answers) || !is_due {
            return None;
        }
        // The first known state is not a change. Therefore its log line does not delay the next line of the same kind.
        *logged_at = self.before.map(|_| at);
        self.logged = Some(answers);
        Some(Change { answers, after: self.before, changes: std::mem::take(&mut self.unlogged) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(250);

    #[test]
    fn one_lost_probe_is_not_a_change_and_two_are() {
        let (mut changes, start) = (Changes::default(), Instant::now());
        let probes = [true, false, true, false, true, false, false, false, true];
        let seen: Vec<_> =
            (0..).zip(probes).map(|(step, answered)| changes.record(answered, 2, start + STEP * step)).collect();
        assert_eq!(seen, [true, true, true, true, true, true, false, false, true]);
        assert_eq!(changes.recoveries, 1);
        // A store that never answered is down after one failed probe.
        assert!(!Changes::default().record(false, 2, start));
    }

    #[test]
    fn a_store_that_often_changes_has_two_lines_in_ten_seconds_with_the_number_of_changes() {
        let (mut changes, start) = (Changes::default(), Instant::now());
        let mut lines = Vec::new();
        // For 30 s, one probe succeeds and the next two fail.
        for step in 0..=120 {
            let at = start + STEP * step;
            changes.record(step % 3 == 0, 2, at);
            lines.extend(changes.next_line(at).map(|change| (step, change.answers, change.changes)));
        }
        let later = [(44, false, 27), (45, true, 1), (86, false, 27), (87, true, 1)];
        let expected = [&[(0, true, 1), (2, false, 1), (3, true, 1)], &later[..]].concat();
        assert_eq!(lines, expected);
        assert_eq!(changes.recoveries, 40);
    }

    #[test]
    fn a_change_that_could_not_be_logged_at_once_is_logged_later() {
        let (mut changes, start) = (Changes::default(), Instant::now());
        let mut step = |answered: bool, at_ms: u64| {
            let at = start + Duration::from_millis(at_ms);
            changes.record(answered, 2, at);
            changes
                .next_line(at)
                .map(|change| (change.answers, change.after.map(|after| after.as_millis()), change.changes))
        };
        assert_eq!(step(true, 0), Some((true, None, 1)));
        assert_eq!([step(false, 100), step(false, 200)], [None, Some((false, Some(100), 1))]);
        assert_eq!(step(true, 300), Some((true, Some(200), 1)));
        assert_eq!([step(false, 400), step(false, 500), step(false, 10_199)], [None, None, None]);
        assert_eq!(step(false, 10_200), Some((false, Some(100), 1)));
    }
}
