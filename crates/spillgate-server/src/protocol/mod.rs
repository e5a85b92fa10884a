//! The protocols of clients. Each translates requests for the service, and translates the answers back.
//!
//! A protocol decides nothing itself, so the same request gets the same decision over each protocol.

pub mod grpc;
pub mod http;
