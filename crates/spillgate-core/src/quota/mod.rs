//! How much in how long, and by which algorithm.

mod bucket;
mod builder;
mod error;
mod share;

use core::time::Duration;

use crate::request::OpKind;

pub(crate) use bucket::MAX_DEBT_BITS;
pub use bucket::MAX_LATE_NS;
pub use builder::QuotaBuilder;
pub use error::QuotaError;

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
/// per window W, emission interval T = ceil(W/L). Each is held by the named property of
/// `tests/bounds.rs` over random and adversarial events, and reached there by a worst case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Tokens flow in at 1/T up to the burst B; GCRA and the leaky bucket as a meter are the
    /// same machine. f(s) = B + s/T.
    ///
    /// Held by `token_bucket_admits_b_and_s_over_t`.
    TokenBucket,
    /// One counter a window. Anchored at the epoch: f(s) = L * (ceil(s/W) + 1), half-open;
    /// at the first hit: L * (floor(s/W) + 1), plus L - 1 unless W divides s.
    ///
    /// Held by `fixed_window_admits_l_a_window_and_twice_across_an_edge` and
    /// `first_hit_window_admits_l_a_window_and_nearly_twice_across_an_edge`.
    FixedWindow(Anchor),
    /// Every admitted unit is remembered for W. f(s) = L * (floor(s/W) + 1): exact.
    ///
    /// Held by `log_admits_l_in_every_window`. A decision takes time in proportion to log L; a
    /// refund by receipt in proportion to the entries newer than its own.
    SlidingWindowLog,
    /// n segments of w = W/n, the oldest weighted. With n = 1: f(s) = L + L*s/W, else
    /// L * (1 + floor(s/W) + max(0, (s mod W - W + w)/w)).
    ///
    /// Held by `counter_admits_l_and_l_s_over_w` and `segments_admit_l_and_a_segments_share`.
    SlidingWindowCounter {
        /// How many sub-windows, 1 to 128; W has to be divisible by it.
        segments: u8,
    },
    /// A queue of Q places that leaves at 1/T: admitted *after a delay* of at most Q*T, first in
    /// first out. Leaving: f(s) = largest cost + s/T; entering: Q + 1 + s/T.
    ///
    /// Held by `queue_lets_in_its_places_and_s_over_t`, `queue_lets_out_one_every_t_in_order` and
    /// `queue_delays_by_its_places_and_what_callers_bear`.
    LeakyBucket,
    /// At most N unexpired leases at any time.
    ///
    /// Held by `leases_hold_n_places_at_most`. Every operation takes time in proportion to log N.
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

/// What to answer for a limit while the store that many processes share fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum OnStoreFailure {
    /// Let pass.
    Allow,
    /// Refuse.
    Deny,
    /// Fail, so that the caller's own policy decides.
    Error,
    /// Decide by this node's share of the limit in local state.
    #[default]
    Local,
}

impl OnStoreFailure {
    /// All of them.
    pub const ALL: [OnStoreFailure; 4] =
        [OnStoreFailure::Allow, OnStoreFailure::Deny, OnStoreFailure::Error, OnStoreFailure::Local];

    /// Its name in rules files.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            OnStoreFailure::Allow => "allow",
            OnStoreFailure::Deny => "deny",
            OnStoreFailure::Error => "error",
            OnStoreFailure::Local => "local",
        }
    }
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
    soft_ppm: u32,
    /// T of the buckets, w of the segments, W of the other windows; 0 for concurrency or L = 0.
    interval_ns: u64,
    lease_ns: u64,
    penalty_ns: u64,
    denied: Denied,
    on_store_failure: OnStoreFailure,
    identity: u128,
    /// The W that the identity names: of a share that of the whole.
    named_window_ns: u64,
    /// A debt above 2 to this power, in nanoseconds, cannot come from this quota (buckets).
    debt_bits: u8,
    /// What a store packs of a bucket that this quota charged.
    bucket_word: u64,
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

    /// What to answer while a shared store fails.
    #[must_use]
    pub const fn on_store_failure(&self) -> OnStoreFailure {
        self.on_store_failure
    }

    /// The same quota with another answer for while the store fails.
    #[must_use]
    pub const fn with_on_store_failure(mut self, on_store_failure: OnStoreFailure) -> Quota {
        self.on_store_failure = on_store_failure;
        self
    }

    /// Whether the algorithm has the operation: leases are not forced, and only they are renewed.
    #[must_use]
    pub const fn supports(&self, op: OpKind) -> bool {
        let concurrency = matches!(self.algorithm, Algorithm::Concurrency);
        match op {
            OpKind::Force => !concurrency,
            OpKind::Renew => concurrency,
            OpKind::Take | OpKind::Peek | OpKind::Refund | OpKind::Reset => true,
        }
    }

    /// What tells this quota's states from those of another quota on the same key: the
    /// algorithm with its anchor and segments, and W; of a queue T too, since turns that were told cannot be
    /// planned again. Else never the limit or the burst, so that a changed limit finds what was used. 128 well mixed
    /// bits.
    #[must_use]
    pub const fn identity(&self) -> u128 {
        self.identity
    }
}

/// floor(capacity * (1 + soft share)).
fn hard_capacity(capacity: u64, soft_ppm: u32) -> u64 {
    let hard = u128::from(capacity) + u128::from(capacity) * u128::from(soft_ppm) / 1_000_000;
    u64::try_from(hard).unwrap_or(u64::MAX)
}

/// `interval_ns` is T of a bucket or a queue; of others it is not looked at.
fn identity(algorithm: Algorithm, window_ns: u64, interval_ns: u64) -> u128 {
    let tag = match algorithm {
        Algorithm::TokenBucket => 1,
        Algorithm::FixedWindow(Anchor::Epoch) => 2,
        Algorithm::FixedWindow(Anchor::FirstHit) => 3,
        Algorithm::SlidingWindowLog => 4,
        Algorithm::SlidingWindowCounter { segments } => 0x100 + u64::from(segments),
        Algorithm::LeakyBucket => 5,
        Algorithm::Concurrency => 6,
    };
    let turns = if algorithm == Algorithm::LeakyBucket { mix(interval_ns) } else { 0 };
    let high = mix(mix(window_ns ^ turns).wrapping_add(tag));
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
