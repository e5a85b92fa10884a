//! Parses any bytes as replies of Redis.
//!
//! For each reply, our parser must return an error, or the same value as the parser of the client library (the crate
//! redis). Our parser also finds where a reply ends. It must not accept a part of a reply as a whole reply, and the end
//! must not be after the last byte.

#![no_main]

use libfuzzer_sys::fuzz_target;
use redis::parse_redis_value;

#[path = "../../crates/spillgate-redis/src/not_redis.rs"]
mod not_redis;
#[path = "../../crates/spillgate-redis/src/connection/resp.rs"]
mod resp;

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    while let Ok(Some(length)) = resp::length(rest) {
        assert!(length > 0 && length <= rest.len());
        let (answer, after) = rest.split_at(length);
        for cut in [0, length / 2, length - 1] {
            assert!(
                matches!(resp::length(&answer[..cut]), Ok(None)),
                "the first {cut} bytes of {answer:?} are not a whole reply"
            );
        }
        let value = resp::value(answer).ok();
        assert!(value.is_none() || value == parse_redis_value(answer).ok(), "the two parsers differ: {answer:?}");
        rest = after;
    }
});
