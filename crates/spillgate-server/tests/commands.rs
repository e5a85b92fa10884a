//! Tests of the commands for operators, with real servers: `block`, `unblock`, `blocks`, `shadow`, `shadows`, `reset`,
//! `explain`, `top` and `reload`.

mod hostile;

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
    assert_eq!(scene.text(&["unblock", "user_id=7"]), "all blocks of user_id=7 have ended: 1\n");
    assert_eq!(scene.user("7"), 200);
    let other = "--descriptor=remote_address=203.0.113.9";
    scene.text(&["block", "user_id=7", "--for=1m"]);
    let explained = scene.run(&["explain", "--domain=api", "--descriptor=user_id=7", other]);
    assert!(!explained.stdout.contains("left out"), "no rule replaces the other one: {}", explained.stdout);
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
    let ended = "the block of user_id=8 in the domain api has ended\n";
    assert_eq!((scene.text(&["unblock", "user_id=8", "--domain=api"]), scene.user("8")), (ended.to_owned(), 429));
    let wrong = scene.json(&["block", "user_id=7", "--for", "soon"], 2);
    assert_eq!(wrong["ok"], false);
    assert!(wrong["errors"][0]["message"].as_str().is_some_and(|text| text.contains("for")), "{wrong}");
    for (block, says) in [
        (&["user_ip=7"][..], "note: no rule has the key user_ip: check that requests have it\n"),
        (&["user_id=9", "--domain=ap"], "note: no rule has the domain ap: check that requests have it\n"),
    ] {
        let output = scene.run(&[&["block", "--for=1m"], block].concat());
        assert!(output.code == 0 && output.stdout.contains(" is blocked in ") && output.stderr == says, "{output:?}");
    }
    scene.fails(&["block", "user_id", "--for=1m"], 2, &["has no value: write KEY=VALUE"]);
    scene.fails(&["block", "user_id=7,a=b", "--for=1m"], 2, &["write one KEY=VALUE"]);
    scene.fails(&["block", "user_id=7"], 2, &["--for <DURATION>"]);
}

#[test]
fn a_rule_is_put_into_shadow_by_its_path() {
    let scene = Scene::new(RULES, &[]);
    assert_eq!((scene.user("7"), scene.user("7"), scene.user("7")), (200, 200, 429));
    let on = "the rule user_id of the domain api counts, but refuses nothing for 30m, on this server only\n";
    assert_eq!(scene.text(&["shadow", "on", "user_id", "--for", "30m"]), on);
    assert_eq!(scene.user("7"), 200);
    let list = scene.text(&["shadows"]);
    assert!(list.contains("api: user_id  this server"), "{list}");
    let explained = scene.text(&["explain", "--domain=api", "--descriptor=user_id=7"]);
    assert!(explained.starts_with("Allowed now\n") && explained.contains("in shadow on this server only, for "));
    let off = "the shadow of the rule user_id of the domain api has ended, on this server only\n";
    assert_eq!(scene.text(&["shadow", "off", "user_id", "--domain", "api"]), off);
    assert_eq!((scene.user("7"), scene.text(&["shadows"])), (429, "no rule was put into shadow\n".to_owned()));
    scene.fails(&["shadow", "off", "user_id"], 1, &["no such shadow switch is on", "`spillgate shadows`"]);
    scene.fails(
        &["shadow", "on", "user_ip", "--for=1m"],
        1,
        &["no rule has the path `user_ip`", "did you mean `user_id`?"],
    );
    scene.fails(&["shadow", "on", "user_ip", "--domain=api", "--for=1m"], 1, &["did you mean the rule `user_id`?"]);
    scene.fails(&["shadow", "on", "user_id"], 2, &["--for <DURATION>"]);
    scene.fails(&["shadow", "on", "user_id", "--for=40d"], 2, &["30d"]);
    scene.fails(&["shadow", "on", "--for=1m"], 2, &["RULE"]);
    scene.fails(&["shadow", "user_id", "--for=1m"], 2, &["on, off"]);
    scene.fails(&["shadow", "on", "user_id", "--for=1m", "--scope=fleet"], 2, &["there is no fleet"]);
    let all = scene.text(&["shadow", "on", "--all", "--for", "1h"]);
    assert_eq!(all, "all rules count, but refuse nothing for 1h, on this server only\n");
    assert_eq!(scene.user("7"), 200);
    assert!(scene.text(&["shadows"]).contains("all rules"));
    assert_eq!(scene.text(&["shadow", "off", "--all"]), "the shadow of all rules has ended, on this server only\n");
}

#[test]
fn a_path_that_several_domains_have_needs_the_domain() {
    let folder =
        Folder::new(&[("rules/a.yaml", RULES), ("rules/b.yaml", &RULES.replace("domain: api", "domain: web"))]);
    let server = Spillgate::serve(&folder.path("rules"), &[]);
    let scene = Scene { folder, server };
    scene.fails(&["shadow", "on", "user_id", "--for=1m"], 2, &["several domains", "api, web", "--domain"]);
    assert!(scene.text(&["shadow", "on", "user_id", "--for=1m", "--domain=web"]).contains("of the domain web counts"));
}

#[test]
fn all_limits_and_blocks_of_a_caller_are_listed() {
    let nested = "  - key: path\n    value: /login\n    descriptors: [{key: remote_address, rate_limit: {name: login, unit: year, requests_per_unit: 1}}]\n";
    let scene = Scene::new(&format!("{RULES}{nested}"), &[]);
    scene.check(&serde_json::json!([["path", "/login"], ["remote_address", "192.0.2.1"]]));
    let text = scene.run(&["explain", "--caller", "remote_address=192.0.2.1"]);
    assert_eq!(text.code, 1, "{text:?}");
    assert!(text.stdout.starts_with("Refused now by 1 limit\n"), "{text:?}");
    assert!(text.stdout.contains("api: login") && text.stdout.contains("path=/login, remote_address=192.0.2.1"));
    assert!(text.stdout.contains("1 of 1") && text.stdout.contains("0 of 100"), "{text:?}");
    let free = scene.text(&["explain", "--caller", "remote_address=192.0.2.2", "--domain=api"]);
    assert!(free.starts_with("Nothing refuses this caller now\n"), "{free}");
    scene.text(&["block", "user_id=192.0.2.2", "--for=1h"]);
    let blocked = scene.run(&["explain", "--caller=192.0.2.2"]);
    assert!(
        blocked.stdout.starts_with("Refused now by 1 block\n  user_id=192.0.2.2 is blocked in all domains"),
        "{blocked:?}"
    );
    let nothing = scene.text(&["explain", "--caller", "unknown=7"]);
    assert_eq!(nothing, "No limit and no block has these values\n");
    assert_eq!(scene.json(&["explain", "--caller", "user_id=7"], 0)["limits"][0]["capacity"], 2);
    scene.fails(&["explain", "--caller=a=1", "--caller=a=2"], 2, &["the key `a` has two values"]);
    scene.fails(&["explain", "--caller=a=1", "--descriptor=a=1", "--domain=api"], 2, &["cannot be used with"]);
    scene.fails(&["explain"], 2, &["--domain"]);
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
    scene.fails(&["block", "--hash=0123456789abcdef", "--for=1m"], 1, &["no request of this caller came"]);
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
    assert_eq!(scene.text(&reset), "all its limits are full again: 1 limit\n");
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
    assert!(text.contains("api: user_id per_user (") && !text.contains("remote_address"), "{text}");
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
