//! Tests of `spillgate serve` from its start to its end: what the server prints when it is ready, how it reacts to signals, and
//! the reasons for which it does not start.
//!
//! Operators and service managers depend on these texts and exit codes.

mod access;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::cli_support::{Folder, command, signal};
use crate::support::process::Process;
use crate::support::spillgate::Spillgate;
use crate::support::{DEADLINE, eventually, http};
use serde_json::Value;

fn rules(limit: u32) -> String {
    format!("domain: api\ndescriptors: [{{key: user_id, rate_limit: {{unit: year, requests_per_unit: {limit}}}}}]\n")
}

const ASK: &str = r#"{"domain":"api","descriptors":[{"user_id":"7"}]}"#;

/// A request of which the client has sent only a part.
pub(crate) struct HalfSent(TcpStream);

impl HalfSent {
    pub(crate) fn to(server: SocketAddr) -> HalfSent {
        let mut stream = TcpStream::connect_timeout(&server, DEADLINE).expect("the server listens");
        stream.set_read_timeout(Some(DEADLINE)).expect("the timeout is valid");
        let head = format!(
            "POST /v1/check HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
            ASK.len()
        );
        stream.write_all(head.as_bytes()).expect("the bytes are sent");
        // The server sends `100 Continue` when the handler of the request begins to read the body.
        let mut interim = [0; 25];
        stream.read_exact(&mut interim).expect("the server sends `100 Continue`");
        assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
        stream.write_all(&ASK.as_bytes()[..10]).expect("the bytes are sent");
        HalfSent(stream)
    }

    fn finish(mut self) -> String {
        self.0.write_all(&ASK.as_bytes()[10..]).expect("the bytes are sent");
        let mut answer = String::new();
        self.0.read_to_string(&mut answer).expect("the server answers and closes the connection");
        answer
    }
}

#[test]
fn the_ready_text_has_the_addresses_and_what_was_loaded() {
    let folder = Folder::new(&[
        ("rules/a.yaml", &rules(5)),
        ("rules/b.yaml", "domain: web\ndescriptors: [{key: a, rate_limit: {unlimited: true}}]\n"),
    ]);
    let arguments =
        ["serve", "rules", "--http", "127.0.0.1:0", "--grpc", "off", "--admin", "off", "--memory-max-keys", "5k"];
    let process = Process::start("spillgate", command(&folder.path(".")).args(arguments));
    let lines: Vec<_> = (0..4).map(|_| process.line().expect("the server prints four lines")).collect();
    assert_eq!(lines[0], format!("spillgate {} is ready", env!("CARGO_PKG_VERSION")));
    let address: SocketAddr =
        lines[1].strip_prefix("  http   ").expect("this line is about HTTP").parse().expect("the line has an address");
    assert_ne!(address.port(), 0);
    assert_eq!(http::get(address, "/readyz", &[]).status, 200);
    assert_eq!(lines[2], "  rules  2 files, 2 domains (api, web), 2 rules");
    assert_eq!(lines[3], "  store  memory, 5,000 keys at most");
}

#[test]
fn as_json_the_ready_text_is_one_line() {
    let folder = Folder::new(&[("rules.yaml", &rules(5))]);
    let server = Spillgate::serve(&folder.path("rules.yaml"), &["--admin=off", "--shadow"]);
    assert_eq!(server.ready["admin"], Value::Null);
    assert_eq!(server.ready["pid"], server.process.id());
    assert_eq!(server.ready["domains"], serde_json::json!(["api"]));
    assert_eq!(
        (&server.ready["files"], &server.ready["rules"], &server.ready["warnings"]),
        (&1.into(), &1.into(), &0.into())
    );
    assert_eq!(server.ready["shadow"], true);
    assert_ne!(server.grpc().port(), 0);
}

