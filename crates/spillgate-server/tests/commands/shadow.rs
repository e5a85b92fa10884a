//! What `shadow` and `shadows` say about rules that other things keep in shadow, or that refuse nothing anyway.

use crate::commands::Scene;

const RULES: &str = "domain: shop
descriptors:
  - {key: api_key, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: user_id, rate_limit: {name: per_user, unit: year, requests_per_unit: 2}}
  - {key: quiet, shadow_mode: true}
  - key: path
    value: /login
    descriptors:
      - {key: remote_address, rate_limit: {name: login, unit: year, requests_per_unit: 1}}
      - {key: account}
  - {key: path, value: /log}
";

#[test]
fn the_end_of_a_switch_says_what_still_keeps_the_rule_in_shadow() {
    let scene = Scene::new(RULES, &[]);
    let on = scene.text(&["shadow", "on", "api_key", "--for=30m"]);
    let counts = "the rule shop: api_key counts, but refuses nothing for 30m, on this server only\n";
    assert_eq!(on, format!("{counts}also without this switch: its file says `shadow_mode: true`\n"));
    let off = scene.text(&["shadow", "off", "api_key"]);
    let ended = "the shadow switch of the rule shop: api_key has ended, on this server only\n";
    assert_eq!(off, format!("{ended}it still refuses nothing: its file says `shadow_mode: true`\n"));
    scene.text(&["shadow", "on", "user_id", "--for=30m"]);
    scene.text(&["shadow", "on", "--all", "--for=1h"]);
    let off = scene.text(&["shadow", "off", "user_id"]);
    let [ended, also] = off.lines().collect::<Vec<_>>()[..] else { panic!("{off}") };
    assert_eq!(ended, "the shadow switch of the rule shop: user_id has ended, on this server only");
    assert!(also.starts_with("it still refuses nothing: a switch for all rules is on for "), "{off}");
    assert!(also.ends_with(", on this server only"), "{off}");
    let json = scene.json(&["shadow", "off", "--all"], 0);
    assert_eq!(json["shadow"]["also"], serde_json::json!([]));
}

#[test]
fn a_server_in_shadow_says_so_when_a_switch_ends() {
    let scene = Scene::new(RULES, &["--shadow"]);
    scene.text(&["shadow", "on", "--all", "--for=1h"]);
    let off = scene.text(&["shadow", "off", "--all"]);
    assert!(off.ends_with("\nthey still refuse nothing: this server has the setting `shadow: true`\n"), "{off}");
    assert!(scene.text(&["shadows"]).ends_with("\nin shadow by the setting `shadow` of this server: all rules\n"));
}

#[test]
fn rules_that_are_in_shadow_by_their_file_are_listed_beside_the_switches() {
    let scene = Scene::new(RULES, &[]);
    // A rule without a limit has nothing to refuse.
    let by_file = "in shadow by their files: shop: api_key\n";
    assert_eq!(scene.text(&["shadows"]), format!("no shadow switch is on\n{by_file}"));
    scene.text(&["shadow", "on", "user_id", "--for=30m"]);
    let list = scene.text(&["shadows"]);
    assert!(list.contains("shop: user_id  this server") && list.ends_with(by_file), "{list}");
}

#[test]
fn a_switch_for_a_rule_without_a_limit_is_an_error_that_names_the_nested_rules() {
    let scene = Scene::new(RULES, &[]);
    let on = |rule| ["shadow", "on", rule, "--for=1m"];
    let nested = "name a nested rule that has limits: `shop: path=/login > remote_address`";
    scene.fails(&on("path=/login"), 2, &["the rule `shop: path=/login` has no limit, so it refuses nothing", nested]);
    scene.text(&on("shop: path=/login > remote_address"));
    for rule in ["path=/log", "path=/login > account"] {
        scene.fails(&on(rule), 2, &["has no limit", "`spillgate insight`"]);
    }
}

#[test]
fn the_name_of_a_limit_with_its_domain_is_a_name_of_its_rule() {
    let scene = Scene::new(RULES, &[]);
    assert!(scene.text(&["shadow", "on", "shop: per_user", "--for=1m"]).starts_with("the rule shop: user_id counts"));
    scene.fails(&["shadow", "on", "api: per_user", "--for=1m"], 1, &["no rule has the name `api: per_user`"]);
}
