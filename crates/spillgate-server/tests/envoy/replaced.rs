//! Rolling restarts of two servers behind a real Envoy that learns late of each change: no request fails.
//!
//! Envoy reads the list of servers from a file, which the test replaces some time after the server has got SIGTERM. It would
//! allow a request whose call of spillgate fails, so the configuration lets it refuse such a request.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;

use super::{Envoy, LIMIT, spillgate};
use crate::cli_support::signal;
use crate::support::eventually;
use crate::support::http::{Upstream, get};
use crate::support::load::{Client, Load};
use crate::support::spillgate::Spillgate;

const CLUSTER: &str = "      load_assignment:
        cluster_name: spillgate
        endpoints:
          - lb_endpoints:
              - endpoint:
                  address:
                    socket_address: { address: 127.0.0.1, port_value: 8081 }
";

/// The file with the servers of Envoy's cluster.
struct Servers(TempDir);

impl Servers {
    fn new(servers: &[Spillgate; 2]) -> Servers {
        let list = Servers(tempfile::tempdir().expect("a temporary folder can be made"));
        list.write(servers);
        list
    }

    fn write(&self, servers: &[Spillgate; 2]) {
        let endpoint = |server: &Spillgate| {
            let address = json!({"address": "127.0.0.1", "port_value": server.grpc().port()});
            json!({"endpoint": {"address": {"socket_address": address}}})
        };
        let kind = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";
        let endpoints: Vec<_> = servers.iter().map(endpoint).collect();
        let resource = json!({"@type": kind, "cluster_name": "spillgate", "endpoints": [{"lb_endpoints": endpoints}]});
        let (file, made) = (self.0.path().join("servers.json"), self.0.path().join("made"));
        fs::write(&made, json!({"resources": [resource]}).to_string()).expect("the file can be written");
        // Envoy notices only a file that was renamed.
        fs::rename(made, file).expect("the file can be renamed");
    }

    /// Returns the text of envoy.yaml that makes Envoy read this file.
    fn cluster(&self) -> String {
        let path = self.0.path().join("servers.json");
        let source = format!("{{ resource_api_version: V3, path_config_source: {{ path: {} }} }}", path.display());
        format!("      type: EDS\n      eds_cluster_config: {{ eds_config: {source} }}\n")
    }
}

/// Starts clients that send requests through Envoy.
fn load(envoy: &Envoy) -> Load {
    let client = |client: usize| -> (&'static str, Client) {
        let ingress = envoy.ingress;
        let send = move |number| {
            // Each request is the first of its user, so the answer shows that spillgate has decided it.
            let answer = get(ingress, "/", &[("x-user-id", &format!("{client}-{number}"))]);
            let is_right = answer.status == 200 && answer.number("x-ratelimit-remaining") == LIMIT - 1;
            if is_right { Ok(()) } else { Err(format!("{answer:?}")) }
        };
        ("client", Box::new(send))
    };
    Load::start(Duration::ZERO, (0..4).map(client))
}

/// Returns the ports of the servers that Envoy knows.
fn known(envoy: &Envoy) -> BTreeSet<u16> {
    let clusters = get(envoy.admin, "/clusters", &[]).body;
    let lines = clusters.lines().filter_map(|line| line.strip_prefix("spillgate::127.0.0.1:"));
    lines.filter_map(|line| line.split("::").next()?.parse().ok()).collect()
}

/// `make show-replaced` sets the two variables: how often both servers are replaced, and how late Envoy learns of it, in
/// seconds. The delay is then two seconds longer, and ends by itself. Otherwise a second signal ends it, so that the test does
/// not depend on the speed of the machine.
#[test]
fn no_request_fails_while_servers_are_replaced_one_after_the_other() {
    let variable = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("it is a number"));
    let (rounds, late) = (variable("REPLACED_ROUNDS").unwrap_or(1), variable("REPLACED_LATE_S"));
    let delay = late.map_or("10m".to_owned(), |late| format!("{}s", late + 2));
    let start = || spillgate(&["--limits-drain-delay", &delay]);
    let (upstream, mut servers) = (Upstream::start(), [start(), start()]);
    let list = Servers::new(&servers);
    let closed = ("failure_mode_deny: false", "failure_mode_deny: true");
    let envoy = Envoy::start(upstream.port(), 8081, &[closed, (CLUSTER, &list.cluster())]);
    let load = load(&envoy);
    for index in (0..rounds).flat_map(|_| [0, 1]) {
        let asked = load.passed();
        eventually("requests are flowing", || (load.passed() > asked + 20).then_some(()));
        let mut old = std::mem::replace(&mut servers[index], start());
        signal(old.process.id(), "TERM");
        old.process.logged("leaving:");
        let (asked, learns_at) = (load.passed(), Instant::now() + Duration::from_secs(late.unwrap_or(0)));
        eventually("Envoy learns late", || (load.passed() > asked + 50 && Instant::now() >= learns_at).then_some(()));
        assert!(known(&envoy).contains(&old.grpc().port()), "Envoy still sends requests to the server that leaves");
        list.write(&servers);
        eventually("Envoy knows the new servers", || {
            (known(&envoy) == servers.iter().map(|server| server.grpc().port()).collect()).then_some(())
        });
        if late.is_none() {
            signal(old.process.id(), "TERM");
        }
        assert_eq!(old.process.wait().code(), Some(0));
    }
    let passed = load.passed();
    let failed = load.stop();
    println!("{} servers were replaced: {passed} requests passed, {} failed", 2 * rounds, failed.len());
    assert_eq!(failed, [""; 0]);
    assert_eq!((envoy.counter("error"), envoy.counter("failure_mode_allowed")), (0, 0));
}
