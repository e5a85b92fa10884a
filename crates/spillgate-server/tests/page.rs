//! Tests of the page of the admin listener in a real browser, against the real server under load.
//!
//! `browser/page.mjs` and `browser/page_state.mjs` have the steps. If `PAGE_PICTURES` is a folder, they write
//! screenshots into it, for people to look at.

#![allow(clippy::print_stdout, reason = "the script that runs these tests shows what they measured")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::cli_support::{Folder, signal};
use crate::support::process::Process;
use crate::support::spillgate::Spillgate;
use crate::support::{browser, eventually, http, root};
use serde_json::{Value, json};
use spillgate::rules::{PathStep, Rules, RulesFile};
use spillgate::{Limiter, MemoryOptions, MemoryStore};
use spillgate_admin::{self as admin, Access, AdminState};
use spillgate_http::{HttpOptions, HttpState};
use spillgate_server::listener::{App, Listen, Server};
use spillgate_server::settings::{Sources, resolve};
use spillgate_service::metrics::Metrics;
use spillgate_service::{Backend, Readiness, Service, ServiceOptions};

/// How long the test waits until a part prints its next line or ends. The longest part needs two minutes on a quiet machine.
const DEADLINE: Duration = Duration::from_secs(1000);
const PAUSE: Duration = Duration::from_millis(5);

const RULES: &str = "domain: api
descriptors:
  - key: user_id
    rate_limit: {name: per_user, unit: hour, requests_per_unit: 3, algorithm: token_bucket, burst: 3}
  - {key: remote_address, rate_limit: {name: per_address, unit: second, requests_per_unit: 1000}}
  - {key: banned, rate_limit: {name: nothing, unit: second, requests_per_unit: 0}}
  - key: path
    value: /login
    descriptors: [{key: remote_address, rate_limit: {name: login, algorithm: sliding_window_log, unit: minute, requests_per_unit: 100, penalty: 5m}}]
  - {key: path, value: /search, rate_limit: {name: search, algorithm: sliding_window_counter, window: 10s, requests_per_unit: 20, segments: 10}}
  - {key: report, shadow_mode: true, rate_limit: {name: reports, unit: hour, requests_per_unit: 20}}
  - key: api_key
    rate_limits: [{name: per_key, unit: second, requests_per_unit: 5}, {name: per_day, unit: day, requests_per_unit: 1500}]
  - {key: upload, rate_limit: {name: uploads, algorithm: leaky_bucket, unit: second, requests_per_unit: 2, queue: 10}}
  - {key: export, rate_limit: {name: exports, algorithm: concurrency, limit: 4, lease: 30s}}
  - {key: newsletter, rate_limit: {unit: hour, requests_per_unit: 10k}}
  - {key: soft, rate_limit: {name: soft, unit: hour, requests_per_unit: 10, soft: 100%}}
  - {key: all, value: requests, insight_by: remote_address, rate_limit: {name: global, unit: second, requests_per_unit: 1000}}
";

/// The parts of `browser/page_state.mjs`. All other parts are in `browser/page.mjs`.
const STATE_PARTS: [&str; 12] = [
    "paths",
    "ended",
    "tabs",
    "rates",
    "lists",
    "failures",
    "shadowed",
    "patience",
    "strangers",
    "flat",
    "reloaded",
    "attention",
];

/// The descriptors of the load's requests, in this order.
const ASKED: [&str; 13] = [
    r#"{"user_id":"7"}"#,
    r#"{"user_id":"8"}"#,
    r#"{"user_id":"7"}"#,
    r#"{"path":"/search"}"#,
    r#"{"user_id":"7"}"#,
    r#"{"remote_address":"198.51.100.1"}"#,
    r#"{"path":"/login","remote_address":"198.51.100.2"}"#,
    r#"{"report":"monthly"}"#,
    r#"{"api_key":"k1"}"#,
    r#"{"upload":"u1"}"#,
    r#"{"user_id":"7"}"#,
    r#"{"soft":"s"}"#,
    r#"{"remote_address":"198.51.100.1"},{"all":"requests"}"#,
];

