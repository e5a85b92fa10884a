//! Checks what a quota is made of.

use core::time::Duration;

use super::{
    Algorithm, Anchor, Denied, MAX_RECORDS, MAX_SPAN_NS, MAX_UNITS, OnStoreFailure, Quota, QuotaError, hard_capacity,
    identity,
};

/// Collects what a [`Quota`] is made of; [`build`](QuotaBuilder::build) checks it.
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
    /// Starts from an algorithm chosen at run time. `window` is not looked at for concurrency.
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

    /// B: units that may pass at once (`token_bucket`); defaults to the limit.
    #[must_use]
    pub const fn burst(mut self, burst: u64) -> Self {
        self.burst = Some(burst);
        self
    }

    /// Q: places that wait behind the one being served (`leaky_bucket`); defaults to the limit.
    #[must_use]
    pub const fn queue(mut self, queue: u64) -> Self {
        self.queue = Some(queue);
        self
    }

    /// Sub-windows, 1 to 128 (`sliding_window_counter`).
    #[must_use]
    pub const fn segments(mut self, segments: u8) -> Self {
        self.segments = Some(segments);
        self
    }

    /// Where windows start (`fixed_window`).
    #[must_use]
    pub const fn anchor(mut self, anchor: Anchor) -> Self {
        self.anchor = Some(anchor);
        self
    }

    /// The life of a lease that is neither released nor renewed (`concurrency`).
    #[must_use]
    pub const fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// From its first refusal a key stays refused this long.
    #[must_use]
    pub const fn penalty(mut self, penalty: Duration) -> Self {
        self.penalty = penalty;
        self
    }

    /// A soft limit: takes may run over by this share, in millionths, and are flagged.
    #[must_use]
    pub const fn soft_ppm(mut self, soft_ppm: u32) -> Self {
        self.soft_ppm = soft_ppm;
        self
    }

    /// What a refused take costs.
    #[must_use]
    pub const fn denied(mut self, denied: Denied) -> Self {
        self.denied = denied;
        self
    }

    /// What to answer while a shared store fails; by local state unless set.
    #[must_use]
    pub const fn on_store_failure(mut self, on_store_failure: OnStoreFailure) -> Self {
        self.on_store_failure = on_store_failure;
        self
    }

    /// Checks everything and works out T and the capacities.
    ///
    /// # Errors
    /// [`QuotaError`] says which field is wrong and what would be right.
    pub fn build(self) -> Result<Quota, QuotaError> {
        let algorithm = self.resolved_algorithm()?;
        let concurrency = algorithm == Algorithm::Concurrency;
        let window_ns = if concurrency { 0 } else { span_ns("window", self.window, 1)? };
        let lease = self.lease.unwrap_or(Duration::from_secs(30));
        let lease_ns = if concurrency { span_ns("lease", lease, 1)? } else { 0 };
        let penalty_ns = span_ns("penalty", self.penalty, 0)?;
        if concurrency && self.denied == Denied::Charged {
            return Err(QuotaError::NotFor { field: "denied: charged", algorithm: "concurrency" });
        }
        at_most("limit", self.limit, MAX_UNITS)?;
        let interval_ns = interval_ns(algorithm, self.limit, window_ns)?;
        let capacity = self.capacity()?;
        let hard_capacity = hard_capacity(capacity, self.soft_ppm);
        at_most("limit with its soft share", hard_capacity, MAX_UNITS)?;
        match algorithm {
            Algorithm::SlidingWindowLog | Algorithm::Concurrency => {
                at_most("limit", hard_capacity, MAX_RECORDS)?;
            }
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                let depth = u128::from(hard_capacity) * u128::from(interval_ns);
                if depth * 2 > u128::from(MAX_SPAN_NS) {
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
            debt_bits: 0,
            bucket_word: 0,
        }
        .with_bucket())
    }

    /// The algorithm with its anchor and segments; options of other algorithms are errors.
    fn resolved_algorithm(&self) -> Result<Algorithm, QuotaError> {
        let name = self.algorithm.as_str();
        let stray = |field, set: bool, belongs: bool| {
            if set && !belongs { Err(QuotaError::NotFor { field, algorithm: name }) } else { Ok(()) }
        };
        let fixed = matches!(self.algorithm, Algorithm::FixedWindow(_));
        let counter = matches!(self.algorithm, Algorithm::SlidingWindowCounter { .. });
        stray("burst", self.burst.is_some(), self.algorithm == Algorithm::TokenBucket)?;
        stray("queue", self.queue.is_some(), self.algorithm == Algorithm::LeakyBucket)?;
        stray("segments", self.segments.is_some(), counter)?;
        stray("anchor", self.anchor.is_some(), fixed)?;
        stray("lease", self.lease.is_some(), self.algorithm == Algorithm::Concurrency)?;
        match self.algorithm {
            Algorithm::FixedWindow(anchor) => Ok(Algorithm::FixedWindow(self.anchor.unwrap_or(anchor))),
            Algorithm::SlidingWindowCounter { segments } => {
                let segments = self.segments.unwrap_or(segments);
                if !(1..=128).contains(&segments) {
                    return Err(QuotaError::Segments { segments });
                }
                Ok(Algorithm::SlidingWindowCounter { segments })
            }
            other => Ok(other),
        }
    }

    fn capacity(&self) -> Result<u64, QuotaError> {
        if self.limit == 0 {
            return Ok(0);
        }
        let capacity = match self.algorithm {
            Algorithm::TokenBucket => self.burst.unwrap_or(self.limit),
            Algorithm::LeakyBucket => self.queue.unwrap_or(self.limit).saturating_add(1),
            _ => self.limit,
        };
        if capacity == 0 {
            return Err(QuotaError::NoBurst);
        }
        at_most(if self.queue.is_some() { "queue" } else { "burst" }, capacity, MAX_UNITS)?;
        Ok(capacity)
    }
}

