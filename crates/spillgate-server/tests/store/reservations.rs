//! Tests of reservations on a store that several servers share.
//!
//! If two servers could settle the same reservation, a client could get units back twice.

use std::net::SocketAddr;
use std::thread;

use serde_json::{Value, json};
use spillgate_testkit::free_port;

use crate::cli_support::Folder;
use crate::store::fleet::{LONG_DEADLINE, decided, rules, serve, until_store};
use crate::support::redis::{Cluster, Redis};
use crate::support::{eventually, http};

fn tokens() -> Folder {
    rules("  - {key: team, rate_limit: {algorithm: sliding_window_log, unit: hour, requests_per_unit: 1000}}\n")
}

/// Sends a body to a path. Returns the status and the answer.
fn post(server: SocketAddr, path: &str, body: &Value) -> (u16, Value) {
    let answer = http::request(server, "POST", path, &[], &body.to_string()).expect("the server answers");
    (answer.status, serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{error}: {}", answer.body)))
}

fn reserve(server: SocketAddr, teams: &[&str], estimate: u64) -> String {
    let descriptors: Vec<Value> = teams.iter().map(|team| json!({ "team": team })).collect();
    let body = json!({ "domain": "api", "descriptors": descriptors, "estimate": estimate });
    let (status, answer) = post(server, "/v1/reserve", &body);
    assert_eq!(status, 200, "{answer}");
    answer["reservation_id"].as_str().expect("it has an id").to_owned()
}

fn commit(server: SocketAddr, id: &str, used: u64) -> u16 {
    post(server, "/v1/commit", &json!({ "reservation_id": id, "used": used })).0
}

fn left(server: SocketAddr, team: &str) -> u64 {
    let body = json!({ "domain": "api", "descriptors": [{ "team": team }], "cost": 0 });
    post(server, "/v1/check", &body).1["remaining"].as_u64().expect("the limit has units")
}

#[test]
fn two_servers_settle_a_reservation_once() {
    let (redis, folder) = (Redis::start(), tokens());
    let servers = [(); 2].map(|()| serve(&folder, &redis.url(), &LONG_DEADLINE));
    let addresses = servers.each_ref().map(|server| server.http());
    addresses.iter().for_each(|address| until_store(*address, "team", "none"));
    for round in 1..=20 {
        let id = &reserve(addresses[0], &["red"], 10);
        let statuses: Vec<u16> = thread::scope(|scope| {
            let commits: Vec<_> = (0..6).map(|i| scope.spawn(move || commit(addresses[i % 2], id, 4))).collect();
            commits.into_iter().map(|commit| commit.join().expect("it ends")).collect()
        });
        assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 1, "{statuses:?}");
        assert!(statuses.iter().all(|status| [200, 410].contains(status)), "{statuses:?}");
        assert_eq!(left(addresses[1], "red"), 1_000 - 4 * round);
    }
}

#[test]
fn a_reservation_ends_with_its_life_on_redis_too() {
    let (redis, folder) = (Redis::start(), tokens());
    let server = serve(&folder, &redis.url(), &[&LONG_DEADLINE[..], &["--limits-reservation", "3s"]].concat());
    until_store(server.http(), "team", "none");
    let id = reserve(server.http(), &["red"], 10);
    assert_eq!(redis.keys(&[]).len(), 3, "two counters and a record");
    eventually("its life ends", || (redis.keys(&[]).len() == 2).then_some(()));
    assert_eq!(commit(server.http(), &id, 0), 410);
    assert_eq!(left(server.http(), "red"), 990);
}

/// The teams of a reservation are usually in different slots of a cluster. The record in the slot of the first team
/// decides which settlement counts for all slots.
#[test]
fn a_reservation_over_several_slots_is_settled_once() {
    let (cluster, folder) = (Cluster::start(), tokens());
    let server = serve(&folder, &cluster.url(), &LONG_DEADLINE);
    until_store(server.http(), "team", "none");
    let teams = ["red", "blue", "green", "black", "white"];
    let id = reserve(server.http(), &teams, 100);
    assert_eq!(commit(server.http(), &id, 30), 200);
    assert_eq!((commit(server.http(), &id, 0), commit(server.http(), &id, 999)), (410, 410));
    assert_eq!(teams.map(|team| left(server.http(), team)), [970; 5]);
}

