//! Tests of `spillgate check --store` and `spillgate key`.
//!
//! Operators use these commands to see the counts and the Redis keys of a fleet (servers that share a store). So both
//! commands must agree with the servers.

use serde_json::Value;
use spillgate_testkit::free_port;

use crate::cli_support::{Folder, Output, signal};
use crate::store::fleet::{LONG_DEADLINE, decided, rules, serve};
use crate::support::eventually;
use crate::support::redis::{Cluster, Redis};

pub(crate) const LIMITS: &str = "  - key: user
    rate_limits:
      - {name: bucket, unit: year, requests_per_unit: 3, algorithm: token_bucket}
      - {name: log, unit: year, requests_per_unit: 5, algorithm: sliding_window_log}
  - key: charged
    rate_limit: {unit: year, requests_per_unit: 2, denied: charged}
  - key: penalty
    rate_limit: {unit: year, requests_per_unit: 2, penalty: 1h}
  - key: queue
    rate_limit: {algorithm: leaky_bucket, unit: hour, requests_per_unit: 1, queue: 1}
  - key: free
";

pub(crate) fn json(output: &Output) -> Value {
    serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Runs `spillgate check --store` and returns its exit code and JSON. Without `--take`, the command only peeks: it shows
/// the result of a request, and takes no unit.
fn run_check(folder: &Folder, redis: &Redis, arguments: &str) -> (i32, Value) {
    let output = folder.run(&format!("check rules.yaml -d api --json --store {} {arguments}", redis.url()));
    (output.code, json(&output))
}

/// Returns three values for each limit: whether the limit allows the request, the units that remain before the request,
/// and the units that remain after the request.
fn limits(answer: &Value) -> Vec<(bool, u64, u64)> {
    let left = |limit: &Value, when: &str| limit[when]["remaining"].as_u64().expect("`remaining` is a number");
    let limits = answer["asked"][0]["limits"].as_array().expect("the answer lists limits").iter();
    limits.map(|limit| (limit["allowed"] == true, left(limit, "before"), left(limit, "after"))).collect()
}

#[test]
fn check_peeks_at_the_store_and_takes_only_with_the_flag() {
    let (redis, folder) = (Redis::start(), rules(LIMITS));
    let peek = |arguments: &str| run_check(&folder, &redis, &format!("-e user=7 {arguments}"));
    let (code, answer) = peek("");
    assert_eq!((code, limits(&answer)), (0, vec![(true, 3, 2), (true, 5, 4)]));
    assert_eq!((&answer["takes"], redis.keys(&[]).len()), (&Value::Bool(false), 0));
    let (code, answer) = peek("--cost 4");
    assert_eq!((code, limits(&answer)), (1, vec![(false, 3, 3), (true, 5, 5)]));
    assert_eq!(answer["asked"][0]["limits"][0]["reason"], "cost_above_capacity");
    let (code, answer) = peek("--cost 3 --take");
    assert_eq!((code, limits(&answer)), (0, vec![(true, 3, 0), (true, 5, 2)]));
    let (code, answer) = peek("");
    assert_eq!((code, limits(&answer)), (1, vec![(false, 0, 0), (true, 2, 2)]));
    // The bucket gets one unit in each third of a year, which is about 121.7 days. The wait is a little shorter,
    // because some time has passed since the command took the units.
    let day_ns = 86_400_000_000_000_u64;
    let retry_ns = answer["asked"][0]["retry_after_ns"].as_u64().expect("the answer has a wait");
    assert!((121 * day_ns..=122 * day_ns).contains(&retry_ns), "{retry_ns}");
    let server = serve(&folder, &redis.url(), &LONG_DEADLINE);
    assert_eq!(
        decided(server.http(), "user", "7").0,
        429,
        "the command took all units of the bucket, so a server refuses the request"
    );
    assert_eq!(peek("").1["asked"][0]["limits"][1]["before"]["remaining"], 2);
}

#[test]
fn a_peek_starts_no_penalty_and_charges_no_refusal() {
    let (redis, folder) = (Redis::start(), rules(LIMITS));
    for key in ["charged", "penalty"] {
        for _ in 0..2 {
            let (code, answer) = run_check(&folder, &redis, &format!("-e {key}=7 --cost 3"));
            // If the command sent the request, no unit would be left. It only peeks, so the next command finds 2 units.
            assert_eq!((code, limits(&answer)), (1, vec![(false, 2, 0)]), "{key}");
        }
        assert_eq!(run_check(&folder, &redis, &format!("-e {key}=7 --take")).0, 0);
        let (code, answer) = run_check(&folder, &redis, &format!("-e {key}=7"));
        assert_eq!((code, limits(&answer)), (0, vec![(true, 1, 0)]), "{key}");
        assert_eq!(run_check(&folder, &redis, &format!("-e {key}=7 --cost 2 --take")).0, 1);
    }
    let reason =
        |key: &str| run_check(&folder, &redis, &format!("-e {key}=7")).1["asked"][0]["limits"][0]["reason"].clone();
    assert_eq!(["charged", "penalty"].map(reason), ["exceeded", "penalty"]);
}

#[test]
fn a_peek_and_the_take_after_it_have_the_same_result() {
    let redis = Redis::start();
    let one = "{unit: year, requests_per_unit: 1}";
    let folder = rules(&format!(
        "  - {{key: user, rate_limit: {one}}}\n  - {{key: watched, shadow_mode: true, rate_limit: {one}}}\n  \
         - key: both\n    rate_limits:\n      - {one}\n      - {{unit: day, anchor: first_hit, requests_per_unit: 9}}\n  \
         - {{key: afterwards, rate_limit: {{unit: year, requests_per_unit: 1, post_paid: true}}}}\n"
    ));
    folder.write("shadow.yaml", "shadow: true\n");
    folder.write("narrow.yaml", "limits: {descriptors: 1}\n");
    let many: Vec<_> = (0..33).map(|number| format!("-e user=many-{number}")).collect();
    for (settings, descriptors, code) in [
        ("", "-e user=a", 0),
        ("", "-e user=a", 1),
        ("", "-e user=b -e user=b", 1),
        ("-c shadow.yaml", "-e user=a", 0),
        ("-c shadow.yaml", "-e user=c --cost 2", 0),
        ("", "-e watched=a", 0),
        ("", "-e watched=a", 0),
        ("", "-e both=a -e user=d", 0),
        ("", "-e both=a -e user=e", 1),
        ("", "-e user=e", 0),
        ("", "-e afterwards=a --cost 2", 0),
        ("", "-e afterwards=a --cost 2", 0),
        ("-c narrow.yaml", "-e user=f -e user=g", 2),
        ("", &many.join(" "), 2),
    ] {
        let [peeked, took] =
            ["", "--take"].map(|take| run_check(&folder, &redis, &format!("{settings} {descriptors} {take}")));
        assert_eq!((peeked.0, took.0), (code, code), "{descriptors}: {} {}", peeked.1, took.1);
        if code == 2 {
            assert_eq!(peeked.1, took.1, "{descriptors}");
            continue;
        }
        let result = |answer: &Value| (answer["asked"][0]["allowed"].clone(), limits(answer));
        assert_eq!(result(&peeked.1), result(&took.1), "{descriptors}");
        for limit in peeked.1["asked"][0]["limits"].as_array().expect("the answer lists limits") {
            let is_known = limit["after"]["reset_after_ns"].is_u64();
            let is_taken = limit["before"]["remaining"] != limit["after"]["remaining"];
            assert!(if is_taken { !is_known } else { is_known || code == 0 }, "{descriptors}: {limit}");
        }
    }
}

#[test]
fn a_peek_that_cannot_predict_the_take_says_so() {
    let (redis, folder) = (Redis::start(), rules(""));
    let text = "domain: api\ncompat: envoy\ndescriptors: [{key: a, rate_limit: {unit: year, requests_per_unit: 1}}]\n";
    folder.write("rules.yaml", text);
    let (code, answer) = run_check(&folder, &redis, "-e a=1 -e a=1");
    assert!(code == 2 && answer["errors"][0]["help"].to_string().contains("--take"), "{answer}");
    assert_eq!(run_check(&folder, &redis, "-e a=1").0, 0);
    assert_eq!(run_check(&folder, &redis, "-e a=1 -e a=1 --take").0, 1);
}

#[test]
fn check_reports_the_delay_of_a_queue() {
    let (redis, folder) = (Redis::start(), rules(LIMITS));
    assert_eq!(run_check(&folder, &redis, "-e queue=7 --take").0, 0);
    assert_eq!(
        run_check(&folder, &redis, "-e queue=7").0,
        1,
        "without --wait, a request that would have to wait is refused"
    );
    let (code, answer) = run_check(&folder, &redis, "-e queue=7 --wait 2h");
    let delay_ns = answer["asked"][0]["delay_ns"].as_u64().expect("the answer has a delay");
    assert!(code == 0 && (1..=3_600_000_000_000).contains(&delay_ns), "{answer}");
    assert_eq!(run_check(&folder, &redis, "-e free=7").0, 0, "the rule `free` has no limit");
}

#[test]
fn check_without_a_store_says_what_is_wrong() {
    let folder = rules(LIMITS);
    let run = |arguments: &str| folder.run(&format!("check rules.yaml -d api -e user=7 {arguments}"));
    let url = format!("redis://127.0.0.1:{}", free_port());
    let gone = run(&format!("--store {url}"));
    assert_eq!((gone.code, gone.stdout.as_str()), (3, ""));
    assert!(gone.stderr.contains(&format!("the store {url} cannot be reached")), "{}", gone.stderr);
    let redis = Redis::start();
    assert_eq!(redis.run(&["acl", "setuser", "default", "-evalsha"]), "OK");
    let refused = run(&format!("--store {}", redis.url()));
    assert!(refused.code == 3 && refused.stderr.contains("did not decide: noperm: "), "{refused:?}");
    assert!(refused.stderr.contains("evalsha"), "{refused:?}");
    for (arguments, expected) in [
        ("--take", "--take is for a shared store"),
        ("--take --store memory", "name a shared store with --store"),
        (&format!("--store {url} --at 0s"), "--at sets a clock"),
        ("--store-key-secret-file none", "is for a shared store"),
        (&format!("--store {url} --store-key-secret-file none"), "the key secret none cannot be read"),
    ] {
        let output = run(arguments);
        assert!(output.code == 2 && output.stderr.contains(expected), "{arguments}: {output:?}");
    }
}

/// A server decides the keys of the other nodes too, so an operator needs to see them during an outage.
#[test]
fn check_needs_only_the_nodes_of_its_keys() {
    let (mut cluster, folder) = (Cluster::start(), rules(LIMITS));
    for node in &cluster.nodes {
        node.run(&["config", "set", "cluster-require-full-coverage", "no"]);
    }
    let address = cluster.nodes[1].url().replace("redis://", "");
    let url = cluster.url();
    let run = |user: usize| folder.run(&format!("check rules.yaml -d api -e user={user} --store {url}"));
    let [mut live, mut lost] = [None; 2];
    cluster.nodes[1].kill();
    for user in 0..50 {
        let output = run(user);
        match output.code {
            0 => live = Some(user),
            _ => {
                assert!(output.code == 3 && output.stderr.contains(&address), "{output:?}");
                lost = Some(user);
            }
        }
        if live.is_some() && lost.is_some() {
            break;
        }
    }
    let (live, lost) = live.zip(lost).expect("some keys are on the node, and others are not");
    cluster.nodes[1].start_again();
    eventually("the node is back", || (run(lost).code == 0).then_some(()));
    signal(cluster.nodes[1].id(), "STOP");
    assert_eq!(run(live).code, 0);
    let output = run(lost);
    assert!(output.code == 3 && output.stderr.contains(&address), "{output:?}");
}

#[test]
fn check_asks_the_store_that_a_file_or_a_variable_names() {
    let (redis, folder) = (Redis::start(), rules(LIMITS));
    folder.write("secret", "000102030405060708090a0b0c0d0e0f");
    folder.write("s.yaml", &format!("store: {{url: '{}', key_secret_file: secret}}\n", redis.url()));
    let ask = |arguments: &str, variables: &[(&str, &str)]| {
        let arguments = format!("check rules.yaml -d api -e user=7 {arguments}");
        folder.run_with(&arguments.split_whitespace().collect::<Vec<_>>(), variables)
    };
    let store = format!("store {}: ", redis.url());
    let of_file = ask("-c s.yaml --take --cost 3", &[]);
    assert_eq!((of_file.code, of_file.stderr.as_str()), (0, ""), "{of_file:?}");
    assert!(of_file.stdout.starts_with(&format!("{store}units are taken")), "{of_file:?}");
    assert_eq!(
        (ask("-c s.yaml", &[]).code, redis.keys(&[]).len()),
        (1, 2),
        "the command with `--take` took all units, and wrote two keys"
    );
    // Without the fleet's key secret, the command computes other Redis keys. Nothing was taken from these keys, so the request
    // is allowed. A note says that the secret is missing.
    let url = redis.url();
    for (arguments, variables) in [
        (format!("--store {url}"), &[][..]),
        (String::new(), &[("SPILLGATE_STORE", &*url)][..]),
        ("--json".into(), &[("SPILLGATE_STORE", &*url)]),
    ] {
        let output = ask(&arguments, variables);
        assert!(output.code == 0 && output.stdout.contains(&url), "{arguments}: {output:?}");
        assert!(output.stderr.starts_with("note: keys are hashed without a secret"), "{arguments}: {output:?}");
    }
    let alone = ask("-c s.yaml --store memory --at 0s,1s", &[]);
    assert_eq!((alone.code, alone.stderr.as_str()), (0, ""), "{alone:?}");
    assert!(alone.stdout.starts_with("domain api"), "{alone:?}");
}

#[test]
fn key_prints_the_redis_keys_that_a_server_uses() {
    let (redis, folder) = (Redis::start(), rules(LIMITS));
    folder.write("secret", "000102030405060708090a0b0c0d0e0f");
    folder.write("s.yaml", "store: {url: 'redis://elsewhere', key_secret_file: secret}\n");
    let secret = folder.path("secret").display().to_string();
    let arguments = [&LONG_DEADLINE[..], &["--store-key-secret-file", &secret]].concat();
    let server = serve(&folder, &redis.url(), &arguments);
    assert_eq!(decided(server.http(), "user", "7").0, 200);
    let stored = redis.keys(&[]);
    let output = folder.run("key rules.yaml -c s.yaml -d api -e user=7 --json");
    let report = json(&output);
    let mut keys: Vec<String> = report["keys"]
        .as_array()
        .expect("the report lists keys")
        .iter()
        .map(|key| key["key"].as_str().expect("the key has a name").to_owned())
        .collect();
    keys.sort();
    assert_eq!((output.code, &report["secret"], &keys), (0, &Value::Bool(true), &stored));
    assert_eq!(
        (&report["keys"][0]["name"], &report["keys"][1]["algorithm"]),
        (&"bucket".into(), &"sliding_window_log".into())
    );
    // This node is not in a working cluster, but it can compute the slot of a key.
    let (cluster, _) = Redis::start_node();
    let slot = |key: &str| cluster.run(&["cluster", "keyslot", key]).parse::<u64>().expect("the reply is a slot");
    assert!(
        report["keys"]
            .as_array()
            .expect("the report lists keys")
            .iter()
            .all(|key| key["slot"] == slot(key["key"].as_str().expect("the key has a name")))
    );
    let plain = folder.run("key rules.yaml -d api -e user=7 -e user=8");
    assert!(plain.code == 0 && plain.stdout.contains("bucket") && !stored.iter().any(|key| plain.stdout.contains(key)));
    assert!(plain.stderr.contains("without a secret"), "{}", plain.stderr);
    assert_eq!(folder.run("key rules.yaml -d api -e free=1").code, 1);
    assert_eq!(folder.run("key rules.yaml -d web -e user=1").code, 2);
    // `spillgate key` does not connect to the store, so it does not check whether the settings of the store fit
    // together. It accepts a key secret although `store.url` is memory. Other commands refuse these two settings
    // together.
    folder.write("memory.yaml", "memory: {snapshot: {path: x}}");
    let of_memory = folder.run("key rules.yaml -c memory.yaml -d api -e user=7 -e user=8");
    assert_eq!((of_memory.code, &of_memory.stdout), (0, &plain.stdout), "{}", of_memory.stderr);
    let by_flag = folder.run("key rules.yaml -d api -e user=7 --store-key-secret-file secret --json");
    assert_eq!((by_flag.code, json(&by_flag)["keys"].clone()), (0, report["keys"].clone()), "{}", by_flag.stderr);
    let zset = folder.run("key rules.yaml -c s.yaml -d api -e user=7 --store-log zset");
    assert!(zset.stdout.lines().any(|line| line.contains("log") && line.contains("}/")), "{}", zset.stdout);
}

#[test]
fn limits_with_a_sketch_have_no_key_and_no_answer_of_the_store() {
    let limits = "rate_limits: [{name: a, unit: second, requests_per_unit: 5, algorithm: token_bucket, representation: sketch, \
                  sketch_memory: 1MiB}, {name: b, unit: day, requests_per_unit: 9}]";
    let folder = Folder::new(&[("rules.yaml", &format!("domain: api\ndescriptors:\n  - key: user\n    {limits}\n"))]);
    let redis = Redis::start();
    let output = folder.run("key rules.yaml -d api -e user=7 --json");
    let keys = serde_json::from_str::<serde_json::Value>(&output.stdout).expect("it is JSON")["keys"].clone();
    assert!(keys.as_array().is_some_and(|keys| keys.len() == 1 && keys[0]["name"] == "b"), "{keys}");
    folder.write("s.yaml", &format!("store: {{url: '{}', expected_nodes: 1}}", redis.url()));
    for takes in ["", " --take"] {
        let asked = folder.run(&format!("check rules.yaml -c s.yaml -d api -e user=7{takes}"));
        assert_eq!(asked.code, 2, "{asked:?}");
        assert!(asked.stderr.contains("rules.yaml:4: this limit has a sketch"), "{}", asked.stderr);
        assert!(asked.stderr.contains("leave out --store"), "{}", asked.stderr);
    }
    assert!(redis.keys(&[]).is_empty(), "nothing was taken");
    assert_eq!(folder.run("check rules.yaml -d api -e user=7").code, 0);
}
