//! Tests `store.new_keys` on the real server: newcomers beyond the bound are decided by the server alone, and nothing
//! looks like a failure of the store.

use std::thread;

use serde_json::{Value, json};

use crate::cli_support::Folder;
use crate::store::fleet::{LONG_DEADLINE, check, decided, decided_by, logged, metric, rules, serve};
use crate::support::redis::Redis;
use crate::support::spillgate::Spillgate;
use crate::support::{eventually, http};

/// So many requests in flight make a limit owe keys for half a minute and more.
const CLIENTS: usize = 40;

fn limits() -> Folder {
    rules(
        "  - {key: user, rate_limit: {unit: year, requests_per_unit: 4}}\n  \
         - {key: job, rate_limit: {algorithm: concurrency, requests_per_unit: 4, lease: 1h}}\n  \
         - {key: team, rate_limit: {algorithm: sliding_window_log, unit: hour, requests_per_unit: 1000}}\n",
    )
}

fn post(server: &Spillgate, path: &str, body: &Value) -> (u16, Value) {
    let answer = http::request(server.http(), "POST", path, &[], &body.to_string()).expect("the server answers");
    (answer.status, serde_json::from_str(&answer.body).unwrap_or_default())
}

/// Makes keys of a limit at the same time, and returns their names. A probe can be among the requests that wait for Redis, so
/// one or two of the clients can come too late for a key.
fn spend(redis: &Redis, server: &Spillgate, key: &str) -> Vec<String> {
    redis.freeze();
    let address = server.http();
    let names: Vec<String> = (0..CLIENTS).map(|i| i.to_string()).collect();
    let sources: Vec<_> = thread::scope(|scope| {
        let clients: Vec<_> = names.iter().map(|name| scope.spawn(move || decided(address, key, name))).collect();
        eventually("all requests wait for Redis", || {
            (metric(server, "spillgate_store_in_flight") >= CLIENTS as u64).then_some(())
        });
        redis.thaw();
        clients.into_iter().map(|client| client.join().expect("it ends")).collect()
    });
    assert!(sources.iter().all(|(status, _)| *status == 200), "{key}: {sources:?}");
    let made = names.into_iter().zip(sources).filter(|(_, (_, source))| source == "store");
    made.map(|(name, _)| name).collect()
}

#[test]
fn newcomers_beyond_the_bound_are_decided_by_the_server_alone() {
    let (redis, folder) = (Redis::start(), limits());
    let server = serve(&folder, &redis.url(), &[&LONG_DEADLINE[..], &["--store-new-keys", "1/s"]].concat());
    logged(&server.process, "the store answers");
    let [users, jobs, teams] = ["user", "job", "team"].map(|key| spend(&redis, &server, key));
    let lengths = [&users, &jobs, &teams].map(Vec::len);
    assert!(lengths.iter().all(|made| *made + 4 >= CLIENTS), "{lengths:?} of {CLIENTS} keys each");
    let keys = redis.keys(&[]).len();
    // A user with a key has the whole limit, on Redis. A newcomer has this server's half.
    let existing: Vec<_> = (0..4).map(|_| decided(server.http(), "user", &users[0])).collect();
    assert_eq!(existing[..3], [200, 200, 200].map(|status| (status, "store".to_owned())));
    assert_eq!(existing[3].0, 429);
    let newcomer: Vec<_> = (0..3).map(|_| decided(server.http(), "user", "new")).collect();
    assert_eq!(newcomer, [200, 200, 429].map(|status| (status, "local".to_owned())));
    // One of two descriptors is new, so both are charged or none.
    let both = json!({"domain": "api", "descriptors": [{"user": users[1]}, {"user": "newer"}]});
    let statuses = [(); 3].map(|()| post(&server, "/v1/check", &both).0);
    assert_eq!(statuses, [200, 200, 429]);
    assert_eq!(check(server.http(), "user", &users[1]).1["remaining"], 0, "it had 3, and 2 were taken");
    // Permits and reservations of newcomers belong to this server.
    let (status, taken) = check(server.http(), "job", "new");
    assert_eq!((status, taken["source"].as_str()), (200, Some("local")), "{taken}");
    let release = json!({"lease_id": taken["lease_id"]});
    assert_eq!([(); 2].map(|()| check(server.http(), "job", "new").0), [200, 429]);
    assert_eq!(post(&server, "/v1/release", &release).0, 200);
    assert_eq!(check(server.http(), "job", "new").0, 200);
    let estimate = json!({"domain": "api", "descriptors": [{"team": "new"}], "estimate": 400});
    let (status, reserved) = post(&server, "/v1/reserve", &estimate);
    assert_eq!(status, 200, "{reserved}");
    assert_eq!(post(&server, "/v1/reserve", &estimate).0, 429, "half of 1000 is the share");
    assert_eq!(post(&server, "/v1/commit", &json!({"reservation_id": reserved["reservation_id"], "used": 0})).0, 200);
    assert_eq!(post(&server, "/v1/reserve", &estimate).0, 200);
    // Each reservation has a record, which is a key too. Its bucket gives one a second.
    assert!(redis.keys(&[]).len() <= keys + 3, "{keys} keys before, {} now", redis.keys(&[]).len());
    let held = metric(&server, "spillgate_store_failures_total{class=\"new_keys\"}");
    assert!(held >= 12 && held == decided_by(&server, "local"), "{held} held");
    // Probes failed while Redis stood still.
    let is_up = || metric(&server, "spillgate_store_up") == 1 && metric(&server, "spillgate_store_circuit") == 0;
    eventually("the store is up", || is_up().then_some(()));
    logged(&server.process, "it takes no new keys of this limit now");
    let lines = server.process.stderr().into_iter().filter(|line| line.contains("new keys")).count();
    assert!(lines <= 2, "not a line for each request");
}
