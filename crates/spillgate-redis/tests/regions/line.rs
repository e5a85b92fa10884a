//! The line from a server to the Redis of another region: a proxy with a delay, and with faults.

use std::time::Duration;

use spillgate_testkit::Random;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::watch::{Receiver, Sender, channel};
use tokio::time::{Instant, sleep_until};

/// How long a line needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    pub(crate) round_trip: Duration,
    /// Each message needs up to a third more or less. In 1 % of the time the line stands still for 2 s.
    pub(crate) is_rough: bool,
}

/// What a line does with messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// Connections are closed, and new ones too.
    Refused,
    /// Nothing arrives until the fault ends. Connections stay open.
    Silent,
    /// Commands arrive, and their replies only when the fault ends.
    Mute,
}

/// The part of a line's time in which it stands still, and for how long.
const STALL: Duration = Duration::from_secs(2);
const STALLS_OF: u64 = 100;

#[derive(Clone)]
pub(crate) struct Line {
    port: u16,
    fault: Sender<Fault>,
}

impl Line {
    /// Starts a line to this port. `seed` chooses its delays.
    pub(crate) async fn start(to: u16, weather: Weather, seed: u64) -> Line {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
        let port = listener.local_addr().expect("the listener has an address").port();
        let (fault, now) = channel(Fault::None);
        let begun = Instant::now();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if *now.borrow() != Fault::Refused {
                    tokio::spawn(pass(client, to, now.clone(), Delays { weather, seed, begun }));
                }
            }
        });
        Line { port, fault }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn set(&self, fault: Fault) {
        self.fault.send_replace(fault);
    }
}

#[derive(Clone, Copy)]
struct Delays {
    weather: Weather,
    seed: u64,
    begun: Instant,
}

impl Delays {
    /// Returns when a message arrives that is sent now.
    fn arrival(&self, random: &mut Random) -> Instant {
        let (now, half) = (Instant::now(), self.weather.round_trip / 2);
        if !self.weather.is_rough {
            return now + half;
        }
        let part = STALL.as_millis().max(1);
        let turn = now.duration_since(self.begun).as_millis() / part;
        let luck = Random((self.seed << 32 | u64::try_from(turn).unwrap_or(0)) + 1).below(STALLS_OF);
        if luck == 0 {
            return self.begun + STALL * u32::try_from(turn + 1).unwrap_or(u32::MAX) + half;
        }
        now + half * (667 + u32::try_from(random.below(667)).unwrap_or(0)) / 1000
    }
}

async fn pass(client: TcpStream, to: u16, mut fault: Receiver<Fault>, delays: Delays) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", to)).await else { return };
    for stream in [&client, &server] {
        stream.set_nodelay(true).expect("the stream is a socket");
    }
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let commands = carry(from_client, to_server, (fault.clone(), &[Fault::Silent]), delays);
    let replies = carry(from_server, to_client, (fault.clone(), &[Fault::Silent, Fault::Mute]), delays);
    tokio::select! {
        () = commands => {}
        () = replies => {}
        _ = fault.wait_for(|fault| *fault == Fault::Refused) => {}
    }
}

/// Carries bytes one way, in their order, and holds them during the faults in `held`.
async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    (mut fault, held): (Receiver<Fault>, &[Fault]),
    delays: Delays,
) {
    let (send, mut sent) = unbounded_channel();
    let read = async move {
        let (mut bytes, mut random) = (vec![0; 65536], Random(delays.seed + 7));
        while let Ok(size @ 1..) = from.read(&mut bytes).await {
            let _ = send.send((delays.arrival(&mut random), bytes[..size].to_vec()));
        }
    };
    let write = async move {
        while let Some((at, bytes)) = sent.recv().await {
            sleep_until(at).await;
            let flows = fault.wait_for(|fault| !held.contains(fault)).await.is_ok();
            if !flows || to.write_all(&bytes).await.is_err() {
                break;
            }
        }
    };
    // After the last byte is read, the rest still arrives.
    tokio::join!(read, write);
}
