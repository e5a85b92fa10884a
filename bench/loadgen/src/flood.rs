//! Clients that connect, and then say nothing, or send the first message of a handshake and then nothing. A client whose
//! connection was closed connects again.

use clap::Args;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use serde_json::{Value, json};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::tls::first_message;

#[derive(Args)]
pub(crate) struct Flood {
    #[arg(long)]
    target: SocketAddr,
    /// Clients at once
    #[arg(long, default_value_t = 1000)]
    connections: usize,
    /// Send the first message of a handshake. It is the same for all clients, so it costs them nearly nothing
    #[arg(long)]
    hello: bool,
    /// New connections per second. With 0, a client connects again as soon as its connection was closed
    #[arg(long, default_value_t = 0.0)]
    rate: f64,
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
}

impl Flood {
    pub(crate) fn run(&self) -> Result<Value, String> {
        let hello = if self.hello { first_message(self.target)? } else { Vec::new() };
        let mut poll = Poll::new().map_err(|e| e.to_string())?;
        let mut clients: Vec<Option<TcpStream>> = (0..self.connections).map(|_| None).collect();
        let mut waiting: Vec<usize> = (0..self.connections).collect();
        let (mut events, mut scratch) = (Events::with_capacity(1024), [0; 1 << 14]);
        let (begun, mut opened, mut closed) = (Instant::now(), 0_u64, 0_u64);
        loop {
            let elapsed = begun.elapsed().as_secs_f64();
            if elapsed >= self.seconds {
                let open = clients.iter().flatten().count();
                return Ok(
                    json!({ "opened": opened, "closed": closed, "open": open, "per_s": opened as f64 / elapsed }),
                );
            }
            while self.rate == 0.0 || (opened as f64) < self.rate * elapsed {
                let Some(i) = waiting.pop() else { break };
                opened += 1;
                let mut stream = TcpStream::connect(self.target).map_err(|e| format!("{}: {e}", self.target))?;
                let interest = Interest::READABLE | Interest::WRITABLE;
                poll.registry().register(&mut stream, Token(i), interest).map_err(|e| e.to_string())?;
                clients[i] = Some(stream);
            }
            match poll.poll(&mut events, Some(Duration::from_millis(1))) {
                Err(e) if e.kind() != ErrorKind::Interrupted => return Err(e.to_string()),
                _ => {}
            }
            for event in &events {
                let i = event.token().0;
                let Some(stream) = &mut clients[i] else { continue };
                // The socket is reported as writable once, when the server has accepted. A second report would only say that
                // the buffer has space again, but the message is too small to fill it.
                let sent = if event.is_writable() && !event.is_readable() { stream.write(&hello) } else { Ok(0) };
                let is_closed = sent.is_err() || event.is_readable() && is_closed(stream, &mut scratch);
                if is_closed {
                    closed += 1;
                    clients[i] = None;
                    waiting.push(i);
                }
            }
        }
    }
}

/// Reads all bytes that have arrived. Returns whether the server has closed the connection.
fn is_closed(stream: &mut TcpStream, scratch: &mut [u8]) -> bool {
    loop {
        match stream.read(scratch) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return e.kind() != ErrorKind::WouldBlock,
        }
    }
}
