//! Tests of the gRPC listener: a server in this process, and a real client over real sockets.
//!
//! The tests show that the HTTP/2 and gRPC code of the server works with client libraries that other people wrote.

#![allow(clippy::unwrap_used)]

mod age;
mod blocks;
mod hostile;
mod lifetime;
mod semantics;
mod server;
mod streams;
mod support;
mod together;
