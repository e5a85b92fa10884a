//! Tests of the real binary with a real Redis: shared counts, outages of the store, and the commands that use the store.
//!
//! Only real servers show that several processes count together, and how they behave while Redis is down.

mod cli_support;
mod support;

#[path = "store/commands.rs"]
mod commands;
#[path = "store/doctor.rs"]
mod doctor;
#[path = "store/examples.rs"]
mod examples;
#[path = "store/explain.rs"]
mod explain;
#[path = "store/failing.rs"]
mod failing;
#[path = "store/faults.rs"]
mod faults;
#[path = "store/fleet.rs"]
mod fleet;
#[path = "store/lists.rs"]
mod lists;
#[path = "store/overview.rs"]
mod overview;
#[path = "store/reservations.rs"]
mod reservations;
#[path = "store/settings.rs"]
mod settings;
#[path = "store/several_limits.rs"]
mod several_limits;
#[path = "store/sharing.rs"]
mod sharing;
#[path = "store/sketches.rs"]
mod sketches;
#[path = "store/ways.rs"]
mod ways;
#[path = "store/writes.rs"]
mod writes;
