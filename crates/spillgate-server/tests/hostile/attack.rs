//! Helpers for attacks: a server that is attacked, an honest client that must still be served, and random input.
//!
//! All tests use the checks in this file, so no test can forget a check.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::hostile::http2;
use crate::support::spillgate::Spillgate;
use crate::support::{DEADLINE, http};

/// During an attack, the memory of the server must grow by less than this number of bytes. The connections of most tests
/// need less memory than that.
const GROWTH_BYTES: u64 = 256 << 20;
const RULES: &str =
    "domain: attack\ndescriptors:\n  - key: user\n    rate_limit: {unit: hour, requests_per_unit: 4000000000}\n";
pub(crate) const CHECK: &str = r#"{"domain":"attack","descriptors":[{"user":"honest"}]}"#;

pub(crate) struct Attack {
    pub(crate) spillgate: Spillgate,
    honest: Option<JoinHandle<()>>,
    over: Arc<AtomicBool>,
    served: Arc<AtomicU64>,
    resident_bytes: u64,
    /// See [`GROWTH_BYTES`].
    growth_bytes: AtomicU64,
    _rules: tempfile::TempDir,
}

impl Attack {
    /// Starts a server and an honest client. Returns after the first requests of this client were allowed.
    pub(crate) fn begin(arguments: &[&str]) -> Attack {
        Attack::with_rules(0, arguments)
    }

    /// As [`Attack::begin`], but the server has `more` further rules, so that its pages are long.
    pub(crate) fn with_rules(more: usize, arguments: &[&str]) -> Attack {
        let rules = tempfile::tempdir().unwrap();
        let file = rules.path().join("attack.yaml");
        let further = (0..more)
            .map(|number| format!("  - {{key: k{number}, rate_limit: {{unit: day, requests_per_unit: 9}}}}\n"));
        fs::write(&file, RULES.to_owned() + &further.collect::<String>()).unwrap();
        let spillgate = Spillgate::serve(&file, arguments);
        let (over, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut client = Honest::connect(spillgate.http(), spillgate.grpc()).unwrap();
        client.ask();
        let resident_bytes = spillgate.process.resident_bytes();
        let (ending, count) = (Arc::clone(&over), Arc::clone(&served));
        let honest = thread::spawn(move || {
            while !ending.load(Ordering::SeqCst) {
                client.ask();
                count.fetch_add(1, Ordering::SeqCst);
                thread::park_timeout(Duration::from_millis(5));
            }
        });
        Attack {
            spillgate,
            honest: Some(honest),
            over,
            served,
            resident_bytes,
            growth_bytes: GROWTH_BYTES.into(),
            _rules: rules,
        }
    }

    /// Calls `round` again and again for `HOSTILE_SECONDS` (by default 1.5 seconds), and at least 10 times. The argument of
    /// `round` is the number of the call.
    pub(crate) fn repeat(&self, mut round: impl FnMut(u64)) {
        let seconds = std::env::var("HOSTILE_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1.5);
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        let mut rounds = 0;
        while Instant::now() < end || rounds < 10 {
            round(rounds);
            rounds += 1;
            self.assert_bounded();
        }
    }

    pub(crate) fn wait_served(&self, times: u64) {
        let before = self.served.load(Ordering::SeqCst);
        let end = Instant::now() + DEADLINE;
        while self.served.load(Ordering::SeqCst) < before + times {
            let lives = self.honest.as_ref().is_some_and(|honest| !honest.is_finished());
            assert!(lives, "the honest client failed; the metrics of the server:\n{}", self.metrics());
            assert!(Instant::now() < end, "the honest client still waits after {DEADLINE:?}");
            thread::park_timeout(Duration::from_millis(5));
        }
    }

    /// Permits growth by this many bytes, if it is more than usual.
    pub(crate) fn permit_growth(&self, bytes: u64) {
        self.growth_bytes.fetch_max(bytes, Ordering::SeqCst);
    }

    pub(crate) fn assert_bounded(&self) {
        let (before, now) = (self.resident_bytes, self.spillgate.process.resident_bytes());
        assert!(
            now < before + self.growth_bytes.load(Ordering::SeqCst),
            "the memory of the server grew from {before} to {now} bytes"
        );
    }

    /// Asserts that the honest client was always served and a new client is served. Also asserts that the server still runs and
    /// has not panicked.
    pub(crate) fn end(mut self) {
        self.wait_served(1);
        self.over.store(true, Ordering::SeqCst);
        let honest = self.honest.take().unwrap();
        assert!(honest.join().is_ok(), "the honest client failed");
        Honest::connect(self.spillgate.http(), self.spillgate.grpc()).unwrap().ask();
        self.assert_bounded();
        assert!(self.spillgate.process.is_running(), "the server process ended");
        let panics = self.metric("spillgate_panics_total");
        assert_eq!(panics, Some(0), "the server panicked: {:?}", self.spillgate.process.stderr());
    }

    pub(crate) fn metric(&self, name: &str) -> Option<u64> {
        let metrics = self.metrics();
        let line = metrics.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse().ok()
    }

    fn metrics(&self) -> String {
        http::get(self.spillgate.admin(), "/metrics", &[]).body
    }
}

impl Drop for Attack {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
    }
}

/// A client with two open connections to the server: one for HTTP and one for gRPC.
struct Honest {
    http: TcpStream,
    grpc: http2::Connection,
}

impl Honest {
    fn connect(http: SocketAddr, grpc: SocketAddr) -> io::Result<Honest> {
        // The HTTP connection comes last, because its first request must follow soon: see `limits.receive`.
        let grpc = http2::Connection::open(grpc)?;
        let http = TcpStream::connect_timeout(&http, DEADLINE)?;
        http.set_read_timeout(Some(DEADLINE))?;
        http.set_nodelay(true)?;
        Ok(Honest { http, grpc })
    }

