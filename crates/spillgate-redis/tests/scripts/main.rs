//! The scripts on a real Redis, held to the kernel.

mod conformance;
mod differential;
mod keys;
mod older;
#[path = "../support/port.rs"]
mod port;
mod products;
mod repeated;
mod replies;
mod store;
mod support;
