//! The tests of the limiter. They are one program, because each further program would have to be linked too.

mod conformance;
mod fallback;
mod fallback_bounds;
mod permit;
mod reservation;
mod several_quotas;
mod shaky;
mod snapshot;
mod support;
