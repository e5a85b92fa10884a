//! Tests two cases. In one case, two servers have different limits for one rule. In the other case, a limit is lowered and then
//! restored.
//!
//! Servers have different limits while a new rules file is copied to one server after the other. A limit is restored
//! when a change of the rules is undone. In both cases, the servers must not admit extra requests.
#![allow(clippy::disallowed_methods, reason = "a limit refills during the test, so the test measures the elapsed time")]

use spillgate_grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tokio::runtime::Runtime;

use crate::cli_support::{Folder, signal};
use crate::store::fleet::{LONG_DEADLINE, check, client, request, rules, serve};
use crate::support::redis::Redis;
use crate::support::spillgate::Spillgate;

/// Returns how many requests the test sends to the two servers. One request in 41 goes to the server with the small limit.
fn requests() -> usize {
    std::env::var("SEVERAL_LIMITS_ASKED").ok().and_then(|text| text.parse().ok()).unwrap_or(3_000)
}

fn limited(algorithm: &str, limit: u32) -> String {
    format!("  - {{key: user, rate_limit: {{algorithm: {algorithm}, unit: hour, requests_per_unit: {limit}}}}}\n")
}

#[test]
fn a_fleet_of_two_limits_admits_the_larger_one() {
    let (redis, runtime) = (Redis::start(), Runtime::new().expect("the runtime starts"));
    for deny_cache in ["65536", "off"] {
        let arguments = [&LONG_DEADLINE[..], &["--store-deny-cache", deny_cache]].concat();
        let [large, small] = [1000, 10].map(|limit| {
            let folder = rules(&limited("token_bucket", limit));
            (serve(&folder, &redis.url(), &arguments), folder)
        });
        let began = std::time::Instant::now();
        let [by_large, by_small] = runtime.block_on(async {
            let mut clients = [client(&large.0).await, client(&small.0).await];
            let mut admitted = [0, 0];
            for i in 0..requests() {
                let server = usize::from(i % 41 == 40);
                let answer = clients[server]
                    .should_rate_limit(request("user", &[deny_cache]))
                    .await
                    .expect("the server answers");
                admitted[server] += usize::from(answer.into_inner().overall_code() == Code::Ok);
            }
            admitted
        });
        // The bucket starts with 1000 units, and gets one more unit every 3.6 s.
        let most = 1000 + began.elapsed().as_millis() as usize / 3600;
        println!(
            "deny cache {deny_cache}: the server with 1000 an hour admitted {by_large} requests, the server with 10 an hour \
             {by_small}; together they can admit at most {most}"
        );
        assert!(
            (1000..=most).contains(&(by_large + by_small)),
            "the servers admitted {by_large} and {by_small} requests, but must admit 1000 to {most} together"
        );
    }
}

/// Requests use up a limit of 50 an hour. The limit is then lowered to 3, gets more requests, and is restored to 50. The test
/// does this three times.
#[test]
fn a_limit_cut_and_restored_by_reloads_admits_nothing_extra() {
    let redis = Redis::start();
    for (store, algorithm) in [None, Some(redis.url())].into_iter().flat_map(|store| {
        let algorithms = ["token_bucket", "fixed_window", "sliding_window_log", "sliding_window_counter"];
        algorithms.map(|algorithm| (store.clone(), algorithm))
    }) {
        let folder = rules(&limited(algorithm, 50));
        let server = match &store {
            None => Spillgate::serve(&folder.path("rules.yaml"), &[]),
            Some(url) => serve(&folder, url, &LONG_DEADLINE),
        };
        let (began, mut admitted) = (std::time::Instant::now(), 0);
        for cycle in 0..3 {
            let passed = (0..60).filter(|_| check(server.http(), "user", algorithm).0 == 200).count();
            admitted += passed;
            assert!(cycle > 0 || passed >= 50, "{algorithm}: {passed} of the first 60 requests were admitted");
            for limit in [3, 50] {
                reload(&server, &folder, &limited(algorithm, limit));
                if limit == 3 {
                    admitted += (0..10).filter(|_| check(server.http(), "user", algorithm).0 == 200).count();
                }
            }
        }
        let most = match algorithm {
            // An hour can end during the test. The next window then admits another 50 requests.
            "fixed_window" => 100,
            "sliding_window_log" => 50,
            // A token bucket gets one more unit every 72 s. In a sliding window counter, the weight of the previous hour falls.
            // So every 72 s, one more unit becomes free there too.
            _ => 50 + began.elapsed().as_secs() as usize / 72,
        };
        println!("{algorithm} on {}: {admitted} admitted", store.map_or("memory", |_| "Redis"));
        assert!(
            (50..=most).contains(&admitted),
            "{algorithm}: {admitted} requests were admitted, expected 50 to {most}"
        );
    }
}

fn reload(server: &Spillgate, folder: &Folder, descriptors: &str) {
    folder.write("rules.yaml", &format!("domain: api\ndescriptors:\n{descriptors}"));
    let reloads = || server.process.stderr().iter().filter(|line| line.contains("rules reloaded")).count();
    let before = reloads();
    signal(server.process.id(), "HUP");
    crate::support::eventually("the rules are reloaded", || (reloads() > before).then_some(()));
}
