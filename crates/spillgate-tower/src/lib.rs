//! A layer of tower that limits the requests of a service: for axum, tonic, hyper, and everything else that uses tower.
//!
//! ```
//! use axum::Router;
//! use axum::routing::get;
//! use spillgate::tower::{RateLimitLayer, key};
//! use spillgate::{Limiter, Quota};
//!
//! const PER_ADDRESS: Quota = Quota::per_second(10).burst(20).constant();
//!
//! let limits = RateLimitLayer::new(Limiter::in_memory()).limit("address", &PER_ADDRESS, key::address());
//! let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(limits);
//! # let _ = app;
//! ```
//!
//! A refused client gets the status 429 with `Retry-After`, header fields about the limits, and a body that says what
//! happened. A client of gRPC gets RESOURCE_EXHAUSTED.

#![warn(missing_docs)]

mod ask;
mod body;
#[cfg(feature = "rules")]
mod by_rules;
mod client_address;
mod fields;
mod head;
pub mod key;
mod layer;
mod outcome;
mod quota_ref;
mod refusal;
mod service;

pub use body::LimitedBody;
#[cfg(feature = "rules")]
pub use by_rules::Descriptors;
pub use client_address::client_address;
pub use head::RequestHead;
pub use ipnet::IpNet;
pub use layer::{Charge, RateLimitLayer};
pub use outcome::{LimitOutcome, Outcome};
pub use quota_ref::QuotaRef;
pub use service::{RateLimitFuture, RateLimitService};
