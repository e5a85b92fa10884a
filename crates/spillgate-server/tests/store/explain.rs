//! Tests of `POST /explain` and `POST /peek` with a shared store.
//!
//! An operator asks a live server about a real client. The server, its deny cache and `spillgate check` have to agree.

use serde_json::{Value, json};

use crate::store::commands::{LIMITS, json as json_of};
use crate::store::fleet::{LONG_DEADLINE, check, rules, serve};
use crate::support::redis::{Cluster, Redis};
use crate::support::spillgate::Spillgate;
use crate::support::{DEADLINE, http};

fn post(server: &Spillgate, path: &str, key: &str, cost: Option<u64>) -> Value {
    let mut body = json!({"domain": "api", "descriptors": [{ key: "7" }]});
    if let Some(cost) = cost {
        body["cost"] = json!(cost);
    }
    let answer = http::request(server.admin(), "POST", path, &[], &body.to_string()).expect("the server answers");
    assert_eq!(answer.status, 200, "{}", answer.body);
    serde_json::from_str(&answer.body).expect("the answer is JSON")
}

/// Removes the times, which differ between two requests.
fn without_times(mut answer: Value) -> Value {
    match &mut answer {
        Value::Object(members) => {
            members.retain(|name, _| !["retry_after_ns", "reset_after_ns", "delay_ns"].contains(&name.as_str()));
            members.values_mut().for_each(|member| *member = without_times(member.take()));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = without_times(item.take())),
        _ => {}
    }
    answer
}

/// Returns what is left of each limit after the request, as the explanation foresees it.
fn foreseen(said: &Value) -> Vec<Value> {
    let limits = said["asked"][0]["limits"].as_array().expect("it is a list").iter();
    limits.map(|limit| limit["after"]["remaining"].clone()).collect()
}

fn left(peeked: &Value) -> Vec<Value> {
    let limits = peeked["descriptors"][0]["limits"].as_array().expect("it is a list").iter();
    limits.map(|limit| limit["remaining"].clone()).collect()
}

#[test]
fn a_server_explains_what_check_says_and_what_the_store_decides() {
    let (redis, folder) = (Redis::start(), rules(LIMITS));
    let server = serve(&folder, &redis.url(), &LONG_DEADLINE);
    for key in ["user", "charged", "penalty", "queue", "free"] {
        for round in 0..5 {
            let cost = 1 + round % 3;
            let keys = redis.keys(&[]);
            // The first explanation must not fill the deny cache, or it would change the second one.
            let said = [(); 2].map(|()| without_times(post(&server, "/explain", key, Some(cost))));
            assert_eq!(said[0], said[1], "{key} {round}");
            let file = folder.path("rules.yaml");
            let asked = format!("-d api --json --store {} -e {key}=7 --cost {cost}", redis.url());
            let checked = folder.run(&format!("check {} {asked}", file.display()));
            assert_eq!(said[0], without_times(json_of(&checked)), "{key} {round}");
            assert_eq!(redis.keys(&[]), keys, "nothing is written");
            let body = json!({"domain": "api", "descriptors": [{ key: "7" }], "cost": cost});
            let answer = http::request(server.http(), "POST", "/v1/check", &[], &body.to_string());
            let answer = answer.expect("the server answers");
            assert_eq!(said[0]["asked"][0]["allowed"], json!(answer.status == 200), "{key} {round}: {}", said[0]);
            assert_eq!(foreseen(&said[0]), left(&post(&server, "/peek", key, None)), "{key} {round}: {}", said[0]);
        }
    }
}

#[test]
fn a_peek_shows_what_is_left_in_the_store() {
    let (redis, folder) = (Redis::start(), rules(LIMITS));
    let server = serve(&folder, &redis.url(), &LONG_DEADLINE);
    assert_eq!(check(server.http(), "user", "7").0, 200);
    let limits = post(&server, "/peek", "user", None)["descriptors"][0]["limits"].clone();
    assert_eq!((&limits[0]["remaining"], &limits[1]["remaining"]), (&json!(2), &json!(4)));
    assert_eq!(limits[0]["limit"]["name"], "bucket");
}

