//! The clocks that decisions use.
//!
//! Only the files of this folder read the time of the system for a decision. A test that passes another clock can
//! therefore choose the time of every decision.

mod manual;
mod system;
mod ticking;
#[cfg(feature = "tokio")]
mod tokio;

use spillgate_core::Time;

pub use self::manual::ManualClock;
pub use self::system::SystemClock;
pub use self::ticking::TickingClock;
#[cfg(feature = "tokio")]
pub use self::tokio::TokioClock;

/// A source of time.
///
/// | clock | for |
/// |---|---|
/// | [`SystemClock`] | most programs |
/// | [`TickingClock`] | hot loops: a reading is only a load from memory, and is usually late by up to two ticks |
/// | [`ManualClock`] | tests |
///
/// With the feature `tokio`, there is also `TokioClock`, for tests that pause tokio's time.
///
/// A program that replays a log can decide at the times of the log:
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use spillgate::{Clock, Limiter, MemoryOptions, MemoryStore, Quota, Time};
///
/// struct LogTime(AtomicU64);
/// impl Clock for LogTime {
///     fn now(&self) -> Time {
///         Time::from_nanos(self.0.load(Ordering::Relaxed))
///     }
/// }
/// let limiter = Limiter::with_clock(MemoryStore::new(MemoryOptions::default()), LogTime(AtomicU64::new(0)));
/// let quota = Quota::per_second(1).build()?;
/// let allowed = [0, 500_000_000, 1_000_000_000].map(|line_ns| {
///     limiter.clock().0.store(line_ns, Ordering::Relaxed);
///     limiter.take_now(&quota, ("replay", "ann"), 1).allowed
/// });
/// assert_eq!(allowed, [true, false, true]);
/// # Ok::<(), spillgate::QuotaError>(())
/// ```
pub trait Clock: Send + Sync {
    /// Returns the time now. The result can be a little earlier than the result of the call before. Decisions tolerate
    /// such a small step back.
    fn now(&self) -> Time;
}
