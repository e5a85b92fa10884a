//! Certificates that change or end while the server runs.

#![allow(clippy::disallowed_methods, reason = "a certificate ends at a time of the clock")]

use std::fs;
use std::time::{Duration, SystemTime};

use crate::cli_support::signal;
use crate::support::process::Process;
use crate::support::{eventually, root};
use crate::tls::support::{
    Authority, Caller, call, ended, folder, metric, reload, replace, s_client, serve, serve_with_client_ca, status,
    subject,
};

#[test]
fn a_new_certificate_is_taken_whole_and_open_connections_stay() {
    let (folder, authority) = folder();
    let server = serve(&folder, &[]);
    let mut open = Caller::start(&folder, server.grpc(), &["ca.pem"]);
    assert_eq!(open.call(), "OK");
    assert!(subject(&folder, server.http()).contains("server"));
    authority.issue(&folder, "second", &["127.0.0.1", "localhost"], |_| {});
    // The key does not belong to the certificate until both are replaced.
    replace(&folder, "second.pem", "server.pem");
    let notes = reload(&server);
    assert!(notes.contains("does not belong to the first certificate"), "{notes}");
    assert!(subject(&folder, server.http()).contains("server"), "the pair that fits stays");
    assert_eq!(metric(&server, "reload_failures_total{unit=\"certificate\"}"), 1);
    replace(&folder, "second.key", "server.key");
    signal(server.process.id(), "HUP");
    eventually("the new certificate", || subject(&folder, server.http()).contains("second").then_some(()));
    assert!(subject(&folder, server.grpc()).contains("second"));
    server.process.logged("the listeners have a new certificate");
    assert_eq!(open.call(), "OK");
    let connections = metric(&server, "connections_closed_total{reason=\"certificate\"}");
    assert_eq!((connections, reload(&server).as_str()), (0, "[]"), "the same certificate changes nothing");
    // An operator has renewed the certificate with a wrong clock.
    authority.issue(&folder, "ended", &["127.0.0.1"], ended);
    replace(&folder, "ended.pem", "server.pem");
    replace(&folder, "ended.key", "server.key");
    let notes = reload(&server);
    assert!(notes.contains("ended") && notes.contains("days ago"), "{notes}");
    fs::remove_file(folder.path("server.key")).expect("the file exists");
    assert!(reload(&server).contains("No such file"));
    assert!(subject(&folder, server.http()).contains("second"));
    assert_eq!(call(&folder, server.grpc(), &["ca.pem"]), "OK");
}

#[test]
fn a_new_authority_ends_the_connections_of_before() {
    let (folder, authority) = folder();
    authority.issue(&folder, "client", &["shop.internal"], |_| {});
    folder.write("clients.pem", &authority.pem());
    let clients = folder.path("clients.pem").display().to_string();
    let server = serve(&folder, &["--tls-client-ca", &clients]);
    let own = ["ca.pem", "client.pem", "client.key"];
    let mut open = Caller::start(&folder, server.grpc(), &own);
    assert_eq!(open.call(), "OK");
    for wrong in ["", "nonsense", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        folder.write("clients.pem", wrong);
        assert!(reload(&server).contains("clients.pem"), "{wrong}");
        assert_eq!(open.call(), "OK");
    }
    let other = Authority::new("other");
    folder.write("clients.pem", &(other.pem() + &authority.pem()));
    assert!(reload(&server).contains("new: the authorities of clients"));
    eventually("the connection of before ends", || {
        (metric(&server, "connections_closed_total{reason=\"certificate\"}") == 1).then_some(())
    });
    let mut open = Caller::start(&folder, server.grpc(), &own);
    assert_eq!(open.call(), "OK");
    folder.write("clients.pem", &(authority.pem() + &other.pem()));
    assert_eq!(reload(&server), "[]", "the same authorities in another order");
    assert_eq!(open.call(), "OK");
    other.issue(&folder, "later", &["shop.internal"], |_| {});
    folder.write("clients.pem", &other.pem());
    assert!(reload(&server).contains("new: the authorities of clients"));
    assert!(status(&folder, server.http(), &["--cert", "client.pem", "--key", "client.key"]).is_err());
    assert_eq!(status(&folder, server.http(), &["--cert", "later.pem", "--key", "later.key"]), Ok(404));
    eventually("the connection of before ends", || {
        (metric(&server, "connections_closed_total{reason=\"certificate\"}") == 2).then_some(())
    });
    assert_eq!(open.call(), "UNAVAILABLE", "the client is trusted no more");
    assert_eq!(call(&folder, server.grpc(), &["ca.pem", "later.pem", "later.key"]), "OK");
}

