//! An exact, fast rate limiter to embed.
//!
//! The decision itself is in [`spillgate_core`], whose items are repeated here; this crate adds
//! what a program needs around it: a [`Limiter`] that reads the clock once and asks a store once,
//! the in-process [`MemoryStore`], [rules] read from YAML, and [header fields](headers)
//! for the answer.
//!
//! ```
//! use spillgate::{Limiter, MemoryOptions, MemoryStore, Quota};
//!
//! let limiter = Limiter::new(MemoryStore::new(MemoryOptions::default()));
//! let login = Quota::per_minute(5).build()?;
//! for left in (0..5).rev() {
//!     assert_eq!(limiter.hit_now("login", "user-7", &login, 1).remaining, left);
//! }
//! let refused = limiter.hit_now("login", "user-7", &login, 1);
//! assert!(!refused.allowed && refused.retry_after.secs_ceil() > Some(0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod clock;
mod embedded;
pub mod headers;
mod key;
mod limiter;
mod memory;
pub mod rules;

pub use clock::{Clock, ManualClock, SystemClock};
pub use key::{KeyBuilder, KeyHasher};
pub use limiter::Limiter;
pub use memory::{MemoryOptions, MemoryStore, OnFull, Restored, Saved, SnapshotError};
pub use spillgate_core::*;
