//! How much in how long, and by which algorithm.

use core::fmt;
use core::time::Duration;

use crate::request::OpKind;

/// The most units a quota or a counter can hold: 2^53 - 1, the largest integer that a Redis
/// script (whose numbers are doubles) counts exactly. Counters saturate here in every store.
pub const MAX_UNITS: u64 = (1 << 53) - 1;

/// The longest window, lease, penalty or twofold depth of a bucket: 2^62 ns (146 years).
pub(crate) const MAX_SPAN_NS: u64 = 1 << 62;

/// The most entries of a log and places of a concurrency limit; both keep a record for each.
pub(crate) const MAX_RECORDS: u64 = 65_536;

/// How a quota counts. `as_str` gives the name used in rules files.
///
/// The bound f(s) is the most that is admitted in any closed interval of length s, for limit L
/// per window W, emission interval T = ceil(W/L). `tests/properties.rs` holds each bound over
/// random traces and `tests/traces/` reaches it with a worst case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Tokens flow in at 1/T up to the burst B; GCRA and the leaky bucket as a meter are the
    /// same machine. f(s) = B + s/T.
    TokenBucket,
    /// One counter a window. Anchored at the epoch: f(s) = L * (ceil(s/W) + 1), half-open;
    /// at the first hit: L * (floor(s/W) + 1), plus L - 1 unless W divides s.
    FixedWindow(Anchor),
    /// Every admitted unit is remembered for W. f(s) = L * (floor(s/W) + 1): exact.
    SlidingWindowLog,
    /// n segments of w = W/n, the oldest weighted. With n = 1: f(s) = L + L*s/W, else
    /// L * (1 + floor(s/W) + max(0, (s mod W - W + w)/w)).
    SlidingWindowCounter {
        /// How many sub-windows, 1 to 128; W has to be divisible by it.
        segments: u8,
    },
    /// A queue of Q places that leaves at 1/T: admitted *after a delay*.
    /// Leaving: f(s) = largest cost + s/T; entering: Q + 1 + s/T.
    LeakyBucket,
    /// At most N unexpired leases at any time.
    Concurrency,
}

impl Algorithm {
    /// The name in rules files and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Algorithm::TokenBucket => "token_bucket",
            Algorithm::FixedWindow(_) => "fixed_window",
            Algorithm::SlidingWindowLog => "sliding_window_log",
            Algorithm::SlidingWindowCounter { .. } => "sliding_window_counter",
            Algorithm::LeakyBucket => "leaky_bucket",
            Algorithm::Concurrency => "concurrency",
        }
    }
}

/// Where a fixed window starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Anchor {
    /// At multiples of W since the Unix epoch.
    #[default]
    Epoch,
    /// At the key's first hit after the last window ended.
    FirstHit,
}

/// What a refused take costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Denied {
    /// Nothing.
    #[default]
    Free,
    /// As much as an admitted one (at most the capacity), so that hammering keeps the key out.
    Charged,
}

/// How much in how long, and by which algorithm: checked once when built, then only read.
///
/// ```
/// use spillgate_core::Quota;
/// let quota = Quota::per_second(60).burst(10).build()?; // sixty a second, ten at once
/// assert_eq!(quota.capacity(), 10);
/// # Ok::<(), spillgate_core::QuotaError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    algorithm: Algorithm,
    limit: u64,
    window_ns: u64,
    capacity: u64,
    hard_capacity: u64,
    /// T of the buckets, w of the segments, W of the other windows; 0 for concurrency or L = 0.
    interval_ns: u64,
    lease_ns: u64,
    penalty_ns: u64,
    denied: Denied,
    identity: u128,
}

impl Quota {
    /// `limit` units each second by token bucket.
    #[must_use]
    pub const fn per_second(limit: u64) -> QuotaBuilder {
        Quota::token_bucket(limit, Duration::from_secs(1))
    }

    /// `limit` units each minute by token bucket.
    #[must_use]
    pub const fn per_minute(limit: u64) -> QuotaBuilder {
        Quota::token_bucket(limit, Duration::from_secs(60))
    }

