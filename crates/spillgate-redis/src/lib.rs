//! The rate-limiting decision on Redis or Valkey.
//!
//! One script decides all hits of a request that live in one slot, in one atomic step: it reads their states, judges,
//! charges, and answers with the states *before*. From these the kernel ([`spillgate_core::decide`]) works out what
//! to tell the caller, so that `remaining`, `retry_after` and the rest are computed in one place for all stores.
//!
//! Nothing here knows a client library or opens a connection: a [`Request`] says which [`Script`] to run with which
//! keys and arguments, and takes the bytes of the reply.
//!
//! # Guarantees
//!
//! * Decisions, verdicts and states are those of the kernel on the same requests and times, bit for bit:
//!   `tests/scripts/differential`.
//! * What a state matters for, its key lives for, and no longer than a millisecond more: `tests/scripts/keys.rs`.

mod bytes;
mod hit;
mod name;
mod raw;
mod request;
mod script;

pub use name::Name;
pub use raw::state;
pub use request::{Answer, Request, supports};
pub use script::Script;
