//! Tests the scripts on a real Redis. Many tests compare them with the kernel.

mod conformance;
mod differential;
mod keys;
mod merge;
mod older_states;
mod products;
mod repeated;
mod replies;
mod store;
