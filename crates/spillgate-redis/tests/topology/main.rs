//! Clusters and primaries that sentinels name, of real servers: requests in several slots, slots that move, primaries that
//! die, are demoted and come back.

mod cluster;
#[path = "../transport/common.rs"]
mod common;
mod coverage;
mod failover;
#[path = "../transport/load.rs"]
mod load;
mod migration;
mod requests;
#[path = "../transport/server.rs"]
mod server;

use common::{PATIENCE, a_day, patient, take, until, until_decided};
