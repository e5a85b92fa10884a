//! The same quota with another limit, for example with the limit that insight suggests.

use core::time::Duration;

use super::{AcrossRegions, Algorithm, Quota, QuotaBuilder, QuotaError};

impl Quota {
    /// Returns the same quota with another limit. If `burst` is given, the algorithm becomes the token bucket. All
    /// other options stay as they are.
    ///
    /// ```
    /// use core::time::Duration;
    /// use spillgate_core::Quota;
    /// let quota = Quota::per_minute(5).penalty(Duration::from_secs(10)).build()?;
    /// let other = quota.with_limit(6, Some(20))?;
    /// assert_eq!((other.limit(), other.capacity(), other.penalty_ns()), (6, 20, 10_000_000_000));
    /// # Ok::<(), spillgate_core::QuotaError>(())
    /// ```
    ///
    /// # Errors
    /// The quota cannot have this limit or this burst.
    pub fn with_limit(&self, limit: u64, burst: Option<u64>) -> Result<Quota, QuotaError> {
        let algorithm = if burst.is_some() { Algorithm::TokenBucket } else { self.algorithm };
        let builder = QuotaBuilder::new(algorithm, limit, Duration::from_nanos(self.window_ns))
            .soft_ppm(self.soft_ppm)
            .penalty(Duration::from_nanos(self.penalty_ns))
            .denied(self.denied)
            .on_store_failure(self.on_store_failure);
        let builder = match (algorithm, burst) {
            (Algorithm::TokenBucket, Some(burst)) => builder.burst(burst),
            (Algorithm::LeakyBucket, _) => builder.queue(self.capacity.saturating_sub(1)),
            (Algorithm::Concurrency, _) => builder.lease(Duration::from_nanos(self.lease_ns)),
            (
                Algorithm::TokenBucket
                | Algorithm::FixedWindow(_)
                | Algorithm::SlidingWindowLog
                | Algorithm::SlidingWindowCounter { .. },
                _,
            ) => builder,
        };
        match self.across {
            AcrossRegions::Shared(_) => builder.build()?.across(self.across),
            // The numbers are those of the region already.
            AcrossRegions::Each | AcrossRegions::Split(_) => Ok(Quota { across: self.across, ..builder.build()? }),
        }
    }
}
