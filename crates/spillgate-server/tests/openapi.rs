//! Compares the OpenAPI file of the admin listener with the answers of a real server: each answer of each route.
//!
//! Client programs are generated from such a file. A member that is missing there, or has another type, breaks these
//! clients.

pub(crate) mod schema;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};

use crate::cli_support::{Folder, signal};
use crate::support::events::EventStream;
use crate::support::redis::Redis;
use crate::support::spillgate::{REGIONS, Spillgate};
use crate::support::{eventually, http};

const RULES: &str = "domain: api
descriptors:
  - key: user_id
    rate_limits: [{name: per_user, unit: hour, requests_per_unit: 3, penalty: 1m}, {unit: day, limit: 9, algorithm: token_bucket}]
    descriptors: [{key: path, value: '/a*', shadow_mode: true, rate_limit: {algorithm: sliding_window_counter, window: 1m, limit: 5}}]
  - key: job
    rate_limit: {name: jobs, algorithm: concurrency, requests_per_unit: 2, lease: 30s}
  - {key: queue, rate_limit: {algorithm: leaky_bucket, unit: second, limit: 1, queue: 2}}
  - {key: sketched, rate_limit: {algorithm: token_bucket, unit: minute, limit: 5, representation: sketch, sketch_memory: 1MiB}}
  - {key: free, rate_limit: {unlimited: true}}
";

/// A server, its OpenAPI file, and the operations that were checked.
struct Api {
    server: Spillgate,
    file: Value,
    checked: RefCell<BTreeSet<String>>,
}

impl Api {
    fn start(folder: &Folder, arguments: &[&str]) -> Api {
        let server = Spillgate::serve(&folder.path("rules.yaml"), arguments);
        let answer = http::get(server.admin(), "/openapi.json", &[("authorization", "Bearer read")]);
        let file = serde_json::from_str(&answer.body).expect("the file is JSON");
        Api { server, file, checked: RefCell::default() }
    }

    /// Sends a request, checks its answer against the file, and returns the answer. If the request succeeds, its own
    /// body is checked too.
    fn ask(&self, method: &str, path: &str, token: &str, body: &str, status: u16) -> Value {
        let authorization = format!("Bearer {token}");
        let headers = [("authorization", authorization.as_str())];
        let answer = http::request(self.server.admin(), method, path, &headers, body).expect("the server answers");
        let context = format!("{method} {path} {body}: {}", answer.body);
        assert_eq!(answer.status, status, "{context}");
        let route = path.split('?').next().unwrap_or_default().replace("/us/", "/{name}/");
        let operation = &self.file["paths"][&route][method.to_lowercase()];
        assert!(operation.is_object(), "{context} is not in the file");
        let class = format!("{}XX", status / 100);
        let responses = &operation["responses"];
        let response = responses.get(status.to_string()).or_else(|| responses.get(class));
        let content = &response.unwrap_or_else(|| panic!("{context} is not in the file"))["content"];
        let kind = answer.header("content-type").unwrap_or_default().split(';').next().unwrap_or_default();
        let schema = &content[kind]["schema"];
        assert!(schema.is_object(), "{context}: the type {kind} is not in the file: {content}");
        let is_json = kind.ends_with("json");
        let value = if is_json { serde_json::from_str(&answer.body).expect("it is JSON") } else { json!(answer.body) };
        schema::check(&self.file, schema, &value, &context).unwrap_or_else(|error| panic!("{error}"));
        let sent = &operation["requestBody"]["content"]["application/json"]["schema"];
        if status == 200 && sent.is_object() {
            let body = serde_json::from_str(body).expect("a body that is accepted is JSON");
            schema::check(&self.file, sent, &body, &context).unwrap_or_else(|error| panic!("{error}"));
        }
        if status == 200 {
            self.checked.borrow_mut().insert(format!("{method} {route}"));
        }
        value
    }

