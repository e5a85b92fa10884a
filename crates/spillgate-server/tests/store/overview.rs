//! Tests of `GET /overview` with a shared store: whether the store decides, why not, and how long its calls take.

use serde_json::{Value, json};

use crate::store::commands::LIMITS;
use crate::store::fleet::{LONG_DEADLINE, check, metric, rules, serve};
use crate::support::redis::Redis;
use crate::support::spillgate::Spillgate;
use crate::support::{eventually, http};

fn overview(server: &Spillgate) -> Value {
    let answer = http::get(server.admin(), "/overview", &[]);
    assert_eq!(answer.status, 200, "{}", answer.body);
    serde_json::from_str(&answer.body).expect("the answer is JSON")
}

#[test]
fn the_overview_shows_the_health_and_the_latency_of_the_store() {
    let (mut redis, folder) = (Redis::start(), rules(LIMITS));
    let server = serve(&folder, &redis.url(), &LONG_DEADLINE);
    let store = eventually("the store is up", || {
        let store = overview(&server)["store"].clone();
        (store["up"] == true && store["latency_ns"].is_object()).then_some(store)
    });
    assert_eq!((&store["kind"], &store["error"]), (&json!("redis"), &Value::Null));
    assert!(store["url"].as_str().is_some_and(|url| url.starts_with("redis://")), "{store}");
    let [median, p99] = ["median", "p99"].map(|name| store["latency_ns"][name].as_u64().expect("it is a number"));
    assert!(0 < median && median <= p99, "{store}");
    redis.kill();
    let store = eventually("the store is down", || {
        let store = overview(&server)["store"].clone();
        (store["up"] == false && metric(&server, "spillgate_store_up") == 0).then_some(store)
    });
    assert!(store["error"].as_str().is_some_and(|error| !error.is_empty()), "{store}");
}

#[test]
fn requests_that_the_store_failed_are_errors_in_the_history() {
    let (mut redis, folder) =
        (Redis::start(), rules("  - {key: e, rate_limit: {unit: hour, limit: 5, on_store_failure: error}}\n"));
    let server = serve(&folder, &redis.url(), &[]);
    redis.kill();
    eventually("a request gets an error", || (check(server.http(), "e", "7").0 == 503).then_some(()));
    let errors = metric(&server, "spillgate_store_errors_total");
    assert!(errors > 0 && overview(&server)["requests"]["errors"] == errors, "{errors}");
    // The server begins a new step of its history every ten seconds.
    eventually("the steps have all errors", || {
        let steps = overview(&server)["requests"]["history"]["errors"].clone();
        let sum: u64 = steps.as_array().expect("it is a list").iter().filter_map(Value::as_u64).sum();
        (sum == errors).then_some(())
    });
}

#[test]
fn the_password_of_the_store_is_not_shown() {
    let folder = rules(LIMITS);
    let server = serve(&folder, "redis://ann:hidden-word@127.0.0.1:9", &[]);
    let text = http::get(server.admin(), "/overview", &[]).body;
    assert!(text.contains("127.0.0.1:9") && !text.contains("hidden-word"), "{text}");
    let store = overview(&server)["store"].clone();
    assert_eq!((&store["up"], &store["latency_ns"]), (&json!(false), &Value::Null), "{store}");
}
