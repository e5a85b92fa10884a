//! Helpers for the tests of several crates: random numbers, free ports, polling with a deadline, processes that
//! end with the test, redis-servers, Redis
//! Clusters, and a store that a test can break.
//!
//! Only tests depend on this crate.

#![allow(clippy::disallowed_methods, reason = "a test that polls needs real time")]

mod eventually;
mod port;
mod process;
mod random;
mod redis_cluster;
mod redis_server;
#[cfg(not(loom))]
mod remote;

pub use eventually::{DEADLINE, eventually};
pub use port::free_port;
pub use process::start_bound;
pub use random::Random;
pub use redis_cluster::start_cluster;
pub use redis_server::{RedisServer, folder_in_memory, redis_program, start_on_free_port, start_until_logged};
#[cfg(not(loom))]
pub use remote::{Fault, Remote};
