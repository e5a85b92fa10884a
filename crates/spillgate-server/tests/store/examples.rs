//! Runs servers with the files of the folder `examples`. The tests choose the address and the deadline of the
//! store. For `login.yaml`, a test also sets the number of servers.
//!
//! Users copy these files, so each file must work without other changes.

use serde_json::Value;
use spillgate::{Clock as _, SystemClock};

use crate::cli_support::{Folder, command};
use crate::store::fleet::{LONG_DEADLINE, decided};
use crate::support::redis::{Cluster, Redis};
use crate::support::spillgate::Spillgate;
use crate::support::{http, root};

fn serve(settings: &str, url: &str) -> Spillgate {
    let settings = root().join("examples").join(settings).display().to_string();
    let arguments = [&["--config", &settings, "--store", url], &LONG_DEADLINE[..]].concat();
    Spillgate::serve(&root().join("examples/quickstart.yaml"), &arguments)
}

/// Returns the number of minutes since 1970.
fn minute() -> u64 {
    SystemClock::start().now().as_nanos() / 60_000_000_000
}

#[test]
fn redis_yaml_serves_a_fleet() {
    let redis = Redis::start();
    let servers = [(); 3].map(|()| serve("redis.yaml", &redis.url()));
    let bans = servers.each_ref().map(|server| decided(server.http(), "user_id", "mallory"));
    assert_eq!(bans, [(); 3].map(|()| (429, "store".to_owned())));
    // The key lives until the bucket is full again, which takes five seconds here.
    let body = r#"{"domain":"api","descriptors":[{"user_id":"vip-7"}],"cost":50}"#;
    let answer = http::request(servers[0].http(), "POST", "/v1/check", &[], body).expect("the server answers");
    assert!(answer.status == 200 && answer.body.contains("\"remaining\":0,"), "{}", answer.body);
    assert_eq!(redis.keys(&[]).len(), 1);
}

#[test]
fn login_yaml_locks_an_account_for_a_fleet() {
    let redis = Redis::start();
    let servers = [(); 2].map(|()| {
        let store = ["--store", &redis.url(), "--store-expected-nodes", "2"];
        Spillgate::serve(&root().join("examples/login.yaml"), &[&store[..], &LONG_DEADLINE[..]].concat())
    });
    let ask = |server: &Spillgate, cost: u64| {
        let body = format!(r#"{{"domain":"login","descriptors":[{{"account":"bob"}}],"cost":{cost}}}"#);
        let answer = http::request(server.http(), "POST", "/v1/check", &[], &body).expect("the server answers");
        let body: Value = serde_json::from_str(&answer.body).expect("the answer is JSON");
        assert_eq!(body["source"], "store");
        (answer.status, body["retry_after_ms"].as_u64().expect("the answer has `retry_after_ms`"))
    };
    for failure in 0..5 {
        let server = &servers[failure % 2];
        assert_eq!([ask(server, 0).0, ask(server, 1).0], [200, 200], "failure {failure}");
    }
    let first = ask(&servers[0], 0);
    assert_eq!(first, (429, 900_000), "the refused peek (a request of cost 0) starts the penalty");
    let (status, left_ms) = ask(&servers[1], 0);
    assert!(status == 429 && left_ms <= 900_000 && left_ms > 600_000, "{left_ms}");
}

#[test]
fn cluster_yaml_serves_a_fleet_and_the_doctor_sees_the_cluster() {
    let cluster = Cluster::start();
    let servers = [(); 2].map(|()| serve("cluster.yaml", &cluster.url()));
    // The keys expire at the end of a minute of the clock. If a minute ends during the requests, the users ask again.
    loop {
        let begun = minute();
        for user in 0..20 {
            let status = servers.each_ref().map(|server| decided(server.http(), "user_id", &format!("mallory-{user}")));
            assert_eq!(status, [(); 2].map(|()| (200, "store".to_owned())), "{user}");
        }
        let counts = cluster.nodes.each_ref().map(|node| node.keys(&[]).len());
        let (keys, used) = (counts.iter().sum::<usize>(), counts.iter().filter(|count| **count > 0).count());
        if minute() == begun {
            assert_eq!((keys, used), (20, 3), "each user is on one node, and all nodes are used");
            break;
        }
    }
    let folder = Folder::new(&[("s.yaml", "store: {url: 'redis-cluster://x', deadline: 5s}")]);
    let doctor = |url: &str| {
        let output = command(&folder.path(".")).args(["doctor", "--json", "-c", "s.yaml", "--store", url]).output();
        serde_json::from_slice::<Value>(&output.expect("the doctor runs").stdout).expect("the output is JSON")
    };
    let report = doctor(&cluster.url());
    assert_eq!(report["ok"], true, "{report}");
    let findings = report["findings"].as_array().expect("the report has findings");
    assert_eq!(findings.iter().filter(|finding| finding["what"] == "scripts" && finding["grade"] == "ok").count(), 3);
    let of = |what: &str| findings.iter().find(|finding| finding["what"] == what).expect("the report has this finding");
    assert_eq!([of("cluster"), of("slots"), of("replicas")].map(|finding| &finding["grade"]), ["ok", "ok", "note"]);
    // This URL begins with `redis://`, but the server is a node of a cluster. The doctor must report this mistake.
    let role = doctor(&cluster.nodes[0].url());
    let role = role["findings"]
        .as_array()
        .expect("the report has findings")
        .iter()
        .find(|finding| finding["what"] == "role")
        .cloned();
    assert!(role.is_some_and(|role| role["grade"] == "fix" && role["help"].to_string().contains("redis-cluster://")));
}
