//! Tests of clients that hang up while they wait for their turns in a queue on Redis, or in the local store.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};

use crate::store::fleet::{check, decided, metric, rules, serve, until_store};
use crate::support::redis::Redis;
use crate::support::spillgate::Spillgate;
use crate::support::{eventually, http};

/// One turn in 7.5 seconds. The share of one of two servers has one in 15 seconds, and a queue of five.
const LIMITS: &str = "  - {key: first, rate_limit: {unit: year, requests_per_unit: 1}}\n  \
                      - {key: mailer, rate_limit: {algorithm: leaky_bucket, unit: minute, requests_per_unit: 8, \
                      queue: 11, on_store_failure: local}}\n";

/// A client that waits for a turn until its connection is dropped.
fn waiting(server: SocketAddr, value: &str) -> TcpStream {
    let body = format!(r#"{{"domain":"api","descriptors":[{{"mailer":"{value}"}}]}}"#);
    let mut stream = TcpStream::connect(server).expect("the server listens");
    let head = format!("POST /v1/check?wait=60s HTTP/1.1\r\nhost: {server}\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all((head + &body).as_bytes()).expect("the server reads");
    stream
}

/// Returns how many charges were given back, and how many were lost. One request reads both, because the admin listener
/// limits its callers.
fn settled(server: &Spillgate) -> (u64, u64) {
    let text = http::get(server.admin(), "/metrics", &[]).body;
    let sum = |name: &str| {
        let lines = text.lines().filter(|line| line.starts_with(name));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    };
    assert!(text.contains("spillgate_hangup_lost_total{reason=\"full\"}"), "{text}");
    (sum("spillgate_hangup_given_back_total "), sum("spillgate_hangup_lost_total{"))
}

/// Four clients wait behind one another for turns of `turn_ms` each, and hang up in each of three orders.
fn assert_all_are_given_back(server: &Spillgate, source: &str, turn_ms: u64) {
    let allowed = format!("spillgate_requests_total{{protocol=\"http\",source=\"{source}\",outcome=\"allowed\"}}");
    let (mut taken, mut given_back) = (metric(server, &allowed), settled(server).0);
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
        let value = format!("{source} {order:?}");
        assert_eq!(decided(server.http(), "mailer", &value), (200, source.to_owned()));
        let mut clients = Vec::new();
        taken += 1;
        for _ in 0..4 {
            clients.push(Some(waiting(server.http(), &value)));
            taken += 1;
            eventually("the client has its turn", || (metric(server, &allowed) == taken).then_some(()));
        }
        for client in order {
            clients[client] = None;
        }
        given_back += 4;
        eventually("all turns are given back", || (settled(server) == (given_back, 0)).then_some(()));
        // Only the turn of the first request is left, and time has passed since.
        let (status, answer) = check(server.http(), "mailer", &value);
        let wait_ms = answer["retry_after_ms"].as_u64().unwrap_or(0);
        assert!(status == 200 || wait_ms <= turn_ms, "{value}: the queue is {wait_ms} ms long");
        taken += u64::from(status == 200);
    }
}

#[test]
fn turns_are_given_back_to_redis_and_to_the_local_store_in_whatever_order_clients_hang_up() {
    let (mut redis, folder) = (Redis::start(), rules(LIMITS));
    let server = serve(&folder, &redis.url(), &["--store-deadline", "1s", "--limits-drain", "60s"]);
    until_store(server.http(), "first", "x");
    assert_all_are_given_back(&server, "store", 7_500);
    redis.kill();
    eventually("the local store decides", || {
        (decided(server.http(), "mailer", "other") == (200, "local".to_owned())).then_some(())
    });
    assert_all_are_given_back(&server, "local", 15_000);
}