/// Sends requests to a server until it is dropped.
struct Load {
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    fn start(server: SocketAddr, domain: &str, asked: &[&str]) -> Load {
        let bodies: Vec<_> =
            asked.iter().map(|entries| format!(r#"{{"domain":"{domain}","descriptors":[{entries}]}}"#)).collect();
        let ending = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&ending);
        let thread = thread::spawn(move || {
            for body in bodies.iter().cycle() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                // In one test the server is away for a while, so errors are ignored.
                drop(http::request(server, "POST", "/v1/check", &[], body));
                // The pause leaves CPU time to the server and the browser.
                thread::park_timeout(PAUSE);
            }
        });
        Load { ending, thread: Some(thread) }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn folder() -> Folder {
    Folder::new(&[("rules.yaml", RULES), ("settings.yaml", "insight: {keys: plain}\n")])
}

fn serve(folder: &Folder, arguments: &[&str]) -> Spillgate {
    let settings = folder.path("settings.yaml");
    let mut all = vec!["--config", settings.to_str().expect("the path is UTF-8")];
    all.extend(arguments);
    Spillgate::serve(&folder.path("rules.yaml"), &all)
}

fn start(part: &str, server: &Spillgate, more: &Value) -> Process {
    start_at(part, server.http(), server.admin(), more)
}

/// Starts a part of `browser/page.mjs` or `browser/page_state.mjs`, with `more` options.
fn start_at(part: &str, http: SocketAddr, admin: SocketAddr, more: &Value) -> Process {
    let mut options = json!({
        "admin": format!("http://{admin}"),
        "http": format!("http://{http}"),
        "pictures": std::env::var_os("PAGE_PICTURES").map(PathBuf::from),
    });
    options.as_object_mut().expect("it is an object").extend(more.as_object().cloned().unwrap_or_default());
    let script = if STATE_PARTS.contains(&part) { "page_state.mjs" } else { "page.mjs" };
    let mut command = Command::new(browser::program("node"));
    command
        .arg(root().join("crates/spillgate-server/tests/browser").join(script))
        .arg(browser::tools())
        .arg(browser::program("chromium"))
        .arg(part)
        .arg(options.to_string());
    Process::start(script, &mut command)
}

/// Waits until a part has ended without an error, and prints its lines.
fn end(mut part: Process) {
    while let Some(line) = part.line_within(DEADLINE) {
        println!("{line}");
    }
    assert!(part.wait().success(), "{}", part.stderr().join("\n"));
}

fn post(server: &Spillgate, path: &str, body: &str) {
    let headers = [("x-spillgate-admin", "1")];
    let answer = http::request(server.admin(), "POST", path, &headers, body).expect("the server answers");
    assert_eq!(answer.status, 200, "{}", answer.body);
}

/// Reloads the rules of a server, and waits until its list has this number of reloads.
fn reload(folder: &Folder, server: &Spillgate, rules: &str, reloads: usize) {
    folder.write("rules.yaml", rules);
    signal(server.process.id(), "HUP");
    eventually("the rules are reloaded", || {
        let answer: Value = serde_json::from_str(&http::get(server.admin(), "/reloads", &[]).body).ok()?;
        (answer["reloads"].as_array()?.len() == reloads).then_some(())
    });
}

/// Waits until the list of top callers has `caller`, so until requests of this caller were refused.
fn refused(server: &Spillgate, caller: &str) {
    eventually("the load is refused", || http::get(server.admin(), "/top", &[]).body.contains(caller).then_some(()));
}

#[test]
fn each_view_is_readable_on_each_screen() {
    let folder = folder();
    let server = serve(&folder, &[]);
    let _load = Load::start(server.http(), "api", &ASKED);
    post(&server, "/block", r#"{"key":"remote_address","value":"203.0.113.77","for":"6h","reason":"scrapes prices"}"#);
    post(&server, "/shadow", r#"{"rule":{"domain":"api","path":"upload"},"on":true,"for":"1h"}"#);
    let changed =
        RULES.replace("per_key, unit: second, requests_per_unit: 5", "per_key, unit: second, requests_per_unit: 6");
    reload(&folder, &server, &changed, 1);
    reload(&folder, &server, "domain: [", 2);
    let added = "  - {key: added, rate_limit: {unit: day, requests_per_unit: 2}}\n";
    reload(&folder, &server, &format!("{changed}{added}"), 3);
    refused(&server, "user_id=7");
    end(start("views", &server, &json!({})));
}

/// Rules with this many limits. One has the longest name and value, and many have long paths.
fn rules_with(limits: usize) -> String {
    let mut rules = format!(
        "domain: api
descriptors:
  - key: user_id
    rate_limit: {{name: per_user, unit: hour, requests_per_unit: 3}}
  - key: tenant
    value: {value}
    rate_limit: {{name: {name}, unit: hour, requests_per_unit: 3}}
",
        value = "t".repeat(256),
        name = "n".repeat(256),
    );
    for number in 2..limits {
        let path = format!("/v1/organizations/projects/resources-{number:02}/versions/items/attachments/archive");
        let limit = "rate_limit: {unit: minute, requests_per_unit: 7, algorithm: token_bucket, burst: 20}";
        rules += &format!(
            "  - {{key: path, value: {path}, descriptors: [{{key: tenant, descriptors: [{{key: user_id, {limit}}}]}}]}}\n"
        );
    }
    rules
}

#[test]
fn long_names_and_many_limits_fit_each_screen() {
    for limits in [3, 60] {
        let folder = folder();
        folder.write("rules.yaml", &rules_with(limits));
        let server = serve(&folder, &[]);
        let long = format!(r#"{{"tenant":"{}"}}"#, "t".repeat(256));
        let stranger = format!(r#"{{"user_id":"{}"}}"#, "u".repeat(256));
        let path = "/v1/organizations/projects/resources-02/versions/items/attachments/archive";
        let nested = format!(r#"{{"path":"{path}","tenant":"acme","user_id":"7"}}"#);
        let _load = Load::start(server.http(), "api", &[&long, &stranger, &nested]);
        // The notice of a failed reload is there too.
        reload(&folder, &server, "domain: [", 1);
        refused(&server, "tenant=");
        end(start("fits", &server, &json!({"limits": limits})));
    }
}

#[test]
fn the_first_line_says_what_the_badges_say() {
    let folder = folder();
    let server = serve(&folder, &[]);
    end(start("attention", &server, &json!({})));
}

#[test]
fn a_new_operator_needs_at_most_three_clicks_for_each_task() {
    let folder = folder();
    let server = serve(&folder, &[]);
    let _load = Load::start(server.http(), "api", &ASKED);
    refused(&server, "user_id=7");
    end(start("tasks", &server, &json!({})));
}

#[test]
fn each_form_and_switch_does_what_it_says() {
    let folder = folder();
    let server = serve(&folder, &[]);
    let _load = Load::start(server.http(), "api", &ASKED);
    refused(&server, "user_id=7");
    end(start("forms", &server, &json!({})));
}

#[test]
fn rules_and_names_are_reloaded_from_the_page() {
    let folder = folder();
    folder.write("settings.yaml", "insight: {keys: hashed}\n");
    let server = serve(&folder, &[]);
    let _load = Load::start(server.http(), "api", &ASKED);
    eventually("a caller is refused", || {
        let top: Value = serde_json::from_str(&http::get(server.admin(), "/top", &[]).body).ok()?;
        top["limits"][0]["refused"]["callers"].as_array().filter(|callers| !callers.is_empty()).map(|_| ())
    });
    let part = start("reloading", &server, &json!({}));
    assert_eq!(part.line_within(DEADLINE).as_deref(), Some("break the rules"), "{}", part.stderr().join("\n"));
    folder.write("rules.yaml", &RULES.replacen("- key: user_id", "- ky: user_id", 1));
    assert_eq!(part.line_within(DEADLINE).as_deref(), Some("repair the rules"), "{}", part.stderr().join("\n"));
    folder.write("settings.yaml", "insight: {keys: plain}\n");
    folder.write("rules.yaml", &RULES.replacen("requests_per_unit: 3,", "requests_per_unit: 30,", 1));
    end(part);
}

#[test]
fn figures_are_those_of_the_metrics() {
    let folder = folder();
    let server = serve(&folder, &[]);
    for _ in 0..20 {
        for asked in ASKED {
            let body = format!(r#"{{"domain":"api","descriptors":[{asked}]}}"#);
            http::request(server.http(), "POST", "/v1/check", &[], &body).expect("the server answers");
        }
    }
    end(start("figures", &server, &json!({})));
}

#[test]
fn texts_of_strangers_stay_texts() {
    let (name, key) = ("<script>window.hacked=1</script>", "<img src=x onerror=window.hacked=2>");
    let value = "<img src=x onerror=window.hacked=3>'\"><svg onload=window.hacked=4>";
    let quoted = |text: &str| serde_json::to_string(text).expect("a text becomes JSON");
    let rule = |name: &str| {
        format!(
            "domain: hostile\ndescriptors: [{{key: {}, rate_limit: {{name: {}, unit: hour, requests_per_unit: 1}}}}]\n",
            quoted(key),
            quoted(name)
        )
    };
    let folder = folder();
    folder.write("rules.yaml", &rule("before"));
    let server = serve(&folder, &[]);
    reload(&folder, &server, &rule(name), 1);
    let short = "<img src=x onerror=1>";
    let asked = [value, short].map(|value| format!("{{{}:{}}}", quoted(key), quoted(value)));
    let _load = Load::start(server.http(), "hostile", &asked.each_ref().map(String::as_str));
    refused(&server, short);
    end(start(
        "hostile",
        &server,
        &json!({"hostile": {"name": name, "key": key, "rule": PathStep(key, None).to_string(), "value": value}}),
    ));
}

#[test]
fn old_figures_are_marked_until_the_server_is_back() {
    let folder = folder();
    // The ports are reserved for this test. If the system chose the ports, another program could have one of them when
    // the server comes back. Even a connection attempt of the browser or of the load could get such a port, and so
    // connect to itself.
    let [admin, http] = ["admin", "http"].map(|name| format!("--{name}=127.0.0.1:{}", spillgate_testkit::free_port()));
    let mut server = serve(&folder, &[&admin, &http]);
    let _load = Load::start(server.http(), "api", &ASKED);
    refused(&server, "user_id=7");
    let part = start("away", &server, &json!({}));
    assert_eq!(part.line_within(DEADLINE).as_deref(), Some("stop"), "{}", part.stderr().join("\n"));
    server.process.kill();
    assert_eq!(part.line_within(DEADLINE).as_deref(), Some("start"), "{}", part.stderr().join("\n"));
    let _server = serve(&folder, &[&admin, &http]);
    end(part);
}

#[test]
fn the_page_asks_for_a_token_when_the_server_does() {
    let folder = folder();
    let (read, write) = ("the-read-token-of-this-test", "the-write-token-of-this-test");
    folder.write("read", read);
    folder.write("write", write);
    let settings = "insight: {keys: plain}\nadmin_token_file: write\nadmin_read_token_file: read\n";
    folder.write("settings.yaml", settings);
    let server = serve(&folder, &[]);
    let _load = Load::start(server.http(), "api", &ASKED);
    end(start("tokens", &server, &json!({"read": read, "write": write})));
}

#[test]
fn many_tabs_of_one_browser_work() {
    let folder = folder();
    let server = serve(&folder, &[]);
    let _load = Load::start(server.http(), "api", &ASKED);
    end(start("tabs", &server, &json!({})));
}

#[test]
fn rates_are_right_whatever_arrives_when() {
    let folder = folder();
    let server = serve(&folder, &[]);
    end(start("rates", &server, &json!({})));
}

#[test]
fn lists_do_not_change_under_the_pointer() {
    let folder = folder();
    let server = serve(&folder, &[]);
    end(start("lists", &server, &json!({})));
}

#[test]
fn what_was_ended_goes_at_once() {
    let folder = folder();
    let server = serve(&folder, &[]);
    end(start("ended", &server, &json!({})));
}

#[test]
fn keys_and_values_with_signs_of_paths_are_told_apart() {
    let folder = folder();
    let limit = |name: &str| format!("rate_limit: {{name: {name}, unit: hour, requests_per_unit: 1}}");
    let rules = format!(
        "domain: odd\ndescriptors:\n  - {{key: a=b, {}}}\n  - {{key: a, value: b, {}}}\n  - key: c\n    value: d > e\n    {}\n  \
         - {{key: c, value: d, descriptors: [{{key: e, {}}}]}}\n",
        limit("whole"),
        limit("pair"),
        limit("value"),
        limit("nested")
    );
    folder.write("rules.yaml", &rules);
    let server = serve(&folder, &[]);
    let _load = Load::start(server.http(), "odd", &[r#"{"a=b":"x=y"}"#, r#"{"a":"b"}"#, r#"{"c":"d > e"}"#]);
    refused(&server, "a=b=x=y");
    end(start("paths", &server, &json!({})));
}

#[test]
fn answers_that_fail_are_said_and_asked_for_again() {
    let folder = folder();
    let server = serve(&folder, &[]);
    end(start("failures", &server, &json!({})));
}

#[test]
fn a_rule_in_shadow_is_not_said_to_refuse() {
    let folder = folder();
    let rules = "domain: quiet
descriptors:
  - {key: report, shadow_mode: true, rate_limit: {name: reports, unit: hour, requests_per_unit: 2}}
  - {key: path, value: /search, rate_limit: {name: search, unit: second, requests_per_unit: 1000}}
";
    folder.write("rules.yaml", rules);
    let server = serve(&folder, &[]);
    let _load = Load::start(server.http(), "quiet", &[r#"{"report":"monthly"}"#, r#"{"path":"/search"}"#]);
    end(start("shadowed", &server, &json!({})));
}

#[test]
fn a_limit_follows_its_rule_through_reloads() {
    let folder = folder();
    let server = serve(&folder, &[]);
    let _load = Load::start(server.http(), "api", &ASKED);
    refused(&server, "user_id=7");
    let part = start("reloaded", &server, &json!({}));
    let changes = [("change a comment", "  # changed\n  - key: user_id"), ("remove the rule", "  - key: other_id")];
    for (number, (line, changed)) in changes.into_iter().enumerate() {
        assert_eq!(part.line_within(DEADLINE).as_deref(), Some(line), "{}", part.stderr().join("\n"));
        reload(&folder, &server, &RULES.replacen("  - key: user_id", changed, 1), number + 1);
    }
    end(part);
}

/// No token is set, so only the guard against other sites protects the server.
#[test]
fn pages_of_other_sites_can_do_nothing() {
    let folder = folder();
    let server = serve(&folder, &[]);
    end(start("strangers", &server, &json!({})));
}

#[test]
fn the_page_waits_for_the_token() {
    let folder = folder();
    folder.write("write", "the-write-token-of-this-test");
    folder.write("settings.yaml", "admin_token_file: write\n");
    let server = serve(&folder, &[]);
    end(start("patience", &server, &json!({"token": "the-write-token-of-this-test"})));
}

/// The server is in this process, so that it can send an update 60 times a second.
#[test]
fn memory_stays_flat_for_an_hour_of_updates() {
    let settings = resolve(&Sources::default()).expect("the defaults are valid").settings;
    let rules =
        Rules::parse(&[RulesFile { name: "rules.yaml".into(), text: RULES.into() }]).expect("the rules are valid");
    let limiter = Limiter::new(Backend::Memory(MemoryStore::new(MemoryOptions::default())));
    let metrics = Arc::new(Metrics::new());
    let service = Arc::new(Service::new(rules, limiter, ServiceOptions::default(), Arc::clone(&metrics)));
    let mut server = Server::new(settings.limits.clients, Some(1), metrics);
    let mut bind = |app| match server.bind(&Listen::Tcp(([127, 0, 0, 1], 0).into()), app) {
        Ok(Listen::Tcp(address)) => address,
        other => panic!("no port is free: {other:?}"),
    };
    let state = AdminState::new(Arc::clone(&service), Access::default()).with_tick(Duration::from_secs(1) / 60);
    let admin = bind(App::Admin(admin::router(state)));
    let app = HttpState::new(Arc::clone(&service), HttpOptions::from(&settings)).expect("the options are valid");
    let http = bind(App::Http(app));
    let running = server.start().expect("the server starts");
    {
        let _load = Load::start(http, "api", &ASKED);
        end(start_at("flat", http, admin, &json!({})));
    }
    service.set_readiness(Readiness::Draining);
    running.handle().drain();
    drop(running.wait());
}
