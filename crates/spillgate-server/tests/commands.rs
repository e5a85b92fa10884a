//! Tests of the commands for operators, with real servers: `block`, `unblock`, `blocks`, `shadow`, `shadows`, `reset`,
//! `explain`, `top` and `reload`.

mod arguments;
mod hostile;
mod reset;
mod shadow;

use serde_json::Value;

use crate::cli_support::{Folder, Output};
use crate::support::http;
use crate::support::spillgate::Spillgate;

pub(crate) const RULES: &str = "domain: api
descriptors:
  - key: user_id
    rate_limit: {name: per_user, unit: year, requests_per_unit: 2}
  - key: remote_address
    rate_limit: {unit: year, requests_per_unit: 100}
";

/// A server, and a folder in which commands ask it.
struct Scene {
    folder: Folder,
    server: Spillgate,
}

impl Scene {
    fn new(rules: &str, arguments: &[&str]) -> Scene {
        let folder = Folder::new(&[("rules.yaml", rules)]);
        let server = Spillgate::serve(&folder.path("rules.yaml"), arguments);
        Scene { folder, server }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let admin = format!("--admin=http://{}", self.server.admin());
        self.folder.run_with(&[arguments, &[&admin]].concat(), &[])
    }

    /// Runs a command that succeeds. Returns what it prints.
    fn text(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!((output.code, &*output.stderr), (0, ""), "{arguments:?}: {}", output.stdout);
        output.stdout
    }

    fn json(&self, arguments: &[&str], code: i32) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        assert_eq!(output.code, code, "{arguments:?}: {output:?}");
        serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    }

    fn fails(&self, arguments: &[&str], code: i32, parts: &[&str]) {
        let output = self.run(arguments);
        assert_eq!((output.code, &*output.stdout), (code, ""), "{arguments:?}: {}", output.stderr);
        for part in parts {
            assert!(output.stderr.contains(part), "{arguments:?} says {part}: {}", output.stderr);
        }
    }

    /// Sends a request with these entries, and returns its status.
    fn check(&self, entries: &Value) -> u16 {
        let body = serde_json::json!({"domain": "api", "descriptors": [entries]}).to_string();
        http::request(self.server.http(), "POST", "/v1/check", &[], &body).expect("the server answers").status
    }

    fn user(&self, name: &str) -> u16 {
        self.check(&serde_json::json!({ "user_id": name }))
    }
}

