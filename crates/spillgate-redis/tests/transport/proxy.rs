//! Proxies: one resets connections in the middle of replies, and one delays replies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::unbounded_channel;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

pub(crate) struct Proxy {
    port: u16,
    resets: Arc<AtomicU64>,
    task: AbortHandle,
}

impl Proxy {
    /// Starts a proxy for the port `to`. It resets both sides of the first connection after `bytes` bytes of replies,
    /// and each later connection after 7 bytes more than the one before.
    pub(crate) async fn start(to: u16, bytes: u64) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
        let port = listener.local_addr().expect("the listener has an address").port();
        let resets = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&resets);
        let task = tokio::spawn(async move {
            for more in 0.. {
                let (client, _) = listener.accept().await.expect("the listener accepts connections");
                tokio::spawn(pass(client, to, bytes + 7 * more, Arc::clone(&counted)));
            }
        });
        Proxy { port, resets, task: task.abort_handle() }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub(crate) fn resets(&self) -> u64 {
        self.resets.load(Ordering::Relaxed)
    }
}

/// How long replies are held back. It can be changed at any time.
#[derive(Clone, Default)]
pub(crate) struct Delay(Arc<AtomicU64>);

impl Delay {
    pub(crate) fn of(wait: Duration) -> Delay {
        let delay = Delay::default();
        delay.set(wait);
        delay
    }

    pub(crate) fn set(&self, wait: Duration) {
        self.0.store(wait.as_micros().try_into().expect("a short time"), Ordering::Relaxed);
    }

    fn get(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}

/// Starts a proxy for the port `to`. It holds back the replies on every `of`th connection. Returns the proxy's port.
pub(crate) async fn delayed(to: u16, delay: Delay, of: usize) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
    let port = listener.local_addr().expect("the listener has an address").port();
    tokio::spawn(async move {
        let mut number = 0;
        while let Ok((client, _)) = listener.accept().await {
            let delay = if number % of == 0 { delay.clone() } else { Delay::default() };
            number += 1;
            tokio::spawn(pass_late(client, to, delay));
        }
    });
    port
}

async fn pass_late(client: TcpStream, to: u16, delay: Delay) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", to)).await else { return };
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let (late, mut due) = unbounded_channel();
    let read = async move {
        let mut reply = vec![0; 65536];
        while let Ok(size @ 1..) = from_server.read(&mut reply).await {
            let _ = late.send((Instant::now() + delay.get(), reply[..size].to_vec()));
        }
    };
    let write = async move {
        while let Some((at, reply)) = due.recv().await {
            sleep_until(at).await;
            if to_client.write_all(&reply).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        _ = copy(&mut from_client, &mut to_server) => {}
        ((), ()) = async { tokio::join!(read, write) } => {}
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pass(mut client: TcpStream, to: u16, bytes: u64, resets: Arc<AtomicU64>) {
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", to)).await else { return };
    for stream in [&client, &server] {
        stream.set_zero_linger().expect("the stream is a socket");
    }
    let ((mut from_client, mut to_client), (from_server, mut to_server)) = (client.split(), server.split());
    let mut replies = from_server.take(bytes);
    tokio::select! {
        _ = copy(&mut from_client, &mut to_server) => {}
        _ = copy(&mut replies, &mut to_client) => {
            resets.fetch_add(1, Ordering::Relaxed);
        }
    }
}
