//! Metrics of reloads: what caused them, which units failed, and how the server sees that files change.

use super::registry::{Counter, Gauge, Registry};
use crate::reloads::{Cause, UnitName};

#[derive(Debug)]
pub struct ReloadMetrics {
    by_cause: [Counter; Cause::ALL.len()],
    /// Reloads without rules. No page shows this number: it tells an open page that the history has one more reload.
    pub(crate) without_rules: Counter,
    failures: [Counter; UnitName::ALL.len()],
    /// How many units failed the last time they were read.
    pub failed_units: Gauge,
    /// 1 if the server reads all files again and again, and 0 if it reads them when a folder has changed. The page does
    /// not show this metric if the setting `watch` is off.
    pub polls: Gauge,
}

impl ReloadMetrics {
    pub(super) fn new(registry: &mut Registry) -> ReloadMetrics {
        let (causes, units) = (Cause::ALL.map(Cause::as_str), UnitName::ALL.map(UnitName::as_str));
        ReloadMetrics {
            by_cause: registry.counters("reloads", "Reloads, with those that failed, by what caused them", "cause", causes),
            without_rules: Counter::default(),
            failures: registry.counters(
                "reload_failures",
                "How often a reload could not take a unit, which is a part of what files say. What was in force before stays",
                "unit",
                units,
            ),
            failed_units: registry.gauge(
                "reload_failed_units",
                "Units that could not be taken when they were last read. A restart would fail, or begin without them",
                Gauge::default(),
            ),
            polls: registry.gauge(
                "watch_polls",
                "1 if the server reads its files each second, because watch is poll or a folder cannot be watched, and 0 if \
                 folders are watched",
                Gauge::unknown(),
            ),
        }
    }

    /// Counts a reload. `has_rules` says whether the rules were one of its units.
    pub fn count(&self, cause: Cause, has_rules: bool) {
        self.by_cause[cause as usize].inc();
        if !has_rules {
            self.without_rules.inc();
        }
    }

    /// Counts a unit that could not be taken.
    pub fn count_failure(&self, unit: UnitName) {
        self.failures[unit as usize].inc();
    }
}
