//! Builds a quota, and checks the bounds of all its fields, so that no decision has to check them again.

use core::time::Duration;

use super::identity::identity;
use super::{
    AcrossRegions, Algorithm, Anchor, Denied, MAX_RECORDS, MAX_SPAN_NS, MAX_UNITS, OnStoreFailure, Quota, QuotaError,
    hard_capacity,
};

/// Returns the value of a `Result`, or returns its error from the function. `?` does the same, but not in a `const fn`.
macro_rules! ok {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(error) => return Err(error),
        }
    };
}

impl Quota {
    /// Returns a builder for a token bucket of `limit` units each second; [`Quota`] has an example.
    #[must_use]
    pub const fn per_second(limit: u64) -> QuotaBuilder {
        Quota::token_bucket(limit, Duration::from_secs(1))
    }

    /// Returns a builder for a token bucket of `limit` units each minute.
    #[must_use]
    pub const fn per_minute(limit: u64) -> QuotaBuilder {
        Quota::token_bucket(limit, Duration::from_secs(60))
    }

    /// Returns a builder for a token bucket of `limit` units each hour.
    #[must_use]
    pub const fn per_hour(limit: u64) -> QuotaBuilder {
        Quota::token_bucket(limit, Duration::from_secs(3600))
    }

    /// Returns a builder for a token bucket of `limit` units each day.
    #[must_use]
    pub const fn per_day(limit: u64) -> QuotaBuilder {
        Quota::token_bucket(limit, Duration::from_secs(86_400))
    }

    /// Returns a builder for a token bucket of `limit` units each `window`. The burst is the limit unless another burst
    /// is [set](QuotaBuilder::burst).
    ///
    /// ```
    /// use spillgate_core::Quota;
    /// use std::time::Duration;
    /// let quota = Quota::token_bucket(100, Duration::from_secs(60)).burst(20).build()?;
    /// // One unit every 600 ms, and up to 20 at once.
    /// assert_eq!((quota.interval_ns(), quota.capacity()), (600_000_000, 20));
    /// # Ok::<(), spillgate_core::QuotaError>(())
    /// ```
    #[must_use]
    pub const fn token_bucket(limit: u64, window: Duration) -> QuotaBuilder {
        QuotaBuilder::new(Algorithm::TokenBucket, limit, window)
    }

    /// Returns a builder for a limit of `limit` units in each fixed window. Windows start at multiples of `window`
    /// since the epoch, unless another anchor is set. [`QuotaBuilder::anchor`] has an example.
    #[must_use]
    pub const fn fixed_window(limit: u64, window: Duration) -> QuotaBuilder {
        QuotaBuilder::new(Algorithm::FixedWindow(Anchor::Epoch), limit, window)
    }

    /// Returns a builder for a limit of exactly `limit` units in any window. `limit` can be 65,536 at most, because the
    /// state stores the time of each unit.
    ///
    /// ```
    /// use spillgate_core::Quota;
    /// use std::time::Duration;
    /// assert!(Quota::sliding_window_log(65_536, Duration::from_secs(60)).build().is_ok());
    /// assert!(Quota::sliding_window_log(65_537, Duration::from_secs(60)).build().is_err());
    /// ```
    #[must_use]
    pub const fn sliding_window_log(limit: u64, window: Duration) -> QuotaBuilder {
        QuotaBuilder::new(Algorithm::SlidingWindowLog, limit, window)
    }

    /// Returns a builder for a limit of about `limit` units in any window. The window has one segment unless another
    /// number is [set](QuotaBuilder::segments).
    #[must_use]
    pub const fn sliding_window_counter(limit: u64, window: Duration) -> QuotaBuilder {
        QuotaBuilder::new(Algorithm::SlidingWindowCounter { segments: 1 }, limit, window)
    }

    /// Returns a builder for a queue, from which `limit` units leave in each `window`. The queue length is the limit
    /// unless another length is [set](QuotaBuilder::queue).
    #[must_use]
    pub const fn leaky_bucket(limit: u64, window: Duration) -> QuotaBuilder {
        QuotaBuilder::new(Algorithm::LeakyBucket, limit, window)
    }

