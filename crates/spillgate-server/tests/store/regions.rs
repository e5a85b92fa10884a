//! Tests of servers in several regions, each with a Redis server of its own, that share a limit.

mod deploy;

use std::collections::BTreeMap;

use serde_json::Value;

use crate::cli_support::{Folder, Output};
use crate::metrics::page::Page;
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

/// Starts a server of the region `name`, which has its counts in `own`. A limit that does not say it is that of each region.
fn region(folder: &Folder, own: (&str, &str), peers: &str) -> Spillgate {
    region_with(folder, own, peers, &["--regions-default=each"])
}

fn region_with(folder: &Folder, (name, own): (&str, &str), peers: &str, more: &[&str]) -> Spillgate {
    let secret = folder.path("secret");
    let regions = ["--regions-name", name, "--regions-peers", peers, "--regions-sync", "20ms"];
    let secret = ["--store-key-secret-file", secret.to_str().expect("the path is text"), "--allow-grpc", "[]"];
    serve(folder, own, &[&LONG_DEADLINE[..], &regions, &secret, more].concat())
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
    // What an operator sees of it.
    eventually("all units are acknowledged", || {
        (Page::of(in_eu.admin()).sum("spillgate_region_waiting_keys", &[("region", "us")]) == 0).then_some(())
    });
    eventually("both regions have said what they are", || {
        (Page::of(in_eu.admin()).sum("spillgate_region_differs", &[("region", "us")]) == 0).then_some(())
    });
    let page = Page::of(in_eu.admin());
    let of_us = |name: &str| page.sum(name, &[("region", "us")]);
    assert_eq!((of_us("spillgate_region_cut_off"), of_us("spillgate_region_differs")), (0, 0), "{}", page.text);
    assert!(of_us("spillgate_region_units_sent_total") >= 6, "{}", page.text);
    assert_eq!(of_us("spillgate_region_units_dropped_total"), 0);
    assert!(of_us("spillgate_region_delay_seconds_count") >= 1, "{}", page.text);
    assert!(page.sum("spillgate_region_entries_total", &[("region", "us"), ("result", "charged")]) >= 1);
    assert_eq!(page.sum("spillgate_guaranteed_total", &[]), 5, "{}", page.text);
    assert_eq!(page.sum("spillgate_region_units_untold_total", &[]), 0);
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
    let differs = |what| Page::of(in_eu.admin()).sum("spillgate_region_differs", &[("region", "us"), ("what", what)]);
    assert_eq!(["secret", "regions", "format", "own_store"].map(differs), [1, 1, 0, 0]);
    eventually("the region that is away is cut off", || {
        (Page::of(in_eu.admin()).sum("spillgate_region_cut_off", &[("region", "ap")]) == 1).then_some(())
    });
    let keys = us.run(&["KEYS", "*@*"]);
    assert_eq!(keys.trim(), "", "nothing was told: {keys}");
}

/// Runs a command for operators at a server.
fn operate(folder: &Folder, server: &Spillgate, arguments: &str) -> Output {
    folder.run(&format!("{arguments} --admin http://{}", server.admin()))
}

