//! The real binary on a real Redis: what a fleet shares, what becomes of it when the store fails, and the commands that
//! ask the store.

mod cli_support;
mod support;

#[path = "store/commands.rs"]
mod commands;
#[path = "store/doctor.rs"]
mod doctor;
#[path = "store/examples.rs"]
mod examples;
#[path = "store/failing.rs"]
mod failing;
#[path = "store/faults.rs"]
mod faults;
#[path = "store/fleet.rs"]
mod fleet;
#[path = "store/settings.rs"]
mod settings;
#[path = "store/several_limits.rs"]
mod several_limits;
#[path = "store/sharing.rs"]
mod sharing;
#[path = "store/ways.rs"]
mod ways;
