//! Tests with a real Envoy in front of a real upstream. Envoy uses the documented configuration, deploy/envoy/envoy.yaml.
//!
//! Users copy this configuration. Envoy must refuse each request that spillgate refuses. When spillgate is down, Envoy must
//! follow its own setting `failure_mode_deny`.

#![allow(clippy::print_stdout, reason = "`make show-envoy` shows the answers")]
#![allow(clippy::disallowed_methods, reason = "the clock shows when Envoy should learn of a server")]

mod certificates;
mod replaced;

use crate::support;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use crate::support::http::{Response, Upstream, get, get_from, get_with_bytes};
use crate::support::process::Process;
use crate::support::spillgate::Spillgate;
use serde_json::Value;
use tempfile::TempDir;

/// The limit of each user in deploy/envoy/rules.yaml, in requests an hour.
const LIMIT: u64 = 5;
/// The limit of each client address for the log-in page, in requests an hour.
const LOGIN_LIMIT: u64 = 20;
const HOUR_S: u64 = 3600;

struct Envoy {
    _process: Process,
    ingress: SocketAddr,
    admin: SocketAddr,
    _folder: TempDir,
}

impl Envoy {
    /// Starts Envoy with deploy/envoy/envoy.yaml and the ports of the test. Each pair in `changes` is one more
    /// replacement in this file: the old text and the new text.
    fn start(upstream: u16, spillgate: u16, changes: &[(&str, &str)]) -> Envoy {
        let mut text =
            fs::read_to_string(support::root().join("deploy/envoy/envoy.yaml")).expect("the configuration can be read");
        let ports = [(9901, 0), (10000, 0), (9000, upstream), (8081, spillgate)];
        let ports =
            ports.map(|(documented, port)| (format!("port_value: {documented} "), format!("port_value: {port} ")));
        // On a busy machine, spillgate can need longer for an answer than the timeout of 50 ms in envoy.yaml.
        let timeout = [("timeout: 0.05s", "timeout: 30s")];
        let ports = ports.iter().map(|(from, to)| (from.as_str(), to.as_str()));
        for (from, to) in ports.chain(timeout).chain(changes.iter().copied()) {
            assert_eq!(text.matches(from).count(), 1, "`{from}` occurs once in envoy.yaml");
            text = text.replace(from, to);
        }
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let (configuration, address) = (folder.path().join("envoy.yaml"), folder.path().join("admin"));
        fs::write(&configuration, text).expect("the file can be written");
        let mut command = Command::new(binary());
        command.args(["--disable-hot-restart", "--concurrency", "1", "--log-level", "warning"]);
        // Envoy reads a list of servers from a file only if it has these two names.
        command.args(["--service-node", "test", "--service-cluster", "test"]);
        command.arg("--config-path").arg(configuration).arg("--admin-address-path").arg(&address);
        let mut process = Process::start("envoy", &mut command);
        let admin = support::eventually("Envoy's admin address", || {
            assert!(process.is_running(), "Envoy ended: {:?}", process.stderr());
            fs::read_to_string(&address).ok()?.parse().ok()
        });
        let ingress = support::eventually("Envoy's listener", || ingress(admin));
        Envoy { _process: process, ingress, admin, _folder: folder }
    }

    fn get_as(&self, user: &str) -> Response {
        get(self.ingress, "/", &[("x-user-id", user)])
    }

    /// Returns a counter of Envoy's rate limit filter. Envoy shows this counter among the counters of the cluster
    /// `application`.
    fn counter(&self, name: &str) -> u64 {
        let stats = get(self.admin, "/stats?format=json", &[]).body;
        let stats: Value = serde_json::from_str(&stats).expect("the counters are JSON");
        let name = format!("cluster.application.ratelimit.{name}");
        let found =
            stats["stats"].as_array().and_then(|all| all.iter().find(|one| one["name"] == name.as_str()).cloned());
        found.and_then(|one| one["value"].as_u64()).unwrap_or(0)
    }
}

/// Returns the path of the Envoy program. The Python package of Envoy also has a start script. The tests do not use it,
/// because this script would be an extra process between the test and Envoy.
fn binary() -> PathBuf {
    let libraries = support::from_environment("envoy", "lib");
    let pythons = fs::read_dir(&libraries).expect("the folder can be read").flatten().map(|entry| entry.path());
    let mut binaries = pythons.map(|python| python.join("site-packages/envoy/_bin/envoy")).filter(|path| path.exists());
    binaries.next().unwrap_or_else(|| panic!("no Envoy in {}: run scripts/setup.sh", libraries.display()))
}

fn ingress(admin: SocketAddr) -> Option<SocketAddr> {
    let listeners: Value = serde_json::from_str(&get(admin, "/listeners?format=json", &[]).body).ok()?;
    let address = &listeners["listener_statuses"][0]["local_address"]["socket_address"];
    let port = u16::try_from(address["port_value"].as_u64()?).ok()?;
    let ready = get(admin, "/ready", &[]).status == 200;
    ready.then(|| SocketAddr::new([127, 0, 0, 1].into(), port))
}

