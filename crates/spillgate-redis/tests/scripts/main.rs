//! Tests of the scripts on a real Redis, compared with the kernel.

mod conformance;
mod differential;
mod keys;
mod older_states;
#[path = "../support/port.rs"]
mod port;
mod products;
mod repeated;
mod replies;
mod store;
mod support;
