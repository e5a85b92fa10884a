//! The rate-limiting decision on Redis or Valkey.
//!
//! One script decides all hits of a request that live in one slot, in one atomic step: it reads their states, judges,
//! charges, and answers with the states *before*. From these the kernel ([`spillgate_core::decide`]) works out what
//! to tell the caller, so that `remaining`, `retry_after` and the rest are computed in one place for all stores.
//!
//! A [`ScriptCall`] knows no client library and opens no connection: it says which [`Script`] to run with which keys and
//! arguments, and takes the bytes of the reply. [`RedisStore`] asks: one server, the primary that sentinels name, or the
//! nodes of a cluster, over connections that many requests share and that are made again whenever they end.
//!
//! A program that shares its limits with others, or with servers that have the same key secret and rules:
//!
//! ```no_run
//! # async fn example(secret: [u8; 16]) -> Result<(), Box<dyn std::error::Error>> {
//! use std::num::NonZeroU32;
//! use spillgate::{Fallback, FallbackStore, KeyHasher, Limiter, MemoryOptions, MemoryStore, Quota, SystemClock};
//! use spillgate_redis::{RedisStore, Settings};
//!
//! let redis = RedisStore::new(&Settings::new("redis://10.0.0.7/"))?;
//! let three = NonZeroU32::new(3).ok_or("no nodes")?; // each admits a third of a limit while Redis fails
//! let store = FallbackStore::new(redis, Fallback::new(MemoryStore::new(MemoryOptions::default()), three));
//! let limiter = Limiter::with_keys(store, SystemClock::start(), KeyHasher::with_secret(secret));
//! let login = Quota::per_minute(5).build()?;
//! let decision = limiter.hit("login", "user-7", &login, 1).await?;
//! println!("allowed: {}, {} left", decision.allowed, decision.remaining);
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees
//!
//! * Decisions, verdicts and states are those of the kernel on the same requests and times, bit for bit:
//!   `tests/scripts/differential`.
//! * Many tasks on one key are admitted exactly the limit: `tests/scripts/store.rs`.
//! * Every request is decided within its time or fails as one of [`ErrorKind`]'s classes, whatever becomes of the server;
//!   none is charged twice: `tests/transport`.
//! * A refusal that is repeated without asking is the kernel's on the states that the server has, at the verdict's time,
//!   unless others have changed them within [`Settings::deny_cache_max_age`], or a take that failed has. States
//!   that are not known are left out: `src/deny_cache/tests`, `tests/modes/deny_cache.rs`, `tests/scripts/repeated.rs`.
//! * Without scripts, too, no window admits more than its limit: `tests/modes/transaction.rs`.
//! * A cluster's slots decide together what the kernel decides, also while they move, and a replica that is promoted is
//!   found without help: `tests/topology`. While a slot moves, a request of several states in it is decided if all of
//!   them are still where it comes from, or all have arrived; else it waits for that, and fails as [`ErrorKind::Moved`] if
//!   it waits in vain. So fails one of several states that are all new: Redis makes them in neither place.
//! * What a state matters for, its key lives for, and no longer than a millisecond more: `tests/scripts/keys.rs`.

mod cluster;
mod command;
mod connect;
mod connection;
mod deadline;
mod deny_cache;
pub mod doctor;
mod error;
mod modes;
mod node;
mod settings;
mod store;

pub use command::key::RedisKey;
pub use command::request::{Decoded, ScriptCall, supports};
pub use command::script::{SCRIPT_COMMANDS, Script};
pub use command::state_codec::decode_state;
pub use command::transaction::TRANSACTION_COMMANDS;
pub use error::{Error, ErrorKind};
pub use node::status::NodeStatus;
pub use settings::{LogForm, Settings, Tls};
pub use spillgate_core::Circuit;
pub use store::RedisStore;

/// The Rust of the book's page compiles as it stands.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/src/how-to/embed-redis.md")]
struct Page;
