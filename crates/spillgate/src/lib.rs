//! An exact, fast rate limiter that you embed in a program.
//!
//! The decision itself is in [`spillgate_core`], and this crate re-exports all of it. This crate adds what a program
//! needs around the decision: a [`Limiter`], which decides each request with one call of a store, and two stores.
//! [`MemoryStore`] counts in the process, and [`FallbackStore`] decides while a shared store fails.
//!
//! ```
//! use spillgate::{Limiter, Quota};
//!
//! const LOGIN: Quota = Quota::per_minute(5).constant();
//!
//! let limiter = Limiter::in_memory();
//! for left in (0..5).rev() {
//!     assert_eq!(limiter.take_now(&LOGIN, ("login", "user-7"), 1).remaining, left);
//! }
//! let refused = limiter.take_now(&LOGIN, ("login", "user-7"), 1);
//! assert!(!refused.allowed && refused.retry_after.secs_ceil() > Some(0));
//! ```
//!
//! The [`guide`] has one page for each of these tasks: choose an algorithm, limit a web service, share limits in a
//! fleet, test a program with limits, and come from governor.
//!
//! # Features
//!
//! Without features, this crate has the limiter and the memory store, and adds at most 18 crates to a program.
//! `scripts/features.sh` checks this number.
//!
//! | feature | what it adds | crates |
//! |---|---|---|
//! | `rules` | `rules`: rules files in YAML that turn requests into limits; `text`: the errors in rules files, each with its line and a fix | `serde`, `serde-saphyr` |
//! | `headers` | `headers`: header fields that tell an HTTP client its limits | `itoa` |
//! | `insight` | `insight`: what a limit does to its callers, with a verdict | `serde` |
//! | `snapshot` | `Limiter::save` and `Limiter::restored`: the memory store in a file | nothing |
//! | `tokio` | `Limiter::hold`: permits that are renewed while they are held; `Reservations`: estimates that are corrected later; `TokioClock`: a clock for tests that pause tokio's time | `tokio` |
//! | `pace` | `pace`: callers wait for their turn, in the order in which they came | `tokio` |
//! | `client` | `client`: a layer for HTTP clients that adapts to the answers of the service that they call | `http`, `tower-service`, `sfv` and others |
//! | `tower` | `tower`: a layer that limits the requests of a service | `http`, `tower-service` and others |
//! | `axum`, `tonic` | the layer finds the client's address, and the route of axum | `axum`, `tonic` |
//! | `redis` | `redis`: a store on Redis or Valkey, with which several programs share their limits | `redis`, `tokio-rustls` and others |
//!
//! # Guarantees
//!
//! [A page for contributors](https://github.com/spillgate/spillgate/blob/main/docs/guarantees/library.md) has all
//! guarantees of the library, each with the tests that check it.

#![warn(missing_docs)]

#[cfg(any(doc, doctest))]
pub mod guide;

#[cfg(feature = "insight")]
#[doc(inline)]
pub use spillgate_insight as insight;
#[doc(inline)]
pub use spillgate_limiter::*;
#[cfg(feature = "client")]
#[doc(inline)]
pub use spillgate_outbound::client;
#[cfg(feature = "pace")]
#[doc(inline)]
pub use spillgate_outbound::pace;
#[cfg(feature = "redis")]
#[doc(inline)]
pub use spillgate_redis as redis;
#[cfg(feature = "rules")]
#[doc(inline)]
pub use spillgate_rules as rules;
#[cfg(feature = "rules")]
#[doc(inline)]
pub use spillgate_text as text;
#[cfg(feature = "tower")]
#[doc(inline)]
pub use spillgate_tower as tower;

/// Compiles and runs the Rust examples of the project's pages without changes.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/src/how-to/algorithms.md")]
    struct Algorithms;
    #[cfg_attr(feature = "snapshot", doc = include_str!("../../../docs/src/how-to/embed.md"))]
    struct Embed;
    #[cfg_attr(feature = "axum", doc = include_str!("../../../docs/src/how-to/middleware.md"))]
    struct Middleware;
    #[cfg_attr(feature = "axum", doc = include_str!("../../../docs/src/how-to/from-governor.md"))]
    struct FromGovernor;
    #[cfg_attr(feature = "tokio", doc = include_str!("../../../docs/src/how-to/llm-tokens.md"))]
    struct LlmTokens;
    #[cfg_attr(all(feature = "client", feature = "redis"), doc = include_str!("../../../docs/src/how-to/outbound.md"))]
    struct Outbound;
    #[cfg_attr(feature = "axum", doc = include_str!("../../../docs/src/how-to/test-limits.md"))]
    struct TestLimits;
}
