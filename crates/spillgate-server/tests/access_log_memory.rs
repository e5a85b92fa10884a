//! Reads compressed logs that are small as files and huge as text. The memory of the process must not grow with the
//! text.
//!
//! The test has a program of its own, because the memory of other tests in the same process would be counted too.
//! `make show-hostile-logs` sets BOMB_MIB, the MiB of text of the longest logs.

#![allow(clippy::print_stdout, reason = "`make show-hostile-logs` shows the figures")]

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::{env, fs};

use flate2::Compression;
use flate2::write::GzEncoder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use spillgate_replay::access_log::{LogCounts, OUT_OF_ORDER, Ordered, Reader};

const MIB: usize = 1024 * 1024;
const BOMB_MIB: usize = 192;
/// How much the memory may grow if no line is a request. Only buffers are needed then.
const GROWTH_MIB_MAX: usize = 16;
/// How much the memory may grow if lines are requests: by the lines of one file that wait to be sorted (64 MiB), by the
/// memory of lines that waits to be reused (32 MiB), and by buffers.
const GROWTH_WITH_REQUESTS_MIB_MAX: usize = 128;

/// A file that repeats the same bytes. It is valid, because a file can have several gzip members or zstd frames.
struct Repeated {
    bytes: Arc<[u8]>,
    at: usize,
    left: usize,
}

impl Read for Repeated {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.bytes.len() {
            (self.at, self.left) = (0, self.left - 1);
        }
        let rest = if self.left == 0 { &[] } else { &self.bytes[self.at..] };
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        self.at += length;
        Ok(length)
    }
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(text).expect("memory can be written");
    encoder.finish().expect("memory can be written")
}

fn zstd(text: &[u8]) -> Vec<u8> {
    compress_to_vec(text, CompressionLevel::Fastest)
}

/// Reads a log that repeats the compressed bytes. Returns the number of requests, and the counts of lines.
fn read(compressed: Vec<u8>, times: usize) -> (u64, LogCounts) {
    let reader = Reader::new("common", &[String::from("remote_addr")], None).expect("the format exists");
    let file = Repeated { bytes: compressed.into(), at: 0, left: times };
    let mut log = Ordered::new(vec![Box::new(file) as Box<dyn Read + Send>], &reader, OUT_OF_ORDER);
    let mut requests = 0;
    while log.next().is_some() {
        requests += 1;
    }
    (requests, log.counts().clone())
}

/// Returns the highest resident memory of this process so far.
fn peak_bytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("Linux reports the memory of a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a process has memory");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("the size is a whole number") * 1024
}

/// Repeats `text` as often as it fits into 1 MiB.
fn mib_of(text: &str) -> Vec<u8> {
    text.repeat(MIB / text.len()).into_bytes()
}

#[test]
fn huge_logs_do_not_need_huge_memory() {
    let mib = env::var("BOMB_MIB").map_or(BOMB_MIB, |mib| mib.parse().expect("BOMB_MIB is a whole number"));
    let request = "203.0.113.7 - - [10/Oct/2000:13:55:36 -0700] \"GET / HTTP/1.1\" 200 12\n";
    // With this path, a line is nearly as long as allowed.
    let long_request = request.replace("GET /", &format!("GET /{}", "a".repeat(60_000)));
    // Short lines take more time for each MiB, so their logs are shorter. Yet each log would exceed its bound if all
    // its lines were kept in memory.
    let logs = [
        ("zeros without a line end", mib_of("\0"), mib, GROWTH_MIB_MAX),
        ("lines of two bytes", mib_of("a\n"), mib.div_ceil(48), GROWTH_MIB_MAX),
        ("requests of one second", mib_of(request), mib.div_ceil(4), GROWTH_WITH_REQUESTS_MIB_MAX),
        ("long requests of one second", mib_of(&long_request), mib, GROWTH_WITH_REQUESTS_MIB_MAX),
    ];
    let before = peak_bytes();
    for (name, text, times, growth_mib_max) in logs {
        let lines = (text.iter().filter(|byte| **byte == b'\n').count() * times).max(1) as u64;
        let expected_requests = if growth_mib_max == GROWTH_MIB_MAX { 0 } else { lines };
        for (kind, compressed) in [("gzip", gzip(&text)), ("zstd", zstd(&text))] {
            let stored = compressed.len() * times;
            let (requests, counts) = read(compressed, times);
            let grown_mib = peak_bytes().saturating_sub(before) / MIB;
            println!(
                "{kind}, {name}: {} MiB of text in {} KiB, {requests} requests, {} unreadable lines; \
                 the memory has grown by {} MiB at most",
                text.len() * times / MIB,
                stored / 1024,
                counts.unreadable.count,
                grown_mib
            );
            assert_eq!((counts.lines, counts.bytes), (lines, (text.len() * times) as u64), "{kind}, {name}");
            assert_eq!(
                (requests, counts.unreadable.count),
                (expected_requests, lines - expected_requests),
                "{kind}, {name}"
            );
            assert!(grown_mib < growth_mib_max, "{kind}, {name}: the memory grew by {grown_mib} MiB");
        }
    }
}
