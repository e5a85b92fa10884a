//! The decision itself: given a quota, what was used, and a time, may this request pass?
//!
//! It is a pure function, so that it can be tested completely and give the same answer in every store. Nothing here
//! reads a clock, opens a socket or logs. Only states of logs, segments and leases own memory on the heap. Everything
//! is integer arithmetic that saturates or refuses. Nothing wraps and nothing panics, in debug builds and in release
//! builds.
//!
//! # The words
//!
//! | word | type | meaning |
//! |---|---|---|
//! | quota | [`Quota`] | a limit: how much in how long, and by which [algorithm](Algorithm) |
//! | hit | [`Hit`] | one operation on one limit: a key, a quota and an [operation](Op) |
//! | decision | [`Decision`] | the answer to one hit |
//! | verdict | [`Verdict`] | the answer to all hits of one request: all of them or none are charged |
//! | receipt | [`Receipt`] | what a take returns, so that it can be given back exactly |
//! | store | [`Store`] | where states are kept, and where decisions are atomic |
//!
//! ```
//! use core::time::Duration;
//! use spillgate_core::{decide, Binding, Decision, Hit, Op, Quota, State, Time};
//!
//! let quota = Quota::token_bucket(10, Duration::from_secs(1)).build()?;
//! let hits = [Hit::new(7, &quota, Op::take(4), Binding::Enforce)];
//! let (mut states, mut decisions) = ([State::default()], [Decision::default()]);
//! let verdict = decide(&mut states, &[0], &hits, Time::from_nanos(0), &mut decisions);
//! assert!(verdict.allowed);
//! assert_eq!(decisions[0].remaining, 6);
//! # Ok::<(), spillgate_core::QuotaError>(())
//! ```
//!
//! # What may grow
//!
//! What a caller reads in an answer is `#[non_exhaustive]`: [`Decision`], [`Verdict`], [`Receipt`], [`Reason`] and the
//! errors. [`Hit`] is too. What a store has to implement is exhaustive, such as [`Algorithm`] and [`Op`]: after an
//! addition, the compiler shows each place that has to change.
//!
//! # Guarantees
//!
//! Each guarantee is followed by the tests that hold it. The bound of each algorithm is on [`Algorithm`]. What is
//! charged is on [`decide`]. The letters L, W, T, B and Q are explained on [`Algorithm`].
//!
//! * Between any two instants, no more is admitted than the algorithm's bound.
//!   `tests/bounds.rs`: `token_bucket_admits_b_and_s_over_t`,
//!   `fixed_window_admits_l_a_window_and_twice_across_an_edge`,
//!   `first_hit_window_admits_l_a_window_and_nearly_twice_across_an_edge`,
//!   `log_admits_l_in_every_window`, `counter_admits_l_and_l_s_over_w`,
//!   `segments_admit_l_and_a_segments_share`, `queue_admits_q_and_one_and_s_over_t`,
//!   `queue_lets_out_one_every_t_in_order`, `at_most_n_permits_are_held`.
//! * `retry_after` is exact. A refused caller is refused at every instant before it. At that instant the caller is
//!   allowed, if no other caller has asked meanwhile. `tests/waits.rs`: `a_wait_is_exact_at_every_instant`,
//!   `a_wait_is_exact_at_random_instants`.
//! * Until `retry_after` has passed, every take with the same or a larger cost is refused too. The exceptions are a
//!   refund, a reset, and a changed quota. `tests/waits.rs`: `a_refusal_holds_for_all_that_cost_as_much`.
//! * A take of `remaining` units fits, and one unit more does not. `remaining` is never above the limit. If more than
//!   the limit is used, for example after it was lowered, `remaining` is 0.
//!   `tests/properties.rs`: `what_remains_fits_and_one_more_does_not`.
//! * A refused take costs nothing, unless refusals are charged.
//!   `tests/properties.rs`: `a_refusal_that_is_free_changes_nothing`.
//! * A charged refusal costs its units, but at most the capacity.
//!   `tests/properties.rs`: `a_charged_refusal_costs_its_units_up_to_the_capacity`.
//! * A request takes from all its limits or from none, whatever their algorithms are.
//!   `tests/requests.rs`: `a_request_takes_from_all_its_limits_or_from_none`,
//!   `hits_are_judged_alone_and_charged_together`.
//! * Takes of one request on one state keep the bound together.
//!   `tests/requests.rs`: `hits_on_one_state_keep_the_bound`.
//! * Units that are given back can be admitted once more and not twice. Units that have expired cannot be given back,
//!   with one exception: the debt of a bucket. `tests/properties.rs`:
//!   `what_is_given_back_is_admitted_once_more_at_most`, `a_refund_gives_back_its_cost_and_never_more`,
//!   `a_refund_of_expired_units_changes_nothing`.
//! * A force counts whatever is left, and the takes beside it keep the bound. Windows and counters count all its units.
//!   A log keeps one unit more than its limit. A bucket counts units up to a debt of 2 * B * T of the quota that
//!   forces. If two quotas share a bucket, a force under the smaller one may add nothing.
//!   `tests/properties.rs`: `a_force_counts_whatever_is_left`, `forces_do_not_widen_the_bound`;
//!   `tests/several_quotas.rs`: `a_force_counts_up_to_the_greatest_debt_of_its_own_quota`.
//! * A soft limit flags takes, and its hard limit has the bound of a limit of that size.
//!   `tests/properties.rs`: `a_soft_limit_flags_and_the_hard_one_refuses`.
//! * A penalty refuses a key for exactly its duration from the first refusal. If refusals are charged, it counts from
//!   the last refusal. `tests/properties.rs`: `a_penalty_lasts_as_long_as_it_says`.
//! * In the long run, the shares of a quota admit no more together than the quota. At once they admit at most one unit
//!   each more than the quota.
//!   `tests/shares.rs`: `shares_are_those_of_the_table`, `shares_sum_to_no_more_than_the_quota`,
//!   `any_share_of_any_quota_answers`. The test file `tests/bounds.rs` holds shares to their bounds.
//! * A changed limit or burst continues with what was used before. A changed window or algorithm counts from zero, and
//!   so does a queue with another T.
//!   `tests/requests.rs`: `a_quota_change_neither_forgives_nor_multiplies`, `a_changed_window_counts_from_zero`.
//! * If several quotas share a state, no hit under one of them lowers what was counted under another, except a refund
//!   or a reset. The bound in any interval of length s is the largest depth, plus s times the largest rate, plus what
//!   was given back in it. Only the quotas that took or forced in the interval count. For windows, counters and logs it
//!   is the bound of the largest limit. `tests/several_quotas.rs`:
//!   `several_quotas_keep_the_bound_of_the_largest`, `no_hit_lowers_what_was_counted_under_another_quota`,
//!   `what_another_quota_refuses_changes_nothing_and_its_wait_is_exact`,
//!   `a_limit_cut_and_restored_admits_nothing_extra`, `several_quotas_reach_the_bound_of_the_largest`,
//!   `every_small_trace_of_two_quotas`, `the_largest_depth_and_the_largest_rate_may_come_from_two_quotas`,
//!   `several_quotas_decide_as_the_model`, `a_shorter_penalty_does_not_end_a_longer_one`.
//! * Late requests keep the bound as of the newest time, and their waits are exact too. In buckets they widen the bound
//!   by twice the time that they are late. `tests/clocks.rs`: `late_requests_keep_the_bound`,
//!   `late_requests_get_exact_waits_and_true_counts`; `tests/late_requests.rs`:
//!   `late_requests_of_a_faster_quota_forgive_nothing`, `only_the_conversion_of_debt_uses_the_newest_time`,
//!   `a_late_request_has_its_turn_in_a_queue_by_its_own_time`.
//! * A clock that steps back refuses for no longer than the step. Windows, logs and counters then never refuse for
//!   longer than two windows and a segment. A bucket refuses for less than twice (2 * B * T and a second), by the quota
//!   that charged it last. A penalty gets longer by a second at most, and a lease does not get longer.
//!   `tests/clocks.rs`: `a_clock_that_steps_back_refuses_for_no_longer_than_the_step`,
//!   `a_clock_that_steps_back_blocks_a_bucket_for_less_than_twice_its_greatest_debt_and_a_second`,
//!   `a_clock_that_steps_back_adds_nothing_to_a_bucket`,
//!   `a_window_is_forgotten_when_the_clock_steps_back_by_more_than_its_length`,
//!   `a_clock_that_steps_back_makes_no_lease_longer_and_a_penalty_by_a_second_at_most`.
//! * A clock that jumps forward by J adds at most min(B, J/T) units to a bucket.
//!   `tests/clocks.rs`: `a_clock_that_jumps_forward_adds_what_would_refill_in_the_jump`.
//! * Refill does not drift, however often a bucket is polled.
//!   `tests/properties.rs`: `refill_does_not_drift_however_often_it_is_polled`.
//! * A state equals an empty one from `expires_at` on, and not a nanosecond before.
//!   `tests/properties.rs`: `a_state_equals_an_empty_one_from_its_expiry_on`.
//! * Any integer in any field gets an answer. Nothing wraps, and nothing panics.
//!   `tests/requests.rs`: `extremes_are_answered`;
//!   `tests/extremes.rs`: `t_is_the_least_that_admits_no_more_than_the_limit`,
//!   `a_bucket_admits_by_the_formula_at_all_extremes`,
//!   `another_t_decides_as_by_converted_debt_rounded_up_at_all_extremes`,
//!   `segments_are_weighted_exactly_at_all_extremes`.
//! * A state that was written down and read back decides everything as before. Words that are not a state are rejected.
//!   `tests/encoding.rs`: `a_state_that_was_written_down_decides_as_before`,
//!   `no_words_make_the_kernel_panic`, `no_changed_word_makes_the_kernel_panic`,
//!   `no_sound_integers_make_the_kernel_panic`.
//! * Every field of every answer equals that of a model that is simple enough to check by reading.
//!   `tests/oracles.rs`: `token_bucket_decides_as_the_model` and the tests beside it;
//!   `tests/exhaustive.rs`: `every_small_trace_of_a_token_bucket` and the tests beside it.
#![no_std]
#![warn(missing_docs)]

extern crate alloc;

mod algorithm;
#[cfg(feature = "conformance")]
pub mod conformance;
mod decide;
mod decision;
mod fast_path;
mod hit;
mod op;
mod packed;
mod quota;
mod state;
mod store;
mod time;
mod verdict;

pub use decide::{decide, decide_late};
pub use decision::{Decision, Reason, Receipt, Wait};
pub use hit::{Binding, Hit, MAX_HITS};
pub use op::{Op, OpKind};
pub use packed::Packed;
pub use quota::{Algorithm, Anchor, Denied, MAX_LATE_NS, MAX_UNITS, OnStoreFailure, Quota, QuotaBuilder, QuotaError};
pub use state::State;
pub use store::{Circuit, Store, StoreError, StoreErrorKind, StoreHealth, Timing};
pub use time::Time;
pub use verdict::{Source, Verdict};
