//! Tests of the ways to reach a store (a Unix socket, TLS, sentinels). Also tests of two settings: in which form a
//! sliding window log is stored, and in which slot of a cluster a counter is stored.
//!
//! Tests that only parse settings do not show that a setting has an effect in the real server.

use std::process::Command;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use serde_json::Value;
use spillgate_testkit::free_port;

use crate::cli_support::Folder;
use crate::store::fleet::{LONG_DEADLINE, check, decided, logged, metric, rules, serve, until_store};
use crate::support::http;
use crate::support::process::Process;
use crate::support::redis::{Cluster, Redis};
use crate::support::spillgate::Spillgate;

const LIMITS: &str = "  - {key: user, rate_limit: {unit: year, requests_per_unit: 1}}\n  \
                      - {key: log, rate_limit: {unit: year, requests_per_unit: 1, algorithm: sliding_window_log}}\n";

/// Starts a server with this URL and these arguments. Asserts that the store decides its requests.
fn assert_decides(folder: &Folder, url: &str, arguments: &[&str]) {
    let server = serve(folder, url, &[&LONG_DEADLINE[..], &["--store-deny-cache", "off"], arguments].concat());
    until_store(server.http(), "user", "first");
    let answers = [(); 2].map(|()| decided(server.http(), "user", "second"));
    assert_eq!(answers, [200, 429].map(|status| (status, "store".to_owned())));
}

#[test]
fn a_unix_socket_works_with_a_password_of_special_characters() {
    const PASSWORD: &str = "p@ss/w:rd&x=1%";
    let folder = rules(LIMITS);
    folder.write("password", PASSWORD);
    let [socket, password] = ["redis.sock", "password"].map(|name| folder.path(name).display().to_string());
    let redis = Redis::start_with(&["--requirepass", PASSWORD, "--unixsocket", &socket]);
    assert_decides(&folder, &format!("unix://{socket}"), &["--store-password-file", &password]);
    assert_eq!(redis.keys(&["-a", PASSWORD]).len(), 2);
}

#[test]
fn tls_works_with_certificates_on_both_sides() {
    let folder = rules(LIMITS);
    let mut params = CertificateParams::new(Vec::<String>::new()).expect("the parameters are valid");
    params.distinguished_name.push(DnType::CommonName, "ours");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("the key is generated"))
        .expect("the certificate is signed");
    folder.write("ca.pem", &authority.pem());
    for (name, subject) in [("server", "127.0.0.1"), ("client", "limiter")] {
        let key = KeyPair::generate().expect("the key is generated");
        let mut params = CertificateParams::new([subject.to_owned()]).expect("the parameters are valid");
        params.distinguished_name.push(DnType::CommonName, subject);
        folder.write(
            &format!("{name}.pem"),
            &params.signed_by(&key, &authority).expect("the certificate is signed").pem(),
        );
        folder.write(&format!("{name}.key"), &key.serialize_pem());
    }
    let file = |name: &str| folder.path(name).display().to_string();
    let port = free_port();
    let tls = [
        ["--tls-port", &port.to_string()],
        ["--tls-ca-cert-file", &file("ca.pem")],
        ["--tls-cert-file", &file("server.pem")],
        ["--tls-key-file", &file("server.key")],
        ["--tls-auth-clients", "yes"],
    ];
    let redis = Redis::start_with(tls.as_flattened());
    let ours = [
        ["--store-tls-ca", &file("ca.pem")],
        ["--store-tls-cert", &file("client.pem")],
        ["--store-tls-key", &file("client.key")],
    ];
    let url = format!("rediss://127.0.0.1:{port}");
    assert_decides(&folder, &url, ours.as_flattened());
    assert_eq!(redis.keys(&[]).len(), 2);
    let without_certificate =
        folder.run(&format!("check rules.yaml -d api -e user=a --store {url} --store-tls-ca ca.pem"));
    assert_eq!(without_certificate.code, 3, "the store requires a certificate of the client: {without_certificate:?}");
}

