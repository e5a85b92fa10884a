//! What becomes of requests while the store fails, and after.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use prost::Message as _;
use spillgate_redis::ErrorKind;
use spillgate_server::protocol::grpc::proto::envoy::service::ratelimit::v3::RateLimitResponse;
use spillgate_testkit::free_port;
use tokio::runtime::Runtime;
use tokio::time::Instant;
use tonic::Code;

use crate::cli_support::{Folder, signal};
use crate::fleet::{PATIENT, check, client, judged, logged, metric, request, rules, serve, until_store};
use crate::support::redis::{Cluster, Redis};
use crate::support::spillgate::Spillgate;
use crate::support::{eventually, http as plain_http};

/// A limit of each policy.
fn policies() -> Folder {
    let limit = |policy: &str| {
        format!("  - {{key: {policy}, rate_limit: {{unit: year, requests_per_unit: 4, on_store_failure: {policy}}}}}\n")
    };
    rules(&["allow", "deny", "error", "local"].map(limit).concat())
}

/// Status and text of `/readyz` on both listeners that have it.
fn readiness(server: &Spillgate) -> (u16, String) {
    let [http, admin] = [server.http(), server.admin()].map(|listener| plain_http::get(listener, "/readyz", &[]));
    assert_eq!(http.status, admin.status, "{} {}", http.body, admin.body);
    (http.status, http.body)
}

fn until_ready(server: &Spillgate, status: u16, text: &str) {
    eventually(&format!("/readyz says {status} {text}"), || {
        let answer = plain_http::get(server.http(), "/readyz", &[]);
        (answer.status == status && answer.body.contains(text)).then_some(())
    });
    assert_eq!(readiness(server).0, status);
}

/// Requests that the store did not decide.
fn failures(server: &Spillgate) -> u64 {
    let count =
        |class: ErrorKind| metric(server, &format!("spillgate_store_failures_total{{class=\"{}\"}}", class.as_str()));
    ErrorKind::ALL.map(count).iter().sum()
}

/// What grpc.health.v1 says.
fn serving(server: &Spillgate) -> bool {
    use tonic_health::pb::health_check_response::ServingStatus;
    use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
    let asked = async {
        let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", server.grpc())).expect("an address");
        let channel = channel.connect().await.expect("it listens");
        HealthClient::new(channel).check(HealthCheckRequest::default()).await.expect("an answer").into_inner()
    };
    Runtime::new().expect("a runtime").block_on(asked).status() == ServingStatus::Serving
}

#[test]
fn started_without_a_store_it_answers_by_policy_and_recovers_by_itself() {
    let (port, folder) = (free_port(), policies());
    let server = serve(&folder, &format!("redis://127.0.0.1:{port}"), &["--store-deadline", "1s"]);
    logged(&server.process, "the store cannot be reached yet");
    assert_eq!(judged(server.http(), "allow", "a"), (200, "policy".to_owned()));
    assert_eq!(judged(server.http(), "deny", "a"), (429, "policy".to_owned()));
    let (status, problem) = check(server.http(), "error", "a");
    let detail = problem["detail"].as_str().unwrap_or_default();
    assert!(status == 503 && detail.contains("the store is unavailable"), "{problem}");
    // Of two nodes each has half of it.
    let local: Vec<_> = (0..3).map(|_| judged(server.http(), "local", "a")).collect();
    assert_eq!(local, [200, 200, 429].map(|status| (status, "local".to_owned())));
    until_ready(&server, 503, "not ready: the store has not answered for");
    assert!(!serving(&server));
    // Nobody asks meanwhile.
    let redis = Redis::start_at(port, &[]);
    until_ready(&server, 200, "ready: the store answers");
    assert!(serving(&server));
    logged(&server.process, "the store decides again after");
    until_store(server.http(), "error", "b");
    assert_eq!(judged(server.http(), "local", "a"), (200, "store".to_owned()));
    assert_eq!(redis.keys(&[]).len(), 2, "what the policies answered is not in the store");
    assert_eq!(metric(&server, "spillgate_store_recoveries_total"), 1);
}

