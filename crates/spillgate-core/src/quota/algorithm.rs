//! The algorithms: their names, and how much each of them admits at most.
//!
//! Quotas, rules and stores use the same six algorithms, so their names and bounds are written here once.

/// How a quota counts.
///
/// Each algorithm admits at most `f(s)` units in any interval of length `s` that includes both its ends. For each
/// bound, `tests/bounds.rs` has two tests. One sends random requests and the requests of an attacker. The other sends
/// the worst case, in which exactly `f(s)` units (rounded down) are admitted.
///
/// | letter | meaning | set by |
/// |---|---|---|
/// | `L` | the limit: units in each window | the limit |
/// | `W` | the window | the window |
/// | `T` | the emission interval `ceil(W/L)`: the time between two units at the full rate | follows from `W` and `L` |
/// | `B` | the burst: units that a full token bucket admits at once | [`burst`](super::QuotaBuilder::burst) |
/// | `Q` | the queue length: units that can wait in a leaky bucket behind the unit that is served | [`queue`](super::QuotaBuilder::queue) |
/// | `n`, `w` | the number of segments in a sliding window counter, and the length `W/n` of each segment | [`segments`](super::QuotaBuilder::segments) |
/// | `N` | the permits of a concurrency limit | the limit |
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
    /// One token flows into the bucket every `T`, until there are `B` tokens. A take consumes tokens. `f(s) = B + s/T`.
    ///
    /// The generic cell rate algorithm (GCRA) and the leaky bucket as a meter decide in the same way.
    ///
    /// Checked by the test `token_bucket_admits_b_and_s_over_t`.
    TokenBucket,
    /// Each window has one counter.
    ///
    /// * If windows are anchored at the epoch: `f(s) = L * (ceil(s/W) + 1)`.
    /// * If a window is anchored at the first hit: `f(s) = L * (floor(s/W) + 1)` if `s` is a multiple of `W`. For any
    ///   other `s`, `f(s) = L * (floor(s/W) + 1) + L - 1`.
    ///
    /// Checked by the tests `fixed_window_admits_l_a_window_and_twice_across_an_edge` and
    /// `first_hit_window_admits_l_a_window_and_nearly_twice_across_an_edge`.
    FixedWindow(Anchor),
    /// Every admitted unit is stored until it is `W` old. `f(s) = L * (floor(s/W) + 1)`. This algorithm is exact: at
    /// most `L` units are admitted in every interval of length `W` that includes its start but not its end.
    ///
    /// A decision takes time in proportion to `log L`. A refund with a receipt takes time in proportion to the number
    /// of entries that are newer than the take.
    ///
    /// Checked by the test `log_admits_l_in_every_window`.
    SlidingWindowLog,
    /// Time is divided into segments of length `w = W/n`, each with a counter. The window ends now and has the length
    /// `W`, so it can begin inside a segment. The units of this oldest segment are multiplied by the part of the
    /// segment that is still in the window.
    ///
    /// If `n = 1`: `f(s) = L + L*s/W`. If `n > 1`: `f(s) = L * (1 + floor(s/W) + max(0, (s mod W - W + w)/w))`.
    ///
    /// Checked by the tests `counter_admits_l_and_l_s_over_w` and `segments_admit_l_and_a_segments_share`.
    SlidingWindowCounter {
        /// The number `n` of segments: 1 to 128. The window `W` has to be divisible by `n`.
        segments: u8,
    },
    /// A queue. Callers leave the queue in the order in which they entered it, one unit every `T`. A caller waits in
    /// the queue for at most `Q*T`.
    ///
    /// For units that enter the queue, `f(s) = Q + 1 + s/T`. For units that leave the queue, `f(s)` is the largest cost
    /// of a take plus `s/T`.
    ///
    /// Checked by the tests `queue_admits_q_and_one_and_s_over_t`, `queue_lets_out_one_every_t_in_order` and
    /// `queue_delays_by_what_is_ahead_and_at_most_what_callers_accept`.
    LeakyBucket,
    /// At most `N` permits are held at any time. A permit becomes free when it is released, or when its lease expires.
    ///
    /// An operation takes time in proportion to `log N`. It takes longer if leases have expired since the last
    /// operation, if the clock was set back, or if the duration of the leases was changed.
    ///
    /// Checked by the test `at_most_n_permits_are_held`.
    Concurrency,
}

impl Algorithm {
    /// All names, in the order in which help texts list them. `gcra` is a second name of the token bucket.
    ///
    /// In this list, the fixed window has the default anchor, and the counter has the default number of segments.
    pub const NAMES: [(&'static str, Algorithm); 7] = [
        ("fixed_window", Algorithm::FixedWindow(Anchor::Epoch)),
        ("token_bucket", Algorithm::TokenBucket),
        ("gcra", Algorithm::TokenBucket),
        ("sliding_window_log", Algorithm::SlidingWindowLog),
        ("sliding_window_counter", Algorithm::SlidingWindowCounter { segments: 1 }),
        ("leaky_bucket", Algorithm::LeakyBucket),
        ("concurrency", Algorithm::Concurrency),
    ];

    /// Returns the name that rules files, requests and metrics use.
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

    /// Returns the algorithm that has this name in [`NAMES`](Algorithm::NAMES).
    #[must_use]
    pub fn parse(name: &str) -> Option<Algorithm> {
        Algorithm::NAMES.iter().find(|(known, _)| *known == name).map(|(_, algorithm)| *algorithm)
    }
}

/// Where fixed windows start; [`QuotaBuilder::anchor`](super::QuotaBuilder::anchor) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Anchor {
    /// Windows start at multiples of the window's length since the Unix epoch. All keys have the same windows.
    #[default]
    Epoch,
    /// A window starts when a key uses its first unit after the end of its previous window.
    FirstHit,
}

impl Anchor {
    /// Returns the name of the anchor in rules files and answers: `epoch` or `first_hit`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Anchor::Epoch => "epoch",
            Anchor::FirstHit => "first_hit",
        }
    }
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
