//! What one of several nodes may admit by itself, while nobody counts for all of them.

use core::num::NonZeroU32;

use super::{Algorithm, MAX_SPAN_NS, Quota, hard_capacity, identity};

impl Quota {
    /// This node's share of the quota, where each of `nodes` counts by itself.
    ///
    /// | algorithm | share of m nodes |
    /// |---|---|
    /// | token bucket | burst max(1, floor(B/m)), one unit every m * T |
    /// | windows, log and counters | floor(L/m), or one every W * ceil(m/L) where that is 0 |
    /// | queue | floor(Q/m) places, one leaves every m * T |
    /// | concurrency | floor(N/m), none where that is 0 |
    ///
    /// T is multiplied as it is, not worked out anew. What refusals cost, penalty, life of a lease and the share of a
    /// soft limit stay what they are, and a limit of 0 stays 0. So m nodes admit no more in the long run than the
    /// quota does, and at once no more than its capacity, or one unit each (a queue: and one more each).
    ///
    /// What would go beyond the bounds of a quota is less than that, at worst nothing: a share of one unit in more
    /// than 73 years (a bucket) or 146 years is a limit of 0.
    ///
    /// A share has the quota's [identity](Quota::identity), except where its window is a longer one and where it is a
    /// queue: there it has one of its own, so that it is mistaken for no other limit of the same key.
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
        let nodes = u64::from(nodes.get());
        if self.limit == 0 || nodes == 1 {
            return self.clone();
        }
        let share = match self.algorithm {
            Algorithm::TokenBucket => self.bucket_share((self.capacity / nodes).max(1), nodes),
            Algorithm::LeakyBucket => self.bucket_share((self.capacity - 1) / nodes + 1, nodes),
            Algorithm::Concurrency => self.units(self.limit / nodes),
            _ if self.limit < nodes => self.longer_window(nodes.div_ceil(self.limit)),
            _ => self.units(self.limit / nodes),
        };
        share.unwrap_or_else(|| self.nothing())
    }

    /// A bucket of this capacity that fills as slowly as `nodes` of them together may fill.
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

    /// So many units in the same window, or places.
    fn units(&self, limit: u64) -> Option<Quota> {
        let hard_capacity = hard_capacity(limit, self.soft_ppm);
        (limit > 0).then(|| Quota { limit, capacity: limit, hard_capacity, ..self.clone() })
    }

    /// One unit in a window that is so many times as long.
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