#[test]
fn a_caller_is_blocked_listed_and_unblocked() {
    let scene = Scene::new(RULES, &[]);
    assert_eq!(scene.text(&["blocks"]), "no caller is blocked\n");
    let block = ["block", "user_id=7", "--for", "10m", "--reason", "floods"];
    assert_eq!(scene.text(&block), "user_id=7 is blocked in all domains for 10m, on this server only\n");
    assert_eq!(scene.user("7"), 429);
    let list = scene.text(&["blocks"]);
    assert!(
        list.contains("user_id=7  all domains") && list.contains("  1             floods") && list.contains("floods"),
        "{list}"
    );
    assert!(list.ends_with("1 block of at most 10,000, on this server only\n"), "{list}");
    let explained = scene.run(&["explain", "--domain=api", "--descriptor=user_id=7"]);
    assert_eq!(explained.code, 1);
    assert!(explained.stdout.starts_with("Refused now by a block, for "), "{explained:?}");
    assert!(
        explained.stdout.contains("user_id=7 is blocked in all domains for ") && explained.stdout.contains("(floods)")
    );
    let ended = "the block of user_id=7 has ended. This server has refused 1 request because of it\n";
    assert_eq!(scene.text(&["unblock", "user_id=7"]), ended);
    assert_eq!(scene.user("7"), 200);
    let other = "--descriptor=remote_address=203.0.113.9";
    scene.text(&["block", "user_id=7", "--for=1m"]);
    let explained = scene.run(&["explain", "--domain=api", "--descriptor=user_id=7", other]);
    assert!(!explained.stdout.contains("left out"), "no rule replaces the other one: {}", explained.stdout);
    assert!(explained.stdout.contains("; not asked: a block refuses the request\n"), "{}", explained.stdout);
    let json = scene.run(&["explain", "--domain=api", "--descriptor=user_id=7", "--json"]).stdout;
    assert!(json.contains("\"replaced\"") && !json.replace(' ', "").contains("\"replaced\":true"), "{json}");
    scene.text(&["unblock", "user_id=7"]);
    scene.fails(&["unblock", "user_id=7"], 1, &["there is no such block", "`spillgate blocks`"]);
    let comma = scene.json(&["block", r"user_id=a\,b=c", "--for=1h", "--domain=api"], 0);
    assert_eq!((&comma["block"]["value"], &comma["block"]["domain"]), (&"a,b=c".into(), &"api".into()));
    assert_eq!(scene.json(&["blocks"], 0)["blocks"].as_array().map(Vec::len), Some(1));
    assert_eq!(scene.json(&["unblock", r"user_id=a\,b=c", "--domain", "api"], 0)["unblocked"], 1);
    // The block of one domain ends, but the other one still refuses the caller.
    for domain in [&[][..], &["--domain=api"]] {
        scene.text(&[&["block", "user_id=8", "--for=1m"], domain].concat());
    }
    assert_eq!(scene.user("8"), 429);
    let ended = scene.text(&["unblock", "user_id=8", "--domain=api"]);
    assert!(
        ended.starts_with("the block of user_id=8 in the domain api has ended. This server has refused "),
        "{ended}"
    );
    assert_eq!(scene.user("8"), 429);
    // A second block on the same entry replaces the first one, whose count it does not go on with.
    let again = scene.text(&["block", "user_id=8", "--for=1m", "--reason=floods"]);
    let [now, replaced] = again.lines().collect::<Vec<_>>()[..] else { panic!("{again}") };
    assert_eq!(now, "user_id=8 is blocked in all domains for 1m, on this server only");
    assert!(replaced.starts_with("it replaces a block that had "), "{again}");
    assert!(replaced.ends_with(" left. This server has refused 1 request because of that one"), "{again}");
    let json = scene.json(&["block", "user_id=8", "--for=1m"], 0);
    assert_eq!((&json["replaced"]["reason"], &json["replaced"]["refused"]), (&"floods".into(), &0.into()));
    assert_eq!(scene.user("8"), 429);
    let other = scene.json(&["block", "user_id=8", "--for=1m", "--domain=api"], 0);
    assert_eq!(other["replaced"], Value::Null, "a block of another domain stays");
    let ended = scene.text(&["unblock", "user_id=8"]);
    assert_eq!(ended, "2 blocks of user_id=8 have ended. This server has refused 1 request because of them\n");
    let wrong = scene.json(&["block", "user_id=7", "--for", "soon"], 2);
    assert_eq!(wrong["ok"], false);
    assert!(wrong["errors"][0]["message"].as_str().is_some_and(|text| text.contains("for")), "{wrong}");
    scene.fails(&["block", "user_id", "--for=1m"], 2, &["`user_id` has no `=`: write KEY=VALUE"]);
    let example = "`192.0.2.77` has no key: write KEY=VALUE, for example remote_address=192.0.2.77";
    scene.fails(&["block", "192.0.2.77", "--for=1m"], 2, &[example]);
    scene.fails(&["unblock", "2001:db8::1"], 2, &["for example remote_address=2001:db8::1"]);
    scene.fails(&["block", "user_id=7,a=b", "--for=1m"], 2, &["write one KEY=VALUE"]);
    scene.fails(&["block", "user_id=7"], 2, &["--for <DURATION>"]);
}

#[test]
fn a_block_of_a_name_that_no_rule_has_is_an_error() {
    let scene = Scene::new(RULES, &[]);
    for (block, says) in [
        (&["user_ip=7"][..], ["no rule has the key `user_ip`, so nothing was blocked", "did you mean `user_id`?"]),
        (&["user_id=9", "--domain=ap"], ["no rule has the domain `ap`, so nothing was blocked", "did you mean `api`?"]),
    ] {
        let block = [&["block", "--for=1m"], block].concat();
        scene.fails(&block, 2, &[&says[..], &["--allow-unmatched"]].concat());
        assert_eq!(scene.json(&block, 2)["ok"], false);
        assert_eq!(scene.text(&["blocks"]), "no caller is blocked\n");
        assert!(scene.text(&[&block[..], &["--allow-unmatched"]].concat()).contains(" is blocked in "));
        scene.text(&["unblock", block[2]]);
    }
}

