//! Keeps the limits of other services: calls wait for their turn, and obey what the answers of the service say.
//!
//! Programs depend on the crate `spillgate`, which re-exports these modules.

#![warn(missing_docs)]

#[cfg(feature = "client")]
pub mod client;
pub mod pace;