/// A listener that wants no certificates gives sessions to everybody.
#[test]
fn no_session_is_a_way_around_a_certificate_or_a_new_authority() {
    let (folder, authority) = folder();
    authority.issue(&folder, "client", &["shop.internal"], |_| {});
    folder.write("clients.pem", &authority.pem());
    let clients = folder.path("clients.pem").display().to_string();
    let server = serve(&folder, &["--tls-client-ca", &clients, "--tls-client-listeners", "grpc"]);
    let versions = ["-tls1_2", "-tls1_3"];
    for version in versions {
        // The answer comes after the ticket of TLS 1.3, and openssl waits for it.
        let request = "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
        let session = format!("session{version}");
        s_client(&folder, server.http(), &[version, "-ign_eof", "-sess_out", &session], request);
        assert!(folder.path(&session).exists(), "{version}: the client has a session");
    }
    let own = ["-cert", "client.pem", "-key", "client.key"];
    let resume = |version, address, more: &[&str]| {
        s_client(&folder, address, &[&[version, "-sess_in", &format!("session{version}")], more].concat(), "")
    };
    for version in versions {
        assert!(resume(version, server.http(), &[]).contains("Reused, TLS"), "{version}");
        let without = resume(version, server.grpc(), &["-ign_eof"]);
        assert!(without.contains("alert") && !without.contains("Reused, TLS"), "{version}: {without}");
        let with = resume(version, server.grpc(), &own);
        assert!(with.contains("New, TLS"), "{version}: {with}");
    }
    folder.write("clients.pem", &Authority::new("other").pem());
    assert!(reload(&server).contains("new: the authorities of clients"));
    for version in versions {
        let refused = resume(version, server.grpc(), &[&own[..], &["-ign_eof"]].concat());
        assert!(refused.contains("alert unknown ca") && !refused.contains("Reused, TLS"), "{version}: {refused}");
    }
}

#[test]
fn a_connection_ends_with_the_certificate_of_its_client() {
    let (folder, authority) = folder();
    let end = SystemTime::now() + Duration::from_secs(40);
    authority.issue(&folder, "short", &["shop.internal"], |params| params.not_after = end.into());
    let server = serve_with_client_ca(&folder, &[]);
    let mut open = Caller::start(&folder, server.grpc(), &["ca.pem", "short.pem", "short.key"]);
    assert_eq!(open.call(), "OK");
    eventually("the connection ends", || {
        (metric(&server, "connections_closed_total{reason=\"certificate\"}") == 1).then_some(())
    });
    assert_eq!(open.call(), "UNAVAILABLE");
}

#[test]
fn an_operator_learns_of_the_end_of_certificates() {
    let (folder, authority) = folder();
    let server = serve_with_client_ca(&folder, &[]);
    assert!(metric(&server, "tls_certificate_end_timestamp_seconds") > 4_000_000_000, "rcgen chooses the year 4096");
    assert!(metric(&server, "tls_client_ca_end_timestamp_seconds") > 4_000_000_000);
    authority.issue(&folder, "server", &["127.0.0.1"], ended);
    let server = serve(&folder, &[]);
    server.process.logged("so its use fails: renew it");
    assert_eq!(metric(&server, "tls_certificate_end_timestamp_seconds"), 1_609_459_200);
    let rules = root().join("examples/quickstart.yaml");
    let plain = crate::support::spillgate::Spillgate::serve(&rules, &[]);
    let page = crate::support::http::get(plain.admin(), "/metrics", &[]).body;
    assert!(!page.contains("tls_certificate_end"), "without TLS there is no certificate");
}

#[test]
fn a_drain_waits_for_no_handshake() {
    let (folder, _authority) = folder();
    let mut server = serve(&folder, &["--limits-handshake", "1h"]);
    let silent = std::net::TcpStream::connect(server.http()).expect("the server listens");
    eventually("the connection is accepted", || (metric(&server, "connections") >= 1).then_some(()));
    server.process.terminate();
    let status = Process::wait(&mut server.process);
    assert!(status.success());
    drop(silent);
}
