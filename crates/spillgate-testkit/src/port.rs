//! Finds free ports for servers that a test starts.
//!
//! With port 0, the system would choose a port only when the server starts. Many tests must know the port earlier.

use std::net::{TcpListener, UdpSocket};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// The sockets that reserve the ports of this process. The system closes them when the process ends.
static RESERVED: Mutex<Vec<UdpSocket>> = Mutex::new(Vec::new());

/// Returns a loopback port on which no server listens. Until this process ends, no other call returns the same port,
/// not even in another test program that runs at the same time.
///
/// A server binds its port some time after the test has chosen it, and many test programs run at the same time. So this
/// function reserves the port: it binds the UDP port with the same number and keeps that port. No server of the tests
/// uses UDP. Another test program that tries the same number cannot bind its UDP port, and tries the next number.
///
/// The port is below the ports that the system uses for outgoing connections (from 32768 on Linux). If it were one of
/// these ports, a connection of another test could use it before the server starts.
///
/// # Panics
/// Panics if no port is free.
#[must_use]
pub fn free_port() -> u16 {
    const FIRST: u32 = 10_240;
    const PORTS: u32 = 20_000;
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    for _ in 0..PORTS {
        // Test programs that run at the same time begin at different ports, so that they seldom try the same port.
        let offset = process::id().wrapping_mul(97).wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed)) % PORTS;
        let port = u16::try_from(FIRST + offset).expect("the port is at most 30239");
        let Ok(reservation) = UdpSocket::bind(("127.0.0.1", port)) else { continue };
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            RESERVED.lock().unwrap_or_else(PoisonError::into_inner).push(reservation);
            return port;
        }
    }
    panic!("no port from {FIRST} on is free");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_given_once() {
        let ports: std::collections::BTreeSet<u16> = (0..50).map(|_| free_port()).collect();
        assert_eq!(ports.len(), 50);
        for port in ports {
            assert!(UdpSocket::bind(("127.0.0.1", port)).is_err(), "another test program finds {port} reserved");
            assert!(TcpListener::bind(("127.0.0.1", port)).is_ok(), "a server can listen on {port}");
        }
    }
}
