//! Tests the settings of a shared store. The error about a wrong setting says where the setting is and how to fix it.
//!
//! Errors and log lines quote settings, so a mistake in these texts could show a password. No text may show a secret.

use spillgate_testkit::free_port;

use crate::cli_support::{Folder, Output};
use crate::store::fleet::{logged, rules, serve, until_store};
use crate::support::redis::Redis;

const LIMIT: &str = "  - key: a\n    rate_limit: {unit: day, requests_per_unit: 1}\n";

/// Runs `serve` with wrong settings and returns its output. Asserts that `serve` ends with code 2 and prints help.
fn refused(folder: &Folder, arguments: &str) -> Output {
    let output = folder.run(&format!("serve rules.yaml --http 127.0.0.1:0 --grpc off --admin off {arguments}"));
    assert_eq!((output.code, output.stdout.as_str()), (2, ""), "{arguments}: {output:?}");
    assert!(output.stderr.contains("help: "), "{arguments}: {}", output.stderr);
    output
}

#[test]
fn a_wrong_setting_is_reported_with_its_place_and_fix() {
    let folder = rules(LIMIT);
    folder.write("short", "0102\n");
    folder.write("empty", "");
    let redis = "--store redis://h --store-expected-nodes 2";
    for (arguments, expected) in [
        ("--store http://h", "the value of `store.url` is not a store"),
        ("--store redis://", "has no host"),
        ("--store unix://r.sock", "has a socket path that does not begin with `/`"),
        ("--store redis://h --store-deadline 0s", "out of range for `store.deadline`"),
        ("--store redis://h --store-expected-nodes 0", "out of range for `store.expected_nodes`"),
        ("--store redis://h --store-log text", "`text` is not a value of `store.log`"),
        ("--store redis://h --store-scripts maybe", "neither true nor false"),
        ("--store redis://h --store-deny-cache none", "write a whole number"),
        ("--store redis://h --store-new-keys 10/s", "`store.new_keys` needs the number of servers"),
        ("--store-deadline 20ms", "`store.deadline` is for a shared store, but `store.url` is memory"),
        ("--on-store-failure deny", "`on_store_failure` is for a shared store, but `store.url` is memory"),
        ("--store redis://h --on-store-failure alow", "did you mean `allow`?"),
        ("--store redis://h --memory-snapshot-path s", "is for the memory store"),
        ("--store redis://h --store-user u", "`store.user` has no password"),
        ("--store redis://v:w@h --store-user u", "both have a login"),
        ("--store redis://:w@h --store-password-file short", "both have a login"),
        ("--store unix:///r?pass=w --store-password-file short", "both have a login"),
        ("--store redis://h --store-tls-ca ca.pem", "is for TLS"),
        ("--store rediss://h --store-tls-cert c.pem", "without `store.tls.key`"),
        ("--store redis://h --store-tls-skip-name-check", "is for TLS"),
        ("--store rediss://h --store-tls-skip-name-check --store-tls-server-name h", "remove one of them"),
        ("--store redis://h --store-sentinel-password-file p", "`store.url` names no sentinels"),
        ("--store redis-sentinel://h/main --store-sentinel-user u", "`store.sentinel_user` has no password"),
        ("--store rediss://h --store-tls-key k.pem", "without `store.tls.cert`"),
        (&format!("{redis} --store-key-secret-file short"), "short holds no key secret"),
        (&format!("{redis} --store-key-secret-file none"), "the key secret none cannot be read"),
        (&format!("{redis} --store-password-file empty"), "empty holds no password"),
        ("--store rediss://h --store-expected-nodes 2 --store-tls-ca none", "none cannot be read"),
        ("--store rediss://h --store-expected-nodes 2 --store-tls-ca short", "cannot be used"),
    ] {
        let output = refused(&folder, arguments);
        assert!(output.stderr.contains(expected), "{arguments}: {}", output.stderr);
    }
}

#[test]
fn validate_refuses_what_serve_refuses() {
    let folder = rules(LIMIT);
    folder.write("short", "0102\n");
    folder.write("secret", "000102030405060708090a0b0c0d0e0f\n");
    let store = |line: &str| format!("store:\n  url: redis://h\n  expected_nodes: 2\n  {line}\n");
    let tls = |line: &str| store(line).replace("redis:", "rediss:");
    for (text, expected) in [
        (store("").replace("//h", "//h:abc"), "the port of the store is not a number from 0 to 65535"),
        (store("").replace("//h", "//h:65536"), "correct `store.url`: redis://HOST:PORT"),
        (store("password_file: none"), "none cannot be read"),
        (store("key_secret_file: short"), "short holds no key secret"),
        (tls("tls: {ca: none}"), "none cannot be read"),
        (tls("tls: {ca: short}"), "the files under `store.tls`"),
        (store("deadline: 1h"), "choose 100us to 1m"),
    ] {
        folder.write("s.yaml", &text);
        let served = refused(&folder, "-c s.yaml");
        let validated = folder.run("validate rules.yaml -c s.yaml");
        assert_eq!(validated.code, 2, "{text}: {validated:?}");
        for output in [&served, &validated] {
            let words: Vec<_> = output.stderr.split_whitespace().collect();
            assert!(words.join(" ").contains(expected), "{text}: {}", output.stderr);
        }
        assert!(validated.stderr.starts_with(served.stderr.trim_end()), "{text}: {served:?} {validated:?}");
    }
    folder.write("s.yaml", &store("key_secret_file: secret"));
    let output = folder.run("validate rules.yaml -c s.yaml");
    assert_eq!(output.code, 0, "{output:?}");
}

