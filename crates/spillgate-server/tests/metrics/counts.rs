//! Counts of limits and requests are right for each outcome, over each protocol, and with each store.

use crate::metrics::page::Page;
use crate::metrics::traffic::{RULES, Via, serve};
use crate::support::eventually;
use crate::support::redis::Redis;
use crate::support::spillgate::Spillgate;

const HITS: &str = "spillgate_limit_hits_total";
const NEAR: &str = "spillgate_limit_near_total";
const UNITS: &str = "spillgate_limit_units_total";
const REQUESTS: &str = "spillgate_requests_total";

fn of_limit(page: &Page, name: &str, rule: &str, limit: &str, outcome: &str) -> u64 {
    let labels = [("domain", "d"), ("rule", rule), ("limit", limit), ("outcome", outcome)];
    page.sum(name, &labels[..if outcome.is_empty() { 3 } else { 4 }])
}

fn every_outcome_is_counted(server: &Spillgate, via: Via) {
    via.send(server, &[("two", "a")], 2);
    // This take uses the last of the 3 units of `daily`, so `daily` is counted as nearly used up. The limit of 10 units
    // still has 7, which is more than a fifth.
    via.send(server, &[("two", "a")], 1);
    // `daily` refuses, and the other limit would have allowed the request.
    via.send(server, &[("two", "a")], 1);
    for _ in 0..3 {
        via.send(server, &[("soft", "a")], 1);
    }
    via.send(server, &[("shadow", "a")], 1);
    via.send(server, &[("shadow", "a")], 1);
    // Both descriptors use the same counter, so the request has one hit of 2 units.
    via.send(server, &[("soft", "b"), ("soft", "b")], 1);
    via.send(server, &[("unknown", "a")], 1);

    let page = Page::of(server.admin());
    let hits = |rule, limit| {
        ["allowed", "refused", "shadow_refused", "soft_over"].map(|o| of_limit(&page, HITS, rule, limit, o))
    };
    let units = |rule, limit| ["allowed", "refused", "shadow_refused"].map(|o| of_limit(&page, UNITS, rule, limit, o));
    let near = |rule, limit| of_limit(&page, NEAR, rule, limit, "");
    assert_eq!(hits("two", "daily"), [2, 1, 0, 0], "{via:?}");
    assert_eq!((units("two", "daily"), near("two", "daily")), ([3, 1, 0], 1), "{via:?}");
    assert_eq!(hits("two", "10 per year"), [3, 0, 0, 0], "{via:?}");
    assert_eq!((units("two", "10 per year"), near("two", "10 per year")), ([3, 0, 0], 0), "{via:?}");
    assert_eq!(hits("soft", "2 per year"), [3, 0, 0, 1], "{via:?}");
    assert_eq!((units("soft", "2 per year"), near("soft", "2 per year")), ([5, 0, 0], 2), "{via:?}");
    assert_eq!(hits("shadow", "1 per year"), [1, 0, 1, 0], "{via:?}");
    assert_eq!((units("shadow", "1 per year"), near("shadow", "1 per year")), ([1, 0, 1], 1), "{via:?}");
    let of = |outcome| page.sum(REQUESTS, &[("protocol", via.name()), ("source", "store"), ("outcome", outcome)]);
    assert_eq!((of("allowed"), of("refused")), (9, 1), "{via:?}");
    assert_eq!(page.sum(REQUESTS, &[]), 10, "{via:?}");
    assert_eq!(page.sum("spillgate_unmatched_descriptors_total", &[]), 1, "{via:?}");
    assert_eq!(page.sum("spillgate_decisions_total", &[("rule", "two"), ("outcome", "refused")]), 1, "{via:?}");
}

#[test]
fn in_memory_every_outcome_is_counted_over_grpc() {
    every_outcome_is_counted(&serve(RULES, &[]), Via::Grpc);
}

#[test]
fn in_memory_every_outcome_is_counted_over_http() {
    every_outcome_is_counted(&serve(RULES, &[]), Via::Http);
}

