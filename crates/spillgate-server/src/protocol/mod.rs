//! The protocols of clients. Each translates requests for the service, and translates the answers back.
//!
//! A protocol decides nothing, so that all protocols agree.

pub mod grpc;
pub mod http;
