//! Tests of the scripts on a real Redis, compared with the kernel.

mod conformance;
mod differential;
mod keys;
mod older_states;
mod products;
mod repeated;
mod replies;
mod store;
