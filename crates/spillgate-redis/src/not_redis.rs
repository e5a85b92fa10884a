//! The error for bytes that are not the protocol of Redis.
//!
//! It is a file of its own, because the parser of replies returns it and the fuzz target of the parser has to compile it.

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
