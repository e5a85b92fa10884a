//! The certificate of the listeners is replaced again and again under load: no request of any client fails, and no client
//! sees a certificate without its key.
//!
//! `make show-certificates` replaces it 34 times in each way. It also shows how long it takes until a certificate is in
//! force, which no test asserts.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{Envoy, LIMIT};
use crate::cli_support::Folder;
use crate::support::http::{Upstream, get};
use crate::support::load::{Client, Load};
use crate::support::spillgate::Spillgate;
use crate::support::{eventually, root};
use crate::tls::support::{Caller, call, curl, folder, metric, replace, s_client, serve};
use crate::watch::link_anew;

/// Of this many certificates, one comes long before its key.
const EARLY: u64 = 4;

/// Envoy makes a new connection after 5 requests, and each has a whole handshake.
const UPSTREAM_TLS: &str = "http2_protocol_options: {}
          common_http_protocol_options: { max_requests_per_connection: 5 }
      transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
          max_session_keys: 0
          common_tls_context:
            alpn_protocols: [h2]
            validation_context: { trusted_ca: { filename: CA } }
";

/// How a program writes the files of the certificate and of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    InPlace,
    Renamed,
    /// Both lead to a folder of `..data`, a link that is made anew.
    ConfigMap,
}

impl Way {
    /// Writes the certificate and the key of these versions.
    fn write(self, folder: &Folder, cert: u64, key: u64) {
        let files = [(format!("v{cert}.pem"), "server.pem"), (format!("v{key}.key"), "server.key")];
        let mount = format!("..{cert}-{key}");
        for (from, to) in files {
            match self {
                Way::InPlace => drop(fs::copy(folder.path(&from), folder.path(to)).expect("the file is copied")),
                Way::Renamed => replace(folder, &from, to),
                Way::ConfigMap => {
                    let text = fs::read_to_string(folder.path(&from)).expect("the file exists");
                    folder.write(&format!("{mount}/{to}"), &text);
                }
            }
        }
        if self == Way::ConfigMap {
            let old = fs::read_link(folder.path("..data"));
            link_anew(folder, &mount, "..data");
            if let Ok(old) = old {
                fs::remove_dir_all(folder.path(".").join(old)).expect("the folder exists");
            }
        }
    }
}

/// The certificates that clients may see, by their numbers.
#[derive(Default)]
struct Versions {
    /// Its key has been written, or is written now.
    newest: AtomicU64,
    /// A client has seen it.
    oldest: AtomicU64,
}

/// Returns the number of the certificate that the server shows. It has to be valid, with its key.
fn shown(folder: &Folder, server: std::net::SocketAddr) -> Result<u64, String> {
    let printed = s_client(folder, server, &["-servername", "localhost"], "");
    let subject = printed.lines().find(|line| line.starts_with("subject="));
    let version = subject.and_then(|line| line.rsplit('v').next()?.parse().ok());
    version.filter(|_| printed.contains("Verify return code: 0 (ok)")).ok_or(printed)
}