#[test]
fn a_rule_is_put_into_shadow_by_its_path() {
    let scene = Scene::new(RULES, &[]);
    assert_eq!((scene.user("7"), scene.user("7"), scene.user("7")), (200, 200, 429));
    let on = "the rule api: user_id counts, but refuses nothing for 30m, on this server only\n";
    assert_eq!(scene.text(&["shadow", "on", "user_id", "--for", "30m"]), on);
    assert_eq!(scene.user("7"), 200);
    let list = scene.text(&["shadows"]);
    assert!(list.contains("api: user_id  this server"), "{list}");
    let explained = scene.text(&["explain", "--domain=api", "--descriptor=user_id=7"]);
    assert!(explained.starts_with("Allowed now\n") && explained.contains("in shadow on this server only, for "));
    let off = "the shadow switch of the rule api: user_id has ended, on this server only\n";
    assert_eq!(scene.text(&["shadow", "off", "user_id", "--domain", "api"]), off);
    assert_eq!((scene.user("7"), scene.text(&["shadows"])), (429, "no shadow switch is on\n".to_owned()));
    scene.fails(&["shadow", "off", "user_id"], 1, &["no such shadow switch is on", "`spillgate shadows`"]);
    scene.fails(
        &["shadow", "on", "user_ip", "--for=1m"],
        1,
        &["no rule has the name `user_ip`", "did you mean `user_id`?"],
    );
    scene.fails(&["shadow", "on", "user_ip", "--domain=api", "--for=1m"], 1, &["did you mean `user_id`?"]);
    scene.fails(&["shadow", "on", "user_id", "--domain=ap", "--for=1m"], 1, &["did you mean the domain `api`?"]);
    scene.fails(&["shadow", "on", "user_id"], 2, &["--for <DURATION>", "for example --for 10m"]);
    scene.fails(&["shadow", "on", "user_id", "--for=40d"], 2, &["30d"]);
    scene.fails(&["shadow", "on", "--for=1m"], 2, &["RULE"]);
    scene.fails(&["shadow", "user_id", "--for=1m"], 2, &["on, off"]);
    scene.fails(&["shadow", "on", "user_id", "--for=1m", "--scope=fleet"], 2, &["there is no fleet"]);
    let all = scene.text(&["shadow", "on", "--all", "--for", "1h"]);
    assert_eq!(all, "all rules count, but refuse nothing for 1h, on this server only\n");
    assert_eq!(scene.user("7"), 200);
    assert!(scene.text(&["shadows"]).contains("all rules"));
    assert_eq!(
        scene.text(&["shadow", "off", "--all"]),
        "the shadow switch of all rules has ended, on this server only\n"
    );
}

#[test]
fn a_path_that_several_domains_have_needs_the_domain() {
    let folder =
        Folder::new(&[("rules/a.yaml", RULES), ("rules/b.yaml", &RULES.replace("domain: api", "domain: web"))]);
    let server = Spillgate::serve(&folder.path("rules"), &[]);
    let scene = Scene { folder, server };
    scene.fails(
        &["shadow", "on", "user_id", "--for=1m"],
        2,
        &["several rules", "api: user_id; web: user_id", "--domain"],
    );
    assert!(
        scene.text(&["shadow", "on", "user_id", "--for=1m", "--domain=web"]).contains("the rule web: user_id counts")
    );
    assert!(scene.text(&["shadow", "on", "api: user_id", "--for=1m"]).contains("the rule api: user_id counts"));
}

/// Returns the text between two other texts.
fn between<'t>(text: &'t str, begin: &str, end: &str) -> &'t str {
    let (_, rest) = text.split_once(begin).unwrap_or_else(|| panic!("no `{begin}` in {text}"));
    rest.split_once(end).unwrap_or_else(|| panic!("no `{end}` in {rest}")).0
}

