//! Ports for servers that a test starts.
//!
//! Port 0 cannot be used for a server that needs to know its own port before it starts.

use std::net::TcpListener;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// A loopback port on which no server listens. It is returned once only.
///
/// It is below the ports that the system uses for outgoing connections (from 32768 on Linux). Otherwise a connection of
/// another test could take the port before the server starts.
///
/// # Panics
/// Never: it tries ports until one is free.
#[must_use]
pub fn free_port() -> u16 {
    const FIRST: u32 = 10_240;
    const PORTS: u32 = 20_000;
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    loop {
        // Test programs that run at the same time begin at different ports.
        let offset = process::id().wrapping_mul(97).wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed)) % PORTS;
        let port = u16::try_from(FIRST + offset).expect("30239 at most");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
