//! Tests of the health listener, and of the command that asks it.
//!
//! Everyone who reaches this listener can read it, so the tests show that it has nothing else, and no text of a caller.

#![allow(clippy::unwrap_used, reason = "a panic makes the test fail")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

use crate::cli_support::{Folder, signal};
use crate::support::http::{self, Response};
use crate::support::spillgate::Spillgate;
use crate::support::{DEADLINE, root};

const RULES: &str = "domain: api
descriptors:
  - {key: user_id, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 5}}
";
const ASK: &str = r#"{"domain":"api","descriptors":[{"user_id":"s3cret-name"}]}"#;
const ROUTES: [&str; 4] = ["/healthz", "/readyz", "/healthcheck", "/metrics"];

fn serve(arguments: &[&str]) -> (Folder, Spillgate) {
    let folder = Folder::new(&[("rules.yaml", RULES)]);
    let arguments: Vec<_> = ["--health", "127.0.0.1:0"].into_iter().chain(arguments.iter().copied()).collect();
    let server = Spillgate::serve(&folder.path("rules.yaml"), &arguments);
    (folder, server)
}

fn send(server: SocketAddr, method: &str, path: &str) -> Response {
    http::request(server, method, path, &[], "").unwrap()
}

#[test]
fn the_health_listener_has_its_routes_and_no_other() {
    let (_folder, server) = serve(&[]);
    for (path, body) in [("/healthz", "ok\n"), ("/readyz", "ready\n"), ("/healthcheck", "OK")] {
        let answer = send(server.health(), "GET", path);
        assert_eq!((answer.status, answer.body.as_str()), (200, body), "{path}");
    }
    let metrics = send(server.health(), "GET", "/metrics");
    assert_eq!((metrics.status, metrics.header("content-type").unwrap().starts_with("text/plain")), (200, true));
    assert!(metrics.body.contains("spillgate_connections_accepted_total"), "{}", metrics.body);
    for path in ROUTES {
        assert_eq!(send(server.health(), "POST", path).status, 405, "{path}");
    }
    let of_admin = spillgate_admin::routes().into_iter().map(|(method, path, _)| (method, path));
    let of_http = spillgate_http::routes().map(|(path, methods)| (methods.split(',').next().unwrap(), path));
    let others =
        [("GET", "/ui/page.js"), ("GET", "/healthz/"), ("GET", "//metrics"), ("GET", "/METRICS"), ("GET", "/x")];
    let mut tried = 0;
    for (method, path) in of_admin.chain(of_http).chain(others).filter(|(_, path)| !ROUTES.contains(path)) {
        let answer = send(server.health(), method, &path.replace("{name}", "eu"));
        assert_eq!(answer.status, 404, "{method} {path}: {answer:?}");
        assert!(answer.body.contains("has only GET /healthz, /readyz, /healthcheck and /metrics"), "{}", answer.body);
        tried += 1;
    }
    assert!(tried > 30, "{tried}");
}

/// Without a token, the admin listener refuses the same requests.
#[test]
fn the_health_listener_asks_for_no_token_and_no_name() {
    let folder = Folder::new(&[("rules.yaml", RULES), ("token", "a-token-of-operators\n")]);
    let token = folder.path("token");
    let server = Spillgate::serve(
        &folder.path("rules.yaml"),
        &["--health", "127.0.0.1:0", "--admin-token-file", token.to_str().unwrap()],
    );
    assert_eq!(http::get(server.admin(), "/metrics", &[]).status, 401);
    for path in ROUTES {
        let mut stream = TcpStream::connect_timeout(&server.health(), DEADLINE).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: pod-7.example\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{path}: {answer}");
    }
}

#[test]
fn metrics_of_the_health_listener_have_no_value_of_a_caller() {
    let (_folder, server) = serve(&[]);
    assert_eq!(http::request(server.http(), "POST", "/v1/check", &[], ASK).unwrap().status, 200);
    let (admin, health) = (send(server.admin(), "GET", "/metrics"), send(server.health(), "GET", "/metrics"));
    let allowed = r#"spillgate_decisions_total{domain="api",rule="user_id=s3cret-name",outcome="allowed"} 1"#;
    assert!(admin.body.contains(allowed), "{}", admin.body);
    assert!(!health.body.contains("s3cret-name"), "{}", health.body);
    let kept = r#"spillgate_limit_hits_total{domain="api",rule="user_id""#;
    assert!(admin.body.contains(kept) && health.body.contains(kept), "{}", health.body);
}

