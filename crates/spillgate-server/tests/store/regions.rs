//! Tests of servers in several regions, each with a Redis server of its own, that share a limit.

mod deploy;

use serde_json::Value;

use crate::cli_support::Folder;
use crate::store::fleet::{LONG_DEADLINE, check, logged, serve, until_store};
use crate::support::eventually;
use crate::support::http;
use crate::support::redis::Redis;
use crate::support::spillgate::Spillgate;

const SECRET: &str = "000102030405060708090a0b0c0d0e0f";
const BUCKET: &str = "domain: api\ndescriptors:\n  - key: user\n    rate_limit: {unit: day, limit: 10, algorithm: token_bucket, \
                      across_regions: shared}\n";

fn folder(secret: &str) -> Folder {
    Folder::new(&[("rules.yaml", BUCKET), ("secret", secret)])
}

/// Starts a server of the region `name`, which has its counts in `own`.
fn region(folder: &Folder, (name, own): (&str, &str), peers: &str) -> Spillgate {
    let secret = folder.path("secret");
    let regions =
        ["--regions-name", name, "--regions-peers", peers, "--regions-default", "each", "--regions-sync", "20ms"];
    let secret = ["--store-key-secret-file", secret.to_str().expect("the path is text"), "--allow-grpc", "[]"];
    serve(folder, own, &[&LONG_DEADLINE[..], &regions, &secret].concat())
}

/// Returns how many units the region has left of the limit of a user.
fn left(server: &Spillgate, user: &str) -> u64 {
    let body = format!(r#"{{"domain":"api","descriptors":[{{"user":"{user}"}}],"cost":0}}"#);
    let answer = http::request(server.http(), "POST", "/v1/check", &[], &body).expect("the server answers");
    let answer: Value = serde_json::from_str(&answer.body).expect("the answer is JSON");
    answer["remaining"].as_u64().unwrap_or_else(|| panic!("{answer}"))
}

#[test]
fn two_regions_have_one_limit_and_each_its_share() {
    let (eu, us, folder) = (Redis::start(), Redis::start(), folder(SECRET));
    let in_eu = region(&folder, ("eu", &eu.url()), &format!("us={}", us.url()));
    let in_us = region(&folder, ("us", &us.url()), &format!("eu={}", eu.url()));
    [&in_eu, &in_us].iter().for_each(|server| until_store(server.http(), "user", "first"));
    for _ in 0..6 {
        assert_eq!(check(in_eu.http(), "user", "ann").0, 200);
    }
    eventually("the other region knows six units", || (left(&in_us, "ann") == 4).then_some(()));
    for _ in 0..4 {
        assert_eq!(check(in_us.http(), "user", "ann").0, 200);
    }
    eventually("both regions know ten units", || (left(&in_eu, "ann") == 0 && left(&in_us, "ann") == 0).then_some(()));
    // The bucket is empty. Each region still has its guaranteed share: five at once.
    for server in [&in_eu, &in_us] {
        let statuses: Vec<u16> = (0..7).map(|_| check(server.http(), "user", "ann").0).collect();
        assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429]);
    }
    // What is told at the end: a server that leaves tells every unit.
    let mut leaving = in_eu;
    for _ in 0..7 {
        assert_eq!(check(leaving.http(), "user", "bob").0, 200);
    }
    leaving.process.terminate();
    assert!(leaving.process.wait().success());
    assert_eq!(left(&in_us, "bob"), 3, "a server tells everything before it ends");
}

#[test]
fn a_region_with_another_secret_is_told_nothing_and_one_that_is_away_stops_no_start() {
    let (eu, us, ours, theirs) =
        (Redis::start(), Redis::start(), folder(SECRET), folder("ff0102030405060708090a0b0c0d0e0f"));
    let in_us = region(&theirs, ("us", &us.url()), &format!("eu={}", eu.url()));
    until_store(in_us.http(), "user", "first");
    eventually("the region has written what it is", || {
        us.run(&["GET", "sg:{regions}"]).contains("region=us").then_some(())
    });
    let peers = format!("us={},ap=redis://127.0.0.1:1", us.url());
    let in_eu = region(&ours, ("eu", &eu.url()), &peers);
    until_store(in_eu.http(), "user", "first");
    logged(&in_eu.process, "another key secret");
    logged(&in_eu.process, "another number of regions");
    for _ in 0..3 {
        assert_eq!(check(in_eu.http(), "user", "ann").0, 200);
    }
    assert_eq!(http::get(in_eu.admin(), "/readyz", &[]).status, 200, "no region keeps another from being ready");
    let keys = us.run(&["KEYS", "*@*"]);
    assert_eq!(keys.trim(), "", "nothing was told: {keys}");
}