#[test]
fn in_redis_every_outcome_is_counted_over_each_protocol() {
    for via in [Via::Grpc, Via::Http] {
        let redis = Redis::start();
        // The deadline is long: an answer that is late on a busy machine would come from the local store.
        let settings = ["--store", &redis.url(), "--store-expected-nodes", "1", "--store-deadline", "10s"];
        let server = serve(RULES, &settings);
        eventually("the store is up", || Page::of(server.admin()).text.contains("spillgate_store_up 1").then_some(()));
        every_outcome_is_counted(&server, via);
        let page = Page::of(server.admin());
        let (calls, requests) =
            (page.sum("spillgate_store_calls_total", &[]), page.sum("spillgate_store_call_requests_total", &[]));
        // One of the 10 requests needs no call, because no rule matches it. Probes of the store's health are calls too.
        assert!(calls >= 9 && requests >= calls, "{calls} calls, {requests} requests");
        assert!(page.sum("spillgate_store_duration_seconds_count", &[]) >= 9);
    }
}

#[test]
fn the_deny_cache_is_a_source_and_shows_its_states() {
    let redis = Redis::start();
    // With a short deadline, the local store would decide a request that is late.
    let settings = ["--store", &redis.url(), "--store-expected-nodes", "1", "--store-deadline", "10s"];
    let server = serve(RULES, &settings);
    eventually("the store is up", || Page::of(server.admin()).text.contains("spillgate_store_up 1").then_some(()));
    let hits = || Page::of(server.admin()).sum("spillgate_deny_cache_hits_total", &[]);
    eventually("the deny cache refuses", || {
        Via::Http.send(&server, &[("two", "a")], 1);
        (hits() > 0).then_some(())
    });
    let page = Page::of(server.admin());
    let refused = page.sum(REQUESTS, &[("source", "deny_cache"), ("outcome", "refused")]);
    assert_eq!(refused, page.sum("spillgate_deny_cache_hits_total", &[]));
    assert!(page.sum("spillgate_deny_cache_entries", &[]) >= 1);
    assert_eq!(of_limit(&page, HITS, "two", "daily", "allowed"), 3);
    let of_daily = of_limit(&page, HITS, "two", "daily", "refused");
    assert_eq!(of_daily, page.sum(REQUESTS, &[("outcome", "refused")]));
}

#[test]
fn a_failing_store_is_a_source_of_its_own() {
    let redis = Redis::start();
    let server = serve(RULES, &["--store", &redis.url(), "--store-expected-nodes", "1"]);
    eventually("the store is up", || Page::of(server.admin()).text.contains("spillgate_store_up 1").then_some(()));
    drop(redis);
    eventually("the local store decides", || {
        Via::Http.send(&server, &[("soft", "a")], 1);
        (Page::of(server.admin()).sum(REQUESTS, &[("source", "local")]) > 0).then_some(())
    });
    let failures = Page::of(server.admin()).sum("spillgate_store_failures_total", &[]);
    assert!(failures > 0);
}

#[test]
fn values_of_clients_make_no_series() {
    let server = serve(RULES, &[]);
    let before = Page::of(server.admin()).lines.len();
    for number in 0..50 {
        for via in [Via::Grpc, Via::Http] {
            via.send(
                &server,
                &[("two", &format!("{number}\"}} 1\nspillgate_evil 1")), (&format!("evil\"{number}\n"), "x")],
                1,
            );
        }
    }
    let page = Page::of(server.admin());
    assert_eq!(page.lines.len(), before, "{}", page.text);
    assert_eq!(of_limit(&page, HITS, "two", "daily", "allowed"), 100);
}

