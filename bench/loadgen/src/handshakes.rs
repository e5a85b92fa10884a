//! Clients that connect, do the handshake of TLS, and go as soon as the server has sent its first bytes of HTTP/2. The
//! server sends them after the handshake. Without TLS, the same clients show what the rest of a connection costs.

use clap::Args;
use hdrhistogram::Histogram;
use mio::{Events, Interest, Poll, Token};
use rustls::{ClientConfig, HandshakeKind};
use serde_json::{Value, json};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::engine::{histogram, self_cpu, server_cpu};
use crate::rls::preface;
use crate::socket::Socket;
use crate::tls::Tls;

#[derive(Args)]
pub(crate) struct Handshakes {
    /// Address of the gRPC listener
    #[arg(long)]
    target: SocketAddr,
    /// Handshakes at once. As soon as one ends, another client begins
    #[arg(long, default_value_t = 1)]
    concurrency: usize,
    /// Measured seconds, after the warm-up
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    #[arg(long, default_value_t = 1.0)]
    warmup: f64,
    /// The id of a server process. Its CPU time is reported too
    #[arg(long)]
    server_pid: Vec<u32>,
    #[command(flatten)]
    tls: Tls,
}

struct Client {
    socket: Socket,
    begun: Instant,
}

impl Client {
    /// Begins to connect, in the place of client `i`.
    fn begin(target: SocketAddr, tls: Option<&Arc<ClientConfig>>, poll: &Poll, i: usize) -> Result<Client, String> {
        let begun = Instant::now();
        let mut socket = Socket::connect(target, tls)?;
        preface(&mut socket.output);
        let interest = Interest::READABLE | Interest::WRITABLE;
        poll.registry().register(&mut socket.stream, Token(i), interest).map_err(|e| e.to_string())?;
        Ok(Client { socket, begun })
    }

    /// Goes on. Returns whether the server has sent bytes of HTTP/2. Fails if the server has closed the connection.
    fn step(&mut self, is_readable: bool, scratch: &mut [u8], input: &mut Vec<u8>) -> Result<bool, String> {
        input.clear();
        if is_readable {
            self.socket.read(scratch, input)?;
        }
        self.socket.flush()?;
        Ok(!input.is_empty())
    }

    /// Returns whether the client has resumed a session.
    fn has_resumed(&self) -> bool {
        self.socket.tls.as_ref().is_some_and(|tls| tls.handshake_kind() == Some(HandshakeKind::Resumed))
    }

    fn end(mut self) {
        if let Some(tls) = &mut self.socket.tls {
            tls.send_close_notify();
        }
        // If the server has closed the connection already, the message is not needed.
        let _ = self.socket.flush();
    }
}

struct Tally {
    handshakes: u64,
    resumed: u64,
    /// Clients whose connection was closed.
    refused: u64,
    latency: Histogram<u64>,
}

impl Handshakes {
    pub(crate) fn run(&self) -> Result<Value, String> {
        let tls = self.tls.config("h2")?;
        let mut poll = Poll::new().map_err(|e| e.to_string())?;
        let begin = |poll: &Poll, i: usize| Client::begin(self.target, tls.as_ref(), poll, i);
        let mut clients = (0..self.concurrency).map(|i| begin(&poll, i)).collect::<Result<Vec<_>, _>>()?;
        let mut tally = Tally { handshakes: 0, resumed: 0, refused: 0, latency: histogram()? };
        let (mut events, mut scratch, mut input) = (Events::with_capacity(1024), vec![0; 1 << 16], Vec::new());
        let measure_from = Instant::now() + Duration::from_secs_f64(self.warmup);
        let measure_to = measure_from + Duration::from_secs_f64(self.seconds);
        let cpu = || (self_cpu(), server_cpu(&self.server_pid));
        let mut before = None;
        loop {
            let now = Instant::now();
            if now >= measure_to {
                break;
            }
            if now >= measure_from && before.is_none() {
                before = Some(cpu());
            }
            let until = if before.is_none() { measure_from } else { measure_to };
            match poll.poll(&mut events, Some(until - now)) {
                Err(e) if e.kind() != ErrorKind::Interrupted => return Err(e.to_string()),
                _ => {}
            }
            for event in &events {
                let i = event.token().0;
                let client = &mut clients[i];
                client.socket.writable |= event.is_writable();
                let served = match client.step(event.is_readable(), &mut scratch, &mut input) {
                    Ok(false) if !event.is_read_closed() => continue,
                    Ok(served) => served,
                    Err(_) => false,
                };
                if before.is_some() {
                    tally.add(client, served);
                }
                std::mem::replace(&mut clients[i], begin(&poll, i)?).end();
            }
        }
        let after = cpu();
        let before = before.ok_or("there was no time to measure")?;
        let server = after.1.zip(before.1).map(|(after, before)| after.saturating_sub(before));
        Ok(tally.report(self.seconds, after.0.saturating_sub(before.0), server))
    }
}

impl Tally {
    fn add(&mut self, client: &Client, served: bool) {
        if !served {
            self.refused += 1;
            return;
        }
        self.handshakes += 1;
        self.resumed += u64::from(client.has_resumed());
        let latency = client.begun.elapsed().as_nanos();
        self.latency.saturating_record(u64::try_from(latency).unwrap_or(u64::MAX));
    }

    fn report(&self, seconds: f64, client: Duration, server: Option<Duration>) -> Value {
        let us = |q: f64| self.latency.value_at_quantile(q) as f64 / 1e3;
        let each = |cpu: Duration| cpu.as_secs_f64() * 1e6 / self.handshakes.max(1) as f64;
        json!({
            "handshakes": self.handshakes, "resumed": self.resumed, "refused": self.refused, "seconds": seconds,
            "per_s": self.handshakes as f64 / seconds,
            "p50_us": us(0.5), "p99_us": us(0.99), "max_us": self.latency.max() as f64 / 1e3,
            "client_cpu_us": each(client), "server_cpu_us": server.map(each),
            "client_share": client.as_secs_f64() / seconds, "server_share": server.map(|cpu| cpu.as_secs_f64() / seconds),
        })
    }
}