#[test]
fn an_operator_sees_the_other_regions_pauses_one_and_resumes_it() {
    let (eu, us, folder) = (Redis::start(), Redis::start(), folder(SECRET));
    let in_eu = region(&folder, ("eu", &eu.url()), &format!("us={}", us.url()));
    let in_us = region(&folder, ("us", &us.url()), &format!("eu={}", eu.url()));
    [&in_eu, &in_us].iter().for_each(|server| until_store(server.http(), "user", "first"));
    let seen = |server: &Spillgate| -> Value {
        let output = operate(&folder, server, "regions --json");
        serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    };
    eventually("the regions are compared", || (seen(&in_eu)["regions"][0]["compared"] == true).then_some(()));
    assert_eq!(seen(&in_eu)["regions"][0]["told"], true);
    let text = operate(&folder, &in_eu, "regions");
    assert_eq!((text.code, text.stderr.as_str()), (0, ""));
    assert!(text.stdout.contains("us") && text.stdout.contains("reached"), "{}", text.stdout);
    assert!(
        text.stdout.contains("this server is in the region eu, and remembers 1 entry for the others"),
        "{}",
        text.stdout
    );

    let paused = operate(&folder, &in_eu, "regions pause us");
    assert!(paused.code == 0 && paused.stdout.contains("sends nothing to us until"), "{paused:?}");
    for _ in 0..3 {
        assert_eq!(check(in_eu.http(), "user", "ann").0, 200);
    }
    let of_us = seen(&in_eu)["regions"][0].clone();
    assert_eq!((&of_us["paused"], &of_us["told"]), (&Value::Bool(true), &Value::Bool(false)), "{of_us}");
    assert_eq!(of_us["waiting_keys"], 1, "{of_us}");
    assert!(operate(&folder, &in_eu, "regions").stdout.contains("paused"));
    assert_eq!(left(&in_us, "ann"), 10, "a region that is paused is told nothing");
    let resumed = operate(&folder, &in_eu, "regions resume us");
    assert!(resumed.code == 0 && resumed.stdout.contains("with what still waits"), "{resumed:?}");
    eventually("what waited is told", || (left(&in_us, "ann") == 7).then_some(()));

    let unknown = operate(&folder, &in_eu, "regions pause ap");
    assert_eq!((unknown.code, unknown.stdout.as_str()), (1, ""));
    assert!(unknown.stderr.contains("no other region has the name `ap`"), "{unknown:?}");
    assert!(unknown.stderr.contains("the other regions are us"), "{unknown:?}");
    assert_eq!(operate(&folder, &in_eu, "regions pause u/s").code, 2);
    assert_eq!(operate(&folder, &in_eu, "regions pause").code, 2);

    let reset = operate(&folder, &in_eu, "reset --domain api --descriptor user=ann");
    assert!(reset.stdout.starts_with("all units are there again: 1 limit\n  api: user"), "{reset:?}");
    assert!(reset.stdout.ends_with("\nOther regions share it: repeat the reset in us\n"), "{reset:?}");
    assert_eq!((left(&in_eu, "ann"), left(&in_us, "ann")), (10, 7), "a reset is one of its own region");
}

#[test]
fn a_server_without_other_regions_says_so() {
    let folder = Folder::new(&[("rules.yaml", &BUCKET.replace("shared", "each"))]);
    let server = Spillgate::serve(&folder.path("rules.yaml"), &[]);
    let seen = operate(&folder, &server, "regions");
    assert!(seen.code == 0 && seen.stdout.starts_with("this server tells no other region what it admits"), "{seen:?}");
    let paused = operate(&folder, &server, "regions pause us");
    assert!(paused.code == 1 && paused.stderr.contains("`regions.peers` and a shared store"), "{paused:?}");
}

/// Writes the settings of a server of eu, whose peer is `us`.
fn write_settings(folder: &Folder, own: &Redis, us: &str) {
    let store = format!("store: {{url: '{}', key_secret_file: secret, expected_nodes: 2}}\n", own.url());
    let regions = format!(
        "regions: {{name: eu, default: each, peers: {{us: {us}}}}}\nallow: {{grpc: []}}\nrules: [rules.yaml]\n"
    );
    folder.write("eu.yaml", &(store + &regions));
}

/// Returns the grade and the texts of each finding of the doctor about the region us.
fn examined(folder: &Folder) -> BTreeMap<String, (String, String)> {
    let output = folder.run("doctor --json --config eu.yaml");
    let report: Value = serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let of_us = report["findings"].as_array().into_iter().flatten().filter(|finding| finding["server"] == "region us");
    let text = |finding: &Value, name: &str| finding[name].as_str().unwrap_or_default().to_owned();
    let row =
        |it: &Value| (text(it, "what"), (text(it, "grade"), format!("{} {}", text(it, "found"), text(it, "help"))));
    of_us.map(row).collect()
}

