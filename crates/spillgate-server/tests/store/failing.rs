//! Tests of a server while its store is down, and after the store has come back. The tests check the server's answers,
//! its readiness and its log lines.
//!
//! A rate limiter must not take down the service that it protects.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use prost::Message as _;
use spillgate_grpc::proto::envoy::service::ratelimit::v3::RateLimitResponse;
use spillgate_redis::StoreErrorKind;
use spillgate_testkit::free_port;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::time::Instant;
use tonic::Code;

use crate::cli_support::{Folder, signal};
use crate::store::doctor::sentinel;
use crate::store::fleet::{
    LONG_DEADLINE, check, client, decided, decided_by, logged, metric, request, rules, serve, until_store,
};
use crate::support::redis::{Cluster, Redis};
use crate::support::spillgate::Spillgate;
use crate::support::{eventually, http as plain_http};

/// Returns rules with one limit for each value of `on_store_failure`. The key of each rule is this value, for example
/// `deny`.
fn policies() -> Folder {
    let limit = |policy: &str| {
        format!("  - {{key: {policy}, rate_limit: {{unit: year, requests_per_unit: 4, on_store_failure: {policy}}}}}\n")
    };
    rules(&["allow", "deny", "error", "local"].map(limit).concat())
}

/// Returns the status and the text of `/readyz`. The HTTP listener and the admin listener must return the same status.
fn readiness(server: &Spillgate) -> (u16, String) {
    let [http, admin] = [server.http(), server.admin()].map(|listener| plain_http::get(listener, "/readyz", &[]));
    assert_eq!(http.status, admin.status, "{} {}", http.body, admin.body);
    (http.status, http.body)
}

fn until_ready(server: &Spillgate, status: u16, text: &str) {
    // Both listeners are asked in each try, because on a busy machine a late probe can change the state for a moment.
    eventually(&format!("/readyz says {status} {text}"), || {
        let says = |listener| {
            let answer = plain_http::get(listener, "/readyz", &[]);
            answer.status == status && answer.body.contains(text)
        };
        (says(server.http()) && says(server.admin())).then_some(())
    });
}

/// Returns the number of requests that the store did not decide.
fn failures(server: &Spillgate) -> u64 {
    let count = |class: StoreErrorKind| {
        metric(server, &format!("spillgate_store_failures_total{{class=\"{}\"}}", class.as_str()))
    };
    StoreErrorKind::ALL.iter().copied().map(count).sum()
}

/// Returns whether the gRPC health service (grpc.health.v1) reports SERVING.
fn serving(server: &Spillgate) -> bool {
    use tonic_health::pb::health_check_response::ServingStatus;
    use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
    let status = async {
        let channel =
            tonic::transport::Endpoint::from_shared(format!("http://{}", server.grpc())).expect("the address is valid");
        let channel = channel.connect().await.expect("the server listens");
        HealthClient::new(channel).check(HealthCheckRequest::default()).await.expect("the server answers").into_inner()
    };
    Runtime::new().expect("the runtime starts").block_on(status).status() == ServingStatus::Serving
}

#[test]
fn a_server_started_without_a_store_answers_by_policy_and_recovers_by_itself() {
    let (port, folder) = (free_port(), policies());
    let server = serve(&folder, &format!("redis://127.0.0.1:{port}"), &["--store-deadline", "1s"]);
    logged(&server.process, "the store cannot be used yet");
    assert_eq!(decided(server.http(), "allow", "a"), (200, "policy".to_owned()));
    assert_eq!(decided(server.http(), "deny", "a"), (429, "policy".to_owned()));
    let (status, problem) = check(server.http(), "error", "a");
    let detail = problem["detail"].as_str().unwrap_or_default();
    assert!(status == 503 && detail.contains("the store is unavailable"), "{problem}");
    // The rules allow 4 requests, and the settings say that two servers share the store. So without the store, each server
    // allows 2 requests.
    let local: Vec<_> = (0..3).map(|_| decided(server.http(), "local", "a")).collect();
    assert_eq!(local, [200, 200, 429].map(|status| (status, "local".to_owned())));
    until_ready(&server, 503, "not ready: the store has not answered for");
    assert!(!serving(&server));
    // The test sends no request until the server is ready. So the server notices by itself that the store has started.
    let redis = Redis::start_at(port, &[]);
    until_ready(&server, 200, "ready: the store answers");
    assert!(serving(&server));
    logged(&server.process, "the store decides again after");
    until_store(server.http(), "error", "b");
    assert_eq!(decided(server.http(), "local", "a"), (200, "store".to_owned()));
    assert_eq!(redis.keys(&[]).len(), 2, "the store has no keys of requests that a policy answered");
    assert_eq!(metric(&server, "spillgate_store_recoveries_total"), 1);
}