#[test]
fn hostile_names_of_limits_stay_in_their_label_and_are_unique() {
    let long = "\u{e4}".repeat(200);
    let rules = format!(
        r#"
domain: "a\"}} 1\n"
descriptors:
  - key: "k\\\"\n"
    rate_limits:
      - {{name: "evil\"}} 9\nspillgate_evil 1\n#", unit: second, requests_per_unit: 1}}
      - {{name: "{long}1", unit: minute, requests_per_unit: 2}}
      - {{name: "{long}2", unit: hour, requests_per_unit: 3}}
      - {{unit: day, requests_per_unit: 4, algorithm: fixed_window}}
      - {{unit: day, requests_per_unit: 4, algorithm: sliding_window_log}}
"#
    );
    let page = Page::of(serve(&rules, &[]).admin());
    let limits: Vec<_> =
        page.lines.iter().filter(|(name, ..)| name == NEAR).map(|(_, labels, _)| &*labels["limit"]).collect();
    let cut = "\u{e4}".repeat(64);
    let mut expected = [
        "evil\"} 9\nspillgate_evil 1\n#".to_owned(),
        cut.clone(),
        format!("{cut} #3"),
        "4 per day".into(),
        "4 per day #5".into(),
    ];
    expected.sort();
    let mut limits: Vec<_> = limits.into_iter().map(str::to_owned).collect();
    limits.sort();
    assert_eq!(limits, expected);
    assert!(page.lines.iter().all(|(name, ..)| name != "spillgate_evil"));
}

#[test]
fn a_reload_keeps_the_counts_of_limits_that_stay() {
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(file.path(), RULES).unwrap();
    let server = Spillgate::serve(file.path(), &[]);
    Via::Http.send(&server, &[("two", "a")], 1);
    let before = Page::of(server.admin());
    assert!(before.sum("spillgate_rules_last_reload_success_timestamp_seconds", &[]) > 1_700_000_000);
    std::fs::write(file.path(), RULES.replace("requests_per_unit: 10", "requests_per_unit: 20")).unwrap();
    let kill = std::process::Command::new("kill").args(["-HUP", &server.process.id().to_string()]).status();
    assert!(kill.unwrap().success());
    let page = eventually("the rules are reloaded", || {
        let page = Page::of(server.admin());
        page.text.contains("limit=\"20 per year\"").then_some(page)
    });
    assert_eq!(of_limit(&page, HITS, "two", "daily", "allowed"), 1);
    assert_eq!(of_limit(&page, HITS, "two", "20 per year", "allowed"), 0);
    assert!(!page.text.contains("limit=\"10 per year\""), "{}", page.text);
}

#[test]
fn a_limit_that_is_replaced_is_not_counted_and_the_others_are() {
    let rules = "
domain: d
descriptors:
  - key: two
    rate_limits:
      - {name: base, unit: year, requests_per_unit: 10, algorithm: token_bucket}
      - {name: other, unit: year, requests_per_unit: 9, algorithm: fixed_window}
  - {key: soft, rate_limit: {name: special, unit: year, requests_per_unit: 8, replaces: [{name: base}]}}
";
    let server = serve(rules, &[]);
    Via::Http.send(&server, &[("two", "a"), ("soft", "a")], 1);
    Via::Http.send(&server, &[("soft", "b"), ("two", "b")], 1);
    Via::Http.send(&server, &[("two", "c")], 1);
    let page = Page::of(server.admin());
    let allowed = |rule, limit| of_limit(&page, HITS, rule, limit, "allowed");
    assert_eq!([allowed("two", "base"), allowed("two", "other"), allowed("soft", "special")], [1, 3, 2]);
}

#[test]
fn rules_whose_paths_look_alike_have_series_of_their_own() {
    let rules = "
domain: d
descriptors:
  - {key: a, value: '1 > b', rate_limit: {unit: year, requests_per_unit: 10}}
  - {key: a, value: '1', descriptors: [{key: b, rate_limit: {unit: year, requests_per_unit: 10}}]}
";
    let server = serve(rules, &[]);
    Via::Http.send(&server, &[("a", "1 > b")], 1);
    let body = r#"{"domain":"d","descriptors":[{"a":"1","b":"x"}]}"#;
    for _ in 0..2 {
        let answer = crate::support::http::request(server.http(), "POST", "/v1/check", &[], body);
        assert_eq!(answer.expect("the server answers").status, 200);
    }
    let page = Page::of(server.admin());
    let allowed = |rule| of_limit(&page, HITS, rule, "10 per year", "allowed");
    assert_eq!([allowed(r#"a="1 > b""#), allowed("a=1 > b")], [1, 2], "{}", page.text);
}