    /// Checks events against the file. A stream does not end, so [`ask`](Api::ask) cannot read it.
    fn check_events(&self) {
        let mut stream = EventStream::open(self.server.admin(), &[("authorization", "Bearer read")]);
        let content = &self.file["paths"]["/events"]["get"]["responses"]["200"]["content"]["text/event-stream"];
        assert!(stream.head.contains("content-type: text/event-stream\r\n") && content["schema"]["type"] == "string");
        let mut seen = BTreeSet::new();
        while seen.len() < 2 {
            let (name, data) = stream.next().expect("the stream goes on");
            let schema = &content["x-events"][&name];
            schema::check(&self.file, schema, &data, &name).unwrap_or_else(|error| panic!("{error}"));
            if name == "tick" && seen.insert(name.clone()) {
                signal(self.server.process.id(), "HUP");
            }
            seen.insert(name);
        }
        self.checked.borrow_mut().insert("GET /events".to_owned());
    }

    fn check(&self, descriptor: &Value, cost: u64) {
        let body = json!({"domain": "api", "descriptors": [descriptor], "cost": cost}).to_string();
        http::request(self.server.http(), "POST", "/v1/check", &[], &body).expect("the server answers");
    }
}

#[test]
fn each_answer_is_as_the_file_says() {
    let folder = Folder::new(&[("rules.yaml", RULES), ("write", "write"), ("read", "read")]);
    let file = |name: &str| folder.path(name).display().to_string();
    let (write, read) = (file("write"), file("read"));
    let tokens = ["--admin-token-file", &write, "--admin-read-token-file", &read, "--insight-keys=plain"];
    let api = Api::start(&folder, &tokens);
    let descriptors = [
        json!({"user_id": 7}),
        json!([["user_id", "7"], ["path", "/ab"]]),
        json!({"job": true}),
        json!({"queue": "q"}),
        json!({"sketched": "s"}),
        json!({"free": "f"}),
        json!({"unknown": 1.5}),
    ];
    let request = |cost: Option<u64>, descriptors: &[Value]| {
        let mut body = json!({"domain": "api", "descriptors": descriptors});
        cost.iter().for_each(|cost| body["cost"] = json!(cost));
        body.to_string()
    };
    // The answers are checked while limits are unused, used and exceeded, because states, verdicts and callers look
    // different each time.
    for _ in 0..3 {
        for path in [
            "/overview",
            "/rules",
            "/rules?domain=api&rule=user_id",
            "/insight",
            "/insight?readings=true",
            "/insight?domain=api&rule=user_id",
            "/insight?limit=9",
            "/top",
            "/reloads",
            "/openapi.json",
            "/metrics",
        ] {
            api.ask("GET", path, "read", "", 200);
        }
        for descriptor in &descriptors {
            for cost in [None, Some(0), Some(3), Some(1000)] {
                api.ask("POST", "/explain", "read", &request(cost, std::slice::from_ref(descriptor)), 200);
            }
            api.check(descriptor, 1);
            api.check(descriptor, 3);
        }
        api.ask("POST", "/peek", "read", &request(None, &descriptors), 200);
        for values in [json!([{"key": "user_id", "value": "7"}]), json!([{"value": "q"}, {"value": "/ab"}])] {
            api.ask("POST", "/caller", "read", &json!({"values": values}).to_string(), 200);
        }
    }
    let entries = json!([{"key": "user_id", "value": "7"}]);
    let envoy = json!({"domain": "api", "descriptors": [{"entries": entries, "hitsAddend": "2"}], "hitsAddend": 3});
    api.ask("POST", "/explain", "read", &envoy.to_string(), 200);
    let reset = api.ask("POST", "/reset", "write", &request(None, &descriptors[..1]), 200);
    assert_eq!((&reset["reset"], reset["limits"].as_array().map(Vec::len)), (&json!(2), Some(2)));
    let hit = r#"{"bucket":"login","key":"7","limit":1,"window_ms":60000}"#;
    api.ask("POST", "/reset", "write", hit, 200);
    operate(&api, &request(None, &descriptors[..1]));
    for text in [RULES.replacen("unit: hour", "unit: day", 1), "domain: api\ndescriptors: 7\n".to_owned()] {
        let before = api.ask("GET", "/reloads", "read", "", 200)["reloads"].as_array().map(Vec::len);
        folder.write("rules.yaml", &text);
        signal(api.server.process.id(), "HUP");
        eventually("the reload is listed", || {
            let now = api.ask("GET", "/reloads", "read", "", 200)["reloads"].as_array().map(Vec::len);
            (now > before).then_some(())
        });
    }
    let reload = || api.ask("POST", "/reload", "write", "{}", 422);
    assert!(reload()["errors"].as_array().is_some_and(|errors| !errors.is_empty()));
    fs::remove_file(folder.path("rules.yaml")).expect("the file is removed");
    assert_eq!(reload()["errors"][0]["line"], Value::Null);
    folder.write("rules.yaml", RULES);
    assert_eq!(api.ask("POST", "/reload", "write", "{}", 200)["changed"], true);
    for path in ["/", "/healthz", "/readyz"] {
        api.ask("GET", path, "", "", 200);
    }
    api.check_events();
    of_regions(&api, &folder);
    let all: BTreeSet<_> = operations(&api.file).map(|(method, path, _)| format!("{method} {path}")).collect();
    assert_eq!(*api.checked.borrow(), all, "each operation of the file was checked, and no other");
}

