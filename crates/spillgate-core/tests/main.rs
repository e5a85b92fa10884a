//! The tests of the kernel. One program has them all, so that there is one to link. Each module says what it tests.

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
mod requests;
mod several_quotas;
mod shares;
mod support;
mod traces;
mod waits;