fn at_most(field: &'static str, value: u64, max: u64) -> Result<(), QuotaError> {
    if value > max { Err(QuotaError::TooLarge { field, value, max }) } else { Ok(()) }
}

fn span_ns(field: &'static str, span: Duration, min_ns: u64) -> Result<u64, QuotaError> {
    match u64::try_from(span.as_nanos()) {
        Ok(ns) if (min_ns..=MAX_SPAN_NS).contains(&ns) => Ok(ns),
        _ => Err(QuotaError::Span { field }),
    }
}

fn interval_ns(algorithm: Algorithm, limit: u64, window_ns: u64) -> Result<u64, QuotaError> {
    match algorithm {
        Algorithm::Concurrency => Ok(0),
        Algorithm::FixedWindow(_) | Algorithm::SlidingWindowLog => Ok(window_ns),
        Algorithm::SlidingWindowCounter { segments } => {
            if window_ns.is_multiple_of(u64::from(segments)) {
                Ok(window_ns / u64::from(segments))
            } else {
                Err(QuotaError::Indivisible { window_ns, segments })
            }
        }
        Algorithm::TokenBucket | Algorithm::LeakyBucket => emission_interval_ns(limit, window_ns),
    }
}

/// T = ceil(W/L): rounded up, since rounding down would admit more than L in W.
fn emission_interval_ns(limit: u64, window_ns: u64) -> Result<u64, QuotaError> {
    if limit == 0 {
        return Ok(0);
    }
    let interval = window_ns.div_ceil(limit);
    if is_exact(limit, window_ns) {
        return Ok(interval);
    }
    // Only limits above W/1000 are inexact, so both searches are short: the largest limit that a
    // longer T serves exactly (T = W always does), the smallest for a shorter one (T = 1 does).
    let exact = |&limit: &u64| is_exact(limit, window_ns);
    let below = (interval..=window_ns).map(|t| (window_ns + window_ns / 1000) / t).find(exact).unwrap_or(1);
    let above = (1..interval).rev().map(|t| window_ns.div_ceil(t)).find(exact);
    Err(QuotaError::Inexact { limit, below, above })
}

/// Whether rounding T up costs at most a thousandth of the limit.
fn is_exact(limit: u64, window_ns: u64) -> bool {
    let whole = u128::from(window_ns.div_ceil(limit)) * u128::from(limit);
    (whole - u128::from(window_ns)) * 1000 <= u128::from(window_ns)
}