#[test]
fn the_doctor_examines_each_region_and_charges_it_once() {
    let (eu, us, folder) = (Redis::start(), Redis::start(), folder(SECRET));
    us.run(&["ACL", "SETUSER", "eu", "on", ">pw", "~sg:*", "+evalsha", "+script|load", "+get", "+set", "+hget"]);
    folder.write("pw", "pw");
    let of_user = format!("{{url: '{}', user: eu, password_file: pw}}", us.url());
    write_settings(&folder, &eu, &of_user);
    let found = examined(&folder);
    let grade = |found: &BTreeMap<String, (String, String)>, what: &str| found[what].0.clone();
    assert_eq!((grade(&found, "rights"), grade(&found, "round")), ("fix".to_owned(), "fix".to_owned()), "{found:?}");
    let line = "ACL SETUSER eu ~sg:* +evalsha +script|load +get +set +hget +hset +pexpire +time";
    let rights = &found["rights"].1;
    assert!(rights.contains("not allowed: HSET, PEXPIRE, TIME") && rights.contains(line), "{rights}");
    us.run(&line.split(' ').collect::<Vec<_>>());
    let found = examined(&folder);
    let grades: Vec<_> = found.iter().map(|(what, (grade, _))| (what.as_str(), grade.as_str())).collect();
    // Nobody has said what the region us is, and this user may not ask for the eviction policy.
    let expected = [
        ("agreement", "note"),
        ("clock", "ok"),
        ("eviction", "note"),
        ("reach", "ok"),
        ("rights", "ok"),
        ("round", "ok"),
    ];
    assert_eq!(grades, expected, "{found:?}");
    assert!(found["round"].1.contains("a unit was charged and is known there"), "{found:?}");
    us.run(&["ACL", "SETUSER", "eu", "+info"]);
    let said = |text: &str| us.run(&["SET", "sg:{regions}", text]);
    for (text, parts) in [
        (
            "regions=3 format=1 secret=00000000000000ff region=us",
            &["another number of regions", "another key secret"][..],
        ),
        ("regions=2 format=2 secret=00000000000000ff region=us", &["another version of what regions tell each other"]),
        ("regions=2 format=1 secret=00000000000000ff region=eu", &["the store of this region"]),
        ("\u{1b}[2Jsomething else", &["another version of what regions tell each other"]),
    ] {
        said(text);
        let output = folder.run("doctor --config eu.yaml");
        assert_eq!(output.code, 1, "{output:?}");
        for part in parts {
            assert!(output.stdout.contains(part) && !output.stdout.contains('\u{1b}'), "{part}: {}", output.stdout);
        }
        let found = examined(&folder);
        assert!(!found.contains_key("round") && grade(&found, "agreement") == "fix", "{found:?}");
        assert_eq!((grade(&found, "eviction"), grade(&found, "role")), ("ok".to_owned(), "ok".to_owned()), "{found:?}");
    }
    us.run(&["REPLICAOF", "127.0.0.1", "1"]);
    assert_eq!(grade(&examined(&folder), "role"), "fix");
    us.run(&["REPLICAOF", "NO", "ONE"]);
    // A server of us with the same settings agrees.
    let in_us = region(&folder, ("us", &us.url()), &format!("eu={}", eu.url()));
    eventually("the region agrees", || (grade(&examined(&folder), "agreement") == "ok").then_some(()));
    drop(in_us);
    write_settings(&folder, &eu, "redis://127.0.0.1:1");
    let found = examined(&folder);
    assert_eq!(found.keys().collect::<Vec<_>>(), ["reach"], "{found:?}");
    assert!(found["reach"].1.contains("redis://127.0.0.1:1 cannot be reached"), "{found:?}");
    write_settings(&folder, &eu, &of_user.replace("pw", "wrong"));
    folder.write("wrong", "wrong");
    assert!(
        examined(&folder)["reach"].1.contains("`regions.peers.us.user` and `regions.peers.us.password_file`"),
        "{:?}",
        examined(&folder)
    );
}

