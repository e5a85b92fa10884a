//! Tests of every HTTP path, with a real service on the memory store.
//!
//! Each test sets the clock itself. So the times in answers are exact, and no test has to wait.

#[path = "http/access.rs"]
mod access;
#[path = "http/admin.rs"]
mod admin;
#[path = "http/app.rs"]
mod app;
#[path = "http/blocks.rs"]
mod blocks;
#[path = "http/browsers.rs"]
mod browsers;
#[path = "http/check.rs"]
mod check;
#[path = "http/events.rs"]
mod events;
#[path = "http/explain.rs"]
mod explain;
#[path = "http/forward_auth.rs"]
mod forward_auth;
#[path = "http/hit.rs"]
mod hit;
#[path = "http/insight.rs"]
mod insight;
#[path = "http/lease.rs"]
mod lease;
#[path = "http/openapi.rs"]
mod openapi;
#[path = "http/overview.rs"]
mod overview;
#[path = "http/random.rs"]
mod random;
#[path = "http/rates.rs"]
mod rates;
#[path = "http/reserve.rs"]
mod reserve;
#[path = "http/rls.rs"]
mod rls;
#[path = "openapi/schema.rs"]
mod schema;
#[path = "http/shadows.rs"]
mod shadows;
#[path = "http/sketch.rs"]
mod sketch;
#[path = "http/wrong.rs"]
mod wrong;
