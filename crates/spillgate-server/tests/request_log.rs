//! Tests of the log lines about requests. At the level `debug`, each request has a line, up to 100 lines in a second.
//! At `info`, the log has lines about refusals, about descriptors that no rule matches, and about unknown domains, and
//! one line can cover many requests. A warning names a limit that is charged at the end of streams, but is not
//! `post_paid`.
//!
//! The log must explain a decision. At `info`, the log must not show the values of descriptors, and it must not grow
//! with the number of requests.

use crate::cli_support::{Folder, signal};
use crate::support::spillgate::Spillgate;
use crate::support::{eventually, http};
use spillgate_grpc::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use spillgate_grpc::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use spillgate_grpc::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use spillgate_grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use spillgate_grpc::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tokio::runtime::Runtime;
use tonic::transport::Endpoint;

const RULES: &str = "domain: api
descriptors:
  - {key: user_id, rate_limit: {unit: year, requests_per_unit: 1, name: per_user}}
  - {key: team, value: 'a*', rate_limit: {unit: day, requests_per_unit: 0}}
";

fn check(server: &Spillgate, domain: &str, descriptors: &str) -> u16 {
    let body = format!(r#"{{"domain":"{domain}","descriptors":[{descriptors}]}}"#);
    http::request(server.http(), "POST", "/v1/check", &[], &body).expect("the server answers").status
}

#[test]
fn at_debug_each_request_is_in_the_log_with_its_rules_and_answer() {
    let folder = Folder::new(&[("rules.yaml", RULES)]);
    let server = Spillgate::serve(&folder.path("rules.yaml"), &["--log-level", "debug"]);
    let descriptors = r#"{"user_id":"7\nx"},{"user_id":"7","path":"/"}"#;
    assert_eq!([check(&server, "api", descriptors), check(&server, "api", descriptors)], [200, 429]);
    let allowed = server.process.logged("allowed=true");
    let expected = r#"domain="api" descriptors="user_id=7\nx (user_id: 0 of 1 left); user_id=7, path=/ (no rule)""#;
    assert!(allowed.contains("DEBUG decided") && allowed.contains(expected), "{allowed}");
    let refused = server.process.logged("allowed=false");
    assert!(refused.contains("(user_id: 0 of 1 left, over)") && refused.contains("retry_after_ms="), "{refused}");
    assert_eq!(check(&server, "", descriptors), 400);
    assert!(server.process.logged("not decided").contains("the domain is empty"));
    let key = "k".repeat(1_000);
    let hit = format!(r#"{{"bucket":"mail\n","key":"{key}","limit":5,"window_ms":1000}}"#);
    assert_eq!(http::request(server.http(), "POST", "/v1/hit", &[], &hit).expect("the server answers").status, 200);
    let line = server.process.logged("limits of the call");
    let named = format!(r#"bucket="mail\n" key="{key}" limits="Take 5 per second, sliding_window_log""#);
    assert!(line.contains(&named), "{line}");
}

#[test]
fn at_info_refused_and_unlimited_requests_are_logged_without_values_in_few_lines() {
    let many: String = (0..40)
        .map(|number| format!("  - {{key: k{number}, rate_limit: {{unit: day, requests_per_unit: 0}}}}\n"))
        .collect();
    let folder = Folder::new(&[("rules.yaml", &format!("{RULES}{many}"))]);
    let server = Spillgate::serve(&folder.path("rules.yaml"), &[]);
    for name in ["secret-1", "secret-2"] {
        let statuses = [(); 3].map(|()| check(&server, "api", &format!(r#"{{"user_id":"{name}"}}"#)));
        assert_eq!(statuses, [200, 429, 429]);
        check(&server, "api", &format!(r#"{{"path":"{name}"}}"#));
        check(&server, "shop", &format!(r#"{{"user_id":"{name}"}}"#));
    }
    for number in 0..40 {
        assert_eq!(check(&server, "api", &format!(r#"{{"k{number}":"secret"}}"#)), 429);
        check(&server, &format!("unknown-{number}"), r#"{"user_id":"secret"}"#);
    }
    let first = server.process.logged("this limit has refused requests");
    assert!(first.contains(r#"domain="api" rule="user_id" name="per_user" at="#), "{first}");
    assert!(first.contains("rules.yaml:3") && first.contains("refused="), "{first}");
    let path = server.process.logged("no rule matches a descriptor");
    assert!(path.contains(r#"domain="api" keys="path""#) && path.contains("it is allowed"), "{path}");
    assert!(server.process.logged("a domain that no rules file has").contains(r#"domain="shop""#));
    let lines = server.process.stderr();
    assert!(lines.len() <= 20, "{lines:#?}");
    assert!(!lines.iter().any(|line| line.contains("secret")), "{lines:#?}");
}

#[test]
fn a_limit_that_is_charged_at_the_end_of_streams_and_not_post_paid_has_one_warning() {
    let folder = Folder::new(&[("rules.yaml", RULES)]);
    let server = Spillgate::serve(&folder.path("rules.yaml"), &[]);
    let entries = vec![Entry { key: "user_id".to_owned(), value: "secret".to_owned() }];
    // A proxy that charges at the end of a stream sends these requests: a peek (cost 0) before the stream, and the cost
    // at its end.
    let hits = |hits| RateLimitDescriptor { entries: entries.clone(), hits_addend: Some(hits), ..Default::default() };
    Runtime::new().expect("the runtime starts").block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://{}", server.grpc())).expect("the address is valid");
        let mut client = RateLimitServiceClient::new(endpoint.connect().await.expect("the server listens"));
        for cost in [0, 5, 0, 5, 0] {
            let request = RateLimitRequest { domain: "api".to_owned(), descriptors: vec![hits(cost)], hits_addend: 0 };
            let answer = client.should_rate_limit(request).await.expect("the server answers").into_inner();
            assert_eq!(answer.overall_code() == Code::Ok, cost == 0);
        }
    });
    let warning = server.process.logged("apply_on_stream_done");
    for part in ["WARN", r#"domain="api" rule="user_id""#, "rules.yaml:3", "`post_paid: true`"] {
        assert!(warning.contains(part), "{part}: {warning}");
    }
    let lines = server.process.stderr();
    assert_eq!(lines.iter().filter(|line| line.contains("apply_on_stream_done")).count(), 1, "{lines:#?}");
    assert!(!lines.iter().any(|line| line.contains("secret")), "{lines:#?}");
}

#[test]
fn every_refusal_is_in_the_log_though_the_rules_are_replaced_and_the_server_ends() {
    let folder = Folder::new(&[("rules.yaml", RULES)]);
    let mut server = Spillgate::serve(&folder.path("rules.yaml"), &[]);
    let refuse = |times: usize| (0..times).for_each(|_| assert_eq!(check(&server, "api", r#"{"team":"a"}"#), 429));
    let reloaded = || server.process.stderr().iter().filter(|line| line.contains("rules reloaded")).count();
    refuse(1);
    server.process.logged("this limit has refused requests");
    // A reload writes the next line about refusals at once. Without a reload, the server would write it after a minute.
    for reloads in 1..=2 {
        refuse(3);
        signal(server.process.id(), "HUP");
        eventually("the rules are reloaded", || (reloaded() == reloads).then_some(()));
    }
    refuse(2);
    server.process.terminate();
    assert_eq!(server.process.wait().code(), Some(0));
    let refused = |line: &String| {
        let number = line.split_once("refused=")?.1.split(' ').next()?.parse::<u32>();
        Some(number.expect("`refused=` has a number"))
    };
    let written = || server.process.stderr().iter().filter_map(refused).collect::<Vec<_>>();
    eventually("the log counts nine refusals", || (written().iter().sum::<u32>() == 9).then_some(()));
    assert_eq!(written(), [1, 3, 3, 2]);
}
