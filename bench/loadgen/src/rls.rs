//! Unary gRPC over HTTP/2. It is written by hand, so that the client uses little CPU time.
//!
//! Every request has the same block of headers. The headers are literals that are not indexed, so neither the client
//! nor the server has to keep a table of headers. The client does not decode the headers of replies. If a stream has a
//! message, the message says whether the request is allowed. If a stream ends without a message, the request is an
//! error.

use crate::proto::{Completion, Protocol, Verdict};
use std::collections::VecDeque;

pub(crate) const DEFAULT_PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const FRAME_HEAD: usize = 9;
const DEFAULT_WINDOW: i64 = 65_535;
const MAX_WINDOW: i64 = 0x7fff_ffff;

fn frame(out: &mut Vec<u8>, len: usize, kind: u8, flags: u8, stream: u32) {
    out.extend_from_slice(&(len as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
}

/// Writes what a client sends before its first request.
pub(crate) fn preface(out: &mut Vec<u8>) {
    out.extend_from_slice(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    frame(out, 18, SETTINGS, 0, 0);
    for (id, value) in [(1u16, 0u32), (2, 0), (4, 1 << 20)] {
        // The settings HEADER_TABLE_SIZE, ENABLE_PUSH and INITIAL_WINDOW_SIZE.
        out.extend_from_slice(&id.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
    frame(out, 4, WINDOW_UPDATE, 0, 0);
    out.extend_from_slice(&((MAX_WINDOW - DEFAULT_WINDOW) as u32).to_be_bytes());
}

/// Builds the HPACK block of a request. It has references to the static table, and literals that are not indexed.
pub(crate) fn request_headers(authority: &str, path: &str) -> Vec<u8> {
    let mut block = vec![0x83, 0x86]; // :method POST, :scheme http
    let mut literal = |name: Result<u8, &str>, value: &str| {
        match name {
            Ok(index) if index < 15 => block.push(index),
            Ok(index) => block.extend_from_slice(&[0x0f, index - 15]),
            Err(text) => {
                block.push(0);
                block.push(text.len() as u8);
                block.extend_from_slice(text.as_bytes());
            }
        }
        assert!(value.len() < 127, "a header value of 127 bytes or more");
        block.push(value.len() as u8);
        block.extend_from_slice(value.as_bytes());
    };
    literal(Ok(4), path);
    literal(Ok(1), authority);
    literal(Ok(31), "application/grpc"); // content-type
    literal(Err("te"), "trailers");
    block
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn field(number: u8, content: &[u8], out: &mut Vec<u8>) {
    out.push(number << 3 | 2);
    varint(content.len() as u64, out);
    out.extend_from_slice(content);
}

/// The message of a request, and the rule that turns a reply into a verdict.
#[derive(Clone)]
pub(crate) struct Message {
    kind: Kind,
    before: Vec<u8>,
    after: Vec<u8>,
}

#[derive(Clone, Copy)]
enum Kind {
    /// A domain and one descriptor with one entry. Field 1 of the reply is the overall code
    ShouldRateLimit,
    /// A key and a limit. Field 1 of the reply says whether the request is allowed
    Throttlecrab,
}

impl Message {
    pub(crate) fn should_rate_limit(domain: &str, entry: &str) -> Self {
        let (mut before, mut after) = (Vec::new(), Vec::new());
        field(1, domain.as_bytes(), &mut before);
        field(1, entry.as_bytes(), &mut after);
        Message { kind: Kind::ShouldRateLimit, before, after }
    }

    pub(crate) fn throttlecrab(limits: &[u64]) -> Self {
        let mut after = Vec::new();
        for (number, &value) in (2..).zip(limits.iter().chain(&[1])) {
            after.push(number << 3);
            varint(value, &mut after);
        }
        Message { kind: Kind::Throttlecrab, before: Vec::new(), after }
    }

    fn write(&self, key: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&self.before);
        match self.kind {
            Kind::ShouldRateLimit => {
                let mut entry = self.after.clone();
                field(2, key, &mut entry);
                let mut descriptor = Vec::with_capacity(entry.len() + 4);
                field(1, &entry, &mut descriptor);
                field(2, &descriptor, out);
            }
            Kind::Throttlecrab => {
                field(1, key, out);
                out.extend_from_slice(&self.after);
            }
        }
    }

    fn judge(&self, reply: &[u8]) -> Verdict {
        let first = if reply.first() == Some(&0x08) { reply.get(1).copied() } else { None };
        match (self.kind, first) {
            (Kind::ShouldRateLimit, Some(1)) | (Kind::Throttlecrab, Some(1)) => Verdict::Allowed,
            (Kind::ShouldRateLimit, Some(2)) | (Kind::Throttlecrab, _) => Verdict::Denied,
            _ => Verdict::Error,
        }
    }
}

pub(crate) struct Rls {
    message: Message,
    headers: Vec<u8>,
    body: Vec<u8>,
    sent: u64,
    /// How many more bytes the server accepts on the whole connection.
    send_window: i64,
    /// How many bytes the server accepts on each new stream.
    stream_window: i64,
    /// How many open streams the server accepts.
    max_streams: u32,
    /// How many streams are open now.
    streams: u32,
    /// The bytes that were received, and for which no WINDOW_UPDATE was sent yet.
    unacknowledged: usize,
    /// The verdicts of streams that have a message but have not ended. There are only a few such streams, mostly in the
    /// order of their numbers.
    open: VecDeque<(u32, Verdict)>,
}

impl Rls {
    pub(crate) fn new(message: Message, headers: Vec<u8>) -> Self {
        Rls {
            message,
            headers,
            body: Vec::new(),
            sent: 0,
            send_window: DEFAULT_WINDOW,
            stream_window: DEFAULT_WINDOW,
            max_streams: u32::MAX,
            streams: 0,
            unacknowledged: 0,
            open: VecDeque::new(),
        }
    }

    fn finish(&mut self, stream: u32, done: &mut Vec<Completion>) {
        let at = self.open.iter().position(|&(s, _)| s == stream);
        self.streams = self.streams.saturating_sub(1);
        let verdict = at.and_then(|at| self.open.remove(at)).map_or(Verdict::Error, |(_, v)| v);
        done.push(Completion { request: (stream as u64 - 1) / 2, verdict });
    }

    fn settings(&mut self, payload: &[u8]) {
        for setting in payload.chunks_exact(6) {
            let value = u32::from_be_bytes([setting[2], setting[3], setting[4], setting[5]]);
            match setting[1] {
                3 => self.max_streams = value,
                4 => self.stream_window = value as i64,
                _ => {}
            }
        }
    }
}

impl Protocol for Rls {
    fn preface(&mut self, out: &mut Vec<u8>) {
        preface(out);
    }

    fn request(&mut self, key: &[u8], out: &mut Vec<u8>) -> bool {
        self.body.clear();
        let mut body = std::mem::take(&mut self.body);
        self.message.write(key, &mut body);
        let len = body.len() + 5;
        let admitted = self.streams < self.max_streams
            && len as i64 <= self.send_window.min(self.stream_window)
            && self.sent < 1 << 30;
        if admitted {
            let stream = (self.sent * 2 + 1) as u32;
            frame(out, self.headers.len(), HEADERS, END_HEADERS, stream);
            out.extend_from_slice(&self.headers);
            frame(out, len, DATA, END_STREAM, stream);
            out.push(0);
            out.extend_from_slice(&(body.len() as u32).to_be_bytes());
            out.extend_from_slice(&body);
            self.send_window -= len as i64;
            self.sent += 1;
            self.streams += 1;
        }
        self.body = body;
        admitted
    }

    fn replies(&mut self, input: &[u8], out: &mut Vec<u8>, done: &mut Vec<Completion>) -> Result<usize, String> {
        let mut used = 0;
        while let Some(head) = input.get(used..used + FRAME_HEAD) {
            let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let (kind, flags) = (head[3], head[4]);
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
            let Some(payload) = input.get(used + FRAME_HEAD..used + FRAME_HEAD + len) else {
                break;
            };
            used += FRAME_HEAD + len;
            match kind {
                DATA => {
                    self.unacknowledged += len;
                    if len > 5 {
                        self.open.push_back((stream, self.message.judge(&payload[5..])));
                    } else if len == 5 {
                        // The message is empty, so every field has its default value.
                        self.open.push_back((stream, self.message.judge(&[])));
                    }
                }
                RST_STREAM => self.finish(stream, done),
                SETTINGS if flags & ACK == 0 => {
                    self.settings(payload);
                    frame(out, 0, SETTINGS, ACK, 0);
                }
                PING if flags & ACK == 0 => {
                    frame(out, len, PING, ACK, 0);
                    out.extend_from_slice(payload);
                }
                WINDOW_UPDATE if stream == 0 && len == 4 => {
                    self.send_window += u32::from_be_bytes([payload[0], payload[1], payload[2], payload[3]]) as i64;
                }
                GOAWAY => {
                    let code = payload.get(4..8).map(|c| u32::from_be_bytes([c[0], c[1], c[2], c[3]]));
                    return Err(format!("the server sent GOAWAY, code {code:?}"));
                }
                _ => {}
            }
            if matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
                self.finish(stream, done);
            }
        }
        if self.unacknowledged > 1 << 20 {
            frame(out, 4, WINDOW_UPDATE, 0, 0);
            out.extend_from_slice(&(self.unacknowledged as u32).to_be_bytes());
            self.unacknowledged = 0;
        }
        Ok(used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_protobuf() {
        let mut out = Vec::new();
        Message::should_rate_limit("d", "e").write(b"key", &mut out);
        // domain "d"; descriptors { entries { key: "e" value: "key" } }
        assert_eq!(out, b"\x0a\x01d\x12\x0a\x0a\x08\x0a\x01e\x12\x03key");
        out.clear();
        Message::throttlecrab(&[10, 300, 60]).write(b"k", &mut out);
        assert_eq!(out, b"\x0a\x01k\x10\x0a\x18\xac\x02\x20\x3c\x28\x01");
    }

    #[test]
    fn replies_by_stream() {
        let mut rls = Rls::new(Message::should_rate_limit("d", "e"), vec![]);
        let mut input = Vec::new();
        frame(&mut input, 7, DATA, 0, 3);
        input.extend_from_slice(b"\0\0\0\0\x02\x08\x02");
        frame(&mut input, 0, HEADERS, END_STREAM | END_HEADERS, 3);
        frame(&mut input, 0, HEADERS, END_STREAM | END_HEADERS, 1);
        input.extend_from_slice(&[0, 0]);
        let (mut out, mut done) = (Vec::new(), Vec::new());
        assert_eq!(rls.replies(&input, &mut out, &mut done).unwrap(), input.len() - 2);
        let seen: Vec<_> = done.iter().map(|c| (c.request, c.verdict)).collect();
        assert_eq!(seen, [(1, Verdict::Denied), (0, Verdict::Error)]);
    }
}