/// Starts clients of four kinds. Those of curl and openssl make a connection for each request. That of grpcio keeps its
/// connection.
fn load(folder: &Arc<Folder>, server: &Spillgate, envoy: &Envoy, versions: &Arc<Versions>) -> Load {
    let (http, ingress) = (server.http(), envoy.ingress);
    let of_curl = Arc::clone(folder);
    let check = r#"{"domain": "api", "descriptors": [{"user": "7"}]}"#;
    let by_curl = move |number| {
        let protocol = if number % 2 == 0 { "--http1.1" } else { "--http2" };
        let arguments = ["--cacert", "ca.pem", protocol, "-d", check];
        match curl(&of_curl, &format!("https://{http}/v1/check"), &arguments) {
            Ok((200, body)) if body.contains("\"allowed\":true") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    let (of_openssl, versions) = (Arc::clone(folder), Arc::clone(versions));
    let by_openssl = move |_| {
        let oldest = versions.oldest.load(Ordering::SeqCst);
        let shown = shown(&of_openssl, http)?;
        let newest = versions.newest.load(Ordering::SeqCst);
        let is_right = (oldest..=newest).contains(&shown);
        if is_right { Ok(()) } else { Err(format!("it was {shown}, not {oldest} to {newest}")) }
    };
    let mut caller = Caller::start(folder, server.grpc(), &["ca.pem"]);
    let by_grpcio = move |_| Some(caller.call()).filter(|answer| answer != "OK").map_or(Ok(()), Err);
    let by_envoy = move |number| {
        let answer = get(ingress, "/", &[("x-user-id", &format!("{number}"))]);
        let is_right = answer.status == 200 && answer.number("x-ratelimit-remaining") == LIMIT - 1;
        if is_right { Ok(()) } else { Err(format!("{answer:?}")) }
    };
    let clients: [(&str, Client); 4] = [
        ("curl", Box::new(by_curl)),
        ("openssl", Box::new(by_openssl)),
        ("grpcio", Box::new(by_grpcio)),
        ("Envoy", Box::new(by_envoy)),
    ];
    Load::start(Duration::from_millis(40), clients)
}

/// Replaces the certificate again and again in this way while the server has load.
fn many_certificates(way: Way) {
    let count = std::env::var("CERTIFICATES").map_or(2, |text| text.parse().expect("it is a number"));
    let (folder, authority) = folder();
    let folder = Arc::new(folder);
    let issue = |version: u64| authority.issue(&folder, &format!("v{version}"), &["127.0.0.1", "localhost"], |_| {});
    issue(0);
    if way == Way::ConfigMap {
        for name in ["server.pem", "server.key"] {
            fs::remove_file(folder.path(name)).expect("the file exists");
            symlink(format!("..data/{name}"), folder.path(name)).expect("the link can be made");
        }
    }
    way.write(&folder, 0, 0);
    let rules = root().join("deploy/envoy/rules.yaml").display().to_string();
    let (upstream, server) = (Upstream::start(), serve(&folder, &["--watch", "on", &rules]));
    let tls = UPSTREAM_TLS.replace("CA", &folder.path("ca.pem").display().to_string());
    let changes = [("failure_mode_deny: false", "failure_mode_deny: true"), ("http2_protocol_options: {}\n", &tls)];
    let envoy = Envoy::start(upstream.port(), server.grpc().port(), &changes);
    let versions = Arc::new(Versions::default());
    let load = load(&folder, &server, &envoy, &versions);
    let failures = || metric(&server, "reload_failures_total{unit=\"certificate\"}");
    let (mut took, mut early) = (Vec::new(), 0);
    for version in 1..=count {
        issue(version);
        load.wait_for(1);
        if version % EARLY == 2 {
            let failed = failures();
            way.write(&folder, version, version - 1);
            eventually("the server says that the key does not fit", || (failures() > failed).then_some(()));
            load.wait_for(3);
            early += 1;
        }
        let begun = Instant::now();
        versions.newest.store(version, Ordering::SeqCst);
        way.write(&folder, version, version);
        eventually("the new certificate is in force", || {
            [server.http(), server.grpc()].iter().all(|at| shown(&folder, *at) == Ok(version)).then_some(())
        });
        took.push(begun.elapsed().as_secs_f64());
        versions.oldest.store(version, Ordering::SeqCst);
        assert_eq!(call(&folder, server.grpc(), &["ca.pem"]), "OK", "a new connection of grpcio");
    }
    load.wait_for(1);
    let passed: Vec<String> = load.each().map(|(name, passed)| format!("{name} {passed}")).collect();
    assert_eq!(load.stop(), [""; 0]);
    eventually("each certificate was taken once", || {
        let taken = metric(&server, "reloads_total{cause=\"watch\"}") - failures();
        assert!(taken <= count, "{taken}");
        (taken == count).then_some(())
    });
    let page = get(server.admin(), "/metrics", &[]).body;
    let failed: Vec<_> =
        page.lines().filter(|line| line.starts_with("spillgate_tls_handshakes_failed_total{")).collect();
    assert!(!failed.is_empty() && failed.iter().all(|line| line.ends_with(" 0")), "{failed:?}");
    assert_eq!((envoy.counter("error"), envoy.counter("failure_mode_allowed")), (0, 0));
    took.sort_by(f64::total_cmp);
    let (median, worst) = (took[took.len() / 2], took[took.len() - 1]);
    let handshakes = get(envoy.admin, "/stats?filter=cluster.spillgate.ssl.handshake", &[]).body;
    println!("{way:?}: {count} certificates, {early} of them long before their keys");
    println!("requests, of which none failed: {}", passed.join(", "));
    println!("handshakes of Envoy: {}", handshakes.trim().rsplit(' ').next().unwrap_or_default());
    println!("from writing to in force, each right after the one before: median {median:.2} s, worst {worst:.2} s");
}

#[test]
fn no_request_fails_while_certificates_are_written_in_place() {
    many_certificates(Way::InPlace);
}

#[test]
fn no_request_fails_while_certificates_are_renamed() {
    many_certificates(Way::Renamed);
}

#[test]
fn no_request_fails_while_certificates_come_with_a_configmap() {
    many_certificates(Way::ConfigMap);
}
