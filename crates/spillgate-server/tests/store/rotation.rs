//! Tests of passwords and certificates that change while a server runs: for one Redis, a cluster, sentinels and TLS.
//!
//! Each test closes the connections after the change, so that the server has to log in again.

use std::net::TcpStream;
use std::process::Command;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use spillgate_testkit::free_port;
use tokio::time::Instant;

use crate::cli_support::Folder;
use crate::store::fleet::{LONG_DEADLINE, decided, logged, rules, serve, until_store};
use crate::support::eventually;
use crate::support::process::Process;
use crate::support::redis::{Cluster, Redis};
use crate::support::spillgate::Spillgate;

const LIMITS: &str = "  - {key: user, rate_limit: {unit: year, requests_per_unit: 1000000}}\n";

fn folder(password: &str) -> (Folder, String) {
    let folder = rules(LIMITS);
    folder.write("password", password);
    let file = folder.path("password").display().to_string();
    (folder, file)
}

fn change_password(redis: &Redis, old: &str, new: &str) {
    assert_eq!(redis.run(&["-a", old, "config", "set", "requirepass", new]), "OK");
    close_connections(redis, new);
}

fn close_connections(redis: &Redis, password: &str) {
    let login: &[&str] = if password.is_empty() { &[] } else { &["-a", password] };
    let closed = redis.run(&[login, &["client", "kill", "type", "normal"]].concat());
    assert!(closed.parse::<u32>().is_ok_and(|closed| closed > 0), "the server had connections: {closed}");
}

fn serve_until_store(folder: &Folder, url: &str, arguments: &[&str]) -> Spillgate {
    let server = serve(folder, url, &[&LONG_DEADLINE[..], &["--store-deny-cache", "off"], arguments].concat());
    until_store(server.http(), "user", "before");
    server
}

#[test]
fn a_password_is_read_again_for_each_new_connection() {
    let (folder, file) = folder("one");
    let redis = Redis::start_with(&["--requirepass", "one"]);
    let server = serve_until_store(&folder, &redis.url(), &["--store-password-file", &file]);
    folder.write("password", "two\n");
    change_password(&redis, "one", "two");
    until_store(server.http(), "user", "after");
    // Here Redis has the new password before the file has it.
    change_password(&redis, "two", "three");
    logged(&server.process, "WRONGPASS");
    folder.write("password", "three");
    until_store(server.http(), "user", "later");
}

#[test]
fn a_password_file_that_is_missing_or_blocks_leaves_the_earlier_password_in_use() {
    let (folder, file) = folder("one");
    let redis = Redis::start_with(&["--requirepass", "one"]);
    let server = serve_until_store(&folder, &redis.url(), &["--store-password-file", &file]);
    let begun = Instant::now();
    std::fs::remove_file(&file).expect("the file exists");
    close_connections(&redis, "one");
    logged(&server.process, "cannot be read again, so new connections use what was read earlier");
    until_store(server.http(), "user", "missing");
    // Opening a pipe without a writer never returns, as reading from a network disk that does not answer.
    assert!(Command::new("mkfifo").arg(&file).status().is_ok_and(|status| status.success()));
    close_connections(&redis, "one");
    until_store(server.http(), "user", "blocked");
    close_connections(&redis, "one");
    until_store(server.http(), "user", "still blocked");
    // The server has two accesses to the store, for requests and for lists. Together they warn at most once a minute.
    let warned = server.process.stderr().iter().filter(|line| line.contains("cannot be read again")).count() as u64;
    assert!((1..=1 + begun.elapsed().as_secs() / 60).contains(&warned), "{:?}", server.process.stderr());
}

#[test]
fn the_password_of_a_cluster_is_read_again() {
    let (folder, file) = folder("one");
    let cluster = Cluster::start();
    for node in &cluster.nodes {
        assert_eq!(node.run(&["config", "set", "requirepass", "one"]), "OK");
    }
    let server = serve_until_store(&folder, &cluster.url(), &["--store-password-file", &file]);
    let until_all_decide = |when: &str| (0..30).for_each(|i| until_store(server.http(), "user", &format!("{when}{i}")));
    until_all_decide("before");
    folder.write("password", "two");
    for node in &cluster.nodes {
        change_password(node, "one", "two");
    }
    until_all_decide("after");
}

