//! Keeps the limits of other services: callers wait for their turn, and calls obey the answers.
//!
//! Programs depend on the crate `spillgate`, which re-exports these modules.

#![warn(missing_docs)]

#[cfg(feature = "client")]
pub mod client;
pub mod pace;
