//! Wire formats: each turns its requests into the service's and the answers back, and nothing else.

pub mod grpc;
pub mod http;
