//! The decision itself: given what was used, a quota and a time, may this request pass?
//!
//! Nothing here reads a clock, opens a socket, logs or allocates on its own account (the log,
//! segment and lease states own their entries). Everything is integer arithmetic that saturates
//! or refuses; nothing wraps and nothing panics, in debug and in release alike.
//!
//! The words, one for each idea:
//!
//! | word | type | meaning |
//! |---|---|---|
//! | quota | [`Quota`] | how much in how long, and by which algorithm |
//! | hit | [`Hit`] | one question (key, quota, operation) to one limit |
//! | decision | [`Decision`] | the answer to one hit |
//! | verdict | [`Verdict`] | the answer to all hits of one request, all or nothing |
//! | receipt | [`Receipt`] | what a take returns so that it can be given back exactly |
//! | store | [`Store`] | where state lives and decisions are atomic |
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
//! # Guarantees
//!
//! Each in one sentence, with the tests that hold it. The bound of each algorithm is on
//! [`Algorithm`]; what is charged when is on [`decide`].
//!
//! * What is admitted between any two instants is within the algorithm's bound.
//!   `tests/bounds.rs`: `token_bucket_admits_b_and_s_over_t`,
//!   `fixed_window_admits_l_a_window_and_twice_across_an_edge`,
//!   `first_hit_window_admits_l_a_window_and_nearly_twice_across_an_edge`,
//!   `log_admits_l_in_every_window`, `counter_admits_l_and_l_s_over_w`,
//!   `segments_admit_l_and_a_segments_share`, `queue_admits_q_and_one_and_s_over_t`,
//!   `queue_lets_out_one_every_t_in_order`, `at_most_n_permits_are_held`.
//! * A refused caller is refused at every instant before `retry_after`, and allowed at it if nobody
//!   else has asked. `tests/waits.rs`: `a_wait_is_exact_at_every_instant`,
//!   `a_wait_is_exact_at_random_instants`.
//! * Until then whoever asks for as much is refused too, unless something is given back, reset or
//!   changed. `tests/waits.rs`: `a_refusal_holds_for_all_that_cost_as_much`.
//! * `remaining` fits, one unit more does not, and it is never above the limit. Where more than the
//!   limit is used, as after it was lowered, it is 0.
//!   `tests/properties.rs`: `what_remains_fits_and_one_more_does_not`.
//! * A denied take costs nothing unless refusals are charged.
//!   `tests/properties.rs`: `a_refusal_that_is_free_changes_nothing`.
//! * A charged refusal costs its units, at most the capacity.
//!   `tests/properties.rs`: `a_charged_refusal_costs_its_units_up_to_the_capacity`.
//! * A request takes from all its limits or from none, whatever their algorithms.
//!   `tests/requests.rs`: `a_request_takes_from_all_its_limits_or_from_none`,
//!   `hits_are_judged_alone_and_charged_together`.
//! * Takes of one request on one state are held to the bound together.
//!   `tests/requests.rs`: `hits_on_one_state_keep_the_bound`.
//! * What is given back can be admitted once more and not twice; what has expired gives nothing
//!   back, but for the debt of a bucket. `tests/properties.rs`: `what_is_given_back_is_admitted_once_more_at_most`,
//!   `a_refund_gives_back_what_it_says_and_never_more`, `a_refund_of_what_has_expired_is_none`.
//! * A force counts whatever is left, and the takes beside it keep the bound. Windows and counters count all its units.
//!   A log keeps one more than its limit. A bucket counts them up to a debt of 2 * B * T of the quota that forces: under
//!   the smaller of two quotas a force may add nothing.
//!   `tests/properties.rs`: `a_force_counts_whatever_is_left`, `forces_do_not_widen_the_bound`;
//!   `tests/several_quotas.rs`: `a_force_counts_up_to_the_greatest_debt_of_its_own_quota`.
//! * A soft limit flags, and its hard one has the bound of a limit of that size.
//!   `tests/properties.rs`: `a_soft_limit_flags_and_the_hard_one_refuses`.
//! * A penalty shuts a key out for as long as it says, from its first refusal (where refusals are
//!   charged, from its last). `tests/properties.rs`: `a_penalty_lasts_as_long_as_it_says`.
//! * Shares of a quota come to no more than the quota in the long run, and at once to no more but for one unit each.
//!   `tests/shares.rs`: `shares_are_those_of_the_table`, `shares_come_to_no_more_than_the_whole`,
//!   `any_share_of_any_quota_answers`; `tests/bounds.rs` holds shares to their bounds.
//! * A changed limit or burst finds what was used; another window or algorithm, and a queue of another T, counts from zero.
//!   `tests/requests.rs`: `a_quota_change_neither_forgives_nor_multiplies`, `a_changed_window_counts_anew`.
//! * No question under one quota lowers what was counted under another, except refunds and resets: in any interval of
//!   length s at most the largest depth and s times the largest rate is admitted, and what was given back in it. Depth and
//!   rate are those of the quotas that took or forced in it. For windows, counters and logs it is the bound of the
//!   largest limit. `tests/several_quotas.rs`:
//!   `several_quotas_keep_the_bound_of_the_largest`, `no_question_lowers_what_was_counted_under_another_quota`,
//!   `what_another_quota_refuses_changes_nothing_and_its_wait_is_exact`, `a_limit_cut_and_restored_admits_nothing_extra`,
//!   `several_quotas_reach_the_bound_of_the_largest`, `every_small_trace_of_two_quotas`,
//!   `the_largest_depth_and_the_largest_rate_may_come_from_two_quotas`, `several_quotas_decide_as_the_model`,
//!   `a_shorter_penalty_does_not_end_a_longer_one`.
//! * Late requests keep the bound as of the newest time (buckets widen it by twice what requests
//!   are late), and their waits are exact too. `tests/clocks.rs`: `late_requests_keep_the_bound`,
//!   `late_requests_are_told_exact_waits_and_truthful_counts`; `tests/late_requests.rs`:
//!   `late_requests_of_a_faster_quota_forgive_nothing`, `only_the_conversion_of_debt_knows_the_newest_time`,
//!   `a_late_request_has_its_turn_in_a_queue_as_of_its_own_time`.
//! * A clock that steps back refuses for no longer than the step. Windows, logs and counters then never refuse for longer
//!   than two windows and a segment. A bucket refuses for less than twice (2 * B * T and a second), by the quota that
//!   charged it last. A penalty gets longer by a second at most, and a lease does not. `tests/clocks.rs`:
//!   `a_clock_that_steps_back_refuses_for_no_longer_than_the_step`,
//!   `a_clock_that_steps_back_shuts_a_bucket_for_less_than_twice_its_greatest_debt_and_a_second`,
//!   `a_clock_that_steps_back_gifts_a_bucket_nothing`,
//!   `a_window_is_forgotten_when_the_clock_steps_back_by_more_than_it`,
//!   `a_clock_that_steps_back_makes_no_lease_longer_and_a_penalty_by_a_second_at_most`.
//! * A clock that jumps forward by J gifts a bucket at most min(B, J/T).
//!   `tests/clocks.rs`: `a_clock_that_jumps_forward_gifts_what_the_jump_is_worth`.
//! * Refill does not drift, however often it is polled.
//!   `tests/properties.rs`: `refill_does_not_drift_however_often_it_is_polled`.
//! * A state equals none from `expires_at` on, and not a nanosecond before.
//!   `tests/properties.rs`: `a_state_ends_when_it_says_and_is_then_as_good_as_none`.
//! * Any integer in any field gets an answer; nothing wraps, nothing panics.
//!   `tests/requests.rs`: `extremes_are_answered`;
//!   `tests/extremes.rs`: `t_is_the_least_that_serves_no_more_than_the_limit`,
//!   `a_bucket_admits_by_the_formula_at_all_extremes`,
//!   `another_t_judges_as_by_debt_converted_and_rounded_up_at_all_extremes`, `segments_weigh_exactly_at_all_extremes`.
//! * A state that was written down decides everything as before, and words that are no state's are
//!   none. `tests/encoding.rs`: `a_state_that_was_written_down_decides_as_before`,
//!   `no_words_make_the_kernel_panic`, `no_changed_word_makes_the_kernel_panic`,
//!   `no_integers_that_are_sound_make_the_kernel_panic`.
//! * Every field of every answer is that of a model that is right by inspection.
//!   `tests/oracles.rs`: `token_bucket_decides_as_the_model` and its siblings;
//!   `tests/exhaustive.rs`: `every_small_trace_of_a_token_bucket` and its siblings.
#![no_std]

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
pub use store::{Store, StoreError};
pub use time::Time;
pub use verdict::{Source, Verdict};
