//! The gRPC listener, served in this process and asked by a real client over real sockets.

#![allow(clippy::unwrap_used)]

mod hostile;
mod lifetime;
mod semantics;
mod server;
mod streams;
mod support;
mod together;