fn spillgate(arguments: &[&str]) -> Spillgate {
    Spillgate::serve(&support::root().join("deploy/envoy/rules.yaml"), arguments)
}

/// Uses up the limit of a new user, and returns the answer to one more request. Returns `None` if the hour ended during these
/// requests.
fn spend(envoy: &Envoy, upstream: &Upstream, user: &str) -> Option<Response> {
    let mut reset_s = HOUR_S;
    let mut answered = Vec::new();
    let before = upstream.seen();
    for _ in 0..=LIMIT {
        let response = envoy.get_as(user);
        let now_s = response.number("x-ratelimit-reset");
        if now_s > reset_s {
            return None;
        }
        reset_s = now_s;
        answered.push(response);
    }
    let refused = answered.pop()?;
    for (taken, response) in (1..).zip(&answered) {
        assert_eq!((response.status, response.body.as_str()), (200, Upstream::BODY), "{response:?}");
        assert_eq!(response.number("x-ratelimit-remaining"), LIMIT - taken, "{response:?}");
        assert_eq!(response.header("retry-after"), None, "{response:?}");
    }
    assert_eq!(upstream.seen() - before, answered.len(), "a refused request never reaches the upstream");
    Some(refused)
}

fn refused_within_one_hour(envoy: &Envoy, upstream: &Upstream, case: &str) -> Response {
    let refused = (1..=3).find_map(|attempt| spend(envoy, upstream, &format!("{case}-{attempt}")));
    refused.expect("at least one of three attempts must end before a new hour begins")
}

