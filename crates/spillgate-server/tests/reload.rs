//! Tests of reloads on SIGHUP and by `POST /reload`: which files are read again, when their rules take effect, and what the log says.
//!
//! An invalid rules file must neither turn limits off nor stop the server.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;

use crate::cli_support::{Folder, command, signal};
use crate::support::process::Process;
use crate::support::spillgate::Spillgate;
use crate::support::{eventually, http};
use serde_json::Value;

fn rules(limit: u32) -> String {
    format!("domain: api\ndescriptors: [{{key: user_id, rate_limit: {{unit: year, requests_per_unit: {limit}}}}}]\n")
}

const ASK: &str = r#"{"domain":"api","descriptors":[{"user_id":"7"}]}"#;

/// Sends one more request. Returns the members `limit` and `remaining` of its answer.
fn check(server: &Spillgate) -> (u64, u64) {
    let answer = http::request(server.http(), "POST", "/v1/check", &[], ASK).expect("the server answers");
    let answer: Value = serde_json::from_str(&answer.body).expect("the answer is JSON");
    (
        answer["limit"].as_u64().expect("the answer has a limit"),
        answer["remaining"].as_u64().expect("the answer has `remaining`"),
    )
}

/// Creates a named pipe. A process that opens one end of the pipe waits until another process opens the other end.
fn pipe(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status();
    assert!(made.is_ok_and(|status| status.success()), "mkfifo cannot create {}", path.display());
}

#[test]
fn a_reload_keeps_what_was_used() {
    let folder = Folder::new(&[("rules.yaml", &rules(5))]);
    let server = Spillgate::serve(&folder.path("rules.yaml"), &[]);
    assert_eq!(check(&server), (5, 4));
    folder.write("rules.yaml", &rules(100));
    signal(server.process.id(), "HUP");
    assert!(server.process.logged("rules reloaded").contains("rules=1"));
    assert_eq!(check(&server), (100, 98));
}

#[test]
fn the_last_reloads_are_listed_with_what_they_changed() {
    let folder = Folder::new(&[("rules.yaml", &rules(5))]);
    let server = Spillgate::serve(&folder.path("rules.yaml"), &[]);
    let list = || -> Vec<Value> {
        let page = http::get(server.admin(), "/reloads", &[]).body;
        let page: Value = serde_json::from_str(&page).expect("the page is JSON");
        page["reloads"].as_array().expect("the page has a list").clone()
    };
    assert!(list().is_empty(), "the start is not a reload");
    let reload = |text: &str| {
        let before = list().len();
        folder.write("rules.yaml", text);
        signal(server.process.id(), "HUP");
        eventually("the reload is listed", || Some(list()).filter(|now| now.len() > before)).swap_remove(0)
    };
    let first = reload(&rules(100));
    let origin = format!("{}:2", folder.path("rules.yaml").display());
    let year = |limit| format!("{limit} per year, fixed window, on_store_failure local");
    assert_eq!((&first["outcome"], &first["cause"]), (&"reloaded".into(), &"signal".into()));
    assert_eq!(first["loaded"], serde_json::json!({"files": 1, "domains": 1, "rules": 1, "warnings": 0}));
    let change = format!("api: user_id ({origin}): limit #1 changed: {} -> {}", year(5), year(100));
    assert_eq!(first["changes"], serde_json::json!({"lines": [change], "left_out": 0}));
    assert_eq!(first["errors"], serde_json::json!({"lines": [], "left_out": 0}));
    let begun = "insight of 1 changed limit begins again";
    assert_eq!(first["notes"], serde_json::json!({"lines": [begun], "left_out": 0}));
    let second = reload("domain: api\ndescriptors: [{ky: <script>}]\n");
    assert_eq!((&second["outcome"], &second["loaded"]), (&Value::from("failed"), &Value::Null));
    let error = second["errors"]["lines"][0].as_str().expect("there is an error");
    assert!(error.contains("rules.yaml:2:16: ") && error.contains("did you mean `key`?"), "{error}");
    assert_eq!(second["changes"]["lines"], serde_json::json!([]));
    let times: Vec<_> = list().iter().map(|reload| reload["at_ms"].as_u64().expect("there is a time")).collect();
    assert!(times.is_sorted_by(|newer, older| newer >= older) && times.len() == 2, "{times:?}");
}

