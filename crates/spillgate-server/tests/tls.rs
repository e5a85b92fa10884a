//! Tests of TLS on the listeners, with clients that other people wrote: openssl, curl and grpcio.

mod bad_files;
mod changes;
mod clients;
mod floods;
mod handshake;
pub(crate) mod support;
