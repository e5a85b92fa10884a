//! The share of a quota that one of several servers may use while each server counts by itself.
//!
//! While the shared store fails, no store counts for all servers together. If each of `m` servers then admitted the
//! whole limit, they would admit `m` times the limit together.

use core::num::NonZeroU32;

use super::identity::identity;
use super::{AcrossRegions, Algorithm, MAX_SPAN_NS, Quota, hard_capacity};

impl Quota {
    /// Returns the share of the quota for one server, if each of `nodes` servers counts by itself.
    ///
    /// The letters in the table are those of [`Algorithm`], and `m` is the number of servers. `T`, for example, is the
    /// time between two units.
    ///
    /// | algorithm | the share of each of the `m` servers |
    /// |---|---|
    /// | token bucket | burst `max(1, floor(B/m))`, one unit every `m * T` |
    /// | windows, log and counters | `floor(L/m)` units in `W`. If that is 0, one unit in `W * ceil(m/L)` |
    /// | leaky bucket | a queue length of `floor(Q/m)`, one unit every `m * T` |
    /// | concurrency | `floor(N/m)` permits, possibly 0 |
    ///
    /// The `T` of a bucket is multiplied by `m`. If it were computed as `ceil(W/floor(L/m))` instead, the fraction of
    /// `L/m` would be lost. The cost of refusals, the penalty, the lease and the setting
    /// [`soft_ppm`](super::QuotaBuilder::soft_ppm) stay the same. A limit of 0 stays 0.
    ///
    /// In the long run, `m` servers together admit no more than the quota. In a single instant, they admit at most the
    /// capacity of the quota, or `m` units if the capacity is smaller than `m`. For a leaky bucket, they admit at most
    /// `Q + m` units in a single instant.
    ///
    /// Every quota has bounds, for example on the length of its window. A share that would break a bound is made
    /// smaller, if necessary down to a limit of 0. The limit becomes 0 for a bucket that would admit less than one unit
    /// in 73 years, and for a window that would admit less than one unit in 146 years.
    ///
    /// A share counts in the same state as the quota, because it has the same [identity](Quota::identity). There are
    /// two exceptions: if `L < m`, the share of a fixed window, a log or a counter has a longer window, and the share
    /// of a queue has another `T`. Such a share has an identity of its own, so that no other limit of the same key uses
    /// its state.
    ///
    /// ```
    /// use core::num::NonZeroU32;
    /// use core::time::Duration;
    /// use spillgate_core::Quota;
    ///
    /// let nodes = NonZeroU32::new(3).unwrap();
    /// let share = Quota::per_second(60).burst(10).build()?.share(nodes);
    /// assert_eq!((share.capacity(), share.interval_ns()), (3, 3 * 16_666_667));
    /// let share = Quota::fixed_window(2, Duration::from_secs(60)).build()?.share(nodes);
    /// assert_eq!((share.limit(), share.window_ns()), (1, 120_000_000_000));
    /// # Ok::<(), spillgate_core::QuotaError>(())
    /// ```
    #[must_use]
    pub fn share(&self, nodes: NonZeroU32) -> Quota {
        // What a local store decides is not told to other regions.
        if self.is_shared() {
            return Quota { across: AcrossRegions::Each, ..self.clone() }.with_bucket().share(nodes);
        }
        let nodes = u64::from(nodes.get());
        if self.limit == 0 || nodes == 1 {
            return self.clone();
        }
        let share = match self.algorithm {
            Algorithm::TokenBucket => self.bucket_share((self.capacity / nodes).max(1), nodes),
            Algorithm::LeakyBucket => self.bucket_share((self.capacity - 1) / nodes + 1, nodes),
            Algorithm::Concurrency => self.units(self.limit / nodes),
            Algorithm::FixedWindow(_) | Algorithm::SlidingWindowLog | Algorithm::SlidingWindowCounter { .. } => {
                if self.limit < nodes {
                    self.longer_window(nodes.div_ceil(self.limit))
                } else {
                    self.units(self.limit / nodes)
                }
            }
        };
        share.unwrap_or_else(|| self.nothing())
    }

    /// Returns a bucket whose rate is the rate of the quota divided by `nodes`. If a bucket of this capacity would take
    /// too long to refill, the capacity is reduced. Returns `None` if the capacity would be 0.
    fn bucket_share(&self, capacity: u64, nodes: u64) -> Option<Quota> {
        let interval_ns = self.interval_ns.checked_mul(nodes)?;
        let deepest = MAX_SPAN_NS / 2 / interval_ns;
        let capacity = capacity.min(deepest);
        let hard_capacity = hard_capacity(capacity, self.soft_ppm).min(deepest);
        let window_ns = self.window_ns.saturating_mul(nodes).min(MAX_SPAN_NS);
        let queue = self.algorithm == Algorithm::LeakyBucket;
        let own = if queue { identity(self.algorithm, window_ns, interval_ns) } else { 0 };
        let identity = self.identity ^ own;
        let share = Quota { window_ns, capacity, hard_capacity, interval_ns, identity, ..self.clone() };
        (capacity > 0).then(|| share.with_bucket())
    }

    /// Returns a quota of `limit` units in the same window, or of `limit` permits. Returns `None` if `limit` is 0.
    fn units(&self, limit: u64) -> Option<Quota> {
        let hard_capacity = hard_capacity(limit, self.soft_ppm);
        (limit > 0).then(|| Quota { limit, capacity: limit, hard_capacity, ..self.clone() })
    }

    /// Returns a quota of one unit in a window that is `times` as long. Returns `None` if this window is too long.
    fn longer_window(&self, times: u64) -> Option<Quota> {
        let window_ns = self.window_ns.checked_mul(times).filter(|ns| *ns <= MAX_SPAN_NS)?;
        let identity = self.identity ^ identity(self.algorithm, window_ns, 0);
        Some(Quota { window_ns, interval_ns: self.interval_ns * times, identity, ..self.units(1)? })
    }

    fn nothing(&self) -> Quota {
        let is_bucket = matches!(self.algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket);
        let interval_ns = if is_bucket { 0 } else { self.interval_ns };
        Quota { limit: 0, capacity: 0, hard_capacity: 0, interval_ns, ..self.clone() }
    }
}
