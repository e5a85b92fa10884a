//! Helpers for tests of servers that share a store. They start a server, send requests to it, and read its log and
//! metrics.

use std::net::SocketAddr;

use serde_json::Value;
use spillgate_grpc::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use spillgate_grpc::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use spillgate_grpc::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use spillgate_grpc::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tonic::transport::{Channel, Endpoint};

use crate::cli_support::Folder;
use crate::support::process::Process;
use crate::support::spillgate::Spillgate;
use crate::support::{DEADLINE, eventually, http};

pub(crate) type Client = RateLimitServiceClient<Channel>;

/// Arguments for tests that do not test deadlines: a store deadline that is long enough on a busy machine.
pub(crate) const LONG_DEADLINE: [&str; 2] = ["--store-deadline", "30s"];

/// Creates a folder with the file `rules.yaml`, which has the domain `api` with these descriptors.
pub(crate) fn rules(descriptors: &str) -> Folder {
    Folder::new(&[("rules.yaml", &format!("domain: api\ndescriptors:\n{descriptors}"))])
}

/// Starts a server that uses the store at `url` and has two worker threads. Its settings say that two servers share the
/// store (`store.expected_nodes`).
pub(crate) fn serve(folder: &Folder, url: &str, arguments: &[&str]) -> Spillgate {
    let store = ["--store", url, "--store-expected-nodes", "2", "--workers", "2"];
    Spillgate::serve(&folder.path("rules.yaml"), &[&store[..], arguments].concat())
}

/// Sends one descriptor with one entry to `/v1/check`. Returns the status and the body of the answer.
pub(crate) fn check(server: SocketAddr, key: &str, value: &str) -> (u16, Value) {
    let body = format!(r#"{{"domain":"api","descriptors":[{{"{key}":"{value}"}}]}}"#);
    let answer = http::request(server, "POST", "/v1/check", &[], &body).expect("the server answers");
    (answer.status, serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{error}: {}", answer.body)))
}

/// Sends one descriptor with one entry to `/v1/check`. Returns the status, and the source of the answer: `store`, `policy`,
/// `local` or `deny_cache`.
pub(crate) fn decided(server: SocketAddr, key: &str, value: &str) -> (u16, String) {
    let (status, answer) = check(server, key, value);
    (status, answer["source"].as_str().unwrap_or_default().to_owned())
}

/// Sends requests until the store decides one of them.
pub(crate) fn until_store(server: SocketAddr, key: &str, value: &str) {
    eventually("the store decides", || (decided(server, key, value).1 == "store").then_some(()));
}

pub(crate) fn logged(process: &Process, text: &str) -> String {
    eventually(&format!("the log contains `{text}`"), || process.stderr().into_iter().find(|line| line.contains(text)))
}

/// Returns the value of a counter or gauge at `/metrics` of the admin listener.
pub(crate) fn metric(server: &Spillgate, name: &str) -> u64 {
    let text = http::get(server.admin(), "/metrics", &[]).body;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("`/metrics` has no {name}: {text}"))
}

/// Returns the number of requests whose decision came from this source.
pub(crate) fn decided_by(server: &Spillgate, source: &str) -> u64 {
    let text = http::get(server.admin(), "/metrics", &[]).body;
    let source = format!("source=\"{source}\"");
    let lines = text.lines().filter(|line| line.starts_with("spillgate_requests_total{") && line.contains(&source));
    lines.map(|line| line.rsplit(' ').next().and_then(|count| count.parse::<u64>().ok()).expect("a count")).sum()
}

pub(crate) async fn client(server: &Spillgate) -> Client {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.grpc())).expect("the address is valid");
    RateLimitServiceClient::new(endpoint.timeout(DEADLINE).connect().await.expect("the server listens"))
}

/// Returns a request with one descriptor for each of `values`. Each descriptor has one entry with this key.
pub(crate) fn request(key: &str, values: &[&str]) -> RateLimitRequest {
    let descriptor = |value: &&str| RateLimitDescriptor {
        entries: vec![Entry { key: key.to_owned(), value: (*value).to_owned() }],
        ..RateLimitDescriptor::default()
    };
    RateLimitRequest { domain: "api".to_owned(), descriptors: values.iter().map(descriptor).collect(), hits_addend: 0 }
}
