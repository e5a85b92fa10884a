//! Rate-limiting decisions on Redis or Valkey.
//!
//! Servers and programs that share one store share their limits. If each of ten processes counted by itself, each of
//! them would admit the whole limit.
//!
//! On a single Redis server, one script decides all hits of a request in one atomic step. In a cluster, one script is
//! enough only if all states of the request are in one slot. The script reads the states, decides, charges, and returns
//! the states as they were *before* the charge. From these states, the kernel ([`spillgate_core::decide`]) computes the
//! answer. So the same code computes `remaining`, `retry_after` and the other results for all stores.
//!
//! [`RedisStore`] connects to one Redis server, to the primary that sentinels name, or to the nodes of a cluster. Many
//! requests share its connections. If a connection ends, the store makes a new one.
//!
//! [`ScriptCall`] needs no connection: it names the [`Script`] to run, the keys and the arguments, and it reads the
//! reply. Use it to run the scripts with another Redis client.
//!
//! This program shares its limits with other programs and servers that have the same key secret and the same rules:
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
//! let decision = limiter.take(&login, ("login", "user-7"), 1).await?;
//! println!("allowed: {}, {} left", decision.allowed, decision.remaining);
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees
//!
//! [A page for contributors](https://github.com/spillgate/spillgate/blob/main/docs/guarantees/redis.md) has all
//! guarantees of the store, each with the tests that check it.

#![warn(missing_docs)]

mod charge;
mod cluster;
mod command;
mod connect;
mod connection;
mod deadline;
mod deny_cache;
pub mod doctor;
mod error;
mod failures;
mod give_back;
mod lists;
mod memory;
mod modes;
mod new_keys;
mod node;
mod not_redis;
mod settings;
mod store;

pub use charge::CHARGE_COMMANDS;
pub use command::key::RedisKey;
pub use command::request::{Decoded, ScriptCall, supports};
pub use command::script::{SCRIPT_COMMANDS, Script};
pub use command::state_codec::decode_state;
pub use command::transaction::TRANSACTION_COMMANDS;
#[doc(hidden)]
pub use connect::tls::pem_fault;
pub use error::{Cause, Error};
pub use give_back::LATE_HITS_BYTES;
pub use lists::{LIST_COMMANDS, ListEntry, ListWrite};
pub use node::pool::stand_aside;
pub use node::status::NodeStatus;
pub use settings::{LogForm, Reread, Settings, Tls};
pub use spillgate_core::{Circuit, StoreErrorKind};
pub use store::RedisStore;

/// Compiles the Rust code in a page of the book.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/src/how-to/embed-redis.md")]
struct Page;
