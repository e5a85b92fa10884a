//! All tests of this crate in one program, so that only one program has to be linked.

mod examples;
mod from_governor;
mod guarantees;
mod pages;
mod paths;
