//! A histogram of how long refused callers have to wait, in memory of fixed size.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use spillgate_core::Wait;

/// All waits below 2^20 ns, about a millisecond, count as one length. A length is a range of waits that share one
/// count.
const SHORTEST_BITS: u32 = 20;
/// Between a length and its double, this many lengths are distinguished.
const STEPS: u32 = 4;
/// The number of lengths. The longest of them is above a year.
const LENGTHS: usize = 36 * STEPS as usize;

/// A histogram of how long refused callers have to wait. Waits above a millisecond are rounded up by at most a quarter,
/// and the longest wait is exact.
///
/// ```
/// use spillgate::Wait;
/// use spillgate::insight::Waits;
/// let mut waits = Waits::default();
/// (1..=100).for_each(|secs| waits.add(Wait::After(secs * 1_000_000_000)));
/// let median_secs = waits.quantile_ns(0.5).unwrap() as f64 / 1e9;
/// assert!((50.0..63.0).contains(&median_secs));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Waits {
    /// It is the first field, so that it is in memory beside the other fields of a slot that change with it.
    longest_ns: u64,
    counts: [u32; LENGTHS],
}

impl Default for Waits {
    fn default() -> Waits {
        Waits { longest_ns: 0, counts: [0; LENGTHS] }
    }
}

impl Waits {
    /// Counts the wait of a refused caller. A wait that is not known is not counted.
    #[inline]
    pub fn add(&mut self, wait: Wait) {
        if let Some(ns) = wait.nanos() {
            self.longest_ns = self.longest_ns.max(ns);
            let count = &mut self.counts[index(ns)];
            *count = count.saturating_add(1);
        }
    }

    pub(super) fn merge(&mut self, other: &Waits) {
        self.longest_ns = self.longest_ns.max(other.longest_ns);
        for (count, other) in self.counts.iter_mut().zip(other.counts) {
            *count = count.saturating_add(other);
        }
    }

    /// Returns a wait in nanoseconds: at least `share` of the counted waits are not longer. It is rounded up, but never
    /// above the longest wait. Returns `None` if no wait was counted.
    #[must_use]
    pub fn quantile_ns(&self, share: f64) -> Option<u64> {
        let all: u64 = self.counts.iter().map(|count| u64::from(*count)).sum();
        let wanted = (all as f64 * share).ceil().max(1.0) as u64;
        let mut sum = 0;
        self.counts.iter().zip(0..).find_map(|(count, index)| {
            sum += u64::from(*count);
            (sum >= wanted).then(|| longest_ns(index).min(self.longest_ns))
        })
    }
}

/// Returns the index of the length that a wait of `ns` nanoseconds belongs to.
fn index(ns: u64) -> usize {
    let Some(doublings) = (ns >> SHORTEST_BITS).checked_ilog2() else { return 0 };
    let step = (ns >> (SHORTEST_BITS + doublings - 2)) as u32 % STEPS;
    ((doublings * STEPS + step) as usize + 1).min(LENGTHS - 1)
}

/// Returns the longest wait of the length with the index `index`, in nanoseconds.
fn longest_ns(index: u32) -> u64 {
    u64::from(STEPS + index % STEPS) << (SHORTEST_BITS + index / STEPS - 2)
}

/// Writes the longest wait, and the counts up to the last one that is not 0.
impl Serialize for Waits {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let used = self.counts.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
        (self.longest_ns, &self.counts[..used]).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Waits {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Waits, D::Error> {
        let (longest_ns, counts) = <(u64, Vec<u32>)>::deserialize(deserializer)?;
        let mut waits = Waits { longest_ns, ..Waits::default() };
        match waits.counts.get_mut(..counts.len()) {
            Some(used) => used.copy_from_slice(&counts),
            None => return Err(D::Error::custom(format!("there are at most {LENGTHS} lengths of waits"))),
        }
        Ok(waits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_at_most_a_quarter_below_its_length() {
        for bits in 20..54 {
            for ns in [1 << bits, (1 << bits) + 1, (1_u64 << bits) * 9 / 8, (1 << bits) * 15 / 8] {
                let longest = longest_ns(index(ns) as u32);
                assert!(ns <= longest && longest <= ns + ns / 4 + 1, "{ns} ns are shown as {longest}");
            }
        }
        assert_eq!((index(0), index((1 << 20) - 1)), (0, 0));
        assert_eq!(index(u64::MAX), LENGTHS - 1);
    }

    /// Callers of a fixed window of a minute never wait longer than a minute, so no figure is above a minute.
    #[test]
    fn no_figure_is_above_the_longest_wait() {
        let secs = |secs: u64| Wait::After(secs * 1_000_000_000);
        let (mut minute, mut hour) = (Waits::default(), Waits::default());
        (0..10).for_each(|_| minute.add(secs(60)));
        assert_eq!([0.5, 0.9, 0.99].map(|share| minute.quantile_ns(share)), [Some(60_000_000_000); 3]);
        hour.add(secs(3600));
        let mut both = minute.clone();
        both.merge(&hour);
        hour.merge(&minute);
        assert_eq!((hour.quantile_ns(1.0), &both), (secs(3600).nanos(), &hour));
        let text = serde_json::to_string(&hour).expect("it is JSON");
        assert_eq!(serde_json::from_str::<Waits>(&text).expect("it is the same"), hour);
    }
}
