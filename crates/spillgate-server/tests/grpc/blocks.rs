//! Tests of blocks over gRPC: Envoy has to refuse a blocked client, and show the client how long the block lasts.

use spillgate_grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::Code::{Ok, OverLimit};
use spillgate_service::operator::NewBlock;

use crate::grpc::support::*;

const RULES: &str = "
domain: api
descriptors:
  - {key: user, rate_limit: {name: per_user, unit: hour, requests_per_unit: 20}}
  - {key: free, rate_limit: {unlimited: true}}
";

#[tokio::test]
async fn a_blocked_descriptor_is_over_the_limit_blocked() {
    let server = TestServer::start(&[RULES]);
    let mut client = server.client().await;
    let block = |key: &'static str, lasts| NewBlock { key, value: "7", domain: Some("api"), lasts, reason: None };
    server.service.block(&block("user", "1h")).await.unwrap();
    server.service.block(&block("free", "1m")).await.unwrap();
    let all = [descriptor(&[("user", "7")]), descriptor(&[("user", "8")]), descriptor(&[("free", "7")])];
    let response = ask(&mut client, "api", &all).await.unwrap();
    assert_eq!(response.overall_code, i32::from(OverLimit));
    let names = response.statuses.iter().map(|status| status.current_limit.as_ref().map(|limit| limit.name.as_str()));
    assert_eq!(names.collect::<Vec<_>>(), [Some("blocked"), None, Some("blocked")]);
    let codes: Vec<_> = response.statuses.iter().map(|status| status.code).collect();
    assert_eq!(codes, [OverLimit, Ok, OverLimit].map(i32::from));
    let reset = response.statuses[0].duration_until_reset.as_ref().map(|reset| reset.seconds);
    assert!(matches!(reset, Some(3000..=3600)), "{reset:?}");
    let user = ask(&mut client, "api", &all[1..2]).await.unwrap();
    assert_eq!(summary(&user), (Ok, vec![(Ok, 19)]), "the blocked request took nothing");
    assert_eq!(server.metrics.operator.blocked.get(), 1);
}