    /// `limit` units each hour by token bucket.
    #[must_use]
    pub const fn per_hour(limit: u64) -> QuotaBuilder {
        Quota::token_bucket(limit, Duration::from_secs(3600))
    }

    /// `limit` units each day by token bucket.
    #[must_use]
    pub const fn per_day(limit: u64) -> QuotaBuilder {
        Quota::token_bucket(limit, Duration::from_secs(86_400))
    }

    /// `limit` units each `window` by token bucket; the burst is the limit unless set.
    #[must_use]
    pub const fn token_bucket(limit: u64, window: Duration) -> QuotaBuilder {
        QuotaBuilder::new(Algorithm::TokenBucket, limit, window)
    }

    /// `limit` units in each fixed window, anchored at the epoch unless set.
    #[must_use]
    pub const fn fixed_window(limit: u64, window: Duration) -> QuotaBuilder {
        QuotaBuilder::new(Algorithm::FixedWindow(Anchor::Epoch), limit, window)
    }

    /// `limit` units in any window, exactly; at most 65,536.
    #[must_use]
    pub const fn sliding_window_log(limit: u64, window: Duration) -> QuotaBuilder {
        QuotaBuilder::new(Algorithm::SlidingWindowLog, limit, window)
    }

    /// `limit` units in any window, by counters of which the oldest is weighted.
    #[must_use]
    pub const fn sliding_window_counter(limit: u64, window: Duration) -> QuotaBuilder {
        QuotaBuilder::new(Algorithm::SlidingWindowCounter { segments: 1 }, limit, window)
    }

    /// A queue that lets `limit` units out each `window`; as many places unless set.
    #[must_use]
    pub const fn leaky_bucket(limit: u64, window: Duration) -> QuotaBuilder {
        QuotaBuilder::new(Algorithm::LeakyBucket, limit, window)
    }

    /// At most `limit` leases at a time; each lives 30 s unless set, released or renewed.
    #[must_use]
    pub const fn concurrency(limit: u64) -> QuotaBuilder {
        QuotaBuilder::new(Algorithm::Concurrency, limit, Duration::ZERO)
    }

    /// The algorithm.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// L: units each window (places of a concurrency limit).
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// W in nanoseconds; 0 for concurrency.
    #[must_use]
    pub const fn window_ns(&self) -> u64 {
        self.window_ns
    }

    /// The capacity in units: B of a bucket, Q + 1 of a queue, else L.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The capacity that is enforced: floor(capacity * (1 + soft share)).
    #[must_use]
    pub const fn hard_capacity(&self) -> u64 {
        self.hard_capacity
    }

    /// T of the buckets, w of the segments, W of other windows, in nanoseconds.
    #[must_use]
    pub const fn interval_ns(&self) -> u64 {
        self.interval_ns
    }

    /// The life of a lease in nanoseconds (`concurrency`), else 0.
    #[must_use]
    pub const fn lease_ns(&self) -> u64 {
        self.lease_ns
    }

    /// How long a refused key stays shut out, in nanoseconds; 0 = not at all.
    #[must_use]
    pub const fn penalty_ns(&self) -> u64 {
        self.penalty_ns
    }

    /// What a refused take costs.
    #[must_use]
    pub const fn denied(&self) -> Denied {
        self.denied
    }

    /// Whether the algorithm has the operation: leases are not forced, and only they are renewed.
    #[must_use]
    pub const fn supports(&self, op: OpKind) -> bool {
        let concurrency = matches!(self.algorithm, Algorithm::Concurrency);
        match op {
            OpKind::Force => !concurrency,
            OpKind::Renew => concurrency,
            OpKind::Take | OpKind::Look | OpKind::Refund | OpKind::Reset => true,
        }
    }

    /// What tells this quota's states from those of another quota on the same key: the
    /// algorithm with its anchor and segments, and W. Never the limit or the burst, so that a
    /// changed limit finds what was used. 128 well mixed bits.
    #[must_use]
    pub const fn identity(&self) -> u128 {
        self.identity
    }
}

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
        let hard = u128::from(capacity) + u128::from(capacity) * u128::from(self.soft_ppm) / 1_000_000;
        let hard_capacity = u64::try_from(hard).unwrap_or(u64::MAX);
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
            interval_ns,
            lease_ns,
            penalty_ns,
            denied: self.denied,
            identity: identity(algorithm, window_ns),
        })
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

