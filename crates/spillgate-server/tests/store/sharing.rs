//! Tests of several servers that share one store. Together they admit as many requests as a single server would.
//!
//! Without a shared store, each server of a fleet would admit the whole limit.

use std::net::SocketAddr;

use spillgate_grpc::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use spillgate_grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::cli_support::Folder;
use crate::store::fleet::{LONG_DEADLINE, check, client, decided, decided_by, request, rules, serve, until_store};
use crate::support::eventually;
use crate::support::redis::Redis;
use crate::support::spillgate::Spillgate;

const LIMIT: usize = 100;
const TASKS: usize = 64;
const EACH: usize = 3;

/// Sends 3 requests from each of 64 tasks over gRPC. Returns how many requests the server admits.
async fn by_grpc(server: &Spillgate, key: &'static str) -> usize {
    let client = client(server).await;
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let mut client = client.clone();
        tasks.spawn(async move {
            let mut admitted = 0;
            for _ in 0..EACH {
                let answer = client.should_rate_limit(request(key, &["one"])).await.expect("the server answers");
                admitted += usize::from(answer.into_inner().overall_code() == Code::Ok);
            }
            admitted
        });
    }
    tasks.join_all().await.into_iter().sum()
}

/// The rules of the test: the key of a rule, its limit, and how many of the simultaneous requests the servers admit.
const ALGORITHMS: [(&str, &str, usize); 7] = [
    ("token_bucket", "algorithm: token_bucket, unit: year, requests_per_unit: 100", LIMIT),
    ("fixed_window", "algorithm: fixed_window, unit: year, requests_per_unit: 100", LIMIT),
    ("first_hit", "algorithm: fixed_window, anchor: first_hit, unit: year, requests_per_unit: 100", LIMIT),
    ("sliding_window_log", "algorithm: sliding_window_log, unit: year, requests_per_unit: 100", LIMIT),
    ("sliding_window_counter", "algorithm: sliding_window_counter, unit: year, requests_per_unit: 100", LIMIT),
    // The test releases no permit, so 100 requests are admitted.
    ("concurrency", "algorithm: concurrency, limit: 100, lease: 1d", LIMIT),
    // Only the first request is allowed without a wait. All others are refused, because a request over gRPC cannot
    // wait.
    ("leaky_bucket", "algorithm: leaky_bucket, unit: year, requests_per_unit: 100, queue: 10", 1),
];

#[test]
fn two_servers_together_admit_as_much_as_one() {
    let rule = |(key, limit, _): (&str, &str, usize)| format!("  - {{key: {key}, rate_limit: {{{limit}}}}}\n");
    let (redis, folder) = (Redis::start(), rules(&ALGORITHMS.map(rule).concat()));
    let servers = [(); 2].map(|()| serve(&folder, &redis.url(), &LONG_DEADLINE));
    let runtime = Runtime::new().expect("the runtime starts");
    for (key, _, admitted) in ALGORITHMS {
        let both = async { tokio::join!(by_grpc(&servers[0], key), by_grpc(&servers[1], key)) };
        let (one, other) = runtime.block_on(both);
        assert_eq!(one + other, admitted, "{key}: one server admitted {one}, the other {other}");
    }
    for server in &servers {
        assert_eq!(decided_by(server, "local"), 0);
    }
}

