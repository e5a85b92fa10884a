//! Tests the connection to a single server: deadlines, the circuit breaker, and faults of the server. For example, the
//! server is killed, freezes, has no memory left, or sends an invalid reply.

mod answers;
mod batches;
mod connections;
mod faults;
mod invalid_replies;
mod lists;
mod proxy;
mod start;
mod urls;
