//! Servers whose rules differ in a limit, as in a canary or while reloads go round, and a limit that is cut and restored.
#![allow(clippy::disallowed_methods, reason = "what comes back to a limit meanwhile goes by the time that it takes")]

use spillgate_server::protocol::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tokio::runtime::Runtime;

use crate::cli_support::{Folder, signal};
use crate::fleet::{PATIENT, check, client, request, rules, serve};
use crate::support::redis::Redis;
use crate::support::spillgate::Spillgate;

/// How many requests a fleet answers, of which one in 41 goes to the server of the small limit.
fn asked() -> usize {
    std::env::var("SEVERAL_LIMITS_ASKED").ok().and_then(|asked| asked.parse().ok()).unwrap_or(3_000)
}

fn limited(algorithm: &str, limit: u32) -> String {
    format!("  - {{key: user, rate_limit: {{algorithm: {algorithm}, unit: hour, requests_per_unit: {limit}}}}}\n")
}

#[test]
fn a_fleet_of_two_limits_admits_the_larger_one() {
    let (redis, runtime) = (Redis::start(), Runtime::new().expect("a runtime"));
    for deny_cache in ["65536", "off"] {
        let arguments = [&PATIENT[..], &["--store-deny-cache", deny_cache]].concat();
        let [large, small] = [1000, 10].map(|limit| {
            let folder = rules(&limited("token_bucket", limit));
            (serve(&folder, &redis.url(), &arguments), folder)
        });
        let began = std::time::Instant::now();
        let [by_large, by_small] = runtime.block_on(async {
            let mut clients = [client(&large.0).await, client(&small.0).await];
            let mut admitted = [0, 0];
            for i in 0..asked() {
                let server = usize::from(i % 41 == 40);
                let answer =
                    clients[server].should_rate_limit(request("user", &[deny_cache])).await.expect("an answer");
                admitted[server] += usize::from(answer.into_inner().overall_code() == Code::Ok);
            }
            admitted
        });
        // A thousand at once, and one each 3.6 s.
        let most = 1000 + began.elapsed().as_millis() as usize / 3600;
        println!("deny cache {deny_cache}: {by_large} by 1000 an hour and {by_small} by 10 an hour, of {most}");
        assert!((1000..=most).contains(&(by_large + by_small)), "{by_large} and {by_small} of {most}");
    }
}

/// A limit of 50 an hour is used up, cut to 3, asked about, and restored, again and again.
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
            Some(url) => serve(&folder, url, &PATIENT),
        };
        let (began, mut admitted) = (std::time::Instant::now(), 0);
        for cycle in 0..3 {
            let passed = (0..60).filter(|_| check(server.http(), "user", algorithm).0 == 200).count();
            admitted += passed;
            assert!(cycle > 0 || passed >= 50, "{algorithm}: {passed}");
            for limit in [3, 50] {
                reload(&server, &folder, &limited(algorithm, limit));
                if limit == 3 {
                    admitted += (0..10).filter(|_| check(server.http(), "user", algorithm).0 == 200).count();
                }
            }
        }
        let most = match algorithm {
            // An hour may end meanwhile.
            "fixed_window" => 100,
            "sliding_window_log" => 50,
            // A bucket has one more each 72 s, and what a counter had in the hour before fades as fast.
            _ => 50 + began.elapsed().as_secs() as usize / 72,
        };
        println!("{algorithm} on {}: {admitted} admitted", store.map_or("memory", |_| "Redis"));
        assert!((50..=most).contains(&admitted), "{algorithm}: {admitted} of {most}");
    }
}

fn reload(server: &Spillgate, folder: &Folder, descriptors: &str) {
    folder.write("rules.yaml", &format!("domain: api\ndescriptors:\n{descriptors}"));
    let said = || server.process.stderr().iter().filter(|line| line.contains("rules reloaded")).count();
    let before = said();
    signal(server.process.id(), "HUP");
    crate::support::eventually("a reload", || (said() > before).then_some(()));
}