    /// Returns a builder for a limit of at most `limit` permits at a time. A permit that is neither released nor
    /// renewed expires after 30 s, unless another time is [set](QuotaBuilder::lease).
    #[must_use]
    pub const fn concurrency(limit: u64) -> QuotaBuilder {
        QuotaBuilder::new(Algorithm::Concurrency, limit, Duration::ZERO)
    }
}

/// Collects the parts of a [`Quota`]; [`build`](QuotaBuilder::build) checks them.
///
/// Each option that is not set has a default. If an option of another algorithm is set, `build` returns an error.
///
/// ```
/// use core::time::Duration;
/// use spillgate_core::Quota;
///
/// let quota = Quota::token_bucket(600, Duration::from_secs(60)) // 600 units each minute
///     .burst(50) // 50 units at once
///     .penalty(Duration::from_secs(10)) // a refused key stays refused for 10 s
///     .build()?;
/// assert_eq!((quota.limit(), quota.capacity()), (600, 50));
/// # Ok::<(), spillgate_core::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct QuotaBuilder {
    algorithm: Algorithm,
    limit: u64,
    window: Duration,
    burst: Option<u64>,
    queue: Option<u64>,
    segments: Option<u8>,
    anchor: Option<Anchor>,
    lease: Option<Duration>,
    penalty: Duration,
    soft_ppm: u32,
    denied: Denied,
    on_store_failure: OnStoreFailure,
}

impl QuotaBuilder {
    /// Returns a builder for an algorithm that is chosen at run time. A concurrency limit ignores `window`.
    ///
    /// ```
    /// use core::time::Duration;
    /// use spillgate_core::{Algorithm, QuotaBuilder};
    ///
    /// let algorithm = Algorithm::parse("token_bucket").expect("a known name");
    /// let quota = QuotaBuilder::new(algorithm, 10, Duration::from_secs(1)).build()?;
    /// assert_eq!(quota.interval_ns(), 100_000_000);
    /// # Ok::<(), spillgate_core::QuotaError>(())
    /// ```
    #[must_use]
    pub const fn new(algorithm: Algorithm, limit: u64, window: Duration) -> QuotaBuilder {
        QuotaBuilder {
            algorithm,
            limit,
            window,
            burst: None,
            queue: None,
            segments: None,
            anchor: None,
            lease: None,
            penalty: Duration::ZERO,
            soft_ppm: 0,
            denied: Denied::Free,
            on_store_failure: OnStoreFailure::Local,
        }
    }

    /// Sets the burst: how many units can be taken at once (`token_bucket`). The default is the limit.
    ///
    /// ```
    /// use spillgate_core::Quota;
    /// let quota = Quota::per_second(100).burst(10).build()?;
    /// assert_eq!(quota.capacity(), 10);
    /// # Ok::<(), spillgate_core::QuotaError>(())
    /// ```
    #[must_use]
    pub const fn burst(mut self, burst: u64) -> Self {
        self.burst = Some(burst);
        self
    }

    /// Sets the queue length: how many units can wait behind the unit that is served (`leaky_bucket`). The default is
    /// the limit.
    ///
    /// ```
    /// use core::time::Duration;
    /// use spillgate_core::Quota;
    /// let quota = Quota::leaky_bucket(10, Duration::from_secs(1)).queue(4).build()?;
    /// assert_eq!(quota.capacity(), 5);
    /// # Ok::<(), spillgate_core::QuotaError>(())
    /// ```
    #[must_use]
    pub const fn queue(mut self, queue: u64) -> Self {
        self.queue = Some(queue);
        self
    }

    /// Sets the number of segments in a window, 1 to 128 (`sliding_window_counter`). The default is 1.
    ///
    /// ```
    /// use core::time::Duration;
    /// use spillgate_core::Quota;
    /// let quota = Quota::sliding_window_counter(100, Duration::from_secs(60)).segments(6).build()?;
    /// assert_eq!(quota.interval_ns(), 10_000_000_000); // each segment is 10 s long
    /// # Ok::<(), spillgate_core::QuotaError>(())
    /// ```
    #[must_use]
    pub const fn segments(mut self, segments: u8) -> Self {
        self.segments = Some(segments);
        self
    }

