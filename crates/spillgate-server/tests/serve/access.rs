//! Tests of the admin listener of a real server: the settings for its callers, and what the log says about them.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use super::{ASK, rules};
use crate::cli_support::Folder;
use crate::support::spillgate::Spillgate;
use crate::support::{DEADLINE, eventually, http};

const WRITE: (&str, &str) = ("x-spillgate-admin", "1");

fn folder() -> Folder {
    let (write, read) = ("the-write-token-of-this-test\n", "the-read-token-of-this-test\n");
    Folder::new(&[("rules.yaml", &rules(5)), ("write", write), ("read", read), ("short", "w-token")])
}

fn raw(server: SocketAddr, head: &str) -> u16 {
    let mut stream = TcpStream::connect_timeout(&server, DEADLINE).expect("the server listens");
    stream.set_read_timeout(Some(DEADLINE)).expect("the timeout is valid");
    stream.write_all(head.as_bytes()).expect("the bytes are sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the server answers and closes the connection");
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    status.unwrap_or_else(|| panic!("the answer is not HTTP: {answer}"))
}

#[test]
fn each_write_of_an_operator_is_logged_at_every_log_level() {
    for level in ["error", "off", "debug"] {
        let folder = folder();
        let file = |name: &str| folder.path(name).display().to_string();
        let (write, read) = (file("write"), file("read"));
        let arguments = ["--admin-token-file", &write, "--admin-read-token-file", &read, "--log-level", level];
        let server = Spillgate::serve(&folder.path("rules.yaml"), &arguments);
        let post = |path: &str, kind: &str, body: &str| {
            let authorization = format!("Bearer the-{kind}-token-of-this-test");
            let headers = [("authorization", authorization.as_str())];
            http::request(server.admin(), "POST", path, &headers, body).expect("the server answers").status
        };
        assert_eq!([post("/reset", "read", ASK), post("/peek", "read", ASK)], [403, 200]);
        let hit = r#"{"bucket":"a \"b\"\n\u001b[31mc","key":"7","limit":1,"window_ms":60000}"#;
        assert_eq!([post("/reset", "write", "nonsense"), post("/reset", "write", ASK)], [400, 200]);
        assert_eq!([post("/reset", "write", hit), post("/a\"%1b[31m\u{e9}", "write", ASK)], [200, 404]);
        let long = format!("/{}", "x".repeat(10_000));
        assert_eq!(post(&long, "write", ASK), 404);
        server.process.logged("route=\"/xxx");
        let all = server.process.stderr();
        let lines: Vec<_> = all.iter().filter(|line| line.contains("a write on the admin listener")).collect();
        let is = |at: usize, change: &str, status: u16| {
            let line = lines[at];
            assert!(line.contains("token=\"write\" peer=\"127.0.0.1:"), "{line}");
            assert!(line.contains(&format!(" change=\"{change}")), "{line}");
            assert!(line.ends_with(&format!("status={status}")) && line.len() < 400, "{line}");
            assert!(!line.contains('\u{1b}'), "{line}");
        };
        assert_eq!(lines.len(), 5, "{lines:?}");
        is(0, "nothing\"", 400);
        is(1, "1 limit reset: caller ", 200);
        assert!(lines[1].contains(" of rule user_id in domain api\""), "{}", lines[1]);
        is(2, "1 limit reset: caller ", 200);
        assert!(lines[2].contains(r#" of bucket a \"b\"\n\u{1b}[31mc""#), "{}", lines[2]);
        is(3, "nothing\"", 404);
        is(4, "nothing\"", 404);
        assert!(lines[4].contains(&format!("route=\"/{}\"", "x".repeat(47))), "{}", lines[4]);
        assert!(!all.iter().any(|line| line.contains("-token-of-this-test")), "no token is logged: {all:?}");
    }
}

/// A token is what a rotation replaces. The listener read its file only at the start.
#[test]
fn an_admin_token_is_read_again_from_its_file() {
    let folder = folder();
    let file = |name: &str| folder.path(name).display().to_string();
    let (write, read) = (file("write"), file("read"));
    let arguments = ["--admin-token-file", &write, "--admin-read-token-file", &read, "--watch", "on"];
    let server = Spillgate::serve(&folder.path("rules.yaml"), &arguments);
    let rules = |token: &str| {
        let authorization = format!("Bearer {token}");
        http::get(server.admin(), "/rules", &[("authorization", &authorization)]).status
    };
    let (old, new) = ("the-read-token-of-this-test", "another-read-token-of-this-test");
    let write_token = "the-write-token-of-this-test";
    assert_eq!([rules(old), rules(new), rules(write_token)], [200, 401, 200]);
    let authorization = format!("Bearer {old}");
    let mut stream = TcpStream::connect_timeout(&server.admin(), DEADLINE).expect("the server listens");
    stream.set_read_timeout(Some(DEADLINE)).expect("the timeout is valid");
    let head = format!("GET /events HTTP/1.1\r\nhost: localhost\r\nauthorization: {authorization}\r\n");
    stream.write_all(format!("{head}connection: close\r\n\r\n").as_bytes()).expect("the bytes are sent");
    folder.write("read", new);
    // Not polled with the new token: an address may send only a few wrong tokens.
    server.process.logged("an admin token has changed in its file");
    assert_eq!([rules(old), rules(new), rules(write_token)], [401, 200, 200]);
    let mut events = String::new();
    stream.read_to_string(&mut events).expect("the stream that began with the old token ends");
    assert!(events.starts_with("HTTP/1.1 200"), "{events}");
    // What would protect nothing is not taken over.
    folder.write("read", "");
    server.process.logged("the admin tokens cannot be read again, so the current tokens stay valid");
    assert_eq!([rules(new), rules("")], [200, 401]);
    std::fs::remove_file(&write).expect("the file exists");
    assert_eq!(rules(write_token), 200);
    folder.write("read", "the-third-read-token-of-this-test");
    folder.write("write", "another-write-token-of-this-test");
    eventually("both tokens have changed", || {
        let changes = server.process.stderr().into_iter().filter(|line| line.contains("an admin token has changed"));
        // At the first reading, only one of the two files may have its new token.
        (changes.count() >= 2 && rules("another-write-token-of-this-test") == 200).then_some(())
    });
    assert_eq!([rules(write_token), rules(new), rules("the-third-read-token-of-this-test")], [401, 401, 200]);
}

#[test]
fn a_reset_that_fails_half_way_says_what_it_has_done() {
    let text = "domain: api\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 10}}]\n";
    let folder = Folder::new(&[("rules.yaml", text)]);
    let arguments = ["--memory-max-keys", "1", "--memory-on-full", "sketch"];
    let server = Spillgate::serve(&folder.path("rules.yaml"), &arguments);
    for user in ["ann", "bob"] {
        let body = format!(r#"{{"domain":"api","descriptors":[{{"user":"{user}"}}]}}"#);
        assert_eq!(http::request(server.http(), "POST", "/v1/check", &[], &body).expect("it answers").status, 200);
    }
    // The key of `bob` is in the sketch of the full store, which cannot give units back.
    let both = r#"{"domain":"api","descriptors":[{"user":"ann"},{"user":"bob"}]}"#;
    let answer = http::request(server.admin(), "POST", "/reset", &[WRITE], both).expect("the server answers");
    assert_eq!(answer.status, 400, "{}", answer.body);
    let line = server.process.logged("a write on the admin listener");
    let of_rule = " of rule user in domain api";
    assert!(line.contains("change=\"1 limit reset: caller "), "{line}");
    assert!(line.contains(&format!("{of_rule}; unknown: caller ")) && line.matches(of_rule).count() == 2, "{line}");
}

#[test]
fn a_name_of_admin_hosts_reaches_the_listener_and_another_one_is_logged() {
    let folder = folder();
    let server = Spillgate::serve(&folder.path("rules.yaml"), &["--admin-hosts", "gate.internal"]);
    let get =
        |host: &str| raw(server.admin(), &format!("GET /rules HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"));
    assert_eq!([get("gate.internal"), get("GATE.internal:80"), get("localhost")], [200; 3]);
    let hostile = format!("evil\"\u{e9}<script>{}", "x".repeat(5_000));
    let status = get(&hostile);
    assert!(matches!(status, 400 | 403), "{status}");
    let long = format!("{}.example", "x".repeat(5_000));
    assert_eq!([get(&long), get("second.example")], [403; 2]);
    let line = server.process.logged("a name that is not in admin_hosts");
    assert!(line.contains("host=\"") && line.contains("peer=\"127.0.0.1:") && line.len() < 400, "{line}");
    let page = http::get(server.admin(), "/metrics", &[]).body;
    assert!(page.contains("\nspillgate_admin_refused_total{reason=\"host\"} 3\n"), "{page}");
    let lines = server.process.stderr();
    let lines = lines.iter().filter(|line| line.contains("a name that is not in admin_hosts"));
    assert_eq!(lines.count(), 1, "one line a minute");
}

#[test]
fn every_form_of_a_request_is_checked() {
    let folder = folder();
    let server = Spillgate::serve(&folder.path("rules.yaml"), &[]);
    let status = |head: &str| raw(server.admin(), &format!("{head}\r\nconnection: close\r\n\r\n"));
    assert_eq!(status("GET http://localhost/rules HTTP/1.1\r\nhost: localhost"), 200);
    assert_eq!(status("GET http://evil.example/rules HTTP/1.1\r\nhost: localhost"), 403);
    assert_eq!(status("GET http://localhost/rules HTTP/1.1\r\nhost: evil.example"), 403);
    assert_eq!(status("GET /rules HTTP/1.0"), 200, "no browser sends a request without Host");
    assert_eq!(status("GET /rules HTTP/1.0\r\nhost: evil.example"), 403);
    assert_eq!(status("GET /rules HTTP/1.1\r\nhost: localhost\r\nhost: evil.example"), 400);
    assert_eq!(status("GET /rules HTTP/1.1\r\nhost: localhost\r\norigin: http://evil.example"), 403);
    assert_eq!(status("OPTIONS /reset HTTP/1.1\r\nhost: localhost\r\norigin: http://evil.example"), 403);
    assert_eq!(status("GET /healthz HTTP/1.1\r\nhost: evil.example"), 200);
}

#[test]
fn the_log_of_the_start_warns_of_a_short_token() {
    let folder = folder();
    let short = folder.path("short").display().to_string();
    let server = Spillgate::serve(&folder.path("rules.yaml"), &["--admin-token-file", &short]);
    server.process.logged("an admin token has fewer than 16 characters");
}

#[test]
fn the_log_of_the_start_warns_once_of_an_http_listener_that_is_open_to_other_machines() {
    const WARNING: &str = "the HTTP listener is open to other machines";
    let folder = folder();
    let rules = folder.path("rules.yaml");
    // No machine has these addresses. So the server does not start, but it warns before it opens a port.
    let warnings = |flags: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_spillgate"));
        command.arg("serve").arg(&rules).args(["--http", "192.0.2.1:1", "--grpc", "off", "--admin", "off"]);
        let output = command.args(flags).output().expect("the server runs");
        String::from_utf8_lossy(&output.stderr).lines().filter(|line| line.contains(WARNING)).count()
    };
    assert_eq!(warnings(&[]), 1);
    assert_eq!(warnings(&["--http-hosts", "gate.internal"]), 0);
    let server = Spillgate::serve(&rules, &[]);
    assert!(!server.process.stderr().iter().any(|line| line.contains(WARNING)), "on loopback there is no warning");
}

#[test]
fn the_lines_of_writes_are_switched_off_by_their_target() {
    let folder = folder();
    let server = Spillgate::serve(&folder.path("rules.yaml"), &["--log-level", "info,spillgate::writes=off"]);
    let reset = || http::request(server.admin(), "POST", "/reset", &[WRITE], ASK).expect("the server answers").status;
    assert_eq!(reset(), 200);
    // The log is in order: when this later line of another target is there, a line about the write would be there too.
    crate::serve::signal(server.process.id(), "HUP");
    server.process.logged("rules reloaded");
    assert!(!server.process.stderr().iter().any(|line| line.contains("a write on")), "{:?}", server.process.stderr());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_name_of_a_request_over_http2_is_checked() {
    let folder = folder();
    let server = Spillgate::serve(&folder.path("rules.yaml"), &[]);
    let stream = tokio::net::TcpStream::connect(server.admin()).await.expect("the server listens");
    let (mut client, connection) = h2::client::handshake(stream).await.expect("the server speaks HTTP/2");
    tokio::spawn(connection);
    for (authority, host, expected) in [
        ("localhost", None, 200),
        ("[::1]:6070", None, 200),
        ("evil.example", None, 403),
        ("localhost", Some("localhost"), 200),
        ("localhost", Some("evil.example"), 403),
        ("evil.example", Some("localhost"), 403),
    ] {
        let mut request = ::http::Request::get(format!("http://{authority}/rules"));
        if let Some(host) = host {
            request = request.header("host", host);
        }
        let request = request.body(()).expect("the request is valid");
        let (answer, _) = client.send_request(request, true).expect("it is sent");
        let answer = tokio::time::timeout(DEADLINE, answer).await.expect("the server answers");
        let status = answer.expect("the stream is not reset").status().as_u16();
        assert_eq!(status, expected, "{authority} {host:?}");
    }
    let line = tokio::task::block_in_place(|| server.process.logged("a name that is not in admin_hosts"));
    assert!(line.contains("host=\"evil.example\""), "{line}");
}

/// A value can be personal data, or be chosen by an attacker. The log has only its beginning, and no control characters.
#[test]
fn blocks_and_shadow_switches_are_logged_with_what_they_apply_to() {
    let folder = Folder::new(&[("rules.yaml", &rules(5))]);
    let server = Spillgate::serve(&folder.path("rules.yaml"), &[]);
    let value = format!("\n\u{1b}[31m{}", "v".repeat(100));
    let block = serde_json::json!({"key": "user_id", "value": value, "domain": "api", "for": "10m"});
    let shadow = serde_json::json!({"rule": {"domain": "api", "path": "user_id"}, "on": true, "for": "30m"});
    let unblock = serde_json::json!({"key": "user_id", "value": value});
    for (path, body) in [("/block", block), ("/shadow", shadow), ("/unblock", unblock)] {
        let answer =
            http::request(server.admin(), "POST", path, &[WRITE], &body.to_string()).expect("the server answers");
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    }
    server.process.logged("route=\"/unblock\"");
    let lines = server.process.stderr();
    for (route, change) in [
        ("/block", "blocked for `10m`: key `user_id`, value `"),
        ("/shadow", "shadow on for `30m`: rule `user_id` of domain `api`, scope server"),
        ("/unblock", "unblocked: key `user_id`, value `"),
    ] {
        let text = format!("route=\"{route}\" change=\"{change}");
        assert!(lines.iter().any(|line| line.contains(&text)), "{text}: {lines:?}");
    }
    let longest = "v".repeat(60);
    assert!(lines.iter().all(|line| !line.contains(&longest) && !line.contains('\u{1b}')), "{lines:?}");
}