#[test]
fn an_error_in_a_file_shows_its_position_and_no_password() {
    let folder = rules(LIMIT);
    for (text, position) in [
        ("store:\n  url: http://u:hush@h\n", "2 | url: ***\n"),
        ("store:\n  url: redis://u:hush@h\n  user: u\n  password_file: f\n", "3 | user: u\n"),
        ("http: redis://u:hush@h", "1 | http: redis://u:***@h\n"),
        (
            "forward_auth: {domain: d, descriptors: [[{key: k, from: 'redis://u:hush@h'}]]}",
            "1 | descriptors: 'redis://u:***@h'\n",
        ),
        ("store: {url: redis://u:hush@h, [", "at s.yaml:1:"),
    ] {
        folder.write("s.yaml", text);
        let output = refused(&folder, "-c s.yaml");
        assert!(output.stderr.contains(position) && !output.stderr.contains("hush"), "{text}: {}", output.stderr);
        assert!(!format!("{:?}", folder.run("serve rules.yaml -c s.yaml --json")).contains("hush"), "{text}");
    }
    for (variable, value) in [
        ("SPILLGATE_STORE", "redis:hush"),
        ("SPILLGATE_STORE", "http://u:hush@h"),
        ("SPILLGATE_HTTP", "redis://:hush@h"),
    ] {
        let output = folder.run_with(&["serve", "rules.yaml"], &[(variable, value)]);
        assert!(output.code == 2 && output.stderr.contains(variable) && !output.stderr.contains("hush"), "{output:?}");
    }
}

#[test]
fn a_url_in_the_wrong_place_or_form_shows_no_password() {
    let folder = rules(LIMIT);
    folder.write("s.yaml", "http: off\n");
    let silent = |arguments: &str| {
        let output = folder.run(arguments);
        assert!(output.code == 2 && !format!("{output:?}").contains("hush"), "{arguments}: {output:?}");
    };
    let urls = [
        "redis:u:hush@h",
        "redis:/u:hush@h",
        "redis//u:hush@h",
        "rediss:u:hush@",
        "redis-cluster://:hush@,",
        "limiter:hush@h:6379",
        ":hush@h",
        "hush@h",
        "unix:/r?pass=hush",
        "unix:r?user=u&pass=hush",
        "redis:///hush@h",
        "redis:///u:hush@h",
        "http://u:hush@h",
    ];
    for url in urls {
        for output in ["", "--json"] {
            silent(&format!("serve rules.yaml -c s.yaml --store {url} {output}"));
        }
        // An error on line 2 or 4 of the file also shows line 3, where the URL is. The URL must be hidden there too.
        folder.write("wrong.yaml", &format!("store:\n  user: []\n  url: '{url}'\n  usr: a\n"));
        silent("serve rules.yaml -c wrong.yaml");
        silent("serve rules.yaml -c wrong.yaml --json");
    }
    for url in ["redis://u:hush@h", "rediss://:hush@h", "unix:///r?pass=hush", "limiter:hush@h:6379", ":hush@h"] {
        for command in ["doctor", "doctor --stor", "serve", "validate", "key -d d -e a=1", "check -d d -e a=1"] {
            silent(&format!("{command} {url}"));
            silent(&format!("{command} --config {url} rules.yaml"));
        }
    }
}

