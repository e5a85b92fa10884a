//! An exact, fast rate limiter that you embed in a program.
//!
//! The decision itself is in [`spillgate_core`], and this crate re-exports all items of `spillgate_core`. This crate
//! adds what a program needs around the decision: a [`Limiter`] that decides each request with one call of a store, the
//! in-process [`MemoryStore`], and a [`FallbackStore`] that decides while a shared store fails.
//!
//! ```
//! use spillgate::{Limiter, Quota};
//!
//! const LOGIN: Quota = Quota::per_minute(5).constant();
//!
//! let limiter = Limiter::in_memory();
//! for left in (0..5).rev() {
//!     assert_eq!(limiter.take_now(&LOGIN, ("login", "user-7"), 1).remaining, left);
//! }
//! let refused = limiter.take_now(&LOGIN, ("login", "user-7"), 1);
//! assert!(!refused.allowed && refused.retry_after.secs_ceil() > Some(0));
//! ```
//!
//! The [`guide`] has a page for each of these: which algorithm to choose, middleware, a fleet that shares limits,
//! tests, and the way from governor.
//!
//! # Features
//!
//! Without features, this crate has the limiter and the memory store, and needs at most 17 crates in all.
//! `scripts/features.sh` checks this number. Each feature adds a part.
//!
//! | feature | what it adds | crates |
//! |---|---|---|
//! | `rules` | `rules`: rules files in YAML that turn requests into limits; `text`: the errors in rules files, each with its line and a fix | `serde`, `serde-saphyr` |
//! | `headers` | `headers`: header fields that tell an HTTP client its limits | `itoa` |
//! | `insight` | `insight`: what a limit does to its callers, with a verdict | `serde` |
//! | `snapshot` | `Limiter::save` and `Limiter::restored`: the memory store in a file | nothing |
//! | `tokio` | `Limiter::hold`: permits that are renewed while they are held; `Reservations`: estimates that are corrected later; `TokioClock`: a clock for tests that pause tokio's time | `tokio` |
//! | `pace` | `pace`: callers wait for their turn, in the order in which they came | `tokio` |
//! | `client` | `client`: a layer for HTTP clients that adapts to the answers of the service that they call | `http`, `tower-service`, `sfv` and others |
//! | `tower` | `tower`: a layer that limits the requests of a service | `http`, `tower-service` and others |
//! | `axum`, `tonic` | the layer finds the client's address, and the route of axum | `axum`, `tonic` |
//!
//! # Guarantees
//!
//! Each guarantee comes with the tests that check it. The page of [`spillgate_core`] has the guarantees of the decision
//! itself.
//!
//! * The memory store decides as the core does, in whatever form it stores a state.
//!   `tests/conformance.rs`: `the_memory_store_passes_every_trace`, `random_requests_are_decided_as_by_the_kernel`;
//!   `src/memory/tests/compared.rs`: `a_store_that_grows_sweeps_and_shrinks_decides_as_the_reference`,
//!   `counts_that_fit_no_slot_are_exact`.
//! * Any number of threads admit as much as one thread would.
//!   `src/memory/tests.rs`: `threads_on_one_key_admit_exactly_the_limit`;
//!   `src/memory/tests/threads.rs`: `no_unit_is_lost_while_tables_grow_under_threads`. The next tests check every order
//!   of events with at most two preemptions (switches away from a thread that could continue).
//!   `src/memory/shards/tests/model.rs`:
//!   `two_threads_on_a_new_key_admit_exactly_the_limit`,
//!   `no_unit_is_lost_or_counted_twice_while_the_table_is_replaced`,
//!   `a_request_of_two_keys_is_charged_once_while_its_table_is_replaced`.
//! * Requests with the same keys in any order do not deadlock.
//!   `src/memory/tests.rs`: `requests_that_lock_the_same_shards_in_any_order_do_not_deadlock`;
//!   `src/memory/shards/tests/model.rs`: `requests_over_the_same_two_buckets_neither_deadlock_nor_lose_units`,
//!   `a_chain_into_the_next_bucket_and_a_request_that_starts_there_do_not_deadlock`.
//! * The hits of a batch get the same decisions as in single calls.
//!   `src/memory/tests/compared.rs`: `a_batch_decides_as_single_calls_do`.
//! * A store can have exactly [`MemoryOptions::max_keys`] states, and never more.
//!   `src/memory/tests/threads.rs`: `max_keys_is_exact_over_all_shards_and_threads`;
//!   `src/memory/tests.rs`: `one_request_with_many_new_keys_cannot_exceed_the_bound`.
//! * States that do not fit a slot of the table take at most [`MemoryOptions::max_heap_bytes`], plus the growth of one
//!   state for each thread, plus the counts of windows above 2^38 units.
//!   `src/memory/tests.rs`: `the_bytes_of_logs_are_bounded`, `the_bytes_of_token_buckets_that_fit_no_slot_are_bounded`;
//!   `src/memory/tests/compared.rs`: `removed_states_free_their_bytes_in_the_slab`.
//! * A full store still counts the keys that it has, but makes no record of a new reservation, because a record is a new
//!   key. [`OnFull`] says whether requests with other keys are refused without a charge, allowed without being counted, or
//!   limited by a sketch.
//!   `src/memory/tests.rs`: `a_full_store_refuses_new_keys_and_keeps_the_old_ones`,
//!   `a_request_without_capacity_charges_none_of_its_limits`, `a_full_store_that_allows_counts_nothing`.
//! * With [`OnFull::Sketch`], no new key of a full store exceeds its limit, and a key that gets a state later does not
//!   begin at zero. A limit of a day does not disturb shorter limits.
//!   `src/memory/tests/overflow.rs`:
//!   `no_key_is_admitted_above_its_bound_while_the_store_is_full_again_and_again`,
//!   `a_key_that_gets_a_state_starts_with_what_it_has_used`,
//!   `threads_on_new_keys_of_a_full_store_admit_exactly_the_limit`,
//!   `a_limit_of_a_day_does_not_disturb_shorter_limits_in_the_sketch`.
//! * No key of a [`Sketch`](sketch::Sketch) is admitted above the bound of its limit, on any number of threads.
//!   `src/sketch/tests/bounds.rs`: `no_key_is_admitted_above_its_bound_while_all_keys_share_a_few_cells`,
//!   `eight_threads_on_one_key_admit_exactly_the_limit`,
//!   `eight_threads_on_many_keys_with_the_same_cells_keep_every_bound`,
//!   `eight_threads_keep_every_bound_while_windows_change`, `a_rotation_admits_nothing_again`;
//!   `src/sketch/tests/model.rs`: `two_threads_on_a_key_admit_exactly_the_limit`,
//!   `keys_with_the_same_cells_and_other_locks_never_lower_a_cell`.
//! * A clock that is set back gives a key of a sketch at most one limit more, and stops it only for a short time.
//!   `src/sketch/tests/clocks.rs`: `a_clock_that_is_set_back_gives_a_key_at_most_one_limit_more`,
//!   `a_clock_that_was_ahead_once_stops_no_key_for_longer_than_exact_states`;
//!   `src/memory/tests/overflow.rs`: `a_clock_that_was_ahead_once_refuses_keys_of_the_sketch_only_for_a_short_time`,
//!   `a_clock_that_is_set_back_gives_no_key_of_the_sketch_a_second_limit_in_a_window`.
//! * A key of a sketch that shares its cells with no other key is decided as by the core.
//!   `src/sketch/tests/exact.rs`: `a_key_with_cells_of_its_own_is_decided_as_by_the_kernel`,
//!   `a_request_of_several_hits_is_decided_as_by_the_kernel`.
//! * A state is removed after it has expired, and never before.
//!   `src/memory/tests.rs`: `expired_states_are_swept_as_new_keys_come`;
//!   `src/memory/tests/threads.rs`: `live_keys_admit_no_more_while_other_keys_come_and_expire`;
//!   `src/memory/shards/tests/model.rs`: `an_expired_entry_is_swept_or_reused_but_never_both`.
//! * A store that is restored from a snapshot decides as if it had never been saved.
//!   `tests/snapshot.rs`: `a_restored_store_decides_as_if_it_had_never_been_saved`, `a_limiter_finds_its_keys_again`,
//!   `expired_states_are_dropped`.
//! * A snapshot that was cut or altered, and a file of another kind, is rejected as a whole.
//!   `tests/snapshot.rs`: `a_torn_file_is_rejected_wherever_it_is_torn`, `no_flipped_bit_goes_unnoticed`,
//!   `a_correct_checksum_is_not_enough`, `other_files_and_other_formats_are_different_errors`.
//! * A snapshot that is taken under load has each key exactly once, with a state that the key had during the snapshot.
//!   `tests/snapshot.rs`: `a_snapshot_under_load_has_each_key_once_as_it_was_at_some_time`.
//! * A save that fails does not change the last snapshot, with the one exception that `MemoryStore::save` describes.
//!   `tests/snapshot.rs`: `a_save_that_fails_keeps_the_last_snapshot_and_leaves_no_draft`.
//! * While a shared store fails, the policies of the limits answer every operation, except refunds, renewals and
//!   resets. In any period, all nodes together admit at most the maximum of the limit, plus the maximum of each node's
//!   share. A share is one node's part of a limit.
//!   `tests/fallback.rs`: `allow_allows_and_deny_refuses_every_request`,
//!   `error_returns_the_error_of_the_store_unless_its_hit_is_a_shadow`, `local_decides_by_the_share_of_this_node`;
//!   `tests/fallback_bounds.rs`: `nodes_admit_no_more_than_the_limit_and_their_shares`,
//!   `nodes_hold_no_more_permits_than_the_limit_and_their_shares`, `the_bound_at_once_is_reached_and_no_more`,
//!   `no_decision_is_lost_while_the_store_comes_and_goes`.
//! * While a shared store fails, a request takes units from all its local limits or from none.
//!   `tests/fallback_bounds.rs`: `a_request_takes_from_all_its_local_limits_or_from_none_whatever_the_policies`,
//!   `each_request_is_decided_as_by_the_kernel_locally_or_in_the_store`.
//! * Units that were taken locally are refunded and renewed locally. If a refund of units of the shared store fails,
//!   the caller gets the error.
//!   `tests/fallback.rs`: `a_local_take_is_refunded_locally`, `local_leases_are_renewed_and_released_locally`,
//!   `no_policy_refunds_renews_or_resets_takes_of_the_store`, `a_reset_applies_to_both_stores`.
//! * A reservation is settled at most once, and only before its life ends. If no commit is larger than its estimate, the
//!   reservations of an interval of length s use at most f(s) units. For token buckets, the units that are given back in the
//!   interval of earlier reservations come on top.
//!   `tests/reservation.rs`: `only_the_first_settlement_changes_something`, `a_reservation_is_gone_when_its_life_ends`;
//!   `../spillgate-redis/tests/sources/reservations.rs`: `random_reservations_keep_the_bound_in_memory`,
//!   `random_reservations_keep_the_bound_on_redis`, `time_and_a_settlement_never_give_back_the_same_units`.
//! * The callers of a pacer go in the order in which they came. Each turn that was reserved is used, or counted as lost.
//!   `tests/pace.rs`: `cancelled_turns_go_to_the_next_caller`;
//!   `tests/waiters.rs`: `deadlines_are_met_among_ten_thousand_callers`.
//! * The way in which the parts of a descriptor are joined never makes two different descriptors share a counter.
//!   `tests/rules_plan.rs`: `keys_distinguish_domains_entries_and_their_order`;
//!   `tests/rules_matching.rs`: `joined_names_do_not_collide`.
//! * `slot_by` names an entry of the descriptor. Limits of one domain with the same `slot_by`, and the same value of
//!   this entry, are in one slot of a Redis Cluster. They count as they would without `slot_by`.
//!   `tests/rules_plan.rs`: `slot_by_puts_limits_of_several_descriptors_into_one_slot`,
//!   `slot_by_distinguishes_values_as_the_descriptor_does`, `values_that_share_a_counter_share_its_slot`.
//! * A descriptor finds the same rule that a simple search through all rules would find.
//!   `tests/rules_matching.rs`: `matches_as_a_naive_walk_does`.
//! * Any text that is read as rules gives rules, or errors on the lines that are wrong.
//!   `tests/rules_hostile.rs`: `random_bytes_end_well`, `random_yaml_signs_end_well`, `broken_files_end_well`;
//!   `tests/rules_broken.rs`: `errors_are_exactly_on_the_marked_lines`.

