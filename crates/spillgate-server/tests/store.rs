//! Tests of the real binary with a real Redis: shared counts, outages of the store, and the commands that use the store.
//!
//! Only real servers show that several processes count together, and how they behave while Redis is down.

mod bodies;
mod commands;
mod doctor;
mod examples;
mod explain;
mod failing;
mod faults;
mod fleet;
mod hangups;
mod lists;
mod new_keys;
mod overview;
mod regions;
mod reservations;
mod rotation;
mod settings;
mod several_limits;
mod sharing;
mod sketches;
mod ways;
mod writes;
