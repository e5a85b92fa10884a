//! Clients of the admin listener, as if operators had its pages open: each client has an event stream, and reads the
//! overview every ten seconds.

use std::io::{self, Error, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

pub(crate) const CLIENTS: u8 = 10;
const OVERVIEW_EVERY: Duration = Duration::from_secs(10);

/// The clients of one server. They end with this process.
pub(crate) struct AdminClients(Arc<Mutex<Option<String>>>);

impl AdminClients {
    /// Starts all clients. The clients read the overview one after the other, so the server sends an overview about
    /// once a second.
    pub(crate) fn start(admin: SocketAddr) -> AdminClients {
        let failure = Arc::new(Mutex::new(None));
        for client in 0..CLIENTS {
            for work in [stream, overviews] {
                let failure = Arc::clone(&failure);
                thread::spawn(move || {
                    if let Err(error) = work(admin, client) {
                        *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
                    }
                });
            }
        }
        AdminClients(failure)
    }

    /// Fails if a client has failed, because the server then had fewer clients than the scenario says.
    pub(crate) fn check(&self) -> Result<(), String> {
        let failure = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        failure.map_or(Ok(()), |failure| Err(format!("a client of the admin listener failed: {failure}")))
    }
}

/// Reads events until the stream ends, which is an error.
fn stream(admin: SocketAddr, client: u8) -> io::Result<()> {
    let mut stream = open(admin, client, "/events")?;
    let mut events = [0; 1 << 14];
    while stream.read(&mut events)? > 0 {}
    Err(Error::other("an event stream has ended"))
}

/// Reads the overview every [`OVERVIEW_EVERY`]. The clients begin at different times.
fn overviews(admin: SocketAddr, client: u8) -> io::Result<()> {
    thread::sleep(OVERVIEW_EVERY * u32::from(client) / u32::from(CLIENTS));
    loop {
        let mut overview = Vec::new();
        open(admin, client, "/overview")?.read_to_end(&mut overview)?;
        if !overview.ends_with(b"]}") {
            return Err(Error::other("an overview has no end"));
        }
        thread::sleep(OVERVIEW_EVERY);
    }
}

/// Sends a request, and returns the connection if the answer has begun and is no error. Each client has an address of
/// its own, because the server bounds the number of streams from one address.
fn open(admin: SocketAddr, client: u8, path: &str) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::new(127, 0, 1, client), 0)).into())?;
    socket.connect(&admin.into())?;
    let mut stream = TcpStream::from(socket);
    write!(stream, "GET {path} HTTP/1.0\r\nhost: {admin}\r\n\r\n")?;
    let mut status = [0; 12];
    stream.read_exact(&mut status)?;
    if status.ends_with(b" 200") { Ok(stream) } else { Err(Error::other(String::from_utf8_lossy(&status))) }
}
