//! Ports for the servers that tests start.

use std::net::TcpListener;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// A free port on the loopback, which is returned only once.
///
/// It is below the ports that the system gives to outgoing connections (from 32768 on Linux). Otherwise a connection of
/// another test could take it before the server listens.
pub(crate) fn free_port() -> u16 {
    const FIRST: u32 = 10_240;
    const PORTS: u32 = 20_000;
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    loop {
        // Test processes that run at the same time begin at different ports.
        let place = process::id().wrapping_mul(97).wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed)) % PORTS;
        let port = u16::try_from(FIRST + place).expect("30239 at most");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
