//! Tests of `spillgate insight` with real servers.

mod cli_support;
mod support;

use cli_support::Folder;
use serde_json::Value;
use spillgate_testkit::RedisServer;
use support::spillgate::Spillgate;
use support::{eventually, http};

const RULES: &str = "domain: d\ndescriptors:\n  - key: user\n    rate_limit: {unit: hour, requests_per_unit: 2}\n";

/// Returns the last answer.
fn ask(server: &Spillgate, user: &str, times: usize, cost: u64) -> String {
    let body = serde_json::json!({"domain": "d", "descriptors": [{"user": user}], "cost": cost}).to_string();
    let ask = || http::request(server.http(), "POST", "/v1/check", &[], &body).expect("the server answers").body;
    (1..times).for_each(|_| drop(ask()));
    ask()
}

#[test]
fn several_servers_are_shown_as_one() {
    let folder = Folder::new(&[("rules.yaml", RULES)]);
    let redis = RedisServer::start();
    // The deadline is long, so that both servers decide by the store on a busy machine.
    let arguments =
        ["--store", &redis.url(), "--store-deadline=1m", "--store-expected-nodes=2", "--insight-keys=plain"];
    let servers = [0, 1].map(|_| Spillgate::serve(&folder.path("rules.yaml"), &arguments));
    for server in &servers {
        eventually("the store decides", || ask(server, "ann", 1, 0).contains(r#""source":"store""#).then_some(()));
    }
    ask(&servers[0], "ann", 3, 1);
    ask(&servers[1], "ann", 2, 1);
    ask(&servers[1], "bob\u{1b}", 1, 1);
    let admins = servers.each_ref().map(|server| format!("--admin=http://{}", server.admin()));
    let arguments = ["insight", &admins[0], &admins[1]];
    let output = folder.run_with(&[&arguments[..], &["--json"]].concat(), &[]);
    assert_eq!((output.code, &*output.stderr), (0, ""));
    let page: Value = serde_json::from_str(&output.stdout).expect("it is JSON");
    let [limit] = &page["limits"].as_array().expect("it is a list")[..] else { panic!("one limit: {page}") };
    let hour = &limit["spans"][2];
    assert_eq!((&hour["requests"], &hour["refused_requests"]), (&6.into(), &3.into()));
    assert_eq!(hour["callers"]["asked"]["value"], 2.0, "a caller of two servers is one caller: {page}");
    let highest = &hour["burst_needed"]["highest"];
    assert_eq!((&highest["at_least"], &highest["at_most"]), (&3.0.into(), &Value::Null), "both servers have one rate");
    assert_eq!(limit["top_allowed"]["callers"][0]["name"], "user=ann");
    let text = folder.run_with(&arguments, &[]).stdout;
    assert!(text.starts_with("d: user (") && text.contains("too little to tell"), "{text}");
    assert!(text.contains("user=bob\u{fffd}") && !text.contains('\u{1b}'), "the terminal obeys no client: {text}");
}

#[test]
fn a_server_that_cannot_be_asked_is_an_error_with_help() {
    let folder = Folder::new(&[("rules.yaml", RULES), ("token", "abc"), ("wrong", "abd")]);
    let token = format!("--admin-token-file={}", folder.path("token").display());
    let server = Spillgate::serve(&folder.path("rules.yaml"), &[&token]);
    let admin = format!("--admin=http://{}", server.admin());
    let run = |arguments: &[&str]| {
        let output = folder.run_with(&[&["insight"], arguments].concat(), &[]);
        (output.code, output.stderr)
    };
    let (code, error) = run(&[&admin]);
    assert!(code == 3 && error.contains("needs its admin token") && error.contains("--admin-token-file"), "{error}");
    let (code, error) = run(&[&admin, "--admin-token-file=wrong"]);
    assert!(code == 3 && error.contains("needs its admin token"), "{error}");
    assert_eq!(run(&[&admin, "--admin-token-file=token"]).0, 0);
    let (code, error) = run(&["--admin=http://127.0.0.1:1"]);
    assert!(code == 3 && error.contains("http://127.0.0.1:1 cannot be reached"), "{error}");
    let (code, error) = run(&[&format!("--admin=http://{}", server.http())]);
    assert!(code == 3 && error.contains("answered 404"), "{error}");
    let (code, error) = run(&["--admin=https://127.0.0.1:1"]);
    assert!(
        code == 2 && error.contains("is no address of an admin listener") && error.contains("unix:/path"),
        "{error}"
    );
}
