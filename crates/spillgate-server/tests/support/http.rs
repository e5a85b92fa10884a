//! A minimal HTTP/1.1 client with one request for each connection, and an upstream that counts its requests.
//!
//! A client library could hide a wrong answer. This client returns each answer exactly as the server sent it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use socket2::{Domain, Socket, Type};

use super::DEADLINE;

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// Header fields. Their names are in lower case.
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Response {
    /// Returns the value of the header field with this name. Panics if the answer has the field twice.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(other, _)| other == name).map(|(_, value)| value.as_str());
        let first = found.next();
        assert!(found.next().is_none(), "the answer has {name} more than once: {:?}", self.headers);
        first
    }

    pub(crate) fn number(&self, name: &str) -> u64 {
        let value = self.header(name).unwrap_or_else(|| panic!("the answer has no {name}: {self:?}"));
        value.parse().unwrap_or_else(|_| panic!("{name}: {value} is not a whole number"))
    }
}

pub(crate) fn get(server: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Response {
    request(server, "GET", path, headers, "").unwrap_or_else(|error| panic!("GET {path} of {server}: {error}"))
}

/// Sends a request like [`get`], but from another address of this machine.
pub(crate) fn get_from(client: IpAddr, server: SocketAddr, path: &str) -> Response {
    let send = || {
        let socket = Socket::new(Domain::for_address(server), Type::STREAM, None)?;
        socket.bind(&SocketAddr::new(client, 0).into())?;
        socket.connect_timeout(&server.into(), DEADLINE)?;
        exchange(
            socket.into(),
            format!("GET {path} HTTP/1.1\r\nhost: {server}\r\nconnection: close\r\n\r\n").as_bytes(),
        )
    };
    send().unwrap_or_else(|error: std::io::Error| panic!("GET {path} of {server} from {client}: {error}"))
}

/// Sends a request like [`get`], but with one header field, whose value can have any bytes.
pub(crate) fn get_with_bytes(server: SocketAddr, path: &str, name: &str, value: &[u8]) -> Response {
    let head = format!("GET {path} HTTP/1.1\r\nhost: {server}\r\nconnection: close\r\n{name}: ");
    let sent = TcpStream::connect_timeout(&server, DEADLINE)
        .and_then(|stream| exchange(stream, &[head.as_bytes(), value, b"\r\n\r\n"].concat()));
    sent.unwrap_or_else(|error| panic!("GET {path} of {server}: {error}"))
}

pub(crate) fn request(
    server: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> std::io::Result<Response> {
    let fields: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = body.len();
    exchange(
        TcpStream::connect_timeout(&server, DEADLINE)?,
        format!(
            "{method} {path} HTTP/1.1\r\nhost: {server}\r\nconnection: close\r\ncontent-length: {length}\r\n{fields}\r\n{body}"
        )
        .as_bytes(),
    )
}

fn exchange(mut stream: TcpStream, request: &[u8]) -> std::io::Result<Response> {
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.set_write_timeout(Some(DEADLINE))?;
    stream.write_all(request)?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    parse(&text).ok_or_else(|| std::io::Error::other(format!("the answer is not HTTP: {text:?}")))
}

fn parse(text: &str) -> Option<Response> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers =
        lines.filter_map(|line| line.split_once(": ")).map(|(name, value)| (name.to_lowercase(), value.into()));
    let headers: Vec<(String, String)> = headers.collect();
    let chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
    let body = if chunked { unchunked(body)? } else { body.to_owned() };
    Some(Response { status, headers, body })
}

fn unchunked(mut body: &str) -> Option<String> {
    let mut whole = String::new();
    loop {
        let (length, rest) = body.split_once("\r\n")?;
        let length = usize::from_str_radix(length, 16).ok()?;
        if length == 0 {
            return Some(whole);
        }
        whole.push_str(rest.get(..length)?);
        body = rest.get(length..)?.strip_prefix("\r\n")?;
    }
}

/// An upstream server for proxies. It answers every request with 200, and counts the requests.
#[derive(Debug)]
pub(crate) struct Upstream {
    address: SocketAddr,
    seen: Arc<AtomicUsize>,
    closing: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Upstream {
    pub(crate) const BODY: &str = "hello from upstream";

    pub(crate) fn start() -> Upstream {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("a bound listener has an address");
        let (seen, closing) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (counter, closed) = (Arc::clone(&seen), Arc::clone(&closing));
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if closed.load(Ordering::SeqCst) {
                    return;
                }
                // A client that closes its connection early is not an error of the test.
                drop(stream.and_then(|stream| answer(&stream, &counter)));
            }
        });
        Upstream { address, seen, closing, thread: Some(thread) }
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(crate) fn seen(&self) -> usize {
        self.seen.load(Ordering::SeqCst)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::SeqCst);
        // This connection wakes the thread that accepts connections. The thread then reads `closing` and ends.
        drop(TcpStream::connect(self.address));
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// Reads a complete request, counts it, and then answers it. So a client that has its answer knows that the request was counted.
fn answer(mut stream: &TcpStream, counter: &AtomicUsize) -> std::io::Result<()> {
    stream.set_read_timeout(Some(DEADLINE))?;
    let (mut reader, mut length) = (BufReader::new(stream), 0);
    let mut line = String::new();
    while reader.read_line(&mut line)? > 2 {
        if let Some((_, value)) = line.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case("content-length")) {
            length = value.trim().parse().unwrap_or(0);
        }
        line.clear();
    }
    if line == "\r\n" {
        // The whole body must be read. With unread bytes, the end of the connection would be a TCP reset.
        std::io::copy(&mut reader.take(length), &mut std::io::sink())?;
        counter.fetch_add(1, Ordering::SeqCst);
        let (body, length) = (Upstream::BODY, Upstream::BODY.len());
        write!(stream, "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}")?;
    }
    Ok(())
}
