//! The tests of the limiter. One program has them all, so that there is one to link. Each module says what it tests.

mod conformance;
mod fallback;
mod fallback_bounds;
mod permit;
mod reservation;
mod several_quotas;
mod shaky;
mod snapshot;
mod support;