#[test]
fn the_value_of_an_unknown_key_is_not_shown() {
    let folder = rules(LIMIT);
    for text in [
        "store: {password: hush}",
        "store: {user: grüße, password: 'ühushü', usr: ü}",
        "store: {password: [hush, \"hush\"]}",
        "store: {key_secret: hush, usr: a}",
        "store:\n  usr: a\n  passwd: 'hush'\n  urll: b",
        "redis:\n  requirepass: hush",
        "redis: [{auth_token: hush}]",
        "store:\n  password: |\n    hush\n    hush\n  usr: a",
        "store: {API-Key: {a: hush, b: [hush]}}",
        "store:\n  password: hush\n  password: hush",
        "store: {'password': hush, url: [",
        "store:\n  password: hush: hush\n",
        "store:\n\tpassword: hush\n",
        "store:\n  password: >\n    hush\n    hush\n  password: x",
        "[{secret: hush}]",
        "store: {passwrd: hush, credentials: hush}",
        "store: redis:hush",
        "stor: hush\nlimits: {body: x} # hush",
    ] {
        folder.write("s.yaml", &format!("{text}\n"));
        for command in ["serve rules.yaml", "validate rules.yaml --json", "doctor"] {
            let output = folder.run(&format!("{command} -c s.yaml"));
            assert!(output.code == 2 && !format!("{output:?}").contains("hush"), "{command}: {text}: {output:?}");
        }
    }
    for text in ["store: {password: hush}", "store: {url: 'redis://u:hush@h'}", "http: off\nstore: {key_secret: hush}"]
    {
        folder.write("s.yaml", text);
        for output in ["", "--json"] {
            let output = folder.run(&format!("validate s.yaml {output}"));
            assert!(output.code == 2 && !format!("{output:?}").contains("hush"), "{text}: {output:?}");
            assert!(format!("{output:?}").contains("--config"), "{text}: {output:?}");
        }
    }
    for variable in ["SPILLGATE_STORE_PASSWORD", "SPILLGATE_STORE_PASSWORD_FIL", "SPILLGATE_STORE_KEY_SECRET"] {
        let output = folder.run_with(&["serve", "rules.yaml"], &[(variable, "hush")]);
        assert!(output.code == 2 && output.stderr.contains("_FILE") && !output.stderr.contains("hush"), "{output:?}");
    }
    for (argument, meant) in [("--store-url", "'--store'"), ("--store-password", "'--store-password-file'")] {
        let output = folder.run(&format!("serve rules.yaml {argument}=hush"));
        assert!(output.code == 2 && output.stderr.contains(meant) && !output.stderr.contains("hush"), "{output:?}");
    }
}

#[test]
fn local_limits_need_to_know_how_many_servers_there_are() {
    let folder = rules(LIMIT);
    let output = refused(&folder, "--store redis://127.0.0.1:1");
    assert!(
        output.stderr.contains("rules.yaml:4") && output.stderr.contains("store.expected_nodes"),
        "{}",
        output.stderr
    );
    folder.write(
        "rules.yaml",
        &format!("domain: api\ndescriptors:\n{}", LIMIT.replace("day,", "day, on_store_failure: deny,")),
    );
    let url = format!("redis://127.0.0.1:{}", free_port());
    let server = crate::support::spillgate::Spillgate::serve(&folder.path("rules.yaml"), &["--store", &url]);
    logged(&server.process, "store.expected_nodes is not set");
}

#[test]
fn a_setting_without_effect_on_memory_is_a_note() {
    let limit = "{unit: day, requests_per_unit: 1, on_store_failure: deny, slot_by: a}";
    let folder = rules(&format!("  - key: a\n    rate_limit: {limit}\n"));
    folder.write("s.yaml", "store: {url: redis://h}");
    let output = folder.run("validate rules.yaml --deny-warnings");
    assert_eq!(output.code, 0, "{output:?}");
    for key in ["on_store_failure", "slot_by"] {
        let note = format!("note: rules.yaml:4: {key} has no effect while store.url is memory");
        assert!(output.stderr.contains(&note), "{note}: {}", output.stderr);
    }
    assert!(folder.run("validate rules.yaml --json").stdout.contains("slot_by has no effect"));
    let shared = folder.run("validate rules.yaml -c s.yaml");
    assert!(shared.code == 0 && !shared.stderr.contains("has no effect"), "{shared:?}");
}

#[test]
fn no_password_is_shown_anywhere() {
    let redis = Redis::start_with(&["--requirepass", "hush/hush@1"]);
    let folder = rules(LIMIT);
    folder.write("password", "hush/hush@1\n");
    folder.write("wrong", "hush-hush\n");
    folder.write("secret", "000102030405060708090a0b0c0d0e0f\n");
    let secret = folder.path("secret").display().to_string();
    let file = |name: &str| folder.path(name).display().to_string();
    let by_file =
        ["--store-password-file", &file("password"), "--store-key-secret-file", &secret, "--log-level", "trace"];
    let server = serve(&folder, &redis.url(), &by_file);
    until_store(server.http(), "a", "1");
    let in_url = redis.url().replace("://", "://:hush%2Fhush%401@");
    let other = serve(&folder, &in_url, &["--log-level", "trace"]);
    until_store(other.http(), "a", "1");
    logged(&other.process, "store.key_secret_file is not set");
    let wrong = serve(&folder, &redis.url(), &["--store-password-file", &file("wrong"), "--log-level", "trace"]);
    logged(&wrong.process, "cannot be used yet");
    let shown = folder.run(&format!("serve --show-settings --store {in_url} --store-expected-nodes 2"));
    let output = [&server, &other, &wrong].map(|server| server.process.stderr().join("\n") + &server.ready.to_string());
    for text in output.iter().chain([&shown.stdout, &shown.stderr]) {
        assert!(!text.contains("hush"), "{text}");
    }
    assert!(shown.stdout.contains("redis://:***"), "{}", shown.stdout);
    // One server has a key secret and another server has none. They hash the same key differently, so Redis has two keys.
    assert_eq!(redis.keys(&["-a", "hush/hush@1"]).len(), 2);
}
