//! The tests of the crate that programs depend on. One program has them all, so that there is one to link. Each module
//! says what it tests.

mod examples;
mod from_governor;
mod guarantees;
mod pages;
mod paths;
