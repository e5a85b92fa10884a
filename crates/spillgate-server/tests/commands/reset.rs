//! `reset` says which limits it has reset, because a value can belong to other limits than the operator has in mind.

use serde_json::json;

use crate::commands::Scene;

const RULES: &str = "domain: api
descriptors:
  - key: remote_address
    rate_limits:
      - {name: slow, unit: year, requests_per_unit: 2}
      - {name: fast, unit: hour, requests_per_unit: 1}
  - key: path
    value: /login
    rate_limit: {name: logins, unit: year, requests_per_unit: 9}
    descriptors:
      - {key: remote_address, rate_limit: {unit: year, requests_per_unit: 1}}
";

#[test]
fn a_reset_names_the_limits_that_it_has_reset() {
    let scene = Scene::new(RULES, &[]);
    let reset = scene.text(&["reset", "-d=api", "-e=remote_address=192.0.2.66"]);
    let names = "  api: remote_address, limit slow\n  api: remote_address, limit fast\n";
    assert_eq!(reset, format!("all units are there again: 2 limits\n{names}"));
    let nested = ["reset", "-d=api", "-e=path=/login, remote_address=192.0.2.66"];
    let named = "  api: path=/login > remote_address, limit 1 per year\n";
    assert_eq!(scene.text(&nested), format!("all units are there again: 1 limit\n{named}"));
    let json = scene.json(&nested, 0);
    let limit = &json["limits"][0];
    assert_eq!((&limit["limit"]["rule"], &limit["shared"]), (&json!("path=/login > remote_address"), &json!(false)));
    assert_eq!((&json["reset"], &json["limits_left_out"]), (&json!(1), &json!(0)));
}

#[test]
fn a_reset_of_a_counter_that_all_callers_share_says_so() {
    let scene = Scene::new(RULES, &[]);
    let reset = scene.text(&["reset", "-d=api", "-e=path=/login"]);
    assert!(reset.ends_with("\n  api: path=/login, limit logins (all callers share this counter)\n"), "{reset}");
}

#[test]
fn a_reset_of_very_many_limits_names_the_first_ones() {
    let scene = Scene::new(RULES, &[]);
    let descriptors: Vec<_> = (0..60).map(|caller| format!("-e=remote_address={caller}")).collect();
    let arguments: Vec<_> = ["reset", "-d=api"].into_iter().chain(descriptors.iter().map(|text| &**text)).collect();
    let reset = scene.text(&arguments);
    assert!(reset.starts_with("all units are there again: 120 limits\n"), "{reset}");
    assert_eq!(reset.lines().count(), 102, "{reset}");
    assert!(reset.ends_with("\n  and 20 more limits\n"), "{reset}");
}
