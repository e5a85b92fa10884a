//! Tests the connection to a single Redis server: deadlines, the circuit breaker, and faults of Redis. For example,
//! Redis is killed, freezes, has no memory left, or sends an invalid reply.

mod answers;
mod batches;
mod connections;
mod faults;
mod invalid_replies;
mod late;
mod lists;
pub(crate) mod proxy;
mod start;
mod urls;
