//! Tests of `POST /explain` and `POST /peek` with a shared store.
//!
//! An operator asks a live server about a real client. The server, its deny cache and `spillgate check` have to agree.

use serde_json::{Value, json};

use crate::commands::{LIMITS, json as json_of};
use crate::fleet::{LONG_DEADLINE, check, rules, serve};
use crate::support::http;
use crate::support::redis::Redis;
use crate::support::spillgate::Spillgate;

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

#[test]
fn a_server_explains_what_check_says_and_what_the_store_decides() {
    let (redis, folder) = (Redis::start(), rules(LIMITS));
    let server = serve(&folder, &redis.url(), &LONG_DEADLINE);
    for key in ["user", "charged", "penalty", "queue", "free"] {
        for round in 0..5 {
            let cost = 1 + round % 3;
            let keys = redis.keys(&[]);
            // An answer of the first explanation must not come from the deny cache in the second one.
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
    assert_eq!(limits[0]["name"], "bucket");
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
