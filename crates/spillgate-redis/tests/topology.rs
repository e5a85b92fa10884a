//! Tests the store on real clusters, and on real primaries behind sentinels. The tests send requests with hits in
//! several slots, move slots, and kill, demote and restart primaries.

mod coverage;
mod failover;
mod load_on_one_key;
mod migration;
mod outage;
mod requests;
mod sentinel_reports;
pub(crate) mod sentinel_setup;
mod sentinels;
