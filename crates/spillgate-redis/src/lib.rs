//! Rate-limiting decisions on Redis or Valkey.
//!
//! Servers and programs that share one store share their limits. Without this crate each process would count by itself,
//! and a limit of 10 would be 10 in each of them.
//!
//! One script decides all hits of a request whose states are in one slot, in one atomic step. It reads the states,
//! decides, charges, and returns the states as they were *before*. The kernel ([`spillgate_core::decide`]) computes the
//! answer from these states. So `remaining`, `retry_after` and the rest are computed in one place for all stores.
//!
//! [`RedisStore`] is the store. It reaches one server, the primary that sentinels name, or the nodes of a cluster. Many
//! requests share its connections, and a connection that ends is made again.
//!
//! [`ScriptCall`] is the part without a connection: which [`Script`] to run, with which keys and arguments, and what
//! the reply means. Use it to run the scripts over a client of your own.
//!
//! A program that shares its limits with other programs, or with servers that have the same key secret and rules:
//!
//! ```no_run
//! # async fn example(secret: [u8; 16]) -> Result<(), Box<dyn std::error::Error>> {
//! use std::num::NonZeroU32;
//! use spillgate::{FallbackStore, KeyHasher, Limiter, MemoryOptions, MemoryStore, Quota, SystemClock};
//! use spillgate_redis::{RedisStore, Settings};
//!
//! let redis = RedisStore::new(&Settings::new("redis://10.0.0.7/"))?;
//! let three = NonZeroU32::new(3).ok_or("no nodes")?; // each admits a third of a limit while Redis fails
//! let store = FallbackStore::new(redis, MemoryStore::new(MemoryOptions::default()), three);
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
//! * Decisions, verdicts and states are bit for bit those of the kernel on the same requests and times:
//!   `tests/scripts/differential`.
//! * Many tasks on one key are admitted exactly the limit: `tests/scripts/store.rs`.
//! * Every request is decided within its timeout, or fails with an [`ErrorKind`], whatever happens to the server. None
//!   is charged twice: `tests/transport`.
//! * The deny cache repeats a refusal without a call to the server. The refusal is the kernel's on the states that the
//!   server has, at the verdict's time. There are two exceptions. Another client may have changed the states within
//!   [`Settings::deny_cache_max_age`], or a take that failed may have changed them. States that are not known are left
//!   out: `src/deny_cache/tests`, `tests/modes/deny_cache.rs`, `tests/scripts/repeated.rs`.
//! * No window admits more than its limit without scripts either: `tests/modes/transaction.rs`.
//! * The slots of a cluster decide together as the kernel does, also while they move. A replica that is promoted is
//!   found without help: `tests/topology`.
//! * While a slot moves, a request with several states in it is decided if all of them are on the same node. Otherwise
//!   it waits for that, and fails with [`ErrorKind::Moved`] if the time is over. A request whose states are all new
//!   fails in the same way, since Redis creates them on neither node.
//! * A key lives as long as its state matters, and at most a millisecond longer: `tests/scripts/keys.rs`.

#![warn(missing_docs)]

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
pub use error::{Cause, Error, ErrorKind};
pub use node::status::NodeStatus;
pub use settings::{LogForm, Settings, Tls};
pub use spillgate_core::Circuit;
pub use store::RedisStore;

/// The Rust of the book's page compiles as it stands.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/src/how-to/embed-redis.md")]
struct Page;