/// The store has a self-signed certificate, like those from `openssl req -x509`. The certificate is for another host name than
/// the URL has. The doctor refuses the certificate for both reasons. The test follows the help of the doctor each time.
#[test]
fn the_help_for_a_refused_certificate_works() {
    let folder = rules(LIMITS);
    let key = KeyPair::generate().expect("the key is generated");
    let mut params = CertificateParams::new(["redis.example".to_owned()]).expect("the parameters are valid");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    folder.write("own.pem", &params.self_signed(&key).expect("the certificate is signed").pem());
    folder.write("own.key", &key.serialize_pem());
    let [own, own_key] = ["own.pem", "own.key"].map(|name| folder.path(name).display().to_string());
    let port = free_port();
    let tls = [
        ["--tls-port", &port.to_string()],
        ["--tls-ca-cert-file", &own],
        ["--tls-cert-file", &own],
        ["--tls-key-file", &own_key],
        ["--tls-auth-clients", "no"],
    ];
    let _redis = Redis::start_with(tls.as_flattened());
    let url = format!("rediss://127.0.0.1:{port}");
    let doctor = |more: &str| folder.run(&format!("doctor --store {url} --store-deadline 5s {more}"));
    for (more, help) in [("", "set `store.tls.ca`"), ("--store-tls-ca own.pem", "set `store.tls.server_name`")] {
        let output = doctor(more);
        assert!(output.code == 3 && output.stderr.contains(help), "{output:?}");
    }
    let output = doctor("--store-tls-ca own.pem --store-tls-server-name redis.example");
    assert_eq!(output.code, 0, "{output:?}");
    let arguments = ["--store-tls-ca", &own, "--store-tls-skip-name-check"];
    let server = serve(&folder, &url, &[&LONG_DEADLINE[..], &arguments].concat());
    until_store(server.http(), "user", "first");
    logged(&server.process, "store.tls.skip_name_check is set");
}

#[test]
fn sentinels_give_the_address_of_the_primary() {
    let (redis, folder) = (Redis::start(), rules(LIMITS));
    let (port, primary) = (free_port(), redis.url());
    let primary = primary.rsplit(':').next().expect("the URL has a port");
    folder.write("password", "hush");
    folder.write(
        "sentinel.conf",
        &format!("port {port}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {primary} 1\nrequirepass hush\n"),
    );
    let mut command = Command::new("redis-server");
    let command = command.arg(folder.path("sentinel.conf")).arg("--sentinel").current_dir(folder.path("."));
    let _sentinel = Process::start("sentinel", command);
    // If the sentinel is not ready yet, the server asks again until the sentinel returns the address of the primary.
    let (url, password) = (format!("redis-sentinel://127.0.0.1:{port}/main"), folder.path("password"));
    assert_decides(&folder, &url, &["--store-sentinel-password-file", &password.display().to_string()]);
    assert_eq!(redis.keys(&[]).len(), 2);
    let output = folder.run(&format!("doctor --store {url}"));
    assert!(output.code == 3 && output.stderr.contains("`store.sentinel_password_file`"), "{output:?}");
}

#[test]
fn a_log_in_a_sorted_set_can_be_read_by_other_tools() {
    let (redis, folder) = (Redis::start(), rules(LIMITS));
    let arguments = [&LONG_DEADLINE[..], &["--store-log", "zset", "--store-deny-cache", "off"]].concat();
    let server = serve(&folder, &redis.url(), &arguments);
    let answers = [(); 2].map(|()| decided(server.http(), "log", "7"));
    assert_eq!(answers, [200, 429].map(|status| (status, "store".to_owned())));
    let keys = redis.keys(&[]);
    let shown = ["type", "zcard"].map(|command| redis.run(&[command, &keys[0]]));
    assert_eq!((keys.len(), shown), (1, ["zset", "1"].map(str::to_owned)));
}

