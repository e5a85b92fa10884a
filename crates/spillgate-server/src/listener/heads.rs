//! Whether a client of HTTP/1 has begun a further request.
//!
//! Hyper reads as much as there is, and does not say what it holds: the beginning of a head that came together with
//! the end of the request before looks like silence. So what is read is looked at here as well, for as much as
//! tells where a request ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Its end is not known.
const UNKNOWN: u64 = u64::MAX;

/// What is known of the bytes that came over one connection.
#[derive(Debug, Default)]
pub(super) struct Heads {
    /// Where the first head ends that came since the connection was at rest, counted from the connection's first
    /// byte; 0 until it is all here.
    first_end: AtomicU64,
    /// The last line that came is whole and empty.
    blank: AtomicBool,
}

impl Heads {
    /// A request was answered when `bytes` had been read: was that all, or has another one begun? `body` is the
    /// length of its body; `None` for one in chunks, which ends with an empty line as heads do.
    ///
    /// A client that sends a body of known length without having waited for the answer before is told to have
    /// begun: nobody knows where its head ended.
    pub(super) fn at_rest(&self, body: Option<u64>, bytes: u64) -> bool {
        let at_rest = match (body, self.first_end.load(Ordering::Relaxed)) {
            (Some(1..), 0 | UNKNOWN) => false,
            // An answer may be given before all of a body is here.
            (Some(len @ 1..), end) => bytes <= end.saturating_add(len),
            _ => self.blank.load(Ordering::Relaxed),
        };
        self.first_end.store(if at_rest { 0 } else { UNKNOWN }, Ordering::Relaxed);
        at_rest
    }
}

/// Looks at what is read.
#[derive(Debug)]
pub(super) struct Scanner {
    heads: Arc<Heads>,
    /// The last bytes, as many as an empty line and the end of the line before take.
    last: [u8; 3],
    /// The head has a line that is not empty; empty ones before it are none of it.
    begun: bool,
    /// The line has something but its end.
    text: bool,
}

impl Scanner {
    pub(super) fn new(heads: Arc<Heads>) -> Scanner {
        Scanner { heads, last: [0; 3], begun: false, text: false }
    }

    /// Notes the bytes that came after the first `before`.
    pub(super) fn note(&mut self, before: u64, came: &[u8]) {
        let fresh = came.len().min(self.last.len());
        self.last.rotate_left(fresh);
        let kept = self.last.len() - fresh;
        self.last[kept..].copy_from_slice(&came[came.len() - fresh..]);
        self.heads.blank.store(self.last == *b"\n\r\n" || self.last.ends_with(b"\n\n"), Ordering::Relaxed);
        if self.heads.first_end.load(Ordering::Relaxed) == 0 {
            self.look_for_end(before, came);
        }
    }

    fn look_for_end(&mut self, before: u64, came: &[u8]) {
        let has_text = |line: &[u8]| line.iter().any(|&byte| byte != b'\r');
        let mut line = 0;
        for end in memchr::memchr_iter(b'\n', came) {
            self.text |= has_text(&came[line..end]);
            line = end + 1;
            if self.begun && !self.text {
                self.begun = false;
                return self.heads.first_end.store(before + line as u64, Ordering::Relaxed);
            }
            self.begun |= self.text;
            self.text = false;
        }
        self.text |= has_text(&came[line..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
    const POST: &str = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 8\r\n\r\n{\r\n\r\n\r\n}";
    const CHUNKS: &str = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";

    /// What is said after each of these was answered, read in pieces of `piece` bytes.
    fn told(requests: &[(&str, Option<u64>)], piece: usize) -> Vec<bool> {
        let heads = Arc::new(Heads::default());
        let (mut scanner, mut bytes) = (Scanner::new(Arc::clone(&heads)), 0);
        let mut told = Vec::new();
        for (text, body) in requests {
            for piece in text.as_bytes().chunks(piece) {
                scanner.note(bytes, piece);
                bytes += piece.len() as u64;
            }
            told.push(heads.at_rest(*body, bytes));
        }
        told
    }

    #[test]
    fn a_whole_request_leaves_the_connection_at_rest() {
        let late = ["\r\n", POST].concat();
        let requests =
            [(GET, Some(0)), (POST, Some(8)), (CHUNKS, None), (POST, Some(8)), (&late, Some(8)), (GET, Some(0))];
        for piece in 1..=POST.len() {
            assert_eq!(told(&requests, piece), [true; 6], "in pieces of {piece}");
        }
        assert_eq!(told(&[("GET / HTTP/1.1\nhost: a\n\n", Some(0))], 100), [true], "as by hand");
        assert_eq!(told(&[(&POST[..POST.len() - 3], Some(8))], 100), [true], "answered before the body was here");
    }

    #[test]
    fn the_beginning_of_a_further_request_is_noticed() {
        for (request, body) in [(GET, Some(0)), (POST, Some(8)), (CHUNKS, None)] {
            for begun in ["G", "\r\nG", "GET / HTTP/1.1\r\n", "GET / HTTP/1.1\r\nhost: a\r\n", "}", "{\r\n\r\n\r\n}"] {
                let both = [request, begun].concat();
                for piece in [1, 2, 3, 5, both.len()] {
                    assert_eq!(told(&[(&both, body)], piece), [false], "{both:?} in pieces of {piece}");
                }
            }
        }
    }

    #[test]
    fn requests_without_waiting_are_at_rest_again_after_one_without_a_length() {
        let requests = [(&[GET, POST, GET].concat()[..], Some(8)), ("", Some(8)), ("", Some(0)), (POST, Some(8))];
        assert_eq!(told(&requests, 1000), [false, false, true, true]);
    }
}
