//! The limiter that a Rust program embeds, with its stores, clocks and keys.
//!
//! The decision itself is in [`spillgate_core`], and this crate re-exports all items of `spillgate_core`. This crate
//! adds the [`Limiter`], which decides each request with one call of a store. It also adds the in-process
//! [`MemoryStore`], limits in memory of fixed size ([`sketch`]), and a [`FallbackStore`] that decides while a shared
//! store fails.
//!
//! Programs depend on the crate `spillgate`, which re-exports this one.

#![warn(missing_docs)]

pub mod clock;
mod embedded;
mod fallback;
#[cfg(feature = "headers")]
pub mod headers;
mod key;
mod limiter;
#[cfg_attr(
    not(feature = "snapshot"),
    allow(dead_code, reason = "only snapshots move states out of the tables and back")
)]
mod memory;
#[cfg(feature = "tokio")]
mod permit;
pub mod recipes;
#[cfg(feature = "tokio")]
pub mod regions;
#[cfg(feature = "tokio")]
pub mod reservation;
pub mod sketch;
mod sync;
pub mod units;

#[cfg(feature = "tokio")]
pub use clock::TokioClock;
pub use clock::{Clock, ManualClock, SystemClock, TickingClock};
pub use fallback::{FallbackStore, is_local_receipt};
pub use key::{Key, KeyBuilder, KeyHasher, address_of, client_of, network_of};
pub use limiter::Limiter;
pub use memory::{MemoryOptions, MemoryStore, OnFull};
#[cfg(feature = "snapshot")]
pub use memory::{Restored, Saved, SnapshotError};
#[cfg(feature = "tokio")]
pub use permit::Permit;
#[cfg(feature = "tokio")]
pub use reservation::{Reservation, Reservations};
pub use spillgate_core::*;
