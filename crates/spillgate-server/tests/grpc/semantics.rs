//! Tests of the answers of the gRPC method `ShouldRateLimit`. Each test checks one rule about these answers.
//!
//! The code in an answer tells Envoy to refuse or allow the request, and Envoy shows the other fields to its client.
//! With a wrong field, Envoy would decide wrongly, or tell the client wrong numbers.

use spillgate::rules::{Rules, RulesFile};
use spillgate_grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::Code::{self, Ok, OverLimit};
use spillgate_grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use spillgate_service::Grants;
use spillgate_service::metrics::Rejection;
use tonic::Code as GrpcCode;

use crate::grpc::support::*;

const BASIC: &str = "
domain: api
descriptors:
  - key: user
    rate_limit: {name: per_user, unit: hour, requests_per_unit: 20}
  - key: tenant
    rate_limit: {unit: hour, requests_per_unit: 10}
  - key: batch
    rate_limits:
      - {name: hourly, unit: hour, requests_per_unit: 8}
      # If both limits refuse, the status shows the limit with the longer wait. This is a token bucket, because a window
      # of a day would end together with `hourly` in the last hour of a day. The waits would then be equal.
      - {name: daily, algorithm: token_bucket, unit: day, requests_per_unit: 5}
  - key: guarded
    rate_limits:
      - {name: per_client, unit: hour, requests_per_unit: 8}
      - {name: safety, unit: day, requests_per_unit: 1, expose: false}
  - key: hidden
    rate_limit: {name: unseen, unit: hour, requests_per_unit: 1, expose: false}
  - key: free
    rate_limit: {unlimited: true}
  - key: window
    rate_limit: {window: 90m, limit: 3}
  - key: weekly
    rate_limit: {unit: week, requests_per_unit: 3}
  - key: bucket
    rate_limit: {algorithm: token_bucket, unit: hour, requests_per_unit: 3, burst: 1}
  - key: permits
    rate_limit: {algorithm: concurrency, requests_per_unit: 1}
  - key: paid_later
    rate_limit: {unit: hour, requests_per_unit: 2, post_paid: true}
  - key: banned
    rate_limit: {unit: hour, requests_per_unit: 0}
  - key: watched
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: quota
    quota_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
";

async fn asked(client: &mut Client, descriptors: &[Descriptor]) -> (Code, Vec<(Code, u32)>) {
    summary(&ask(client, "api", descriptors).await.unwrap())
}

type Descriptor = spillgate_grpc::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;

#[tokio::test]
async fn counts_down_to_zero_and_then_refuses() {
    in_one_hour(|| async {
        let server = TestServer::start(&[BASIC]);
        let mut client = server.client().await;
        let mut last_reset = i64::MAX;
        for call in 0..25_u32 {
            let response = ask(&mut client, "api", &[descriptor(&[("user", "7")])]).await.unwrap();
            let code = if call < 20 { Ok } else { OverLimit };
            assert_eq!(summary(&response), (code, vec![(code, 19_u32.saturating_sub(call))]), "call {call}");
            let [status] = &response.statuses[..] else { panic!("an answer has one status for one descriptor") };
            let limit = status.current_limit.as_ref().unwrap();
            assert_eq!((limit.requests_per_unit, limit.unit(), &*limit.name), (20, Unit::Hour, "per_user"));
            let reset = status.duration_until_reset.unwrap();
            assert!((1..=3600).contains(&reset.seconds) && reset.nanos == 0, "{reset:?}");
            assert!(reset.seconds <= last_reset, "the time to the end of the window never grows");
            last_reset = reset.seconds;
        }
        // Another user has a counter of its own.
        assert_eq!(asked(&mut client, &[descriptor(&[("user", "8")])]).await, (Ok, vec![(Ok, 19)]));
    })
    .await;
}

