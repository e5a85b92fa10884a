//! Finds free ports for servers that a test starts.
//!
//! With port 0, the system chooses a port when the server starts. This is too late if the port must be known before the start.

use std::net::TcpListener;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// Returns a loopback port on which no server listens. A process gets the same port again only after this function has
/// tried all 20,000 ports.
///
/// The port is below the ports that the system uses for outgoing connections (from 32768 on Linux). Otherwise a connection of
/// another test could use the port before the server starts.
///
/// # Panics
/// Panics if no port is free.
#[must_use]
pub fn free_port() -> u16 {
    const FIRST: u32 = 10_240;
    const PORTS: u32 = 20_000;
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    for _ in 0..PORTS {
        // Test programs that run at the same time begin at different ports.
        let offset = process::id().wrapping_mul(97).wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed)) % PORTS;
        let port = u16::try_from(FIRST + offset).expect("the port is at most 30239");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port from {FIRST} on is free");
}
