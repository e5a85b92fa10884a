//! A server with one epoll loop and no runtime. It shows the highest speed of a server that only reads requests and
//! writes answers.

pub(crate) mod h2;
pub(crate) mod http;

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

use crate::Outcome;

/// Reads complete requests from the front of the input and appends their answers. Returns the number of bytes that were
/// read.
pub(crate) type Replies<S> = fn(&mut S, &[u8], &mut Vec<u8>) -> usize;

const LISTENER: Token = Token(usize::MAX);

struct Connection<S> {
    stream: TcpStream,
    state: S,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl<S> Connection<S> {
    /// Reads the bytes that have arrived, and answers the complete requests in them. Then writes the answers until the
    /// socket would block. An error means that the connection has ended.
    fn turn(&mut self, scratch: &mut [u8], replies: Replies<S>) -> io::Result<()> {
        loop {
            match self.stream.read(scratch) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    self.take(&scratch[..n], replies);
                    if n < scratch.len() {
                        break;
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        let mut sent = 0;
        while sent < self.output.len() {
            match self.stream.write(&self.output[sent..]) {
                Ok(n) => sent += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        self.output.drain(..sent);
        Ok(())
    }

    /// Answers the complete requests, and keeps the rest of the bytes for the next read. Bytes are copied only if the
    /// start of a request has arrived without its end.
    fn take(&mut self, bytes: &[u8], replies: Replies<S>) {
        if self.input.is_empty() {
            let used = replies(&mut self.state, bytes, &mut self.output);
            self.input.extend_from_slice(&bytes[used..]);
        } else {
            self.input.extend_from_slice(bytes);
            let used = replies(&mut self.state, &self.input, &mut self.output);
            self.input.drain(..used);
        }
    }
}

pub(crate) fn serve<S: Default>(address: SocketAddr, replies: Replies<S>) -> Outcome {
    let mut listener = TcpListener::bind(address)?;
    let (mut poll, mut events) = (Poll::new()?, Events::with_capacity(1024));
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    let mut connections: Vec<Option<Connection<S>>> = Vec::new();
    let mut scratch = vec![0u8; 1 << 16];
    loop {
        poll.poll(&mut events, None)?;
        for event in &events {
            if event.token() == LISTENER {
                while let Ok((mut stream, _)) = listener.accept() {
                    stream.set_nodelay(true)?;
                    let interest = Interest::READABLE | Interest::WRITABLE;
                    poll.registry().register(&mut stream, Token(connections.len()), interest)?;
                    let state = S::default();
                    connections.push(Some(Connection { stream, state, input: Vec::new(), output: Vec::new() }));
                }
                continue;
            }
            let slot = &mut connections[event.token().0];
            let ended = slot.as_mut().is_some_and(|connection| connection.turn(&mut scratch, replies).is_err());
            if ended {
                *slot = None;
            }
        }
    }
}

/// A RESP connection has no state.
pub(crate) fn resp_replies(_: &mut (), input: &[u8], output: &mut Vec<u8>) -> usize {
    crate::resp::frames(input, output)
}