/// Starts a proxy for the port `to`. A connection for decisions begins with SCRIPT LOAD, which the proxy forwards after
/// `wait`. Returns its port, and the runtime on which it runs.
fn slow_to_connect(to: u16, wait: Duration) -> (u16, Runtime) {
    let runtime = Runtime::new().expect("the runtime starts");
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("there is a free port");
    let port = listener.local_addr().expect("the listener has an address").port();
    runtime.spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let server = TcpStream::connect(("127.0.0.1", to)).await.expect("the server listens");
                let ((mut asked, mut answered), (mut replies, mut commands)) =
                    (client.into_split(), server.into_split());
                tokio::spawn(async move { tokio::io::copy(&mut replies, &mut answered).await });
                let mut bytes = vec![0; 1 << 16];
                while let Ok(read @ 1..) = asked.read(&mut bytes).await {
                    if bytes[..read].windows(6).any(|word| word == b"SCRIPT") {
                        tokio::time::sleep(wait).await;
                    }
                    if commands.write_all(&bytes[..read]).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    (port, runtime)
}

/// The ports were open before the store was connected. So a store that works did not decide the first requests, although
/// `/readyz` said that the server was ready.
#[test]
fn the_ports_open_after_the_first_answer_of_the_store() {
    let limits = "  - {key: user, rate_limit: {unit: year, requests_per_unit: 1000}}\n";
    let (redis, folder) = (Redis::start(), rules(limits));
    let (port, _runtime) = slow_to_connect(redis.port(), Duration::from_millis(300));
    // A request has less time than a connection needs, so without the wait at the start the store does not decide the first
    // request. On a busy machine, the connection can take longer than the server waits. So one good start of four is enough.
    let is_good = (0..4).any(|_| {
        let server = serve(&folder, &format!("redis://127.0.0.1:{port}"), &["--store-deadline", "200ms"]);
        (0..20).all(|i| decided(server.http(), "user", &i.to_string()).1 == "store")
    });
    assert!(is_good, "the store decides all of the first requests");
}

/// The setting `on_store_failure` applies to rules that do not set it, and to limits that come with a request. No limit
/// in this test has the policy `local`, so the server does not need to know how many servers there are.
#[test]
fn the_setting_on_store_failure_applies_to_all_limits_without_their_own() {
    let folder = rules(
        "  - {key: plain, rate_limit: {unit: year, requests_per_unit: 4}}\n  \
           - {key: allow, rate_limit: {unit: year, requests_per_unit: 4, on_store_failure: allow}}\n",
    );
    let url = format!("redis://127.0.0.1:{}", free_port());
    let arguments = ["--store", &url, "--on-store-failure", "deny", "--allow-http", "override"];
    let server = Spillgate::serve(&folder.path("rules.yaml"), &arguments);
    assert_eq!(decided(server.http(), "plain", "a"), (429, "policy".to_owned()));
    assert_eq!(decided(server.http(), "allow", "a"), (200, "policy".to_owned()));
    let status = |path: &str, body: &str| {
        plain_http::request(server.http(), "POST", path, &[], body).expect("the server answers").status
    };
    assert_eq!(status("/v1/hit", r#"{"bucket":"mail","key":"bob","limit":5,"window_ms":60000}"#), 429);
    let entries = r#""entries":[{"key":"allow","value":"b"}]"#;
    let with_limit =
        format!(r#"{{"domain":"api","descriptors":[{{{entries},"limit":{{"requestsPerUnit":5,"unit":"YEAR"}}}}]}}"#);
    assert_eq!(status("/json", &with_limit), 429);
    assert!(
        !server.process.stderr().iter().any(|line| line.contains("expected_nodes")),
        "{:?}",
        server.process.stderr()
    );
}

#[test]
fn over_grpc_the_policy_error_is_unavailable_so_that_the_proxy_decides() {
    let folder = policies();
    let server = serve(&folder, &format!("redis://127.0.0.1:{}", free_port()), &[]);
    let runtime = Runtime::new().expect("the runtime starts");
    let code = |key: &str| {
        let answer = async { client(&server).await.should_rate_limit(request(key, &["a"])).await };
        runtime.block_on(answer).map(|answer| answer.into_inner().overall_code as u8).map_err(|status| status.code())
    };
    assert_eq!(["allow", "deny", "error", "local"].map(code), [Ok(1), Ok(2), Err(Code::Unavailable), Ok(1)]);
}

#[test]
fn a_server_whose_limits_all_have_a_fallback_is_ready_without_the_store() {
    let folder = rules("  - {key: a, rate_limit: {unit: day, requests_per_unit: 1}}\n");
    let server = serve(&folder, &format!("redis://127.0.0.1:{}", free_port()), &[]);
    until_ready(&server, 200, "ready: the store has not answered for");
    assert!(readiness(&server).1.contains("on_store_failure: local 1"));
    assert!(serving(&server));
    // Readiness depends on the rules, so a reload can change the readiness.
    let error =
        "domain: api\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1, on_store_failure: error}}]";
    folder.write("rules.yaml", error);
    signal(server.process.id(), "HUP");
    until_ready(&server, 503, "not ready");
}

/// When this value is dropped, the threads that send requests stop. A test that fails also drops it, so the threads always stop.
struct Done<'d>(&'d AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn every_request_is_answered_while_the_store_is_killed_under_load() {
    let mut redis = Redis::start();
    let folder = rules("  - {key: user, rate_limit: {unit: year, requests_per_unit: 4}}\n");
    // On a busy machine, a healthy store needs more than the deadline of 10 ms that is the default.
    let server = serve(&folder, &redis.url(), &["--store-deadline", "200ms"]);
    until_ready(&server, 200, "ready: the store answers");
    let start = Instant::now();
    let (done, seen) = (AtomicBool::new(false), parking_lot::Mutex::new(BTreeSet::new()));
    thread::scope(|scope| {
        for number in 0..8 {
            let (http, done, seen) = (server.http(), &done, &seen);
            scope.spawn(move || {
                let mut sent = 0_u32;
                while !done.load(Ordering::Relaxed) {
                    sent += 1;
                    let (status, source) = decided(http, "user", &format!("{number}-{sent}"));
                    assert_eq!(status, 200, "the first request of a user is always allowed: {source}");
                    seen.lock().insert(source);
                }
            });
        }
        let done = Done(&done);
        let saw = |source: &str| {
            eventually(&format!("an answer has the source {source}"), || seen.lock().contains(source).then_some(()))
        };
        saw("store");
        redis.kill();
        saw("local");
        until_ready(&server, 200, "has not answered for");
        // `/readyz` learns of the failure from the circuit breaker, but the log line comes only with the next probe.
        logged(&server.process, "the store does not answer");
        redis.start_again();
        until_ready(&server, 200, "the store answers");
        seen.lock().clear();
        saw("store");
        drop(done);
    });
    logged(&server.process, "the store decides again after");
    assert!(failures(&server) > 0);
    assert!(decided_by(&server, "local") > 0);
    eventually("the circuit is closed", || (metric(&server, "spillgate_store_circuit") == 0).then_some(()));
    let log = server.process.stderr();
    let failure_lines = log.iter().filter(|line| line.contains("the store did not decide"));
    let classes: Vec<_> =
        failure_lines.filter_map(|line| Some(line.split_once("class=")?.1.split(' ').next()?.to_owned())).collect();
    let most = 1 + start.elapsed().as_secs() / 10;
    for class in &classes {
        let lines = classes.iter().filter(|other| *other == class).count() as u64;
        assert!(lines <= most, "the log has a line for each class of failure every ten seconds: {classes:?}");
    }
    let line = |text: &str| log.iter().position(|line| line.contains(text));
    let consequence = line("did not decide: it failed, and requests");
    // The cause is the failure of a request or of a probe (the server's own health check of the store). This failure
    // opens the circuit breaker. The consequence is that the open circuit breaker refuses requests. If no request was
    // in flight when the connections ended, only the probe fails.
    let causes = [
        "the store does not answer",
        "did not decide: the connection to it ended",
        "did not decide: it did not answer in time",
    ];
    let cause = causes.into_iter().filter_map(line).min();
    assert!(
        consequence.is_none_or(|at| cause.is_some_and(|cause| cause < at)),
        "the log names the cause before its consequence: {log:?}"
    );
}

#[test]
fn a_store_that_stops_is_noticed_without_traffic_and_so_is_its_return() {
    let (redis, folder) = (Redis::start(), policies());
    let server = serve(&folder, &redis.url(), &["--store-deadline", "100ms"]);
    until_ready(&server, 200, "ready: the store answers");
    signal(redis.id(), "STOP");
    until_ready(&server, 503, "not ready");
    let until_up =
        |up| eventually("the metric is right", || (metric(&server, "spillgate_store_up") == up).then_some(()));
    until_up(0);
    signal(redis.id(), "CONT");
    until_ready(&server, 200, "ready: the store answers");
    until_up(1);
    assert_eq!(failures(&server), 0, "a failed probe is not counted as a failed request");
}

/// As soon as the circuit breaker refuses a request, the server is not ready. The server does not wait until its next probe
/// (health check) of the store.
#[test]
fn the_server_is_not_ready_as_soon_as_the_circuit_opens() {
    let (mut redis, folder) = (Redis::start(), policies());
    let server = serve(&folder, &redis.url(), &["--store-deadline", "100ms"]);
    until_store(server.http(), "error", "a");
    until_ready(&server, 200, "ready: the store answers");
    redis.kill();
    let refused = || metric(&server, "spillgate_store_failures_total{class=\"open\"}");
    eventually("the circuit breaker refuses a request", || {
        assert!([200, 503].contains(&check(server.http(), "error", "a").0));
        (refused() > 0).then_some(())
    });
    let (status, text) = readiness(&server);
    assert!(status == 503 && text.contains("not ready: the store has not answered for"), "{text}");
    assert!(!serving(&server));
    redis.start_again();
    until_ready(&server, 200, "ready: the store answers");
}

#[test]
fn the_log_names_the_primary_that_failed_and_the_one_that_decides_again() {
    let ([old, new], folder) = ([(); 2].map(|()| Redis::start()), policies());
    let [at_old, at_new] = [&old, &new].map(|redis| redis.url().replace("redis://", ""));
    let monitor = |address: &str| format!("sentinel monitor main {} 1", address.replace(':', " "));
    let (_sentinel, of_sentinel) = sentinel(&folder, &monitor(&at_old));
    let url = format!("redis-sentinel://{of_sentinel}/main");
    let server = serve(&folder, &url, &["--store-deadline", "100ms"]);
    until_ready(&server, 200, "ready: the store answers");
    signal(old.id(), "STOP");
    let line = logged(&server.process, "the store does not answer: ");
    assert!(line.contains(&format!("the primary {at_old}: ")), "{line}");
    let port = of_sentinel.rsplit(':').next().expect("the address has a port");
    let tell = |words: &str| new.run(&[&["-p", port], &words.split(' ').collect::<Vec<_>>()[..]].concat());
    assert_eq!(tell("sentinel remove main"), "OK");
    assert_eq!(tell(&monitor(&at_new)), "OK");
    let line = logged(&server.process, "the store decides again");
    assert!(line.contains(&format!("the primary is {at_new}")), "{line}");
    signal(old.id(), "CONT");
}

#[test]
fn a_store_that_comes_and_goes_does_not_fill_the_log() {
    let (redis, folder) = (Redis::start(), policies());
    let server = serve(&folder, &redis.url(), &["--store-deadline", "100ms"]);
    until_ready(&server, 200, "ready: the store answers");
    let start = Instant::now();
    for _ in 0..5 {
        signal(redis.id(), "STOP");
        until_ready(&server, 503, "not ready");
        signal(redis.id(), "CONT");
        until_ready(&server, 200, "ready: the store answers");
    }
    assert!(metric(&server, "spillgate_store_recoveries_total") >= 5);
    let log = server.process.stderr();
    let most = 1 + start.elapsed().as_secs() / 10;
    for line in ["the store does not answer", "the store decides again"] {
        let lines = log.iter().filter(|logged| logged.contains(line)).count() as u64;
        assert!((1..=most).contains(&lines), "the log has {lines} lines with `{line}`, but at most {most} are allowed");
    }
}

/// The test uses two stores that answer but do not decide. In the first store, the server's user has no right to run
/// SET. The second store is a node of a Redis Cluster, but its URL begins with `redis://` instead of
/// `redis-cluster://`.
#[test]
fn a_server_whose_store_answers_but_does_not_decide_is_not_ready() {
    let (redis, folder) = (Redis::start(), policies());
    let server = serve(&folder, &redis.url(), &["--store-deadline", "100ms"]);
    until_ready(&server, 200, "ready: the store answers");
    assert_eq!(redis.run(&["acl", "setuser", "default", "-set"]), "OK");
    until_ready(&server, 503, "(noperm)");
    let line = logged(&server.process, "the store does not answer");
    assert!(line.contains("no permissions") || line.contains("can't run this command"), "{line}");
    assert_eq!(redis.run(&["acl", "setuser", "default", "+set"]), "OK");
    until_ready(&server, 200, "ready: the store answers");

    let cluster = Cluster::start();
    let server = serve(&folder, &cluster.nodes[0].url(), &["--store-deadline", "100ms"]);
    logged(&server.process, "redis-cluster://");
    until_ready(&server, 503, "(moved)");
    for user in 0..20 {
        check(server.http(), "error", &format!("user-{user}"));
        assert_eq!(readiness(&server).0, 503);
    }
    // The node gets all slots of the cluster, so it can decide every request. The server must notice this change
    // without a request.
    let [alone, others @ ..] = cluster.nodes;
    drop(others);
    // Redis does not reset a node that has keys. The probes of the server write keys all the time, so the test deletes all keys
    // before each reset.
    eventually("the node forgets the other nodes", || {
        alone.run(&["flushall"]);
        (alone.run(&["cluster", "reset"]) == "OK").then_some(())
    });
    assert_eq!(alone.run(&["cluster", "addslotsrange", "0", "16383"]), "OK");
    until_ready(&server, 200, "ready: the store answers");
}

/// The server stays ready, because no other server can reach the missing node either. A load balancer would gain nothing
/// if it sent the requests to another server.
#[test]
fn a_server_is_ready_while_a_cluster_lacks_one_node() {
    let (cluster, folder) = (Cluster::start(), policies());
    for node in &cluster.nodes {
        node.run(&["config", "set", "cluster-require-full-coverage", "no"]);
    }
    let server = serve(&folder, &cluster.url(), &["--store-deadline", "100ms"]);
    until_ready(&server, 200, "ready: the store answers");
    signal(cluster.nodes[1].id(), "STOP");
    // The test waits until the circuit breaker of the node has refused several requests.
    let failed = || metric(&server, "spillgate_store_failures_total{class=\"open\"}");
    let mut sent = 0;
    eventually("the breaker refuses requests for the node", || {
        // A third of the users is on the node, and the breaker opens after eight failures.
        for _ in 0..10 {
            sent += 1;
            check(server.http(), "error", &format!("user-{sent}"));
        }
        assert_eq!(readiness(&server).0, 200);
        (failed() > 3).then_some(())
    });
    assert_eq!((metric(&server, "spillgate_store_circuit"), metric(&server, "spillgate_store_up")), (1, 1));
    assert_eq!(readiness(&server).1, "ready: some nodes of the store do not answer\n");
    for node in [0, 2] {
        signal(cluster.nodes[node].id(), "STOP");
    }
    until_ready(&server, 503, "not ready");
    for node in &cluster.nodes {
        signal(node.id(), "CONT");
    }
    until_ready(&server, 200, "ready: the store answers");
    eventually("the circuits of all nodes are closed", || {
        sent += 1;
        check(server.http(), "error", &format!("user-{sent}"));
        (metric(&server, "spillgate_store_circuit") == 0).then_some(())
    });
}

#[test]
fn a_caller_with_a_shorter_timeout_than_the_store_is_answered_within_it() {
    let (redis, folder) = (Redis::start(), policies());
    // Without the timeout of the caller, the server would wait one minute for the store.
    let server = serve(&folder, &redis.url(), &["--store-deadline", "1m"]);
    until_store(server.http(), "error", "a");
    let (runtime, mut attempts) = (Runtime::new().expect("the runtime starts"), 0);
    // If a worker thread has no connection to the store, it sends nothing to the store. Then the store charges nothing,
    // and the test tries again.
    eventually("a request that the policy refused was charged in the store, and is given back", || {
        attempts += 1;
        let (late, after) = (format!("late-{attempts}"), format!("after-{attempts}"));
        signal(redis.id(), "STOP");
        let answer = runtime.block_on(ask_with_timeout(server.grpc(), "100m", &late));
        assert_eq!(answer.overall_code, 2, "the policy `deny` answers OVER_LIMIT");
        signal(redis.id(), "CONT");
        until_store(server.http(), "error", &after);
        (metric(&server, "spillgate_store_given_back_total") > 0).then_some(())
    });
}

/// The server stops waiting for the store 4 ms before the caller's timeout (a test of `timeout.rs` has this number). On a busy
/// machine an answer can be late by more than that, so this test has no upper bound but the deadline of the store.
#[test]
fn the_store_is_waited_for_as_long_as_the_caller_waits_and_not_longer() {
    let (redis, folder) = (Redis::start(), policies());
    let server = serve(&folder, &redis.url(), &["--store-deadline", "1m"]);
    let (timeout, mut attempt) = (Duration::from_millis(50), 0);
    let runtime = Runtime::new().expect("the runtime starts");
    let mut client = runtime.block_on(connect(server.grpc()));
    eventually("the server waited for the store as long as the caller waits", || {
        attempt += 1;
        until_store(server.http(), "error", &attempt.to_string());
        runtime.block_on(call(&mut client, "10S", "before"));
        signal(redis.id(), "STOP");
        let answers = [(); 10].map(|()| {
            let begun = Instant::now();
            (runtime.block_on(call(&mut client, "50m", "a")).overall_code, begun.elapsed())
        });
        signal(redis.id(), "CONT");
        assert!(answers.iter().all(|(code, _)| *code == 2), "the policy `deny` answers OVER_LIMIT: {answers:?}");
        // A much earlier answer would mean that the server did not wait for the store.
        let in_time = timeout * 3 / 4..Duration::from_secs(30);
        answers.iter().any(|(_, took)| in_time.contains(took)).then_some(())
    });
}

/// Calls the server with the header field `grpc-timeout`. The client ignores this timeout, and waits even for a late
/// answer.
async fn ask_with_timeout(server: SocketAddr, timeout: &str, user: &str) -> RateLimitResponse {
    call(&mut connect(server).await, timeout, user).await
}

async fn connect(server: SocketAddr) -> SendRequest<Bytes> {
    let stream = tokio::net::TcpStream::connect(server).await.expect("the server listens");
    stream.set_nodelay(true).expect("the connection is open");
    let (client, connection) = h2::client::handshake(stream).await.expect("the server speaks HTTP/2");
    tokio::spawn(connection);
    client
}

async fn call(client: &mut SendRequest<Bytes>, timeout: &str, user: &str) -> RateLimitResponse {
    let call = http::Request::post("http://x/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")
        .header("content-type", "application/grpc")
        .header("grpc-timeout", timeout)
        .body(())
        .expect("the call is valid");
    let (answer, mut body) = client.send_request(call, false).expect("the header fields are sent");
    let message = request("deny", &[user]).encode_to_vec();
    let length = u32::try_from(message.len()).expect("the message is short").to_be_bytes();
    body.send_data([&[0][..], &length, &message].concat().into(), true).expect("the message is sent");
    let answered = async {
        let mut body = answer.await.expect("the server answers").into_body();
        let mut read = Vec::new();
        while let Some(data) = body.data().await {
            read.extend_from_slice(&data.expect("the whole answer arrives"));
        }
        RateLimitResponse::decode(&read[5..]).expect("the answer is a RateLimitResponse")
    };
    tokio::time::timeout(Duration::from_secs(50), answered)
        .await
        .expect("the answer arrives before `store.deadline` (one minute) is over")
}

#[test]
fn callers_get_an_explanation_and_the_log_has_the_stores_own_text_too() {
    let (redis, folder) = (Redis::start(), policies());
    let server = serve(&folder, &redis.url(), &LONG_DEADLINE);
    until_store(server.http(), "error", "a");
    assert_eq!(redis.run(&["acl", "setuser", "default", "-evalsha"]), "OK");
    let (status, problem) = check(server.http(), "error", "a");
    let explanation =
        "the store is unavailable: spillgate's user at the store has no permission for this command, or cannot log in";
    assert_eq!((status, &problem["detail"]), (503, &explanation.into()));
    let answer = async { client(&server).await.should_rate_limit(request("error", &["a"])).await };
    let status = Runtime::new().expect("the runtime starts").block_on(answer).expect_err("the call has no decision");
    assert_eq!((status.code(), status.message()), (Code::Unavailable, explanation));
    let line = logged(&server.process, "class=\"noperm\"");
    assert!(line.contains("evalsha") && line.contains("did not decide: spillgate's user at the store"), "{line}");
}

#[test]
fn a_server_without_a_store_ends_on_sigterm() {
    let folder = policies();
    let mut server = serve(&folder, &format!("redis://127.0.0.1:{}", free_port()), &[]);
    logged(&server.process, "the store cannot be used yet");
    server.process.terminate();
    assert_eq!(server.process.wait().code(), Some(0));
}
