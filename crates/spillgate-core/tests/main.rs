//! All tests of the kernel in one program, so that only one program has to be linked.

mod bounds;
mod clocks;
mod encoding;
mod exhaustive;
mod extremes;
mod given_back;
mod guarantees;
mod hazards;
mod late_requests;
mod oracles;
mod properties;
mod regions;
mod requests;
mod several_quotas;
mod shares;
mod support;
mod traces;
mod waits;