/// Asks a server with another region.
fn of_regions(api: &Api, folder: &Folder) {
    assert_eq!(api.ask("GET", "/regions", "read", "", 200)["region"], Value::Null);
    let redis = Redis::start();
    let file = |name: &str| folder.path(name).display().to_string();
    let shared = "domain: api\ndescriptors: [{key: user_id, rate_limit: {unit: day, limit: 9, algorithm: token_bucket, across_regions: shared}}]\n";
    folder.write("rules.yaml", shared);
    folder.write("secret", "000102030405060708090a0b0c0d0e0f");
    let (url, write, read, secret) = (redis.url(), file("write"), file("read"), file("secret"));
    let tokens = ["--admin-token-file", &write, "--admin-read-token-file", &read];
    let store =
        ["--store", &url, "--store-expected-nodes", "1", "--store-key-secret-file", &secret, "--allow-grpc", "[]"];
    let other = Api::start(folder, &[&tokens[..], &store, &["--store-deadline", "30s"], &REGIONS].concat());
    let pause =
        |verb: &str| other.ask("POST", &format!("/regions/us/{verb}"), "write", "{}", 200)["region"]["paused"].clone();
    assert_eq!(["pause", "resume"].map(pause), [true, false]);
    let failed = || {
        let answer = other.ask("GET", "/regions", "read", "", 200);
        (!answer["regions"][0]["last_failure"].is_null()).then_some(())
    };
    eventually("the other region cannot be reached", failed);
    let body = r#"{"domain":"api","descriptors":[{"user_id":"7"}]}"#;
    eventually("the store answers", || {
        let answer = http::request(other.server.admin(), "POST", "/reset", &[("authorization", "Bearer write")], body);
        (answer.is_ok_and(|answer| answer.status == 200)).then_some(())
    });
    let reset = other.ask("POST", "/reset", "write", body, 200);
    assert_eq!((&reset["reset"], &reset["reset_also_in"]), (&json!(1), &json!(["us"])));
    api.checked.borrow_mut().append(&mut other.checked.borrow_mut());
}

