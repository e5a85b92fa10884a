//! What insight needs to know of a limit: its rate, its burst, and how it counts.
//!
//! Insight compares what callers ask for with these numbers. It never decides a request.

use serde::{Deserialize, Serialize};
use spillgate_core::{Algorithm, Anchor, Quota};

/// A caller is above the rate only if it was busy for this many times the time in which a burst is refilled.
const BUSY_BURSTS: f64 = 10.0;

/// How a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Counting {
    /// A token bucket.
    Bucket,
    /// A leaky bucket: a queue, which requests leave at the rate of the limit.
    Queue,
    /// Permits of a concurrency limit. They have no rate.
    Permits,
    /// Windows begin at multiples of their length.
    Aligned,
    /// A window begins at the first request of a caller.
    FirstHit,
    /// A window ends at each request. Insight counts aligned windows instead. The true count is at least that of the
    /// current aligned window, and at most that of the last two aligned windows together.
    Sliding,
}

/// The numbers of a limit with which insight compares the demand. Each reading contains them, so that another process
/// can judge the reading.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Model {
    /// The number of units in each window, or the number of permits of a concurrency limit.
    pub(super) limit: u64,
    /// The burst of a token bucket, the queue length plus 1 of a leaky bucket, or else the limit.
    pub(super) capacity: u64,
    pub(super) counting: Counting,
    /// Units per nanosecond. 0 if the limit has no rate.
    pub(super) rate: f64,
    /// The most units that can be used at one time, including those that a soft limit admits above its limit.
    pub(super) burst: f64,
    /// The window in nanoseconds. 0 if the limit has none.
    pub(super) window_ns: u64,
    /// How long a caller must be busy before insight says that it is above the rate, in nanoseconds. The
    /// largest number if the limit has no rate.
    pub(super) judged_ns: u64,
    /// Whether a refusal changes nothing: it costs no units, and it starts no penalty.
    pub(super) refuses_free: bool,
}

impl Model {
    pub(super) fn of(quota: &Quota) -> Model {
        let counting = match quota.algorithm() {
            Algorithm::TokenBucket => Counting::Bucket,
            Algorithm::LeakyBucket => Counting::Queue,
            Algorithm::Concurrency => Counting::Permits,
            Algorithm::FixedWindow(Anchor::Epoch) => Counting::Aligned,
            Algorithm::FixedWindow(Anchor::FirstHit) => Counting::FirstHit,
            Algorithm::SlidingWindowLog | Algorithm::SlidingWindowCounter { .. } => Counting::Sliding,
        };
        let rate = match quota.algorithm() {
            _ if quota.limit() == 0 => 0.0,
            Algorithm::Concurrency => 0.0,
            Algorithm::TokenBucket | Algorithm::LeakyBucket => 1.0 / quota.interval_ns() as f64,
            Algorithm::FixedWindow(_) | Algorithm::SlidingWindowLog | Algorithm::SlidingWindowCounter { .. } => {
                quota.limit() as f64 / quota.window_ns() as f64
            }
        };
        let burst = quota.hard_capacity() as f64;
        // It is not 0, so that a rate is never computed for no time.
        let judged_ns =
            if rate > 0.0 { ((BUSY_BURSTS * burst / rate) as u64).max(quota.window_ns()).max(1) } else { u64::MAX };
        Model {
            limit: quota.limit(),
            capacity: quota.capacity(),
            counting,
            rate,
            burst,
            window_ns: quota.window_ns(),
            judged_ns,
            refuses_free: quota.refusal_is_free(),
        }
    }

    /// Returns whether the limit is a token bucket whose burst differs from its limit.
    pub(super) const fn has_own_burst(&self) -> bool {
        matches!(self.counting, Counting::Bucket) && self.capacity != self.limit
    }

    pub(super) const fn has_windows(&self) -> bool {
        matches!(self.counting, Counting::Aligned | Counting::FirstHit | Counting::Sliding)
    }
}
