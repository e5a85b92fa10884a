//! The handshake: versions, protocols, sessions, and clients that speak no TLS.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use crate::support::{DEADLINE, http};
use crate::tls::support::{Authority, call, curl, failed, folder, metric, s_client, serve, status, until_failed};

#[test]
fn every_listener_serves_tls_of_both_versions() {
    let (folder, _authority) = folder();
    let server = serve(&folder, &["--tls-listeners", "http,grpc,admin"]);
    for version in ["--tlsv1.2", "--tlsv1.3"] {
        for protocol in ["--http1.1", "--http2"] {
            let arguments = [version, "--tls-max", &version[6..], protocol];
            assert_eq!(status(&folder, server.http(), &arguments), Ok(404), "{version} {protocol}");
            let url = format!("https://{}/healthz", server.admin());
            let health = curl(&folder, &url, &[&["--cacert", "ca.pem"], &arguments[..]].concat());
            assert_eq!(health.map(|(status, _)| status), Ok(200), "{version} {protocol}");
        }
    }
    let check = r#"{"domain": "api", "descriptors": [{"user": "7"}]}"#;
    let url = format!("https://localhost:{}/v1/check", server.http().port());
    let (status, body) = curl(&folder, &url, &["--cacert", "ca.pem", "-d", check]).expect("curl succeeds");
    assert!(status == 200 && body.contains("\"allowed\":true"), "{body}");
    assert_eq!(call(&folder, server.grpc(), &["ca.pem"]), "OK");
}

#[test]
fn the_protocol_is_agreed_and_a_grpc_client_may_leave_it_out() {
    let (folder, _authority) = folder();
    let server = serve(&folder, &[]);
    let agreed = |address, offered: &[&str]| {
        let printed = s_client(&folder, address, &[&["-alpn"], offered].concat(), "");
        printed.lines().find_map(|line| line.strip_prefix("ALPN protocol: ")).unwrap_or("none").to_owned()
    };
    assert_eq!(agreed(server.grpc(), &["h2"]), "h2");
    assert_eq!(agreed(server.grpc(), &["http/1.1,h2"]), "h2");
    assert_eq!(agreed(server.http(), &["http/1.1"]), "http/1.1");
    assert_eq!(agreed(server.http(), &["h2,http/1.1"]), "h2");
    assert_eq!(failed(&server, "protocol"), 0);
    let refused = s_client(&folder, server.grpc(), &["-alpn", "http/1.1"], "");
    assert!(refused.contains("no application protocol"), "{refused}");
    until_failed(&server, "protocol");
    server.process.logged("the client offers another protocol (ALPN) than h2");
    // The preface of HTTP/2, and an empty SETTINGS frame. The answer begins with the SETTINGS of the server.
    let greeting = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0";
    let served = s_client(&folder, server.grpc(), &["-quiet", "-no_ign_eof"], greeting);
    assert!(!served.contains("alert"), "a client without ALPN is served: {served}");
    assert_eq!(failed(&server, "protocol"), 1);
}

#[test]
fn sessions_are_resumed_only_where_no_certificate_is_wanted() {
    let (folder, authority) = folder();
    authority.issue(&folder, "client", &["a.internal"], |_| {});
    let ca = folder.path("ca.pem").display().to_string();
    let server = serve(&folder, &["--tls-client-ca", &ca, "--tls-client-listeners", "grpc"]);
    for version in ["-tls1_2", "-tls1_3"] {
        for (address, expected) in [(server.http(), true), (server.grpc(), false)] {
            let session = folder.path("session").display().to_string();
            let _ = std::fs::remove_file(&session);
            let own = [version, "-cert", "client.pem", "-key", "client.key"];
            // The tickets of TLS 1.3 come before the answer, for which openssl waits.
            let first = s_client(
                &folder,
                address,
                &[&own[..], &["-ign_eof", "-sess_out", &session]].concat(),
                "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
            );
            assert!(first.contains("New, TLS"), "{version}: {first}");
            if !std::path::Path::new(&session).exists() {
                assert!(!expected, "{version}: the client has no session: {first}");
                continue;
            }
            let second = s_client(&folder, address, &[&own[..], &["-sess_in", &session]].concat(), "");
            assert_eq!(second.contains("Reused, TLS"), expected, "{version}: {second}");
        }
    }
}

#[test]
fn a_client_without_tls_is_refused_with_a_reason() {
    let (folder, _authority) = folder();
    let server = serve(&folder, &[]);
    let answer = http::get(server.http(), "/v1/check", &[]);
    assert_eq!((answer.status, answer.body.as_str()), (400, "this port speaks TLS: ask with https://"));
    let line = server.process.logged("set `tls.plain: allow`");
    assert!(line.contains("listener=\"http\"") && line.contains("reason=\"plain\""), "{line}");
    let mut client = TcpStream::connect(server.grpc()).expect("the server listens");
    client.set_read_timeout(Some(DEADLINE)).expect("the socket is open");
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").expect("the socket is open");
    assert!(matches!(client.read(&mut [0; 16]), Ok(0) | Err(_)), "a gRPC client without TLS is closed");
    assert_eq!(failed(&server, "plain"), 2);
    let warned = server.process.stderr().iter().filter(|line| line.contains("reason=\"plain\"")).count();
    assert_eq!(warned, 1, "each reason is logged at most once a minute");
}

#[test]
fn clients_can_be_moved_to_tls_one_after_the_other() {
    let (folder, _authority) = folder();
    let server = serve(&folder, &["--tls-plain", "allow"]);
    assert_eq!(http::get(server.http(), "/no-such-path", &[]).status, 404);
    assert_eq!(status(&folder, server.http(), &[]), Ok(404));
    assert_eq!(call(&folder, server.grpc(), &["ca.pem"]), "OK");
    let of = |kind| metric(&server, &format!("tls_connections_total{{kind=\"{kind}\"}}"));
    assert_eq!((of("plain"), of("tls")), (1, 2));
}

#[test]
fn a_client_that_does_not_trust_the_server_is_counted() {
    let (folder, _authority) = folder();
    folder.write("other.pem", &Authority::new("other").pem());
    let server = serve(&folder, &[]);
    let refused = curl(&folder, &format!("https://{}/", server.http()), &["--cacert", "other.pem"]);
    assert_eq!(refused.map_err(|(code, _)| code), Err(60), "curl does not trust this authority");
    until_failed(&server, "refused");
    server.process.logged("does not trust the authority of tls.cert");
}

#[test]
fn tls_to_a_listener_without_tls_is_in_the_log() {
    let (folder, _authority) = folder();
    let server = serve(&folder, &["--tls-listeners", "admin"]);
    assert!(status(&folder, server.http(), &[]).is_err());
    server.process.logged("a client speaks TLS to a listener without TLS");
    assert!(s_client(&folder, server.grpc(), &[], "").contains("error"));
    server.process.logged("a client of the gRPC listener does not speak HTTP/2");
}