    /// Sets where windows start (`fixed_window`). The default is the epoch.
    ///
    /// ```
    /// use core::time::Duration;
    /// use spillgate_core::{Algorithm, Anchor, Quota};
    /// let window = Quota::fixed_window(100, Duration::from_secs(60)).anchor(Anchor::FirstHit);
    /// assert_eq!(window.build()?.algorithm(), Algorithm::FixedWindow(Anchor::FirstHit));
    /// # Ok::<(), spillgate_core::QuotaError>(())
    /// ```
    #[must_use]
    pub const fn anchor(mut self, anchor: Anchor) -> Self {
        self.anchor = Some(anchor);
        self
    }

    /// Sets the time after which a permit expires if it is neither released nor renewed (`concurrency`). The default is
    /// 30 s.
    ///
    /// ```
    /// use core::time::Duration;
    /// use spillgate_core::Quota;
    /// let quota = Quota::concurrency(20).lease(Duration::from_secs(5)).build()?;
    /// assert_eq!(quota.lease_ns(), 5_000_000_000);
    /// # Ok::<(), spillgate_core::QuotaError>(())
    /// ```
    #[must_use]
    pub const fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Sets the penalty: how long a key stays refused after its first refusal. If refusals are charged, each refusal
    /// starts the penalty again. The default is no penalty.
    ///
    /// ```
    /// use core::time::Duration;
    /// use spillgate_core::Quota;
    /// let quota = Quota::per_minute(5).penalty(Duration::from_secs(600)).build()?;
    /// assert_eq!(quota.penalty_ns(), 600_000_000_000);
    /// # Ok::<(), spillgate_core::QuotaError>(())
    /// ```
    #[must_use]
    pub const fn penalty(mut self, penalty: Duration) -> Self {
        self.penalty = penalty;
        self
    }

    /// Makes the capacity a soft limit. Takes can exceed the capacity by `soft_ppm` millionths of the capacity.
    ///
    /// A take above the capacity is flagged in [`Decision::soft_over`](crate::Decision::soft_over). The default is no
    /// soft limit.
    ///
    /// ```
    /// use spillgate_core::Quota;
    /// let quota = Quota::per_second(100).soft_ppm(200_000).build()?; // 20 % more
    /// assert_eq!((quota.capacity(), quota.hard_capacity()), (100, 120));
    /// # Ok::<(), spillgate_core::QuotaError>(())
    /// ```
    #[must_use]
    pub const fn soft_ppm(mut self, soft_ppm: u32) -> Self {
        self.soft_ppm = soft_ppm;
        self
    }

    /// Sets what a refused take costs. By default, a refused take costs nothing.
    ///
    /// ```
    /// use spillgate_core::{Denied, Quota};
    /// let quota = Quota::per_second(100).denied(Denied::Charged).build()?;
    /// assert_eq!(quota.denied(), Denied::Charged);
    /// # Ok::<(), spillgate_core::QuotaError>(())
    /// ```
    #[must_use]
    pub const fn denied(mut self, denied: Denied) -> Self {
        self.denied = denied;
        self
    }

    /// Sets what to answer while the shared store fails. By default, a local store decides by this server's
    /// [share](Quota::share) of the limit.
    ///
    /// ```
    /// use spillgate_core::{OnStoreFailure, Quota};
    /// let quota = Quota::per_second(100).on_store_failure(OnStoreFailure::Deny).build()?;
    /// assert_eq!(quota.on_store_failure().as_str(), "deny");
    /// # Ok::<(), spillgate_core::QuotaError>(())
    /// ```
    #[must_use]
    pub const fn on_store_failure(mut self, on_store_failure: OnStoreFailure) -> Self {
        self.on_store_failure = on_store_failure;
        self
    }