#[test]
fn every_name_of_a_rule_that_a_command_prints_is_accepted() {
    let scene = Scene::new(RULES, &[]);
    (0..3).for_each(|_| _ = scene.user("7"));
    let explained = scene.run(&["explain", "-d=api", "-e=user_id=7"]).stdout;
    let caller = scene.run(&["explain", "--caller=user_id=7"]).stdout;
    scene.text(&["shadow", "on", "user_id", "--for=1m"]);
    let (insight, top, shadows) = (scene.text(&["insight"]), scene.text(&["top"]), scene.text(&["shadows"]));
    scene.folder.write("rules.yaml", &RULES.replace("requests_per_unit: 2}", "requests_per_unit: 7}"));
    let reload = scene.text(&["reload"]);
    for name in [
        between(&explained, "Refused now by ", ". Ask again"),
        between(&explained, "  rule ", " at "),
        between(&caller, "all free in\n", "  user_id=7"),
        insight.split(" (").next().unwrap_or_default(),
        top.split(" (").next().unwrap_or_default(),
        between(&shadows, "time left\n", "  this server"),
        "per_user",
        between(&reload, "2 rules\n  ", " ("),
    ] {
        assert!(scene.text(&["shadow", "on", name, "--for=1m"]).starts_with("the rule api: user_id counts"), "{name}");
        let shown = scene.text(&["insight", name]);
        assert!(shown.starts_with("api: user_id, limit per_user (") && !shown.contains("remote_address"), "{shown}");
    }
    scene.fails(&["insight", "user_ip"], 2, &["no limit that is watched has the name `user_ip`", "did you mean"]);
    scene.fails(&["insight", "--domain=ap"], 2, &["has the domain `ap`"]);
    // A switch can outlive its rule.
    scene.folder.write("rules.yaml", &RULES.replace("user_id", "user"));
    scene.text(&["reload"]);
    let off = "the shadow switch of the rule api: user_id has ended, on this server only\n";
    assert_eq!(scene.text(&["shadow", "off", "api: user_id"]), off);
}

#[test]
fn all_commands_give_a_rule_the_same_line() {
    let rules = "domain: api
descriptors:
  - key: user_id
    rate_limits:
      - {name: a, unit: year, requests_per_unit: 2}
      - {name: b, unit: hour, requests_per_unit: 2}
";
    let scene = Scene::new(rules, &[]);
    scene.user("7");
    let explained = scene.text(&["explain", "-d=api", "-e=user_id=7"]);
    let (insight, top) = (scene.text(&["insight"]), scene.text(&["top"]));
    scene.folder.write("rules.yaml", &rules.replace("requests_per_unit: 2", "requests_per_unit: 3"));
    let reload = scene.text(&["reload"]);
    for text in [explained, insight, top, reload] {
        assert!(
            text.contains("rules.yaml:3") && !text.contains("rules.yaml:5") && !text.contains("rules.yaml:6"),
            "{text}"
        );
    }
}

#[test]
fn all_limits_and_blocks_of_a_caller_are_listed() {
    let nested = "  - key: path\n    value: /login\n    descriptors: [{key: remote_address, rate_limit: {name: login, unit: year, requests_per_unit: 1}}]\n";
    let scene = Scene::new(&format!("{RULES}{nested}"), &[]);
    scene.check(&serde_json::json!([["path", "/login"], ["remote_address", "192.0.2.1"]]));
    let text = scene.run(&["explain", "--caller", "remote_address=192.0.2.1"]);
    assert_eq!(text.code, 1, "{text:?}");
    assert!(text.stdout.starts_with("Refused now by 1 limit\n"), "{text:?}");
    let login = "api: path=/login > remote_address, limit login";
    assert!(text.stdout.contains(login) && text.stdout.contains("path=/login, remote_address=192.0.2.1"));
    assert!(text.stdout.contains("1 of 1") && text.stdout.contains("0 of 100"), "{text:?}");
    let free = scene.text(&["explain", "--caller", "remote_address=192.0.2.2", "--domain=api"]);
    assert!(free.starts_with("Nothing refuses this caller now\n"), "{free}");
    scene.text(&["block", "user_id=192.0.2.2", "--for=1h"]);
    let blocked = scene.run(&["explain", "--caller=192.0.2.2"]);
    assert!(
        blocked.stdout.starts_with("Refused now by 1 block\n  user_id=192.0.2.2 is blocked in all domains"),
        "{blocked:?}"
    );
    let unknown = ["explain", "--caller", "user_ip=7"];
    scene.fails(&unknown, 2, &["no rule has the key `user_ip`", "did you mean `user_id`?", "--allow-unmatched"]);
    scene.fails(&[&unknown[..], &["--domain=api"]].concat(), 2, &["no rule of the domain `api` has the key `user_ip`"]);
    let nothing = scene.text(&[&unknown[..], &["--allow-unmatched"]].concat());
    let rest = "\nnot searched: limits of further values of this caller. Add each value with --caller\n";
    assert_eq!(nothing, format!("No limit and no block has these values\n{rest}"));
    assert_eq!(scene.json(&["explain", "--caller", "user_id=7"], 0)["limits"][0]["capacity"], 2);
    // A key that has a block is known.
    scene.text(&["block", "user_ip=7", "--for=1h", "--allow-unmatched"]);
    assert!(scene.run(&unknown).stdout.starts_with("Refused now by 1 block\n"));
    scene.fails(&["explain", "--caller=a=1", "--caller=a=2"], 2, &["the key `a` has two values"]);
    scene.fails(&["explain", "--caller=a=1", "--descriptor=a=1", "--domain=api"], 2, &["cannot be used with"]);
}