#[test]
fn without_the_store_there_is_no_explanation() {
    let (mut redis, folder) = (Redis::start(), rules(LIMITS));
    let server = serve(&folder, &redis.url(), &[]);
    redis.kill();
    let body = r#"{"domain":"api","descriptors":[{"user":"7"}]}"#;
    for path in ["/explain", "/peek"] {
        let answer = http::request(server.admin(), "POST", path, &[], body).expect("the server answers");
        assert_eq!(answer.status, 503, "{}", answer.body);
        assert!(answer.body.contains("the store is unavailable"), "{}", answer.body);
    }
}

/// Explains, peeks and asks in turn. An explanation must say what the request gets, and write nothing to any node.
fn explains_and_writes_nothing(nodes: &[&Redis], url: &str, limits: &str, arguments: &[&str]) {
    let folder = rules(limits);
    let server = serve(&folder, url, &[&LONG_DEADLINE[..], arguments].concat());
    for key in ["user", "charged", "penalty", "queue"] {
        for round in 0..4 {
            let cost = 1 + round % 2;
            let keys = || nodes.iter().flat_map(|node| node.keys(&[])).collect::<Vec<_>>();
            let (stored, before) = (keys(), left(&post(&server, "/peek", key, None)));
            let said = [(); 3].map(|()| post(&server, "/explain", key, Some(cost)));
            assert_eq!(left(&post(&server, "/peek", key, None)), before, "{key} {round}: nothing is taken");
            assert_eq!(keys(), stored, "{key} {round}: nothing is written");
            let body = json!({"domain": "api", "descriptors": [{ key: "7" }], "cost": cost});
            let answer = http::request(server.http(), "POST", "/v1/check", &[], &body.to_string());
            let answer = answer.expect("the server answers");
            let context = format!("{key} {round} {url}: {}", said[0]);
            assert_eq!(said[0]["asked"][0]["allowed"], json!(answer.status == 200), "{context}");
            assert_eq!(foreseen(&said[2]), left(&post(&server, "/peek", key, None)), "{context}");
        }
    }
}

#[test]
fn an_explanation_writes_nothing_to_a_cluster() {
    let cluster = Cluster::start();
    explains_and_writes_nothing(&cluster.nodes.each_ref(), &cluster.url(), LIMITS, &[]);
}

#[test]
fn an_explanation_writes_nothing_without_scripts() {
    let redis = Redis::start();
    let limits = "  - key: user
    rate_limits: [{name: a, unit: day, anchor: first_hit, requests_per_unit: 3}, {name: b, unit: year, requests_per_unit: 5}]
  - {key: charged, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: penalty, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: queue, rate_limit: {unit: year, requests_per_unit: 0}}
";
    // Without scripts, a refusal by the store charges units, but a refusal by the deny cache charges none. With a deny
    // cache, more units would therefore be left than the explanation foresees.
    let arguments = ["--store-scripts", "off", "--store-deny-cache", "off"];
    explains_and_writes_nothing(&[&redis], &redis.url(), limits, &arguments);
}

#[test]
fn at_most_four_explanations_wait_for_the_store() {
    let (redis, folder) = (Redis::start(), rules(LIMITS));
    let server = serve(&folder, &redis.url(), &LONG_DEADLINE);
    let until_decided = post(&server, "/peek", "user", None);
    assert_eq!(left(&until_decided), [3, 5]);
    redis.hold_writes();
    let (to_test, answers) = std::sync::mpsc::channel();
    for number in 0..10 {
        let (to_test, admin) = (to_test.clone(), server.admin());
        let path = ["/explain", "/peek"][number % 2];
        std::thread::spawn(move || {
            let body = r#"{"domain":"api","descriptors":[{"user":"7"}]}"#;
            to_test.send(http::request(admin, "POST", path, &[], body).expect("the server answers"))
        });
    }
    for _ in 0..6 {
        let refused = answers.recv_timeout(DEADLINE).expect("six are refused at once");
        assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")), "{}", refused.body);
        assert!(refused.body.contains("4 explanations and peeks run already"), "{}", refused.body);
    }
    redis.release_writes();
    for _ in 0..4 {
        let answered = answers.recv_timeout(DEADLINE).expect("four are answered");
        assert_eq!(answered.status, 200, "{}", answered.body);
    }
}