#[test]
fn the_password_of_the_sentinels_is_read_again() {
    let (folder, file) = folder("one");
    let (mut redis, port) = (Redis::start(), free_port());
    let primary = redis.port();
    let start_sentinel = |password: &str| {
        let monitor = format!("sentinel monitor main 127.0.0.1 {primary} 1");
        folder.write("sentinel.conf", &format!("port {port}\nbind 127.0.0.1\n{monitor}\nrequirepass {password}\n"));
        let mut command = Command::new("redis-server");
        let command = command.arg(folder.path("sentinel.conf")).arg("--sentinel").current_dir(folder.path("."));
        Process::start("sentinel", command)
    };
    let mut sentinel = start_sentinel("one");
    let url = format!("redis-sentinel://127.0.0.1:{port}/main");
    let server = serve_until_store(&folder, &url, &["--store-sentinel-password-file", &file]);
    // A sentinel has no command that changes its password.
    sentinel.kill();
    folder.write("password", "two");
    let _sentinel = start_sentinel("two");
    eventually("the sentinel serves", || TcpStream::connect(("127.0.0.1", port)).ok());
    // A sentinel that refuses the login has answered, so the last known primary is not used.
    redis.kill();
    redis.start_again();
    until_store(server.http(), "user", "after");
}

/// An authority, its certificate for 127.0.0.1, and its certificate for a client, as files of the folder.
fn certificates(folder: &Folder, name: &str) {
    let mut params = CertificateParams::new(Vec::<String>::new()).expect("the parameters are valid");
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("the key is generated"))
        .expect("the certificate is signed");
    folder.write(&format!("{name}/ca.pem"), &authority.pem());
    for (file, subject) in [("server", "127.0.0.1"), ("client", "limiter")] {
        let key = KeyPair::generate().expect("the key is generated");
        let mut params = CertificateParams::new([subject.to_owned()]).expect("the parameters are valid");
        params.distinguished_name.push(DnType::CommonName, subject);
        let signed = params.signed_by(&key, &authority).expect("the certificate is signed");
        folder.write(&format!("{name}/{file}.pem"), &signed.pem());
        folder.write(&format!("{name}/{file}.key"), &key.serialize_pem());
    }
}

#[test]
fn certificates_are_read_again_for_each_new_connection() {
    let folder = rules(LIMITS);
    certificates(&folder, "old");
    certificates(&folder, "new");
    let file = |name: &str| folder.path(name).display().to_string();
    // As a mounted secret of Kubernetes: one link is replaced, and all files change at once.
    let link_to = |folder_name: &str| {
        std::os::unix::fs::symlink(folder.path(folder_name), folder.path("next")).expect("the link is made");
        std::fs::rename(folder.path("next"), folder.path("current")).expect("the link is replaced");
    };
    link_to("old");
    let port = free_port();
    let of = |name: &str| {
        [("ca-cert", "ca.pem"), ("cert", "server.pem"), ("key", "server.key")]
            .map(|(setting, path)| (format!("tls-{setting}-file"), file(&format!("{name}/{path}"))))
    };
    let mut arguments = vec!["--tls-port".to_owned(), port.to_string(), "--tls-auth-clients".into(), "yes".into()];
    arguments.extend(of("old").into_iter().flat_map(|(setting, path)| [format!("--{setting}"), path]));
    let redis = Redis::start_with(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let ours = [
        ["--store-tls-ca", &file("current/ca.pem")],
        ["--store-tls-cert", &file("current/client.pem")],
        ["--store-tls-key", &file("current/client.key")],
    ];
    let server = serve_until_store(&folder, &format!("rediss://127.0.0.1:{port}"), ours.as_flattened());
    let all = of("new").into_iter().flat_map(<[String; 2]>::from).collect::<Vec<_>>();
    let set = ["config", "set"].into_iter().chain(all.iter().map(String::as_str)).collect::<Vec<_>>();
    assert_eq!(redis.run(&set), "OK");
    close_connections(&redis, "");
    logged(&server.process, "the store does not answer");
    assert_ne!(decided(server.http(), "user", "between").1, "store", "the old certificates are not accepted");
    link_to("new");
    until_store(server.http(), "user", "after");
}
