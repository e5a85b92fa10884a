//! Where time comes from: the only file that reads it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use spillgate_core::Time;

/// A source of time. Tests own theirs ([`ManualClock`]).
pub trait Clock: Send + Sync {
    /// The time now. May step back a little between two calls; decisions stand that.
    fn now(&self) -> Time;
}

/// How often the wall clock is looked at.
const SYNC_EVERY_NS: u64 = 10_000_000;
/// A difference from the wall clock above this is a step and is followed at once.
const STEP_NS: i64 = 1_000_000_000;
/// A smaller one is slewed at this many parts per million.
const SLEW_PPM: u64 = 500;

/// Wall time at the start plus monotonic time, drawn toward wall time by at most 500 ppm.
///
/// A wall clock that is more than a second away was set or slept through: that is logged and
/// followed at once. What a step does to limits: forward by J gives a bucket at most
/// min(B, J/T) tokens for nothing, backward by J refuses too much for at most J.
#[derive(Debug)]
pub struct SystemClock {
    /// The processor's own counter where it can be trusted, else the system's monotonic clock.
    counter: quanta::Clock,
    /// What the counter read at the start.
    origin: u64,
    /// Wall time minus time since `origin`, in nanoseconds.
    offset_ns: AtomicI64,
    /// When the wall clock was last looked at, in nanoseconds since `origin`.
    synced_ns: AtomicU64,
}

impl SystemClock {
    /// A clock that agrees with the wall clock now.
    #[must_use]
    pub fn start() -> SystemClock {
        let counter = quanta::Clock::new();
        let origin = counter.raw();
        SystemClock { counter, origin, offset_ns: AtomicI64::new(wall_ns()), synced_ns: AtomicU64::new(0) }
    }

    /// Draws the offset toward wall time; one caller at a time does it.
    #[cold]
    fn sync(&self, mono_ns: u64, synced_ns: u64) {
        if self.synced_ns.compare_exchange(synced_ns, mono_ns, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        let offset = self.offset_ns.load(Ordering::Relaxed);
        let drift = wall_ns() - (offset + i64::try_from(mono_ns).unwrap_or(i64::MAX));
        let step = correction_ns(drift, mono_ns - synced_ns);
        if step.abs() > STEP_NS {
            tracing::warn!(step_ms = step / 1_000_000, "the wall clock was set; following it");
        }
        // Not added: whoever was held up here would follow a step that another has followed since.
        self.offset_ns.store(offset + step, Ordering::Relaxed);
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock::start()
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Time {
        let mono_ns = self.counter.delta_as_nanos(self.origin, self.counter.raw());
        let synced_ns = self.synced_ns.load(Ordering::Relaxed);
        if mono_ns > synced_ns.saturating_add(SYNC_EVERY_NS) {
            self.sync(mono_ns, synced_ns);
        }
        Time::from_nanos(mono_ns.saturating_add_signed(self.offset_ns.load(Ordering::Relaxed)))
    }
}

/// How far to move toward a wall clock that is `drift` ahead, after `elapsed_ns`.
fn correction_ns(drift: i64, elapsed_ns: u64) -> i64 {
    if drift.abs() > STEP_NS {
        return drift;
    }
    let most = i64::try_from(elapsed_ns / 1_000_000 * SLEW_PPM).unwrap_or(i64::MAX);
    drift.clamp(-most, most)
}

#[expect(clippy::disallowed_methods, reason = "this is the clock")]
fn wall_ns() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_epoch.as_nanos()).unwrap_or(i64::MAX)
}

/// A clock that stands still until told; clones share the time.
///
/// ```
/// use spillgate::{Clock, ManualClock, Time};
/// use std::time::Duration;
/// let clock = ManualClock::at(Time::EPOCH);
/// clock.advance(Duration::from_millis(5));
/// assert_eq!(clock.now().as_nanos(), 5_000_000);
/// ```
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// A clock that shows `time`.
    #[must_use]
    pub fn at(time: Time) -> ManualClock {
        ManualClock(Arc::new(AtomicU64::new(time.as_nanos())))
    }

    /// Moves the time, also backward.
    pub fn set(&self, time: Time) {
        self.0.store(time.as_nanos(), Ordering::SeqCst);
    }

    /// Moves the time later.
    pub fn advance(&self, duration: Duration) {
        self.set(self.now().after(duration));
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Time {
        Time::from_nanos(self.0.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_drift_is_slewed_and_a_step_is_followed() {
        assert_eq!(correction_ns(3_000_000, 10_000_000), 5_000, "500 ppm of 10 ms");
        assert_eq!(correction_ns(-3_000_000, 10_000_000), -5_000);
        assert_eq!(correction_ns(2_000, 10_000_000), 2_000, "never past the wall clock");
        assert_eq!(correction_ns(STEP_NS + 1, 10_000_000), STEP_NS + 1);
        assert_eq!(correction_ns(-STEP_NS - 1, 10_000_000), -STEP_NS - 1);
    }

    #[test]
    fn the_system_clock_agrees_with_the_wall_clock_and_does_not_stand_still() {
        let clock = SystemClock::start();
        let (first, wall) = (clock.now().as_nanos(), wall_ns().unsigned_abs());
        assert!(first.abs_diff(wall) < 1_000_000_000);
        while wall_ns().unsigned_abs() < wall + 25_000_000 {
            std::hint::spin_loop();
        }
        assert!(clock.now().as_nanos() > first);
        assert!(clock.synced_ns.load(Ordering::Relaxed) > 0, "the wall clock was looked at again");
    }
}
