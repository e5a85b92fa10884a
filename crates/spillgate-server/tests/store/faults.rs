//! Tests of the errors that a store can report. A request for units still gets a decision, a metric counts the error,
//! and the log has a line about the error. A refund gets no decision without the store.
//!
//! Without the metric and the log line, an operator could not distinguish one error from another.

use std::process::{Command, Stdio};
use std::thread;

use spillgate_testkit::free_port;
use tokio::runtime::Runtime;
use tonic::Code;

use crate::cli_support::signal;
use crate::store::fleet::{
    LONG_DEADLINE, client, decided, decided_by, logged, metric, request, rules, serve, until_store,
};
use crate::support::redis::{Cluster, Redis};
use crate::support::spillgate::Spillgate;
use crate::support::{eventually, http};

const ALLOWED: &str = "  - {key: user, rate_limit: {unit: year, requests_per_unit: 1, on_store_failure: allow}}\n";

fn failures(server: &Spillgate, class: &str) -> u64 {
    metric(server, &format!("spillgate_store_failures_total{{class=\"{class}\"}}"))
}

#[test]
fn each_error_of_a_server_is_a_decision_a_metric_and_a_line() {
    let (redis, folder) = (Redis::start(), rules(ALLOWED));
    let server = serve(&folder, &redis.url(), &LONG_DEADLINE);
    until_store(server.http(), "user", "first");
    let primary = free_port().to_string();
    redis.run(&["config", "set", "busy-reply-threshold", "1"]);
    let endless = redis.url();
    let endless = || {
        let mut script = Command::new("redis-cli");
        script.args(["-u", &endless, "eval", "while true do end", "0"]).stdout(Stdio::null()).stderr(Stdio::null());
        script.spawn().expect("redis-cli is installed")
    };
    let faults: [(&str, &[&str], &[&str]); 4] = [
        ("oom", &["config", "set", "maxmemory", "1"], &["config", "set", "maxmemory", "0"]),
        ("noperm", &["acl", "setuser", "default", "-evalsha"], &["acl", "setuser", "default", "+evalsha"]),
        ("readonly", &["replicaof", "127.0.0.1", &primary], &["replicaof", "no", "one"]),
        ("busy", &[], &["script", "kill"]),
    ];
    for (class, breaks, fixes) in faults {
        let script = if breaks.is_empty() { Some(endless()) } else { None };
        assert!(breaks.is_empty() || redis.run(breaks) == "OK", "{class}");
        let mut number = 0;
        eventually(&format!("a metric counts the error {class}"), || {
            number += 1;
            let (status, source) = decided(server.http(), "user", &format!("{class}-{number}"));
            assert_eq!(status, 200, "{class}: the store or the policy must allow the request: {source}");
            (failures(&server, class) > 0).then_some(())
        });
        let line = logged(&server.process, &format!("class=\"{class}\""));
        assert!(line.contains("the store did not decide: ") && line.contains("requests="), "{line}");
        assert_eq!(redis.run(fixes), "OK", "{class}");
        if let Some(mut script) = script {
            script.wait().expect("redis-cli ends after the script was killed");
        }
        until_store(server.http(), "user", &format!("{class}-after"));
    }
    assert!(decided_by(&server, "policy") >= 4);
}

#[test]
fn more_requests_than_may_wait_are_answered_by_policy_at_once() {
    const REQUESTS: u64 = 8;
    let (redis, folder) = (Redis::start(), rules(ALLOWED));
    let bounds = ["--store-deadline", "5s", "--store-max-in-flight", "1"];
    let server = serve(&folder, &redis.url(), &bounds);
    until_store(server.http(), "user", "first");
    signal(redis.id(), "STOP");
    let before = failures(&server, "overloaded");
    thread::scope(|scope| {
        for number in 0..REQUESTS {
            let http = server.http();
            scope.spawn(move || {
                assert_eq!(decided(http, "user", &number.to_string()), (200, "policy".to_owned()), "{number}");
            });
        }
        eventually("a request waits", || (metric(&server, "spillgate_store_in_flight") > 0).then_some(()));
        eventually("other requests are refused at once, because only one request can be in flight", || {
            (failures(&server, "overloaded") > before).then_some(())
        });
    });
    signal(redis.id(), "CONT");
    logged(&server.process, "class=\"overloaded\"");
    until_store(server.http(), "user", "after");
    eventually("no request waits", || (metric(&server, "spillgate_store_in_flight") == 0).then_some(()));
}