#[test]
fn files_of_a_region_are_named_by_its_settings() {
    let (eu, folder) = (Redis::start(), folder(SECRET));
    for (us, setting) in [
        ("{url: 'redis://h:1', user: u, password_file: none}", "`regions.peers.us.password_file`"),
        ("{url: 'rediss://h:1', tls: {ca: none}}", "`regions.peers.us.tls.ca`"),
    ] {
        write_settings(&folder, &eu, us);
        let output = folder.run("validate --config eu.yaml");
        assert!(output.code == 2 && output.stderr.contains(setting), "{output:?}");
    }
    folder.write("rules.yaml", &BUCKET.replace("shared", "each"));
    write_settings(&folder, &eu, "redis://h:1");
    let text = std::fs::read_to_string(folder.path("eu.yaml")).expect("the file is there");
    folder.write("eu.yaml", &text.replace("name: eu,", "name: eu, user: u, password_file: none,"));
    let output = folder.run("validate --config eu.yaml");
    assert!(output.code == 2 && output.stderr.contains("`regions.password_file`"), "{output:?}");
}

#[test]
fn validate_says_what_regions_admit_together() {
    let (eu, folder) = (Redis::start(), folder(SECRET));
    let minute = "{unit: minute, limit: 600, algorithm: token_bucket, across_regions: shared}";
    let rules = format!("domain: api\ndescriptors: [{{key: user_id, rate_limit: {minute}}}]\n");
    folder.write("rules.yaml", &rules);
    write_settings(&folder, &eu, "redis://h:1, ap: redis://h:2");
    let output = folder.run("validate --config eu.yaml");
    let expected = "
api: user_id  600 per minute, token bucket, burst 600, shared by 3 regions (eu, us, ap)
  at once           600 + 24 guaranteed + 24 untold + what two regions admit in 500ms; at worst 1,824, if requests cost 1
  each region       at least 200 per minute if it asks for more, whatever the others do
  in the long run   at most 624 per minute (up to 24 units stay untold)
  a region cut off  about twice the limit and the guaranteed shares, until it is heard again
";
    assert!(output.code == 0 && output.stdout.ends_with(expected), "{output:?}");
    folder.write(
        "slow.yaml",
        &std::fs::read_to_string(folder.path("eu.yaml"))
            .expect("it is there")
            .replace("regions: {", "regions: {sync: 2s, "),
    );
    let slow = folder.run("validate --config slow.yaml");
    assert!(slow.stdout.contains("what two regions admit in 2.4s;"), "{slow:?}");
    folder.write("rules.yaml", &rules.replace("600", "0"));
    let nothing = folder.run("validate --config eu.yaml");
    assert!(nothing.code == 0 && nothing.stdout.ends_with(", good\n"), "{nothing:?}");
    folder.write("rules.yaml", &rules);
    let json: Value = serde_json::from_str(&folder.run("validate --config eu.yaml --json").stdout).expect("it is JSON");
    let lines = &json["shared_limits"][0]["lines"];
    assert_eq!(lines["cut_off"], "about twice the limit and the guaranteed shares, until it is heard again", "{json}");
}