    /// Checks all parts, and computes the other fields of the quota.
    ///
    /// # Errors
    /// [`QuotaError`] says which field is wrong and what would be right; it has an example.
    pub const fn build(self) -> Result<Quota, QuotaError> {
        let algorithm = ok!(self.resolved_algorithm());
        let concurrency = matches!(algorithm, Algorithm::Concurrency);
        let window_ns = if concurrency { 0 } else { ok!(span_ns("window", self.window, 1)) };
        let lease = if let Some(lease) = self.lease { lease } else { Duration::from_secs(30) };
        let lease_ns = if concurrency { ok!(span_ns("lease", lease, 1)) } else { 0 };
        let penalty_ns = ok!(span_ns("penalty", self.penalty, 0));
        if concurrency && matches!(self.denied, Denied::Charged) {
            return Err(QuotaError::NotFor { field: "denied: charged", algorithm: "concurrency" });
        }
        ok!(at_most("limit", self.limit, MAX_UNITS));
        let interval_ns = ok!(interval_ns(algorithm, self.limit, window_ns));
        let capacity = ok!(self.capacity());
        let hard_capacity = hard_capacity(capacity, self.soft_ppm);
        ok!(at_most("limit with its soft share", hard_capacity, MAX_UNITS));
        match algorithm {
            Algorithm::SlidingWindowLog | Algorithm::Concurrency => {
                ok!(at_most("limit", hard_capacity, MAX_RECORDS));
            }
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                let depth = hard_capacity as u128 * interval_ns as u128;
                if depth * 2 > MAX_SPAN_NS as u128 {
                    return Err(QuotaError::TooDeep { capacity: hard_capacity, interval_ns });
                }
            }
            Algorithm::FixedWindow(_) | Algorithm::SlidingWindowCounter { .. } => {}
        }
        Ok(Quota {
            algorithm,
            limit: self.limit,
            window_ns,
            capacity,
            hard_capacity,
            soft_ppm: self.soft_ppm,
            interval_ns,
            lease_ns,
            penalty_ns,
            denied: self.denied,
            on_store_failure: self.on_store_failure,
            identity: identity(algorithm, window_ns, interval_ns),
            named_window_ns: window_ns,
            across: AcrossRegions::Each,
            max_debt_ns: 0,
            debt_bits: 0,
            bucket_word: 0,
        }
        .with_bucket())
    }

    /// Builds a quota that is a constant of the program, so that the compiler reports a wrong value.
    ///
    /// Use [`build`](QuotaBuilder::build) for values that are known only when the program runs, for example those of a
    /// settings file.
    ///
    /// ```
    /// use spillgate_core::Quota;
    ///
    /// const LOGIN: Quota = Quota::per_minute(5).burst(2).constant();
    /// assert_eq!((LOGIN.limit(), LOGIN.capacity()), (5, 2));
    /// ```
    ///
    /// ```compile_fail
    /// use spillgate_core::Quota;
    ///
    /// // error: burst has to be at least 1; to refuse everything, set the limit to 0
    /// const LOGIN: Quota = Quota::per_minute(5).burst(0).constant();
    /// # fn main() { let _ = LOGIN; }
    /// ```
    ///
    /// # Panics
    /// If a value is wrong. The message says what is wrong.
    #[must_use]
    pub const fn constant(self) -> Quota {
        match self.build() {
            Ok(quota) => quota,
            Err(error) => panic!("{}", error.short_text()),
        }
    }

    /// Returns the algorithm, with the anchor or the number of segments that was set. Returns an error if an option of
    /// another algorithm is set.
    const fn resolved_algorithm(&self) -> Result<Algorithm, QuotaError> {
        let set_for_another = match self.algorithm {
            _ if self.burst.is_some() && !matches!(self.algorithm, Algorithm::TokenBucket) => Some("burst"),
            _ if self.queue.is_some() && !matches!(self.algorithm, Algorithm::LeakyBucket) => Some("queue"),
            _ if self.segments.is_some() && !matches!(self.algorithm, Algorithm::SlidingWindowCounter { .. }) => {
                Some("segments")
            }
            _ if self.anchor.is_some() && !matches!(self.algorithm, Algorithm::FixedWindow(_)) => Some("anchor"),
            _ if self.lease.is_some() && !matches!(self.algorithm, Algorithm::Concurrency) => Some("lease"),
            _ => None,
        };
        if let Some(field) = set_for_another {
            return Err(QuotaError::NotFor { field, algorithm: self.algorithm.as_str() });
        }
        match (self.algorithm, self.anchor, self.segments) {
            (Algorithm::FixedWindow(_), Some(anchor), _) => Ok(Algorithm::FixedWindow(anchor)),
            (Algorithm::SlidingWindowCounter { segments }, _, None)
            | (Algorithm::SlidingWindowCounter { .. }, _, Some(segments)) => match segments {
                1..=128 => Ok(Algorithm::SlidingWindowCounter { segments }),
                _ => Err(QuotaError::Segments { segments }),
            },
            (same, ..) => Ok(same),
        }
    }

    const fn capacity(&self) -> Result<u64, QuotaError> {
        if self.limit == 0 {
            return Ok(0);
        }
        let capacity = match (self.algorithm, self.burst, self.queue) {
            (Algorithm::TokenBucket, Some(burst), _) => burst,
            (Algorithm::LeakyBucket, _, Some(queue)) => queue.saturating_add(1),
            (Algorithm::LeakyBucket, _, None) => self.limit.saturating_add(1),
            (
                Algorithm::TokenBucket
                | Algorithm::FixedWindow(_)
                | Algorithm::SlidingWindowLog
                | Algorithm::SlidingWindowCounter { .. }
                | Algorithm::Concurrency,
                ..,
            ) => self.limit,
        };
        if capacity == 0 {
            return Err(QuotaError::NoBurst);
        }
        ok!(at_most(if self.queue.is_some() { "queue" } else { "burst" }, capacity, MAX_UNITS));
        Ok(capacity)
    }
}