#![warn(missing_docs)]

#[cfg(feature = "client")]
pub mod client;
pub mod clock;
mod embedded;
mod fallback;
#[cfg(any(doc, doctest))]
pub mod guide;
#[cfg(feature = "headers")]
pub mod headers;
#[cfg(feature = "insight")]
pub mod insight;
mod key;
mod limiter;
#[cfg_attr(
    not(feature = "snapshot"),
    allow(dead_code, reason = "only snapshots move states out of the tables and back")
)]
mod memory;
#[cfg(feature = "pace")]
pub mod pace;
#[cfg(feature = "tokio")]
mod permit;
pub mod recipes;
#[cfg(feature = "tokio")]
pub mod reservation;
#[cfg(feature = "rules")]
pub mod rules;
pub mod sketch;
mod sync;
#[cfg(feature = "tower")]
pub mod tower;
pub mod units;

#[cfg(feature = "tokio")]
pub use clock::TokioClock;
pub use clock::{Clock, ManualClock, SystemClock, TickingClock};
pub use fallback::FallbackStore;
pub use key::{Key, KeyBuilder, KeyHasher, network_of};
pub use limiter::Limiter;
pub use memory::{MemoryOptions, MemoryStore, OnFull};
#[cfg(feature = "snapshot")]
pub use memory::{Restored, Saved, SnapshotError};
#[cfg(feature = "tokio")]
pub use permit::Permit;
#[cfg(feature = "tokio")]
pub use reservation::{Reservation, Reservations};
pub use spillgate_core::*;
#[cfg(feature = "rules")]
pub use spillgate_text as text;

/// The Rust examples of the project's pages compile and run without changes.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/src/how-to/algorithms.md")]
    struct Algorithms;
    #[cfg_attr(feature = "snapshot", doc = include_str!("../../../docs/src/how-to/embed.md"))]
    struct Embed;
    #[cfg_attr(feature = "axum", doc = include_str!("../../../docs/src/how-to/middleware.md"))]
    struct Middleware;
    #[cfg_attr(feature = "axum", doc = include_str!("../../../docs/src/how-to/from-governor.md"))]
    struct FromGovernor;
    #[cfg_attr(feature = "tokio", doc = include_str!("../../../docs/src/how-to/llm-tokens.md"))]
    struct LlmTokens;
    #[cfg_attr(feature = "client", doc = include_str!("../../../docs/src/how-to/outbound.md"))]
    struct Outbound;
    #[cfg_attr(feature = "axum", doc = include_str!("../../../docs/src/how-to/test-limits.md"))]
    struct TestLimits;
}
