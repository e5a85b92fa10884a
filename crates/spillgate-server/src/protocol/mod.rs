//! Wire formats: each translates its requests to the service and the answers back.
//!
//! A protocol decides nothing, so that all protocols agree.

pub mod grpc;
pub mod http;
