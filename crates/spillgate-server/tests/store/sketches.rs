//! Tests of limits with `representation: sketch` beside a shared store.

use std::process::Command;

use crate::cli_support::{Folder, command, signal};
use crate::store::fleet::{LONG_DEADLINE, check, logged, rules, serve};
use crate::support::http;
use crate::support::redis::Redis;
use crate::support::spillgate::Spillgate;

const SKETCH: &str = "representation: sketch, sketch_memory: 1MiB";

fn sketched(limit: u32) -> Folder {
    rules(&format!(
        "  - key: address\n    rate_limit: {{window: 10m, limit: {limit}, algorithm: token_bucket, {SKETCH}}}\n  \
         - key: both\n    rate_limits: [{{unit: hour, algorithm: sliding_window_counter, limit: 800, {SKETCH}}}, {{unit: hour, anchor: first_hit, limit: 2}}]\n"
    ))
}

fn admitted(server: &Spillgate, key: &str, value: &str, requests: usize) -> usize {
    (0..requests).filter(|_| check(server.http(), key, value).0 == 200).count()
}

#[test]
fn each_server_limits_its_share_and_goes_on_while_the_store_is_down() {
    let (mut redis, folder) = (Redis::start(), sketched(10));
    let servers = [(), ()].map(|()| serve(&folder, &redis.url(), &LONG_DEADLINE));
    for server in &servers {
        assert_eq!(admitted(server, "address", "ann", 9), 5, "the share of one of two servers");
    }
    redis.kill();
    assert_eq!(admitted(&servers[0], "address", "bob", 9), 5, "no request needs the store");
}

#[test]
fn a_request_that_the_store_refuses_is_charged_by_its_sketch() {
    let (redis, folder) = (Redis::start(), sketched(10));
    let server = serve(&folder, &redis.url(), &LONG_DEADLINE);
    assert_eq!(admitted(&server, "both", "ann", 3), 2, "the store refuses the third request");
    let body = r#"{"domain":"api","descriptors":[{"both":"ann"}],"cost":0}"#;
    let answer = http::request(server.http(), "POST", "/v1/check", &[], body).expect("the server answers");
    let fields = answer.header("ratelimit").expect("the answer has the field");
    // The settings say that two servers share the store, so this server may admit 400 of the 800 units. The sketch has
    // counted three units, although the store refused the third request.
    assert!(fields.contains(";r=397") && fields.contains(";r=0"), "{fields}");
}

#[test]
fn a_server_without_the_number_of_servers_does_not_start() {
    let (redis, folder) = (Redis::start(), sketched(10));
    let run = |extra: &[&str]| -> String {
        let mut serve: Command = command(&folder.path("."));
        serve.args(["serve", "rules.yaml", "--http", "127.0.0.1:0", "--grpc", "off", "--store", &redis.url()]);
        serve.args(["--on-store-failure", "deny"]).args(extra);
        let output = serve.output().expect("the program runs");
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).expect("the errors are UTF-8")
    };
    let error = run(&[]);
    assert!(error.contains("rules.yaml:4: each server counts its share of a limit"), "{error}");
    assert!(error.contains("set `store.expected_nodes`"), "{error}");
    let error = run(&["--store-expected-nodes", "2", "--memory-max-heap", "1MiB"]);
    assert!(error.contains("all sketches together need 2MiB, but memory.max_heap is 1MiB"), "{error}");
    let error = run(&["--store-expected-nodes", "1000"]);
    assert!(
        error.contains("rules.yaml:4: with 1000 servers, the sketch of each server is large enough for only"),
        "{error}"
    );
}

#[test]
fn a_reload_keeps_the_sketch_of_a_limit_that_has_not_changed() {
    let (redis, folder) = (Redis::start(), sketched(10));
    let server = serve(&folder, &redis.url(), &LONG_DEADLINE);
    assert_eq!(admitted(&server, "address", "ann", 9), 5);
    signal(server.process.id(), "HUP");
    logged(&server.process, "rules reloaded");
    assert_eq!(admitted(&server, "address", "ann", 3), 0, "the same limit keeps its sketch");
    let text = std::fs::read_to_string(folder.path("rules.yaml")).expect("the file is there");
    folder.write("rules.yaml", &text.replace("limit: 10", "limit: 12"));
    signal(server.process.id(), "HUP");
    let line = logged(&server.process, "start again at zero");
    assert!(line.contains("the sketch (its representation, limit or size) of api: address"), "{line}");
    assert_eq!(admitted(&server, "address", "ann", 9), 6, "another limit has a new sketch");
}

#[test]
fn a_full_store_limits_new_keys_by_a_sketch() {
    let folder = rules("  - key: user\n    rate_limit: {unit: day, limit: 4, algorithm: token_bucket}\n");
    let arguments = "--memory-max-keys 1 --memory-on-full sketch --memory-sketch 1MiB";
    let server = Spillgate::serve(&folder.path("rules.yaml"), &arguments.split(' ').collect::<Vec<_>>());
    for user in ["ann", "bob", "eve"] {
        assert_eq!(admitted(&server, "user", user, 9), 4, "{user}");
    }
}
