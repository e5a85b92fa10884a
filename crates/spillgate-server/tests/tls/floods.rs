//! Clients that begin handshakes and do not end them.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::{DEADLINE, eventually};
use crate::tls::support::{call, failed, folder, metric, s_client, serve, status, until_failed};

/// The first message of a client, as openssl sends it.
fn client_hello() -> Vec<u8> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    let reader = thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("openssl connects");
        let mut bytes = vec![0; 16 << 10];
        let length = client.read(&mut bytes).expect("openssl sends its first message");
        bytes.truncate(length);
        bytes
    });
    let (folder, _authority) = folder();
    s_client(&folder, address, &[], "");
    reader.join().expect("the message was read")
}

/// Ends floods when it is dropped.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Opens connections that send `bytes` and then nothing, again and again, until `stop` is true.
fn flood(server: SocketAddr, bytes: &[u8], stop: &AtomicBool) {
    let mut open = std::collections::VecDeque::new();
    while !stop.load(Ordering::Relaxed) {
        if let Ok(mut client) = TcpStream::connect(server) {
            let _ = client.write_all(bytes);
            // The flood pauses, because it shares the cores of this machine with the server and its other clients.
            let _ = client.set_read_timeout(Some(Duration::from_millis(5)));
            let _ = client.read(&mut [0]);
            open.push_back(client);
        }
        if open.len() > 300 {
            open.pop_front();
        }
    }
}

#[test]
fn clients_that_never_end_a_handshake_shut_out_nobody() {
    let (folder, _authority) = folder();
    for bytes in [Vec::new(), client_hello()] {
        let server = serve(&folder, &["--limits-connections", "400", "--limits-handshake", "1h"]);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            // Also after a panic, or the scope would wait for ever.
            let _stop = Stop(&stop);
            for address in [server.http(), server.grpc()] {
                let (bytes, stop) = (&bytes, &stop);
                scope.spawn(move || flood(address, bytes, stop));
            }
            until_failed(&server, "crowded");
            // A client of a flood can lose a connection too, so each may try again.
            for _ in 0..5 {
                eventually("a client is served", || (status(&folder, server.http(), &[]) == Ok(404)).then_some(()));
                eventually("a gRPC client is served", || {
                    (call(&folder, server.grpc(), &["ca.pem"]) == "OK").then_some(())
                });
            }
        });
        assert!(metric(&server, "connections_closed_total{reason=\"bound\"}") > 0);
    }
}

#[test]
fn a_listener_at_its_bound_closes_a_silent_client_for_a_new_one() {
    let (folder, _authority) = folder();
    let arguments = ["--limits-connections", "8", "--limits-handshake", "1h", "--tls-plain", "allow"];
    let server = serve(&folder, &arguments);
    let connect = || TcpStream::connect(server.http()).expect("the server listens");
    // One after the other: only two may be in their handshake.
    let open = |_| {
        let mut client = connect();
        client.write_all(b"GET /no-such-path HTTP/1.1\r\nhost: a\r\n\r\n").expect("the socket is open");
        client.set_read_timeout(Some(DEADLINE)).expect("the socket is open");
        assert!(client.read(&mut [0; 1024]).is_ok_and(|length| length > 0), "the server answers");
        client
    };
    let _open: Vec<_> = (0..6).map(open).collect();
    let _silent: Vec<_> = (0..2).map(|_| connect()).collect();
    eventually("the listener is full", || {
        // With the connection that asks for this.
        (metric(&server, "connections") == 9).then_some(())
    });
    // A handshake makes way after 250 ms.
    thread::park_timeout(Duration::from_millis(400));
    assert_eq!(status(&folder, server.http(), &[]), Ok(404));
    assert_eq!(failed(&server, "crowded"), 1);
}

#[test]
fn a_client_that_reads_slowly_gets_the_whole_first_answer() {
    let (folder, authority) = folder();
    let names: Vec<_> = (0..2_000).map(|number| format!("server-{number:05}.example.internal")).collect();
    let names: Vec<&str> = names.iter().map(|name| &**name).collect();
    authority.issue(&folder, "server", &names, |_| {});
    // Of 100 bytes of PEM, 74 are bytes of the certificate, and the answer has more than that.
    let length = std::fs::metadata(folder.path("server.pem")).expect("it exists").len() * 7 / 10;
    let server = serve(&folder, &["--limits-handshake", "1h"]);
    let client = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    client.set_recv_buffer_size(4 << 10).expect("the buffer can be small");
    client.connect(&server.http().into()).expect("the server listens");
    let mut client = TcpStream::from(client);
    client.set_read_timeout(Some(DEADLINE)).expect("the socket is open");
    client.write_all(&client_hello()).expect("the socket is open");
    let (mut read, mut bytes) = (0, [0; 1024]);
    while read < length {
        read += client.read(&mut bytes).expect("more comes") as u64;
    }
}

#[test]
fn a_client_that_is_silent_for_too_long_is_closed() {
    let (folder, _authority) = folder();
    let server = serve(&folder, &["--limits-handshake", "100ms"]);
    let mut client = TcpStream::connect(server.grpc()).expect("the server listens");
    client.set_read_timeout(Some(DEADLINE)).expect("the socket is open");
    assert!(matches!(client.read(&mut [0]), Ok(0) | Err(_)));
    until_failed(&server, "late");
    drop(TcpStream::connect(server.grpc()).expect("the server listens"));
    until_failed(&server, "gone");
    let mut client = TcpStream::connect(server.http()).expect("the server listens");
    client.write_all(&[0x16; 100]).expect("the socket is open");
    until_failed(&server, "broken");
    assert_eq!(failed(&server, "crowded"), 0);
}
