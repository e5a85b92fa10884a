//! The callers of each limit: their names, and how many of their requests the limit allowed and refused in the whole
//! log.
//!
//! A caller is named by its descriptor. If callers are hidden, a hash takes the place of the name.

use std::collections::HashMap;

use spillgate::KeyHasher;
use spillgate::insight::{CallerName, Report};

use super::report::{CallerCounts, Counts, LimitCallers};

/// The maximum number of callers that are counted one by one, of all limits together. They take about 16 MB.
pub const CALLERS: usize = 100_000;
/// The length of each list. Nobody would read a longer one.
const SHOWN: usize = 10;

/// How a report names callers: by their descriptors, or by hashes.
#[derive(Debug)]
pub struct Names {
    /// The secret of the hashes, if callers are hidden. It is random and never shown, so a reader of the report cannot
    /// check whether a hash is that of a name.
    hasher: Option<KeyHasher>,
}

impl Names {
    /// Names callers by their descriptors.
    #[must_use]
    pub const fn plain() -> Names {
        Names { hasher: None }
    }

    /// Names callers by hashes. A name has the same hash everywhere in one report, and a different hash in every other
    /// report.
    #[must_use]
    pub fn hashed() -> Names {
        Names { hasher: Some(KeyHasher::random()) }
    }

    /// Returns whether a report shows hashes instead of the names of callers.
    #[must_use]
    pub const fn are_hidden(&self) -> bool {
        self.hasher.is_some()
    }

    /// Returns how a report shows a caller with this name.
    pub(super) fn shown(&self, name: &str) -> String {
        match &self.hasher {
            None => name.to_owned(),
            Some(hasher) => format!("caller {:012x}", hasher.start().part(name.as_bytes()).finish() as u64 >> 16),
        }
    }

    /// Replaces the names in a report of insight by hashes, if callers are hidden.
    pub(super) fn hide(&self, report: &mut Report) {
        if self.are_hidden() {
            report.rename_callers(|name| self.shown(name));
        }
    }
}

#[derive(Debug)]
pub(super) struct CallersOfLimits {
    /// By the index of the limit and the hash of the caller.
    counted: HashMap<(usize, u128), (CallerName, Counts)>,
    most: usize,
}

impl CallersOfLimits {
    /// Counts at most `most` callers.
    pub(super) fn new(most: usize) -> CallersOfLimits {
        CallersOfLimits { counted: HashMap::new(), most }
    }

    /// Counts a request of a caller. Returns false if the caller is not counted one by one, because there are too many
    /// callers.
    pub(super) fn add(&mut self, limit: usize, key: u128, refused: bool, name: impl FnOnce() -> CallerName) -> bool {
        if let Some((_, counts)) = self.counted.get_mut(&(limit, key)) {
            counts.add(refused);
            return true;
        }
        let has_room = self.counted.len() < self.most;
        if has_room {
            let mut counts = Counts::default();
            counts.add(refused);
            self.counted.insert((limit, key), (name(), counts));
        }
        has_room
    }

    /// Returns the callers of each limit. `limits` is the number of limits.
    pub(super) fn finish(self, limits: usize, names: &Names) -> Vec<LimitCallers> {
        let mut of_limits = vec![Vec::new(); limits];
        for ((limit, _), (name, counts)) in self.counted {
            of_limits[limit].push((name.to_string(), counts));
        }
        let of_limit = |callers: Vec<(String, Counts)>| LimitCallers {
            counted: callers.len() as u64,
            top_refused: top(&callers, |counts| counts.refused, names),
            top_allowed: top(&callers, |counts| counts.allowed, names),
            further: Counts::default(),
        };
        of_limits.into_iter().map(of_limit).collect()
    }
}

/// Returns the callers with the highest counts. Callers with equal counts are in the order of their names.
fn top(callers: &[(String, Counts)], count: fn(&Counts) -> u64, names: &Names) -> Vec<CallerCounts> {
    let mut callers: Vec<_> = callers.iter().filter(|(_, counts)| count(counts) > 0).collect();
    let order = |one: &&(String, Counts), other: &&(String, Counts)| {
        count(&other.1).cmp(&count(&one.1)).then_with(|| one.0.cmp(&other.0)).then(one.1.allowed.cmp(&other.1.allowed))
    };
    if callers.len() > SHOWN {
        callers.select_nth_unstable_by(SHOWN, order);
        callers.truncate(SHOWN);
    }
    callers.sort_unstable_by(order);
    let shown = |(name, counts): &&(String, Counts)| CallerCounts { caller: names.shown(name), counts: *counts };
    callers.iter().map(shown).collect()
}

impl Counts {
    pub(super) fn add(&mut self, refused: bool) {
        self.refused += u64::from(refused);
        self.allowed += u64::from(!refused);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_equal_within_a_report_only() {
        let (one, other) = (Names::hashed(), Names::hashed());
        assert_eq!(one.shown("a=1"), one.shown("a=1"));
        assert_ne!(one.shown("a=1"), one.shown("a=2"));
        assert_ne!(one.shown("a=1"), other.shown("a=1"));
        assert_eq!(Names::plain().shown("a=1"), "a=1");
    }

    #[test]
    fn equal_callers_are_in_the_order_of_their_names() {
        let mut callers = CallersOfLimits::new(100);
        for key in (0..40).rev() {
            for request in 0..3 + u64::from(key == 5) {
                let name = || CallerName::of([&*format!("a={key:02}")]);
                assert!(callers.add(0, key, request > 0, name));
            }
        }
        let [of_limit] = &callers.finish(1, &Names::plain())[..] else { panic!("one limit") };
        let shown: Vec<_> = of_limit.top_refused.iter().map(|it| (&*it.caller, it.counts.refused)).collect();
        let expected = ["a=05", "a=00", "a=01", "a=02", "a=03", "a=04", "a=06", "a=07", "a=08", "a=09"];
        assert_eq!(shown, expected.map(|name| (name, if name == "a=05" { 3 } else { 2 })));
        assert_eq!((of_limit.counted, of_limit.top_allowed[0].counts.allowed), (40, 1));
    }
}