#[test]
fn a_sketch_for_which_there_is_no_memory_stops_the_reload_and_not_the_server() {
    let sketch = |memory| {
        let limit = "{unit: second, limit: 10, algorithm: token_bucket, representation: sketch, sketch_memory: ";
        format!("domain: api\ndescriptors: [{{key: user_id, rate_limit: {limit}{memory}}}}}]\n")
    };
    let folder = Folder::new(&[("rules.yaml", &sketch("1MiB"))]);
    let server = Spillgate::serve(&folder.path("rules.yaml"), &["--memory-max-heap", "64GiB"]);
    let id = server.process.id().to_string();
    let limited = Command::new("prlimit").args(["--pid", &id, "--as=8000000000"]).status();
    assert!(limited.is_ok_and(|status| status.success()), "prlimit sets the memory of the server");
    folder.write("rules.yaml", &sketch("40GiB"));
    signal(server.process.id(), "HUP");
    let line = server.process.logged("no memory for a sketch of 40GiB");
    assert!(line.contains("rules.yaml:2"), "{line}");
    assert_eq!(check(&server), (10, 9), "the earlier rules stay in use");
}

#[test]
fn a_bad_reload_changes_nothing_and_says_why() {
    let folder = Folder::new(&[("rules/a.yaml", &rules(5))]);
    let server = Spillgate::serve(&folder.path("rules"), &[]);
    folder.write("rules/a.yaml", &rules(100));
    folder.write("rules/b.yaml", "domain: web\ndescriptors: [{ky: a}]\n");
    signal(server.process.id(), "HUP");
    server.process.logged("the earlier rules stay in use");
    assert!(server.process.logged("did you mean `key`?").contains("b.yaml:2:16: "));
    assert_eq!(check(&server), (5, 4), "no file is loaded if one is invalid");
    std::fs::remove_dir_all(folder.path("rules")).expect("the folder is removed");
    signal(server.process.id(), "HUP");
    server.process.logged("rules cannot be read");
    assert_eq!(check(&server), (5, 3));
    let metrics = || http::get(server.admin(), "/metrics", &[]).body;
    eventually("the metric counts both failures", || metrics().contains("reload_failures_total 2").then_some(()));
    let says = |successful: u8| metrics().contains(&format!("\nspillgate_rules_last_reload_successful {successful}\n"));
    eventually("the metric says that the last reload failed", || says(0).then_some(()));
    folder.write("rules/a.yaml", &rules(6));
    signal(server.process.id(), "HUP");
    eventually("the metric says that the last reload succeeded", || says(1).then_some(()));
}

#[test]
fn a_reload_says_which_rules_start_again_at_zero() {
    let folder = Folder::new(&[("rules.yaml", &rules(5))]);
    let server = Spillgate::serve(&folder.path("rules.yaml"), &[]);
    folder.write("rules.yaml", &rules(5).replace("year", "hour"));
    signal(server.process.id(), "HUP");
    let line = server.process.logged("start again at zero");
    assert!(line.contains("api: user_id"), "{line}");
}

#[test]
fn a_pipe_among_the_rules_does_not_block_signals() {
    let folder = Folder::new(&[("rules/a.yaml", &rules(5))]);
    let mut server = Spillgate::serve(&folder.path("rules"), &[]);
    pipe(&folder.path("rules/b.yaml"));
    signal(server.process.id(), "HUP");
    let line = server.process.logged("is not a regular file");
    assert!(line.contains("b.yaml"), "{line}");
    assert_eq!(check(&server), (5, 4), "the old rules still apply");
    server.process.terminate();
    assert_eq!(server.process.wait().code(), Some(0));
}