#[test]
fn a_shared_limit_needs_settings_by_which_regions_can_share_it() {
    let folder = folder(SECRET);
    let regions = "regions: {name: eu, default: each, peers: {us: redis://h:1}}\nrules: [rules.yaml]\n";
    for (settings, why, help) in [
        ("", "the store is memory", "set `store.url`"),
        (
            "store: {url: 'redis://h:2', key_secret_file: secret, expected_nodes: 2, scripts: off}\nallow: {grpc: []}\n",
            "store.scripts: off",
            "remove `store.scripts: off`",
        ),
        (
            "store: {url: 'redis://h:2', expected_nodes: 2}\nallow: {grpc: []}\n",
            "there is no key secret",
            "set `store.key_secret_file`",
        ),
        (
            "store: {url: 'redis://h:2', key_secret_file: secret}\nallow: {grpc: []}\n",
            "the number of servers is not set",
            "set `store.expected_nodes`",
        ),
        (
            "store: {url: 'redis://h:2', key_secret_file: secret, expected_nodes: 2}\nallow: {grpc: [override]}\n",
            "callers over gRPC may replace it",
            "set `allow.grpc: []`",
        ),
        (
            "store: {url: 'redis://h:2', key_secret_file: secret, expected_nodes: 2}\nallow: {grpc: [], http: [override]}\n",
            "callers over HTTP may replace it",
            "set `allow.http: []`",
        ),
    ] {
        folder.write("eu.yaml", &format!("{settings}{regions}"));
        let output = folder.run("validate --config eu.yaml");
        assert_eq!(output.code, 2, "{settings}: {output:?}");
        let begin = "rules.yaml:4: this limit is shared by regions, but ";
        for part in [begin, why, help, "or write `across_regions: split` or `each` for this limit"] {
            assert!(output.stderr.contains(part), "{part}: {}", output.stderr);
        }
    }
}

#[test]
fn what_a_shared_limit_does_not_support_is_an_error_with_its_name() {
    let (eu, folder) = (Redis::start(), folder(SECRET));
    let in_eu = region_with(
        &folder,
        ("eu", &eu.url()),
        "us=redis://127.0.0.1:1",
        &["--regions-default=shared", "--allow-http=refund"],
    );
    until_store(in_eu.http(), "user", "first");
    assert_eq!(check(in_eu.http(), "user", "ann").0, 200);
    let ask =
        |path: &str, body: &str| http::request(in_eu.http(), "POST", path, &[], body).expect("the server answers");
    for (path, body) in [
        (
            "/json",
            r#"{"domain":"api","descriptors":[{"entries":[{"key":"user","value":"ann"}],"hitsAddend":"1","isNegativeHits":true}]}"#,
        ),
        ("/v1/reserve", r#"{"domain":"api","descriptors":[{"user":"ann"}],"estimate":3}"#),
    ] {
        let answer = ask(path, body);
        assert_eq!(answer.status, 400, "{path}: {}", answer.body);
        assert!(
            answer.body.contains("descriptor 1 (rule `user`): a limit that regions share"),
            "{path}: {}",
            answer.body
        );
        assert!(answer.body.contains("across_regions: split"), "{path}: {}", answer.body);
    }
    assert_eq!(left(&in_eu, "ann"), 9, "nothing was charged");
    // A limit that comes with a call belongs to each region.
    let hit = r#"{"bucket":"login","key":"7","limit":1,"window_ms":86400000,"algorithm":"token_bucket"}"#;
    assert_eq!([ask("/v1/hit", hit).status, ask("/v1/hit", hit).status], [200, 429]);
    let page = Page::of(in_eu.admin());
    assert_eq!(page.sum("spillgate_guaranteed_total", &[]), 0, "it has no share: {}", page.text);
}

#[test]
fn a_peer_that_is_the_own_store_is_told_nothing() {
    let (eu, folder) = (Redis::start(), folder(SECRET));
    let own = eu.url().replace("127.0.0.1", "localhost");
    let in_eu = region(&folder, ("eu", &eu.url()), &format!("us={own}"));
    until_store(in_eu.http(), "user", "first");
    eventually("the peer is compared", || {
        let page = Page::of(in_eu.admin());
        (page.sum("spillgate_region_differs", &[("region", "us"), ("what", "own_store")]) == 1).then_some(())
    });
    logged(&in_eu.process, "has the store of this region");
    assert_eq!(check(in_eu.http(), "user", "ann").0, 200);
    let seen = operate(&folder, &in_eu, "regions");
    assert!(seen.stdout.contains("told nothing") && seen.stdout.contains("correct regions.peers"), "{seen:?}");
    assert_eq!(eu.run(&["KEYS", "*@*"]).trim(), "");
    assert_eq!(left(&in_eu, "ann"), 9, "no unit was charged twice");
}

#[test]
fn a_peer_with_another_name_or_without_servers_is_told_and_shown() {
    let (eu, us, folder) = (Redis::start(), Redis::start(), folder(SECRET));
    let in_eu = region(&folder, ("eu", &eu.url()), &format!("asia={}", us.url()));
    let differs = |what: &'static str| {
        let in_eu = &in_eu;
        move || {
            let page = Page::of(in_eu.admin());
            (page.sum("spillgate_region_differs", &[("region", "asia"), ("what", what)]) == 1).then_some(())
        }
    };
    eventually("nobody has said what the region is", differs("nobody"));
    logged(&in_eu.process, "has not said yet what it is");
    let in_us = region(&folder, ("us", &us.url()), &format!("eu={}", eu.url()));
    [&in_eu, &in_us].iter().for_each(|server| until_store(server.http(), "user", "first"));
    eventually("it has another name", differs("name"));
    logged(&in_eu.process, "has another name in its own settings");
    let seen = operate(&folder, &in_eu, "regions");
    assert!(seen.stdout.contains("reached") && seen.stdout.contains("asia has another name"), "{seen:?}");
    assert_eq!(check(in_eu.http(), "user", "ann").0, 200);
    eventually("it is told all the same", || (left(&in_us, "ann") == 9).then_some(()));
    write_settings(&folder, &eu, &us.url());
    folder.write(
        "eu.yaml",
        &std::fs::read_to_string(folder.path("eu.yaml")).expect("it is there").replace("{us:", "{asia:"),
    );
    let output = folder.run("doctor --config eu.yaml");
    assert!(output.code == 1 && output.stdout.contains("it has another name in its own settings"), "{output:?}");
}