/// What is wrong with a quota, and what would be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuotaError {
    /// A field is above what can be counted exactly.
    TooLarge {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The largest value that works.
        max: u64,
    },
    /// A duration is zero or longer than 2^62 ns.
    Span {
        /// The field.
        field: &'static str,
    },
    /// Rounding T up to whole nanoseconds would cost more than a thousandth of the limit.
    Inexact {
        /// The limit asked for.
        limit: u64,
        /// The nearest exact limit below.
        below: u64,
        /// The nearest exact limit above, if there is one.
        above: Option<u64>,
    },
    /// Twice capacity * T is longer than 2^62 ns.
    TooDeep {
        /// The hard capacity.
        capacity: u64,
        /// T in nanoseconds.
        interval_ns: u64,
    },
    /// A burst of 0 with a limit above 0.
    NoBurst,
    /// Segments out of 1 to 128.
    Segments {
        /// What was asked for.
        segments: u8,
    },
    /// W is not a whole number of nanoseconds times the segments.
    Indivisible {
        /// W in nanoseconds.
        window_ns: u64,
        /// The segments.
        segments: u8,
    },
    /// The option belongs to another algorithm.
    NotFor {
        /// The option.
        field: &'static str,
        /// The algorithm chosen.
        algorithm: &'static str,
    },
}

impl fmt::Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            QuotaError::TooLarge { field, value, max } => {
                write!(f, "{field} is {value}, but at most {max} can be counted exactly here")
            }
            QuotaError::Span { field } => {
                write!(f, "{field} has to be longer than 0 and at most 146 years")
            }
            QuotaError::Inexact { limit, below, above } => {
                write!(f, "a limit of {limit} in this window is no whole number of nanoseconds apart; use {below}")?;
                above.map_or(Ok(()), |above| write!(f, " or {above}"))
            }
            QuotaError::TooDeep { capacity, interval_ns } => {
                write!(
                    f,
                    "a capacity of {capacity} at one unit every {interval_ns} ns takes over 73 years to refill; lower it or shorten the window"
                )
            }
            QuotaError::NoBurst => f.write_str("burst has to be at least 1; to refuse everything, set the limit to 0"),
            QuotaError::Segments { segments } => write!(f, "segments is {segments}; it has to be 1 to 128"),
            QuotaError::Indivisible { window_ns, segments } => {
                write!(
                    f,
                    "a window of {window_ns} ns cannot be cut into {segments} equal segments; choose a number that divides it"
                )
            }
            QuotaError::NotFor { field, algorithm } => {
                write!(f, "{field} is no option of {algorithm}; remove it or choose another algorithm")
            }
        }
    }
}

impl core::error::Error for QuotaError {}

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
    let above = (interval > 1).then(|| window_ns / (interval - 1));
    Err(QuotaError::Inexact { limit, below: (window_ns / interval).max(1), above })
}

/// Whether rounding T up costs at most a thousandth of the limit.
fn is_exact(limit: u64, window_ns: u64) -> bool {
    let whole = u128::from(window_ns.div_ceil(limit)) * u128::from(limit);
    (whole - u128::from(window_ns)) * 1000 <= u128::from(window_ns)
}

fn identity(algorithm: Algorithm, window_ns: u64) -> u128 {
    let tag = match algorithm {
        Algorithm::TokenBucket => 1,
        Algorithm::FixedWindow(Anchor::Epoch) => 2,
        Algorithm::FixedWindow(Anchor::FirstHit) => 3,
        Algorithm::SlidingWindowLog => 4,
        Algorithm::SlidingWindowCounter { segments } => 0x100 + u64::from(segments),
        Algorithm::LeakyBucket => 5,
        Algorithm::Concurrency => 6,
    };
    let high = mix(mix(window_ns).wrapping_add(tag));
    let low = mix(high ^ mix(tag));
    (u128::from(high) << 64) | u128::from(low)
}

/// The finaliser of `SplitMix64` (Steele, Lea and Flood, 2014): a bijection on 64 bits.
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
