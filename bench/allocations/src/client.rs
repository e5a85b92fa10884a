//! Clients that do not allocate memory for a request or its answer.
//!
//! The client and the server run in one process, so an allocation of the client would be counted as an allocation of
//! the server. The client allocates only if it has to acknowledge a SETTINGS or PING frame. A server sends these frames
//! when a connection begins, or when the connection is idle, and not with each answer.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

/// Connects to a server. The connection sends small writes without delay.
pub(crate) fn connect(server: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(server).expect("the server listens");
    stream.set_nodelay(true).expect("the option is supported");
    stream
}

pub(crate) fn http_request(method: &str, path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}")
        .into_bytes()
}

/// Sends `request` and reads the answer. The status of the answer must be 200.
pub(crate) fn send_http(stream: &mut TcpStream, request: &[u8]) {
    stream.write_all(request).expect("the server reads");
    let (mut answer, mut read) = ([0; 4096], 0);
    loop {
        let got = stream.read(&mut answer[read..]).expect("the server answers");
        assert!(got > 0, "the server closed");
        read += got;
        let Some(head) = answer[..read].windows(4).position(|end| end == b"\r\n\r\n") else { continue };
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer[..read]));
        if read == head + 4 + content_length(&answer[..head]) {
            return;
        }
    }
}

fn content_length(head: &[u8]) -> usize {
    let name = b"content-length: ";
    let at = head.windows(name.len()).position(|field| field.eq_ignore_ascii_case(name)).expect("a length");
    let digits = head[at + name.len()..].iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |length, digit| length * 10 + usize::from(digit - b'0'))
}

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short frame").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A gRPC call over HTTP/2 that can be sent many times, each time on a new stream.
pub(crate) struct Call {
    stream: TcpStream,
    /// The frames HEADERS and DATA. Before each call, the number of the new stream is written into both frames.
    request: Vec<u8>,
    /// The position in `request` at which the DATA frame begins.
    data_at: usize,
    /// The number of the stream of the next call.
    number: u32,
}

impl Call {
    pub(crate) fn new(server: SocketAddr, path: &str, message: &[u8]) -> Call {
        let mut stream = connect(server);
        let window = 0x7fff_0000_u32.to_be_bytes();
        let initial_window = [&[0, 4], &window[..]].concat();
        let greeting = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(SETTINGS, 0, 0, &initial_window)];
        stream.write_all(&greeting.concat()).expect("the server reads");
        stream.write_all(&frame(8, 0, 0, &window)).expect("the server reads");
        // No field is added to HPACK's dynamic table, so the same bytes have the same meaning in every call. 0x83 and
        // 0x86 are fields of the static table (`:method: POST` and `:scheme: http`).
        let mut fields = vec![0x83, 0x86];
        let literals: [(&[u8], &str); 4] =
            [(&[4], path), (&[1], "localhost"), (&[0x0f, 16], "application/grpc"), (b"\0\x02te", "trailers")];
        for (name, value) in literals {
            fields.extend_from_slice(name);
            fields.push(u8::try_from(value.len()).expect("a short value"));
            fields.extend_from_slice(value.as_bytes());
        }
        let length = u32::try_from(message.len()).expect("a short message").to_be_bytes();
        let headers = frame(HEADERS, END_HEADERS, 0, &fields);
        let data = frame(0, END_STREAM, 0, &[&[0], &length[..], message].concat());
        Call { stream, data_at: headers.len(), request: [headers, data].concat(), number: 1 }
    }

    /// Sends the call, and reads until the call ends.
    pub(crate) fn send(&mut self) {
        let number = self.number.to_be_bytes();
        self.request[5..9].copy_from_slice(&number);
        self.request[self.data_at + 5..self.data_at + 9].copy_from_slice(&number);
        self.stream.write_all(&self.request).expect("the server reads");
        let (mut frames, mut data) = ([0; 16 * 1024], false);
        loop {
            self.stream.read_exact(&mut frames[..9]).expect("the server answers");
            let [_, a, b, kind, flags, ..] = frames;
            // By default, the payload of a frame has at most 16 KiB, and this client does not raise the bound. So the
            // highest of the three bytes of the length is always 0.
            let length = usize::from(u16::from_be_bytes([a, b]));
            let of_call = frames[5..9] == number;
            self.stream.read_exact(&mut frames[..length]).expect("the server answers");
            match kind {
                SETTINGS if flags & ACK == 0 => self.acknowledge(SETTINGS, &[]),
                PING if flags & ACK == 0 => self.acknowledge(PING, &frames[..length]),
                0 => data |= of_call && length > 5,
                HEADERS if of_call && flags & END_STREAM != 0 => break,
                _ => {}
            }
        }
        assert!(data, "the call failed");
        self.number += 2;
    }

    fn acknowledge(&mut self, kind: u8, payload: &[u8]) {
        self.stream.write_all(&frame(kind, ACK, 0, payload)).expect("the server reads");
    }
}
