//! Clients that connect and ask one question, each on a new connection. A client whose connection was closed tries again
//! until it has an answer.

use clap::Args;
use rustls::{ClientConfig, StreamOwned};
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::proto::Protocol as _;
use crate::rls::{DEFAULT_PATH, Message, Rls, request_headers};
use crate::tls::{Tls, connection};

#[derive(Args)]
pub(crate) struct Newcomers {
    /// Address of the gRPC listener
    #[arg(long)]
    target: SocketAddr,
    #[arg(long, default_value_t = 100)]
    clients: u32,
    /// Milliseconds between the clients
    #[arg(long, default_value_t = 100)]
    every_ms: u64,
    /// Milliseconds until a client tries again
    #[arg(long, default_value_t = 100)]
    retry_ms: u64,
    /// A client gives up after this many seconds
    #[arg(long, default_value_t = 30.0)]
    patience: f64,
    #[command(flatten)]
    tls: Tls,
}

/// What has become of a client.
struct Arrival {
    tries: u32,
    /// How long the client has waited for its answer. `None` if it has given up.
    took: Option<Duration>,
}

impl Newcomers {
    pub(crate) fn run(&self) -> Result<Value, String> {
        let tls = self.tls.config("h2")?;
        let arrivals: Vec<Arrival> = thread::scope(|scope| {
            let begin = |_| {
                thread::sleep(Duration::from_millis(self.every_ms));
                scope.spawn(|| self.arrive(tls.as_ref()))
            };
            let clients: Vec<_> = (0..self.clients).map(begin).collect();
            clients.into_iter().map(|client| client.join().expect("no client panics")).collect()
        });
        let served = |arrival: &Arrival| arrival.took.map(|took| took.as_secs_f64() * 1000.0);
        let ms = kit::spread(arrivals.iter().filter_map(served));
        let first = arrivals.iter().filter(|arrival| arrival.tries == 1 && arrival.took.is_some()).count();
        let tries: u32 = arrivals.iter().map(|arrival| arrival.tries).sum();
        Ok(json!({
            "clients": self.clients, "answered": arrivals.iter().filter_map(served).count(), "at_first_try": first,
            "tries": tries, "median_ms": ms.median, "worst_ms": ms.max,
        }))
    }

    fn arrive(&self, tls: Option<&Arc<ClientConfig>>) -> Arrival {
        let begun = Instant::now();
        let until = begun + Duration::from_secs_f64(self.patience);
        for tries in 1.. {
            let is_answered = ask(self.target, tls, until).is_ok();
            if is_answered || Instant::now() >= until {
                return Arrival { tries, took: is_answered.then(|| begun.elapsed()) };
            }
            thread::sleep(Duration::from_millis(self.retry_ms));
        }
        unreachable!("the loop has no end")
    }
}

/// Connects, and waits for the answer to one request.
fn ask(target: SocketAddr, tls: Option<&Arc<ClientConfig>>, until: Instant) -> io::Result<()> {
    let left = || until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let stream = TcpStream::connect_timeout(&target, left())?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(left()))?;
    match tls {
        None => converse(stream, target),
        Some(config) => {
            converse(StreamOwned::new(connection(config, target).map_err(io::Error::other)?, stream), target)
        }
    }
}

fn converse(mut stream: impl Read + Write, target: SocketAddr) -> io::Result<()> {
    let message = Message::should_rate_limit("bench", "user_id");
    let mut protocol = Rls::new(message, request_headers(&target.to_string(), DEFAULT_PATH));
    let (mut output, mut input, mut done, mut scratch) = (Vec::new(), Vec::new(), Vec::new(), [0; 1 << 14]);
    protocol.preface(&mut output);
    protocol.request(b"newcomer", &mut output);
    while done.is_empty() {
        stream.write_all(&output)?;
        stream.flush()?;
        output.clear();
        let read = stream.read(&mut scratch)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        input.extend_from_slice(&scratch[..read]);
        let used = protocol.replies(&input, &mut output, &mut done).map_err(io::Error::other)?;
        input.drain(..used);
    }
    Ok(())
}