    /// Sends one request on each connection. Panics if one of the two requests is not allowed.
    fn ask(&mut self) {
        let (status, body) = post(&mut self.http, "/v1/check", CHECK.as_bytes()).expect("the server answers over HTTP");
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&body));
        let message = http2::message(&http2::rate_limit_request("attack", "user", "honest", 1));
        let answer = self.grpc.call(http2::SHOULD_RATE_LIMIT, &message).expect("the server answers over gRPC");
        // After the gRPC prefix of five bytes, the answer begins with field 1, the overall code. Its value is OK.
        let code = answer.as_deref().and_then(|data| data.get(5..7));
        assert_eq!(code, Some(&[8u8, 1][..]), "the overall code of the gRPC answer is OK; the answer is {answer:?}");
    }
}

/// Sends one POST on a connection that stays open. Returns the status and the body.
pub(crate) fn post(stream: &mut TcpStream, path: &str, body: &[u8]) -> io::Result<(u16, Vec<u8>)> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: attack\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat())?;
    let mut read = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        if let Some(answer) = parse(&read) {
            return Ok(answer);
        }
        match stream.read(&mut chunk)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => read.extend_from_slice(&chunk[..n]),
        }
    }
}

/// Parses an answer that has a `content-length`. Returns `None` if the answer is not complete yet.
fn parse(read: &[u8]) -> Option<(u16, Vec<u8>)> {
    let end = read.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let head = std::str::from_utf8(&read[..end]).ok()?.to_ascii_lowercase();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let length: usize = head.lines().find_map(|line| line.strip_prefix("content-length: "))?.parse().ok()?;
    Some((status, read.get(end..end + length)?.to_vec()))
}

/// SplitMix64, a small random number generator with a seed.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    pub(crate) fn bytes(&mut self, bound: usize) -> Vec<u8> {
        let len = self.below(bound);
        (0..len).map(|_| self.byte()).collect()
    }

    pub(crate) fn one_of<'t, T: ?Sized>(&mut self, choices: &[&'t T]) -> &'t T {
        choices[self.below(choices.len())]
    }

    /// Returns a copy of `seed` with one to four changes. Each change flips a bit, or replaces, inserts or removes
    /// bytes, or cuts off the end.
    pub(crate) fn mutated(&mut self, seed: &[u8]) -> Vec<u8> {
        let mut bytes = seed.to_vec();
        for _ in 0..=self.below(4) {
            let (at, to) = (self.below(bytes.len()), self.below(bytes.len()));
            let (from, to) = (at.min(to), at.max(to));
            match self.below(6) {
                0 => bytes.truncate(at),
                1 => drop(bytes.drain(from..to)),
                2 => bytes.insert(at.min(bytes.len()), self.byte()),
                3 => bytes.splice(at..at, seed.to_vec()).for_each(drop),
                4 => bytes.splice(from..to, self.one_of(&DIFFICULT).bytes()).for_each(drop),
                _ => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << (at % 8)),
            }
        }
        bytes
    }
}

/// Values that often break parsers.
const DIFFICULT: [&str; 12] = [
    "18446744073709551616",
    "-1",
    "1e308",
    "\"\\ud800\"",
    "null",
    "{}",
    "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
    "\u{0}",
    "\"\"",
    "0.1",
    "99999999999h",
    "\u{feff}",
];