#[tokio::test]
async fn a_limit_that_is_not_exposed_shows_its_wait_when_it_refuses_and_nothing_else() {
    in_one_hour(|| async {
        let server = TestServer::start(&[BASIC]);
        let mut client = server.client().await;
        let both = [descriptor(&[("guarded", "x")]), descriptor(&[("hidden", "x")])];
        let allowed = ask(&mut client, "api", &both).await.unwrap();
        let [guarded, hidden] = &allowed.statuses[..] else { panic!("{allowed:?}") };
        assert_eq!(
            (guarded.current_limit.as_ref().map(|limit| &*limit.name), guarded.limit_remaining),
            (Some("per_client"), 7)
        );
        assert_eq!((hidden.code(), &hidden.current_limit, hidden.limit_remaining), (Ok, &None, 0));
        assert_eq!(hidden.duration_until_reset, None);
        let refused = ask(&mut client, "api", &both).await.unwrap();
        for status in &refused.statuses {
            assert_eq!((status.code(), &status.current_limit, status.limit_remaining), (OverLimit, &None, 0));
            assert!(status.duration_until_reset.is_some_and(|wait| wait.seconds > 0), "{status:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_refusal_of_one_descriptor_charges_no_other() {
    in_one_hour(|| async {
        let server = TestServer::start(&[BASIC]);
        let mut client = server.client().await;
        let both = [descriptor(&[("user", "7")]), descriptor(&[("tenant", "a")])];
        for call in 0..15 {
            let answer = asked(&mut client, &both).await;
            if call < 10 {
                assert_eq!(answer, (Ok, vec![(Ok, 19 - call), (Ok, 9 - call)]), "call {call}");
            } else {
                assert_eq!(answer, (OverLimit, vec![(Ok, 10), (OverLimit, 0)]), "call {call}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn with_compat_envoy_each_descriptor_is_charged_alone() {
    in_one_hour(|| async {
        let compat = BASIC.replace("domain: api", "domain: api\ncompat: envoy").replace("denied", "");
        let server = TestServer::start(&[&compat]);
        let mut client = server.client().await;
        let both = [descriptor(&[("user", "7")]), descriptor(&[("tenant", "a")])];
        for call in 0..15_u32 {
            let (code, left) = if call < 10 { (Ok, 9 - call) } else { (OverLimit, 0) };
            assert_eq!(asked(&mut client, &both).await, (code, vec![(Ok, 19 - call), (code, left)]), "call {call}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_descriptor_that_no_rule_matches_is_allowed_without_a_limit() {
    let server = TestServer::start(&[BASIC]);
    let mut client = server.client().await;
    for (domain, entries) in [("other", &[("user", "7")][..]), ("api", &[("unknown", "7")]), ("api", &[])] {
        let response = ask(&mut client, domain, &[descriptor(entries)]).await.unwrap();
        assert_eq!(summary(&response), (Ok, vec![(Ok, 0)]));
        let [status] = &response.statuses[..] else { panic!("an answer has one status for one descriptor") };
        assert!(status.current_limit.is_none() && status.duration_until_reset.is_none());
    }
    assert_eq!(server.metrics.unmatched(), 3);
}

#[tokio::test]
async fn a_request_without_domain_or_descriptors_is_an_invalid_argument() {
    let server = TestServer::start(&[BASIC]);
    let mut client = server.client().await;
    let no_domain = ask(&mut client, "", &[descriptor(&[("user", "7")])]).await.unwrap_err();
    assert_eq!(no_domain.code(), GrpcCode::InvalidArgument);
    let no_descriptors = ask(&mut client, "api", &[]).await.unwrap_err();
    assert_eq!(no_descriptors.code(), GrpcCode::InvalidArgument);
    assert_eq!(server.metrics.rejected(Rejection::BadRequest).get(), 2);
}

#[tokio::test]
async fn hits_come_from_the_descriptor_or_the_request_and_default_to_one() {
    in_one_hour(|| async {
        let server = TestServer::start(&[BASIC]);
        let mut client = server.client().await;
        let user = &[("user", "7")];
        let mut five = request("api", &[descriptor(user)]);
        five.hits_addend = 5;
        let response = client.should_rate_limit(five).await.unwrap().into_inner();
        assert_eq!(summary(&response), (Ok, vec![(Ok, 15)]));
        let mut own = request("api", &[hits(user, 2)]);
        own.hits_addend = 5;
        let response = client.should_rate_limit(own).await.unwrap().into_inner();
        assert_eq!(summary(&response), (Ok, vec![(Ok, 13)]));
        assert_eq!(asked(&mut client, &[hits(user, 0)]).await, (Ok, vec![(Ok, 13)]), "0 hits take nothing");
        assert_eq!(
            asked(&mut client, &[descriptor(user)]).await,
            (Ok, vec![(Ok, 12)]),
            "a descriptor without `hits_addend` takes one unit"
        );
        assert_eq!(
            asked(&mut client, &[hits(user, 13)]).await,
            (OverLimit, vec![(OverLimit, 0)]),
            "13 units do not fit in the 12 that are left"
        );
        assert_eq!(asked(&mut client, &[hits(user, u64::MAX)]).await, (OverLimit, vec![(OverLimit, 0)]));
        assert_eq!(asked(&mut client, &[hits(user, 0)]).await, (Ok, vec![(Ok, 12)]), "refused hits are not charged");
    })
    .await;
}

#[tokio::test]
async fn a_refused_status_has_nothing_remaining() {
    in_one_hour(|| async {
        let server = TestServer::start(&[BASIC]);
        let mut client = server.client().await;
        // Some units are left, but fewer than the cost of this request. Envoy copies the number of remaining units into
        // its answer 429. A client that reads a number above 0 there would ask again at once, so the number must be 0.
        for key in ["user", "bucket", "permits", "quota", "batch"] {
            let refused = asked(&mut client, &[hits(&[(key, "x")], 21)]).await;
            assert_eq!(refused, (OverLimit, vec![(OverLimit, 0)]), "{key}");
        }
        let sibling = asked(&mut client, &[hits(&[("user", "x")], 21), descriptor(&[("tenant", "a")])]).await;
        assert_eq!(
            sibling,
            (OverLimit, vec![(OverLimit, 0), (Ok, 10)]),
            "the status of a limit that does not refuse has its remaining units"
        );
        let shadow = asked(&mut client, &[hits(&[("watched", "x")], 2)]).await;
        assert_eq!(shadow, (Ok, vec![(Ok, 1)]), "a shadow rule does not refuse");
    })
    .await;
}

#[tokio::test]
async fn negative_hits_refund_at_most_what_was_taken() {
    in_one_hour(|| async {
        let server = TestServer::start(&[BASIC]);
        let mut client = server.client().await;
        let user = &[("user", "7")];
        assert_eq!(asked(&mut client, &[hits(user, 20)]).await, (Ok, vec![(Ok, 0)]));
        assert_eq!(asked(&mut client, &[refund(user, 5)]).await, (Ok, vec![(Ok, 5)]));
        assert_eq!(asked(&mut client, &[refund(user, 500)]).await, (Ok, vec![(Ok, 20)]));
        // A descriptor that takes units cannot use the units that another descriptor of the same request refunds.
        assert_eq!(asked(&mut client, &[hits(user, 20)]).await, (Ok, vec![(Ok, 0)]));
        let (code, _) = asked(&mut client, &[hits(user, 1), refund(user, 5)]).await;
        assert_eq!(code, OverLimit);
        assert_eq!(server.metrics.refunds.get(), 3);
    })
    .await;
}

#[tokio::test]
async fn refunds_and_overrides_need_a_grant() {
    let setup = Setup { grants: Grants::default(), ..Setup::default() };
    let server = TestServer::start_with(&[BASIC], setup);
    let mut client = server.client().await;
    for change in [refund(&[("user", "7")], 1), overriding(&[("user", "7")], 5, 3)] {
        let refused = ask(&mut client, "api", &[descriptor(&[("user", "7")]), change]).await.unwrap_err();
        assert_eq!(refused.code(), GrpcCode::PermissionDenied);
    }
    let left = asked(&mut client, &[hits(&[("user", "7")], 0)]).await;
    assert_eq!(left, (Ok, vec![(Ok, 20)]), "the rejected requests charged nothing");
}

#[tokio::test]
async fn an_override_applies_wherever_the_domain_exists() {
    in_one_hour(|| async {
        let server = TestServer::start(&[BASIC]);
        let mut client = server.client().await;
        for entries in [[("user", "7")], [("unknown", "x")]] {
            let over = [overriding(&entries, 2, Unit::Day.into())];
            let response = ask(&mut client, "api", &over).await.unwrap();
            assert_eq!(summary(&response), (Ok, vec![(Ok, 1)]));
            let limit = response.statuses[0].current_limit.as_ref().unwrap();
            assert_eq!((limit.requests_per_unit, limit.unit()), (2, Unit::Day));
            assert_eq!(asked(&mut client, &over).await, (Ok, vec![(Ok, 0)]));
            assert_eq!(asked(&mut client, &over).await, (OverLimit, vec![(OverLimit, 0)]));
        }
        let elsewhere = ask(&mut client, "other", &[overriding(&[("user", "7")], 0, 3)]).await.unwrap();
        assert_eq!(summary(&elsewhere), (Ok, vec![(Ok, 0)]), "an unknown domain has no limits at all");
    })
    .await;
}

#[tokio::test]
async fn an_override_without_a_known_unit_is_an_invalid_argument() {
    let server = TestServer::start(&[BASIC]);
    let mut client = server.client().await;
    for unit in [0, 7, 99, -1, i32::MAX] {
        let refused = ask(&mut client, "api", &[overriding(&[("user", "7")], 5, unit)]).await.unwrap_err();
        assert_eq!(refused.code(), GrpcCode::InvalidArgument, "unit {unit}");
    }
    assert_eq!(asked(&mut client, &[descriptor(&[("user", "7")])]).await.0, Ok);
}

#[tokio::test]
async fn unlimited_reports_the_largest_number_as_remaining() {
    let server = TestServer::start(&[BASIC]);
    let mut client = server.client().await;
    for _ in 0..3 {
        assert_eq!(asked(&mut client, &[descriptor(&[("free", "x")])]).await, (Ok, vec![(Ok, u32::MAX)]));
    }
}

#[tokio::test]
async fn a_status_shows_the_limit_that_binds() {
    in_one_hour(|| async {
        let server = TestServer::start(&[BASIC]);
        let mut client = server.client().await;
        for left in (0..5).rev() {
            let response = ask(&mut client, "api", &[descriptor(&[("batch", "x")])]).await.unwrap();
            assert_eq!(summary(&response), (Ok, vec![(Ok, left)]));
            assert_eq!(response.statuses[0].current_limit.as_ref().unwrap().name, "daily");
        }
        let response = ask(&mut client, "api", &[hits(&[("batch", "x")], 4)]).await.unwrap();
        assert_eq!(summary(&response), (OverLimit, vec![(OverLimit, 0)]));
        assert_eq!(response.statuses[0].current_limit.as_ref().unwrap().name, "daily");
    })
    .await;
}

#[tokio::test]
async fn windows_that_are_not_a_named_unit_have_the_unit_unknown() {
    let server = TestServer::start(&[BASIC]);
    let mut client = server.client().await;
    for (key, unit) in [("window", Unit::Unknown), ("weekly", Unit::Week)] {
        let response = ask(&mut client, "api", &[descriptor(&[(key, "x")])]).await.unwrap();
        let limit = response.statuses[0].current_limit.as_ref().unwrap();
        assert_eq!((limit.requests_per_unit, limit.unit()), (3, unit), "{key}");
    }
}

#[tokio::test]
async fn a_refusal_has_the_wait_unless_it_is_unknown() {
    let server = TestServer::start(&[BASIC]);
    let mut client = server.client().await;
    let bucket = [descriptor(&[("bucket", "x")])];
    assert_eq!(asked(&mut client, &bucket).await, (Ok, vec![(Ok, 0)]));
    let response = ask(&mut client, "api", &bucket).await.unwrap();
    let wait = response.statuses[0].duration_until_reset.unwrap();
    // The bucket gets one token every twenty minutes. The wait is rounded up to whole seconds.
    assert!((600..=1200).contains(&wait.seconds) && wait.nanos == 0, "{wait:?}");

    assert_eq!(asked(&mut client, &[descriptor(&[("permits", "x")])]).await, (Ok, vec![(Ok, 0)]));
    let full = ask(&mut client, "api", &[descriptor(&[("permits", "x")])]).await.unwrap();
    assert_eq!(full.overall_code(), OverLimit);
    assert!(full.statuses[0].duration_until_reset.is_none(), "{full:?}");
}

/// If an answer has no `duration_until_reset`, Envoy writes `x-ratelimit-reset: 0` (ask again at once). So a refusal
/// must have a duration even if no wait helps. The only exception is an unknown wait: see the test above.
#[tokio::test]
async fn a_refusal_that_no_wait_ends_has_the_time_to_the_reset() {
    in_one_hour(|| async {
        let server = TestServer::start(&[BASIC]);
        let mut client = server.client().await;
        let used = asked(&mut client, &[descriptor(&[("bucket", "used")])]).await;
        assert_eq!(used, (Ok, vec![(Ok, 0)]));
        // A fixed window ends when the hour of the clock ends. The used bucket is full again after 1200 s. For a bucket that is
        // already full, the answer has the whole window of 3600 s.
        let to_the_hour_s = 3600 - now_s() % 3600;
        for (key, value, cost, longest_s) in [
            ("banned", "x", 1, to_the_hour_s),
            ("user", "x", 21, to_the_hour_s),
            ("bucket", "used", 2, 1200),
            ("bucket", "full", 2, 3600),
        ] {
            let refused = ask(&mut client, "api", &[hits(&[(key, value)], cost)]).await.unwrap();
            assert_eq!(summary(&refused), (OverLimit, vec![(OverLimit, 0)]), "{key}");
            let reset = refused.statuses[0].duration_until_reset.unwrap_or_else(|| panic!("{key}: {refused:?}"));
            let reset_s = u64::try_from(reset.seconds).unwrap();
            assert!(
                (longest_s.saturating_sub(600)..=longest_s).contains(&reset_s) && reset.nanos == 0,
                "{key}: {reset:?} must be {longest_s} s, or at most 600 s less"
            );
        }
    })
    .await;
}

#[tokio::test]
async fn two_equal_descriptors_are_one_check() {
    in_one_hour(|| async {
        let server = TestServer::start(&[BASIC]);
        let mut client = server.client().await;
        let twice = [descriptor(&[("user", "7")]), descriptor(&[("user", "7")])];
        assert_eq!(asked(&mut client, &twice).await, (Ok, vec![(Ok, 18), (Ok, 18)]));
    })
    .await;
}

#[tokio::test]
async fn a_post_paid_limit_is_always_charged_and_refuses_peeks() {
    in_one_hour(|| async {
        let server = TestServer::start(&[BASIC]);
        let mut client = server.client().await;
        let (take, peek) = ([hits(&[("paid_later", "x")], 2)], [hits(&[("paid_later", "x")], 0)]);
        assert_eq!(asked(&mut client, &take).await, (Ok, vec![(Ok, 0)]));
        assert_eq!(
            asked(&mut client, &peek).await.0,
            Ok,
            "a peek is allowed, because the limit is used up but not exceeded"
        );
        assert_eq!(asked(&mut client, &take).await, (Ok, vec![(Ok, 0)]));
        assert_eq!(asked(&mut client, &peek).await, (OverLimit, vec![(OverLimit, 0)]));
    })
    .await;
}

#[tokio::test]
async fn a_shadow_rule_is_counted_and_never_shown_as_over() {
    in_one_hour(|| async {
        let server = TestServer::start(&[BASIC]);
        let mut client = server.client().await;
        for _ in 0..3 {
            assert_eq!(asked(&mut client, &[descriptor(&[("watched", "x")])]).await, (Ok, vec![(Ok, 0)]));
        }
        let text = server.page();
        assert!(text.contains(r#"{domain="api",rule="watched",outcome="shadow_refused"} 2"#), "{text}");
        assert!(text.contains(r#"{domain="api",rule="watched",outcome="allowed"} 1"#), "{text}");
    })
    .await;
}

#[tokio::test]
async fn the_global_shadow_mode_allows_everything_and_shows_which_limits_are_over() {
    in_one_hour(|| async {
        let server = TestServer::start_with(&[BASIC], Setup { shadow: true, ..Setup::default() });
        let mut client = server.client().await;
        let both = [descriptor(&[("user", "7")]), descriptor(&[("tenant", "a")])];
        for call in 0..15_u32 {
            let (code, left) = if call < 10 { (Ok, 9 - call) } else { (OverLimit, 0) };
            // The request is allowed, so each limit that has enough units left is charged.
            assert_eq!(asked(&mut client, &both).await, (Ok, vec![(Ok, 19 - call), (code, left)]), "call {call}");
        }
        assert_eq!((server.metrics.requests(true), server.metrics.requests(false)), (15, 0));
    })
    .await;
}

#[tokio::test]
async fn quota_mode_refuses_only_when_all_its_limits_refuse() {
    in_one_hour(|| async {
        let server = TestServer::start(&[BASIC]);
        let mut client = server.client().await;
        let (a, b) = (descriptor(&[("quota", "a")]), descriptor(&[("quota", "b")]));
        assert_eq!(asked(&mut client, std::slice::from_ref(&a)).await, (Ok, vec![(Ok, 0)]));
        let one_over = asked(&mut client, &[a.clone(), b.clone()]).await;
        assert_eq!(one_over, (Ok, vec![(OverLimit, 0), (Ok, 0)]));
        assert_eq!(asked(&mut client, &[a, b]).await, (OverLimit, vec![(OverLimit, 0), (OverLimit, 0)]));
    })
    .await;
}

#[tokio::test]
async fn decisions_are_counted_by_rule_and_outcome() {
    in_one_hour(|| async {
        let server = TestServer::start(&[BASIC]);
        let mut client = server.client().await;
        for _ in 0..3 {
            asked(&mut client, &[hits(&[("tenant", "a")], 5)]).await;
        }
        let text = server.page();
        for line in [
            r#"spillgate_decisions_total{domain="api",rule="tenant",outcome="allowed"} 2"#,
            r#"spillgate_decisions_total{domain="api",rule="tenant",outcome="refused"} 1"#,
            r#"spillgate_requests_total{protocol="grpc",source="store",outcome="allowed"} 2"#,
            r#"spillgate_requests_total{protocol="grpc",source="store",outcome="refused"} 1"#,
            r#"spillgate_requests_rejected_total{reason="too_large"} 0"#,
            r#"spillgate_connections_closed_total{reason="idle"} 0"#,
            "spillgate_store_keys 1",
            "spillgate_rules 14",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
    })
    .await;
}

#[tokio::test]
async fn peeks_at_a_limit_that_never_refuses_them_are_counted_by_rule() {
    let rules =
        |unit: &str| format!("{BASIC}  - key: {unit}\n    rate_limit: {{unit: {unit}, requests_per_unit: 1}}\n");
    let server = TestServer::start(&[&rules("minute")]);
    let mut client = server.client().await;
    let peek = |key| hits(&[(key, "7")], 0);
    // With `apply_on_stream_done`, Envoy first sends a peek (a request of cost 0). When the stream ends, Envoy takes the
    // units that were used.
    let stream = [peek("user"), peek("minute"), peek("paid_later"), peek("free"), peek("unknown")];
    for _ in 0..2 {
        assert_eq!(ask(&mut client, "api", &stream).await.unwrap().overall_code(), Ok);
    }
    ask(&mut client, "api", &[descriptor(&[("tenant", "7")])]).await.unwrap();
    let peeks = || -> Vec<String> {
        let text = server.page();
        let mut lines: Vec<_> =
            text.lines().filter(|line| line.starts_with("spillgate_peeks")).map(String::from).collect();
        lines.sort();
        lines
    };
    let of = |rule: &str, count: u64| {
        format!(r#"spillgate_peeks_never_refused_total{{domain="api",rule="{rule}"}} {count}"#)
    };
    assert_eq!(peeks(), [of("minute", 2), of("user", 2)]);
    let reloaded = Rules::parse(&[RulesFile { name: "1.yaml".into(), text: rules("second") }]).unwrap();
    server.service.replace_rules(reloaded);
    ask(&mut client, "api", &stream).await.unwrap();
    assert_eq!(peeks(), [of("user", 3)], "a rule that no longer exists has no counter");
}
