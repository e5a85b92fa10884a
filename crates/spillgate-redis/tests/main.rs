//! The tests of the Redis store. They start their own Redis servers, on free ports.
//!
//! All tests are in one program, so that only one program has to be linked. Each module says what it tests.

mod exactness;
mod modes;
mod regions;
mod scripts;
mod sources;
mod support;
mod topology;
mod transport;
