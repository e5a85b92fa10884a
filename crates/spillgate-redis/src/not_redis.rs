//! The error for bytes that are not the protocol of Redis.
//!
//! This error has a file of its own, because the fuzz target of the reply parser compiles this file too.

use std::fmt;

#[derive(Debug)]
pub(crate) struct NotRedis;

impl fmt::Display for NotRedis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the reply is not in the protocol of Redis")
    }
}

impl std::error::Error for NotRedis {}
