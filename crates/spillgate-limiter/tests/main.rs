//! The tests of the limiter. All of them are in one program, because linking one program takes less time than linking
//! several.

mod conformance;
mod fallback;
mod fallback_bounds;
mod new_keys;
mod permit;
mod region_store;
mod reservation;
mod several_quotas;
mod shaky;
mod snapshot;
mod support;
