//! What the tests of several crates need: random numbers, free ports, polling with a deadline, and a Redis of their own.
//!
//! Each of these was written several times, and a fix in one copy did not reach the others. Only tests depend on this crate.

#![allow(clippy::disallowed_methods, reason = "a test that polls needs real time")]

mod eventually;
mod port;
mod random;
mod redis_server;

pub use eventually::{DEADLINE, eventually};
pub use port::free_port;
pub use random::Random;
pub use redis_server::{RedisServer, redis_program, start_until_logged};