#[test]
fn slot_by_keeps_the_counters_of_a_tenant_in_one_slot_of_a_cluster() {
    let (cluster, limit) = (Cluster::start(), "{unit: year, requests_per_unit: 1, slot_by: tenant}");
    let folder = rules(&format!(
        "  - key: tenant\n    rate_limit: {{unit: year, requests_per_unit: 100, slot_by: tenant}}\n    \
         descriptors: [{{key: user, rate_limit: {limit}}}]\n"
    ));
    let server = serve(&folder, &cluster.url(), &LONG_DEADLINE);
    let ask = |user: u32| {
        let body = format!(r#"{{"domain":"api","descriptors":[[["tenant","t"]],[["tenant","t"],["user","{user}"]]]}}"#);
        let answer = http::request(server.http(), "POST", "/v1/check", &[], &body).expect("the server answers");
        let body: Value = serde_json::from_str(&answer.body).expect("the answer is JSON");
        (answer.status, body["source"] == "store")
    };
    for user in 0..8 {
        assert_eq!(ask(user), (200, true), "{user}");
    }
    let keys: Vec<_> = cluster.nodes.iter().map(|node| node.keys(&[])).filter(|keys| !keys.is_empty()).collect();
    assert_eq!(keys.len(), 1, "one node has all keys: {keys:?}");
    let slots: Vec<_> = keys[0].iter().map(|key| cluster.nodes[0].run(&["cluster", "keyslot", key])).collect();
    assert_eq!(slots, vec![slots[0].clone(); 9], "{keys:?}");
    assert_eq!(check(server.http(), "tenant", "t").1["remaining"], 91);
}

/// The rule has two limits, so a user has two Redis keys. Both keys are in the same slot. When only one key has moved to
/// another node, no node has both keys, so no node can decide a request of this user.
#[test]
fn while_a_slot_moves_a_rule_of_two_limits_is_answered_by_its_policy_and_then_by_the_store() {
    let limits = "{algorithm: fixed_window, unit: year, requests_per_unit: 100}, \
                  {algorithm: sliding_window_log, unit: year, requests_per_unit: 90}";
    let (cluster, folder) = (Cluster::start(), rules(&format!("  - {{key: user, rate_limits: [{limits}]}}\n")));
    let server = serve(&folder, &cluster.url(), &["--store-deadline", "200ms", "--store-deny-cache", "off"]);
    until_store(server.http(), "user", "7");
    let from = cluster.nodes.iter().find(|node| !node.keys(&[]).is_empty()).expect("one node has the keys");
    let to = cluster.nodes.iter().find(|node| node.id() != from.id()).expect("the cluster has three nodes");
    let (keys, id) = (from.keys(&[]), |node: &Redis| node.run(&["cluster", "myid"]));
    let slot = from.run(&["cluster", "keyslot", &keys[0]]);
    assert_eq!((keys.len(), &from.run(&["cluster", "keyslot", &keys[1]])), (2, &slot));
    assert_eq!(to.run(&["cluster", "setslot", &slot, "importing", &id(from)]), "OK");
    assert_eq!(from.run(&["cluster", "setslot", &slot, "migrating", &id(to)]), "OK");
    let port = to.url().rsplit(':').next().map(str::to_owned).expect("the URL has a port");
    let migrate = |key: &str| assert_eq!(from.run(&["migrate", "127.0.0.1", &port, key, "0", "5000"]), "OK");
    migrate(&keys[0]);
    // The server tries again until its deadline, because no node has both keys. Then the policy `local` answers.
    let left = |answer: &Value| answer["remaining"].as_u64().expect("`remaining` is a number");
    let (before, local) = (server_failures(&server), check(server.http(), "user", "7").1);
    assert_eq!((local["source"].as_str(), server_failures(&server) > before), (Some("local"), true));
    migrate(&keys[1]);
    until_store(server.http(), "user", "7");
    for node in [to, from] {
        assert_eq!(node.run(&["cluster", "setslot", &slot, "node", &id(to)]), "OK");
    }
    until_store(server.http(), "user", "7");
    let (_, answer) = check(server.http(), "user", "7");
    assert!(left(&answer) < 88, "{answer}");
}

/// Returns how many requests failed with an error that a moving slot can cause.
fn server_failures(server: &Spillgate) -> u64 {
    let failures = |class| metric(server, &format!("spillgate_store_failures_total{{class=\"{class}\"}}"));
    ["moved", "timeout", "unasked"].map(failures).iter().sum()
}