#[test]
fn the_health_listener_works_without_an_admin_listener_and_needs_an_address_of_its_own() {
    let (folder, server) = serve(&["--admin=off"]);
    assert_eq!((server.ready["admin"].clone(), send(server.health(), "GET", "/readyz").status), (Value::Null, 200));
    let same = folder.run("serve rules.yaml --health 127.0.0.1:6070");
    assert!(same.code == 2 && same.stderr.contains("`health` and `admin` have the same address"), "{same:?}");
    let alone = folder.run("serve rules.yaml --http off --grpc off --health 127.0.0.1:0");
    assert!(alone.code == 2 && alone.stderr.contains("all listeners for clients (http, grpc) are off"), "{alone:?}");
}

#[test]
fn the_command_says_in_one_line_whether_a_server_is_ready() {
    let (folder, mut server) = serve(&["--limits-drain-delay", "10m"]);
    let (health, admin) = (server.health().to_string(), server.admin().to_string());
    let run = |arguments: &str, variables: &[(&str, &str)]| {
        let arguments: Vec<_> = ["health"].into_iter().chain(arguments.split_whitespace()).collect();
        let output = folder.run_with(&arguments, variables);
        assert_eq!((output.stderr.as_str(), output.stdout.lines().count()), ("", 1), "{output:?}");
        (output.code, output.stdout.trim_end().to_owned())
    };
    let ready = |url: &str| (0, format!("http://{url}/readyz answered 200: ready"));
    assert_eq!(run(&health, &[]), ready(&health));
    assert_eq!(run("", &[("SPILLGATE_HEALTH", &health)]), ready(&health));
    assert_eq!(run("", &[("SPILLGATE_HEALTH", "off"), ("SPILLGATE_ADMIN_URL", &admin)]), ready(&admin));
    let json: Value = serde_json::from_str(&run(&format!("{health} --json"), &[]).1).unwrap();
    let expected =
        serde_json::json!({"url": format!("http://{health}/readyz"), "healthy": true, "status": 200, "text": "ready"});
    assert_eq!(json, expected);

    signal(server.process.id(), "TERM");
    server.process.logged("leaving");
    assert_eq!(run(&health, &[]), (1, format!("http://{health}/readyz answered 503: draining")));
    assert_eq!(run(&format!("{health} --live"), &[]), (0, format!("http://{health}/healthz answered 200: ok")));
    signal(server.process.id(), "TERM");
    assert_eq!(server.process.wait().code(), Some(0));
    let (code, line) = run(&health, &[]);
    assert!(code == 1 && line.starts_with(&format!("http://{health} cannot be reached: ")), "{line}");
    let json: Value = serde_json::from_str(&run(&format!("{health} --json"), &[]).1).unwrap();
    assert_eq!((json["healthy"].clone(), json["status"].clone()), (Value::Bool(false), Value::Null));

    for (arguments, variable) in [("nowhere", ""), ("", "localhost:1")] {
        let arguments: Vec<_> = ["health"].into_iter().chain(arguments.split_whitespace()).collect();
        let wrong = folder.run_with(&arguments, &[("SPILLGATE_HEALTH", variable)]);
        assert!(wrong.code == 2 && wrong.stderr.contains("help: "), "{wrong:?}");
    }
}

/// The files for Kubernetes agree with each other, and the server accepts them.
#[test]
fn the_files_for_kubernetes_are_valid() {
    let folder = root().join("deploy/kubernetes");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let (own, settings) = (Folder::new(&[]), folder.join("spillgate.yaml"));
    let config = settings.to_str().unwrap();
    let valid = own.run_with(&["validate", "--config", config, "--deny-warnings"], &[]);
    assert_eq!(valid.code, 0, "{valid:?}");
    let shown = own.run_with(&["serve", "--config", config, "--show-settings", "--json"], &[]).stdout;
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let value = |key: &str| shown[key]["value"].as_str().unwrap().to_owned();
    let deployment = read("deployment.yaml");
    for name in ["grpc", "health"] {
        let (_, port) = value(name).split_once(':').map(|(ip, port)| (ip.to_owned(), port.to_owned())).unwrap();
        assert!(deployment.contains(&format!("{{ name: {name}, containerPort: {port} }}")), "{name}");
    }
    let seconds = |text: String| text.trim_end_matches('s').parse::<u64>().unwrap();
    let grace =
        deployment.lines().find_map(|line| line.trim().strip_prefix("terminationGracePeriodSeconds: ")).unwrap();
    let ends = seconds(value("limits.drain_delay")) + seconds(value("limits.drain"));
    assert!(grace.parse::<u64>().unwrap() > ends, "{grace} {ends}");
    for file in ["spillgate.yaml", "rules.yaml", "deployment.yaml"] {
        assert!(read("kustomization.yaml").contains(file) && folder.join(file).exists(), "{file}");
    }
}
