//! Ports for servers that a test starts.

use std::net::TcpListener;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// A port of the loopback that nobody listens on, and that nobody else is given.
///
/// It is below those that the system gives to outgoing connections (from 32768 on Linux): one of them could be taken by
/// another test's connection before the server is there.
pub(crate) fn free_port() -> u16 {
    const FIRST: u32 = 10_240;
    const PORTS: u32 = 20_000;
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    loop {
        // Processes that test at the same time begin at different ports.
        let place = process::id().wrapping_mul(97).wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed)) % PORTS;
        let port = u16::try_from(FIRST + place).expect("30239 at most");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
