//! Tests the store on real clusters, and on real primaries that sentinels name. The tests send requests with hits in
//! several slots, move slots, and kill, demote and restart primaries.

mod cluster;
#[path = "../transport/common.rs"]
mod common;
mod coverage;
mod failover;
#[path = "../transport/load.rs"]
mod load;
mod load_on_one_key;
mod migration;
mod outage;
mod requests;
mod sentinel_reports;
mod sentinel_setup;
mod sentinels;
#[path = "../transport/server.rs"]
#[allow(dead_code, reason = "the tests of transport use all of this file")]
mod server;

use common::{PATIENCE, a_day, take, until, until_decided, with_long_timeouts};
