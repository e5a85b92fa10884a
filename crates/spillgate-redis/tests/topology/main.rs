//! Clusters and primaries that sentinels name, of real servers: requests in several slots, slots that move, primaries that
//! die, are demoted and come back.

mod cluster;
#[path = "../transport/common.rs"]
mod common;
mod coverage;
mod failover;
mod hearsay;
#[path = "../transport/load.rs"]
mod load;
mod migration;
mod outage;
#[path = "../support/port.rs"]
mod port;
mod requests;
mod sentinels;
#[path = "../transport/server.rs"]
mod server;
mod takers;
mod trio;

use common::{PATIENCE, a_day, patient, take, until, until_decided};