#[test]
fn a_sighup_during_the_start_reloads_and_does_not_end_the_server() {
    let folder = Folder::new(&[("rules.yaml", &rules(5))]);
    // This store accepts connections and never answers. The start waits for its first answer, so the signal comes during
    // the start.
    let store = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = store.local_addr().expect("the listener has an address").port();
    let arguments = format!(
        "serve rules.yaml --http 127.0.0.1:0 --grpc off --admin 127.0.0.1:0 --store redis://127.0.0.1:{port} \
         --store-expected-nodes 1"
    );
    let mut server = Process::start("spillgate", command(&folder.path(".")).args(arguments.split(' ')));
    let _connection = store.accept().expect("the server connects");
    signal(server.id(), "HUP");
    assert!(server.line().is_some_and(|line| line.ends_with("is ready")), "{:?}", server.stderr());
    server.logged("rules reloaded");
    server.terminate();
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_reload_that_changes_share_threshold_says_which_counts_are_lost() {
    let wildcard = |more: &str| {
        format!(
            "domain: api\ndescriptors:\n  - key: user_id\n    value: '*'\n{more}    rate_limit: {{unit: year, \
             requests_per_unit: 5}}\n"
        )
    };
    let folder = Folder::new(&[("rules.yaml", &wildcard(""))]);
    let server = Spillgate::serve(&folder.path("rules.yaml"), &[]);
    assert_eq!([check(&server), check(&server)], [(5, 4), (5, 3)]);
    folder.write("rules.yaml", &wildcard("    share_threshold: true\n"));
    signal(server.process.id(), "HUP");
    let line = server.process.logged("start again at zero");
    assert!(line.contains("api: user_id=*") && line.contains("share_threshold"), "{line}");
    server.process.logged("rules reloaded");
    assert_eq!(check(&server), (5, 4));
}

#[test]
fn a_file_cut_in_the_middle_does_not_turn_its_limits_off() {
    let web = rules(9).replace("api", "web");
    let folder = Folder::new(&[("rules/a.yaml", &rules(5)), ("rules/b.yaml", &web)]);
    let server = Spillgate::serve(&folder.path("rules"), &[]);
    // The second text ends in the middle of the domain's name, `api`.
    for (number, cut) in (1..).zip(["domain: api\n", "domain: ap", "domain: api\ndescriptors: [{key: user_id}]"]) {
        folder.write("rules/a.yaml", cut);
        signal(server.process.id(), "HUP");
        let failures = format!("rules_reload_failures_total {number}\n");
        let metrics = || http::get(server.admin(), "/metrics", &[]).body;
        eventually("the reload is refused", || metrics().contains(&failures).then_some(()));
        let line = server.process.logged("had limits and now has none");
        assert!(line.contains("`api`") && line.contains("a.yaml"), "{line}");
        assert_eq!(check(&server), (5, 5 - number));
    }
    std::fs::remove_file(folder.path("rules/a.yaml")).expect("the file is removed");
    signal(server.process.id(), "HUP");
    assert!(server.process.logged("rules reloaded").contains("domains=1"), "without its file, the domain is removed");
}

#[test]
fn a_reload_says_which_settings_wait_for_a_restart() {
    let folder = Folder::new(&[("rules.yaml", &rules(5)), ("s.yaml", "limits: {body: 64KiB}\nshadow: off\n")]);
    let settings = folder.path("s.yaml");
    let server =
        Spillgate::serve(&folder.path("rules.yaml"), &["--config", settings.to_str().expect("the path is UTF-8")]);
    let reload = |text: &str, expected: &str| {
        folder.write("s.yaml", text);
        signal(server.process.id(), "HUP");
        server.process.logged(expected)
    };
    let line = reload("limits: {body: 64KiB}\nshadow: on\nheaders: off\n", "take effect at a restart");
    assert!(line.contains("shadow, headers") && !line.contains("limits.body"), "{line}");
    let line = reload("limits: {boddy: 64KiB}\n", "would not start");
    assert!(line.contains("the earlier settings stay in use"), "{line}");
    assert!(server.process.logged("did you mean `body`?").contains("s.yaml:1:10: "));
    let metrics = || http::get(server.admin(), "/metrics", &[]).body;
    eventually("the rules are reloaded nevertheless", || metrics().contains("rules_reloads_total 2\n").then_some(()));
    let (status, problem) = post_reload(server.admin());
    let units = serde_json::json!([
        {"unit": "settings", "outcome": "failed"}, {"unit": "rules", "outcome": "reloaded"},
    ]);
    assert_eq!((status, &problem["units"]), (422, &units), "{problem}");
    assert_eq!(problem["errors"][0]["line"], 1, "{problem}");
    assert!(metrics().contains("\nspillgate_reload_failed_units 1\n"), "a restart would fail");
    std::fs::remove_file(&settings).expect("the file is removed");
    let (_, problem) = post_reload(server.admin());
    let error = &problem["errors"][0];
    assert_eq!((&error["file"], &error["line"]), (&settings.display().to_string().into(), &Value::Null), "{problem}");
}

#[test]
fn a_reload_changes_how_callers_are_shown_and_keeps_all_counts() {
    let folder = Folder::new(&[("rules.yaml", &rules(5)), ("s.yaml", "insight: {keys: hashed}\n")]);
    let settings = folder.path("s.yaml");
    let server =
        Spillgate::serve(&folder.path("rules.yaml"), &["--config", settings.to_str().expect("the path is UTF-8")]);
    let top = || http::get(server.admin(), "/top", &[]).body;
    let line = |reloaded: &Value, list: &str| reloaded["reload"][list]["lines"][0].clone();
    assert_eq!(check(&server), (5, 4));
    assert!(!top().contains("user_id=7"), "{}", top());
    folder.write("s.yaml", "insight: {keys: plain}\n");
    let (status, reloaded) = post_reload(server.admin());
    assert_eq!((status, line(&reloaded, "changes")), (200, "setting insight.keys changed: hashed -> plain".into()));
    assert_eq!(reloaded["reload"]["notes"]["lines"], serde_json::json!([]), "it needs no restart");
    assert_eq!(check(&server), (5, 3), "the memory store has lost nothing");
    assert_eq!(check(&server), (5, 2));
    assert!(top().contains(r#""name":"user_id=7","units":3"#), "{}", top());
    folder.write("s.yaml", "insight: {keys: hashed, max_callers: 100}\n");
    signal(server.process.id(), "HUP");
    let noted = server.process.logged("take effect at a restart");
    assert!(noted.contains("reload: insight.max_callers cause="), "{noted}");
    eventually("the names are hidden", || (!top().contains("user_id=7")).then_some(()));
    assert_eq!(check(&server), (5, 1));
}

#[test]
fn rules_without_a_limit_for_forward_auth_are_not_loaded() {
    let settings = "forward_auth: {domain: api, descriptors: [[{key: user_id, from: client_ip}]]}\n";
    let folder = Folder::new(&[("rules.yaml", &rules(5)), ("s.yaml", settings)]);
    let settings = folder.path("s.yaml");
    let server =
        Spillgate::serve(&folder.path("rules.yaml"), &["--config", settings.to_str().expect("the path is UTF-8")]);
    folder.write("rules.yaml", &rules(5).replace("user_id", "user_ip"));
    signal(server.process.id(), "HUP");
    let line = server.process.logged("no rule of domain `api` limits `user_id`");
    assert!(line.contains("did you mean `user_ip`?"), "{line}");
    server.process.logged("the earlier rules stay in use");
    assert_eq!(check(&server), (5, 4));
}

/// Sends `POST /reload`. Returns the status and the body of the answer.
fn post_reload(admin: SocketAddr) -> (u16, Value) {
    let answer = http::request(admin, "POST", "/reload", &[("x-spillgate-admin", "1")], "");
    let answer = answer.expect("the server answers");
    (answer.status, serde_json::from_str(&answer.body).expect("the answer is JSON"))
}

#[test]
fn a_requested_reload_waits_and_says_what_changed() {
    let folder = Folder::new(&[("rules.yaml", &rules(5)), ("s.yaml", "shadow: off\n")]);
    let settings = folder.path("s.yaml");
    let server =
        Spillgate::serve(&folder.path("rules.yaml"), &["--config", settings.to_str().expect("the path is UTF-8")]);
    let (status, same) = post_reload(server.admin());
    assert_eq!((status, &same["changed"], &same["reload"]["outcome"]), (200, &false.into(), &"reloaded".into()));
    folder.write("rules.yaml", &rules(100));
    folder.write("s.yaml", "shadow: on\n");
    let (status, changed) = post_reload(server.admin());
    assert_eq!((status, &changed["changed"]), (200, &true.into()));
    assert_eq!(check(&server), (100, 99), "the answer comes when the new rules are in use");
    let line = changed["reload"]["changes"]["lines"][0].as_str().expect("there is a change");
    assert!(line.contains("limit #1 changed: 5 per year") && line.contains("-> 100 per year"), "{line}");
    let note = changed["reload"]["notes"]["lines"][0].as_str().expect("there is a note");
    assert_eq!(note, "settings changed and take effect at a restart, not at a reload: shadow");
    let list: Value = serde_json::from_str(&http::get(server.admin(), "/reloads", &[]).body).expect("it is JSON");
    assert_eq!(list["reloads"], serde_json::json!([changed["reload"], same["reload"]]));
    assert_eq!(changed["reload"]["cause"], "request");
    let units = serde_json::json!([
        {"unit": "settings", "outcome": "reloaded"}, {"unit": "rules", "outcome": "reloaded"},
    ]);
    assert_eq!(changed["reload"]["units"], units);
    let line = server.process.logged("reloaded the rules, changes: 1");
    assert!(line.contains("route=\"/reload\"") && line.contains("status=200"), "{line}");
}

#[test]
fn a_requested_reload_that_fails_says_every_error_with_its_place() {
    let folder = Folder::new(&[("rules/a.yaml", &rules(5))]);
    let server = Spillgate::serve(&folder.path("rules"), &[]);
    folder.write("rules/a.yaml", "domain: api\ndescriptors: [{ky: a}]\n");
    folder.write("rules/b.yaml", "domain: web\ndescriptors: 7\n");
    let (status, problem) = post_reload(server.admin());
    assert_eq!((status, &problem["status"]), (422, &422.into()), "{problem}");
    assert_eq!(problem["detail"], "the rules were not reloaded; the earlier rules stay in use");
    let errors = problem["errors"].as_array().expect("there is a list");
    let place = |error: &Value| {
        let file = error["file"].as_str().expect("there is a file");
        let file = Path::new(file).file_name().map(|name| name.to_string_lossy().into_owned());
        (file.unwrap_or_default(), error["line"].as_u64(), error["column"].as_u64())
    };
    let places: Vec<_> = errors.iter().map(place).collect();
    assert!(places.contains(&("a.yaml".to_owned(), Some(2), Some(16))), "{problem}");
    assert!(places.iter().any(|(file, line, _)| file == "b.yaml" && *line == Some(2)), "{problem}");
    assert!(errors.iter().any(|error| error["help"] == "did you mean `key`?"), "{problem}");
    assert!(errors[0]["excerpt"].as_str().is_some_and(|lines| lines.contains("descriptors: [{ky: a}]")), "{problem}");
    assert_eq!(check(&server), (5, 4), "the earlier rules stay in use");
    std::fs::remove_dir_all(folder.path("rules")).expect("the folder is removed");
    let (status, problem) = post_reload(server.admin());
    let (error, rules) = (&problem["errors"][0], folder.path("rules").display().to_string());
    assert_eq!((status, &error["file"], &error["line"]), (422, &rules.into(), &Value::Null));
    assert!(problem["errors"][0]["message"].as_str().is_some_and(|text| text.contains("cannot be read")), "{problem}");
    server.process.logged("not reloaded: rules; errors: 1, changes: 0");
}

#[test]
fn reloads_that_are_requested_at_once_all_get_a_result() {
    let folder = Folder::new(&[("rules.yaml", &rules(5))]);
    let server = Spillgate::serve(&folder.path("rules.yaml"), &[]);
    folder.write("rules.yaml", &rules(6));
    let admin = server.admin();
    std::thread::scope(|scope| {
        let asks: Vec<_> = (0..8).map(|_| scope.spawn(move || post_reload(admin))).collect();
        for ask in asks {
            let (status, answer) = ask.join().expect("the request ends");
            assert_eq!((status, &answer["reload"]["outcome"]), (200, &"reloaded".into()), "{answer}");
        }
    });
    assert_eq!(check(&server), (6, 5));
}

#[test]
fn an_error_of_a_requested_reload_shows_no_password() {
    let folder = Folder::new(&[("rules.yaml", &rules(5))]);
    let server = Spillgate::serve(&folder.path("rules.yaml"), &[]);
    folder.write("rules.yaml", "store: {url: 'redis://:hunter2@localhost'}\n");
    let (status, problem) = post_reload(server.admin());
    assert!(status == 422 && !problem.to_string().contains("hunter2"), "{problem}");
}