#[test]
fn leases_and_resets_are_shared() {
    let limits = "  - {key: job, rate_limit: {algorithm: concurrency, limit: 1, lease: 10m}}\n  \
                  - {key: user, rate_limit: {unit: year, requests_per_unit: 1}}\n";
    let (redis, folder) = (Redis::start(), rules(limits));
    let servers =
        [(); 2].map(|()| serve(&folder, &redis.url(), &[&LONG_DEADLINE[..], &["--store-deny-cache", "off"]].concat()));
    let [one, other] = &servers;
    let (status, taken) = check(one.http(), "job", "a");
    assert_eq!((status, decided(other.http(), "job", "a").0), (200, 429));
    let release = format!(r#"{{"lease_id":{}}}"#, taken["lease_id"]);
    let post = |server: SocketAddr, path: &str, body: &str| {
        crate::support::http::request(server, "POST", path, &[("x-spillgate-admin", "1")], body)
            .expect("the server answers")
    };
    // Servers that share a store sign lease ids with the same secret, so each server accepts the ids of the other one.
    let released = post(other.http(), "/v1/release", &release);
    assert_eq!(released.status, 200, "{}", released.body);
    assert_eq!(decided(other.http(), "job", "a").0, 200);
    let answers = [one, other].map(|server| decided(server.http(), "user", "7").0);
    assert_eq!(answers, [200, 429]);
    let reset = post(one.admin(), "/reset", r#"{"domain":"api","descriptors":[{"user":"7"}]}"#);
    assert_eq!(reset.status, 200, "{}", reset.body);
    assert_eq!(decided(other.http(), "user", "7").0, 200);
}

#[test]
fn a_refusal_is_repeated_without_the_store_only_by_the_server_that_received_it() {
    let limit = "  - {key: user, rate_limit: {unit: year, requests_per_unit: 1}}\n";
    let (redis, folder) = (Redis::start(), rules(limit));
    let arguments = [&LONG_DEADLINE[..], &["--store-deny-cache-max-age", "1h"]].concat();
    let servers = [(); 2].map(|()| serve(&folder, &redis.url(), &arguments));
    let [one, other] = servers.each_ref().map(|server| || decided(server.http(), "user", "7"));
    let answer = |status, source: &str| (status, source.to_owned());
    assert_eq!([one(), one(), one()], [answer(200, "store"), answer(429, "store"), answer(429, "deny_cache")]);
    assert_eq!([other(), other()], [answer(429, "store"), answer(429, "deny_cache")]);
    assert_eq!(servers.each_ref().map(|server| decided_by(server, "deny_cache")), [1, 1]);
}

/// Each request uses two limits, `user` and `all`. After the limit `user` has refused a request, the server repeats the
/// refusal from its deny cache, without asking the store. The numbers of the limit `all` that the server then reports
/// must be right, or be left out. Envoy sends its clients only the numbers of the limit with the fewest remaining
/// units, so wrong numbers could make Envoy choose `all`.
#[test]
fn a_limit_beside_a_repeated_refusal_is_reported_as_the_store_answered_or_not_at_all() {
    let limits = "  - {key: user, rate_limit: {unit: year, requests_per_unit: 1}}\n  \
                  - {key: all, rate_limit: {name: all, unit: year, requests_per_unit: 100}}\n";
    let (redis, folder) = (Redis::start(), rules(limits));
    let server = serve(&folder, &redis.url(), &[&LONG_DEADLINE[..], &["--store-deny-cache-max-age", "1h"]].concat());
    let runtime = Runtime::new().expect("the runtime starts");
    let statuses = |user: &str| {
        let both = [request("user", &[user]), request("all", &["x"])].map(|request| request.descriptors);
        let message = RateLimitRequest { descriptors: both.concat(), ..request("user", &[]) };
        let answer = runtime.block_on(async { client(&server).await.should_rate_limit(message).await });
        answer.expect("the server answers").into_inner().statuses
    };
    let check = |path: &str, descriptors: &str| {
        let body = format!(r#"{{"domain":"api","descriptors":[{descriptors}]}}"#);
        crate::support::http::request(server.http(), "POST", path, &[], &body).expect("the server answers")
    };
    let both = |path| match path {
        "/json" => check(path, r#"{"entries":[{"key":"user","value":"7"}]},{"entries":[{"key":"all","value":"x"}]}"#),
        _ => check(path, r#"{"user":"7"},{"all":"x"}"#),
    };
    let by_cache = || decided_by(&server, "deny_cache");
    assert_eq!(statuses("7")[1].limit_remaining, 99);
    let refused = statuses("7");
    assert_eq!((refused[0].code(), refused[1].code(), refused[1].limit_remaining), (Code::OverLimit, Code::Ok, 99));
    assert_eq!((by_cache(), refused[1].current_limit.is_some()), (0, true));
    let repeated = statuses("7");
    assert_eq!((by_cache(), &repeated[1].current_limit), (1, &refused[1].current_limit));
    assert_eq!((repeated[1].limit_remaining, repeated[1].code()), (99, Code::Ok));
    assert!(repeated[1].duration_until_reset.is_some() && repeated[0].current_limit.is_some());
    assert!(both("/json").body.contains(r#""name":"all""#));
    assert!(both("/v1/check").header("ratelimit").is_some_and(|limits| limits.contains(r#""all";r=99"#)));
    // The request of user 8 is admitted, and changes the count of the limit `all`. So the server removes the old count
    // of `all` from its deny cache. The next repeated refusal has no numbers for `all`.
    assert_eq!(statuses("8")[1].limit_remaining, 98);
    let repeated = statuses("7");
    assert_eq!((by_cache(), repeated[0].code(), repeated[1].code()), (4, Code::OverLimit, Code::Ok));
    assert!(repeated[0].current_limit.is_some() && repeated[1].current_limit.is_none());
    assert_eq!((repeated[1].limit_remaining, repeated[1].duration_until_reset.is_none()), (0, true));
    let (json, checked) = (both("/json"), both("/v1/check"));
    assert!(json.status == 429 && !json.body.contains(r#""name":"all""#), "{}", json.body);
    assert!(checked.header("ratelimit").is_some_and(|limits| limits.contains("r=0") && !limits.contains("all")));
    assert!([r#""limit":1,"#, r#""remaining":0"#].iter().all(|part| checked.body.contains(part)), "{}", checked.body);
    assert_eq!(by_cache(), 6);
}

/// Three descriptors with the costs 6, 6 and 4 use a limit of 10 units. The second descriptor is refused, but it is charged. So
/// the third descriptor is refused too. If the third were charged before the second, the third would be allowed.
#[test]
fn in_compat_descriptors_that_share_a_state_are_charged_in_order() {
    let limit = |key: &str| format!("{{key: {key}, rate_limit: {{unit: year, requests_per_unit: 10}}}}");
    let redis = Redis::start();
    let text = format!("domain: api\ncompat: envoy\ndescriptors: [{}, {}]\n", limit("user"), limit("other"));
    let folder = Folder::new(&[("rules.yaml", &text)]);
    let server = serve(&folder, &redis.url(), &[&LONG_DEADLINE[..], &["--store-deny-cache", "off"]].concat());
    let runtime = Runtime::new().expect("the runtime starts");
    let mut client = runtime.block_on(client(&server));
    let mut turn = |number: u32| {
        let user = format!("u{number}");
        let mut message = request("user", &[&user, &user, &user]);
        message.descriptors.extend(request("other", &[&user]).descriptors);
        for (descriptor, cost) in message.descriptors.iter_mut().zip([6, 6, 4, 10]) {
            descriptor.hits_addend = Some(cost);
        }
        let answer = runtime.block_on(client.should_rate_limit(message)).expect("the server answers").into_inner();
        answer.statuses.iter().map(|status| status.code() == Code::Ok).collect::<Vec<_>>()
    };
    for number in 0..500 {
        assert_eq!(turn(number), [true, false, false, true], "{number}");
    }
}

/// A worker thread opens two connections to the store. The thread that checks the store's health uses a third connection.
#[test]
fn a_worker_has_two_connections_of_its_own() {
    let (redis, folder) =
        (Redis::start(), rules("  - {key: user, rate_limit: {unit: year, requests_per_unit: 999}}\n"));
    let url = redis.url();
    let arguments = [&["--store", &url, "--store-expected-nodes", "2", "--workers", "1"], &LONG_DEADLINE[..]].concat();
    let server = Spillgate::serve(&folder.path("rules.yaml"), &arguments);
    eventually("Redis lists three connections of the server and one of redis-cli", || {
        until_store(server.http(), "user", "7");
        (redis.run(&["client", "list"]).lines().count() >= 4).then_some(())
    });
}

#[test]
fn a_limit_in_a_request_that_the_store_cannot_count_is_the_callers_error() {
    let (redis, folder) = (Redis::start(), rules("  - {key: user, rate_limit: {unit: year, requests_per_unit: 1}}\n"));
    let server = serve(&folder, &redis.url(), &[&LONG_DEADLINE[..], &["--store-scripts", "off"]].concat());
    let hit = |algorithm: &str| {
        let body = format!(r#"{{"bucket":"b","key":"k","limit":1,"window_ms":86400000,"algorithm":"{algorithm}"}}"#);
        crate::support::http::request(server.http(), "POST", "/v1/hit", &[], &body).expect("the server answers")
    };
    let bucket = hit("token_bucket");
    assert_eq!([hit("fixed_window").status, hit("fixed_window").status, bucket.status], [200, 429, 400]);
    assert!(bucket.body.contains("token_bucket") && bucket.body.contains("store.scripts: off"), "{}", bucket.body);
    assert_eq!([(); 2].map(|()| decided(server.http(), "user", "7").0), [200, 429]);
    let bucket =
        "domain: api\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1, algorithm: token_bucket}}]";
    folder.write("bucket.yaml", bucket);
    let arguments = format!("--store {} --store-expected-nodes 2 --store-scripts off", redis.url());
    let output = folder.run(&format!("serve bucket.yaml {arguments}"));
    assert!(
        output.code == 2 && output.stderr.contains("bucket.yaml:2") && output.stderr.contains("scripts"),
        "{output:?}"
    );
    folder.write("s.yaml", &format!("store: {{url: '{}', scripts: off, expected_nodes: 2}}", redis.url()));
    assert_eq!(folder.run("validate bucket.yaml -c s.yaml").code, 2);
    let doctor = folder.run("doctor -c s.yaml --json");
    assert!(
        doctor.stdout.contains("7 commands on sg:*") && !doctor.stdout.contains("\"scripts\""),
        "{}",
        doctor.stdout
    );
}

#[test]
fn in_compat_each_descriptor_is_charged_alone_and_in_order() {
    let limit = "descriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 1}}]";
    let runtime = Runtime::new().expect("the runtime starts");
    // First the rules file sets `compat`, then the command line does.
    for (rules, flags) in [("domain: api\ncompat: envoy", &[][..]), ("domain: api", &["--compat", "envoy"][..])] {
        let redis = Redis::start();
        let folder = Folder::new(&[("rules.yaml", &format!("{rules}\n{limit}\n"))]);
        let server = serve(&folder, &redis.url(), &[&LONG_DEADLINE, flags].concat());
        let codes = |values: &[&str]| {
            let answer = async { client(&server).await.should_rate_limit(request("user", values)).await };
            let answer = runtime.block_on(answer).expect("the server answers").into_inner();
            answer.statuses.iter().map(|status| status.code() == Code::Ok).collect::<Vec<_>>()
        };
        assert_eq!(codes(&["a", "b", "a", "a"]), [true, true, false, false]);
        assert_eq!(codes(&["b", "c"]), [false, true]);
    }
}

#[test]
fn rules_that_the_store_cannot_count_are_errors_at_the_start_and_at_a_reload() {
    let (redis, folder) = (Redis::start(), rules("  - {key: a, rate_limit: {unit: day, requests_per_unit: 1}}\n"));
    let server = serve(&folder, &redis.url(), &[]);
    let odd = "domain: api\ndescriptors:\n  - key: a\n    rate_limit: {window: 1500ns, limit: 1}\n";
    folder.write("rules.yaml", odd);
    crate::cli_support::signal(server.process.id(), "HUP");
    crate::store::fleet::logged(&server.process, "rules.yaml:4: the store redis://127.0.0.1:");
    crate::store::fleet::logged(&server.process, "the earlier rules stay in use");
    let output =
        folder.run(&format!("serve rules.yaml --store {} --store-expected-nodes 2 --http 127.0.0.1:0", redis.url()));
    assert_eq!((output.code, output.stdout.as_str()), (2, ""));
    assert!(output.stderr.contains("rules.yaml:4") && output.stderr.contains("microseconds"), "{}", output.stderr);
}

#[test]
fn an_unmatched_descriptor_is_refused_if_the_settings_say_deny() {
    let (redis, folder) = (Redis::start(), rules("  - {key: a, rate_limit: {unit: year, requests_per_unit: 5}}\n"));
    let server = serve(&folder, &redis.url(), &[&LONG_DEADLINE[..], &["--unmatched", "deny"]].concat());
    let mut both = request("a", &["1"]);
    both.descriptors.extend(request("b", &["1"]).descriptors);
    let answer = Runtime::new().expect("the runtime starts").block_on(async {
        client(&server).await.should_rate_limit(both).await.expect("the server answers").into_inner()
    });
    let codes: Vec<_> = answer.statuses.iter().map(|status| status.code()).collect();
    assert_eq!((answer.overall_code(), codes), (Code::OverLimit, vec![Code::Ok, Code::OverLimit]));
    let (status, left) = check(server.http(), "a", "1");
    assert_eq!(
        (status, left["remaining"].as_u64()),
        (200, Some(4)),
        "the refused request took no unit of the limit `a`, and this request took one"
    );
}