#[test]
fn shared_limits_are_listed_for_a_caller_and_what_is_left_out_is_said() {
    let more = "  - {key: path, value: /search, rate_limit: {name: search, unit: year, requests_per_unit: 1}}
  - {key: 'team_*', rate_limit: {name: teams, unit: year, requests_per_unit: 1}}
";
    let scene = Scene::new(&format!("{RULES}{more}"), &[]);
    let asked = scene.text(&["explain", "--caller", "user_id=7"]);
    assert!(asked.starts_with("Nothing refuses this caller now\n"), "{asked}");
    let shared = "\nlimits that all callers share, if their requests have these entries:\n";
    let (_, list) = asked.split_once(shared).expect("there is a shared limit");
    assert!(list.contains("api: path=/search, limit search  path=/search  0 of 1"), "{list}");
    scene.check(&serde_json::json!({ "path": "/search" }));
    let asked = scene.text(&["explain", "--caller", "user_id=7"]);
    assert!(asked.starts_with("Nothing with these values refuses now, but 1 shared limit may\n"), "{asked}");
    // A request with another path does not use this limit.
    let asked = scene.text(&["explain", "--caller", "user_id=7", "--caller", "path=/other"]);
    assert!(!asked.contains("/search"), "{asked}");
    let bare = scene.text(&["explain", "--caller", "7"]);
    assert!(
        bare.contains("\nleft out: 2 unused limits, because a value without a key can be that of any key."),
        "{bare}"
    );
    assert!(bare.contains("  api: team_* needs team_*=...\n"), "{bare}");
    assert_eq!(scene.json(&["explain", "--caller", "7"], 0)["unused_left_out"], 2);
}

