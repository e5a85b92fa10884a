//! Servers with rules for every outcome, and requests over each protocol.

use std::net::SocketAddr;

use serde_json::{Value, json};
use spillgate_grpc::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use spillgate_grpc::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use spillgate_grpc::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use spillgate_grpc::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tonic::transport::Endpoint;

use crate::support::http;
use crate::support::spillgate::Spillgate;

/// A rule with two limits, one of them with a name, and a rule for each other outcome. The windows are so long that
/// none ends during a test.
pub(crate) const RULES: &str = "
domain: d
descriptors:
  - key: two
    rate_limits:
      - {unit: year, requests_per_unit: 10, algorithm: fixed_window}
      - {name: daily, unit: year, requests_per_unit: 3, algorithm: token_bucket}
  - {key: soft, rate_limit: {unit: year, requests_per_unit: 2, soft: 50%}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
";

pub(crate) fn serve(rules: &str, arguments: &[&str]) -> Spillgate {
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(file.path(), rules).unwrap();
    Spillgate::serve(file.path(), arguments)
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Via {
    Grpc,
    Http,
}

impl Via {
    /// The value of the label `protocol` in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Via::Grpc => "grpc",
            Via::Http => "http",
        }
    }

    /// Sends one request with a descriptor of one entry for each pair. All descriptors have the cost `cost`.
    pub(crate) fn send(self, server: &Spillgate, entries: &[(&str, &str)], cost: u32) {
        match self {
            Via::Grpc => grpc(server.grpc(), entries, cost),
            Via::Http => check(server.http(), entries, cost),
        }
    }
}

/// Sends one request over HTTP, with a descriptor for each entry.
pub(crate) fn check(server: SocketAddr, entries: &[(&str, &str)], cost: u32) {
    let one = |(key, value): &(&str, &str)| Value::from_iter([((*key).to_owned(), Value::from(*value))]);
    let descriptors: Vec<Value> = entries.iter().map(one).collect();
    let body = json!({"domain": "d", "descriptors": descriptors, "cost": cost}).to_string();
    let answer = http::request(server, "POST", "/v1/check", &[("content-type", "application/json")], &body).unwrap();
    assert!([200, 429].contains(&answer.status), "{answer:?}");
}

fn grpc(server: SocketAddr, entries: &[(&str, &str)], cost: u32) {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
    let of_one = |pair| RateLimitDescriptor { entries: vec![entry(pair)], ..RateLimitDescriptor::default() };
    let descriptors = entries.iter().map(of_one).collect();
    let request = RateLimitRequest { domain: "d".into(), descriptors, hits_addend: cost };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let channel = Endpoint::from_shared(format!("http://{server}")).unwrap().connect().await.unwrap();
        let mut client = RateLimitServiceClient::new(channel);
        client.should_rate_limit(request).await.unwrap();
    });
}
