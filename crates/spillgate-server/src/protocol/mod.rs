//! The protocols of clients. Each protocol translates requests for the service, and translates the answers back.
//!
//! No protocol decides anything itself. The service decides the requests of all protocols by the same rules.

pub mod grpc;