#[test]
fn an_explanation_says_what_other_regions_charged_and_asks_the_share() {
    let (eu, us, folder) = (Redis::start(), Redis::start(), folder(SECRET));
    let in_eu = region(&folder, ("eu", &eu.url()), &format!("us={}", us.url()));
    let in_us = region(&folder, ("us", &us.url()), &format!("eu={}", eu.url()));
    [&in_eu, &in_us].iter().for_each(|server| until_store(server.http(), "user", "first"));
    let explain = |server: &Spillgate| operate(&folder, server, "explain --domain api --descriptor user=ann");
    let nothing = explain(&in_eu);
    assert!(nothing.code == 0 && nothing.stdout.contains(" UTC: nothing"), "{nothing:?}");
    for _ in 0..10 {
        assert_eq!(check(in_us.http(), "user", "ann").0, 200);
    }
    eventually("the region knows ten units", || (left(&in_eu, "ann") == 0).then_some(()));
    let told = explain(&in_eu);
    assert!(
        told.stdout.contains("charged by other regions since") && told.stdout.contains(" UTC: 10 by us"),
        "{told:?}"
    );
    // The bucket is full, and the share of this region admits.
    assert_eq!((told.code, left(&in_eu, "ann")), (0, 0), "{told:?}");
    assert!(told.stdout.starts_with("Allowed now"), "{told:?}");
    write_settings(&folder, &eu, &us.url());
    let ask = |more: &[&str]| {
        folder.run_with(
            &[&["check", "--config", "eu.yaml", "--domain", "api", "--descriptor", "user=ann"], more].concat(),
            &[],
        )
    };
    let checked = ask(&[]);
    assert!(checked.code == 0 && checked.stdout.contains(" UTC: 10 by us"), "{checked:?}");
    let taken = ask(&["--take"]);
    assert!(taken.code == 2 && taken.stderr.contains("only a server tells the others"), "{taken:?}");
    for _ in 0..5 {
        assert_eq!(check(in_eu.http(), "user", "ann").0, 200, "the share admits five");
    }
    let refused = explain(&in_eu);
    assert_eq!((refused.code, check(in_eu.http(), "user", "ann").0), (1, 429), "{refused:?}");
}