const fn at_most(field: &'static str, value: u64, max: u64) -> Result<(), QuotaError> {
    if value > max { Err(QuotaError::TooLarge { field, value, max }) } else { Ok(()) }
}

const fn span_ns(field: &'static str, span: Duration, min_ns: u64) -> Result<u64, QuotaError> {
    let ns = span.as_nanos();
    if ns < min_ns as u128 || ns > MAX_SPAN_NS as u128 { Err(QuotaError::Span { field }) } else { Ok(ns as u64) }
}

const fn interval_ns(algorithm: Algorithm, limit: u64, window_ns: u64) -> Result<u64, QuotaError> {
    match algorithm {
        Algorithm::Concurrency => Ok(0),
        Algorithm::FixedWindow(_) | Algorithm::SlidingWindowLog => Ok(window_ns),
        Algorithm::SlidingWindowCounter { segments } => {
            if window_ns.is_multiple_of(segments as u64) {
                Ok(window_ns / segments as u64)
            } else {
                Err(QuotaError::Indivisible { window_ns, segments })
            }
        }
        Algorithm::TokenBucket | Algorithm::LeakyBucket => emission_interval_ns(limit, window_ns),
    }
}

/// Computes `T`, the time between two units, for the limit `L` in the window `W`. `T = ceil(W/L)` is rounded up,
/// because a shorter `T` would admit more than `L` units in `W`.
const fn emission_interval_ns(limit: u64, window_ns: u64) -> Result<u64, QuotaError> {
    if limit == 0 {
        return Ok(0);
    }
    let interval = window_ns.div_ceil(limit);
    if is_exact(limit, window_ns) {
        return Ok(interval);
    }
    // `below` becomes the largest exact limit below `limit`. Its search tries longer and longer `T`, and ends at
    // `T = W` at the latest, because the limit 1 is exact. `above` becomes the smallest exact limit above `limit`. Its
    // search tries shorter and shorter `T`, and ends at `T` = 1 ns at the latest, because the limit `W` (in
    // nanoseconds) is exact. If the `T` of `limit` is 1 ns already, there is no larger exact limit. Both searches are
    // short: only limits above `W/1000` (with `W` in nanoseconds) are inexact, so the `T` of `limit` is at most 1,000
    // ns.
    let mut longer = interval;
    while longer < window_ns && !is_exact((window_ns + window_ns / 1000) / longer, window_ns) {
        longer += 1;
    }
    let below = (window_ns + window_ns / 1000) / longer;
    let mut shorter = interval - 1;
    while shorter > 0 && !is_exact(window_ns.div_ceil(shorter), window_ns) {
        shorter -= 1;
    }
    let above = if shorter > 0 { Some(window_ns.div_ceil(shorter)) } else { None };
    Err(QuotaError::Inexact { limit, below, above })
}

/// Returns whether the limit is exact: rounding `T` up to whole nanoseconds reduces the limit by at most a thousandth.
const fn is_exact(limit: u64, window_ns: u64) -> bool {
    let whole = window_ns.div_ceil(limit) as u128 * limit as u128;
    (whole - window_ns as u128) * 1000 <= window_ns as u128
}
