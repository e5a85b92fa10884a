//! A minimal HTTP/2 client that can also send invalid frames.
//!
//! Attackers send invalid frames. Client libraries refuse to send such frames, so the tests need this client.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::support::DEADLINE;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
const ACK: u8 = 1;

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub(crate) const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

pub(crate) fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let len = u32::try_from(payload.len()).unwrap();
    out.extend_from_slice(&len.to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// Returns the bytes that begin a connection: the preface, SETTINGS with a header table of size 0, and a WINDOW_UPDATE.
/// The WINDOW_UPDATE makes the connection window so large that the answers of the server never fill it.
pub(crate) fn greeting() -> Vec<u8> {
    let mut out = PREFACE.to_vec();
    frame(&mut out, SETTINGS, 0, 0, &[0, 1, 0, 0, 0, 0]);
    frame(&mut out, WINDOW_UPDATE, 0, 0, &0x7000_0000u32.to_be_bytes());
    out
}

/// Returns the header block of a gRPC call of `path`. The block uses no entries of the dynamic table.
pub(crate) fn call_headers(path: &str) -> Vec<u8> {
    let mut block = vec![0x83, 0x86]; // :method POST, :scheme http
    let fields: [(&[u8], &str); 4] =
        [(&[4], path), (&[1], "localhost"), (&[0x0f, 16], "application/grpc"), (b"\x00\x02te", "trailers")];
    for (name, value) in fields {
        block.extend_from_slice(name);
        block.push(u8::try_from(value.len()).unwrap());
        block.extend_from_slice(value.as_bytes());
    }
    block
}

/// Returns a message with its gRPC prefix: a zero byte (not compressed) and the length.
pub(crate) fn message(bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![0];
    out.extend_from_slice(&u32::try_from(bytes.len()).unwrap().to_be_bytes());
    out.extend_from_slice(bytes);
    out
}

/// Returns a RateLimitRequest with `count` descriptors. Each descriptor has only the entry `key: value`.
pub(crate) fn rate_limit_request(domain: &str, key: &str, value: &str, count: usize) -> Vec<u8> {
    let field = |number: u8, content: &[u8]| {
        let len = u8::try_from(content.len()).ok().filter(|len| *len < 128).unwrap();
        [&[number << 3 | 2, len], content].concat()
    };
    let entry = [field(1, key.as_bytes()), field(2, value.as_bytes())].concat();
    let descriptor = field(2, &field(1, &entry));
    [field(1, domain.as_bytes()), descriptor.repeat(count)].concat()
}

/// A connection that follows the rules of HTTP/2.
pub(crate) struct Connection {
    stream: TcpStream,
    next_stream: u32,
    /// How many bytes of DATA the server still accepts. Index 0 is for the connection, and index 1 for the stream of
    /// the call.
    windows: [usize; 2],
}

/// The size of each window when the connection begins.
const FIRST_WINDOW: usize = 65_535;
/// The maximum number of bytes in a DATA frame of this client. HTTP/2 requires that every server accepts frames of
/// 16,384 bytes.
const CHUNK: usize = 16_000;

impl Connection {
    pub(crate) fn open(server: SocketAddr) -> io::Result<Connection> {
        let mut stream = TcpStream::connect_timeout(&server, DEADLINE)?;
        stream.set_read_timeout(Some(DEADLINE))?;
        stream.set_write_timeout(Some(DEADLINE))?;
        stream.write_all(&greeting())?;
        Ok(Connection { stream, next_stream: 1, windows: [FIRST_WINDOW; 2] })
    }

    /// Starts a call of `path` and sends `data`. If a window is full, waits until the server enlarges the window. Then reads
    /// until the server ends the stream, and returns the DATA of the server. Returns `None` if the server reset the
    /// stream or closed the connection.
    pub(crate) fn call(&mut self, path: &str, data: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let id = self.next_stream;
        self.next_stream += 2;
        self.windows[1] = FIRST_WINDOW;
        let mut out = Vec::new();
        frame(&mut out, HEADERS, END_HEADERS, id, &call_headers(path));
        let mut rest = data;
        loop {
            let (chunk, after) = rest.split_at(rest.len().min(CHUNK));
            while self.windows.iter().any(|window| *window < chunk.len()) {
                self.stream.write_all(&std::mem::take(&mut out))?;
                // The server can end the call before it has read all data.
                if let Some(end) = self.read_for(id, &mut Vec::new())? {
                    return Ok(end);
                }
            }
            self.windows = self.windows.map(|window| window - chunk.len());
            frame(&mut out, DATA, if after.is_empty() { END_STREAM } else { 0 }, id, chunk);
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        self.stream.write_all(&out)?;
        let mut answer = Vec::new();
        loop {
            if let Some(end) = self.read_for(id, &mut answer)? {
                return Ok(end);
            }
        }
    }

    /// Reads one frame, and appends the DATA of the stream `id` to `data`. If the frame ends the call, returns the
    /// result of the call.
    fn read_for(&mut self, id: u32, data: &mut Vec<u8>) -> io::Result<Option<Option<Vec<u8>>>> {
        let frame = self.read()?;
        match frame.kind {
            GOAWAY => return Ok(Some(None)),
            RST_STREAM if frame.stream == id => return Ok(Some(None)),
            DATA if frame.stream == id => data.extend_from_slice(&frame.payload),
            WINDOW_UPDATE if frame.stream == 0 || frame.stream == id => {
                let more = frame.payload.first_chunk().map_or(0, |more| u32::from_be_bytes(*more));
                self.windows[usize::from(frame.stream == id)] += more as usize;
            }
            _ => {}
        }
        let ends = matches!(frame.kind, DATA | HEADERS) && frame.flags & END_STREAM != 0 && frame.stream == id;
        Ok(ends.then(|| Some(std::mem::take(data))))
    }

    /// Reads the next frame, and acknowledges SETTINGS and PING.
    pub(crate) fn read(&mut self) -> io::Result<Frame> {
        let frame = read_frame(&mut self.stream)?;
        if matches!(frame.kind, SETTINGS | PING) && frame.flags & ACK == 0 {
            let mut out = Vec::new();
            let payload = if frame.kind == PING { &frame.payload[..] } else { b"" };
            self::frame(&mut out, frame.kind, ACK, 0, payload);
            self.stream.write_all(&out)?;
        }
        Ok(frame)
    }
}

pub(crate) fn read_frame(stream: &mut impl Read) -> io::Result<Frame> {
    let mut head = [0; 9];
    stream.read_exact(&mut head)?;
    let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
    stream.read_exact(&mut payload)?;
    let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
    Ok(Frame { kind: head[3], flags: head[4], stream, payload })
}