/// Blocks a value, and puts rules into shadow. `explained` is a request that has this value, and one of these rules.
fn operate(api: &Api, explained: &str) {
    let entry = json!({"key": "user_id", "value": "7"}).to_string();
    let rule = json!({"domain": "api", "path": "user_id"});
    let shadow = |rule: &Value, more: Value| {
        let mut body = json!({ "rule": rule });
        more.as_object().into_iter().flatten().for_each(|(name, value)| body[name] = value.clone());
        api.ask("POST", "/shadow", "write", &body.to_string(), 200);
        api.ask("GET", "/shadows", "read", "", 200);
    };
    api.ask("GET", "/blocks", "read", "", 200);
    api.ask("POST", "/block", "write", r#"{"key":"user_id","value":"7","for":"1h"}"#, 200);
    let block = r#"{"key":"user_id","value":"8","domain":"api","for":"1h","reason":"floods"}"#;
    for _ in 0..2 {
        // The second one replaces the first one.
        api.ask("POST", "/block", "write", block, 200);
    }
    shadow(&rule, json!({"on": true, "for": "1h", "scope": "server"}));
    shadow(&json!("all"), json!({"on": true, "for": "1h"}));
    shadow(&rule, json!({"on": true, "for": "1h"}));
    api.ask("GET", "/blocks", "read", "", 200);
    api.ask("POST", "/explain", "read", explained, 200);
    api.ask("POST", "/caller", "read", r#"{"domain":"api","values":[{"value":"7"}]}"#, 200);
    api.ask("POST", "/unblock", "write", &entry, 200);
    api.ask("POST", "/explain", "read", explained, 200);
    for rule in [rule, json!("all")] {
        shadow(&rule, json!({"on": false}));
    }
    api.ask("POST", "/unblock", "write", &entry, 404);
    api.ask("POST", "/shadow", "write", r#"{"rule":"all","on":false}"#, 404);
}

#[test]
fn each_error_is_as_the_file_says() {
    let folder = Folder::new(&[("rules.yaml", RULES), ("write", "write"), ("read", "read")]);
    let file = |name: &str| folder.path(name).display().to_string();
    let (write, read) = (file("write"), file("read"));
    let start = || Api::start(&folder, &["--admin-token-file", &write, "--admin-read-token-file", &read]);
    let (mut api, file) = (start(), start().file);
    let guarded = operations(&file).filter(|(.., operation)| operation["security"] != json!([]));
    for (number, (method, path, _)) in guarded.enumerate() {
        // A server bears 20 wrong tokens of one address in a minute.
        if number > 0 && number % 16 == 0 {
            api = start();
        }
        api.ask(method, path, "wrong", "", 401);
        if method == "POST" {
            api.ask(method, path, "write", "nonsense", 400);
            api.ask(method, path, "write", &" ".repeat(70_000), 413);
        }
    }
    api.ask("GET", "/insight?readings=7", "read", "", 400);
    // No request of this caller comes.
    api.ask("POST", "/explain", "read", r#"{"hash":"0123456789abcdef"}"#, 403);
    api.ask("POST", "/explain", "write", r#"{"hash":"0123456789abcdef"}"#, 404);
    api.ask("POST", "/block", "write", r#"{"hash":"0123456789abcdef","for":"1m"}"#, 404);
    api.ask("POST", "/reset", "read", "", 403);
    api.ask("POST", "/reset", "write", r#"{"domain":"api","descriptors":[{"unknown":"1"}]}"#, 404);
}

#[test]
fn the_file_has_the_routes_and_the_version_of_the_server() {
    let folder = Folder::new(&[("rules.yaml", RULES)]);
    let api = Api::start(&folder, &[]);
    assert_eq!(api.file["info"]["version"], env!("CARGO_PKG_VERSION"));
    let help = http::get(api.server.admin(), "/nothing", &[]).body;
    let help: Value = serde_json::from_str(&help).expect("the answer is JSON");
    let help = help["help"].as_str().expect("the answer has a help text");
    let named: BTreeSet<_> = help.split([' ', ',']).filter(|word| word.starts_with('/')).collect();
    let routes: BTreeSet<_> = operations(&api.file).map(|(_, path, _)| path).collect();
    assert_eq!(routes, named);
    let schemas = api.file["components"]["schemas"].as_object().expect("there are schemas");
    let text = api.file.to_string();
    let unused = schemas.keys().find(|name| !text.contains(&format!("\"#/components/schemas/{name}\"")));
    assert_eq!(unused, None, "each schema is used");
}

/// Returns the method, the path and the description of each operation of the file.
fn operations(file: &Value) -> impl Iterator<Item = (&'static str, &str, &Value)> {
    let paths = file["paths"].as_object().expect("the file has paths").iter();
    paths.flat_map(|(path, methods)| {
        let methods = methods.as_object().expect("a path has methods").iter();
        methods
            .map(move |(method, operation)| (if method == "post" { "POST" } else { "GET" }, path.as_str(), operation))
    })
}
