//! The values of one entry that take the most units of a limit which many callers share.
//!
//! A limit whose counter all requests share has one caller, so its insight cannot say who fills it. Requests often have
//! another entry that says it, for example the user. The units of each value of this entry are counted here.

use parking_lot::Mutex;
use spillgate_core::Time;

use super::name::CallerName;
use super::reading::{TopCallers, top_since_ns};
use super::top::Top;
use super::{MAX_PARTS, STEP_NS, mixed, tally};

/// The values with the most units, in memory of fixed size. Threads can share it.
///
/// ```
/// use spillgate::insight::{CallerName, Fillers};
/// use spillgate::Time;
///
/// let now = Time::from_nanos(1_800_000_000_000_000_000);
/// let fillers = Fillers::new(true, 0, now);
/// fillers.count(now, 7, (3, false), || CallerName::of(["user_id=7"]));
/// let [allowed, refused] = fillers.read(now);
/// assert_eq!((allowed.callers[0].name.as_deref(), allowed.units, refused.units), (Some("user_id=7"), 3, 0));
/// ```
#[derive(Debug)]
pub struct Fillers {
    seed: u64,
    since_ns: u64,
    parts: Box<[Mutex<Part>]>,
}

/// The counts of one thread or a few threads.
#[derive(Debug)]
struct Part {
    allowed: Top,
    refused: Top,
    /// The time of the newest units.
    newest_ns: u64,
}

impl Fillers {
    /// Makes empty lists. `names` says whether they keep the names of values, and `seed` is the number that is mixed with
    /// their keys, as in [`Options`](super::Options).
    #[must_use]
    pub fn new(names: bool, seed: u64, now: Time) -> Fillers {
        let part = || Mutex::new(Part { allowed: Top::new(names), refused: Top::new(names), newest_ns: 0 });
        let parts = std::iter::repeat_with(part).take(tally::threads().min(MAX_PARTS)).collect();
        Fillers { seed, since_ns: now.as_nanos(), parts }
    }

    /// Counts units of the value with this key. Allocates no memory. If the clock was set back, the counting begins
    /// again.
    pub fn count(&self, now: Time, key: u128, (units, refused): (u64, bool), name: impl FnOnce() -> CallerName) {
        if units == 0 {
            return;
        }
        let now_ns = now.as_nanos();
        let mut part = self.parts[tally::thread_number() % self.parts.len()].lock();
        let Part { allowed, refused: refusals, newest_ns } = &mut *part;
        if *newest_ns > now_ns.saturating_add(STEP_NS) {
            allowed.clear();
            refusals.clear();
            *newest_ns = 0;
        }
        *newest_ns = now_ns.max(*newest_ns);
        let top = if refused { refusals } else { allowed };
        top.add(now_ns, mixed(key, self.seed), units, name);
    }

    /// Sets whether names are kept: see [`LimitInsight::keep_names`](super::LimitInsight::keep_names).
    pub fn keep_names(&self, names: bool) {
        for part in &self.parts {
            let mut part = part.lock();
            part.allowed.keep_names(names);
            part.refused.keep_names(names);
        }
    }

    /// Returns the values with the most allowed units, and those with the most refused ones.
    #[must_use]
    pub fn read(&self, now: Time) -> [TopCallers; 2] {
        let newest_ns = self.parts.iter().map(|part| part.lock().newest_ns).max().unwrap_or(0);
        let now_ns = now.as_nanos().max(newest_ns);
        let since_ns = top_since_ns(self.since_ns, now_ns);
        let [mut allowed, mut refused] = [(); 2].map(|()| TopCallers { since_ns, ..TopCallers::default() });
        for part in &self.parts {
            let mut part = part.lock();
            part.allowed.read(now_ns, &mut allowed);
            part.refused.read(now_ns, &mut refused);
        }
        [allowed, refused]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_NS: u64 = 3_600_000_000_000;

    #[test]
    fn what_was_counted_before_the_clock_was_set_back_is_forgotten() {
        let at = |hours| Time::from_nanos(hours * HOUR_NS);
        let fillers = Fillers::new(false, 1, at(100));
        fillers.count(at(100), 7, (5, false), || CallerName::of([]));
        fillers.count(at(100), 7, (0, true), || CallerName::of([]));
        fillers.count(at(50), 8, (2, true), || CallerName::of([]));
        let [allowed, refused] = fillers.read(at(50));
        assert_eq!((allowed.callers.len(), refused.callers.len(), refused.units), (0, 1, 2));
        assert_eq!(fillers.read(at(52))[1].callers, [], "two half hours later, the list is empty");
    }
}
