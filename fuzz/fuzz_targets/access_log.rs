//! Reads any bytes as two files of an access log. The first byte chooses the format, and a byte 0xff ends the first file.
//!
//! The values of a request must be text, the times of the requests must never go back, and every line must be a request
//! or unreadable. The files can be compressed, so the decompression is fuzzed too.

#![no_main]

use std::io::{Cursor, Read};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use spillgate_replay::access_log::{FORMATS, Ordered, Reader};

const PATTERNS: [&str; 3] =
    ["$msec|${request_uri}", "\"$time_local\" $remote_user [$time_iso8601] \"$request\"", "$time_local $remote_addr"];
/// The input is at most a few KiB, but its text after decompression can be long.
const REQUESTS_MAX: usize = 10_000;

fuzz_target!(|data: &[u8]| {
    let Some((first, rest)) = data.split_first() else { return };
    let index = usize::from(*first) % (FORMATS.len() + PATTERNS.len());
    let format = FORMATS.iter().chain(&PATTERNS).nth(index).expect("the index is in the list");
    let wanted = ["remote_addr", "path", "args", "method", "user_agent", "http_x_a", "a.b.0", "status"];
    let is_known = |name: &&str| Reader::new(format, &[(*name).to_owned()], None).is_ok();
    let wanted: Vec<String> = wanted.into_iter().filter(is_known).map(String::from).collect();
    let Ok(reader) = Reader::new(format, &wanted, None) else { return };
    let parts = rest.splitn(2, |byte| *byte == 0xff);
    let files = parts.map(|part| Box::new(Cursor::new(part.to_vec())) as Box<dyn Read + Send>).collect();
    let mut log = Ordered::new(files, &reader, Duration::from_secs(u64::from(*first)));
    let (mut requests, mut newest) = (0, None);
    while let Some(request) = log.next() {
        assert!(Some(request.time) >= newest);
        newest = Some(request.time);
        for index in 0..wanted.len() {
            assert!(request.fields.value(index).is_none_or(|value| !value.is_empty()));
        }
        requests += 1;
        if requests == REQUESTS_MAX {
            return;
        }
    }
    assert_eq!(requests as u64 + log.counts().unreadable.count, log.counts().lines);
});
