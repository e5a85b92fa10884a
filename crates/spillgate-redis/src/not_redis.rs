//! The error for bytes that are not the protocol of Redis.
//!
//! The error has a file of its own, because the fuzz target of the parser of replies compiles this file too.

use std::fmt;

/// A server sent bytes that are not the protocol of Redis.
#[derive(Debug)]
pub(crate) struct NotRedis;

impl fmt::Display for NotRedis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the reply is not in the protocol of Redis")
    }
}

impl std::error::Error for NotRedis {}
