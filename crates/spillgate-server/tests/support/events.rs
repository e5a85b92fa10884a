//! A client of the event stream of the admin listener, over HTTP/1.1.
//!
//! The client checks the framing of each event, which a library would hide.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};

use serde_json::Value;
use socket2::{Domain, Socket, Type};

use super::DEADLINE;

/// An open stream of events, or the error that the server answered.
#[derive(Debug)]
pub(crate) struct EventStream {
    pub(crate) status: u16,
    pub(crate) head: String,
    reader: BufReader<TcpStream>,
    /// The text that has arrived, but was not yet returned as an event.
    text: String,
}

impl EventStream {
    pub(crate) fn open(server: SocketAddr, headers: &[(&str, &str)]) -> EventStream {
        EventStream::open_from(Ipv4Addr::LOCALHOST.into(), server, headers)
    }

    /// Opens a stream from another address of this machine.
    pub(crate) fn open_from(client: IpAddr, server: SocketAddr, headers: &[(&str, &str)]) -> EventStream {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("the system has sockets");
        socket.bind(&SocketAddr::new(client, 0).into()).expect("the address belongs to this machine");
        socket.connect_timeout(&server.into(), DEADLINE).expect("the server accepts");
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(DEADLINE)).expect("the timeout is valid");
        let fields: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        write!(stream, "GET /events HTTP/1.1\r\nhost: {server}\r\n{fields}\r\n").expect("the server reads");
        let (mut reader, mut head) = (BufReader::new(stream), String::new());
        while !head.ends_with("\r\n\r\n") {
            assert!(reader.read_line(&mut head).expect("the server answers") > 0, "the head has no end: {head}");
        }
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("the answer has a status");
        EventStream { status, head: head.to_lowercase(), reader, text: String::new() }
    }

    /// Returns the next event: its name and its data. `None` if the stream has ended. Comments are left out.
    pub(crate) fn next(&mut self) -> Option<(String, Value)> {
        loop {
            while let Some((event, rest)) = self.text.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.text = rest;
                if let Some(event) = event.strip_prefix("event: ") {
                    let (name, data) = event.split_once("\ndata: ").expect("an event has data");
                    return Some((name.to_owned(), serde_json::from_str(data).expect("the data is JSON in one line")));
                }
            }
            let chunk = self.chunk()?;
            self.text.push_str(&chunk);
        }
    }

    /// Returns the next tick. Panics if the stream has ended.
    pub(crate) fn tick(&mut self) -> Value {
        loop {
            let (name, data) = self.next().expect("the stream goes on");
            if name == "tick" {
                return data;
            }
        }
    }

    /// Reads one chunk. Returns `None` after the last one, and if the server has closed the connection.
    fn chunk(&mut self) -> Option<String> {
        let mut length = String::new();
        self.reader.read_line(&mut length).ok()?;
        let length = usize::from_str_radix(length.trim_end(), 16).ok().filter(|length| *length > 0)?;
        let mut chunk = vec![0; length + 2];
        self.reader.read_exact(&mut chunk).ok()?;
        Some(String::from_utf8(chunk[..length].to_vec()).expect("events are UTF-8"))
    }
}
