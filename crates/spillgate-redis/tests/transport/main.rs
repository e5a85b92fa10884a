//! The way to a server: connections, deadlines, the breaker, and every fault that a server on loopback can be given.

mod answers;
mod common;
mod faults;
mod garbled;
mod links;
mod load;
#[path = "../support/port.rs"]
mod port;
mod proxy;
mod server;
mod start;
mod together;
mod ways;

use common::{PATIENCE, a_day, patient, take, until, until_decided};
