//! The algorithms by name, with the bound of each.
//!
//! A quota, a rule and a store all speak of the same six, so their names and bounds are written here once.

/// How a quota counts.
///
/// f(s) is the most that is admitted in any closed interval of length s. Each bound is held by the named property of
/// `tests/bounds.rs` over random and adversarial events, and a worst case there reaches it.
///
/// | letter | meaning | set by |
/// |---|---|---|
/// | L | the limit: units in each window | the limit |
/// | W | the window | the window |
/// | T | the emission interval ceil(W/L): the time between two units at the full rate | follows from W and L |
/// | B | the burst: units that a full token bucket admits at once | [`burst`](super::QuotaBuilder::burst) |
/// | Q | the queue length: units that can wait in a leaky bucket behind the one that is served | [`queue`](super::QuotaBuilder::queue) |
/// | n, w | the number of segments, and the length W/n of each | [`segments`](super::QuotaBuilder::segments) |
/// | N | the permits of a concurrency limit, which are its limit | the limit |
///
/// Exhaustive on purpose: a store must implement every algorithm, and the compiler shows each place that has to.
///
/// ```
/// use spillgate_core::Algorithm;
///
/// let counter = Algorithm::parse("sliding_window_counter");
/// assert_eq!(counter, Some(Algorithm::SlidingWindowCounter { segments: 1 }));
/// assert_eq!(Algorithm::parse("gcra"), Some(Algorithm::TokenBucket));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Tokens flow in, one every T, up to the burst B. A take removes tokens. f(s) = B + s/T.
    ///
    /// The generic cell rate algorithm (GCRA) and the leaky bucket as a meter decide in the same way.
    ///
    /// Held by `token_bucket_admits_b_and_s_over_t`.
    TokenBucket,
    /// One counter for each window.
    ///
    /// Anchored at the epoch: f(s) = L * (ceil(s/W) + 1), in half-open intervals. Anchored at the first hit:
    /// f(s) = L * (floor(s/W) + 1), plus L - 1 unless s is a multiple of W.
    ///
    /// Held by `fixed_window_admits_l_a_window_and_twice_across_an_edge` and
    /// `first_hit_window_admits_l_a_window_and_nearly_twice_across_an_edge`.
    FixedWindow(Anchor),
    /// Every admitted unit is stored until it is W old. It is exact: f(s) = L * (floor(s/W) + 1).
    ///
    /// A decision takes time in proportion to log L. A refund by receipt takes time in proportion to the entries that
    /// are newer than its own.
    ///
    /// Held by `log_admits_l_in_every_window`.
    SlidingWindowLog,
    /// n counters, each for a segment of w = W/n. The oldest counts by the share of it that is still in the window.
    ///
    /// With n = 1: f(s) = L + L*s/W. Else f(s) = L * (1 + floor(s/W) + max(0, (s mod W - W + w)/w)).
    ///
    /// Held by `counter_admits_l_and_l_s_over_w` and `segments_admit_l_and_a_segments_share`.
    SlidingWindowCounter {
        /// n, the number of segments: 1 to 128. W has to be divisible by it.
        segments: u8,
    },
    /// A queue: callers leave it in their order, one unit every T. A caller is admitted *after a delay* of at most Q*T.
    ///
    /// Leaving: f(s) = largest cost + s/T. Entering: f(s) = Q + 1 + s/T.
    ///
    /// Held by `queue_admits_q_and_one_and_s_over_t`, `queue_lets_out_one_every_t_in_order` and
    /// `queue_delays_by_what_is_ahead_and_at_most_what_callers_accept`.
    LeakyBucket,
    /// At most N permits are held at any time. A permit returns when it is released, or when its lease expires.
    ///
    /// Every operation takes time in proportion to log N.
    ///
    /// Held by `at_most_n_permits_are_held`.
    Concurrency,
}

impl Algorithm {
    /// The one table of names, in the order in which help texts list them. `gcra` is a second name of the token bucket.
    ///
    /// A fixed window and a counter have the anchor and the segments that hold unless others are set.
    pub const NAMES: [(&'static str, Algorithm); 7] = [
        ("fixed_window", Algorithm::FixedWindow(Anchor::Epoch)),
        ("token_bucket", Algorithm::TokenBucket),
        ("gcra", Algorithm::TokenBucket),
        ("sliding_window_log", Algorithm::SlidingWindowLog),
        ("sliding_window_counter", Algorithm::SlidingWindowCounter { segments: 1 }),
        ("leaky_bucket", Algorithm::LeakyBucket),
        ("concurrency", Algorithm::Concurrency),
    ];

    /// The name in rules files, requests and metrics.
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

    /// The algorithm that [`NAMES`](Algorithm::NAMES) has for this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Algorithm> {
        Algorithm::NAMES.iter().find(|(known, _)| *known == name).map(|(_, algorithm)| *algorithm)
    }
}

/// Where a fixed window starts; [`QuotaBuilder::anchor`](super::QuotaBuilder::anchor) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Anchor {
    /// At multiples of W since the Unix epoch, for all keys at the same time.
    #[default]
    Epoch,
    /// At the key's first hit after its last window ended.
    FirstHit,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_gcra_is_a_second_name() {
        for (name, algorithm) in Algorithm::NAMES {
            assert!(name == algorithm.as_str() || (name, algorithm) == ("gcra", Algorithm::TokenBucket));
            assert_eq!(Algorithm::parse(algorithm.as_str()), Some(algorithm));
        }
        assert_eq!(Algorithm::parse("Token_Bucket"), None);
    }
}