#[test]
fn a_signal_to_end_lets_requests_in_flight_finish() {
    for name in ["TERM", "INT"] {
        let folder = Folder::new(&[("rules.yaml", &rules(5))]);
        let mut server = Spillgate::serve(&folder.path("rules.yaml"), &[]);
        let request = HalfSent::to(server.http());
        signal(server.process.id(), name);
        server.process.logged("draining");
        eventually("the port is closed", || TcpStream::connect_timeout(&server.http(), DEADLINE).err());
        assert!(server.process.is_running(), "the server must wait for the request in flight");
        let answer = request.finish();
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        assert!(answer.contains(r#""remaining":4"#), "{answer}");
        assert_eq!(server.process.wait().code(), Some(0));
    }
}

#[test]
fn a_second_signal_ends_the_server_at_once() {
    let folder = Folder::new(&[("rules.yaml", &rules(5))]);
    let mut server = Spillgate::serve(&folder.path("rules.yaml"), &[]);
    let _request = HalfSent::to(server.http());
    signal(server.process.id(), "TERM");
    server.process.logged("draining");
    signal(server.process.id(), "TERM");
    assert_eq!(server.process.wait().code(), Some(3));
}

#[test]
fn a_request_that_never_ends_delays_the_end_only_for_limits_drain() {
    let folder = Folder::new(&[("rules.yaml", &rules(5))]);
    let mut server = Spillgate::serve(&folder.path("rules.yaml"), &["--limits-drain", "50ms"]);
    let _request = HalfSent::to(server.http());
    signal(server.process.id(), "TERM");
    assert_eq!(server.process.wait().code(), Some(0));
    assert!(server.process.logged("connections were cut").contains("connections=1"));
}

#[test]
fn a_silent_client_does_not_delay_the_end() {
    let folder = Folder::new(&[("rules.yaml", &rules(5))]);
    // Both time limits are ten minutes, and the test waits at most a minute. So if the server ends during the test, no
    // time limit has ended it.
    let arguments = ["--limits-receive", "10m", "--limits-drain", "10m"];
    let mut server = Spillgate::serve(&folder.path("rules.yaml"), &arguments);
    let _silent = [server.http(), server.grpc()]
        .map(|port| TcpStream::connect_timeout(&port, DEADLINE).expect("the server accepts the connection"));
    // A listener accepts its connections in order. So the answer on this later connection shows that the silent HTTP
    // connection is accepted. The silent gRPC connection is accepted when the drain begins, if not earlier.
    assert_eq!(http::get(server.http(), "/readyz", &[]).status, 200);
    signal(server.process.id(), "TERM");
    assert_eq!(server.process.wait().code(), Some(0));
}

#[test]
fn the_log_can_be_json_and_quiet() {
    let folder = Folder::new(&[("rules.yaml", &rules(5))]);
    let server = Spillgate::serve(&folder.path("rules.yaml"), &["--log-format", "json"]);
    signal(server.process.id(), "HUP");
    let line = server.process.logged("rules reloaded");
    let line: Value = serde_json::from_str(&line).expect("the line is JSON");
    assert_eq!((line["level"].as_str(), line["files"].as_u64()), (Some("INFO"), Some(1)));
    let mut quiet = Spillgate::serve(&folder.path("rules.yaml"), &["--log-level", "error"]);
    quiet.process.terminate();
    assert_eq!(quiet.process.wait().code(), Some(0));
    assert_eq!(quiet.process.stderr(), [""; 0]);
}

#[test]
fn a_bad_first_load_never_opens_a_port() {
    let folder = Folder::new(&[("rules.yaml", "domain: api\ndescriptors: [{ky: a}]\n"), ("good.yaml", &rules(5))]);
    // The test itself listens on the port. If the server opened the port before it read the files, the server would
    // print "in use" and end with code 3.
    let held = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = held.local_addr().expect("the listener has an address");
    for arguments in
        ["rules.yaml", "good.yaml rules.yaml", "good.yaml --limits-body x", "good.yaml --admin-token-file none"]
    {
        let output = folder.run(&format!("serve {arguments} --http {address} --grpc off --admin 127.0.0.1:0"));
        assert_eq!((output.code, output.stdout.as_str()), (2, ""), "{arguments}: {output:?}");
    }
}

#[test]
fn an_address_that_cannot_be_bound_is_reported_with_its_fix() {
    let folder = Folder::new(&[("rules.yaml", &rules(5)), ("file", "")]);
    let held = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let taken = held.local_addr().expect("the listener has an address").to_string();
    let port = taken.rsplit(':').next().expect("the address has a port").to_owned();
    for (address, why, fix) in [
        (taken.as_str(), "the address is in use", format!("`ss -ltnp sport = :{port}` shows it")),
        ("192.0.2.1:8080", "this machine has no such address", "choose another with --http".to_owned()),
        ("unix:none/socket", "its folder does not exist", "create the folder".to_owned()),
        ("unix:file", "a file that is not a socket exists there", "move the file away".to_owned()),
    ] {
        let output = folder.run(&format!("serve rules.yaml --http {address} --grpc off --admin off"));
        assert_eq!((output.code, output.stdout.as_str()), (3, ""), "{address}: {output:?}");
        assert!(output.stderr.contains(&format!("http cannot listen on {address}: {why}")), "{}", output.stderr);
        assert!(output.stderr.contains(&fix), "{}", output.stderr);
    }
    assert!(folder.path("file").exists());
}

/// The system sends this signal if a write goes over the limit on the size of files.
#[test]
fn a_file_that_is_too_large_does_not_end_the_server() {
    let folder = Folder::new(&[("rules.yaml", &rules(5))]);
    let mut server = Spillgate::serve(&folder.path("rules.yaml"), &[]);
    signal(server.process.id(), "XFSZ");
    assert_eq!(http::get(server.http(), "/healthz", &[]).status, 200);
    server.process.terminate();
    assert_eq!(server.process.wait().code(), Some(0));
}

#[test]
fn a_token_file_has_to_hold_a_token() {
    let folder = Folder::new(&[("rules.yaml", &rules(5)), ("empty", "\n"), ("token", "s3cret\n")]);
    folder.write("long", &"x".repeat(4097));
    for (file, why) in [
        ("none", "the admin token none cannot be read"),
        ("empty", "empty holds no token"),
        ("long", "long holds no token"),
        ("/dev/zero", "/dev/zero cannot be read: it is a device"),
    ] {
        let output = folder.run(&format!("serve rules.yaml --admin-token-file {file}"));
        assert_eq!(output.code, 2);
        assert!(output.stderr.contains(why) && output.stderr.contains("help: "), "{}", output.stderr);
    }
    let token = folder.path("token");
    let token = token.to_str().expect("the path is UTF-8");
    let server = Spillgate::serve(&folder.path("rules.yaml"), &["--admin-token-file", token]);
    assert_eq!(http::get(server.admin(), "/metrics", &[]).status, 401);
    assert_eq!(http::get(server.admin(), "/metrics", &[("authorization", "Bearer s3cret")]).status, 200);
    folder.write("same", "  s3cret");
    let same = folder.run("serve rules.yaml --admin-token-file token --admin-read-token-file same");
    assert!(same.code == 2 && same.stderr.contains("both admin tokens are the same"), "{same:?}");
    let alone = folder.run("serve rules.yaml --admin-read-token-file token");
    assert!(alone.code == 2 && alone.stderr.contains("needs `admin_token_file`"), "{alone:?}");
    for name in ["a:1", "http://a", "a/b", "ä", "*.a", &"a".repeat(254)] {
        let wrong = folder.run(&format!("serve rules.yaml --admin-hosts {name}"));
        assert!(wrong.code == 2 && wrong.stderr.contains("is not the name of a host"), "{wrong:?}");
    }
}

#[test]
fn a_unix_socket_is_served_and_removed() {
    let folder = Folder::new(&[("rules.yaml", &rules(5))]);
    let path = folder.path("http.sock");
    let listen = format!("unix:{}", path.display());
    let mut server = Spillgate::serve(&folder.path("rules.yaml"), &["--http", &listen, "--grpc=off"]);
    assert_eq!(server.ready["http"], listen.as_str());
    let mut stream = UnixStream::connect(&path).expect("the server listens");
    stream.set_read_timeout(Some(DEADLINE)).expect("the timeout is valid");
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").expect("the bytes are sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the server answers");
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    let output = folder.run(&format!("serve rules.yaml --http {listen} --grpc off --admin off"));
    assert!(output.code == 3 && output.stderr.contains("another process listens there"), "{output:?}");
    server.process.terminate();
    assert_eq!(server.process.wait().code(), Some(0));
    assert!(!path.exists());
}

#[test]
fn settings_reach_the_server() {
    let folder = Folder::new(&[("rules.yaml", &rules(1))]);
    let shadow = Spillgate::serve(&folder.path("rules.yaml"), &["--shadow"]);
    let statuses = |server: &Spillgate| {
        let ask = || http::request(server.http(), "POST", "/v1/check", &[], ASK).expect("the server answers").status;
        [ask(), ask()]
    };
    assert_eq!(statuses(&shadow), [200, 200]);
    let strict = Spillgate::serve(&folder.path("rules.yaml"), &["--headers", "x-ratelimit", "--limits-body", "64"]);
    assert_eq!(statuses(&strict), [200, 429]);
    let long = format!("{ASK}{}", " ".repeat(64));
    let answer = http::request(strict.http(), "POST", "/v1/check", &[], &long).expect("the server answers");
    assert_eq!(answer.status, 413);
    let answer = http::request(strict.http(), "POST", "/v1/check", &[], ASK).expect("the server answers");
    assert_eq!(answer.number("x-ratelimit-limit"), 1);
    assert!(Duration::from_secs(answer.number("retry-after")) > Duration::ZERO);
}

#[test]
fn compat_as_a_setting_applies_to_all_files() {
    // With `compat: envoy`, spillgate does what Envoy's reference rate limit server does. The first rule of the file
    // whose wildcard matches wins, and a request that one descriptor refuses is still charged to its other descriptors.
    let text = "domain: api
descriptors:
  - {key: path, value: '/a*', rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: path, value: '/api*', rate_limit: {unit: year, requests_per_unit: 7}}
  - {key: user_id, rate_limit: {unit: year, requests_per_unit: 5}}
";
    let folder = Folder::new(&[("rules.yaml", text)]);
    let remaining = |flags: &[&str]| {
        let server = Spillgate::serve(&folder.path("rules.yaml"), flags);
        let ask = |descriptors: &str| {
            let body = format!(r#"{{"domain":"api","descriptors":[{descriptors}]}}"#);
            let answer = http::request(server.http(), "POST", "/v1/check", &[], &body).expect("the server answers");
            let answer: Value = serde_json::from_str(&answer.body).expect("the answer is JSON");
            (answer["limit"].as_u64(), answer["remaining"].as_u64())
        };
        let by_path = ask(r#"{"path":"/api/1"}"#);
        (by_path, [(); 2].map(|()| ask(r#"{"path":"/a"},{"user_id":"7"}"#)), ask(r#"{"user_id":"7"}"#))
    };
    let of = |limit, left| (Some(limit), Some(left));
    assert_eq!(remaining(&[]), (of(7, 6), [of(1, 0), of(1, 0)], of(5, 3)));
    assert_eq!(remaining(&["--compat", "envoy"]), (of(1, 0), [of(1, 0), of(1, 0)], of(5, 2)));
    let settings = folder.path("s.yaml");
    folder.write("s.yaml", "compat: envoy\n");
    let settings = settings.to_str().expect("the path is UTF-8");
    assert_eq!(remaining(&["--config", settings]).2, of(5, 2));
    let output = folder.run("validate rules.yaml -c s.yaml");
    assert!(
        output.stderr.contains("can never match: `path=/a*` comes first") && output.stdout.contains("1 warning"),
        "{output:?}"
    );
}

#[test]
fn a_reset_of_a_key_in_the_sketch_of_a_full_store_is_an_error() {
    let text = "domain: api\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 10}}]\n";
    let folder = Folder::new(&[("rules.yaml", text)]);
    let arguments = ["--memory-max-keys", "1", "--memory-on-full", "sketch"];
    let server = Spillgate::serve(&folder.path("rules.yaml"), &arguments);
    let check = |body: &str| http::request(server.http(), "POST", "/v1/check", &[], body).expect("the server answers");
    for user in ["ann", "bob"] {
        let body = format!(r#"{{"domain":"api","descriptors":[{{"user":"{user}"}}]}}"#);
        assert_eq!(check(&body).status, 200);
        let reset = http::request(server.admin(), "POST", "/reset", &[("x-spillgate-admin", "1")], &body)
            .expect("the server answers");
        match user {
            "ann" => assert!(reset.status == 200 && reset.body.starts_with(r#"{"reset":1,"#), "{}", reset.body),
            _ => assert!(reset.status == 400 && reset.body.contains("raise memory.max_keys"), "{}", reset.body),
        }
        assert_eq!(check(&body).status, 200);
    }
}

#[test]
fn a_full_store_with_a_sketch_refuses_reservations_of_new_keys_and_says_why() {
    let text = "domain: api\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 100, algorithm: token_bucket}}]\n";
    let folder = Folder::new(&[("rules.yaml", text)]);
    // With a maximum of two keys, the store has capacity for one more state. The reservation needs two: one for the
    // limit, and one for the record.
    for max_keys in ["1", "2"] {
        let arguments = ["--memory-max-keys", max_keys, "--memory-on-full", "sketch", "--memory-sketch", "1MiB"];
        let server = Spillgate::serve(&folder.path("rules.yaml"), &arguments);
        let ask = |path: &str, user: &str, more: &str| {
            let body = format!(r#"{{"domain":"api","descriptors":[{{"user":"{user}"}}]{more}}}"#);
            http::request(server.http(), "POST", path, &[], &body).expect("the server answers")
        };
        assert_eq!(ask("/v1/check", "ann", "").status, 200);
        for user in ["bob", "eve", "joe", "max", "sue"] {
            let refused = ask("/v1/reserve", user, r#","estimate":10"#);
            assert_eq!(refused.status, 429, "{}", refused.body);
            assert!(refused.body.contains("the memory for counts is full"), "{}", refused.body);
            let left = ask("/v1/check", user, r#","cost":0"#);
            assert!(left.body.contains(r#""remaining":100"#), "a refusal takes nothing: {}", left.body);
        }
    }
}

#[test]
fn expired_counts_are_removed_while_nobody_asks() {
    let rules = "domain: api\ndescriptors: [{key: user_id, rate_limit: {unit: second, requests_per_unit: 5}}]\n";
    let folder = Folder::new(&[("rules.yaml", rules)]);
    let server = Spillgate::serve(&folder.path("rules.yaml"), &[]);
    let asked: Vec<String> =
        (0..200).map(|i| format!(r#"{{"domain":"api","descriptors":[{{"user_id":"{i}"}}]}}"#)).collect();
    let body = format!("[{}]", asked.join(","));
    let answer = http::request(server.http(), "POST", "/v1/check", &[], &body).expect("the server answers");
    assert_eq!(answer.status, 200, "{answer:?}");
    // No request follows. Reading the metrics removes nothing.
    eventually("all 200 keys are removed", || {
        let page = http::get(server.admin(), "/metrics", &[]).body;
        page.lines().any(|line| line == "spillgate_store_expired_keys_total 200").then_some(())
    });
}
