//! The kernel of spillgate: the pure code that decides whether a request may pass.
//!
//! A decision depends only on the operations of the request, on the limits (quotas), on what was used before (states),
//! and on the time. The kernel reads no clock, opens no socket and writes no log. So its tests need no server and no
//! clock, and it gives the same answer in every store.
//!
//! All arithmetic is on integers. A result that is too large saturates, or the operation is refused. No number causes a
//! panic, neither in debug builds nor in release builds. Most states own no memory on the heap. The exceptions are the
//! states of logs, of counters with several segments, and of concurrency limits.
//!
//! # The words
//!
//! | word | type | meaning |
//! |---|---|---|
//! | quota | [`Quota`] | a limit: how many units in how much time, and by which [algorithm](Algorithm) |
//! | hit | [`Hit`] | one operation on one limit: a key, a quota and an [operation](Op) |
//! | decision | [`Decision`] | the answer to one hit |
//! | verdict | [`Verdict`] | the answer to the whole request, formed from the decisions on its hits |
//! | receipt | [`Receipt`] | what a take (an operation that uses units) returns; with a receipt, exactly these units can be given back |
//! | store | [`Store`] | the place that keeps the states and makes each decision atomic |
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
//! # Which types can grow
//!
//! A later version may add fields or variants to some types, so these types are `#[non_exhaustive]`. A caller reads
//! most of them in an answer: [`Decision`], [`Verdict`], [`Receipt`], [`Reason`] and the errors. [`Hit`] is
//! `#[non_exhaustive]` too.
//!
//! Other types are exhaustive, for example [`Algorithm`] and [`Op`], because a store has to support every variant of
//! them. If a variant is added, the compiler shows each place that has to change.
//!
//! # Guarantees
//!
//! Below each guarantee are the names of the tests that check it. [`decide`] says what is charged. [`Algorithm`] has
//! the bound of each algorithm, and a table of these letters: L is the limit, W is the window, T is the time between
//! two units at the full rate, B is the burst (the capacity of a bucket), and Q is the length of a queue.
//!
//! * Between any two instants, no more units are admitted than the bound of the algorithm allows. `tests/bounds.rs`:
//!   `token_bucket_admits_b_and_s_over_t`, `fixed_window_admits_l_a_window_and_twice_across_an_edge`,
//!   `first_hit_window_admits_l_a_window_and_nearly_twice_across_an_edge`, `log_admits_l_in_every_window`,
//!   `counter_admits_l_and_l_s_over_w`, `segments_admit_l_and_a_segments_share`, `queue_admits_q_and_one_and_s_over_t`,
//!   `queue_lets_out_one_every_t_in_order`, `at_most_n_permits_are_held`.
//! * `retry_after` is the exact wait after a refusal. Until this wait has passed, the same take is refused at every
//!   instant. When the wait has passed, the take is allowed, if no other caller has taken units meanwhile.
//!   `tests/waits.rs`: `a_wait_is_exact_at_every_instant`, `a_wait_is_exact_at_random_instants`.
//! * Until `retry_after` has passed, every take with the same or a larger cost is refused too. Only a refund, a reset
//!   or a changed quota can make such a take fit earlier. `tests/waits.rs`:
//!   `a_refusal_holds_for_all_that_cost_as_much`.
//! * A take of `remaining` units fits. Without a soft limit, a take of one unit more does not fit. `remaining` is never
//!   above the limit. If more than the limit is used, for example after the limit was lowered, `remaining` is 0.
//!   `tests/properties.rs`: `what_remains_fits_and_one_more_does_not`.
//! * A refused take costs nothing, unless its quota charges refusals.
//!   `tests/properties.rs`: `a_refusal_that_is_free_changes_nothing`.
//! * If a quota charges refusals, a refused take costs as much as an allowed take, but at most the capacity.
//!   `tests/properties.rs`: `a_charged_refusal_costs_its_units_up_to_the_capacity`.
//! * A refused request takes no units. An allowed request takes units from all its limits, whatever their algorithms
//!   are. The only exceptions are refused hits with [`Binding::Shadow`] or [`Binding::Quota`], which take nothing.
//!   `tests/requests.rs`: `a_request_takes_from_all_its_limits_or_from_none`,
//!   `hits_are_judged_alone_and_charged_together`.
//! * If several takes of one request count in the same state, all of them together keep the bound. `tests/requests.rs`:
//!   `hits_on_one_state_keep_the_bound`.
//! * Units that are given back can be admitted once more, but not twice. Units that have expired cannot be given back.
//!   Token buckets are an exception: without a receipt, they give back units of any age. With the receipt of a take, they
//!   give back at most the debt that was there after this take and that time has not paid yet.
//!   `tests/properties.rs`: `what_is_given_back_is_admitted_once_more_at_most`,
//!   `a_refund_gives_back_its_cost_and_never_more`, `a_refund_of_expired_units_changes_nothing`;
//!   `tests/given_back.rs`: `a_busy_bucket_gets_the_whole_difference_back`,
//!   `time_and_a_settlement_never_give_back_the_same_units`, `reservations_of_a_bucket_keep_its_bound`,
//!   `reservations_one_after_another_keep_the_bound_of_the_bucket`.
//! * A force (an operation for units that were used already) counts its units even if they do not fit. Even with
//!   forces, takes get no more units than the bound allows. Fixed windows and counters count all units of a force, up
//!   to [`MAX_UNITS`]. A log keeps at most one unit more than its hard capacity, or as many units as it had before the
//!   force, if that is more. A bucket counts the units of a force until its debt (the time that it needs to refill) is
//!   2 * B * T, with B and T of the quota of the force. If two quotas share a bucket, the debt may already be larger
//!   than 2 * B * T. Then the force adds nothing. A concurrency limit refuses every force. `tests/properties.rs`:
//!   `a_force_counts_whatever_is_left`, `forces_do_not_widen_the_bound`; `tests/several_quotas.rs`:
//!   `a_force_counts_up_to_the_greatest_debt_of_its_own_quota`.
//! * If a quota has a soft limit, a take above the soft limit is allowed and flagged. A take above the hard limit is
//!   refused. Then L, B and Q + 1 in the formulas here stand for the hard limit. `tests/properties.rs`:
//!   `a_soft_limit_flags_and_the_hard_one_refuses`.
//! * A penalty refuses a key for exactly its duration, counted from the first refusal. If refusals are charged, the
//!   duration is counted from the last refusal. `tests/properties.rs`: `a_penalty_lasts_as_long_as_it_says`.
//! * A share is the part of a quota that one of several servers may use. In the long run, all shares of a quota
//!   together admit no more than the quota. In a single instant, they admit at most the capacity of the quota and one
//!   unit more for each share. `tests/shares.rs`: `shares_are_those_of_the_table`,
//!   `shares_sum_to_no_more_than_the_quota`, `any_share_of_any_quota_answers`. The test file `tests/bounds.rs` tests
//!   the bounds of shares too.
//! * If the limit or the burst of a quota is changed, the quota continues with what was used before. If the algorithm,
//!   the window, its anchor or its number of segments is changed, the quota counts from zero. A queue also counts from
//!   zero if its T is changed. T depends on the limit.
//!   `tests/requests.rs`: `a_quota_change_neither_forgives_nor_multiplies`, `a_changed_window_counts_from_zero`.
//! * Several quotas can share a state. A hit under one quota then never lowers what was counted under another quota,
//!   unless the hit is a refund or a reset. For buckets, the bound in an interval of length s is the largest B plus s
//!   times the largest rate 1/T. For windows, counters and logs, the bound is that of the largest limit. The units that
//!   were given back in the interval are added to these bounds. A quota matters for these bounds only if a hit under
//!   this quota was charged in the interval.
//!   `tests/several_quotas.rs`: `several_quotas_keep_the_bound_of_the_largest`,
//!   `no_hit_lowers_what_was_counted_under_another_quota`,
//!   `what_another_quota_refuses_changes_nothing_and_its_wait_is_exact`,
//!   `a_limit_cut_and_restored_admits_nothing_extra`, `several_quotas_reach_the_bound_of_the_largest`,
//!   `every_small_trace_of_two_quotas`, `the_largest_depth_and_the_largest_rate_may_come_from_two_quotas`,
//!   `several_quotas_decide_as_the_model`, `a_shorter_penalty_does_not_end_a_longer_one`.
//! * A request is late if the store has already decided another request at a newer time. Windows, counters and logs
//!   count a late request in their newest window, segment or entry, so they keep their bound. In a bucket, requests
//!   that are late by at most d widen the bound in an interval of length s to B + (s + 2 * d)/T. The waits of late
//!   requests are exact. `tests/clocks.rs`: `late_requests_keep_the_bound`,
//!   `late_requests_get_exact_waits_and_true_counts`; `tests/late_requests.rs`:
//!   `late_requests_of_a_faster_quota_forgive_nothing`, `only_the_conversion_of_debt_uses_the_newest_time`,
//!   `a_late_request_has_its_turn_in_a_queue_by_its_own_time`.
//! * If the clock steps back, a refusal gets longer by at most the length of the step. Even after a large step,
//!   windows, logs and counters refuse for at most two windows and one segment. A bucket refuses for less than 2 * (2 *
//!   B * T + 1 s), with B and T of the quota that charged it last. A penalty gets longer by at most one second, and a
//!   lease does not get longer.
//!   `tests/clocks.rs`: `a_clock_that_steps_back_refuses_for_no_longer_than_the_step`,
//!   `a_clock_that_steps_back_blocks_a_bucket_for_less_than_twice_its_greatest_debt_and_a_second`,
//!   `a_clock_that_steps_back_adds_nothing_to_a_bucket`,
//!   `a_window_is_forgotten_when_the_clock_steps_back_by_more_than_its_length`,
//!   `a_clock_that_steps_back_makes_no_lease_longer_and_a_penalty_by_a_second_at_most`.
//! * If the clock jumps forward by J, a bucket gets at most min(B, J/T) units more.
//!   `tests/clocks.rs`: `a_clock_that_jumps_forward_adds_what_would_refill_in_the_jump`.
//! * A bucket that gets many hits refills as fast as a bucket that gets few hits, because rounding errors do not add
//!   up. `tests/properties.rs`: `refill_does_not_drift_however_often_it_is_polled`.
//! * From the time of `State::expires_at` on, a state decides like an empty state. One nanosecond earlier, it still
//!   decides differently. (`Packed::expires_at` can be up to one window later.)
//!   `tests/properties.rs`: `a_state_equals_an_empty_one_from_its_expiry_on`.
//! * A request gets an answer whatever integers are in its fields. No result wraps around, and nothing panics.
//!   `tests/requests.rs`: `extremes_are_answered`; `tests/extremes.rs`:
//!   `t_is_the_least_that_admits_no_more_than_the_limit`, `a_bucket_admits_by_the_formula_at_all_extremes`,
//!   `another_t_decides_as_by_converted_debt_rounded_up_at_all_extremes`,
//!   `segments_are_weighted_exactly_at_all_extremes`.
//! * A state can be encoded as words (64-bit integers). The decoded state decides like the state that was encoded.
//!   Words that are not a state are rejected. `tests/encoding.rs`: `a_state_that_was_written_down_decides_as_before`,
//!   `no_words_make_the_kernel_panic`, `no_changed_word_makes_the_kernel_panic`,
//!   `no_sound_integers_make_the_kernel_panic`.
//! * Every answer is equal, in every field, to the answer of a model. The model is so simple that a reader can see that
//!   it is correct. `tests/oracles.rs`: `token_bucket_decides_as_the_model` and the tests beside it;
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
pub use store::{Circuit, Store, StoreCalls, StoreError, StoreErrorKind, StoreHealth, Timing};
pub use time::Time;
pub use verdict::{Source, Verdict};
