//! Tests of `spillgate insight` with real servers, and with servers that give wrong answers.

mod hostile;

use crate::cli_support::Folder;
use crate::support::spillgate::Spillgate;
use crate::support::{eventually, http};
use serde_json::{Value, json};
use spillgate_testkit::RedisServer;

const RULES: &str = "domain: d\ndescriptors:\n  - key: user\n    rate_limit: {unit: year, requests_per_unit: 2}\n";

/// Sends `times` requests, and returns the body of the last answer.
fn ask(server: &Spillgate, user: &str, times: usize, cost: u64) -> String {
    let body = serde_json::json!({"domain": "d", "descriptors": [{"user": user}], "cost": cost}).to_string();
    let ask = || http::request(server.http(), "POST", "/v1/check", &[], &body).expect("the server answers").body;
    (1..times).for_each(|_| drop(ask()));
    ask()
}

#[test]
fn several_servers_are_shown_as_one() {
    let folder = Folder::new(&[("rules.yaml", RULES), ("secret", "00112233445566778899aabbccddeeff")]);
    let redis = RedisServer::start();
    let secret = format!("--store-key-secret-file={}", folder.path("secret").display());
    // The deadline is long, so that both servers decide by the store on a busy machine.
    let arguments =
        ["--store", &redis.url(), "--store-deadline=1m", "--store-expected-nodes=2", "--insight-keys=plain", &secret];
    let servers = [0, 1].map(|_| Spillgate::serve(&folder.path("rules.yaml"), &arguments));
    for server in &servers {
        eventually("the store decides", || ask(server, "ann", 1, 0).contains(r#""source":"store""#).then_some(()));
    }
    ask(&servers[0], "ann", 3, 1);
    ask(&servers[1], "ann", 2, 1);
    ask(&servers[1], "bob\u{1b}", 1, 1);
    let admins = servers.each_ref().map(|server| format!("--admin=http://{}", server.admin()));
    let arguments = ["insight", &admins[0], &admins[1]];
    let output = folder.run_with(&[&arguments[..], &["--json"]].concat(), &[]);
    assert_eq!((output.code, &*output.stderr), (0, ""));
    let page: Value = serde_json::from_str(&output.stdout).expect("it is JSON");
    assert_eq!((&page["servers"], &page["callers_match"], &page["notes"]), (&2.into(), &true.into(), &json!([])));
    let [limit] = &page["limits"].as_array().expect("it is a list")[..] else { panic!("one limit: {page}") };
    let hour = &limit["spans"][2];
    assert_eq!((&hour["requests"], &hour["refused_requests"]), (&6.into(), &3.into()));
    assert_eq!(hour["callers"]["asked"]["value"], 2.0, "a caller of two servers is one caller: {page}");
    let highest = &hour["burst_needed"]["highest"];
    assert_eq!((&highest["at_least"], &highest["at_most"]), (&3.0.into(), &Value::Null), "both servers have one rate");
    assert_eq!(limit["top_allowed"]["callers"][0]["name"], "user=ann");
    let text = folder.run_with(&arguments, &[]).stdout;
    assert!(text.starts_with("d: user (") && text.contains("too early"), "{text}");
    assert!(text.contains(r#""user=bob\u{1b}""#) && !text.contains('\u{1b}'), "the terminal obeys no client: {text}");
}

#[test]
fn a_server_that_cannot_be_asked_is_an_error_with_help() {
    let folder = Folder::new(&[("rules.yaml", RULES), ("token", "abc"), ("wrong", "abd")]);
    let token = format!("--admin-token-file={}", folder.path("token").display());
    let server = Spillgate::serve(&folder.path("rules.yaml"), &[&token]);
    let admin = format!("--admin=http://{}", server.admin());
    let run = |arguments: &[&str]| {
        let output = folder.run_with(&[&["insight"], arguments].concat(), &[]);
        (output.code, output.stderr)
    };
    let (code, error) = run(&[&admin]);
    assert!(code == 3 && error.contains("needs its admin token") && error.contains("--admin-token-file"), "{error}");
    let (code, error) = run(&[&admin, "--admin-token-file=wrong"]);
    assert!(code == 3 && error.contains("refuses this admin token"), "{error}");
    assert_eq!(run(&[&admin, "--admin-token-file=token"]).0, 0);
    let (code, error) = run(&["--admin=http://127.0.0.1:1"]);
    assert!(code == 3 && error.contains("http://127.0.0.1:1 cannot be reached"), "{error}");
    let (code, error) = run(&[&format!("--admin=http://{}", server.http())]);
    assert!(code == 3 && error.contains("answered 404"), "{error}");
    let (code, error) = run(&["--admin=ftp://127.0.0.1:1"]);
    assert!(
        code == 2 && error.contains("is no address of an admin listener") && error.contains("unix:/path"),
        "{error}"
    );
}

fn page(folder: &Folder, arguments: &[&str]) -> Value {
    let output = folder.run_with(&[&["insight", "--json"], arguments].concat(), &[]);
    serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn admin(server: &Spillgate) -> String {
    format!("--admin=http://{}", server.admin())
}

#[test]
fn limits_of_one_server_are_never_merged() {
    // Two limits differ only in their anchor. The paths of two rules differ only in quotes.
    let rules = "domain: d\ndescriptors:\n  - key: user\n    rate_limits:\n      - {window: 10s, limit: 5}\n      \
                 - {window: 10s, limit: 5, anchor: first_hit}\n  - key: a\n    value: 1 > b\n    \
                 rate_limit: {unit: hour, limit: 2}\n  - key: a\n    value: 1\n    descriptors:\n      - key: b\n        \
                 rate_limit: {unit: hour, limit: 2}\n";
    let folder = Folder::new(&[("rules.yaml", rules)]);
    let servers = [0, 1].map(|_| Spillgate::serve(&folder.path("rules.yaml"), &[]));
    for (server, times) in servers.iter().zip([2, 1]) {
        ask(server, "ann", times, 1);
    }
    let one = page(&folder, &[&admin(&servers[0])]);
    let both = page(&folder, &[&admin(&servers[0]), &admin(&servers[1])]);
    for (page, requests) in [(&one, 2), (&both, 3)] {
        let limits = page["limits"].as_array().expect("it is a list");
        let counts = |rule: &str| {
            let limits = limits.iter().filter(|limit| limit["rule"] == rule);
            limits.map(|limit| limit["spans"][2]["requests"].as_u64()).collect::<Vec<_>>()
        };
        let alike = ["a=1 > b", r#"a="1 > b""#].map(counts);
        assert_eq!((counts("user"), alike), (vec![Some(requests); 2], [vec![Some(0)], vec![Some(0)]]), "{page}");
    }
}

#[test]
fn limits_of_two_servers_are_merged_only_if_they_are_the_same() {
    let rules =
        |limit: &str| format!("domain: d\ndescriptors:\n  - key: user\n    rate_limit: {{unit: hour, {limit}}}\n");
    let limits = ["limit: 2", "limit: 2, soft: 50%", "limit: 2, penalty: 1m", "limit: 2, denied: charged", "limit: 3"];
    let files = limits.map(rules);
    let names = ["a.yaml", "b.yaml", "c.yaml", "d.yaml", "e.yaml"];
    let folder = Folder::new(&std::array::from_fn::<_, 5, _>(|index| (names[index], &*files[index])));
    let servers = names.map(|name| Spillgate::serve(&folder.path(name), &[]));
    let again = Spillgate::serve(&folder.path("a.yaml"), &[]);
    let admins: Vec<_> = servers.iter().chain([&again]).map(admin).collect();
    let page = page(&folder, &admins.iter().map(|admin| &**admin).collect::<Vec<_>>());
    assert_eq!(page["limits"].as_array().map(Vec::len), Some(limits.len()), "{page}");
    assert_eq!(page["callers_match"], false, "each memory store has a secret of its own: {page}");
    assert!(page["notes"][0].as_str().is_some_and(|note| note.contains("store.key_secret_file")), "{page}");
}

#[test]
fn a_server_that_is_named_twice_counts_once() {
    let folder = Folder::new(&[("rules.yaml", RULES)]);
    let server = Spillgate::serve(&folder.path("rules.yaml"), &[]);
    ask(&server, "ann", 3, 1);
    let other_name = format!("--admin=localhost:{}", server.admin().port());
    let page = page(&folder, &[&admin(&server), &admin(&server), &other_name]);
    assert_eq!((&page["servers"], &page["limits"][0]["spans"][2]["requests"]), (&1.into(), &3.into()), "{page}");
    assert!(page["notes"][1].as_str().is_some_and(|note| note.contains("are the same server")), "{page}");
}

#[test]
fn the_other_servers_are_shown_if_one_does_not_answer() {
    let folder = Folder::new(&[("rules.yaml", RULES)]);
    let server = Spillgate::serve(&folder.path("rules.yaml"), &[]);
    ask(&server, "ann", 3, 1);
    let arguments = ["insight", "--admin=http://127.0.0.1:1", &admin(&server)];
    let output = folder.run_with(&arguments, &[]);
    assert!(output.code == 3 && output.stdout.contains("s: 3 requests"), "{output:?}");
    assert!(output.stderr.contains("http://127.0.0.1:1 cannot be reached"), "{output:?}");
    let output = folder.run_with(&[&arguments[..], &["--json"]].concat(), &[]);
    let page: Value = serde_json::from_str(&output.stdout).expect("it is JSON");
    assert_eq!((output.code, &page["ok"], &page["servers"]), (3, &false.into(), &1.into()));
    assert!(page["errors"][0]["message"].as_str().is_some_and(|error| error.contains("cannot be reached")), "{page}");
    assert_eq!(page["limits"].as_array().map(Vec::len), Some(1));
}

#[test]
fn limits_without_memory_are_named() {
    let rules: String = (0..3).map(|i| format!("  - key: u{i}\n    rate_limit: {{unit: hour, limit: 2}}\n")).collect();
    let folder = Folder::new(&[("rules.yaml", &format!("domain: d\ndescriptors:\n{rules}"))]);
    let server = Spillgate::serve(&folder.path("rules.yaml"), &["--insight-max-callers=64"]);
    let output = folder.run_with(&["insight", &admin(&server)], &[]);
    assert!(output.code == 0 && output.stderr.contains("2 limits of the rules cannot be shown"), "{output:?}");
    assert_eq!(page(&folder, &[&admin(&server)])["unwatched_limits"], 2);
}

#[test]
fn the_members_of_the_json_are_those_of_the_documentation() {
    let folder = Folder::new(&[("rules.yaml", RULES)]);
    let server = Spillgate::serve(&folder.path("rules.yaml"), &[]);
    ask(&server, "ann", 3, 1);
    let page = page(&folder, &[&admin(&server)]);
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/operating/insight.md");
    let docs = std::fs::read_to_string(docs).expect("the page exists");
    let members = |value: &Value| value.as_object().expect("it is an object").keys().cloned().collect::<Vec<_>>();
    let limit = &page["limits"][0];
    for name in [&page, limit, &limit["options"], &limit["spans"][0]].into_iter().flat_map(members) {
        assert!(docs.contains(&format!("`{name}`")), "the page does not name the member {name}");
    }
    assert_eq!(
        members(&page),
        ["callers_match", "errors", "limits", "notes", "ok", "servers", "unwatched_limits"],
        "programs read these members"
    );
}

#[test]
fn page_and_command_agree_if_callers_are_hidden() {
    let folder = Folder::new(&[("rules.yaml", RULES)]);
    let server = Spillgate::serve(&folder.path("rules.yaml"), &["--insight-keys=off"]);
    (0..30).for_each(|user| drop(ask(&server, &format!("u{user}"), 1, 1)));
    ask(&server, "ann", 200, 1);
    let members = ["verdict", "who", "reason", "suggestion", "top_refused", "top_allowed"];
    let of_limit = |page: Value| members.map(|member| page["limits"][0][member].clone());
    // When a half hour begins, older units leave the lists of callers. If this happens between the two answers, or a
    // second passes that a reason names, the test asks for both again.
    eventually("the page says what the command says", || {
        let from_command = of_limit(page(&folder, &[&admin(&server)]));
        let from_page = http::request(server.admin(), "GET", "/insight", &[], "").expect("the server answers").body;
        assert_eq!(from_command[4]["callers"], json!([]));
        (from_command == of_limit(serde_json::from_str(&from_page).expect("it is JSON"))).then_some(())
    });
}

#[test]
fn without_a_key_secret_callers_of_two_servers_are_not_merged() {
    let folder = Folder::new(&[("rules.yaml", RULES)]);
    let redis = RedisServer::start();
    let arguments = ["--store", &redis.url(), "--store-deadline=1m", "--store-expected-nodes=2"];
    let servers = [0, 1].map(|_| Spillgate::serve(&folder.path("rules.yaml"), &arguments));
    for server in &servers {
        eventually("the store decides", || ask(server, "ann", 1, 0).contains(r#""source":"store""#).then_some(()));
        ask(server, "ann", 1, 1);
    }
    let admins = servers.each_ref().map(|server| format!("--admin=http://{}", server.admin()));
    let output = folder.run_with(&["insight", &admins[0], &admins[1], "--json"], &[]);
    let page: Value = serde_json::from_str(&output.stdout).expect("it is JSON");
    assert_eq!(
        (&page["callers_match"], &page["limits"][0]["spans"][2]["callers"]["asked"]["value"]),
        (&json!(false), &json!(2.0))
    );
    assert!(page["notes"][0].as_str().is_some_and(|note| note.contains("store.key_secret_file")), "{page}");
}

#[test]
fn a_limit_in_shadow_mode_is_not_said_to_refuse() {
    let rules = RULES.replace("rate_limit:", "shadow_mode: true\n    rate_limit:");
    let folder = Folder::new(&[("rules.yaml", &rules)]);
    let server = Spillgate::serve(&folder.path("rules.yaml"), &[]);
    ask(&server, "ann", 4, 1);
    let output = folder.run_with(&["insight", &format!("--admin=http://{}", server.admin())], &[]).stdout;
    assert!(output.lines().next().is_some_and(|title| title.ends_with(", shadow mode)")), "{output}");
    assert!(output.contains("too early: If it refused: In the last "), "{output}");
    let counts = "s: 4 requests, 2 would be refused (50.0 %); 1 caller, 1 would be refused; ";
    assert!(output.contains(counts), "{output}");
    assert!(output.contains("most units over the limit: ") && !output.contains(" 2 refused"), "{output}");
}

#[test]
fn a_shadow_switch_is_not_said_to_refuse_and_what_was_refused_before_is_told_apart() {
    let folder = Folder::new(&[("rules.yaml", RULES)]);
    let server = Spillgate::serve(&folder.path("rules.yaml"), &["--insight-keys=plain"]);
    let run = |arguments: &[&str]| {
        let output = folder.run_with(&[arguments, &[&*admin(&server)]].concat(), &[]);
        assert_eq!((output.code, &*output.stderr), (0, ""), "{arguments:?}");
        output.stdout
    };
    let limit = |command: &str| -> Value {
        let page: Value = serde_json::from_str(&run(&[command, "--json"])).expect("it is JSON");
        page["limits"][0].clone()
    };
    ask(&server, "ann", 5, 1);
    let before = run(&["insight"]);
    assert!(before.contains("5 requests, 3 refused (60.0 %); 1 caller, 1 refused; "), "{before}");
    run(&["shadow", "on", "user", "--for=1h"]);
    let on = run(&["insight"]);
    assert!(on.lines().next().is_some_and(|title| title.ends_with(", shadow mode)")), "{on}");
    assert!(on.contains("5 requests, 3 refused (60.0 %); "), "these were refused: {on}");
    ask(&server, "ann", 1, 1);
    let both = run(&["insight"]);
    let counts = "6 requests, 3 refused (50.0 %), 1 over the limit in shadow (16.7 %); 1 caller, 1 over the limit; ";
    assert!(both.contains(counts), "{both}");
    assert!(
        both.contains("If it had refused all the time: ") && both.contains("most units over the limit: "),
        "{both}"
    );
    assert!(run(&["top"]).contains("units over the limit  share"));
    for command in ["insight", "top"] {
        assert_eq!(limit(command)["options"]["binding"], "shadow");
    }
    let hour = &limit("insight")["spans"][2];
    assert_eq!((&hour["refused_requests"], &hour["unenforced_requests"]), (&4.into(), &1.into()));
    run(&["shadow", "off", "user"]);
    assert_eq!(limit("insight")["options"]["binding"], "enforce");
    assert!(run(&["insight"]).contains("1 over the limit in shadow"), "the switch has ended, the counts stay");
}

#[test]
fn another_limit_is_judged_by_command() {
    let folder = Folder::new(&[("rules.yaml", RULES)]);
    let server = Spillgate::serve(&folder.path("rules.yaml"), &[]);
    ask(&server, "ann", 5, 1);
    let run = |arguments: &[&str]| folder.run_with(&[arguments, &[&*admin(&server)]].concat(), &[]);
    let text = run(&["insight", "d: user", "--limit=7"]).stdout;
    assert!(text.contains("\n  With 7 instead of 2, "), "{text}");
    assert!(!run(&["insight"]).stdout.contains("With 7 instead"));
    let page = page(&folder, &["--limit=3", &admin(&server)]);
    assert_eq!(page["limits"][0]["with_limit"]["limit"], 3);
    let of_server = http::request(server.admin(), "GET", "/insight?limit=3", &[], "").expect("the server answers").body;
    let of_server: Value = serde_json::from_str(&of_server).expect("it is JSON");
    let numbers = |page: &Value| page["limits"][0]["with_limit"]["refused_callers"].clone();
    assert_eq!(numbers(&page), numbers(&of_server));
    assert_eq!(run(&["insight", "--limit=0"]).code, 2);
    let permits = "domain: d\ndescriptors: [{key: user, rate_limit: {limit: 3, algorithm: concurrency, lease: 30s}}]\n";
    let folder = Folder::new(&[("rules.yaml", permits)]);
    let server = Spillgate::serve(&folder.path("rules.yaml"), &[]);
    let text = folder.run_with(&["insight", "--limit=7", &admin(&server)], &[]).stdout;
    assert!(text.contains("With a limit of 7: this cannot be known. The limit is a queue, or has permits, "), "{text}");
}

#[test]
fn limits_that_refuse_more_come_first_if_they_need_the_same_attention() {
    let rules = "domain: d
descriptors:
  - {key: quiet, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: user, rate_limit: {unit: year, requests_per_unit: 2}}
";
    let folder = Folder::new(&[("rules.yaml", rules)]);
    let server = Spillgate::serve(&folder.path("rules.yaml"), &[]);
    ask(&server, "ann", 5, 1);
    let text = folder.run_with(&["insight", &admin(&server)], &[]).stdout;
    assert!(text.find("d: user (") < text.find("d: quiet (") && text.contains("d: quiet ("), "{text}");
    assert_eq!(text.matches("3 refused (60.0 %)").count(), 1, "equal spans share a line: {text}");
}

#[test]
fn callers_of_a_shared_limit_are_shown_or_the_setting_that_shows_them() {
    let rules = "domain: d
descriptors:
  - {key: all, value: requests, rate_limit: {unit: year, requests_per_unit: 3}}
";
    let by = rules.replace("rate_limit", "insight_by: user, rate_limit");
    let folder = Folder::new(&[("rules.yaml", rules), ("by.yaml", &by)]);
    let hint = "The setting insight_by: KEY of the rule shows which values of KEY fill it.";
    for (file, is_hinted) in [("rules.yaml", true), ("by.yaml", false)] {
        let servers = [0, 1].map(|_| Spillgate::serve(&folder.path(file), &["--insight-keys=plain"]));
        for server in &servers {
            for user in ["ann", "ann", "bob", "ann"] {
                let body = json!({"domain": "d", "descriptors": [{"all": "requests"}, {"user": user}]}).to_string();
                http::request(server.http(), "POST", "/v1/check", &[], &body).expect("the server answers");
            }
        }
        let insight = folder.run_with(&["insight", &admin(&servers[0]), &admin(&servers[1])], &[]).stdout;
        let top = folder.run_with(&["top", &admin(&servers[0])], &[]).stdout;
        assert_eq!((insight.contains(hint), top.contains(hint)), (is_hinted, is_hinted), "{insight}{top}");
        let by_user = "most allowed units by user: \"user=ann\" 66.7 %, \"user=bob\" 33.3 %";
        let of_one = folder.run_with(&["insight", &admin(&servers[0])], &[]).stdout;
        assert_eq!(of_one.contains(by_user), !is_hinted, "{of_one}");
        let page = page(&folder, &[&admin(&servers[0]), &admin(&servers[1])]);
        assert_eq!(page["limits"][0]["shared"], true);
        let units = &page["limits"][0]["by"]["refused"]["units"];
        assert_eq!(units, &if is_hinted { Value::Null } else { json!(2) }, "both servers are merged: {page}");
    }
}

#[test]
fn insight_takes_the_memory_that_the_book_says() {
    let resident_mib = |limits: usize, callers: &str| {
        let rule = |index| format!("  - {{key: k{index}, rate_limit: {{unit: minute, requests_per_unit: 5}}}}\n");
        let rules = format!("domain: d\ndescriptors:\n{}", (0..limits).map(rule).collect::<String>());
        let folder = Folder::new(&[("rules.yaml", &rules)]);
        let server =
            Spillgate::serve(&folder.path("rules.yaml"), &[&format!("--insight-max-callers={callers}"), "--workers=2"]);
        server.process.resident_bytes() as f64 / 1_048_576.0
    };
    for (limits, most_mib) in [(1, 12.0), (20, 40.0), (1_000, 80.0)] {
        let added = resident_mib(limits, "65536") - resident_mib(limits, "off");
        println!("| {limits} limits | {added:.1} MiB |");
        assert!(added < most_mib, "insight into {limits} limits takes {added} MiB");
    }
}
