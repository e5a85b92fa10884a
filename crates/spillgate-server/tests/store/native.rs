//! `store.fixed_window: native`: such a window is asked about alone.

use crate::commands::json;
use crate::fleet::{PATIENT, client, judged, metric, request, rules, serve};
use crate::support::http;
use crate::support::redis::Redis;
use tokio::runtime::Runtime;

const NATIVE: [&str; 2] = ["--store-fixed-window", "native"];
const WINDOW: &str = "unit: year, requests_per_unit: 4, anchor: first_hit";

#[test]
fn beside_another_limit_a_native_window_is_an_error_at_the_start() {
    let folder = rules(&format!(
        "  - key: user\n    rate_limits:\n      - {{{WINDOW}}}\n      - {{unit: day, requests_per_unit: 9}}\n"
    ));
    let settings = |form: &str| {
        folder.write("s.yaml", &format!("store: {{url: redis://h, expected_nodes: 2, fixed_window: {form}}}"));
        folder.run("validate rules.yaml -c s.yaml")
    };
    let said = settings("native");
    assert!(said.code == 2 && said.stderr.contains("rules.yaml:5"), "{said:?}");
    assert!(said.stderr.contains("the only limit of its rule") && said.stderr.contains("help: "), "{said:?}");
    assert_eq!(settings("script").code, 0);
    // Others go together, whatever they can do.
    let both = "domain: api\ndescriptors:\n  - key: user\n    rate_limits:\n      - {unit: day, requests_per_unit: 9}\n      \
                - {algorithm: concurrency, limit: 1, lease: 1m}\n";
    folder.write("rules.yaml", both);
    assert_eq!(settings("native").code, 0);
    let limit = format!("domain: api\ndescriptors: [{{key: user, rate_limit: {{{WINDOW}, post_paid: true}}}}]\n");
    folder.write("rules.yaml", &limit);
    let said = settings("native");
    assert!(said.code == 2 && said.stderr.contains("needs `store.fixed_window: script`"), "{said:?}");
    assert_eq!(settings("script").code, 0);
}

#[test]
fn several_native_windows_in_a_request_are_answered_by_their_policy() {
    let folder = rules(&format!("  - {{key: user, rate_limit: {{{WINDOW}}}}}\n"));
    let redis = Redis::start();
    let server = serve(&folder, &redis.url(), &[&PATIENT[..], &NATIVE[..]].concat());
    assert_eq!(judged(server.http(), "user", "a"), (200, "store".to_owned()));
    let body = r#"{"domain":"api","descriptors":[{"user":"b"},{"user":"c"}]}"#;
    let asked: Vec<_> = (0..3)
        .map(|_| http::request(server.http(), "POST", "/v1/check", &[], body).expect("an answer"))
        .map(|answer| (answer.status, answer.body.contains(r#""source":"local""#)))
        .collect();
    assert_eq!(asked, [(200, true), (200, true), (429, true)], "of two servers each has half");
    let asked = async { client(&server).await.should_rate_limit(request("user", &["d", "e"])).await };
    Runtime::new().expect("a runtime").block_on(asked).expect("an answer");
    assert_eq!(metric(&server, "spillgate_store_failures_total{class=\"malformed\"}"), 4);
}

#[test]
fn key_tells_both_names_of_a_native_window() {
    let folder = rules(&format!(
        "  - {{key: user, rate_limit: {{{WINDOW}}}}}\n  - {{key: other, rate_limit: {{unit: year, requests_per_unit: 4}}}}\n"
    ));
    let redis = Redis::start();
    let server = serve(&folder, &redis.url(), &[&PATIENT[..], &NATIVE[..]].concat());
    assert_eq!(judged(server.http(), "user", "a"), (200, "store".to_owned()));
    let [there] = &redis.keys(&[])[..] else { panic!("{:?}", redis.keys(&[])) };
    let key = |arguments: &str| folder.run(&format!("key rules.yaml -d api --store-fixed-window native {arguments}"));
    let said = key("-e user=a -e other=a --json");
    let told = json(&said);
    let [window, other] = &told["keys"].as_array().expect("keys")[..] else { panic!("{said:?}") };
    // That of a server without INCREX; one with it has only another sign.
    assert_eq!(window["key_without_increx"], **there, "{said:?}");
    assert_eq!(window["key"], *there.replace("}:", "}+"), "{said:?}");
    assert!(
        other["key_without_increx"].is_null() && other["key"].as_str().is_some_and(|it| it.contains("}:")),
        "{said:?}"
    );
    let said = key("-e user=a");
    assert!(said.stderr.contains("has no INCREX") && said.stderr.contains("store.fixed_window"), "{said:?}");
    assert!(!key("-e other=a").stderr.contains("INCREX"));
}