/// Redis decides every request while it evicts, so only this metric and this line show that limits begin again.
#[test]
fn evicted_keys_are_a_metric_and_a_line() {
    let (redis, folder) = (Redis::start_with(&["--maxmemory-policy", "allkeys-lru"]), rules(ALLOWED));
    let server = serve(&folder, &redis.url(), &LONG_DEADLINE);
    until_store(server.http(), "user", "first");
    eventually("the memory is known", || {
        http::get(server.admin(), "/metrics", &[]).body.contains("\nspillgate_store_memory_bytes ").then_some(())
    });
    assert!(metric(&server, "spillgate_store_memory_bytes") > 0);
    assert_eq!(
        (metric(&server, "spillgate_store_memory_max_bytes"), metric(&server, "spillgate_store_evicted_keys_total")),
        (0, 0)
    );
    for number in 0..50 {
        redis.run(&["set", &format!("other:{number}"), "1"]);
    }
    redis.run(&["config", "set", "maxmemory", "1"]);
    let evicted = logged(&server.process, "the store evicts keys");
    assert!(evicted.contains("noeviction"), "{evicted}");
    assert!(metric(&server, "spillgate_store_evicted_keys_total") > 0);
    assert_eq!(metric(&server, "spillgate_store_memory_max_bytes"), 1);
}

#[test]
fn units_that_cannot_be_refunded_are_counted() {
    let (cluster, folder) = (Cluster::start(), rules(ALLOWED));
    let server = serve(&folder, &cluster.url(), &[&LONG_DEADLINE[..], &["--store-deny-cache", "off"]].concat());
    assert_eq!(decided(server.http(), "user", "full"), (200, "store".to_owned()));
    let refused = |user: &str| {
        let body = format!(r#"{{"domain":"api","descriptors":[{{"user":"full"}},{{"user":"{user}"}}]}}"#);
        http::request(server.http(), "POST", "/v1/check", &[], &body).expect("the server answers").status
    };
    // The two users of a request are usually in different slots of the cluster, and each slot decides alone. So if the
    // slot of `full` refuses a request, the slot of the other user still takes a unit. The server refunds this unit.
    for user in 0..8 {
        let user = format!("a{user}");
        assert_eq!(
            (refused(&user), decided(server.http(), "user", &user).0),
            (429, 200),
            "the refused request took a unit of {user}, and the server refunded it"
        );
    }
    assert_eq!(metric(&server, "spillgate_store_refunds_lost_total"), 0);
    // A refund that makes a limit completely unused deletes the Redis key of its counter. Without the right to use DEL,
    // such a refund fails.
    for node in &cluster.nodes {
        assert_eq!(node.run(&["acl", "setuser", "default", "-del"]), "OK");
    }
    for user in 0..8 {
        assert_eq!(refused(&format!("b{user}")), 429);
    }
    eventually("the metric counts a unit that was not refunded", || {
        (metric(&server, "spillgate_store_refunds_lost_total") > 0).then_some(())
    });
}

#[test]
fn without_the_store_nothing_is_refunded() {
    let folder = rules(ALLOWED);
    let url = format!("redis://127.0.0.1:{}", free_port());
    let server = serve(&folder, &url, &["--allow-grpc", "refund"]);
    let mut refund = request("user", &["a"]);
    refund.descriptors[0].is_negative_hits = true;
    let answer = async { client(&server).await.should_rate_limit(refund).await };
    let status = Runtime::new().expect("the runtime starts").block_on(answer).expect_err("the refund is refused");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
}