#[test]
fn a_whole_request_is_explained_from_its_json() {
    let scene = Scene::new(RULES, &[]);
    (0..2).for_each(|_| assert_eq!(scene.user("7"), 200));
    let asked = r#"{"domain": "api", "descriptors": [{"remote_address": "192.0.2.1"}, {"user_id": "7"}]}"#;
    let refused = scene.run(&["explain", "--request", asked]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stdout.starts_with("Refused now by per_user (user_id)"), "{refused:?}");
    let envoy = r#"{"domain": "api", "descriptors": [{"entries": [{"key": "user_id", "value": "7"}]}]}"#;
    assert!(scene.run(&["explain", "--request", envoy]).stdout.starts_with("Refused now by per_user (user_id)"));
    // Both entries in one descriptor match no rule, so nothing says that the request is allowed by a limit.
    let together = r#"{"domain": "api", "descriptors": [{"user_id": "7", "remote_address": "192.0.2.1"}]}"#;
    let passes = scene.text(&["explain", "--request", together]);
    assert!(passes.starts_with("No limit and no block matches this request, so it passes\n"), "{passes}");
    assert!(passes.contains("have the keys, in this order: user_id; remote_address\n"), "{passes}");
    scene.fails(&["explain", "--request", "{"], 2, &["this is not JSON"]);
    scene.fails(&["explain", "--request", r#"{"domain": "api"}"#], 2, &["missing field `descriptors`"]);
}

#[test]
fn a_limit_in_shadow_is_not_named_as_the_one_that_refuses() {
    let rules = "domain: api
descriptors:
  - {key: quiet, shadow_mode: true, rate_limit: {name: in_shadow, unit: year, requests_per_unit: 0}}
  - {key: loud, rate_limit: {name: enforced, unit: year, requests_per_unit: 0}}
";
    let scene = Scene::new(rules, &[]);
    let text = scene.run(&["explain", "--domain=api", "--descriptor=quiet=7", "--descriptor=loud=7"]).stdout;
    assert!(text.starts_with("Refused now by enforced (loud)"), "{text}");
}

#[test]
fn a_hash_that_nobody_has_is_said() {
    let scene = Scene::new(RULES, &[]);
    scene.fails(&["block", "--hash=0123456789abcdef", "--for=1m"], 3, &["no request of this caller came"]);
    scene.fails(&["block", "--hash=7", "--for=1m"], 2, &["16 hexadecimal digits"]);
    scene.fails(&["block", "user_id=7", "--hash=0123456789abcdef", "--for=1m"], 2, &["cannot be used with"]);
    scene.fails(&["block", "--for=1m"], 2, &["KEY=VALUE"]);
    scene.fails(&["explain", "--hash=0123456789abcdef"], 3, &["no request of this caller came"]);
}

#[test]
fn a_refusal_is_explained_and_reset() {
    let scene = Scene::new(RULES, &[]);
    let explain = ["explain", "--domain", "api", "--descriptor", "user_id=7"];
    let allowed = scene.text(&explain);
    assert!(allowed.starts_with("Allowed now\n") && allowed.contains("2 -> 1 of 2"), "{allowed}");
    assert_eq!((scene.user("7"), scene.user("7")), (200, 200));
    let refused = scene.run(&explain);
    assert_eq!((refused.code, &*refused.stderr), (1, ""));
    assert!(refused.stdout.starts_with("Refused now by per_user (user_id). Ask again in "), "{}", refused.stdout);
    assert!(refused.stdout.contains("limit per_user: 2 per year, fixed window"), "{}", refused.stdout);
    assert!(refused.stdout.contains("no: used up"), "{}", refused.stdout);
    assert_eq!(scene.json(&explain, 1)["asked"][0]["allowed"], false);
    assert!(scene.run(&["explain", "-d=api", "-e=user_id=8", "--cost=3"]).stdout.contains("never"));
    let reset = ["reset", "--domain", "api", "--descriptor", "user_id=7"];
    assert_eq!(scene.text(&reset), "all units are there again: 1 limit\n  api: user_id, limit per_user\n");
    assert_eq!(scene.user("7"), 200);
    assert_eq!(scene.json(&reset, 0)["reset"], 1);
    scene.fails(&["reset", "-d=api", "-e=user=7"], 1, &["has the key `user`", "`user_id`"]);
    scene.fails(&["reset", "-d=ap", "-e=user_id=7"], 1, &["the domain `ap`", "did you mean `api`?"]);
}

#[test]
fn an_explanation_of_an_unknown_name_is_an_error() {
    let scene = Scene::new(RULES, &[]);
    scene.fails(
        &["explain", "-d=ap", "-e=user_id=7"],
        2,
        &["no rules file has the domain `ap`", "did you mean `api`?"],
    );
    scene.fails(&["explain", "-d=api", "-e=user_ip=7"], 2, &["has the key `user_ip`", "did you mean `user_id`?"]);
    let output = scene.run(&["explain", "-d=api", "-e=user_ip=7", "--allow-unmatched"]);
    assert_eq!((output.code, &*output.stderr), (0, ""));
    assert!(output.stdout.starts_with(
        "No limit and no block matches this request, so it passes\nno rule of the domain `api` has the key"
    ));
    let json = scene.json(&["explain", "-d=api", "-e=user_ip=7", "--allow-unmatched"], 0);
    assert_eq!(json["unknown"][0]["help"], "did you mean `user_id`?");
}

#[test]
fn the_callers_with_the_most_units_are_listed() {
    let scene = Scene::new(RULES, &["--insight-keys=plain"]);
    assert_eq!(scene.text(&["top"]), "no limit has callers yet\n");
    for user in ["ann", "ann", "ann", "ann\u{1b}[31m"] {
        scene.user(user);
    }
    let text = scene.text(&["top"]);
    assert!(text.contains("api: user_id, limit per_user (") && !text.contains("remote_address"), "{text}");
    assert!(text.contains("refused units") && text.contains("user_id=ann\n") && !text.contains('\u{1b}'), "{text}");
    assert_eq!(scene.json(&["top"], 0)["limits"].as_array().map(Vec::len), Some(2));
    // Each of many callers has one unit, so none of them is known to have many.
    let many = Scene::new(RULES, &[]);
    (0..200).for_each(|user| _ = many.user(&user.to_string()));
    let text = many.text(&["top"]);
    let line =
        text.lines().find(|line| line.starts_with("  allowed units: 200. No caller is known to have more than "));
    assert!(line.is_some_and(|line| line.ends_with(" of them.")), "{text}");
    let hidden = Scene::new(RULES, &["--insight-keys=off"]);
    hidden.user("ann");
    assert!(hidden.text(&["top"]).contains("allowed units: 1. The setting insight.keys hides the callers."));
}

#[test]
fn a_reload_says_what_changed_or_why_not() {
    let scene = Scene::new(RULES, &[]);
    assert_eq!(scene.text(&["reload"]), "nothing has changed: 1 file, 1 domain, 2 rules\n");
    scene.folder.write("rules.yaml", &RULES.replace("requests_per_unit: 2}", "requests_per_unit: 7}"));
    let text = scene.text(&["reload"]);
    assert!(text.starts_with("reloaded: 1 file, 1 domain, 2 rules\n  api: user_id ("), "{text}");
    assert!(text.contains("limit per_user changed: 2 per year") && text.contains("-> 7 per year"), "{text}");
    assert!(text.ends_with("\nnote: insight of 1 changed limit begins again\n"), "{text}");
    scene.folder.write("rules.yaml", &RULES.replace("rate_limit: {name", "rate_limt: {name"));
    let says = [
        "at ",
        "rules.yaml:4:5",
        "| ",
        "rate_limt: {name: per_user",
        "did you mean `rate_limit`?",
        "earlier rules stay in use",
    ];
    scene.fails(&["reload"], 1, &says);
    let json = scene.json(&["reload"], 1);
    assert_eq!((&json["status"], &json["errors"][0]["line"]), (&422.into(), &4.into()));
    assert!(scene.text(&["explain", "-d=api", "-e=user_id=7"]).contains("7 -> 6 of 7"), "the earlier rules decide");
}

#[test]
fn the_last_reloads_are_listed() {
    let scene = Scene::new(RULES, &[]);
    assert_eq!(scene.text(&["reloads"]), "no reload since the server started\n");
    scene.text(&["reload"]);
    scene.folder.write("rules.yaml", &RULES.replace("requests_per_unit: 2}", "requests_per_unit: 7}"));
    scene.text(&["reload"]);
    scene.folder.write("rules.yaml", &RULES.replace("rate_limit: {name", "rate_limt: {name"));
    assert_eq!(scene.run(&["reload"]).code, 1);
    let text = scene.text(&["reloads"]);
    let reloads: Vec<_> = text.split("\n\n").collect();
    assert_eq!(reloads.len(), 3, "{text}");
    assert!(
        reloads[0].contains(" UTC  request  failed: the earlier rules stayed in use\n  ")
            && reloads[0].contains("`rate_limit`")
    );
    assert!(reloads[1].contains(" UTC  request  reloaded: 1 file, 1 domain, 2 rules\n  api: user_id ("), "{text}");
    assert!(reloads[1].contains("limit per_user changed: 2 per year"), "{text}");
    assert!(reloads[2].ends_with(" UTC  request  nothing has changed: 1 file, 1 domain, 2 rules\n"), "{text}");
    assert_eq!(scene.json(&["reloads"], 0)["reloads"].as_array().map(Vec::len), Some(3));
}

#[test]
fn the_address_of_the_admin_listener_can_come_from_the_environment() {
    let scene = Scene::new(RULES, &[]);
    let admin = scene.server.admin().to_string();
    for command in ["blocks", "insight", "top", "reloads"] {
        let output = scene.folder.run_with(&[command], &[("SPILLGATE_ADMIN_URL", &admin)]);
        assert_eq!((output.code, &*output.stderr), (0, ""), "{command}");
        // The flag wins.
        let output =
            scene.folder.run_with(&[command, "--admin=http://127.0.0.1:1"], &[("SPILLGATE_ADMIN_URL", &admin)]);
        assert!(output.code == 3 && output.stderr.contains("http://127.0.0.1:1 cannot be reached"), "{output:?}");
        let output = scene.folder.run_with(&[command], &[("SPILLGATE_ADMIN_URL", "off")]);
        assert!(output.code == 2 && output.stderr.contains("`off` in SPILLGATE_ADMIN_URL is no address"), "{output:?}");
    }
}