#[test]
fn of_racing_commits_over_several_slots_one_settles_all_slots() {
    let (cluster, folder) = (Cluster::start(), tokens());
    let servers = [(); 2].map(|()| serve(&folder, &cluster.url(), &LONG_DEADLINE));
    let addresses = servers.each_ref().map(|server| server.http());
    addresses.iter().for_each(|address| until_store(*address, "team", "none"));
    for round in 0..20 {
        let teams: Vec<String> = (0..5).map(|team| format!("team-{round}-{team}")).collect();
        let names: Vec<&str> = teams.iter().map(String::as_str).collect();
        let id = &reserve(addresses[0], &names, 100);
        let statuses: Vec<u16> = thread::scope(|scope| {
            let commits: Vec<_> =
                (1..=6).map(|used| scope.spawn(move || commit(addresses[used % 2], id, used as u64))).collect();
            commits.into_iter().map(|commit| commit.join().expect("it ends")).collect()
        });
        let won: Vec<u64> = (1..=6).filter(|used| statuses[*used as usize - 1] == 200).collect();
        assert!(won.len() == 1 && statuses.iter().all(|status| [200, 410].contains(status)), "{statuses:?}");
        let used: Vec<u64> = names.iter().map(|team| 1_000 - left(addresses[1], team)).collect();
        assert_eq!(used, vec![won[0]; 5]);
    }
}

#[test]
fn only_the_server_that_has_a_reservation_in_its_memory_settles_it() {
    let (redis, folder) = (Redis::start(), tokens());
    let servers = [(); 2].map(|()| serve(&folder, &redis.url(), &["--store-deadline", "3s"]));
    let [made_it, other] = servers.each_ref().map(|server| server.http());
    [made_it, other].iter().for_each(|address| until_store(*address, "team", "none"));
    redis.freeze();
    let id = reserve(made_it, &["red"], 10);
    let elsewhere = || {
        let (status, problem) = post(other, "/v1/commit", &json!({ "reservation_id": id, "used": 4 }));
        let text = problem["detail"].as_str().unwrap_or_default();
        assert!(status == 421 && text.contains("another server has this reservation"), "{problem}");
    };
    elsewhere();
    redis.thaw();
    until_store(other, "team", "none");
    elsewhere();
    assert_eq!((commit(made_it, &id, 4), commit(made_it, &id, 4)), (200, 410));
    elsewhere();
}

#[test]
fn the_source_of_a_reservation_is_that_of_a_check() {
    let rule = |policy: &str| {
        format!(
            "  - {{key: {policy}, rate_limit: {{unit: year, requests_per_unit: 40, on_store_failure: {policy}}}}}\n"
        )
    };
    let folder = rules(&["allow", "deny", "local"].map(rule).concat());
    let server = serve(&folder, &format!("redis://127.0.0.1:{}", free_port()), &["--store-deadline", "1s"]);
    for (policy, status, source) in [("allow", 200, "policy"), ("deny", 429, "policy"), ("local", 200, "local")] {
        assert_eq!(decided(server.http(), policy, "a"), (status, source.to_owned()));
        let body = json!({ "domain": "api", "descriptors": [{ policy: "a" }], "estimate": 3 });
        let (reserved, answer) = post(server.http(), "/v1/reserve", &body);
        assert_eq!((reserved, &answer["source"]), (status, &json!(source)), "{answer}");
        assert_eq!(answer["reservation_id"].is_string(), policy == "local", "{answer}");
    }
}

#[test]
fn without_scripts_a_reservation_says_what_is_missing() {
    let (redis, folder) = (Redis::start(), rules("  - {key: team, rate_limit: {unit: day, requests_per_unit: 9}}\n"));
    let server = serve(&folder, &redis.url(), &[&LONG_DEADLINE[..], &["--store-scripts", "off"]].concat());
    until_store(server.http(), "team", "none");
    let body = json!({ "domain": "api", "descriptors": [{ "team": "red" }], "estimate": 3 });
    let (status, problem) = post(server.http(), "/v1/reserve", &body);
    assert_eq!(status, 400, "{problem}");
    let detail = problem["detail"].as_str().unwrap_or_default();
    assert!(detail.contains("reservations need scripts"), "{detail}");
}

#[test]
fn while_redis_is_down_a_settlement_is_an_error_and_can_be_repeated() {
    let (redis, folder) = (Redis::start(), tokens());
    let server = serve(&folder, &redis.url(), &["--store-deadline", "3s"]);
    until_store(server.http(), "team", "none");
    let id = reserve(server.http(), &["red"], 10);
    redis.freeze();
    assert_eq!(commit(server.http(), &id, 4), 503);
    // This reservation is made and settled in the memory of the server.
    let local = reserve(server.http(), &["red"], 10);
    assert_eq!((commit(server.http(), &local, 4), commit(server.http(), &local, 4)), (200, 410));
    redis.thaw();
    until_store(server.http(), "team", "none");
    // The frozen redis-server may have applied the first commit.
    assert!([200, 410].contains(&commit(server.http(), &id, 4)));
    assert_eq!(commit(server.http(), &id, 4), 410);
    // The store may also have applied the second reservation, although the server got no answer in time and made the
    // reservation locally. Then the estimate stays charged in the store.
    assert!([996, 986].contains(&left(server.http(), "red")));
}
