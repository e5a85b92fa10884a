//! The clock of a running program.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use spillgate_core::Time;

use super::Clock;

/// The minimum time between two readings of the wall clock.
const SYNC_EVERY_NS: u64 = 10_000_000;
/// If [`SystemClock`] differs from the wall clock by more than this, it takes the time of the wall clock at once. Such
/// a change of the time is called a step.
const STEP_NS: i64 = 1_000_000_000;
/// [`SystemClock`] corrects a difference up to [`STEP_NS`] slowly, by at most this many parts per million of the
/// elapsed time.
const SLEW_PPM: u64 = 500;

/// A clock that advances with monotonic time, and is slowly corrected toward wall time.
///
/// The correction is at most 500 ppm (0.5 ms in each second). A difference of more than a second means that the wall
/// clock was set, or that the machine was suspended. This clock then takes the time of the wall clock at once. Such a
/// change is called a step, and [`on_step`](SystemClock::on_step) reports it.
///
/// A step changes what limits admit. Take a token bucket with a capacity of `B` tokens, which gets a new token in each
/// time `T`. After a step forward by the time `J`, the bucket admits at most `min(B, J/T)` tokens too many. After a
/// step backward by `J`, a key can be refused for up to `J` too long.
///
/// ```
/// use spillgate::{Clock, Limiter, MemoryOptions, MemoryStore, SystemClock};
///
/// let clock = SystemClock::start();
/// let started = clock.now();
/// let limiter = Limiter::with_clock(MemoryStore::new(MemoryOptions::default()), clock);
/// # let _ = (started, limiter);
/// ```
#[derive(Debug)]
pub struct SystemClock {
    /// The time counter of the processor if this counter is reliable, or else the monotonic clock of the system.
    counter: quanta::Clock,
    /// The value of the counter at the start.
    origin: u64,
    /// Wall time minus the time since `origin`, in nanoseconds.
    offset_ns: AtomicI64,
    /// The time of the last reading of the wall clock, in nanoseconds since `origin`.
    synced_ns: AtomicU64,
    /// Called with each step, in nanoseconds.
    on_step: fn(i64),
}

impl SystemClock {
    /// Starts a clock that agrees with the wall clock now.
    #[must_use]
    pub fn start() -> SystemClock {
        let counter = quanta::Clock::new();
        let origin = counter.raw();
        SystemClock {
            counter,
            origin,
            offset_ns: AtomicI64::new(wall_ns()),
            synced_ns: AtomicU64::new(0),
            on_step: |_| {},
        }
    }

    /// Calls `report` after each step, that is, each time that this clock takes the time of the wall clock at once.
    ///
    /// The argument is the step in nanoseconds. A negative step means that the wall clock was set back.
    ///
    /// ```
    /// use spillgate::SystemClock;
    /// let clock = SystemClock::start().on_step(|step_ns| eprintln!("the wall clock moved by {} ms", step_ns / 1_000_000));
    /// # drop(clock);
    /// ```
    #[must_use]
    pub const fn on_step(mut self, report: fn(i64)) -> SystemClock {
        self.on_step = report;
        self
    }

    /// Corrects the offset toward wall time. If several threads call this function at the same time, only one of them
    /// corrects the offset.
    #[cold]
    fn sync(&self, mono_ns: u64, synced_ns: u64) {
        if self.synced_ns.compare_exchange(synced_ns, mono_ns, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        let offset = self.offset_ns.load(Ordering::Relaxed);
        let drift = wall_ns() - (offset + i64::try_from(mono_ns).unwrap_or(i64::MAX));
        let step = correction_ns(drift, mono_ns - synced_ns);
        // The offset is replaced by `store`. If `fetch_add` added `step` to the offset instead, a thread that was
        // delayed here could apply a step that another thread has applied already.
        self.offset_ns.store(offset + step, Ordering::Relaxed);
        // The program's function is called last, so that the step is made even if this function panics.
        if step.abs() > STEP_NS {
            (self.on_step)(step);
        }
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

/// Returns the correction in nanoseconds, if the wall clock is `drift` nanoseconds ahead. `elapsed_ns` is the time
/// since the last correction.
fn correction_ns(drift: i64, elapsed_ns: u64) -> i64 {
    if drift.abs() > STEP_NS {
        return drift;
    }
    let most = i64::try_from(elapsed_ns / 1_000_000 * SLEW_PPM).unwrap_or(i64::MAX);
    drift.clamp(-most, most)
}

#[expect(clippy::disallowed_methods, reason = "only this function reads the wall clock")]
fn wall_ns() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_epoch.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_drift_is_slewed_and_a_step_is_followed() {
        assert_eq!(correction_ns(3_000_000, 10_000_000), 5_000, "500 ppm of 10 ms are 5,000 ns");
        assert_eq!(correction_ns(-3_000_000, 10_000_000), -5_000);
        assert_eq!(correction_ns(2_000, 10_000_000), 2_000, "the correction never goes beyond the wall clock");
        assert_eq!(correction_ns(STEP_NS + 1, 10_000_000), STEP_NS + 1);
        assert_eq!(correction_ns(-STEP_NS - 1, 10_000_000), -STEP_NS - 1);
    }

    #[test]
    fn the_system_clock_agrees_with_the_wall_clock_and_advances() {
        let clock = SystemClock::start();
        let (before, first, wall) = (wall_ns().unsigned_abs(), clock.now().as_nanos(), wall_ns().unsigned_abs());
        let second = 1_000_000_000;
        assert!((before - second..wall + second).contains(&first), "{first} between {before} and {wall}");
        while wall_ns().unsigned_abs() < wall + 25_000_000 {
            std::hint::spin_loop();
        }
        assert!(clock.now().as_nanos() > first);
        assert!(clock.synced_ns.load(Ordering::Relaxed) > 0, "the wall clock was read again");
    }
}
