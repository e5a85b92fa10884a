//! Tests the connection to a server: deadlines, the circuit breaker, and every fault that a server on the local machine
//! can have.

mod answers;
mod batches;
mod common;
mod connections;
mod faults;
mod invalid_replies;
mod load;
mod proxy;
mod server;
mod start;
mod urls;

use common::{PATIENCE, a_day, take, until, until_decided, with_long_timeouts};
