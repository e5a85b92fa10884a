//! Tests of every HTTP path, with a real service on the memory store.
//!
//! Each test sets the clock itself. So the times in answers are exact, and no test has to wait.

mod access;
mod admin;
mod app;
mod blocks;
mod browsers;
mod caller;
mod check;
mod events;
mod explain;
mod forward_auth;
mod hangups;
mod hit;
mod insight;
mod lease;
mod openapi;
mod overview;
mod random;
mod rates;
mod reload;
mod reserve;
mod rls;
mod shadows;
mod sketch;
mod wrong;
