//! Estimates the current time of Redis from the last time that Redis reported.
//!
//! A store without scripts sends plain commands that name the keys of counters. If windows begin at multiples of their
//! length since the epoch, the key of a counter depends on the number of the window. So the store needs the time of
//! Redis before it sends the commands.

use std::sync::atomic::{AtomicU64, Ordering};

use spillgate_core::Time;
use tokio::time::Instant;

/// A reported time that is older than this many nanoseconds is no longer used. In one second, two clocks drift apart by
/// less than a millisecond, so a report that is at most one second old is exact enough.
const MAX_AGE_NS: u64 = 1_000_000_000;

#[derive(Debug)]
pub(crate) struct ServerClock {
    start: Instant,
    /// The time of Redis minus the time since `start`, in nanoseconds.
    ahead_ns: AtomicU64,
    /// When Redis last reported its time, in nanoseconds since `start`. 0 means never.
    reported_ns: AtomicU64,
}

impl ServerClock {
    pub(crate) fn new() -> ServerClock {
        ServerClock { start: Instant::now(), ahead_ns: AtomicU64::new(0), reported_ns: AtomicU64::new(0) }
    }

    /// Returns the current time of Redis. `None` if Redis has not reported its time in the last second.
    pub(crate) fn now(&self) -> Option<Time> {
        self.at(self.passed_ns())
    }

    fn at(&self, passed_ns: u64) -> Option<Time> {
        // `ahead_ns` is read after `reported_ns`, so it belongs to the same report or to a later one.
        let reported_ns = self.reported_ns.load(Ordering::Acquire);
        let counts = reported_ns > 0 && passed_ns.saturating_sub(reported_ns) <= MAX_AGE_NS;
        counts.then(|| Time::from_nanos(self.ahead_ns.load(Ordering::Relaxed).saturating_add(passed_ns)))
    }

    /// Stores the time that Redis has just reported.
    pub(crate) fn report(&self, now: Time) {
        let passed_ns = self.passed_ns();
        self.ahead_ns.store(now.as_nanos().saturating_sub(passed_ns), Ordering::Relaxed);
        self.reported_ns.store(passed_ns.max(1), Ordering::Release);
    }

    fn passed_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Makes all reports older by `age`.
    #[cfg(test)]
    pub(crate) fn age_by(&mut self, age: std::time::Duration) {
        self.start -= age;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use spillgate_core::Time;

    use super::{MAX_AGE_NS, ServerClock};

    #[test]
    fn a_reported_time_is_used_for_one_second() {
        const NOW_NS: u64 = 1_790_000_000_000_000_000;
        let clock = ServerClock::new();
        assert_eq!(clock.now(), None);
        clock.report(Time::from_nanos(NOW_NS));
        let reported_ns = clock.reported_ns.load(Ordering::Relaxed);
        assert_eq!(clock.at(reported_ns + MAX_AGE_NS), Some(Time::from_nanos(NOW_NS + MAX_AGE_NS)));
        assert_eq!(clock.at(reported_ns + MAX_AGE_NS + 1), None);
        // A caller that read the local clock just before the report came can use the report too.
        assert!(clock.at(0).is_some());
    }
}