/// Limits of the rules that say nothing, and those that come with a call. Nobody has to say how many servers there are.
#[test]
fn the_setting_on_store_failure_is_for_all_limits_that_do_not_say_one() {
    let folder = rules(
        "  - {key: silent, rate_limit: {unit: year, requests_per_unit: 4}}\n  \
           - {key: allow, rate_limit: {unit: year, requests_per_unit: 4, on_store_failure: allow}}\n",
    );
    let url = format!("redis://127.0.0.1:{}", free_port());
    let arguments = ["--store", &url, "--on-store-failure", "deny", "--allow-http", "override"];
    let server = Spillgate::serve(&folder.path("rules.yaml"), &arguments);
    assert_eq!(judged(server.http(), "silent", "a"), (429, "policy".to_owned()));
    assert_eq!(judged(server.http(), "allow", "a"), (200, "policy".to_owned()));
    let status =
        |path: &str, body: &str| plain_http::request(server.http(), "POST", path, &[], body).expect("an answer").status;
    assert_eq!(status("/v1/hit", r#"{"bucket":"mail","key":"bob","limit":5,"window_ms":60000}"#), 429);
    let entries = r#""entries":[{"key":"allow","value":"b"}]"#;
    let brought =
        format!(r#"{{"domain":"api","descriptors":[{{{entries},"limit":{{"requestsPerUnit":5,"unit":"YEAR"}}}}]}}"#);
    assert_eq!(status("/json", &brought), 429);
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
    let runtime = Runtime::new().expect("a runtime");
    let code = |key: &str| {
        let asked = async { client(&server).await.should_rate_limit(request(key, &["a"])).await };
        runtime.block_on(asked).map(|answer| answer.into_inner().overall_code as u8).map_err(|status| status.code())
    };
    assert_eq!(["allow", "deny", "error", "local"].map(code), [Ok(1), Ok(2), Err(Code::Unavailable), Ok(1)]);
}

#[test]
fn without_a_limit_that_only_the_store_answers_for_it_is_ready_without_it() {
    let folder = rules("  - {key: a, rate_limit: {unit: day, requests_per_unit: 1}}\n");
    let server = serve(&folder, &format!("redis://127.0.0.1:{}", free_port()), &[]);
    until_ready(&server, 200, "ready: the store has not answered for");
    assert!(readiness(&server).1.contains("on_store_failure: local 1"));
    assert!(serving(&server));
    // The rules decide, so a reload does.
    let error =
        "domain: api\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1, on_store_failure: error}}]";
    folder.write("rules.yaml", error);
    signal(server.process.id(), "HUP");
    until_ready(&server, 503, "not ready");
}

/// Says, also when the test fails, that no more is to be asked.
struct Done<'d>(&'d AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn killed_under_load_every_request_is_answered_and_it_recovers() {
    let mut redis = Redis::start();
    let folder = rules("  - {key: user, rate_limit: {unit: year, requests_per_unit: 4}}\n");
    let server = serve(&folder, &redis.url(), &[]);
    until_ready(&server, 200, "ready: the store answers");
    let (done, seen) = (AtomicBool::new(false), parking_lot::Mutex::new(BTreeSet::new()));
    thread::scope(|scope| {
        for number in 0..8 {
            let (http, done, seen) = (server.http(), &done, &seen);
            scope.spawn(move || {
                let mut asked = 0_u32;
                while !done.load(Ordering::Relaxed) {
                    asked += 1;
                    let (status, source) = judged(http, "user", &format!("{number}-{asked}"));
                    assert_eq!(status, 200, "a first request of a user always passes: {source}");
                    seen.lock().insert(source);
                }
            });
        }
        let done = Done(&done);
        let saw = |source: &str| eventually(source, || seen.lock().contains(source).then_some(()));
        saw("store");
        redis.kill();
        saw("local");
        until_ready(&server, 200, "has not answered for");
        redis.start_again();
        until_ready(&server, 200, "the store answers");
        seen.lock().clear();
        saw("store");
        drop(done);
    });
    logged(&server.process, "the store does not answer");
    logged(&server.process, "the store decides again after");
    assert!(failures(&server) > 0);
    assert!(metric(&server, "spillgate_requests_without_store_total{source=\"local\"}") > 0);
    assert_eq!(metric(&server, "spillgate_store_circuit"), 0);
    let log = server.process.stderr();
    let said = |why: &str| log.iter().position(|line| line.contains("did not decide") && line.contains(why));
    let told = log.iter().filter(|line| line.contains("the store did not decide"));
    let classes: Vec<_> =
        told.filter_map(|line| Some(line.split_once("class=")?.1.split(' ').next()?.to_owned())).collect();
    let distinct: BTreeSet<_> = classes.iter().collect();
    assert_eq!(classes.len(), distinct.len(), "one line about a class: {classes:?}");
    let (open, lost) = (said("it failed just before"), said("the connection to it ended"));
    assert!(open.zip(lost).is_none_or(|(open, lost)| lost < open), "the cause comes first: {log:?}");
    assert!(log.iter().all(|line| !line.contains("changes=")), "{log:?}");
}

#[test]
fn a_store_that_stands_still_is_seen_without_traffic_and_so_is_its_return() {
    let (redis, folder) = (Redis::start(), policies());
    let server = serve(&folder, &redis.url(), &["--store-deadline", "100ms"]);
    until_ready(&server, 200, "ready: the store answers");
    signal(redis.id(), "STOP");
    until_ready(&server, 503, "not ready");
    assert_eq!(metric(&server, "spillgate_store_up"), 0);
    signal(redis.id(), "CONT");
    until_ready(&server, 200, "ready: the store answers");
    assert_eq!(metric(&server, "spillgate_store_up"), 1);
    assert_eq!(failures(&server), 0, "probes are no requests");
}

/// Nothing has to be probed for that: what requests meet is known at once.
#[test]
fn as_soon_as_the_store_is_not_asked_any_more_it_is_not_ready() {
    let (mut redis, folder) = (Redis::start(), policies());
    let server = serve(&folder, &redis.url(), &["--store-deadline", "100ms"]);
    until_store(server.http(), "error", "a");
    until_ready(&server, 200, "ready: the store answers");
    redis.kill();
    let not_asked = || metric(&server, "spillgate_store_failures_total{class=\"open\"}");
    eventually("a request is refused without asking", || {
        assert!([200, 503].contains(&check(server.http(), "error", "a").0));
        (not_asked() > 0).then_some(())
    });
    let (status, text) = readiness(&server);
    assert!(status == 503 && text.contains("not ready: the store has not answered for"), "{text}");
    assert!(!serving(&server));
    redis.start_again();
    until_ready(&server, 200, "ready: the store answers");
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
    let said = server.process.stderr();
    let most = 1 + start.elapsed().as_secs() / 10;
    for line in ["the store does not answer", "the store decides again"] {
        let lines = said.iter().filter(|said| said.contains(line)).count() as u64;
        assert!((1..=most).contains(&lines), "{lines} times {line}, {most} at most");
    }
}

/// What answers and does not decide is no store: a user who may look and not write, and a node of a cluster by itself.
#[test]
fn a_store_that_answers_and_does_not_decide_is_not_ready() {
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
    // It gets all slots, and is found to have them without a request.
    let [alone, others @ ..] = cluster.nodes;
    drop(others);
    // The server tries it all the time, and one with keys is not reset.
    eventually("it forgets the others", || {
        alone.run(&["flushall"]);
        (alone.run(&["cluster", "reset"]) == "OK").then_some(())
    });
    assert_eq!(alone.run(&["cluster", "addslotsrange", "0", "16383"]), "OK");
    until_ready(&server, 200, "ready: the store answers");
}

/// Nobody else would decide the rest either.
#[test]
fn a_cluster_that_lacks_a_node_answers() {
    let (cluster, folder) = (Cluster::start(), policies());
    for node in &cluster.nodes {
        node.run(&["config", "set", "cluster-require-full-coverage", "no"]);
    }
    let server = serve(&folder, &cluster.url(), &["--store-deadline", "100ms"]);
    until_ready(&server, 200, "ready: the store answers");
    signal(cluster.nodes[1].id(), "STOP");
    // Until its breaker is open, and twenty probes or requests more have failed there.
    let failed = || metric(&server, "spillgate_store_failures_total{class=\"open\"}");
    let mut asked = 0;
    eventually("the node is not asked any more", || {
        asked += 1;
        check(server.http(), "error", &format!("user-{asked}"));
        assert_eq!(readiness(&server).0, 200);
        (failed() > 20).then_some(())
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
    eventually("all nodes serve", || {
        asked += 1;
        check(server.http(), "error", &format!("user-{asked}"));
        (metric(&server, "spillgate_store_circuit") == 0).then_some(())
    });
}

#[test]
fn a_caller_with_less_time_than_the_store_is_answered_in_its_time() {
    let (redis, folder) = (Redis::start(), policies());
    // The store itself would have a minute.
    let server = serve(&folder, &redis.url(), &["--store-deadline", "1m"]);
    until_store(server.http(), "error", "a");
    let (runtime, mut attempts) = (Runtime::new().expect("a runtime"), 0);
    // A worker that has had no connection yet cannot ask.
    eventually("what was asked too late is charged all the same", || {
        attempts += 1;
        let (late, after) = (format!("late-{attempts}"), format!("after-{attempts}"));
        let keys = || redis.keys(&[]).len();
        let before = keys();
        signal(redis.id(), "STOP");
        let answer = runtime.block_on(ask_with_timeout(server.grpc(), "100m", &late));
        assert_eq!(answer.overall_code, 2, "by the policy");
        signal(redis.id(), "CONT");
        until_store(server.http(), "error", &after);
        (keys() == before + 2).then_some(())
    });
}

/// A busy machine may be late, but not half of the time: what begins too late would be.
#[test]
fn an_answer_without_the_store_leaves_three_milliseconds_before_its_caller_gives_up() {
    const ATTEMPTS: usize = 9;
    let (redis, folder) = (Redis::start(), policies());
    let server = serve(&folder, &redis.url(), &["--store-deadline", "1m"]);
    let (timeout, mut took) = (Duration::from_millis(50), Vec::new());
    let runtime = Runtime::new().expect("a runtime");
    let mut client = runtime.block_on(connect(server.grpc()));
    eventually("most answers in time, and not at once", || {
        until_store(server.http(), "error", &took.len().to_string());
        runtime.block_on(call(&mut client, "10S", "before"));
        signal(redis.id(), "STOP");
        let begun = Instant::now();
        let answer = runtime.block_on(call(&mut client, "50m", "a"));
        took.push(begun.elapsed());
        signal(redis.id(), "CONT");
        assert_eq!(answer.overall_code, 2, "by the policy");
        let mut last = took[took.len().checked_sub(ATTEMPTS)?..].to_vec();
        last.sort_unstable();
        let median = last[ATTEMPTS / 2];
        // One of the three is left for the way there and back.
        (median > timeout * 3 / 4 && median <= timeout - Duration::from_millis(2)).then_some(())
    });
}

/// Asks with a `grpc-timeout` that the client itself does not go by: it waits for the answer, however late it is.
async fn ask_with_timeout(server: SocketAddr, timeout: &str, user: &str) -> RateLimitResponse {
    call(&mut connect(server).await, timeout, user).await
}

async fn connect(server: SocketAddr) -> SendRequest<Bytes> {
    let stream = tokio::net::TcpStream::connect(server).await.expect("it listens");
    stream.set_nodelay(true).expect("it is open");
    let (client, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
    tokio::spawn(connection);
    client
}

async fn call(client: &mut SendRequest<Bytes>, timeout: &str, user: &str) -> RateLimitResponse {
    let call = http::Request::post("http://x/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")
        .header("content-type", "application/grpc")
        .header("grpc-timeout", timeout)
        .body(())
        .expect("a call");
    let (answer, mut body) = client.send_request(call, false).expect("sent");
    let message = request("deny", &[user]).encode_to_vec();
    let length = u32::try_from(message.len()).expect("short").to_be_bytes();
    body.send_data([&[0][..], &length, &message].concat().into(), true).expect("sent");
    let answered = async {
        let mut body = answer.await.expect("an answer").into_body();
        let mut read = Vec::new();
        while let Some(data) = body.data().await {
            read.extend_from_slice(&data.expect("data"));
        }
        RateLimitResponse::decode(&read[5..]).expect("an answer of RLS")
    };
    tokio::time::timeout(Duration::from_secs(50), answered).await.expect("the store's minute is not over")
}

#[test]
fn callers_are_told_what_it_means_and_the_log_the_stores_own_words_too() {
    let (redis, folder) = (Redis::start(), policies());
    let server = serve(&folder, &redis.url(), &PATIENT);
    until_store(server.http(), "error", "a");
    assert_eq!(redis.run(&["acl", "setuser", "default", "-evalsha"]), "OK");
    let (status, problem) = check(server.http(), "error", "a");
    let explanation = "the store is unavailable: its user may not do this, or cannot log in";
    assert_eq!((status, &problem["detail"]), (503, &explanation.into()));
    let asked = async { client(&server).await.should_rate_limit(request("error", &["a"])).await };
    let status = Runtime::new().expect("a runtime").block_on(asked).expect_err("no decision");
    assert_eq!((status.code(), status.message()), (Code::Unavailable, explanation));
    let line = logged(&server.process, "class=\"noperm\"");
    assert!(line.contains("evalsha") && line.contains("did not decide: its user may not do this"), "{line}");
}

#[test]
fn told_to_end_without_a_store_it_ends() {
    let folder = policies();
    let mut server = serve(&folder, &format!("redis://127.0.0.1:{}", free_port()), &[]);
    logged(&server.process, "the store cannot be reached yet");
    server.process.terminate();
    assert_eq!(server.process.wait().code(), Some(0));
}