#[test]
fn envoy_refuses_what_spillgate_refuses() {
    let (upstream, spillgate) = (Upstream::start(), spillgate(&[]));
    let envoy = Envoy::start(upstream.port(), spillgate.grpc().port(), &[]);

    let refused = refused_within_one_hour(&envoy, &upstream, "refused");
    println!("{refused:#?}");
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("x-ratelimit-limit"), Some(r#"5, 5;w=3600;name="per_user""#));
    assert_eq!(refused.number("x-ratelimit-remaining"), 0);
    let retry_after_s = refused.number("retry-after");
    assert!((1..=HOUR_S).contains(&retry_after_s), "{retry_after_s}");
    assert!(refused.header("x-envoy-ratelimited").is_some());
    assert_eq!(envoy.counter("over_limit"), 1);
    assert_eq!(envoy.counter("error"), 0);

    let other = envoy.get_as("another-user");
    assert_eq!((other.status, other.number("x-ratelimit-remaining")), (200, LIMIT - 1));
    let anonymous = get(envoy.ingress, "/", &[]);
    assert_eq!((anonymous.status, anonymous.header("x-ratelimit-limit")), (200, None));
    let login = get(envoy.ingress, "/login", &[]);
    assert_eq!((login.status, login.number("x-ratelimit-remaining")), (200, LOGIN_LIMIT - 1));
}

/// Without `duration_until_reset` in the answer of spillgate, Envoy would write `x-ratelimit-reset: 0`. A client would
/// read this 0 as "ask again at once".
#[test]
fn envoy_sends_a_banned_user_the_end_of_the_window() {
    let rules = tempfile::NamedTempFile::with_suffix(".yaml").expect("a temporary file can be made");
    let banned = "{key: user_id, rate_limit: {unit: day, requests_per_unit: 0}}";
    fs::write(rules.path(), format!("domain: web\ndescriptors: [{banned}]\n")).expect("the file can be written");
    let (upstream, spillgate) = (Upstream::start(), Spillgate::serve(rules.path(), &[]));
    let envoy = Envoy::start(upstream.port(), spillgate.grpc().port(), &[]);
    let refused = envoy.get_as("banned");
    assert_eq!((refused.status, refused.number("x-ratelimit-remaining")), (429, 0), "{refused:?}");
    for field in ["x-ratelimit-reset", "retry-after"] {
        assert!((1..=24 * HOUR_S).contains(&refused.number(field)), "{field}: {refused:?}");
    }
}

#[test]
fn no_spelling_of_a_path_avoids_its_limit() {
    let (upstream, spillgate) = (Upstream::start(), spillgate(&[]));
    let envoy = Envoy::start(upstream.port(), spillgate.grpc().port(), &[]);
    let long = format!("/login?{}", "x".repeat(3_000));
    let spellings = [
        "/login",
        "/login?x=1",
        "//login",
        "/login/",
        "/login/?x",
        "/./login",
        "/x/../login",
        "/%2Flogin",
        "/%6cogin",
        "/login;x",
        &long,
    ];
    for taken in 1..=LOGIN_LIMIT {
        let spelling = spellings[taken as usize % spellings.len()];
        let passed = get(envoy.ingress, spelling, &[]);
        let left = passed.number("x-ratelimit-remaining");
        assert_eq!((passed.status, left), (200, LOGIN_LIMIT - taken), "{spelling:.20}");
    }
    for spelling in spellings {
        assert_eq!(get(envoy.ingress, spelling, &[]).status, 429, "{spelling:.20}");
    }
    let neighbour = get_from([127, 0, 0, 2].into(), envoy.ingress, "/login");
    assert_eq!(neighbour.status, 200, "one client does not use up the limit of another client");
    for other in ["/", "/loginx", "/x/login", "/?/login"] {
        let passed = get(envoy.ingress, other, &[]);
        assert_eq!((passed.status, passed.header("x-ratelimit-limit")), (200, None), "{other}");
    }
    assert_eq!(envoy.counter("error"), 0);
}

/// The configuration sends the client's own field `x-user-id`. A value that made the whole call fail would also switch off
/// the limit of the log-in page, because Envoy allows a request whose call fails.
#[test]
fn no_value_of_a_client_switches_off_another_limit() {
    let (upstream, spillgate) = (Upstream::start(), spillgate(&[]));
    let envoy = Envoy::start(upstream.port(), spillgate.grpc().port(), &[]);
    for _ in 0..LOGIN_LIMIT {
        assert_eq!(get(envoy.ingress, "/login", &[]).status, 200);
    }
    let long = vec![b'x'; 50_000];
    for value in [&b"\xff"[..], b"7\xc3", b"", b"\xe2\x82\xac", &long, &[0xff; 50_000]] {
        let refused = get_with_bytes(envoy.ingress, "/login", "x-user-id", value);
        assert_eq!(refused.status, 429, "{:?}", &value[..value.len().min(9)]);
    }
    let statuses: Vec<_> =
        (0..=2 * LIMIT).map(|_| get_with_bytes(envoy.ingress, "/", "x-user-id", b"\xff").status).collect();
    assert!(statuses.contains(&429), "such a value has a limit of its own: {statuses:?}");
    assert_eq!((envoy.counter("error"), envoy.counter("failure_mode_allowed")), (0, 0));
}

#[test]
fn a_long_query_does_not_avoid_the_limit_of_its_user() {
    let (upstream, spillgate) = (Upstream::start(), spillgate(&[]));
    let envoy = Envoy::start(upstream.port(), spillgate.grpc().port(), &[]);
    assert_eq!(refused_within_one_hour(&envoy, &upstream, "long").status, 429);
    let path = format!("/?{}", "x".repeat(3_000));
    // At least one of the users `long-1` to `long-3` has used up its limit in this hour, and is refused with any path.
    let users = (1..=3).map(|attempt| format!("long-{attempt}"));
    let statuses: Vec<u16> = users.map(|user| get(envoy.ingress, &path, &[("x-user-id", &user)]).status).collect();
    assert!(statuses.contains(&429), "{statuses:?}");
    assert_eq!((envoy.counter("error"), envoy.counter("failure_mode_allowed")), (0, 0));
}

#[test]
fn envoy_allows_requests_when_spillgate_is_killed() {
    let (upstream, mut spillgate) = (Upstream::start(), spillgate(&[]));
    let envoy = Envoy::start(upstream.port(), spillgate.grpc().port(), &[]);
    assert_eq!(refused_within_one_hour(&envoy, &upstream, "before").status, 429);

    spillgate.process.kill();
    let before = upstream.seen();
    for _ in 0..20 {
        let open = envoy.get_as("before-1");
        assert_eq!((open.status, open.body.as_str()), (200, Upstream::BODY), "{open:?}");
    }
    assert_eq!(upstream.seen() - before, 20);
    assert_eq!(envoy.counter("failure_mode_allowed"), 20);
    println!("spillgate killed, failure_mode_deny: false: Envoy allowed 20 of 20 requests");
}

#[test]
fn envoy_can_refuse_requests_when_spillgate_is_killed() {
    // The port is reserved, so it is still free when the server is started again.
    let address = format!("127.0.0.1:{}", spillgate_testkit::free_port());
    let (upstream, mut spillgate) = (Upstream::start(), spillgate(&["--grpc", &address]));
    let closed = [("failure_mode_deny: false", "failure_mode_deny: true")];
    let envoy = Envoy::start(upstream.port(), spillgate.grpc().port(), &closed);
    assert_eq!(refused_within_one_hour(&envoy, &upstream, "before").status, 429);

    spillgate.process.kill();
    let before = upstream.seen();
    for _ in 0..20 {
        let refused = envoy.get_as("a-new-user");
        assert_eq!(refused.status, 503, "the status is that of `status_on_error` in envoy.yaml: {refused:?}");
    }
    assert_eq!(upstream.seen(), before, "no request reaches the upstream");
    println!("spillgate killed, failure_mode_deny: true: Envoy answered 20 of 20 requests with 503");

    let _again = crate::envoy::spillgate(&["--grpc", &address]);
    support::eventually("Envoy asking spillgate again", || (envoy.get_as("later").status == 200).then_some(()));
    assert_eq!(refused_within_one_hour(&envoy, &upstream, "after").status, 429);
    println!("spillgate started again: Envoy enforces the limits again");
}
